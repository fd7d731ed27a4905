"""An OpenAI-compatible server as the core's `LLM`: chats in, text and token counts out."""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from verl_ext.mas.types import Completion, Generation, PromptTooLong

# Worth another attempt, as is every 5xx (also those of proxies: 520, 524, 529).
RETRY_STATUS = frozenset({408, 409, 429})
# Most seconds between two attempts, also where the server asks for more (Retry-After).
MAX_WAIT = 30.0
# Many servers hold seeds in 32 bits.
SEED_BITS = (1 << 31) - 1
# How servers say that a prompt is too long for the model: OpenAI's code, vLLM, SGLang, TGI, llama.cpp. By which status.
TOO_LONG = re.compile(
    r"context[_ ]length|context[_ ]size|context window|maximum context|tokens? exceed"
    r"|(prompt|input|context)\b.{0,80}\btoo long|too long\b.{0,20}\b(prompt|input|context)",
    re.I | re.S,
)
TOO_LONG_STATUS = (400, 413, 422)
# Where an error's text begins to repeat what was sent: pydantic's errors, in JSON or as Python writes them.
ECHO = re.compile(r"""['"]input['"]\s*:|\binput_value=""")
# Parameters that a server may not know. Without them a call is still answered, but not as was asked: that is told.
OPTIONAL = ("seed", "top_k")


class EndpointFailed(Exception):
    """The server did not answer a call, for good."""


class _Transient(Exception):
    """A failure worth another attempt; `after` is how many seconds the server asks to wait."""

    def __init__(self, message: str, after: float = 0.0):
        super().__init__(message)
        self.after = after


class EndpointLLM:
    """Chat completions with bounded concurrency and bounded retries. Token ids and log-probabilities are unknown.

    Args:
        url: base URL, e.g. http://127.0.0.1:8100/v1.
        model: the model's name there; None: the only one it serves (see `find_model`).
        api_key_env: environment variable of the API key; without a value no key is sent.
        concurrency: requests at a time.
        timeout: seconds for one request.
        retries: attempts after a first failure.
        template: arguments for the server's chat template (`data.apply_chat_template_kwargs`).
        seeded: send each call's seed (never for greedy calls, where it changes nothing).

    Attributes:
        ignored: parameters that the server refused and that are no longer sent.
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
    ):
        self.url, self.model, self.api_key_env = url.rstrip("/"), model, api_key_env
        self.timeout, self.retries, self.seeded = timeout, retries, seeded
        self.template = dict(template or {})
        self.ignored: list[str] = []
        self._limit_name = "max_tokens"
        self._concurrency = concurrency
        self._session: Any = None

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Nothing: the server tokenises."""
        return []

    async def connect(self) -> None:
        """Open the connections."""
        import aiohttp

        key = os.environ.get(self.api_key_env, "").strip()
        self._slots = asyncio.Semaphore(self._concurrency)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            connector=aiohttp.TCPConnector(limit=self._concurrency),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    async def find_model(self) -> str:
        """Ask the server which models it serves; returns the name of the one to ask.

        Raises:
            ValueError: no server answers there, it refuses the key, or `model` is None and it does not serve just one.
        """
        import aiohttp

        try:
            async with self._session.get(f"{self.url}/models") as response:
                status, served = response.status, _model_names(await _json(response))
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise ValueError(
                f"no server answers at evaluate.endpoint={self.url} ({type(error).__name__}: {error}).\n"
                "Remedy: start one, e.g. vllm serve MODEL --port 8100 --generation-config vllm, and give http://HOST:8100/v1"
            ) from error
        if status in (401, 403):
            known = os.environ.get(self.api_key_env)
            given = "was refused" if known else "is needed"
            raise ValueError(f"{self.url}: an API key {given} (status {status}). Remedy: set {self.api_key_env}")
        if self.model is None:
            if len(served) != 1:
                names = ", ".join(served) or f"unknown: /models gave status {status}; does the URL end in /v1?"
                raise ValueError(
                    f"evaluate.model is not set, and the models of {self.url} are {names}. Remedy: name one"
                )
            self.model = served[0]
        elif served and self.model not in served:
            print(f"Note: {self.url} does not list the model {self.model} (it lists {', '.join(served)}).", flush=True)
        return self.model

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def complete(
        self, messages: list[dict[str, str]], prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]
    ) -> Completion:
        """See `verl_ext.mas.types.LLM`.

        Raises:
            PromptTooLong: the server says that the prompt does not fit the model.
            EndpointFailed: it refused the call, or none of the attempts succeeded.
        """
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=_wait,
            retry=retry_if_exception_type(_Transient),
            reraise=True,
        )
        async with self._slots:
            try:
                async for attempt in retrying:
                    with attempt:
                        return await self._ask(messages, sampling)
            except _Transient as error:
                raise EndpointFailed(f"{error} ({self.retries + 1} attempts)") from error
        raise AssertionError("tenacity ended without an attempt")

    async def _ask(self, messages: list[dict[str, str]], sampling: dict[str, Any]) -> Completion:
        """One attempt; a parameter that the server does not know is left out and the attempt made again.

        Only what helps is remembered: another complaint may name a parameter, too.
        """
        import aiohttp

        changed: dict[str, str | None] = {}  # a parameter -> its other name, None: left out
        while True:
            body = _renamed(self._body(messages, sampling), changed)
            try:
                async with self._session.post(f"{self.url}/chat/completions", json=body) as response:
                    if response.status == 200:
                        completion = _completion(await _json(response))
                        self._remember(changed)
                        return completion
                    status, text = response.status, await response.text(errors="replace")
                    after = response.headers.get("Retry-After", "")
            except asyncio.TimeoutError as error:
                raise _Transient(f"no answer within {self.timeout:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise _Transient(f"{type(error).__name__}: {error}") from error
            said = f"status {status}: {text!r:.300}"
            if status >= 500 or status in RETRY_STATUS:
                raise _Transient(said, float(after) if after.isdigit() else 0.0)
            complaint = _complaint(text)
            if status in TOO_LONG_STATUS and TOO_LONG.search(complaint):
                raise PromptTooLong(said)
            refused = _refused(body, complaint) if status in (400, 422) else {}
            if not refused:
                raise EndpointFailed(said)
            changed |= refused

    def _body(self, messages: list[dict[str, str]], sampling: dict[str, Any]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": sampling["temperature"],
            self._limit_name: sampling["max_tokens"],
        }
        if sampling["top_p"] != 1.0:
            body["top_p"] = sampling["top_p"]
        if sampling["top_k"] != -1:
            body["top_k"] = sampling["top_k"]
        if self.seeded and sampling["temperature"] > 0:
            body["seed"] = sampling["seed"] & SEED_BITS
        if self.template:
            body["chat_template_kwargs"] = self.template
        return {name: value for name, value in body.items() if name not in self.ignored}

    def _remember(self, changed: dict[str, str | None]) -> None:
        """Send no later request with what this one was refused for."""
        self._limit_name = changed.get("max_tokens") or self._limit_name
        for name, other in changed.items():
            if other is None and name not in self.ignored:
                self.ignored.append(name)
                print(f"Note: {self.url} does not take {name}; it is left out from here on.", flush=True)


def _refused(body: dict[str, Any], complaint: str) -> dict[str, str | None]:
    """Parameters of `body` that the server complains of, with their other names; None: to be left out."""
    if "max_tokens" in body and "max_completion_tokens" in complaint:
        return {"max_tokens": "max_completion_tokens"}
    return {name: None for name in OPTIONAL if name in body and re.search(rf"\b{name}\b", complaint)}


def _renamed(body: dict[str, Any], changed: dict[str, str | None]) -> dict[str, Any]:
    return {name: value for old, value in body.items() if (name := changed.get(old, old)) is not None}


def _complaint(text: str) -> str:
    """What a refusal says, without what it repeats of the request (which names all parameters, and holds the prompt).

    OpenAI, vLLM: {"error": {"message"}} or {"message"}; FastAPI: {"detail": [{"loc", "msg", "input"}]}; or just text.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = text
    if isinstance(said, dict):
        said = next((said[name] for name in ("error", "detail", "message") if said.get(name)), "")
    if isinstance(said, dict):
        said = said.get("message", "")
    if isinstance(said, list):
        said = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in said if isinstance(one, dict))
    return ECHO.split(said, maxsplit=1)[0] if isinstance(said, str) else ""


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return min(
        MAX_WAIT, max(getattr(error, "after", 0.0), wait_random_exponential(multiplier=0.5, max=MAX_WAIT)(state))
    )


async def _json(response: Any) -> Any:
    """The body as JSON, whatever content type it claims; None if it is none."""
    try:
        return await response.json(content_type=None)
    except (ValueError, RecursionError):
        return None


def _model_names(answer: Any) -> list[str]:
    models = answer.get("data") if isinstance(answer, dict) else None
    named = [model.get("id") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return [name for name in named if isinstance(name, str)]


def _completion(answer: Any) -> Completion:
    """A chat completion of the API as the core's record. Reasoning that the server keeps apart is not part of the text.

    Raises:
        _Transient: it is none (a proxy's page, no choices, content that is no text).
    """
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        text = _text(message.get("content"))
        reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
        reason = choice.get("finish_reason")
        usage = answer.get("usage") or {}
        counts = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise _Transient(f"the server answered in an unknown form ({error!r}): {answer!r:.300}") from error
    generation = Generation([], [], stop_reason="completed" if reason in (None, "stop") else str(reason))
    return Completion(text, generation, *counts, reasoning=reasoning)


def _text(content: Any) -> str:
    """A message's content: text, nothing, or a list of parts of which the texts count."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") in ("text", "output_text"))
    if content is not None and not isinstance(content, str):
        raise ValueError(f"the content is of type {type(content).__name__}")
    return content or ""
