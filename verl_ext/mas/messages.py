"""Chat messages of an agent's prompt.

user("12 + 5")                            [{"role": "user", "content": "12 + 5"}]
chat("You calculate.", "12 + 5")          the same behind a system message
"""

from __future__ import annotations

Messages = list[dict[str, str]]


def user(content: str) -> Messages:
    """One message of the user."""
    return [{"role": "user", "content": content}]


def chat(system: str, content: str) -> Messages:
    """A system message, and one of the user."""
    return [{"role": "system", "content": system}, *user(content)]
