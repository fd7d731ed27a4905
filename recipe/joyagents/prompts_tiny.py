"""The same prompts in compact form, for the tiny model trained on recipe/joyagents/cold_start/demonstrations.py.

    master          user: shop:Amber Harbor:guarantee + 7        (memories: … same: <query> = <answer> like: …)
      says          <think>shop</think><tool_call>{"name": "shop_agent", "arguments": {"intention": "shop:Amber
                    Harbor:guarantee"}}</tool_call>
      sees          Pass calling {"api_name": "check_shop_expenses"} : 8
      says          <think>total</think><tool_call>… "total 8 + 7" …       sees 15      says <think>done</think> 15
    shop_agent      shop: shop:Amber Harbor:guarantee
    function_agent  function: film:Amber Harbor:director
      sees          director:closed:coal_bolt ; director:open:opal_reef ; …
      says          <think>open:opal_reef</think><tool_call>{"name": "opal_reef", "arguments": {"film": "Amber …
    question_agent  question: ask:Old Karsa:returns
    math_agent      math: total 8 + 7 - 2                        says <think> 15 13</think> 13
    summary         sum: ask:Old Karsa:returns of: Old Karsa:returns is blue crane ; …
      says          <think>Old Karsa:returns is blue crane</think> blue crane

A master that hands the whole question on leaves the arguments empty. Changing a character here changes what the tiny
model was trained on: run its cold start again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from verl_ext.mas.messages import Messages, user
from verl_ext.memory import Memory
from verl_ext.recipe.joyagents.grammar import neutral
from verl_ext.tools.catalogue.render import render


def summary(query: str, passages: list[dict[str, str]] | None) -> Messages:
    """A question and what was found."""
    return user(f"sum: {query} of: {_listed(passages or [])}")


def intention(query: str, turns: list[tuple[str, str]]) -> Messages:
    """Say again what the user wants."""
    return user(f"intend: {query}")


def documents(tools: list[dict[str, Any]]) -> str:
    """`director:open:wolf_reef`: description and name; the argument is the kind of thing that is asked about."""
    return " ; ".join(f"{tool['description']}:{tool['name']}" for tool in tools) or "none"


def passages(found: list[dict[str, str]]) -> str:
    """Titles alone: the text is for the summary."""
    return " ; ".join(passage["title"] for passage in found) or "none"


def called(name: str, arguments: dict[str, Any], answer: dict[str, Any], limit: int) -> str:
    """`Pass calling {"api_name": "check_shop_expenses"} : 8`, or the kind of error."""
    if not answer["ok"]:
        return f"error {render(answer['error'], limit)}" if answer["kind"] == "tool_error" else "error"
    return f"Pass calling {json.dumps({'api_name': name})} : {render(answer['result'], limit)}"


def _listed(found: list[dict[str, str]]) -> str:
    return " ; ".join(f"{passage['title']} is {passage['text']}" for passage in found) or "none"


def _asked(
    role: str,
    query: str,
    memories: Sequence[Memory],
    specialists: Sequence[str] = (),
    tools: Sequence[dict[str, Any]] = (),
) -> Messages:
    """A query to an agent, and its memories; the tiny master knows its specialists, the others look for their tools.

    Of each memory it says whether its query is the same one: the tiny model does not learn to compare them.
    """
    recalled = "".join(
        f" {'same' if memory.query == query else 'like'}: {memory.query} = {memory.output}" for memory in memories
    )
    return user(f"{role}: {query}{neutral(recalled)}")


master, shop_agent = partial(_asked, "user"), partial(_asked, "shop")
function_agent, question_agent = partial(_asked, "function"), partial(_asked, "question")
math_agent = partial(_asked, "math")
