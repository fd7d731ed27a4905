"""Prices and sums: four kinds of tasks, each for another agent of the puppeteer's pool.

    "34 + 58"                         92     run_python: reasoning is bad at sums
    "price of Amber Harbor"           9      web_search: no agent knows it by heart
    "more of 12 and 47"               47     reasoning: no program can be written without knowing the question
    "34 + price of Amber Harbor"      43     web_search, then run_python

    train.parquet, val.parquet   verl's schema; `data_source` is "tiny_pool"; extra_info.path: the agents needed
    prices.jsonl                 {"name": "Amber Harbor", "price": 9}

All other agents of the pool only cost tokens. A fixed fifth of all names and pairs of numbers belongs to validation:
none of them occurs in training.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_ext.storage.parquet import held_out, question_row, split_files
from verl_ext.worlds.data_set import Rows, draw_distinct, read_made, stamped_folder
from verl_ext.worlds.names import ADJECTIVES, NOUNS, SPLITS, name_pairs

DATA_SOURCE = "tiny_pool"
VERSION = 1  # raise it whenever the same arguments would give other files: `ensure` then regenerates
FILES = ("prices.jsonl", "train.parquet", "val.parquet")
STAMP = "tiny_pool.json"
# Kind of question -> the agents that are needed, in order.
PATHS = {
    "sum": ("run_python",),
    "price": ("web_search",),
    "more": ("reasoning",),
    "total": ("web_search", "run_python"),
}
KINDS = tuple(PATHS)
PRICES = range(2, 21)
LARGEST = 99  # larger numbers are no single token
NOTHING = "nothing found"


@dataclass(frozen=True)
class Question:
    """A task. `numbers`: two to be added or compared, or the price, or number and price; `name`: the thing priced."""

    kind: str
    numbers: tuple[int, ...]
    name: str = ""

    @property
    def text(self) -> str:
        """The question."""
        first, last = self.numbers[0], self.numbers[-1]
        return {
            "sum": f"{first} + {last}",
            "price": f"price of {self.name}",
            "more": f"more of {first} and {last}",
            "total": f"{first} + price of {self.name}",
        }[self.kind]

    @property
    def answer(self) -> str:
        """The right answer."""
        return str(max(self.numbers) if self.kind == "more" else sum(self.numbers))

    @property
    def path(self) -> tuple[str, ...]:
        """The agents that are needed, in order."""
        return PATHS[self.kind]


def prices(seed: int | str, split: str) -> dict[str, int]:
    """The price of each thing of a split."""
    rng = random.Random(f"{seed}/{split}/prices")
    return {name: rng.choice(PRICES) for name in name_pairs(ADJECTIVES, NOUNS, split)}


def draw(rng: random.Random, kind: str, known: dict[str, int], split: str) -> Question:
    """A random question of a kind and a split."""
    if kind in ("price", "total"):
        name = rng.choice(list(known))
        before = (rng.randint(1, LARGEST - known[name]),) if kind == "total" else ()
        return Question(kind, (*before, known[name]), name)
    while True:
        numbers = rng.randint(1, LARGEST), rng.randint(1, LARGEST)
        fits = sum(numbers) <= LARGEST if kind == "sum" else numbers[0] != numbers[1]
        if fits and SPLITS[held_out(f"{min(numbers)} {max(numbers)}")] == split:
            return Question(kind, numbers)


class Prices:
    """The world's web search: it finds what `price of NAME` asks for, and nothing else.

    Args:
        known: the price of everything.
    """

    name = "web_search"

    def __init__(self, known: dict[str, int]):
        self._known = known

    async def __call__(self, queries: list[str]) -> str:
        """The price that the first query asks for."""
        query = " ".join(queries[0].split()) if queries else ""
        price = self._known.get(query.removeprefix("price of ")) if query.startswith("price of ") else None
        return NOTHING if price is None else str(price)


def web_search(path: str) -> Prices:
    """The tool of the tiny recipe (`mas.tools.web_search`). Raises ValueError if the file does not exist."""
    return Prices({line["name"]: line["price"] for line in read_made(path, "prices_and_sums")})


def row(question: Question, split: str, index: int) -> dict[str, Any]:
    """One row of a parquet file."""
    truth, name = {"target": [question.answer]}, f"{DATA_SOURCE}-{split}-{index}"
    extra = {"kind": question.kind, "path": list(question.path)}
    return question_row(DATA_SOURCE, question.text, truth, "orchestration", split, index, name, **extra)


def questions(size: int, split: str, seed: int | str) -> list[Question]:
    """`size` distinct questions, their kinds in turn; a function of the arguments. Raises ValueError if too many."""
    known, rng = prices(seed, split), random.Random(f"{seed}/{split}/questions")
    return draw_distinct(lambda n: draw(rng, KINDS[n % len(KINDS)], known, split), size, f"{split}_size")


def data_set(train_size: int, val_size: int, seed: int) -> dict[str, Rows]:
    """The contents of the three files."""
    files = {"prices.jsonl": [{"name": n, "price": p} for split in SPLITS for n, p in prices(seed, split).items()]}
    asked = {split: questions(size, split, seed) for split, size in (("train", train_size), ("val", val_size))}
    return files | split_files(row, **asked)


def ensure(output_dir: str | Path, train_size: int = 2048, val_size: int = 128, seed: int = 0) -> Path:
    """Make sure that `output_dir` holds the data set of these arguments; generate it only when it does not."""
    stamp = {"version": VERSION, "train_size": train_size, "val_size": val_size, "seed": seed}
    return stamped_folder(output_dir, STAMP, FILES, lambda: data_set(train_size, val_size, seed), **stamp)
