"""The key of a call: the tool's version, its arguments as canonical JSON, and the prompt's version."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from verl_ext.tools.catalogue.types import BAD_ARGUMENTS, CallError, ToolSpec, canonical
from verl_ext.tools.simulator.answers import MAX_DEPTH, too_deep
from verl_ext.tools.simulator.prompt import PROMPT_VERSION

# Longest arguments of a call, in characters of canonical JSON. A real API would answer with status 413.
MAX_ARGUMENTS = 32 * 1024
# Lone surrogates: JSON can hold them, UTF-8 cannot.
SURROGATE = re.compile(r"[\ud800-\udfff]")


class CallKey(NamedTuple):
    """One call.

    tool: its name, for people who look into a cache. version: `ToolSpec.version`.
    arguments: canonical JSON (`types.canonical`); Unicode is not normalised.
    digest: 32 bytes, of the prompt's version, the tool's version and the arguments.
    """

    tool: str
    version: str
    arguments: str
    digest: bytes


def call_key(spec: ToolSpec, arguments: Any) -> CallKey:
    """The key of a call.

    Args:
        arguments: from the agent; arguments that are equal as JSON have the same key.

    Raises:
        CallError: they are no JSON, longer than MAX_ARGUMENTS characters, nested too deeply, or not encodable as UTF-8.
    """
    tool, version = spec.name, spec.version
    if too_deep(arguments):
        raise CallError(f"the arguments of {tool} are nested more than {MAX_DEPTH} levels deep", BAD_ARGUMENTS)
    try:
        text = canonical(arguments)
    except Exception as error:  # raised by an odd object
        raise CallError(f"the arguments of {tool} are not JSON: {error!s:.200}", BAD_ARGUMENTS) from None
    if len(text) > MAX_ARGUMENTS:
        problem = f"have {len(text)} characters, allowed are {MAX_ARGUMENTS}"
        raise CallError(f"the arguments of {tool} {problem}", BAD_ARGUMENTS)
    if "\\ud" in text and SURROGATE.search(json.dumps(json.loads(text), ensure_ascii=False)):
        raise CallError(f"the arguments of {tool} hold half of a character (a lone surrogate)", BAD_ARGUMENTS)
    return CallKey(tool, version, text, hashlib.sha256(f"{PROMPT_VERSION}\n{version}\n{text}".encode()).digest())
