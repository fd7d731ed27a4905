"""What an agent writes: a thought, and then either the call of a tool or its answer.

    <think> … </think><tool_call> {"name": …, "arguments": {…}} </tool_call>
    <think> … </think> the answer

Source: JoyAgents-R1, Sections 3.1 and 3.2 (format reward), templates of Section A.6.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from verl_ext.tools.catalogue.render import neutral as without_tokens
from verl_ext.tools.catalogue.written_calls import is_call, load_strictly, read_call

THINK, CALL = "think", "tool_call"
# An output ends with a call; its result stands in the next message.
STOPS = (f"</{CALL}>",)
FORM = re.compile(
    rf"\s*<{THINK}>(?P<thought>.*?)</{THINK}>\s*(?:<{CALL}>(?P<call>.*?)</{CALL}>\s*|(?P<answer>.+))", re.S
)
TAG = re.compile(rf"</?\s*(?:{THINK}|{CALL})\s*>", re.I)
CALLED = re.compile(rf"<{CALL}>(.*?)(</{CALL}>|\Z)", re.S)


class Step(NamedTuple):
    """What an output asks for.

    kind: "call", "answer", or "broken" for a call that cannot be read.
    name, arguments: of a call. answer: of an answer. problem: of a broken one, in words for the agent.
    formed: the output has the form above, the paper's format reward. thought: of an answer.
    """

    kind: str
    name: str = ""
    arguments: dict[str, Any] | None = None
    answer: str = ""
    problem: str = ""
    formed: bool = False
    thought: str = ""


def read_step(text: str, /, **_: Any) -> Step:
    """The first call of an output, or its answer: what stands behind the thought. Never raises."""
    formed = well_formed(text)
    found = CALLED.search(text)
    if not found:
        thought, _tag, rest = (TAG.sub("", part).strip() for part in text.rpartition(f"</{THINK}>"))
        return Step("answer", answer=rest, formed=formed, thought=thought)
    content, end = found.groups()
    if not end:
        return Step("broken", problem=f"<{CALL}> is not closed by </{CALL}>")
    try:
        name, arguments = read_call(content, empty_is_none=True)
    except ValueError as error:
        return Step("broken", problem=str(error))
    return Step("call", name=name, arguments=arguments, formed=formed)


def without_thought(text: str) -> str:
    """An output without its first thought."""
    before, _, rest = text.partition(f"<{THINK}>")
    _, end, behind = rest.partition(f"</{THINK}>")
    return f"{before}{behind.lstrip()}" if end else text


def well_formed(text: str) -> bool:
    """One thought, then one call that is JSON, or an answer without further tags."""
    found = FORM.fullmatch(text)
    if not found or TAG.search(found["thought"]) or TAG.search(found["call"] or found["answer"] or ""):
        return False
    if found["call"] is None:
        return bool(found["answer"].strip())
    try:
        return is_call(load_strictly(found["call"]))
    except ValueError:
        return False


def format_reward(text: str, value: Step, parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
    """R_F of Eq. 3: 1 for an output of the right form, else 0."""
    reward = float(value.formed)
    return reward, {"format": reward}


def output(thought: str, answer: str) -> str:
    """An output that answers, from its two parts."""
    return f"<{THINK}>{thought}</{THINK}>{answer}"


def answer_of(text: str) -> str:
    """The part of an output behind its thought."""
    return text.rpartition(f"</{THINK}>")[2].strip()


def neutral(content: str) -> str:
    """Text that can be encoded, in which nothing can be taken for a tag or a special token: their `<` is `&lt;`."""
    return without_tokens(TAG.sub(lambda match: match.group().replace("<", "&lt;"), content))
