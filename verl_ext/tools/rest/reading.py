"""The answer of a server: a result, an error that the agent reads, or a failure that is nobody's answer.

200 …                         the result
400, 404, 422, …              CallError: the tool's answer to these arguments; the trajectory continues
401, 403 (`key_statuses`)     Refused: the key is missing or wrong, which no agent can mend
429, 500, 502, 503, 504       Transient: another attempt may succeed; in the end ServerFailed
3xx                           Refused: another address, which the settings would have to allow
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.http.client import RETRY_STATUS, Refused, Transient
from verl_ext.tools.retrieval.types import encodable

MAX_SHOWN = 500
# Answers that say something about now and not about the call: they are not recorded.
PASSING = frozenset({408, 409, 421, 423, 425, 429})


class ServerFailed(ToolError):
    """A server cannot be reached, is too slow, or fails.

    status: the last HTTP status; None without an answer. remedy: what the user can do.
    """

    def __init__(self, message: str, status: int | None, remedy: str) -> None:
        super().__init__(message, status, remedy)  # all of them: Ray pickles errors, and makes them again of `args`
        self.message, self.status, self.remedy = message, status, remedy

    def __str__(self) -> str:
        return f"{self.message}. Remedy: {self.remedy}"


class StatusFailure(Transient):
    """A status after which another attempt may succeed."""

    def __init__(self, message: str, status: int, after: float) -> None:
        super().__init__(message, after)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What is recorded: the HTTP status below 500, and the content, JSON or text."""

    status: int
    content: Any

    @property
    def lasting(self) -> bool:
        """Whether the same call would be answered so again."""
        return self.status < 500 and self.status not in PASSING

    def result(self, name: str) -> Any:
        """The result of the tool `name`. Raises CallError: the answer is an error."""
        if 200 <= self.status < 300:
            return self.content
        shown = self.content if isinstance(self.content, str) else json.dumps(self.content, ensure_ascii=False)
        raise CallError(f"{name}: status {self.status}: {shown[:MAX_SHOWN]}")

    def text(self) -> str:
        """As JSON, for the record, without lone surrogates."""
        return encodable(json.dumps({"status": self.status, "content": self.content}, ensure_ascii=False))


def answer_of(recorded: str) -> Answer:
    """The answer that `Answer.text` wrote."""
    said = json.loads(recorded)
    return Answer(said["status"], said["content"])


def read(status: int, kind: str, charset: str | None, body: bytes, where: str) -> Answer:
    """The answer of a server.

    Args:
        kind: media type, "" if unknown. where: the server and the operation, for errors.

    Raises:
        ServerFailed: it says that its content is JSON, which it is not.
    """
    if not body:
        return Answer(status, None)
    text = _decoded(body, charset)
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return Answer(status, json.loads(text if text is not None else body))
        except (ValueError, RecursionError) as error:
            if status < 300:
                raise ServerFailed(
                    f"{where} answered {status} with something that is no JSON ({error!s:.100})", status,
                    "check that the server is the one of the document",
                ) from error  # fmt: skip
    return Answer(status, f"<{len(body):,} bytes of {kind or 'no type'}>" if text is None else text)


def check_status(status: int, after: str, location: str, key_statuses: Collection[int], where: str, key: str) -> None:
    """Raise for a status that is no answer to the call.

    Args:
        after, location: the headers Retry-After and Location.
        key: what the settings say of the key.

    Raises:
        Refused: the key is refused, or the server is elsewhere.
        StatusFailure: another attempt may succeed.
    """
    if status in key_statuses:
        raise Refused(
            f"{where} refused the key (status {status}). {key}. Remedy: set key_env to the variable that holds a valid "
            "one; if this status is an answer to the agent, leave it out of key_statuses", status, "",
        )  # fmt: skip
    if 300 <= status < 400:
        raise Refused(
            f"{where} answered {status} and leads to {location!r:.200}, which is not followed. Remedy: give that "
            "address as `server`", status, "",
        )  # fmt: skip
    if status in RETRY_STATUS or status >= 500:
        raise StatusFailure(f"status {status}", status, float(after) if after.isdigit() else 0.0)


def _decoded(body: bytes, charset: str | None) -> str | None:
    """The text without a byte order mark, None if it is none. Unknown encodings count as UTF-8."""
    for encoding in (charset or "utf-8", "utf-8"):
        try:
            return body.decode(encoding).removeprefix("\ufeff")
        except (UnicodeDecodeError, LookupError):
            continue
    return None
