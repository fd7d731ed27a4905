"""Prompts of the baselines ReAct and DFSDT, for instruction-tuned models: ToolLLM's, in ReAct's form of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from verl_ext.mas.messages import Messages
from verl_ext.recipe.smurfs.prompts import quoted_user
from verl_ext.recipe.smurfs.scoring import FINAL
from verl_ext.recipe.smurfs.tree import Step
from verl_ext.recipe.smurfs.turns import FINISH, GIVE_UP, OBSERVATION
from verl_ext.tools.catalogue.render import clean, neutral, render

DEEPEST = f"No call leads on from here. Answer if you can ({FINAL} …); if not, another way will be tried."
WHOLE = "in natural language and with all that serves the question, as the user sees nothing else"
SPENT = f"You cannot call any more tools. Answer now with what you know: {FINAL} …"


def react(question: str, tools: list[dict[str, Any]], budget: int, whole: bool = False) -> Messages:
    """The beginning of the sequence; what follows is written behind the outputs (turns.py). whole: see `_task`."""
    return quoted_user(f"{_task(tools, budget, whole)}\nQuestion: {question}\nBegin with your thought.")


def dfsdt(
    question: str,
    tools: list[dict[str, Any]],
    budget: int,
    path: Sequence[Step],
    tried: Sequence[Step] = (),
    problem: str = "",
    closing: str = "",
    whole: bool = False,
) -> Messages:
    """A node: the whole path, and what was tried there before, all of which has failed (ToolLLM's diversity prompt).

    problem: why the output before this one was refused. closing: why no call leads on from here.
    """
    restart = (
        f"If you are stuck on a way that leads nowhere, go back and try another one:\nThought: …\nAction: {GIVE_UP}\n"
        "Action Input: {}\n"
    )
    text = f"{_task(tools, budget, whole)}{restart}\nQuestion: {question}\n{''.join(map(_written, path))}"
    if tried:
        said = "\n".join(f"- {step.name} {_json(step.arguments)}" for step in tried)
        text += (
            "This is not the first time you are at this point; all previous ways from here have failed. What you tried "
            f"here before:\n{said}\nNow choose an action that differs from all of these.\n"
        )
    if problem:
        text += f"Your last output was refused: {problem}\n"
    return quoted_user(f"{text}{closing or 'Go on with your thought and one action.'}")


def documents(response: dict[str, Any], limit: int) -> str:
    """A tool's response, as the agent reads it, without special tokens."""
    said = response["result"] if response["ok"] else f"error: {response['error']}"
    return neutral(render(said, limit))


def _task(tools: list[dict[str, Any]], budget: int, whole: bool) -> str:
    """whole: the answer is for a reader; otherwise it is compared with a target."""
    form = WHOLE if whole else "as short as it can be (a name, a number, yes or no, or the list that is asked for)"
    return (
        "You answer the user's question with the help of tools. At each step you think, and then take one action, in "
        f"exactly this form:\nThought: what to do next and why\nAction: the name of one tool\nAction Input: its "
        f"arguments as a JSON object\n{OBSERVATION} the tool's result, which is given to you\n"
        f"You may call tools {budget} times in all. When you know the answer, finish with it, {form}:\n"
        "Thought: I know the answer.\n"
        f'Action: {FINISH}\nAction Input: {{"answer": "…"}}\n'
        f"These are the tools:\n{_listed(tools)}\n"
    )


def _listed(tools: list[dict[str, Any]]) -> str:
    return "\n".join(clean(json.dumps(tool, ensure_ascii=False)) for tool in tools) or "none"


def _written(step: Step) -> str:
    return (
        f"Thought: {step.thought}\nAction: {step.name}\nAction Input: {_json(step.arguments)}\n"
        f"{OBSERVATION} {step.observation}\n"
    )


def _json(arguments: dict[str, Any]) -> str:
    return clean(json.dumps(arguments, ensure_ascii=False))
