"""Implements the `LLM` that agents call by a tokenizer and verl's client of the rollout servers."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from contextvars import ContextVar
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf

from verl_ext.engine.lora.adapters import ADAPTER
from verl_ext.engine.policy_names import POLICY
from verl_ext.mas.chat import ChatRequest, Written
from verl_ext.mas.llm import TokenLLM
from verl_ext.mas.offsets import Span, TokenBytes
from verl_ext.mas.types import Call, Generation
from verl_ext.trainer.rollout.chat_tokens import ChatTokens

# What the servers say of the generation under way: the adapters that they used, the policies that they serve. verl's
# asynchronous client may make several requests of it, and then drops what the servers say.
SAID: ContextVar[dict[str, set[str | None]]] = ContextVar("said")


class ServedLLM(TokenLLM):
    """Encodes chats, decodes tokens, and generates through verl's client (vLLM, SGLang, or our `hf`).

    Args:
        tokenizer: of the policy.
        client: verl's `LLMServerClient` (or its asynchronous subclass, which resumes aborted generations), in training
            wrapped by `client_of_calls`.
        template: keyword arguments for the chat template (`data.apply_chat_template_kwargs`).
        seeded: send per-call seeds; off, the engine's own noise is used and runs are not reproducible.
        model_type, parser: see `ChatTokens`.
    """

    def __init__(
        self,
        tokenizer: Any,
        client: Any,
        template: dict[str, Any] | None = None,
        seeded: bool = True,
        *,
        model_type: str | None = None,
        parser: str = "hermes",
    ):
        self.tokenizer = tokenizer
        self.client = client
        self.template = dict(template or {})
        self.seeded = seeded
        self._bytes = TokenBytes(tokenizer)
        self.chats = ChatTokens(tokenizer, self.template, model_type, parser)

    @property
    def end_token(self) -> int:
        """See `TokenLLM`."""
        return self.tokenizer.eos_token_id

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Prompt token ids of a chat, generation prompt included."""
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self.template
        )
        return list(ids)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of plain text; text that looks like a special token is encoded as text."""
        return encode_plain(self.tokenizer, text)

    def encode_chat(self, chat: ChatRequest) -> list[int]:
        """See `LLM`."""
        return self.chats.encode(chat)

    def extend_chat(self, before: Call, chat: ChatRequest) -> list[int] | None:
        """See `LLM`."""
        return self.chats.extend(before, chat)

    async def read_tool_calls(self, text: str, token_ids: list[int], chat: ChatRequest) -> tuple[str, list[Written]]:
        """See `LLM`."""
        return await self.chats.read(text, token_ids, chat)

    def stop_tokens(self, chat: ChatRequest) -> list[int]:
        """See `TokenLLM`."""
        return self.chats.stop_tokens(chat)

    def decode(self, token_ids: list[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def locate(self, token_ids: list[int], text: str, spans: list[Span]) -> list[Span]:
        """See `LLM.locate`."""
        found = self._bytes.locate(token_ids, text, spans)
        return super().locate(token_ids, text, spans) if found is None else found

    def request(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """Sampling parameters as verl's servers expect them."""
        parameters = {"logprobs": True, "repetition_penalty": 1.0, **sampling}
        if not self.seeded:
            parameters.pop("seed", None)
        return parameters

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        """Generate once. If this is cancelled, the engine stops, too."""
        said: dict[str, set[str | None]] = {ADAPTER: set(), POLICY: set()}
        SAID.set(said)
        output = await self.client.generate(
            request_id="/".join(key), prompt_ids=prompt_ids, sampling_params=self.request(sampling)
        )
        for field, names in said.items():
            if known := sorted(name for name in names if name is not None):  # None: an engine that does not say it
                output.extra_fields[field] = None if None in names else ", ".join(known)
        return self._ended(to_generation(output), sampling)

    def _ended(self, generation: Generation, sampling: dict[str, Any]) -> Generation:
        """The same with the end, and the reason of it, that an output has which was not interrupted.

        An engine that resumes an output does not see a stop string whose beginning came before: what follows is cut
        off. Of an output of `max_tokens`, verl's vLLM server says that it was completed, and verl's asynchronous client
        that it was cut off, whatever it ends with.
        """
        tokens, stops = generation.token_ids, sampling.get("stop") or ()

        def stopped(length: int) -> bool:
            text = self.decode(tokens[:length]) if stops else ""
            return any(stop in text for stop in stops)

        ends = stopped(len(tokens))
        if ends and stopped(len(tokens) - 1):
            length = bisect_left(range(len(tokens)), True, key=stopped)
            del tokens[length:], generation.log_probs[length:]
            generation.stop_reason = "completed"
        elif len(tokens) >= sampling.get("max_tokens", math.inf) and generation.stop_reason in ("completed", "length"):
            ends = ends or tokens[-1] in (self.tokenizer.eos_token_id, *(sampling.get("stop_token_ids") or ()))
            generation.stop_reason = "completed" if ends else "length"
        return generation


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Token ids of text in which nothing is a special token: a tool's answer must not end a turn or begin one."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def template_of(config: DictConfig) -> dict[str, Any]:
    """`data.apply_chat_template_kwargs` as a plain dictionary."""
    given: Any = config.data.get("apply_chat_template_kwargs") or {}
    plain: Any = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else given
    return dict(plain)


def chat_options(config: DictConfig, model: Any) -> dict[str, Any]:
    """The arguments of `ServedLLM` that say how chats become tokens, and which tool calls a model writes.

    Args:
        model: the model's configuration of transformers.
    """
    parser = OmegaConf.select(config, "actor_rollout_ref.rollout.multi_turn.format")
    kind = getattr(model, "model_type", None)
    return {"template": template_of(config), "model_type": kind, "parser": str(parser or "hermes")}


def sampling_of(rollout: DictConfig, validate: bool) -> dict[str, Any]:
    """Temperature, top_p, top_k and max_tokens of a call, from verl's section `rollout`."""
    source = rollout.val_kwargs if validate else rollout
    greedy = validate and not source.do_sample
    return {
        "temperature": 0.0 if greedy else float(source.temperature),
        "top_p": 1.0 if greedy else float(source.top_p),
        "top_k": -1 if greedy else int(source.top_k),
        "max_tokens": int(rollout.response_length),
    }


def client_of_calls(client: Any) -> Any:
    """A client like verl's `client` whose requests are named by `/`-separated keys of calls, question first.

    Calls of one question go to one replica, whose prefix cache then holds their prompts. Under
    `rollout.full_determinism` the engine sees the whole name, as vLLM takes no two requests of one name at a time.
    """

    class ClientOfCalls(type(client)):
        async def _acquire_server(self, request_id: str, **fields: Any) -> tuple[str, Any]:
            server_id, server = await super()._acquire_server(_question(request_id), **fields)
            return server_id, _Cancellable(server)

        def _release_server(self, server_id: str, request_id: str = "") -> None:
            super()._release_server(server_id, _question(request_id))

    made = object.__new__(ClientOfCalls)
    made.__dict__.update(vars(client))
    return made


def _question(request_id: str) -> str:
    return request_id.partition("/")[0]


class _Cancellable:
    """A server's handle for verl's client. A generation whose caller is cancelled ends in the server as well."""

    def __init__(self, server: Any):
        self._server = server
        self.generate = self  # verl calls `server.generate.remote(...)`

    async def remote(self, **request: Any) -> Any:
        answer = self._server.generate.remote(**request)
        try:
            output = await answer
            for field, names in SAID.get().items():
                names.add(output.extra_fields.get(field))
            return output
        except asyncio.CancelledError:
            # Cancels the coroutine in the actor, running or still queued by Ray. There our server aborts the request,
            # and so does vLLM's AsyncLLM. verl's `abort_request` would miss what vLLM's server holds back during a
            # weight update, and clears the prefix cache. SGLang goes on to the end of the output.
            ray.cancel(answer)
            raise


def direct_client(client: Any, servers: list[Any]) -> Any:
    """A client like verl's `client` that chooses among `servers` itself: one remote call per generation, not three.

    verl asks a load balancer, which is another process, before and after each call. That suits many clients of a large
    model; for a tiny model it takes longer than the generation. The policy is the same: requests of one id go to one
    server while one of them runs; a new id goes to the server with the fewest calls in flight.
    """

    class DirectClient(type(client)):
        def __init__(self) -> None:
            super().__init__(config=client.config)
            self._home: dict[str, list[int]] = {}  # request id -> [server, calls in flight]
            self._load = [0] * len(servers)

        async def _acquire_server(self, request_id: str, **_: Any) -> tuple[str, Any]:
            home = self._home.setdefault(request_id, [self._load.index(min(self._load)), 0])
            home[1] += 1
            self._load[home[0]] += 1
            return str(home[0]), servers[home[0]]

        def _release_server(self, server_id: str, request_id: str = "") -> None:
            self._load[int(server_id)] -= 1
            self._home[request_id][1] -= 1
            if not self._home[request_id][1]:
                del self._home[request_id]

    return DirectClient()


def to_generation(output: Any) -> Generation:
    """verl's `TokenOutput` as the core's record."""
    extra = output.extra_fields
    current = extra.get("global_steps")
    oldest, newest = extra.get("min_global_steps", current), extra.get("max_global_steps", current)
    return Generation(
        token_ids=list(output.token_ids),
        log_probs=list(output.log_probs or []),
        stop_reason=output.stop_reason or "completed",
        min_version=-1 if oldest is None else int(oldest),
        max_version=-1 if newest is None else int(newest),
        adapter=extra.get(ADAPTER),
        policy=extra.get(POLICY),
    )
