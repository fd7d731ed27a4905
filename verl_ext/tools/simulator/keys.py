"""What identifies a call: the tool's version, its arguments as JSON compares them, and the prompt's version."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from verl_ext.tools.catalogue.types import CallError, Catalogue, ToolSpec, canonical
from verl_ext.tools.simulator.prompt import PROMPT_VERSION

# Longest arguments of a call, in characters of canonical JSON. A real API would answer with status 413.
MAX_ARGUMENTS = 32 * 1024
# Tools whose version is kept at hand.
MAX_TOOLS = 65_536
# What JSON can spell and UTF-8 cannot hold: half of a character outside of the basic plane.
HALF = re.compile(r"[\ud800-\udfff]")


class BadArguments(CallError, ValueError):
    """Arguments that the tool does not take; the message is for the agent that wrote them."""

    kind = "bad_arguments"


class CallKey(NamedTuple):
    """One call. `digest` (32 bytes) is of the prompt's version, the tool's version and the arguments.

    arguments: JSON in ASCII: keys sorted, no blanks, 1.0 as 1, texts as they are (Unicode is not normalised).
    """

    tool: str
    version: str
    arguments: str
    digest: bytes


def call_key(tool: str, version: str, arguments: Any) -> CallKey:
    """The key of a call.

    Args:
        tool: its name, for people who look into a cache.
        version: `ToolSpec.version`.
        arguments: as the agent gave them; those that are equal as JSON have the same key.

    Raises:
        BadArguments: they are no JSON that UTF-8 can hold, or longer than MAX_ARGUMENTS characters.
    """
    try:
        text = canonical(arguments)
    except Exception as error:  # whatever an odd object raises
        reason = "nested too deeply" if isinstance(error, RecursionError) else f"{error!s:.200}"
        raise BadArguments(f"the arguments of {tool} are not JSON: {reason}") from None
    if len(text) > MAX_ARGUMENTS:
        raise BadArguments(f"the arguments of {tool} have {len(text)} characters, allowed are {MAX_ARGUMENTS}")
    if "\\ud" in text and HALF.search(json.dumps(json.loads(text), ensure_ascii=False)):
        raise BadArguments(f"the arguments of {tool} hold half of a character (a lone surrogate)")
    return CallKey(tool, version, text, hashlib.sha256(f"{PROMPT_VERSION}\n{version}\n{text}".encode()).digest())


class Tools:
    """Versions of tools, which take longer to compute than an answer takes to look up, and checks of their calls."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[ToolSpec, str]] = {}  # by identity; the tool is kept so that it stays its own
        self._checks: dict[str, Catalogue] = {}

    def version(self, spec: ToolSpec) -> str:
        """`spec.version`."""
        seen = self._seen.get(id(spec))
        if seen is None:
            if len(self._seen) >= MAX_TOOLS:
                self._seen.clear()
                self._checks.clear()
            seen = self._seen[id(spec)] = (spec, spec.version)
        return seen[1]

    def key(self, spec: ToolSpec, arguments: Any) -> CallKey:
        """See `call_key`."""
        return call_key(spec.name, self.version(spec), arguments)

    def problems(self, spec: ToolSpec, arguments: Any) -> list[str]:
        """See `Catalogue.problems`."""
        version = self.version(spec)
        if version not in self._checks:
            self._checks[version] = Catalogue([spec])
        return self._checks[version].problems(spec.name, arguments)
