"""Arithmetic: chains of small additions and subtractions, computed total by total.

    "7 + 5 - 3 + 8"      totals 12, 9, 17; the answer is "17"

or the same as a word problem (`stories`), as GSM8K has them, with small numbers:

    "Mia has 7 cards. Mia finds 5 cards. Mia loses 3 cards. Mia buys 8 more cards. How many cards does Mia have now?"

    train.parquet, val.parquet   verl's schema; `data_source` is "tiny_arithmetic"

A fixed fifth of all chains belongs to validation (by a checksum of their text): none occurs in training, whatever the
seed. The number of steps and the largest total say how hard it is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from verl_ext.storage.parquet import held_out, question_row, split_files
from verl_ext.worlds.data_set import Rows, draw_distinct, stamped_folder
from verl_ext.worlds.names import SPLITS

DATA_SOURCE = "tiny_arithmetic"
VERSION = 1  # raise it whenever the same arguments would give other files: `ensure` then regenerates
FILES = ("train.parquet", "val.parquet")
STAMP = "tiny_arithmetic.json"
OPERANDS = range(1, 10)
NAMES = ("Mia", "Tom", "Anna", "Ben", "Lucy", "Omar", "Nina", "Paul")
THINGS = ("apples", "stickers", "coins", "marbles", "cards", "shells")
MORE = (
    "{name} buys {number} more {thing}.",
    "{name} finds {number} {thing}.",
    "A friend gives {name} {number} {thing}.",
)
FEWER = (
    "{name} loses {number} {thing}.",
    "{name} gives {number} {thing} to a friend.",
    "{name} sells {number} {thing}.",
)


@dataclass(frozen=True)
class Chain:
    """`start` and the signed numbers added to it, one per step."""

    start: int
    terms: tuple[int, ...]

    @property
    def text(self) -> str:
        """`7 + 5 - 3 + 8`."""
        return " ".join([str(self.start), *(f"{'+' if term > 0 else '-'} {abs(term)}" for term in self.terms)])

    @property
    def story(self) -> str:
        """The chain as a word problem; its words are a function of the chain."""
        rng = random.Random(self.text)
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        told = [
            rng.choice(MORE if term > 0 else FEWER).format(name=name, number=abs(term), thing=thing)
            for term in self.terms
        ]
        return " ".join([f"{name} has {self.start} {thing}.", *told, f"How many {thing} does {name} have now?"])

    @property
    def totals(self) -> list[int]:
        """The total after each step; the last one is the answer."""
        return list(accumulate(self.terms, initial=self.start))[1:]

    @property
    def split(self) -> str:
        """The split that the chain belongs to."""
        return SPLITS[held_out(self.text)]


def draw_chain(rng: random.Random, split: str, steps: int, largest: int) -> Chain:
    """A random chain of a split whose totals lie between 0 and `largest`.

    Raises:
        ValueError: unknown split, or a number out of range.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; allowed: {', '.join(SPLITS)}")
    if steps < 1 or not 18 <= largest <= 99:
        raise ValueError(f"steps={steps}, largest={largest}: at least one step, and a largest total from 18 to 99")
    while True:
        total = start = rng.randint(1, largest)
        terms: list[int] = []
        for _ in range(steps):
            term = rng.choice([t for n in OPERANDS for t in (n, -n) if 0 <= total + t <= largest])
            terms.append(term)
            total += term
        chain = Chain(start, tuple(terms))
        if chain.split == split:
            return chain


def draw_chains(size: int, split: str, seed: int | str, steps: int, largest: int, least_steps: int = 0) -> list[Chain]:
    """`size` distinct chains, a function of the arguments. Raises ValueError if there are not that many, or a
    number is out of range."""
    if not 0 <= least_steps <= steps:
        raise ValueError(f"least_steps={least_steps}: 0, or from 1 to steps={steps}")
    rng = random.Random(f"{seed}/{split}")

    def draw(_: int) -> Chain:
        return draw_chain(rng, split, rng.randint(least_steps, steps) if least_steps else steps, largest)

    return draw_distinct(draw, size, f"{split}_size")


def row(chain: Chain, split: str, index: int, story: bool = False) -> dict[str, Any]:
    """One row of a parquet file."""
    truth, name = {"target": [str(chain.totals[-1])]}, f"{DATA_SOURCE}-{split}-{index}"
    text = chain.story if story else chain.text
    return question_row(DATA_SOURCE, text, truth, "math", split, index, name, steps=len(chain.terms))


def ensure(
    output_dir: str | Path,
    train_size: int = 2048,
    val_size: int = 128,
    seed: int = 0,
    steps: int = 4,
    largest: int = 29,
    least_steps: int = 0,
    stories: bool = False,
) -> Path:
    """Make sure that `output_dir` holds the data set of these arguments; generate it only when it does not.

    Args:
        steps: of a chain; at most, where `least_steps` is not 0.
        largest: total of a chain, from 18 to 99.
        stories: word problems in place of sums.
    """

    def contents() -> dict[str, Rows]:
        chains = {
            split: draw_chains(size, split, seed, steps, largest, least_steps)
            for split, size in (("train", train_size), ("val", val_size))
        }
        return split_files(partial(row, story=stories), **chains)

    stamp = {"version": VERSION, "train_size": train_size, "val_size": val_size, "seed": seed, "steps": steps}
    stamp |= {"largest": largest, "least_steps": least_steps, "stories": stories}
    return stamped_folder(output_dir, STAMP, FILES, contents, **stamp)
