"""Tiny shop worlds that are made up as they are asked, for demonstrations (demonstrations.py), and their words.

In worlds that come again the model learns by heart what is found, instead of reading it. What the fixed catalogues (the
shop's APIs, the specialists) answer to a search is what the recipe's own search finds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verl_ext.memory import Memory
from verl_ext.recipe.cold_start.teacher import END, Example, Segment
from verl_ext.recipe.deepagent.cold_start import demonstrations as tool_demos
from verl_ext.recipe.joyagents import prompts_tiny
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.retrieval import build_retriever
from verl_ext.worlds import names, tool_chains
from verl_ext.worlds.arithmetic import Chain, draw_chain
from verl_ext.worlds.shop import (
    ABOUT,
    API_OF,
    APIS,
    BIRDS,
    COLOURS,
    COUNTED,
    LARGEST,
    TOP_K,
    TOPICS,
    agent_tool,
    facts_of,
    shop_tool,
)

SHOPS = names.name_pairs(names.ADJECTIVES, names.NOUNS, "train")
TOWNS = [f"{prefix} {town}" for prefix in names.PREFIXES for town in names.TOWNS]


@dataclass(frozen=True)
class Made:
    """A question that was made up.

    Attributes:
        output: what the specialist for it rightly answers; of a cooperation the number.
        thing, word: what it asks about, and what about that.
        name: of the API or tool to be called.
        chain: of a sum. parts: what a cooperation takes, in order.
    """

    kind: str
    query: str
    output: str
    thing: str = ""
    word: str = ""
    name: str = ""
    chain: Chain | None = None
    parts: tuple[Made, ...] = ()


class Improvised:
    """A world whose facts come into being when they are asked for."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.tools = tool_demos.Improvised(rng)
        self._shops: dict[str, dict[str, str]] = {}
        self._texts: dict[str, str] = {}

    def question(self, kind: str) -> Made:
        """A random question of a kind (worlds/shop.py)."""
        return getattr(self, f"_{kind}")()

    def other(self, made: Made) -> Made:
        """Another question of the same kind, which often shares a name or a word with `made`."""
        if self.rng.random() < 0.3:
            while (found := self.question(made.kind)).query == made.query:
                pass
            return found
        same_thing = self.rng.random() < 0.5
        while True:
            other = self.question(made.kind)
            if made.kind in ("shop", "qa"):
                thing, word = (made.thing, other.word) if same_thing else (other.thing, made.word)
                other = self._shop(thing, word) if made.kind == "shop" else self._qa(thing, word)
            if other.query != made.query:
                return other

    def api(self, name: str, shop: str) -> str:
        """What an API says about a shop."""
        if shop not in self._shops:
            self._shops[shop] = facts_of(self.rng)
        return called(name, self._shops[shop][APIS[name].word])

    def passages(self, query: str) -> list[dict[str, str]]:
        """The entry of a question, and two that share words with it."""
        _, town, topic = query.split(":")
        prefix, _, name = town.partition(" ")
        twin = f"{self.rng.choice([other for other in names.PREFIXES if other != prefix])} {name}"
        others = [f"{twin}:{topic}", *(f"{town}:{other}" for other in TOPICS if other != topic)]
        titles = [f"{town}:{topic}", *self.rng.sample(others, TOP_K - 1)]
        return [{"title": title, "text": self._text(title)} for title in titles]

    def foreign(self, agent: str) -> str:
        """What a specialist answers to a question that is not for it."""
        return text(self.rng) if agent == "question_agent" else "none"

    def _math(self) -> Made:
        return _sum(draw_chain(self.rng, "train", self.rng.choice((1, 2, 2, 3)), LARGEST))

    def _qa(self, town: str = "", topic: str = "") -> Made:
        town, topic = town or self.rng.choice(TOWNS), topic or self.rng.choice(TOPICS)
        return Made("qa", f"ask:{town}:{topic}", self._text(f"{town}:{topic}"), town, topic)

    def _shop(self, shop: str = "", word: str = "") -> Made:
        shop, word = shop or self.rng.choice(SHOPS), word or self.rng.choice(list(API_OF))
        name = API_OF[word]
        return Made("shop", f"shop:{shop}:{word}", self.api(name, shop), shop, word, name)

    def _function(self) -> Made:
        chain = self.tools.draw(1)
        (relation,) = chain.relations
        name = self.tools.tools(chain.start.kind, relation)["open"]
        result = called(name, self.tools.fact(chain.start, relation).name)
        return Made("function", chain.text, result, chain.start.name, relation, name)

    def _cooperation(self) -> Made:
        parts = [self._shop(word=self.rng.choice(COUNTED)) for _ in range(self.rng.choice((1, 2)))]
        terms = [int(part.output.rpartition(" ")[2]) for part in parts]
        asked = [part.query for part in parts]
        if len(parts) == 1:
            terms.append(self.rng.randint(1, 9))
            asked.append(str(terms[1]))
        added = _sum(Chain(terms[0], (terms[1],)))
        return Made("cooperation", " + ".join(asked), added.output, parts=(*parts, added))

    def _text(self, title: str) -> str:
        if title not in self._texts:
            self._texts[title] = text(self.rng)
        return self._texts[title]


def _sum(chain: Chain) -> Made:
    return Made("math", f"total {chain.text}", str(chain.totals[-1]), chain=chain)


def called(name: str, result: str) -> str:
    """What a function that was called successfully has returned, as the recipe's agents see it."""
    return prompts_tiny.called(name, {}, {"ok": True, "result": result}, 100)


def refusal(found: dict[str, Any], kind: str) -> str:
    """What a tool that is not the right one answers when it is asked about a thing of this kind."""
    state = found["description"].partition(":")[2]
    if kind not in found["parameters"]["properties"]:
        return "error"  # its schema
    return f"error {state}" if state != "open" else "error not found"


def text(rng: random.Random) -> str:
    """A random text of the knowledge base."""
    return f"{rng.choice(COLOURS)} {rng.choice(BIRDS)}"


def memory(agent: str, made: Made) -> Memory:
    """The memory of an agent that has rightly answered a question."""
    return Memory(1, agent, made.query, (), made.output, 1, 2.0)


def worked_out(chain: Chain, shares: Mapping[str, float], rng: random.Random) -> list[int]:
    """Totals of a chain; steps that cross a ten forget it in so many cases (`carry`: additions, `borrow`: others)."""
    total, totals = chain.start, []
    for term in chain.terms:
        before, total = total, total + term
        if before // 10 != total // 10 and rng.random() < shares["carry" if term > 0 else "borrow"]:
            total += -10 if term > 0 else 10
        total = max(0, total)
        totals.append(total)
    return totals


def found(catalogue: str, query: str) -> str:
    """What `tool_retrievals` answers, of the master (catalogue: agents) or the shop agent (apis)."""
    specs, retriever = _catalogue(catalogue)
    return prompts_tiny.documents([specs[hit.passage.pid] for hit in retriever.search([query], TOP_K)[0]])


@lru_cache(maxsize=2)
def _catalogue(name: str) -> tuple[dict[str, dict[str, Any]], Any]:
    specs = [agent_tool(one) for one in ABOUT] if name == "agents" else [shop_tool(one) for one in APIS]
    return {spec.name: spec.shown() for spec in specs}, build_retriever(passages(specs))


def segments(messages: Sequence[dict[str, str]]) -> Example:
    """A chat as recipe/cold_start/train.py trains on it: the prompt, then outputs and what is seen between them."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    said: list[Segment] = []
    for message in messages[first:]:
        if message["role"] == "assistant":
            said.append((f" {message['content']}{END}", True))
        else:
            said.append((f"<|{message['role']}|> {message['content']}{END}<|assistant|>", False))
    return list(messages[:first]), said


def words() -> list[str]:
    """All numbers that occur."""
    return [*map(str, range(100))]


def marks() -> list[str]:
    """Texts that are one token wherever they stand: tags, pieces of JSON, words behind a blank and behind a colon."""
    roles = [f" {role}: " for role in ("user", "shop", "function", "question", "math", "sum", "intend")]
    form = [" <think>", "</think>", '<tool_call>{"name": "', '", "arguments": {"', '", "arguments": {"intention": "']
    form += ['": "', '"}}</tool_call>', '", "arguments": {}}</tool_call>', ' Pass calling {"api_name": "', '"} :']
    signs = [" same: ", " of: ", " ; ", " =", " +", " -", ":"]
    asked = [*tool_chains.RELATION_WORDS, *tool_chains.STATES, *TOPICS, *API_OF, "shop", "ask", "total", "intention"]
    thoughts = ["function", "find", "intend", "call", "done", "sum", "memory"]
    functions = [*ABOUT, "tool_retrievals", "tool_summary", "tool_intention", *APIS]
    found = [*roles, *form, *signs, *names.HEADS, *asked, *thoughts, *functions, *tool_chains.TOOL_NAMES]
    # Words in texts and results, and in the second place of a name.
    words = [*names.FIRST, *names.LAST, *names.PREFIXES, *names.NOUNS, *names.TOWNS, *COLOURS, *BIRDS]
    words += [value for api in APIS.values() for value in api.values if not value.isdigit()]
    words += ["none", "error", *tool_chains.STATES, "not", "found", "is", "like: "]
    return list(dict.fromkeys([*found, *(f" {word}" for word in words)]))
