"""An engine that plays the agents of the tiny shop world as they ought to be, from what their prompts say alone."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.helpers import FakeLLM, Request
from verl_ext.recipe.joyagents import grammar
from verl_ext.worlds.shop import API_OF, SPECIALIST

KIND = {"total": "math", "ask": "qa", "shop": "shop"}
THOUGHT = {"math": "total", "qa": "ask"}


class Player(FakeLLM):
    """Right outputs; `Request.prompt` is the JSON of the whole chat."""

    def __init__(self) -> None:
        super().__init__(play)

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return list(json.dumps(messages).encode())


def play(request: Request) -> str:
    """The right output of an agent."""
    messages = json.loads(request.prompt)
    asked = messages[0]["content"].partition(": ")[2]
    query, *recalled = re.split(" same: | like: ", asked)
    seen = [message["content"] for message in messages if message["role"] == "tool"]
    for memory in recalled:
        known, _, output = memory.partition(" = ")
        if known == query:
            return answer("memory", output)
    return globals()[request.agent](query, seen)


def call(thought: str, name: str, **arguments: str) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    assert grammar.STOPS == ("</tool_call>",)
    return f"<think>{thought}</think><tool_call>{said}</tool_call>"


def answer(thought: str, text: str) -> str:
    return f"<think>{thought}</think> {text}"


def master(query: str, seen: list[str]) -> str:
    parts = query.split(" + ") if query.startswith("shop:") else [query]
    if len(parts) == 1:
        kind = KIND.get(re.split("[ :]", query)[0], "function")
        return answer("done", seen[0]) if seen else call(THOUGHT.get(kind, kind), SPECIALIST[kind])
    lookups = [part for part in parts if part.startswith("shop:")]
    if len(seen) < len(lookups):
        return call("shop", "shop_agent", intention=lookups[len(seen)])
    if len(seen) == len(lookups):
        terms = [result.rpartition(" ")[2] for result in seen] + [part for part in parts if part not in lookups]
        return call("total", "math_agent", intention=f"total {' + '.join(terms)}")
    return answer("done", seen[-1])


def question_agent(query: str, seen: list[str]) -> str:
    steps = [call("find", "tool_retrievals"), call("sum", "tool_summary")]
    return steps[len(seen)] if len(seen) < len(steps) else answer("done", seen[-1])


def shop_agent(query: str, seen: list[str]) -> str:
    _, shop, word = query.split(":")
    return answer("done", seen[0]) if seen else call("call", API_OF[word], shop=shop)


def function_agent(query: str, seen: list[str]) -> str:
    kind, name, relation = query.split(":")
    if not seen:
        return call("find", "tool_retrievals", intention=f"{relation}:{kind}")
    if len(seen) == 1:
        tools = [one.split(":")[2] for one in seen[0].split(" ; ") if one.split(":")[:2] == [relation, "open"]]
        tool = tools[0] if tools else "none"
        return call(f"open:{tool}", tool, **{kind: name})
    return answer("done", seen[1])


def math_agent(query: str, seen: list[str]) -> str:
    total, totals = 0, []
    for sign, number in re.findall(r"([+-]?) ?(\d+)", query.removeprefix("total ")):
        total += -int(number) if sign == "-" else int(number)
        totals.append(total)
    return answer("".join(f" {one}" for one in totals[1:]), str(totals[-1]))


def summary(query: str, seen: list[str]) -> str:
    asked, _, found = query.partition(" of: ")
    passages: dict[str, Any] = dict(one.split(" is ") for one in found.split(" ; ") if " is " in one)
    return passages.get(asked.removeprefix("ask:"), "nothing")


def intention(query: str, seen: list[str]) -> str:
    return query
