"""Tool chains: tasks that need several tool calls in turn, and a few hundred tools that answer them.

    "film:Amber Harbor:director:birthplace:twin"
        `opal_reef` (director of a film) returns "Tova Brandt", `dune_kite` (birthplace of a person) "Old Karsa",
        `iron_fern` (twin of a city) the answer "New Lodi"

    tools.jsonl     {"name": "opal_reef", "description": "director:open", "parameters": {… "film" …}}
    facts.jsonl     {"kind": "film", "name": "Amber Harbor", "facts": {"director": "Tova Brandt", …}}
    train.parquet, val.parquet   verl's schema; `data_source` is "tiny_tools"; the gold calls are ground_truth.path

The intended difficulties: the name of a tool does not say what it does, so that an agent must search for it. Each tool
has copies that are closed or paid and return an error, which one word of their documentation says. Several kinds of
things have relations of the same name, so that a search must name both. Most tools are of no use. A fixed fifth of all
names belongs to validation: nobody and nothing in a validation task occurs in training.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from verl_ext.storage.parquet import question_row, split_files
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.catalogue.search.tool import ToolSearch
from verl_ext.tools.catalogue.toolbox import Toolbox
from verl_ext.tools.catalogue.types import CallError, Catalogue, ToolSpec
from verl_ext.tools.retrieval import build_retriever
from verl_ext.worlds.data_set import Rows, draw_distinct, read_made, stamped_folder
from verl_ext.worlds.names import ADJECTIVES, FIRST, LAST, NOUNS, PREFIXES, SPLITS, TOWNS, name_pairs

DATA_SOURCE = "tiny_tools"
VERSION = 1  # raise it whenever the same arguments would give other files: `ensure` then regenerates
FILES = ("tools.jsonl", "facts.jsonl", "train.parquet", "val.parquet")
STAMP = "tiny_tools.json"

# kind of thing -> {relation: kind of its value}
RELATIONS = {
    "film": {"director": "person", "writer": "person", "patron": "person", "studio": "company"},
    "person": {"birthplace": "city", "spouse": "person", "rival": "person", "patron": "person", "employer": "company"},
    "company": {"founder": "person", "seat": "city", "rival": "company"},
    "city": {"mayor": "person", "twin": "city", "founder": "person", "patron": "company"},
}
# Relations that no task asks about.
OTHERS = "price rating weather flag anthem budget poster email area history logo menu colour height".split()
STATES = ("open", "closed", "paid")  # only an open tool answers
# Names of tools: a word of the first and one of the second.
FRONT = "opal dune iron rust jade mint onyx coal fern moss sand silk wolf hawk lark crow".split()
BACK = "kite fern mast reef gate peak loom bolt drum sail helm vane yoke tide arch crest".split()
TOOL_NAMES = [f"{front}_{back}" for front in FRONT for back in BACK]
RELATION_WORDS = [*RELATIONS, *(relation for own in RELATIONS.values() for relation in own), *OTHERS]


@dataclass(frozen=True)
class Thing:
    """A film, person, company or city."""

    kind: str
    name: str


@dataclass(frozen=True)
class Chain:
    """A task: the relations to follow from `start`, in order."""

    start: Thing
    relations: tuple[str, ...]

    @property
    def text(self) -> str:
        """`film:Amber Harbor:director:birthplace:twin`."""
        return ":".join([self.start.kind, self.start.name, *self.relations])


class World:
    """Tools and facts, a function of the seed.

    Attributes:
        tools: all tools, in the order in which they are written down.
        useful: (kind, relation) -> name of the open tool.
    """

    def __init__(self, seed: int | str, split: str = "all", sizes: tuple[int, int, int, int] = (60, 80, 30, 40)):
        self.rng = random.Random(f"{seed}/tools")
        self.tools, self.useful = self._make_tools()
        self.facts: dict[Thing, dict[str, str]] = {}
        for part in SPLITS if split == "all" else (split,):
            self._make_facts(random.Random(f"{seed}/{part}/facts"), part, sizes)

    def _make_tools(self) -> tuple[list[ToolSpec], dict[tuple[str, str], str]]:
        wanted = [(kind, relation) for kind, own in RELATIONS.items() for relation in own]
        wanted += [(kind, other) for kind in RELATIONS for other in OTHERS]
        names = list(TOOL_NAMES)
        self.rng.shuffle(names)
        tools, useful = [], {}
        for kind, relation in wanted:
            for state in STATES:
                name = names.pop()
                tools.append(tool(name, kind, relation, state))
                if state == "open":
                    useful[kind, relation] = name
        self.rng.shuffle(tools)
        return tools, useful

    def _make_facts(self, rng: random.Random, split: str, sizes: tuple[int, int, int, int]) -> None:
        names = names_of(split)
        chosen = {
            kind: rng.sample(names[kind], min(size, len(names[kind]))) for kind, size in zip(names, sizes, strict=True)
        }
        for kind, things in chosen.items():
            for name in things:
                others = {value: [other for other in chosen[value] if other != name] for value in chosen}
                facts = {relation: rng.choice(others[value]) for relation, value in RELATIONS[kind].items()}
                self.facts[Thing(kind, name)] = facts

    def follow(self, chain: Chain) -> list[Thing]:
        """What each relation of the chain leads to; the last one is the answer."""
        found, thing = [], chain.start
        for relation in chain.relations:
            thing = Thing(RELATIONS[thing.kind][relation], self.facts[thing][relation])
            found.append(thing)
        return found

    def draw(self, rng: random.Random, hops: int) -> Chain:
        """A random task of `hops` relations that repeats no thing and no relation."""
        while True:
            kind = rng.choice(list(RELATIONS))
            start = rng.choice([thing for thing in self.facts if thing.kind == kind])
            relations, thing, seen = [], start, {start}
            for _ in range(hops):
                relation = rng.choice(list(RELATIONS[thing.kind]))
                thing = Thing(RELATIONS[thing.kind][relation], self.facts[thing][relation])
                relations.append(relation)
                seen.add(thing)
            if len(seen) == hops + 1 and len(set(relations)) == hops:
                return Chain(start, tuple(relations))

    def gold(self, chain: Chain) -> list[dict[str, Any]]:
        """The calls that lead to the answer."""
        steps = [chain.start, *self.follow(chain)]
        return [
            {"name": self.useful[thing.kind, relation], "arguments": {thing.kind: thing.name}}
            for thing, relation in zip(steps, chain.relations, strict=False)
        ]


def names_of(split: str) -> dict[str, list[str]]:
    """kind of thing -> all names of a split."""
    return {
        "film": name_pairs(ADJECTIVES, NOUNS, split),
        "person": name_pairs(FIRST, LAST, split),
        "company": name_pairs(LAST, NOUNS, split),
        "city": name_pairs(PREFIXES, TOWNS, split),
    }


def random_name(rng: random.Random) -> str:
    """A random name of a tool."""
    return f"{rng.choice(FRONT)}_{rng.choice(BACK)}"


def tool(name: str, kind: str, relation: str, state: str) -> ToolSpec:
    """A tool of the world: its description is the relation and its state, its argument the kind of thing."""
    properties = {kind: {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": [kind], "additionalProperties": False}
    return ToolSpec(name, f"{relation}:{state}", parameters, source="tiny_tools")


class FactsBackend:
    """Runs the tools: open ones look a fact up, the others return an error.

    Args:
        facts: thing -> {relation: value}.
    """

    def __init__(self, facts: dict[Thing, dict[str, str]]):
        self._facts = facts

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> str:
        """The value of the tool's relation.

        Raises:
            CallError: the tool is not open, or has no fact about that thing.
        """
        relation, state = spec.description.split(":")
        if state != "open":
            raise CallError(state)
        ((kind, name),) = arguments.items()
        known = self._facts.get(Thing(kind, name), {})
        if relation not in known:
            raise CallError("not found")
        return known[relation]


def search_and_call(tools: Sequence[ToolSpec], known: dict[Thing, dict[str, str]], top_k: int) -> dict[str, Any]:
    """`tool_search` and `tool_call` over tools in memory, for tests and examinations."""
    catalogue = Catalogue(tools)
    search = ToolSearch(catalogue, build_retriever(passages(tools)), top_k=top_k)
    return {"tool_search": search, "tool_call": Toolbox(catalogue, FactsBackend(known))}


def fact_rows(known: dict[Thing, dict[str, str]]) -> Rows:
    """The rows of facts.jsonl."""
    return [{"kind": thing.kind, "name": thing.name, "facts": facts} for thing, facts in known.items()]


def facts(path: str) -> FactsBackend:
    """The back end of the tiny recipe's tools (`mas.tools.tool_call.backend`). Raises ValueError without the file."""
    lines = read_made(path, "tool_chains")
    return FactsBackend({Thing(line["kind"], line["name"]): line["facts"] for line in lines})


def row(world: World, chain: Chain, split: str, index: int) -> dict[str, Any]:
    """One row of a parquet file."""
    gold = world.gold(chain)
    truth = {"target": [world.follow(chain)[-1].name], "path": json.dumps(gold)}
    extra = {"hops": len(chain.relations), "tools": [call["name"] for call in gold]}
    name = f"{DATA_SOURCE}-{split}-{index}"
    return question_row(DATA_SOURCE, chain.text, truth, "tools", split, index, name, **extra)


def data_set(train_size: int, val_size: int, seed: int, hops: Sequence[int]) -> dict[str, Rows]:
    """The contents of the four files."""
    world = World(seed)

    def chains(split: str, size: int) -> list[Chain]:
        part, rng = World(seed, split), random.Random(f"{seed}/{split}/tasks")
        return draw_distinct(lambda n: part.draw(rng, hops[n % len(hops)]), size, f"{split}_size")

    files = {"tools.jsonl": [spec.shown() for spec in world.tools], "facts.jsonl": fact_rows(world.facts)}
    return files | split_files(partial(row, world), train=chains("train", train_size), val=chains("val", val_size))


def ensure(
    output_dir: str | Path, train_size: int = 2048, val_size: int = 128, seed: int = 0, hops: Sequence[int] = (1, 2, 3)
) -> Path:
    """Make sure that `output_dir` holds the data set of these arguments; generate it only when it does not."""
    hops = list(hops)
    if not hops or min(hops) < 1 or max(hops) > 8:
        raise ValueError(f"hops={hops}: hops from 1 to 8")
    stamp = {"version": VERSION, "train_size": train_size, "val_size": val_size, "seed": seed, "hops": hops}
    return stamped_folder(output_dir, STAMP, FILES, lambda: data_set(train_size, val_size, seed, hops), **stamp)
