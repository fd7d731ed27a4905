"""Client of the simulator's server: many workers, one model, one cache."""

from __future__ import annotations

import json
from typing import Any

from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue.types import BAD_ARGUMENTS, NOT_RECORDED, TOOL_ERROR, CallError, ToolSpec, as_json
from verl_ext.tools.http.client import JsonClient, Refused
from verl_ext.tools.simulator.answers import returned
from verl_ext.tools.simulator.keys import call_key
from verl_ext.tools.simulator.player import RECORDED, Counters
from verl_ext.tools.time_limits import LimitReached, within

# Seconds for a call, all attempts together: above the server's own limit for the model, below the toolbox's (30 s).
TIMEOUT_S, ATTEMPTS = 28.0, 3
# Kinds of the server's refusals that are answers to the call.
ANSWERS = (BAD_ARGUMENTS, NOT_RECORDED, TOOL_ERROR)


class HttpSimulator(JsonClient):
    """A back end of tools (`verl_ext.tools.catalogue.Backend`) that asks a simulator's server.

    Args:
        url: http://HOST:PORT of the server.
        timeout_s: seconds for a call, all attempts together, from when the server takes it.
        attempts: attempts per call if the server cannot be reached.

    Attributes:
        counters: of this client's calls. The server's counters, of all its clients, are part of `health`.

    Raises:
        ValueError: a malformed url or number.
    """

    server = "simulator's server"
    health_field = "counters"
    remedy = (
        "Start it with `python -m verl_ext.tools.simulator_server --catalogue KIND:FILE --cache FILE "
        "--endpoint URL --host {host} --port {port}`."
    )

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S, attempts: int = ATTEMPTS) -> None:
        super().__init__(url, timeout_s=timeout_s, attempts=attempts, max_wait_s=2.0)
        self.counters = Counters()

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        """The result of a call, as JSON.

        Raises:
            CallError, ToolError: as in `Simulator.serve`; ToolError also if the server cannot be reached or has another
                version of the tool.
        """
        try:
            arguments = as_json(arguments)
        except ValueError as error:
            raise CallError(f"the arguments of {spec.name} are not JSON: {error}", BAD_ARGUMENTS) from error
        key = call_key(spec, arguments)  # raises for arguments that cannot be sent
        body = {"tool": spec.name, "version": key.version, "arguments": arguments}
        try:
            answer = await within(self._request("POST", "/call", body, self._open()), self._timeout_s)
        except LimitReached as error:
            self.counters.failures += 1
            raise ToolError(f"no answer from {self.url}/call within {self._timeout_s:g} s") from error
        except Refused as error:
            raise self._error_of(error) from error
        except ToolError:
            self.counters.failures += 1
            raise
        return self._result(answer, spec.name)

    def _result(self, answer: Any, name: str) -> Any:
        if not isinstance(answer, dict) or "result" not in answer:
            self.counters.failures += 1
            raise ToolError(f"{self.url}/call answered in an unknown form: {answer!r:.200}; is it verl_ext's?")
        source = answer.get("source")
        self.counters.hits += source == "cache"
        self.counters.recorded += source == RECORDED
        self.counters.misses += source == "model"
        return answer["result"] if source == RECORDED else returned(answer["result"], name)

    def _error_of(self, refusal: Refused) -> Exception:
        """The error that the server's refusal stands for."""
        try:
            body = json.loads(refusal.text)
            kind, message = str(body["kind"]), str(body["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            kind, message = "", ""
        self.counters.misses += kind == NOT_RECORDED
        self.counters.recorded += kind == TOOL_ERROR
        if kind in ANSWERS:
            return CallError(message, kind)
        self.counters.failures += 1
        return ToolError(message) if kind == "failed" else refusal
