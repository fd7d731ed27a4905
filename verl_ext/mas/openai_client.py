"""`ctx.openai`: the interface of the package `openai` over `ctx.chat`. Where the package is, its types are returned.

client = ctx.openai("writer")
completion = await client.chat.completions.create(messages=[{"role": "user", "content": "…"}])
completion.choices[0].message.content
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from verl_ext.mas.chat import Reply
from verl_ext.mas.parameters import PARAMETERS

if TYPE_CHECKING:
    from verl_ext.mas.chat_context import ChatContext

# Parameters that say who asks, or how; they do not change an answer.
WITHOUT_EFFECT = ("user", "metadata", "store", "timeout", "extra_headers", "service_tier", "parallel_tool_calls",
                  "stream_options", "prompt_cache_key", "safety_identifier")  # fmt: skip
# Parameters that the rollout decides: all calls are sampled at its temperature, with seeds of their own.
DECIDED = ("temperature", "seed")
# Parameters that would change an answer and are not there; their neutral values are taken.
NEUTRAL = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"},
           "top_logprobs": 0, "functions": [], "modalities": ["text"]}  # fmt: skip
TAKEN = ("messages", "model", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "top_p", "stop", "stream",
         "logprobs", "extra_body")  # fmt: skip


class Client:
    """Has `.chat.completions.create`, awaitable, as `openai.AsyncOpenAI` has; `.sync` is for code in threads.

    A request's `temperature` and `seed` have no effect: the rollout decides them for all calls, because a policy that
    is sampled at another temperature would be trained off-policy. `model` is free; the agent answers. A parameter that
    would change the answer and is not supported is a ValueError.

    Args:
        context: of the workflow.
        agent: who answers.
    """

    def __init__(self, context: ChatContext, agent: str):
        self._context, self._agent = context, agent
        self._loop = asyncio.get_running_loop()
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        synchronous = SimpleNamespace(completions=SimpleNamespace(create=self._create_in_thread))
        self.sync = SimpleNamespace(chat=synchronous)

    def _create(self, **request: Any) -> Coroutine[Any, Any, Any]:
        """A coroutine. The identity of its call is fixed now, as `ctx.chat` does it."""
        given = {name: value for name, value in request.items() if value is not None and not _omitted(value)}
        work = self._context.chat(self._agent, **chat_arguments(given))
        return self._answer(work, given)

    async def _answer(self, work: Coroutine[Any, Any, Reply], given: dict[str, Any]) -> Any:
        reply, model, logprobs = await work, str(given.get("model") or self._agent), bool(given.get("logprobs"))
        if not given.get("stream"):
            return typed("ChatCompletion", completion(reply, model, logprobs))
        usage = bool((given.get("stream_options") or {}).get("include_usage"))
        return _Stream(chunks(reply, model, logprobs, usage))

    def _create_in_thread(self, **request: Any) -> Any:
        """As `create`, for a thread other than the event loop's, which this would block for ever.

        Raises:
            RuntimeError: it is called on the event loop.
        """
        try:
            running = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            running = False
        if running:
            raise RuntimeError(
                "ctx.openai(…).sync was called on the event loop, which it would block. Remedy: await "
                "asyncio.to_thread(function, client.sync), or use the client itself with await"
            )

        async def make() -> Any:  # on the event loop
            return await self._create(**request)

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result()


class _Stream:
    """Chunks of an answer, as an iterator, asynchronous or not."""

    def __init__(self, parts: Sequence[Mapping[str, Any]]):
        self.parts: Iterator[Any] = iter([typed("ChatCompletionChunk", part) for part in parts])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.parts)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self.parts)
        except StopIteration:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Stream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        return None

    async def close(self) -> None:
        """Nothing to release."""


def chat_arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `ctx.chat` for a request in OpenAI's form.

    Raises:
        ValueError: there are no messages, or a parameter that is not supported has an effect.
    """
    given = {**request, **(request.get("extra_body") or {})}
    for name, value in given.items():
        if name in NEUTRAL and value != NEUTRAL[name]:
            raise ValueError(f"{name}={value!r:.100} is not supported; allowed: {NEUTRAL[name]!r}, or nothing")
        if name not in (*TAKEN, *PARAMETERS, *WITHOUT_EFFECT, *DECIDED, *NEUTRAL):
            allowed = ", ".join(dict.fromkeys([*TAKEN, *PARAMETERS]))
            raise ValueError(f"the parameter {name} of a chat completion is not supported; allowed: {allowed}")
    if "messages" not in given:
        raise ValueError("a chat completion needs messages")
    sampling = {name: given[name] for name in PARAMETERS if name in given}
    if "max_completion_tokens" in given:
        sampling["max_tokens"] = given["max_completion_tokens"]
    asked = {name: given[name] for name in ("messages", "tools", "tool_choice") if name in given}
    return {**asked, "sampling": sampling}


def _omitted(value: Any) -> bool:
    """True for the values with which the package `openai` marks that nothing was given."""
    return type(value).__name__ in ("NotGiven", "Omit")


def completion(reply: Reply, model: str, logprobs: bool = False) -> dict[str, Any]:
    """A reply as the body of a chat completion. Without clocks and random names: a replay gives the same bytes."""
    choice = {
        "index": 0,
        "message": {"refusal": None, **reply.message},
        "finish_reason": reply.finish_reason,
        "logprobs": logprobs_of(reply) if logprobs else None,
    }
    return _body(reply, model, "chat.completion") | {"choices": [choice], "usage": usage_of(reply)}


def chunks(reply: Reply, model: str, logprobs: bool = False, usage: bool = False) -> list[dict[str, Any]]:
    """A reply as the chunks of a stream: the role, the text, each tool call, the end, and the usage if it is wanted."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if reply.content:
        deltas.append({"content": reply.content})
    deltas += [{"tool_calls": [{"index": number, **call}]} for number, call in enumerate(reply.tool_calls)]
    body = _body(reply, model, "chat.completion.chunk")
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None} for delta in deltas
    ]
    if logprobs:
        choices[-1]["logprobs"] = logprobs_of(reply)
    choices.append({"index": 0, "delta": {}, "finish_reason": reply.finish_reason, "logprobs": None})
    parts = [{**body, "choices": [choice]} for choice in choices]
    return [*parts, {**body, "choices": [], "usage": usage_of(reply)}] if usage else parts


def _body(reply: Reply, model: str, kind: str) -> dict[str, Any]:
    identity = "/".join([*reply.call.stream.path, str(reply.call.id)])
    return {"id": f"chatcmpl-{identity}", "object": kind, "created": 0, "model": model}


def usage_of(reply: Reply) -> dict[str, int]:
    """Tokens of the answer."""
    counts = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
    return counts | {"total_tokens": sum(counts.values())}


def logprobs_of(reply: Reply) -> dict[str, Any]:
    """The log-probabilities of the answer's tokens."""
    tokens = [
        {"token": one.token, "logprob": one.logprob, "bytes": list(one.token.encode()), "top_logprobs": []}
        for one in reply.logprobs
    ]
    return {"content": tokens, "refusal": None}


def typed(kind: str, body: Mapping[str, Any]) -> Any:
    """`body` as openai.types.chat.<kind>, or an object with the same attributes where the package is missing."""
    return _types()[kind].model_validate(body) if _types() else _Plain(body)


@lru_cache(maxsize=1)
def _types() -> dict[str, Any]:
    if importlib.util.find_spec("openai") is None:
        return {}
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    return {"ChatCompletion": ChatCompletion, "ChatCompletionChunk": ChatCompletionChunk}


class _Plain(dict[str, Any]):
    """A body whose values are attributes, too; what is missing is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _plain(self.get(name))

    def model_dump(self, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """The body, as the package's types give it."""
        return {name: value for name, value in self.items() if value is not None or not exclude_none}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _Plain(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value
