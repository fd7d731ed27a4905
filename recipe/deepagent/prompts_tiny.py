"""The same prompts in compact form, for the tiny model trained on recipe/deepagent/cold_start/demonstrations.py.

    agent      task: film:Amber Harbor:director:birthplace                        (after a fold: … memory: {…} {…} {…})
    a search   <tool_search>director:film</tool_search>
               <tool_search_result>director:closed:wolf_reef:film; director:open:opal_reef:film; …</tool_search_result>
    a call     <tool_call>{"name": "opal_reef", "arguments": {"film": "Amber Harbor"}}</tool_call>
               <tool_call_result>Tova Brandt</tool_call_result>
    auxiliary  working: film:… history: <the history>                              -> {"goal": "person:Tova Brandt:…"}

Changing a character here changes what the tiny model was trained on: run its cold start again.
"""

from __future__ import annotations

import json
from typing import Any

from verl_ext.mas.messages import Messages, user
from verl_ext.recipe.deepagent import memories
from verl_ext.recipe.deepagent.prompts import quoted
from verl_ext.tools.catalogue.render import clean, render

SCHEMAS = memories.COMPACT
BLANK = ""


def agent(
    question: str,
    tools: list[dict[str, Any]] | None = None,
    folded: dict[str, Any] | None = None,
    folding: bool = True,
    searching: bool = True,
) -> Messages:
    """The task, the tools where they are given, the memories after a fold. It names no actions."""
    content = f"task: {question}"
    if tools:
        content += f" tools: {documents(tools)}"
    if folded:
        content += f" {remembered(folded)}"
    return _user(content)


def remembered(folded: dict[str, Any]) -> str:
    """`memory: {…} {…} {…}`: for the agent, and where the history of a second fold begins (never trained on)."""
    return "memory: " + " ".join(json.dumps(folded[kind]) for kind in memories.KINDS)


def memory(kind: str, question: str, history: str, said: str = "", problem: str = "") -> Messages:
    """Ask for one of the three memories. The tiny model has one try: its second is the same."""
    return _user(f"{kind}: {question} history: {history}")


def summary(kind: str, question: str, content: str) -> Messages:
    """Ask for a shorter result. The tiny world has none that is too long."""
    return _user(f"shorten: {question} : {content}")


def documents(tools: list[dict[str, Any]]) -> str:
    """`director:open:opal_reef:film; …`: description, name, arguments."""
    shown = (":".join([tool["description"], tool["name"], *tool["parameters"]["properties"]]) for tool in tools)
    return clean("; ".join(shown)) or "none"


def outcome(answer: dict[str, Any], limit: int) -> str:
    """A tool's answer: its text, or `error` and the kind of error."""
    if not answer["ok"] and answer["kind"] != "tool_error":
        return f"error {answer['kind'].split('_')[0]}"  # unknown, bad
    return render(answer["result"], limit) if answer["ok"] else f"error {render(answer['error'], limit)}"


def _user(content: str) -> Messages:
    return user(quoted(content))
