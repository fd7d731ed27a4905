"""Errors that a program's client understands: OpenAI's form, and Anthropic's."""

from __future__ import annotations

from typing import Any

from verl_ext.mas.types import CallFailed, Status

# Anthropic's names of errors, by HTTP status.
ANTHROPIC = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
# OpenAI's codes of calls that failed, with the HTTP status.
FAILED = {
    Status.PROMPT_TOO_LONG: (400, "context_length_exceeded"),
    Status.CALL_LIMIT: (429, "call_limit"),
    Status.TIMEOUT: (504, "timeout"),
    Status.NO_TOOL_CALL: (422, "no_tool_call"),
}
# Clients of both companies repeat requests that failed by themselves. Repeated here, they would fail again.
HEADERS = {"x-should-retry": "false"}


class ApiError(Exception):
    """A request that is refused.

    Args:
        status: of HTTP.
        message: what is wrong, what was given, what is allowed, what to do.
        code: a word for programs, e.g. model_not_found.
        param: the part of the request that is wrong.
    """

    def __init__(self, status: int, message: str, code: str, param: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def openai(self) -> dict[str, Any]:
        """The body of the answer in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """The body of the answer in Anthropic's form."""
        kind = ANTHROPIC.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


class ClientLeft(Exception):
    """The client has closed the connection before its answer was there."""


def of_failure(failure: CallFailed) -> ApiError:
    """The answer to a request whose call gave nothing."""
    status, code = FAILED.get(failure.status, (500, failure.status.value))
    return ApiError(status, str(failure), code)


def ended() -> ApiError:
    """The answer to a request after the end of its trajectory."""
    return ApiError(410, "the trajectory of this API key has ended: nothing can be asked of it any more", "ended")
