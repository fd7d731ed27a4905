"""Chat messages of an agent's prompt.

user("12 + 5")                            [{"role": "user", "content": "12 + 5"}]
chat("You calculate.", "12 + 5")          the same behind a system message
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from verl_ext.tracebacks import place_of

if TYPE_CHECKING:
    from verl_ext.mas.types import Call

Messages = list[dict[str, str]]


def user(content: str) -> Messages:
    """One message of the user."""
    return [{"role": "user", "content": content}]


def chat(system: str, content: str) -> Messages:
    """A system message, and one of the user."""
    return [{"role": "system", "content": system}, *user(content)]


def checked(given: Any, prompt: Callable[..., Any]) -> Messages:
    """What the function `prompt` returned.

    Raises:
        TypeError: it is no list of messages; a chat template would fail on it far from here, or write "None".
    """
    right = isinstance(given, list) and given and all(isinstance(one, dict) and "role" in one for one in given)
    if not right or not all(isinstance(one.get("content"), str | list) for one in given):
        raise TypeError(
            f"the prompt {place_of(prompt)} must return a list of messages, e.g. "
            f"[{{'role': 'user', 'content': '…'}}], but returned {given!r:.200}"
        )
    return given


def continued(call: Call, observation: str) -> Messages:
    """A sequence as turns, for engines that take no tokens, and for people.

    Do not build it from `call.messages` of a call that continues another one: that holds the server's version.
    """
    before = call.messages if call.continues is None else continued(call.continues, call.observation)
    return [*before, {"role": "assistant", "content": call.text}, {"role": "user", "content": observation}]
