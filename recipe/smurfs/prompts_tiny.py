"""The same prompts in compact form, for the tiny model trained on recipe/smurfs/cold_start/demonstrations.py.

    planner    plan: film:Amber Harbor:director:birthplace
                                    says {"Tasks": ["film:Amber Harbor:director", "person:birthplace"]}
    thought    think: person:birthplace tools: birthplace:closed:coal_bolt; birthplace:open:opal_reef; …
                                                            says open:opal_reef
    action     pick: open:opal_reef                         says opal_reef, one of the tools' names
    arguments  fill: person:birthplace after: Tova Brandt tool: person     says {"person": "Tova Brandt"}
    answer     read: person:birthplace result: Old Karsa    says Old Karsa
    verifier   verify: person:birthplace answer: Old Karsa  says {"Status": 1}
    final      final: film:… after: Tova Brandt; Old Karsa  says FINAL ANSWER: Old Karsa

Changing a character here changes what the tiny model was trained on: run its cold start again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_ext.mas.messages import Messages
from verl_ext.recipe.smurfs.prompts import Solved, quoted_user
from verl_ext.recipe.smurfs.search import Element
from verl_ext.tools.catalogue.render import clean, render


def planner(question: str) -> Messages:
    """The question."""
    return quoted_user(f"plan: {question}")


def tool_check(task: str) -> Messages:
    """The sub-task. The tiny model was not trained on it."""
    return quoted_user(f"check: {task}")


def thought(task: str, memory: Sequence[Element], tools: list[dict[str, Any]], hint: str, solved: Solved) -> Messages:
    """The sub-task and the open tools."""
    return quoted_user(f"think: {task} tools: {_listed(tools)}")


def action(task: str, thought: str, tools: list[dict[str, Any]], names: Sequence[str]) -> Messages:
    """The thought, which names a tool."""
    return quoted_user(f"pick: {thought}")


def arguments(task: str, memory: Sequence[Element], tool: dict[str, Any], solved: Solved) -> Messages:
    """The sub-task, what was found last, and what the tool asks for."""
    return quoted_user(
        f"fill: {task} after: {_last(memory, solved)} tool: {' '.join(tool['parameters']['properties'])}"
    )


def answer(task: str, result: str, memory: Sequence[Element]) -> Messages:
    """The sub-task and the tool's result; without one what was found last."""
    return quoted_user(f"read: {task} result: {result or _last(memory, ())}")


def verifier(task: str, answer: str) -> Messages:
    """The sub-task and its answer."""
    return quoted_user(f"verify: {task} answer: {answer}")


def final(question: str, solved: Solved, whole: bool = False) -> Messages:
    """The question and the answers of its sub-tasks. `whole` has no effect: the tiny model gives short answers."""
    return quoted_user(f"final: {question} after: {'; '.join(answer for _, answer in solved) or 'none'}")


def documents(result: Any, limit: int) -> str:
    """A tool's result."""
    return render(result, limit)


def _listed(tools: list[dict[str, Any]]) -> str:
    return clean("; ".join(f"{tool['description']}:{tool['name']}" for tool in tools)) or "none"


def _last(memory: Sequence[Element], solved: Solved) -> str:
    found = [answer for _, answer in solved] + [element.answer for element in memory]
    return found[-1] if found else "none"
