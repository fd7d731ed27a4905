"""The Ray actor behind `rollout.name=hf`: verl's server interface on one side, an EngineLoop on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import ray
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from verl_ext.engine.fingerprints import fingerprints
from verl_ext.engine.fsdp.memory import machine_memory
from verl_ext.engine.hf.hardware import KV_SHARE, fitting_slots, idle_threads, kv_bytes
from verl_ext.engine.hf.loop import EngineLoop
from verl_ext.engine.hf.options import EngineOptions
from verl_ext.engine.hf.params import Finished, Request, SamplingParams, derived_seed
from verl_ext.engine.hf.slots import SlotEngine
from verl_ext.engine.policy_names import POLICY, policy_of
from verl_ext.engine.precision import choose

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Control calls have a concurrency group of their own: a thousand generations that wait for `resume_generation` must not
# keep `resume_generation` itself out.
_control = ray.method(concurrency_group="control")


class HFServer:
    """One replica's server. All methods are coroutines on the actor's event loop; the model lives in the loop's thread.

    Args:
        config: `actor_rollout_ref.rollout` (a RolloutConfig or its DictConfig).
        model_config: `actor_rollout_ref.model` (an HFModelConfig or its DictConfig).
        replica_rank: number of this replica.
        device: device of the model, unless engine_kwargs.hf.device is set.
        servers: servers on this machine, which share its cores and memory.
        most_threads: torch threads at most, unless engine_kwargs.hf.threads is set; None: as many as there are cores.
    """

    def __init__(
        self,
        config: Any,
        model_config: Any,
        replica_rank: int = 0,
        device: str = "cpu",
        servers: int = 1,
        most_threads: int | None = None,
    ) -> None:
        self.config: RolloutConfig = omega_conf_to_dataclass(config, dataclass_type=RolloutConfig)
        self.model_config: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.replica_rank = replica_rank
        hf_config = self.model_config.hf_config
        positions = getattr(hf_config.get_text_config(decoder=True), "max_position_embeddings", None)
        self.options = EngineOptions.from_config(self.config, positions, device)
        self._loop = EngineLoop(partial(self._make, servers, most_threads), servers)

    def _make(self, servers: int, most_threads: int | None) -> SlotEngine:
        """The engine with its model, and torch threads for it; runs in the loop's thread."""
        model = load_model(self.model_config, self.options, random=self.config.load_format == "dummy")
        slots, threads = fit(model, self.options, servers, most_threads)
        torch.set_num_threads(threads)
        tokenizer = self.model_config.tokenizer
        return self.make_engine(
            model,
            slots=slots,
            max_model_len=self.options.max_model_len,
            eos_token_ids=end_tokens(self.model_config),
            decode=tokenizer and partial(tokenizer.decode, skip_special_tokens=True),
        )

    def make_engine(self, model: PreTrainedModel, **kwargs: Any) -> SlotEngine:
        """The engine of a model, from the arguments of `SlotEngine`."""
        return SlotEngine(model, **kwargs)

    # -- generation ---------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """Continue one prompt, see `SamplingParams`. Extra keyword arguments of verl's client have no effect.

        Raises:
            ValueError: the request cannot be run (parameters, prompt length, token ids, images or videos).
        """
        if image_data or video_data:
            raise ValueError("rollout.name=hf takes text only; use rollout.name=vllm or sglang for images and videos")
        request = self._request(prompt_ids, sampling_params, request_id)
        future = asyncio.wrap_future(self._loop.submit(request))
        try:
            return self._output(await future)
        except asyncio.CancelledError:
            self._loop.abort(lambda other: other is request)
            raise

    async def generate_wave(self, requests: Sequence[Mapping[str, Any]]) -> list[TokenOutput | ValueError]:
        """Continue a fixed list of prompts, deterministically: same list + same weights + same threads -> same bits.

        Args:
            requests: each has the keys of `generate`: prompt_ids, sampling_params, request_id. They are admitted in
                this order and nothing else joins; whatever arrives meanwhile waits. Requests without a seed get one
                that depends on rollout.seed and request_id only.

        Returns:
            One entry per request; a request that cannot be run has its ValueError there and the others go on.
        """
        built: list[Request | ValueError] = []
        for item in requests:
            try:
                built.append(self._request(**{"seeded": True, **item}))
            except ValueError as error:
                built.append(error)
        wave = iter(await asyncio.wrap_future(self._loop.submit_wave([r for r in built if isinstance(r, Request)])))
        results = [item if isinstance(item, ValueError) else next(wave) for item in built]
        return [item if isinstance(item, ValueError) else self._output(item) for item in results]

    def _request(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str, seeded: bool = False
    ) -> Request:
        prompt = tuple(int(token) for token in prompt_ids)
        room = self.config.prompt_length + self.config.response_length - len(prompt)  # as verl's vLLM server does
        default = max(1, min(self.config.response_length, room))
        given = dict(sampling_params)
        if given.get("seed") is None and (seeded or self.config.full_determinism):
            given["seed"] = derived_seed(self.config.seed, request_id)
        return Request(str(request_id), prompt, SamplingParams.from_mapping(given, default, self.config.ignore_eos))

    def _output(self, finished: Finished) -> TokenOutput:
        policy = policy_of(self.config)
        return TokenOutput(
            token_ids=finished.token_ids,
            log_probs=finished.log_probs,
            stop_reason=finished.stop_reason,
            extra_fields={"global_steps": finished.version} | ({POLICY: policy} if policy else {}),
        )

    # -- weights, pauses, memory --------------------------------------------------------------------------------------

    async def _call(self, function: Callable[[SlotEngine], T]) -> T:
        return await asyncio.wrap_future(self._loop.call(function))

    @_control
    async def update_weights(self, state_dict: Mapping[str, torch.Tensor], global_steps: int | None = None) -> None:
        """Load new weights in place. Running requests end as "aborted" with their output so far; the KV cache is freed.

        Raises:
            ValueError: names or shapes that do not fit; nothing has been changed then.
        """
        await self._call(lambda engine: engine.load_weights(state_dict, global_steps))

    @_control
    async def fingerprints(self, names: Sequence[str]) -> tuple[dict[str, torch.dtype], dict[str, int]]:
        """Types and fingerprints of the tensors that the engine holds under these names."""

        def look(engine: SlotEngine) -> tuple[dict[str, torch.dtype], dict[str, int]]:
            held = self.held(engine, names)
            return {name: tensor.dtype for name, tensor in held.items()}, fingerprints(held)

        return await self._call(look)

    def held(self, engine: SlotEngine, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The tensors of these names, as the next request uses them."""
        state = engine.model.state_dict()
        return {name: state[name] for name in names}

    @_control
    async def set_global_steps(self, global_steps: int | None) -> None:
        """The version of the weights, reported with every output."""
        await self._call(lambda engine: setattr(engine, "version", global_steps))

    @_control
    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """Stop generating: running requests return what they have as "aborted", later ones wait for resume_generation.

        Args:
            reject_request: return later and queued ones at once, aborted and empty, instead of letting them wait.
        """
        ended = await asyncio.wrap_future(self._loop.pause(reject_request))
        return {"aborted_count": len(ended), "request_ids": [done.request.request_id for done in ended]}

    @_control
    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """Abort the requests of this id, running or queued."""
        ended = await asyncio.wrap_future(self._loop.abort(lambda request: request.request_id == request_id))
        return {"aborted": bool(ended), "request_id": request_id}

    @_control
    async def resume_generation(self) -> None:
        """Go on after abort_all_requests."""
        await asyncio.wrap_future(self._loop.resume())

    @_control
    async def clear_kv_cache(self) -> None:
        """Free the keys and values; running requests (verl has none here) return their output so far as "aborted"."""
        await self._call(lambda engine: engine.drop_kv())

    @_control
    async def release_kv_cache(self) -> None:
        """As clear_kv_cache: memory is taken again by the next request."""
        await self._call(lambda engine: engine.drop_kv())

    @_control
    async def sleep(self, **kwargs: Any) -> None:
        """Free the keys and values. The weights stay: a request that comes while "asleep" is answered with them."""
        await self._call(lambda engine: engine.drop_kv())

    @_control
    async def wake_up(self, **kwargs: Any) -> None:
        """Nothing to do, see `sleep`."""

    @_control
    async def resume_kv_cache(self) -> None:
        """Nothing to do, see `release_kv_cache`."""

    @_control
    async def start_profile(self, **kwargs: Any) -> None:
        """verl's hook; this engine has counters instead, see `stats`."""

    @_control
    async def stop_profile(self) -> None:
        """verl's hook, see `start_profile`."""

    @_control
    async def stats(self) -> dict[str, float]:
        """Counters since the start (see slots.Stats), and how many requests run and wait now."""
        return await self._call(
            lambda engine: asdict(engine.stats) | {"active": len(engine.active), "waiting": len(engine.waiting)}
        )


def load_model(model_config: HFModelConfig, options: EngineOptions, random: bool) -> PreTrainedModel:
    """The causal LM of a verl model config, with weights from its folder, or random ones (load_format=dummy).

    Raises:
        ValueError: verl's platform has a device that this machine lacks.
    """
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"rollout.name=hf: no device {options.device!r} here; without a GPU set VERL_PLATFORM=cpu")
    common = {
        "dtype": getattr(torch, choose(options.device).dtype if options.dtype == "auto" else options.dtype),
        "attn_implementation": "sdpa",
        "trust_remote_code": model_config.trust_remote_code,
    }
    if random:  # verl pushes the trainer's weights before the first request
        model = AutoModelForCausalLM.from_config(model_config.hf_config, **common)
    else:
        model = AutoModelForCausalLM.from_pretrained(model_config.local_path, config=model_config.hf_config, **common)
    return model.to(options.device)


def fit(model: PreTrainedModel, options: EngineOptions, servers: int, most: int | None = None) -> tuple[int, int]:
    """Slots and torch threads of one of `servers` servers on this machine, with at most `most` threads; logs them.

    Raises:
        ValueError: the keys and values of one request do not fit.
    """
    if options.kv_cache_gb is not None:
        memory = options.kv_cache_gb * 2**30
    elif model.device.type == "cuda":
        memory = KV_SHARE * torch.cuda.mem_get_info(model.device)[1]
    else:
        memory = KV_SHARE * machine_memory() / servers
    per_token = kv_bytes(model.config.get_text_config(decoder=True), model.dtype)
    slots = fitting_slots(options.slots, options.max_model_len, per_token, memory)
    threads = options.threads or idle_threads(model.num_parameters(exclude_embeddings=True), servers, most)
    logger.warning(
        "rollout engine hf: %s, threads: %d, %d slots of %d tokens, up to %.2f GiB of keys and values (%.1f KiB each)",
        *(str(model.dtype).removeprefix("torch."), threads, slots, options.max_model_len),
        *(slots * options.max_model_len * per_token / 2**30, per_token / 1024),
    )
    return slots, threads


def end_tokens(model_config: HFModelConfig) -> list[int]:
    """The model's end tokens: those of its generation config (often several) and of its config, without repeats."""
    found: list[int] = []
    for source in (model_config.generation_config, model_config.hf_config.get_text_config(decoder=True)):
        tokens = getattr(source, "eos_token_id", None)
        found += [tokens] if isinstance(tokens, int) else list(tokens or [])
    return list(dict.fromkeys(found))
