"""What an agent writes: a thought, and then either the call of a tool or its answer.

    <think> … </think><tool_call> {"name": …, "arguments": {…}} </tool_call>
    <think> … </think> the answer

Source: JoyAgents-R1, Sections 3.1 and 3.2 (format reward), templates of Section A.6.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from verl_ext.tools.catalogue.render import neutral as without_tokens

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
    formed: the output has the form above, the paper's format reward.
    """

    kind: str
    name: str = ""
    arguments: dict[str, Any] | None = None
    answer: str = ""
    problem: str = ""
    formed: bool = False


def read_step(text: str, /, **_: Any) -> Step:
    """The first call of an output, or its answer: what stands behind the thought. Never raises."""
    formed = well_formed(text)
    found = CALLED.search(text)
    if not found:
        return Step("answer", answer=TAG.sub("", text.rpartition(f"</{THINK}>")[2]).strip(), formed=formed)
    content, end = found.groups()
    if not end:
        return Step("broken", problem=f"<{CALL}> is not closed by </{CALL}>")
    try:
        said = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Step("broken", problem=f"the call is no JSON: {str(error)[:200] or type(error).__name__}")
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return Step("broken", problem='a call is {"name": "…", "arguments": {…}}')
    arguments = said.get("arguments") or {}
    if not isinstance(arguments, dict):
        return Step("broken", problem=f"arguments must be an object, not {type(arguments).__name__}")
    return Step("call", name=said["name"], arguments=arguments, formed=formed)


def well_formed(text: str) -> bool:
    """One thought, then one call that is JSON, or an answer without further tags."""
    found = FORM.fullmatch(text)
    if not found or TAG.search(found["thought"]) or TAG.search(found["call"] or found["answer"] or ""):
        return False
    if found["call"] is None:
        return bool(found["answer"].strip())
    try:
        said = json.loads(found["call"], parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and isinstance(said.get("name"), str)


def format_reward(text: str, value: Step, parsable: bool, /, **_: Any) -> tuple[float, dict[str, float]]:
    """R_F of Eq. 3: 1 for an output of the right form, else 0."""
    reward = float(value.formed)
    return reward, {"format": reward}


def neutral(content: str) -> str:
    """Text that can be encoded, in which nothing can be taken for a tag or a special token: their `<` is `&lt;`."""
    return without_tokens(TAG.sub(lambda match: match.group().replace("<", "&lt;"), content))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
