"""Run by test_programs.py on a model folder: verl's own vLLM rollout with ours in front, over a fake of vLLM's API.

Prints `RESULT <check> ok`, or why not. The real vLLM runs in tests/rehearse.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import inspect
import os
import sys
import tempfile
import threading
import traceback
import types
import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.engine import fake_vllm
from tests.engine.lora_models import NAMES, OPTIONS, adapter_parameters, routed
from verl_ext.engine.hf.params import derived_seed

LORA = {"lora_rank": OPTIONS.rank, "lora_alpha": OPTIONS.alpha}
ABOUT = {"adapters": list(NAMES), "r": OPTIONS.rank, "lora_alpha": OPTIONS.alpha, "target_modules": ["q_proj"]}


def model_config(folder: Path, adapters: bool = True) -> Any:
    from verl.workers.config import HFModelConfig

    return HFModelConfig(path=str(folder), **LORA, lora={"adapters": list(NAMES)} if adapters else {})


def rollout_config(ours: bool = True, **more: Any) -> Any:
    from verl.workers.config import RolloutConfig
    from verl.workers.config.rollout import AgentLoopConfig

    lengths = {"prompt_length": 64, "response_length": 32, "max_model_len": 96}
    manager = "verl_ext.trainer.rollout.agent_loop.MultiAgentLoopManager" if ours else None
    agent = AgentLoopConfig(agent_loop_manager_class=manager)
    return RolloutConfig(name="vllm", tensor_model_parallel_size=1, agent=agent, **lengths, **more)


def server_of(folder: Path, **more: Any) -> Any:
    """A server whose start of vLLM is replaced."""
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    from verl_ext.engine.vllm.server import VLLMAdapterServer

    started: list[Namespace] = []

    async def run_server(self: Any, args: Namespace) -> None:
        started.append(args)
        self.engine = fake_vllm.AsyncLLM(loaded={1001, 1002, 1003})

    server = VLLMAdapterServer(
        config=rollout_config(**more),
        model_config=model_config(folder),
        rollout_mode=RolloutMode.HYBRID,
        workers=[],
        replica_rank=0,
        node_rank=0,
        gpus_per_node=1,
        nnodes=1,
        cuda_visible_devices="",
    )
    with mock.patch.object(vLLMHttpServer, "run_server", run_server):
        asyncio.run(server.run_server(Namespace(max_loras=1)))
    assert [args.max_loras for args in started] == [len(NAMES)]
    return server


def check_runs_of_ours_get_our_server(folder: Path) -> None:
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from verl_ext.engine.vllm.sender import WeightSender
    from verl_ext.engine.vllm.server import CheckedReplica, VLLMAdapterServer, VLLMServer

    assert get_rollout_replica_class("vllm") is CheckedReplica
    assert get_rollout_class("vllm") is WeightSender
    plain = model_config(folder, adapters=False)
    replicas = [
        CheckedReplica(0, rollout_config(), model_config(folder), gpus_per_node=1),
        CheckedReplica(0, rollout_config(), plain, gpus_per_node=1),
        CheckedReplica(0, rollout_config(), model_config(folder), gpus_per_node=1, is_reward_model=True),
        CheckedReplica(0, rollout_config(ours=False), plain, gpus_per_node=1),
    ]
    classes = [r.server_class.__ray_metadata__.modified_class.__mro__ for r in replicas]
    assert [(VLLMServer in mro, VLLMAdapterServer in mro) for mro in classes] == [
        (True, True),
        (True, False),
        (False, False),
        (False, False),
    ]


def check_the_runner_that_keeps_allowed_tokens_serves_unless_told_otherwise(folder: Path) -> None:
    for given in ("0", "1"):
        with mock.patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": given} if given == "1" else {}):
            server_of(folder)
            assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == given


def check_policies_have_names_and_sockets_of_their_own(folder: Path) -> None:
    """What verl names by the replica's rank alone, on both sides: the sender's and that of vLLM's worker."""
    from verl_ext.engine.policy_names import POLICY, VARIABLE
    from verl_ext.engine.vllm.sender import WeightSender
    from verl_ext.engine.vllm.server import CheckedReplica
    from verl_ext.engine.vllm.worker import WeightWorker

    job, model, found = ray.get_runtime_context().get_job_id(), model_config(folder, adapters=False), []
    for policy in ("", "small", "large"):
        config = rollout_config(custom={POLICY: policy} if policy else None)
        with mock.patch.dict(os.environ, RANK="0", RAY_LOCAL_WORLD_SIZE="1", VERL_REPLICA_RANK="0"):
            sender = WeightSender(config, model, None)
            worker = WeightWorker.__new__(WeightWorker)
            worker.local_rank, worker.model_runner = 0, types.SimpleNamespace(vllm_config=None)
            os.environ |= {VARIABLE: policy, "VERL_RAY_JOB_ID": job}
            assert worker._get_zmq_handle() == sender.zmq_handle
        prefix = CheckedReplica(0, config, model, gpus_per_node=1)._get_server_name_prefix()
        assert prefix == sender._get_server_name_prefix()
        found.append((prefix, sender.zmq_handle.removeprefix(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-0-rank-0")))
    assert found == [("vllm_", ".sock"), ("vllm_small_", "-small.sock"), ("vllm_large_", "-large.sock")]


def check_ranks_of_their_own_are_named_by_policy_and_servers_once(folder: Path) -> None:
    from verl.workers.rollout.replica import RolloutReplica
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

    from verl_ext.engine.policy_names import POLICY
    from verl_ext.engine.vllm.server import CheckedReplica

    found = []

    async def init_standalone(self):
        found.append(self.name_suffix)
        await self.launch_servers()

    async def launch_servers(self):
        found.append(self.name_suffix)

    for policy in ("", "small"):
        config = rollout_config(custom={POLICY: policy} if policy else None)
        replica = CheckedReplica(0, config, model_config(folder, adapters=False), gpus_per_node=1)
        with (
            mock.patch.object(RolloutReplica, "init_standalone", init_standalone),
            mock.patch.object(vLLMReplica, "launch_servers", launch_servers),
        ):
            asyncio.run(replica.init_standalone())
    assert found == ["", "", "_small", ""]


def check_a_request_goes_to_its_agents_lora(folder: Path) -> None:
    """Also of a policy of several, whose name the outputs then have."""
    with mock.patch.dict(os.environ):
        server = server_of(folder, custom={"policy": "small"})
    engine = server.engine._engine

    async def ask(**sampling: Any) -> Any:
        return await server.generate([1, 2, 3], {"logprobs": True, "max_tokens": 4, **sampling}, request_id="r")

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*[ask(adapter=name, seed=i) for i, name in enumerate((*NAMES, "", *NAMES))])

    outputs = asyncio.run(ask_all())
    assert [output.token_ids for output in outputs] == [[7]] * 7
    assert [output.extra_fields["adapter"] for output in outputs] == [*NAMES, "", *NAMES]
    assert {output.extra_fields["policy"] for output in outputs} == {"small"}
    got = {params.seed: lora and (lora.lora_name, lora.lora_int_id) for lora, params in engine.asked}
    own = [(name, 1001 + i) for i, name in enumerate(NAMES)]
    assert [got[derived_seed(seed, 3)] for seed in range(7)] == [*own, None, *own]  # prompts of 3 tokens
    assert all(params.extra_args is None for _, params in engine.asked), "vLLM sees nothing of it"
    asyncio.run(ask(adapter="answerer", extra_args={"mine": 1}))
    assert engine.asked[-1][1].extra_args == {"mine": 1}
    for bad in ({"adapter": "writer"}, {}):
        try:
            asyncio.run(ask(**bad))
        except ValueError as error:
            assert "is unknown; allowed: rewriter, reranker, answerer" in str(error)
        else:
            raise AssertionError(bad)
    assert server._resolve_sleep_level() == 1, "weights stay: only adapters are sent again"


def check_the_noise_goes_on_where_an_output_is_continued(folder: Path) -> None:
    """vLLM's noise begins anew with each request: the tokens of a decision, and what was resumed, would repeat it."""
    server = server_of(folder)

    def seed_of(prompt: list[int], **sampling: Any) -> int | None:
        asyncio.run(server.generate(prompt, {"adapter": "", "max_tokens": 1, **sampling}, request_id="r"))
        return server.engine._engine.asked[-1][1].seed

    seeds = [seed_of(prompt, seed=5) for prompt in ([1, 2], [3, 4], [1, 2, 3])]
    assert seeds[0] == seeds[1] != seeds[2] and seed_of([1, 2], seed=6) not in seeds
    assert all(isinstance(seed, int) and 0 <= seed < 2**63 for seed in seeds)
    assert seed_of([1, 2]) is None


def check_a_cancelled_call_ends_in_the_engine(folder: Path) -> None:
    """What `ray.cancel` of a generation does in the actor: in the engine, and while a weight update holds it back."""
    server = server_of(folder)
    engine = server.engine._engine
    engine.endless = True

    async def cancelled(turns: int) -> None:
        asking = server.generate([1, 2, 3], {"adapter": "", "max_tokens": 4}, request_id="q/0/a.0")
        call = asyncio.ensure_future(asking)
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled() and not engine.running and server._admitting == 0

    async def scenario() -> None:
        await cancelled(turns=50)
        generated = engine.generated["q/0/a.0"]
        assert 0 < generated <= 50
        server._submission_paused = True
        server._resume_event.clear()
        await cancelled(turns=5)
        await server.open_submission_gate()
        await asyncio.sleep(0.01)
        assert engine.generated["q/0/a.0"] == generated, "it does not begin after the update"

    asyncio.run(scenario())


class FusedModel(torch.nn.Module):
    """A model as vLLM keeps it: q, k and v in one tensor, an embedding with padded rows."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.ModuleDict(
            {"qkv_proj": torch.nn.Linear(6, 16), "embed_tokens": torch.nn.Embedding(64, 6)}
        )
        self.requires_grad_(False)
        self.refuses = False

    @property
    def model(self) -> torch.nn.Module:
        return self

    def load_weights(self, weights: Any) -> None:
        if self.refuses:
            raise KeyError("no such parameter")
        for name, tensor in weights:
            _, layer, kind = name.split(".")
            target = getattr(self.layer["embed_tokens" if layer == "embed_tokens" else "qkv_proj"], kind)
            start = {"k_proj": 8, "v_proj": 12}.get(layer, 0)
            target[start : start + len(tensor)] = tensor


def base_weights() -> dict[str, torch.Tensor]:
    sizes = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
    found = {f"layer.{name}.weight": torch.randn(rows, 6) for name, rows in sizes.items()}
    return (
        found
        | {f"layer.{name}.bias": torch.randn(rows) for name, rows in sizes.items()}
        | {"layer.embed_tokens.weight": torch.randn(50, 6)}
    )


class Worker:
    """What vLLM's worker has of its own. Its LoRAs are in slots, B times the LoRA's factor, as in vLLM's."""

    device = torch.device("cpu")
    _is_qat_model = _is_modelopt_qat = False

    def __init__(self, handle: str, layers: Any = ()):
        self.handle, self.loras, self.removed = handle, {}, []
        stacks = {
            layer: (torch.zeros(3, 1, 8, 128, dtype=torch.bfloat16), torch.zeros(3, 1, 128, 8, dtype=torch.bfloat16))
            for layer in layers
        }
        modules = {
            layer: types.SimpleNamespace(lora_a_stacked=(a,), lora_b_stacked=(b,)) for layer, (a, b) in stacks.items()
        }
        self.slots = types.SimpleNamespace(
            model=FusedModel(),
            modules=modules,
            packed_modules={},
            lora_index_to_id=[None, None, None],
            lora_config=types.SimpleNamespace(lora_dtype=torch.bfloat16),
        )
        self.model_runner = types.SimpleNamespace(
            model=self.slots.model,
            lora_manager=types.SimpleNamespace(_adapter_manager=self.slots),
            vllm_config=types.SimpleNamespace(speculative_config=None, quant_config=None, model_config=None),
        )

    def _get_zmq_handle(self) -> str:
        return self.handle

    def remove_lora(self, number: int) -> bool:
        self.removed.append(number)
        if number in self.slots.lora_index_to_id:
            self.slots.lora_index_to_id[self.slots.lora_index_to_id.index(number)] = None
        return self.loras.pop(number, None) is not None

    def add_lora(self, request: Any) -> bool:
        assert request.lora_int_id not in self.loras
        self.loras[request.lora_int_id] = request
        slot = self.slots.lora_index_to_id.index(None)
        self.slots.lora_index_to_id[slot] = request.lora_int_id
        for key, tensor in request.lora_tensors.items():
            layer, side = key.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
            module = self.slots.modules[layer]
            stack = (module.lora_a_stacked if side == "A" else module.lora_b_stacked)[0]
            factor = request.peft_config["lora_alpha"] / request.peft_config["r"] if side == "B" else 1
            stack[slot, 0] = 0
            stack[slot, 0, : tensor.shape[0], : tensor.shape[1]] = tensor.bfloat16() * factor
        return True


def worker_of(folder: Path, layers: Any = ()) -> Any:
    from verl_ext.engine.vllm.worker import WeightWorker

    kinds = (Worker, WeightWorker)
    return type("Both", kinds, {"__new__": lambda cls, *_: object.__new__(cls)})(
        f"ipc://{folder}/{uuid.uuid4().hex}.sock", layers
    )


class Update:
    """A call of the worker in a thread, as verl's server answers with it; push() lets ray's functions take it."""

    def __init__(self, call: Any, kwargs: Any):
        self.future: concurrent.futures.Future[None] = concurrent.futures.Future()
        threading.Thread(target=self._run, args=(call, kwargs), daemon=True).start()

    def _run(self, call: Any, kwargs: Any) -> None:
        try:
            self.future.set_result(call(**kwargs))
        except Exception as error:
            self.future.set_exception(error)

    def __await__(self) -> Any:
        return asyncio.wrap_future(self.future).__await__()


def sender_of(worker: Any, bucket_size: int = 1 << 20) -> Any:
    """Our sender in front of a server that has this worker."""
    from verl_ext.engine.vllm.sender import WeightSender

    class Server:
        def __getattr__(self, method: str) -> Any:
            async def remote(*args: Any, **kwargs: Any) -> Any:
                return [worker.weights_held()] if method == "weights_held" else None

            def call(method: str, timeout: Any, args: Any, kwargs: Any) -> Update:
                return Update(getattr(worker, method), kwargs)

            return types.SimpleNamespace(remote=call if method == "collective_rpc" else remote)

    sender = WeightSender.__new__(WeightSender)
    sender.ours, sender.adapters, sender._updating, sender._has_server = True, None, None, True
    sender.server_handle, sender.zmq_handle = Server(), worker.handle
    sender.use_shm, sender.replica_rank, sender.rollout_rank = True, 0, 0
    sender.config = types.SimpleNamespace(checkpoint_engine=types.SimpleNamespace(update_weights_bucket_megabytes=1))
    sender.bucket_size = bucket_size
    return sender


def push(sender: Any, weights: Any, **kwargs: Any) -> None:
    """One update; ray's functions know an Update."""
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    from verl_ext.engine.vllm import sender as module

    ray_like = types.SimpleNamespace(
        wait=lambda refs, timeout: ([ref for ref in refs if ref.future.done()], []),
        get=lambda ref: ref.future.result(),
    )
    begin = BucketedWeightSender._init_buffer

    def in_small_buckets(self: Any) -> None:
        self.bucket_size = sender.bucket_size
        begin(self)

    small = mock.patch.object(BucketedWeightSender, "_init_buffer", in_small_buckets)
    with mock.patch.object(module, "ray", ray_like), mock.patch.object(module, "PATIENCE", 20), small:
        asyncio.run(sender.update_weights(iter(weights.items()), global_steps=1, **kwargs))


def refused(words: str, *args: Any, **kwargs: Any) -> None:
    try:
        push(*args, **kwargs)
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was found; expected: {words}")


def check_one_push_becomes_a_lora_per_adapter(folder: Path) -> None:
    """Over verl's real transport, in buckets smaller than an adapter."""
    weights = {key: parameter.detach() for key, parameter in adapter_parameters(routed()[0]).items()}
    worker = worker_of(folder, {key.partition("/")[2].rsplit(".lora_", 1)[0] for key in weights})
    for factor in (1.0, 2.0):
        sent = {key: factor * value for key, value in weights.items()}
        push(sender_of(worker, 4096), sent, peft_config=ABOUT, base_sync_done=True)
        assert [worker.loras[number].lora_name for number in sorted(worker.loras)] == list(NAMES)
        found = {
            f"{lora.lora_name}/{key.removeprefix('base_model.model.')}": tensor
            for lora in worker.loras.values()
            for key, tensor in lora.lora_tensors.items()
        }
        assert set(found) == set(weights)
        assert all(torch.equal(found[key], sent[key]) for key in weights)
        assert all(lora.peft_config["r"] == OPTIONS.rank for lora in worker.loras.values())
        assert {state for _, state in worker.weights_held().values()} == {"served"}


def check_adapters_come_over_a_checkpoint_engine(folder: Path) -> None:
    """`mas_separate_async`: names and tensors alone, in buffers that are used again; the base the first time only."""
    adapters = {key: parameter.detach() for key, parameter in adapter_parameters(routed()[0]).items()}
    worker, base = worker_of(folder, {key.partition("/")[2].rsplit(".lora_", 1)[0] for key in adapters}), base_weights()
    sender, loads = sender_of(worker, 4096), []
    sender.adapters = OPTIONS
    load = worker.slots.model.load_weights
    worker.slots.model.load_weights = lambda given: load(loads.append(n) or (n, t) for n, t in given)
    for sent in ({**base, **adapters}, {key: 2 * value for key, value in adapters.items()}):
        push(sender, UsedAgain(sent))
        assert {state for _, state in worker.weights_held().values()} == {"served"}
        assert {key for lora in worker.loras.values() for key in lora.peft_config["target_modules"]} == {
            key.rsplit(".lora_", 1)[0].rpartition(".")[2] for key in adapters
        }
        first, lora = next(iter(adapters)), worker.loras[1001]
        assert torch.equal(lora.lora_tensors[f"base_model.model.{first.partition('/')[2]}"], sent[first])
    assert loads == list(base)
    try:
        push(sender, {key: value for key, value in adapters.items() if not key.startswith("answerer/")})
    except ValueError as error:
        assert "VERL_ENGINE_VENDOR=verl_ext" in str(error)
    else:
        raise AssertionError("an adapter is missing")


class UsedAgain(dict[str, torch.Tensor]):
    """Weights whose tensors hold something else as soon as the next one is asked for."""

    def items(self) -> Any:
        for name, tensor in super().items():
            buffer = tensor.clone()
            yield name, buffer
            buffer.fill_(float("nan"))


def check_a_stale_or_missing_adapter_ends_the_run(folder: Path) -> None:
    weights = {key: parameter.detach() for key, parameter in adapter_parameters(routed()[0]).items()}
    layers = {key.partition("/")[2].rsplit(".lora_", 1)[0] for key in weights}
    worker = worker_of(folder, layers)
    push(sender_of(worker), weights, peft_config=ABOUT, base_sync_done=True)
    again = {key: 2 * value for key, value in weights.items()}
    add = worker.add_lora
    worker.add_lora = lambda request: request.lora_name == "reranker" or add(request)
    refused("the trainer sent: reranker (", sender_of(worker), again, peft_config=ABOUT, base_sync_done=True)
    worker.add_lora, worker.remove_lora = (lambda request: True), (lambda number: True)
    refused("sent: answerer, reranker, rewriter (", sender_of(worker), weights, peft_config=ABOUT, base_sync_done=True)


def check_a_base_that_is_not_what_was_sent_ends_the_run(folder: Path) -> None:
    worker, weights = worker_of(folder), base_weights()
    push(sender_of(worker, 1300), weights)
    assert {state for _, state in worker.weights_held().values()} == {"served"}, "fused and padded tensors are found"
    load = worker.slots.model.load_weights
    worker.slots.model.load_weights = lambda given: load((n, t) for n, t in given if n != "layer.k_proj.weight")
    refused("the base (1 of 7 tensors; the first: layer.k_proj.weight is not", sender_of(worker), base_weights())
    worker.slots.model.load_weights = load
    worker.slots.model.layer["qkv_proj"].weight.data = torch.zeros(4, 4)  # cut or packed: only the arrival is compared
    worker.slots.model.load_weights = lambda given: None
    push(sender_of(worker), {name: value for name, value in weights.items() if name == "layer.k_proj.weight"})
    assert [state for _, state in worker.weights_held().values()] == ["arrived"]


def check_a_failed_update_ends_the_sender(folder: Path) -> None:
    """verl's sender waits for ever for the worker's answer, and its error is that of the transport."""
    worker = worker_of(folder)
    worker.slots.model.refuses = True
    refused(
        "vLLM's worker could not load new weights: KeyError('no such parameter')", sender_of(worker), base_weights()
    )


def check_an_engine_without_the_adapters_is_noticed(folder: Path) -> None:
    sender = sender_of(worker_of(folder))
    sender.adapters = OPTIONS
    for about in (None, {"r": 4}, {"adapters": ["answerer"]}):
        try:
            asyncio.run(sender.update_weights(iter(()), peft_config=about, base_sync_done=True))
        except ValueError as error:
            assert "VERL_ENGINE_VENDOR=verl_ext" in str(error)
        else:
            raise AssertionError(about)


# verl's methods that are overridden or relied on, as in tests/trainer/test_upstream.py.
HASHES = {
    "vLLMHttpServer.generate": "383d680001635a76",
    "vLLMHttpServer.launch_server": "fff334de2369bfa0",
    "vLLMHttpServer.run_server": "3caf939bf549abca",
    "vLLMHttpServer.run_headless": "ff5b4bd944565b63",
    "vLLMHttpServer._resolve_sleep_level": "1dd7484b178443e0",
    "vLLMReplica.__init__": "a43756da3be14482",
    "vLLMReplica.launch_servers": "a4c215d901ebaae3",
    "ServerAdapter.update_weights": "db65d1f4e062c819",
    "vLLMColocateWorkerExtension.update_weights_from_ipc": "21edd41f704fbb7b",
    "vLLMColocateWorkerExtension._update_weights": "92931d5a1a126c22",
}


def check_verl_is_what_was_read(folder: Path) -> None:
    from verl.workers.rollout.vllm_rollout import ServerAdapter, utils, vllm_async_server

    owners = {"ServerAdapter": ServerAdapter} | vars(vllm_async_server) | vars(utils)
    for place, expected in HASHES.items():
        owner, method = place.split(".")
        source = inspect.getsource(getattr(owners[owner], method))
        found = hashlib.sha256(source.encode()).hexdigest()[:16]
        assert found == expected, f"{place}: {found}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    fake_vllm.install(Path(tempfile.mkdtemp()))
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check(Path(sys.argv[1]))
                print("RESULT", name.removeprefix("check_"), "ok", flush=True)
            except BaseException as error:
                traceback.print_exc()
                print("RESULT", name.removeprefix("check_"), type(error).__name__, error, flush=True)
