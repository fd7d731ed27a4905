"""Run by test_programs.py on a model folder: verl's own vLLM rollout with our adapters, over a fake of vLLM's API.

Prints `RESULT <check> ok`, or why not. What vLLM itself does with the LoRAs is not tested: there was no GPU.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import sys
import tempfile
import threading
import traceback
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.engine import fake_vllm
from tests.engine.lora_models import NAMES, OPTIONS, adapter_parameters, routed

LORA = {"lora_rank": OPTIONS.rank, "lora_alpha": OPTIONS.alpha}
ABOUT = {"adapters": list(NAMES), "r": OPTIONS.rank, "lora_alpha": OPTIONS.alpha, "target_modules": ["q_proj"]}


def model_config(folder: Path, adapters: bool = True) -> Any:
    from verl.workers.config import HFModelConfig

    return HFModelConfig(path=str(folder), **LORA, lora={"adapters": list(NAMES)} if adapters else {})


def rollout_config() -> Any:
    from verl.workers.config import RolloutConfig

    return RolloutConfig(
        name="vllm", tensor_model_parallel_size=1, prompt_length=64, response_length=32, max_model_len=96
    )


def server_of(folder: Path) -> Any:
    """A server whose start of vLLM is replaced."""
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    from verl_ext.engine.vllm.server import VLLMAdapterServer

    started: list[Namespace] = []

    async def run_server(self: Any, args: Namespace) -> None:
        started.append(args)
        self.engine = fake_vllm.AsyncLLM(loaded={1001, 1002, 1003})

    server = VLLMAdapterServer(
        config=rollout_config(),
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


def check_the_vendor_registers_it(folder: Path) -> None:
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from verl_ext.engine.vllm.sender import AdapterSender
    from verl_ext.engine.vllm.server import AdapterReplica, VLLMAdapterServer

    assert get_rollout_replica_class("vllm") is AdapterReplica
    assert get_rollout_class("vllm") is AdapterSender
    with_adapters = AdapterReplica(0, rollout_config(), model_config(folder), gpus_per_node=1)
    without = AdapterReplica(0, rollout_config(), model_config(folder, adapters=False), gpus_per_node=1)
    judge = AdapterReplica(0, rollout_config(), model_config(folder), gpus_per_node=1, is_reward_model=True)
    classes = [r.server_class.__ray_metadata__.modified_class.__mro__ for r in (with_adapters, without, judge)]
    assert [VLLMAdapterServer in mro for mro in classes] == [True, False, False]


def check_a_request_goes_to_its_agents_lora(folder: Path) -> None:
    server = server_of(folder)
    engine = server.engine._engine

    async def ask(**sampling: Any) -> Any:
        return await server.generate([1, 2, 3], {"logprobs": True, "max_tokens": 4, **sampling}, request_id="r")

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*[ask(adapter=name, seed=i) for i, name in enumerate((*NAMES, "", *NAMES))])

    outputs = asyncio.run(ask_all())
    assert [output.token_ids for output in outputs] == [[7]] * 7
    assert [output.extra_fields["adapter"] for output in outputs] == [*NAMES, "", *NAMES]
    got = {params.seed: lora and (lora.lora_name, lora.lora_int_id) for lora, params in engine.asked}
    own = [(name, 1001 + i) for i, name in enumerate(NAMES)]
    assert [got[seed] for seed in range(7)] == [*own, None, *own]
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


class Worker:
    """What vLLM's worker has of its own."""

    device = torch.device("cpu")
    model_runner = None
    _is_qat_model = _is_modelopt_qat = False

    def __init__(self, handle: str):
        self.handle, self.loras, self.removed = handle, {}, []

    def _get_zmq_handle(self) -> str:
        return self.handle

    def remove_lora(self, number: int) -> bool:
        self.removed.append(number)
        return self.loras.pop(number, None) is not None

    def add_lora(self, request: Any) -> bool:
        assert request.lora_int_id not in self.loras
        self.loras[request.lora_int_id] = request
        return True


def check_one_push_becomes_a_lora_per_adapter(folder: Path) -> None:
    """Over verl's real transport, in buckets smaller than an adapter."""
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    from verl_ext.engine.vllm.worker import AdapterWorker

    weights = {key: parameter.detach() for key, parameter in adapter_parameters(routed()[0]).items()}
    handle = f"ipc://{folder}/push.sock"
    worker = type("Both", (Worker, AdapterWorker), {"__new__": lambda cls, *_: object.__new__(cls)})(handle)
    for factor in (1.0, 2.0):
        receiver = threading.Thread(
            target=worker.update_weights_from_ipc,
            kwargs={"peft_config": ABOUT, "base_sync_done": True, "use_shm": True},
        )
        receiver.start()
        sender = BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)
        sender.bucket_size = 4096
        asyncio.run(sender.async_send_weights(iter([(key, factor * value) for key, value in weights.items()])))
        receiver.join(60)
        assert not receiver.is_alive()
        assert [worker.loras[number].lora_name for number in sorted(worker.loras)] == list(NAMES)
        found = {
            f"{lora.lora_name}/{key.removeprefix('base_model.model.')}": tensor
            for lora in worker.loras.values()
            for key, tensor in lora.lora_tensors.items()
        }
        assert set(found) == set(weights)
        assert all(torch.equal(found[key], factor * weights[key]) for key in weights)
        assert all(lora.peft_config["r"] == OPTIONS.rank for lora in worker.loras.values())


def check_an_engine_without_the_adapters_is_noticed(folder: Path) -> None:
    from verl_ext.engine.vllm.sender import AdapterSender

    sender = AdapterSender.__new__(AdapterSender)
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
    os.environ["VERL_ENGINE_VENDOR"] = "verl_ext"
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
