"""`ChatEndpoint`: a client of an OpenAI-compatible server. Takes chats, returns text and token counts."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from typing import Any

from tenacity import RetryCallState, wait_random_exponential

from verl_ext.tools.chat.wire import (
    CONTINUE,
    Answer,
    answer_of,
    complaint_of,
    is_too_long,
    join_stream,
    model_names,
    refusal_note,
    refused_parameters,
    remedy_of,
    rename,
    sendable,
)
from verl_ext.tools.http.client import Connections, Transient, retrying, transient_failures
from verl_ext.tools.time_limits import not_counted

Messages = list[dict[str, str]]
# These are tried again, as is every 5xx (also those of proxies: 520, 524, 529).
RETRY_STATUS = frozenset({408, 409, 429})
# At most so many seconds pass between two attempts, even if the server asks for more (Retry-After).
MAX_WAIT = 30.0
# Many servers hold seeds in 32 bits.
SEED_BITS = (1 << 31) - 1
# At most so many bytes of an answer are read: an endless answer must not fill the client's memory.
MAX_BODY = 64 * 1024 * 1024


class EndpointFailed(Exception):
    """The server refused a call, or all attempts failed."""


class TooLong(Exception):
    """The server says that the prompt does not fit the model."""


class ChatEndpoint(Connections):
    """Chat completions with bounded concurrency and bounded retries.

    Args:
        url: base URL, e.g. http://127.0.0.1:8100/v1.
        model: the model's name on the server; None: the only model it serves (see `find_model`).
        api_key_env: environment variable of the API key; if it is empty, no key is sent.
        concurrency: requests at a time.
        timeout: seconds for one request.
        retries: attempts after a first failure.
        template: arguments for the server's chat template (`data.apply_chat_template_kwargs`).
        seeded: send each call's seed (never for greedy calls, where it has no effect).
        setting: names of `url` and `model` in the configuration, for error messages.

    Attributes:
        ignored: parameters that the server refused and that are no longer sent.
        listed: names under /models, once `find_model` has asked; empty: the server has no such page.
        names_stops: whether the server has ever named the stop string that ended an output.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 32,
        timeout: float = 120.0,
        retries: int = 5,
        template: dict[str, Any] | None = None,
        seeded: bool = True,
        setting: tuple[str, str] = ("url", "model"),
    ):
        self.url, self.model, self.api_key_env = url.rstrip("/"), model, api_key_env
        self.timeout, self.retries, self.seeded = timeout, retries, seeded
        self.template = dict(template or {})
        self.ignored: list[str] = []
        self.listed: list[str] = []
        self.names_stops = False
        self._setting = setting
        self._limit_name = "max_tokens"
        self.concurrency = concurrency

    async def connect(self) -> None:
        """Open the connections now instead of at the first request."""
        self._open()

    def _new_session(self) -> Any:
        import aiohttp

        key = os.environ.get(self.api_key_env, "").strip()
        self._slots = asyncio.Semaphore(self.concurrency)
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            connector=aiohttp.TCPConnector(limit=self.concurrency),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    async def find_model(self) -> str:
        """Ask the server which models it serves, and return the name of the model to use.

        Raises:
            ValueError: no server answers, it refuses the key, or `model` is None and it does not serve exactly one.
        """
        try:
            return await self._find_model()
        except Transient as error:
            raise ValueError(
                f"no server answers at {self._setting[0]}={self.url} ({error}).\n"
                "Remedy: start one, e.g. vllm serve MODEL --port 8100 --generation-config vllm, and give http://HOST:8100/v1"
            ) from error

    async def _find_model(self) -> str:
        """As `find_model`, but raises Transient if no server answers."""
        status, content, _ = await self._request("GET", "/models")
        served = self.listed = model_names(content)
        if status in (401, 403):
            known = os.environ.get(self.api_key_env)
            given = "was refused" if known else "is needed"
            raise ValueError(f"{self.url}: an API key {given} (status {status}). Remedy: set {self.api_key_env}")
        if self.model is None and _may_pass(status):
            raise Transient(f"{self.url}/models: status {status}")
        if self.model is None:
            if len(served) != 1:
                names = ", ".join(served) or f"unknown: /models gave status {status}; does the URL end in /v1?"
                raise ValueError(
                    f"{self._setting[1]} is not set, and the models of {self.url} are {names}. Remedy: name one"
                )
            self.model = served[0]
        elif served and self.model not in served:
            print(f"Note: {self.url} does not list the model {self.model} (it lists {', '.join(served)}).", flush=True)
        return self.model

    async def complete(self, messages: Messages, sampling: dict[str, Any]) -> Answer:
        """Answer a chat.

        Args:
            messages: [{"role", "content"}, …].
            sampling: temperature and max_tokens; optionally top_p (1.0), top_k (-1: all), seed, and
                choices: the answer must be one of them;
                adapter: asked in place of `model`, unless it is empty;
                stop: see `sendable`;
                tools, tool_choice: OpenAI's;
                continue_from: index of a message. It and all later ones become one message of the assistant, which the
                    answer continues. A server that cannot do this gets the separate messages.

        Raises:
            TooLong: the server says that the prompt does not fit the model.
            EndpointFailed: the server refused the call, or all attempts failed.
            ValueError: `model` is None, and `find_model` does not find exactly one.
        """
        self._open()
        slots = self._slots
        with not_counted():
            await slots.acquire()
        try:
            return await retrying(self.retries + 1, _wait)(self._ask, messages, sampling)
        except Transient as error:
            raise EndpointFailed(f"{error} ({self.retries + 1} attempts)") from error
        finally:
            slots.release()

    async def _ask(self, messages: Messages, sampling: dict[str, Any]) -> Answer:
        """One attempt, repeated without parameters that the server does not know.

        A parameter is left out of later calls only if that helped: other complaints may name parameters, too.
        """
        changed: dict[str, str | None] = {}  # parameter -> its other name; None: left out
        if self.model is None:
            await self._find_model()
        while True:
            body = self._body(messages, sampling, changed)
            status, content, after = await self._request("POST", "/chat/completions", body)
            if status == 200:
                answer = replace(_answer(content), sent=body["messages"])
                self._remember(changed)
                self.names_stops |= answer.stopped_by in body.get("stop", ())
                return answer
            text = content.decode("utf-8", errors="replace")
            failure = f"status {status}: {text!r:.300}"
            if _may_pass(status):
                raise Transient(failure, float(after) if after.isdigit() else 0.0)
            complaint = complaint_of(text)
            if is_too_long(status, complaint):
                raise TooLong(failure)
            unknown = refused_parameters(body, complaint) if status in (400, 422) else {}
            if not unknown:
                remedy = remedy_of(complaint)  # reports show the first 300 characters of an error
                raise EndpointFailed(f"status {status}: {complaint!r:.150}{remedy}" if remedy else failure)
            changed |= unknown

    async def _request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes, str]:
        """(status, content, Retry-After) of one request.

        Raises:
            Transient: no answer, not in time, or an answer longer than MAX_BODY.
        """
        with transient_failures(self.timeout):
            async with self._open().request(method, self.url + path, json=body) as response:
                return response.status, await _read(response), response.headers.get("Retry-After", "")

    def _body(self, messages: Messages, sampling: dict[str, Any], changed: dict[str, str | None]) -> dict[str, Any]:
        body = {
            "model": sampling.get("adapter") or self.model,
            "messages": messages,
            "temperature": sampling["temperature"],
            self._limit_name: sampling["max_tokens"],
        }
        if sampling.get("top_p", 1.0) != 1.0:
            body["top_p"] = sampling["top_p"]
        if sampling.get("top_k", -1) != -1:
            body["top_k"] = sampling["top_k"]
        if sampling.get("stop"):
            body["stop"] = sendable(sampling["stop"], self.names_stops)
        if sampling.get("tools"):
            body |= {"tools": sampling["tools"], "tool_choice": sampling.get("tool_choice", "auto")}
        if sampling.get("choices"):  # vLLM's parameter; other servers may answer something else
            body["structured_outputs"] = {"choice": list(sampling["choices"])}
        if self.seeded and sampling["temperature"] > 0 and "seed" in sampling:
            body["seed"] = sampling["seed"] & SEED_BITS
        if self.template:
            body["chat_template_kwargs"] = self.template
        if "continue_from" in sampling and not CONTINUE.keys() & {*self.ignored, *changed}:
            body |= {"messages": join_stream(messages, sampling["continue_from"]), **CONTINUE}
        return rename({name: value for name, value in body.items() if name not in self.ignored}, changed)

    def _remember(self, changed: dict[str, str | None]) -> None:
        """Change the parameters of later requests as in this one."""
        self._limit_name = changed.get("max_tokens") or self._limit_name
        for name, other in changed.items():
            if other is None and name not in self.ignored:
                self.ignored.append(name)
                print(refusal_note(self.url, name), flush=True)


def _may_pass(status: int) -> bool:
    return status >= 500 or status in RETRY_STATUS


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return min(
        MAX_WAIT, max(getattr(error, "after", 0.0), wait_random_exponential(multiplier=0.5, max=MAX_WAIT)(state))
    )


async def _read(response: Any) -> bytes:
    """The body. Raises Transient if it is longer than MAX_BODY bytes."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MAX_BODY:
            raise Transient(f"an answer of more than {MAX_BODY} bytes")
    return bytes(content)


def _answer(content: bytes) -> Answer:
    """The parsed answer. Raises Transient if the content is not a chat completion."""
    try:
        return answer_of(json.loads(content))
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise Transient(f"the server answered in an unknown form ({reason}): {content[:300]!r}") from error
