"""Reads the outputs of the baselines' agents, in ReAct's form. Nothing in them is evaluated.

Thought: …
Action: film                                    a tool's name, or one of the two below
Action Input: {"title": "Amber Harbor"}
Observation:                                    here the output ends, and the tool's result begins

Action: Finish                                  Action: give_up_and_restart
Action Input: {"answer": "…"}                   Action Input: {}
FINAL ANSWER: …                                 (the Smurfs' own form, read as Finish)
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from verl_ext.mas import Unparsable
from verl_ext.recipe.smurfs.grammar import ARGUMENTS, read_object
from verl_ext.recipe.smurfs.scoring import FINAL, read_final

FINISH, GIVE_UP = "Finish", "give_up_and_restart"
OBSERVATION = "Observation:"
# An output ends with this.
STOPS = (f"\n{OBSERVATION}",)
# Labels stand at the beginning of a line; models like to set them in bold.
_ACTION = re.compile(r"^[ \t*]*Action[ \t*]*:(.*)$", re.M)
_INPUT = re.compile(r"^[ \t*]*Action Input[ \t*]*:", re.M)
_END = re.compile(r"^[ \t*]*Observation[ \t*]*:|<think>", re.M)
_THOUGHT = re.compile(r"\s*[*]*Thought[ \t*]*:")
_MARKS = " \t\r*`\"'"


class Turn(NamedTuple):
    """An output, read.

    kind: "call", "answer", "give_up", or "broken" for one without an action that can be read.
    thought: the text before the action. name, arguments (None: unreadable): of a call. answer: of an answer.
    problem: why a broken output or arguments cannot be read, in words for the agent.
    """

    kind: str
    thought: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None
    answer: str = ""
    problem: str = ""


def read_turn(text: str, /, *, whole: bool = False, **_: Any) -> Turn:
    """The first action or answer of an output, after its reasoning in <think>. Never raises, for any text.

    whole: the answer may have several lines (`read_final`).
    """
    start, end = _said(text)
    found, final = _ACTION.search(text, start, end), text.find(FINAL, start, end)
    if final >= 0 and (found is None or final < found.start()):
        return Turn("answer", _thought(text[start:final]), answer=read_final(text[final:end], whole=whole))
    if found is None:
        problem = "there is neither an action nor an answer" if text.strip() else "it is empty, or was cut off"
        return Turn("broken", problem=problem)
    thought, name = _thought(text[start : found.start()]), found[1].strip(_MARKS)
    given = _INPUT.search(text, found.end(), end)
    said = text[given.end() : end].strip() if given else ""
    if name == GIVE_UP:
        return Turn("give_up", thought)
    try:
        arguments, problem = read_object(said, ARGUMENTS)[0], ""
    except Unparsable as error:
        arguments, problem = None, f"the Action Input cannot be read: {error}"
    if name == FINISH:  # its answer may be plain text instead of JSON; JSON that cannot be read is none
        plain = "" if said.startswith("{") else said
        answered = plain if arguments is None else arguments.get("answer")
        answer = "" if answered is None else str(answered)  # 0 is an answer
        return Turn("answer", thought, answer=read_final(f"{FINAL} {answer}", whole=whole))
    if not name:
        return Turn("broken", thought, problem="the action has no name")
    return Turn("call", thought, name, arguments, problem=problem)


def action_spans(text: str) -> list[tuple[int, int]]:
    """[start, end) of the tool call in an output, Action and Action Input; empty for answers."""
    if read_turn(text).kind != "call":
        return []
    start, end = _said(text)
    found = _ACTION.search(text, start, end)
    return [(found.start(), len(text[:end].rstrip()))] if found else []


def observed(text: str, content: str) -> str:
    """The text to append to an output: the observation, and the beginning of the next thought."""
    label = "" if text.rstrip().endswith(OBSERVATION) else f"\n{OBSERVATION}"
    return f"{label} {content}\nThought:"


def _said(text: str) -> tuple[int, int]:
    """[start, end) of the part to read: after the reasoning, before any observation (the model invented that one).

    It ends where reasoning begins that was cut off: an action that is only considered there is none.
    """
    mark = text.rfind("</think>")
    start = mark + len("</think>") if mark >= 0 else 0
    end = _END.search(text, start)
    return start, end.start() if end else len(text)


def _thought(text: str) -> str:
    found = _THOUGHT.match(text)
    return text[found.end() if found else 0 :].strip()
