"""Shop: five kinds of questions to a customer service, with the data, tools and knowledge base behind it.

    "total 7 + 5"                                 math: 12
    "ask:Old Karsa:returns"                       qa: "blue crane", an entry of the knowledge base with near duplicates
    "shop:Amber Harbor:guarantee"                 shop: check_shop_expenses is to be called (it returns 8)
    "film:Amber Harbor:director"                  function: opal_reef is to be called, one of three (tool_chains)
    "shop:Amber Harbor:guarantee + 7"             cooperation: 15
    "shop:Amber Harbor:supply + shop:Misty Bell:sale"       cooperation, two look-ups

    train.parquet, val.parquet    verl's schema; `data_source` is the kind; ground_truth as recipe/joyagents/accuracy.py
    knowledge.jsonl               {"pid": "3", "title": "Old Karsa:returns", "text": "blue crane"}
    shop_tools.jsonl, tools.jsonl, agents.jsonl       catalogues of the shop's APIs, the other tools, the specialists
    facts.jsonl                   what the tools return: {"kind": "shop", "name": "Amber Harbor", "facts": {…}}

The intended difficulties: customers have two words for what an API does, and its documentation has only the first. All
validation questions to the knowledge base occur in training, because customers ask the same things again; of the other
kinds, none does. There are few training questions, so that a run meets them again: memories are for that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from verl_ext.storage.parquet import question_row, split_files
from verl_ext.tools.catalogue.types import ToolSpec
from verl_ext.tools.retrieval import Passage, SearchTool, build_retriever
from verl_ext.worlds import tool_chains
from verl_ext.worlds.arithmetic import draw_chain
from verl_ext.worlds.data_set import Rows, draw_distinct, stamped_folder
from verl_ext.worlds.names import ADJECTIVES, NOUNS, PREFIXES, SPLITS, TOWNS, name_pairs

VERSION = 2  # raise it whenever the same arguments would give other files: `ensure` then regenerates
CATALOGUES = ("shop_tools.jsonl", "tools.jsonl", "agents.jsonl")
FILES = ("train.parquet", "val.parquet", "knowledge.jsonl", *CATALOGUES, "facts.jsonl")
STAMP = "tiny_shop.json"
KINDS = ("math", "qa", "shop", "function", "cooperation")
# Kind -> the specialist that can answer it alone.
SPECIALIST = {"math": "math_agent", "qa": "question_agent", "shop": "shop_agent", "function": "function_agent"}

TOP_K = 3  # APIs, tools and passages that a search finds, as in the tiny recipe
LARGEST = 19  # of all totals
NUMBERS = tuple(str(number) for number in range(1, 10))  # two of them add up to LARGEST at most
SHOPS = 40  # per split
TOWNS_WITH_ENTRIES = 10
TOPICS = ("returns", "delivery", "warranty", "invoice")
COLOURS = "blue green white black brown grey pink teal amber olive".split()
BIRDS = "crane heron finch eagle stork quail ibis wren lark dove".split()


@dataclass(frozen=True)
class Api:
    """The word for it in its documentation, the customers' own word, and the values that it returns."""

    word: str
    other: str
    values: tuple[str, ...] = NUMBERS


# Names are those of recipe/joyagents/shop.py.
APIS = {
    "check_shop_expenses": Api("deposit", "guarantee"),
    "check_qualifications": Api("licence", "papers", ("granted", "missing")),
    "search_order_code": Api("order", "parcel"),
    "search_after_sales": Api("complaint", "dispute", ("solved", "waiting")),
    "report_order_delay": Api("delay", "lateness"),
    "check_deposit_refund": Api("refund", "payback"),
    "search_promotion": Api("discount", "sale"),
    "search_coupon": Api("coupon", "voucher"),
    "check_bank_card": Api("card", "account", ("bound", "unbound")),
    "search_payment_method": Api("settlement", "payout", ("weekly", "monthly")),
    "search_product_audit": Api("audit", "review", ("passed", "failed")),
    "check_stock": Api("stock", "supply"),
}
API_OF = {word: name for name, api in APIS.items() for word in (api.word, api.other)}
COUNTED = [word for word, name in API_OF.items() if APIS[name].values is NUMBERS]  # answered with a number
# Descriptions of the specialists, among which the master searches.
ABOUT = {
    "shop_agent": "shop",
    "math_agent": "total",
    "question_agent": "ask",
    "function_agent": "film person company city",
}


class World:
    """Shops, knowledge base and tools, a function of the seed.

    Attributes:
        shops: name -> {word of the documentation: answer}, of both splits.
        entries: title -> text.
        tools: the world of the other tools (tool_chains).
    """

    def __init__(self, seed: int | str):
        self.seed = seed
        rng = random.Random(f"{seed}/shops")
        grids = (name_pairs(ADJECTIVES, NOUNS, split) for split in SPLITS)
        self.shops = {name: facts_of(rng) for grid in grids for name in rng.sample(grid, SHOPS)}
        self.entries = _entries(random.Random(f"{seed}/knowledge"))
        self.tools = tool_chains.World(seed)

    def answer(self, shop: str, word: str) -> str:
        """What the API for a customer's word returns about a shop."""
        return self.shops[shop][APIS[API_OF[word]].word]

    def facts(self) -> dict[tool_chains.Thing, dict[str, str]]:
        """What the tools return (tool_chains.FactsBackend)."""
        shops = {tool_chains.Thing("shop", name): facts for name, facts in self.shops.items()}
        return shops | self.tools.facts


def facts_of(rng: random.Random) -> dict[str, str]:
    """What the APIs return about a random shop, by the word of their documentation."""
    return {api.word: rng.choice(api.values) for api in APIS.values()}


def _entries(rng: random.Random) -> dict[str, str]:
    """Towns in pairs that share a word (Old Karsa, New Karsa), all topics of each: near duplicates."""
    towns = [f"{prefix} {town}" for town in rng.sample(TOWNS, TOWNS_WITH_ENTRIES // 2) for prefix in PREFIXES[1:3]]
    titles = [f"{town}:{topic}" for town in towns for topic in TOPICS]
    texts = [f"{colour} {bird}" for colour in COLOURS for bird in BIRDS]
    return dict(zip(titles, rng.sample(texts, len(titles)), strict=True))


def shop_tool(name: str) -> ToolSpec:
    """An API of this world: its description is the word of its documentation, its argument a shop."""
    return tool_chains.tool(name, "shop", APIS[name].word, "open")


def agent_tool(name: str) -> ToolSpec:
    """A specialist as `tool_retrievals` of the master finds it."""
    parameters = {"type": "object", "properties": {"intention": {"type": "string"}}}
    return ToolSpec(name, ABOUT[name], parameters, source="tiny_shop")


@dataclass(frozen=True)
class Question:
    """A question and its ground truth, as recipe/joyagents/accuracy.py reads it."""

    kind: str
    text: str
    target: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()

    @property
    def truth(self) -> dict[str, Any]:
        """The ground truth."""
        kind = {"shop": "function", "cooperation": "math"}.get(self.kind, self.kind)
        return {"kind": kind, "target": list(self.target), "functions": list(self.functions)}


class Questions:
    """Draws questions of a split about a world."""

    def __init__(self, world: World, split: str):
        self.world, self.split = world, split
        self.rng = random.Random(f"{world.seed}/{split}/questions")
        names = set(name_pairs(ADJECTIVES, NOUNS, split))
        self.shops = [name for name in world.shops if name in names]
        self.tools = tool_chains.World(world.seed, split)

    def draw(self, kind: str) -> Question:
        """A random question of a kind."""
        return getattr(self, f"_{kind}")()

    def _math(self) -> Question:
        chain = draw_chain(self.rng, self.split, self.rng.choice((1, 2)), LARGEST)
        return Question("math", f"total {chain.text}", target=(str(chain.totals[-1]),))

    def _qa(self) -> Question:
        title, text = self.rng.choice(list(self.world.entries.items()))
        return Question("qa", f"ask:{title}", target=(text,))

    def _shop(self) -> Question:
        shop, word = self.rng.choice(self.shops), self.rng.choice(list(API_OF))
        return Question("shop", f"shop:{shop}:{word}", functions=(API_OF[word],))

    def _function(self) -> Question:
        chain = self.tools.draw(self.rng, 1)
        (call,) = self.tools.gold(chain)
        return Question("function", chain.text, functions=(call["name"],))

    def _cooperation(self) -> Question:
        parts: list[str] = []
        total = 0
        for _ in range(self.rng.choice((1, 2))):
            shop = self.rng.choice([shop for shop in self.shops if f"shop:{shop}:" not in " ".join(parts)])
            word = self.rng.choice(COUNTED)
            parts.append(f"shop:{shop}:{word}")
            total += int(self.world.answer(shop, word))
        if len(parts) == 1:
            parts.append(str(self.rng.randint(1, 9)))
            total += int(parts[-1])
        return Question("cooperation", " + ".join(parts), target=(str(total),))


def draw_questions(world: World, split: str, size: int) -> list[Question]:
    """`size` distinct questions of a split, the kinds in turn. Raises ValueError if there are not that many."""
    drawing = Questions(world, split)
    return draw_distinct(lambda n: drawing.draw(KINDS[n % len(KINDS)]), size, f"{split}_size")


def tools_of(world: World) -> dict[str, Any]:
    """The recipe's tools over a world in memory, for tests and examinations."""
    specs = {"agent": [agent_tool(name) for name in ABOUT], "shop": [shop_tool(name) for name in APIS]}
    found: dict[str, Any] = {}
    for name, tools in (specs | {"function": world.tools.tools}).items():
        pair = tool_chains.search_and_call(tools, world.facts(), TOP_K)
        found |= {f"{name}_search": pair["tool_search"], f"{name}_call": pair["tool_call"]}
    entries = [Passage(str(number), title, text) for number, (title, text) in enumerate(world.entries.items())]
    return found | {"knowledge": SearchTool(build_retriever(entries), top_k=TOP_K, max_documents=TOP_K)}


def row(question: Question, split: str, index: int) -> dict[str, Any]:
    """One row of a parquet file."""
    return question_row(question.kind, question.text, question.truth, "shop", split, index)


def data_set(train_size: int, val_size: int, seed: int) -> dict[str, Rows]:
    """The contents of all files."""
    world = World(seed)
    train = draw_questions(world, "train", train_size)
    asked = [question for question in train if question.kind == "qa"]
    again = cycle(random.Random(f"{seed}/asked again").sample(asked, len(asked)))
    val = [next(again) if question.kind == "qa" else question for question in draw_questions(world, "val", val_size)]
    return {
        **split_files(row, train=train, val=val),
        "knowledge.jsonl": [
            {"pid": str(i), "title": title, "text": text} for i, (title, text) in enumerate(world.entries.items())
        ],
        "shop_tools.jsonl": [shop_tool(name).shown() for name in APIS],
        "tools.jsonl": [spec.shown() for spec in world.tools.tools],
        "agents.jsonl": [agent_tool(name).shown() for name in ABOUT],
        "facts.jsonl": tool_chains.fact_rows(world.facts()),
    }


def ensure(output_dir: str | Path, train_size: int = 120, val_size: int = 100, seed: int = 0) -> Path:
    """Make sure that `output_dir` holds the data set of these arguments; generate it only when it does not.

    Raises:
        ValueError: a size is too small or too large.
    """
    largest = TOWNS_WITH_ENTRIES * len(TOPICS) * len(KINDS)
    if not all(len(KINDS) <= size <= largest for size in (train_size, val_size)):
        raise ValueError(f"train_size={train_size}, val_size={val_size}: each from {len(KINDS)} to {largest}")
    stamp = {"version": VERSION, "train_size": train_size, "val_size": val_size, "seed": seed}
    return stamped_folder(output_dir, STAMP, FILES, lambda: data_set(train_size, val_size, seed), **stamp)
