"""Prompts of the baselines for instruction-tuned models: the papers' instructions, in our own words.

`agent` is the acting agent of most of them, in ReAct's form (recipe/smurfs/turns.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from verl_ext.mas.messages import Messages
from verl_ext.recipe.smurfs import prompts_baselines as shared
from verl_ext.recipe.smurfs.prompts import quoted_user
from verl_ext.recipe.smurfs.scoring import FINAL
from verl_ext.tools.catalogue.render import clean, neutral

SPENT, documents = shared.SPENT, shared.documents
SHORT = f"End with one line: {FINAL} and the answer, as short as it can be (a name, a number, yes or no, or a list)."
IN_FULL = f"End with {FINAL} and the answer {shared.WHOLE}."


def agent(question: str, tools: list[dict[str, Any]], budget: int, notes: str = "", whole: bool = False) -> Messages:
    """ReAct's task, with what the system has noted for it: a plan, reflections. whole: as in `shared.react`."""
    content = shared.react(question, tools, budget, whole)[0]["content"]
    return [{"role": "user", "content": f"{content}\n{neutral(notes)}" if notes else content}]


def single(question: str, tools: list[dict[str, Any]], budget: int, whole: bool = False) -> Messages:
    """An agent that finds its tools itself (Template 6 of JoyAgents-R1, for any catalogue)."""
    rules = (
        "You may answer a question that needs no tool, such as a calculation or a chat, at once. Otherwise search for "
        "tools with an intention, the user's or your own words for it, and call what you have found. Make one call at "
        "a time; a call may use the results of earlier ones. Where several calls answer the question, put all their "
        "results together. Call as few tools as you can while being right."
    )
    content = shared.react(question, tools, budget, whole)[0]["content"]
    return [{"role": "user", "content": f"{content}\n{rules}"}]


def cot(question: str, whole: bool = False) -> Messages:
    """Zero-shot chain of thought."""
    return quoted_user(f"Question: {question}\nThink step by step before you answer. {_end(whole)}")


def planner(question: str, tools: list[dict[str, Any]]) -> Messages:
    """Plan-and-Solve: understand, then plan."""
    return quoted_user(
        "First understand the user's question: what is asked, and what has to be found out for it. Then devise a plan: "
        "numbered steps, each of which one of these tools or a thought of yours can do. Do not carry the plan out.\n"
        f"These are the tools:\n{_listed(tools)}\nQuestion: {question}"
    )


def evaluator(question: str, log: str, answer: str) -> Messages:
    """Reflexion's evaluator."""
    return quoted_user(
        f"An agent worked on a question.\nQuestion: {question}\nWhat it did:\n{neutral(log)}\nIts answer: "
        f"{neutral(answer) or 'none'}\nIs the answer complete, and supported by what it found? Answer yes or no."
    )


def reflector(question: str, log: str, answer: str) -> Messages:
    """Reflexion's verbal reinforcement."""
    return quoted_user(
        f"You worked on a question and failed.\nQuestion: {question}\nWhat you did:\n{neutral(log)}\nYour answer: "
        f"{neutral(answer) or 'none'}\nSay in a few sentences why it failed, and what you will do differently the next "
        "time. You will read this before you try again."
    )


def rewoo_planner(question: str, tools: list[dict[str, Any]], budget: int) -> Messages:
    """ReWOO's planner: every call before any result is known."""
    return quoted_user(
        "Plan all tool calls that answer the user's question before any of them is made. For each step write two lines:"
        "\nPlan: what this step finds out\n#E1 = the tool's name, a blank, and its arguments as a JSON object\n"
        "The next step's result is #E2, and so on. Where an argument is the result of an earlier step, write that "
        f'step\'s name in its place, as in {{"title": "#E1"}}. There are at most {budget} steps.\n'
        f"These are the tools:\n{_listed(tools)}\nQuestion: {question}"
    )


def solver(question: str, evidence: Sequence[tuple[str, str]], whole: bool = False) -> Messages:
    """ReWOO's solver."""
    known = "\n".join(f"{neutral(plan)}\nResult: {neutral(result)}" for plan, result in evidence) or "nothing"
    return quoted_user(
        f"Answer from what was found out; some of it may not help.\n{known}\nQuestion: {question}\n{_end(whole)}"
    )


def critic(question: str, log: str, answer: str) -> Messages:
    """Self-Refine's feedback."""
    return quoted_user(
        f"Question: {question}\nWhat was found out:\n{neutral(log)}\nDraft of the answer: {neutral(answer) or 'none'}\n"
        "Criticise the draft: what is wrong, missing or unsupported, and how to mend it. If nothing has to change, "
        "write only: It is good."
    )


def refiner(
    question: str,
    log: str,
    answer: str,
    feedback: str,
    before: Sequence[tuple[str, str]] = (),
    whole: bool = False,
) -> Messages:
    """Self-Refine's refinement. before: earlier drafts with their criticism."""
    drafts = [*before, (answer, feedback)]
    said = "".join(f"Draft of the answer: {neutral(one) or 'none'}\nCriticism: {neutral(bad)}\n" for one, bad in drafts)
    return quoted_user(
        f"Question: {question}\nWhat was found out:\n{neutral(log)}\n{said}"
        f"Write a better answer that takes the criticism into account. {_end(whole)}"
    )


def debater(question: str, own: str, others: Sequence[str]) -> Messages:
    """A later round of a debate. own, others: what was said, reasoning and answer."""
    said = "\n".join(f"- {neutral(answer) or 'none'}" for answer in others)
    return quoted_user(
        f"Question: {question}\nWhat you said:\n{neutral(own) or 'none'}\nWhat other agents said:\n{said}\nUse their "
        f"answers as advice, examine them with care, and give your answer again, changed or not. {SHORT}"
    )


def programmer(question: str, tools: list[dict[str, Any]], budget: int, whole: bool = False) -> Messages:
    """CodeAct's agent."""
    return quoted_user(
        "You answer the user's question by Python programs. At each step you think, and then write one program between "
        "<execute> and </execute>; you are then shown what it printed. A program calls a tool by call_tool(name, "
        "argument=value, …), which returns the tool's result or raises an error; it may call several, and loop. Each "
        f"program starts anew: print what you will need later. You may call tools {budget} times in all, and each "
        f"program counts, too. When you know the answer, write no program. {_end(whole)}\n"
        f"These are the tools:\n{_listed(tools)}\nQuestion: {question}"
    )


def _end(whole: bool) -> str:
    return IN_FULL if whole else SHORT


def _listed(tools: list[dict[str, Any]]) -> str:
    return "\n".join(clean(json.dumps(tool, ensure_ascii=False)) for tool in tools) or "none"
