"""The server as verl runs it: a Ray actor on a real local cluster."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import ray
import torch
from transformers import AutoModelForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import get_rollout_replica_class

from tests.engine.conftest import EOS, VOCAB, tiny_model
from verl_ext.engine.hf.replica import ServerAdapter, server_handles, server_name
from verl_ext.engine.hf.server import HFServer
from verl_ext.trainer.rollout.llm import ServedLLM, client_of_calls, direct_client
from verl_ext.trainer.rollout.waves import WaveLLM

SEEDED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True, "seed": 3}


def rollout_config(**changes) -> RolloutConfig:
    values = {
        "name": "hf",
        "tensor_model_parallel_size": 1,
        **{"prompt_length": 64, "response_length": 128},
        **{"dtype": "float32", "load_format": "auto"},
        "max_num_seqs": 16,
        "engine_kwargs": {"hf": {"device": "cpu"}},  # whatever the test process detects
    }
    return RolloutConfig(**(values | changes))


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def replica(cluster, model_dir):
    model_config = HFModelConfig(path=str(model_dir))
    replica = get_rollout_replica_class("hf")(0, rollout_config(), model_config, gpus_per_node=1)
    asyncio.run(replica.launch_servers())
    return replica


@pytest.fixture
def server(replica, model_dir):
    """The module's server, with the checkpoint's weights and nothing running."""
    handle = replica.server_handle
    ray.get(handle.abort_all_requests.remote(reject_request=True))
    ray.get(handle.resume_generation.remote())
    state = AutoModelForCausalLM.from_pretrained(model_dir).state_dict()
    ray.get(handle.update_weights.remote(state, 0))
    return handle


def send(server, prompt, request_id="r", **params):
    return server.generate.remote(prompt_ids=prompt, sampling_params=SEEDED | params, request_id=request_id)


def wait_until(server, condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition(ray.get(server.stats.remote())):
        assert time.monotonic() < deadline, "the server never got there"
        time.sleep(0.005)


def slow(server, seconds):
    """Let each forward pass of the engine begin with a sleep: a request is caught before it has ended."""

    def hook(server):
        if (old := server.__dict__.pop("slowed", None)) is not None:
            old.remove()
        if seconds:
            server.slowed = server._loop._engine.model.register_forward_pre_hook(lambda *_: time.sleep(seconds))

    ray.get(server.__ray_call__.remote(hook))


@contextmanager
def slowed(server, seconds=0.3):
    slow(server, seconds)
    try:
        yield
    finally:
        slow(server, 0.0)


def test_replica_speaks_verls_names(replica):
    assert replica.server_address == server_name(0) == "hf_server_0_0"
    assert ray.get(server_handles()[0].stats.remote())["active"] == 0


def test_concurrent_requests_are_batched_and_reproducible(server):
    prompts = [[2 + (7 * i + j) % 90 for j in range(3 + i % 20)] for i in range(40)]
    before = ray.get(server.stats.remote())
    together = ray.get([send(server, p, seed=i, max_tokens=24) for i, p in enumerate(prompts)])
    after = ray.get(server.stats.remote())
    alone = [ray.get(send(server, p, seed=i, max_tokens=24)) for i, p in enumerate(prompts[:5])]
    assert [o.token_ids for o in together[:5]] == [o.token_ids for o in alone]
    steps = after["decode_steps"] - before["decode_steps"]
    tokens = after["generated_tokens"] - before["generated_tokens"]
    assert tokens == sum(len(o.token_ids) for o in together) > 4 * steps
    for output in together:
        assert len(output.log_probs) == len(output.token_ids)
        assert output.stop_reason == ("completed" if output.token_ids[-1] == EOS else "length")
        assert output.extra_fields == {"global_steps": 0}


def test_default_length_and_vllm_style_limit(server):
    assert len(ray.get(send(server, [5] * 40, ignore_eos=True)).token_ids) == 128  # response_length
    long = ray.get(send(server, [5] * 100, ignore_eos=True))  # prompt_length + response_length - 100
    assert len(long.token_ids) == 92 and long.stop_reason == "length"
    assert len(ray.get(send(server, [5], ignore_eos=True, max_new_tokens=7)).token_ids) == 7


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "empty"),
        ([5] * 192, {}, "max_model_len=192"),
        ([VOCAB], {}, r"\[0, 97\)"),
        ([5], {"repetition_penalty": 1.3}, "repetition_penalty=1.3"),
        ([5], {"temprature": 1.0}, "unknown sampling parameters"),
        ([5], {"max_tokens": 0}, "max_tokens"),
    ],
)
def test_bad_requests_fail_alone(server, prompt, params, message):
    good = send(server, [5, 6, 7], max_tokens=8)
    with pytest.raises(ValueError, match=message):
        ray.get(send(server, prompt, **params))
    assert ray.get(good).token_ids


def test_abort_returns_partial_and_resuming_equals_no_interruption(server):
    prompt = [9, 8, 7, 6]
    whole = ray.get(send(server, prompt, ignore_eos=True, max_tokens=128))
    with slowed(server):
        pending = send(server, prompt, ignore_eos=True, max_tokens=128)
        wait_until(server, lambda s: s["active"] == 1)
        aborted = ray.get(server.abort_all_requests.remote())
        partial = ray.get(pending)
    assert aborted == {"aborted_count": 1, "request_ids": ["r"]}
    done = len(partial.token_ids)
    assert partial.stop_reason == "aborted" and 0 < done < 128 and len(partial.log_probs) == done
    rest = send(server, prompt + partial.token_ids, ignore_eos=True, max_tokens=128 - done)
    assert ray.wait([rest], timeout=0.2)[0] == []  # paused: it waits
    ray.get(server.resume_generation.remote())
    rest = ray.get(rest)
    assert partial.token_ids + rest.token_ids == whole.token_ids
    assert torch.allclose(torch.tensor(partial.log_probs + rest.log_probs), torch.tensor(whole.log_probs), atol=1e-5)


def test_control_calls_pass_more_waiting_requests_than_the_actor_takes(server, replica):
    """1000+ generations that wait for resume_generation must not keep resume_generation out."""
    ray.get(server.abort_all_requests.remote())
    waiting = [send(server, [5], max_tokens=1, seed=i) for i in range(replica.max_concurrency + 50)]
    time.sleep(0.5)
    ray.get(server.resume_generation.remote(), timeout=300)
    assert all(len(o.token_ids) == 1 for o in ray.get(waiting, timeout=300))


def test_verls_async_client_never_sees_the_abort(server):
    """colocate_async: abort, new weights, resume; the client hands over one whole answer of two versions."""

    class Client(FullyAsyncLLMServerClient):
        def __init__(self):
            pass

        config = type("Config", (), {"actor_rollout_ref": type("A", (), {"rollout": rollout_config()})})

        async def _acquire_server(self, request_id, **extra):
            return "hf_server_0_0", server

        def _release_server(self, server_id, request_id=None):
            pass

    async def scenario():
        call = asyncio.create_task(
            Client().generate(
                "q", prompt_ids=[9, 8, 7], sampling_params=SEEDED | {"ignore_eos": True, "max_tokens": 120}
            )
        )
        while not (await server.stats.remote())["active"]:
            await asyncio.sleep(0.001)
        await server.abort_all_requests.remote()
        await asyncio.to_thread(slow, server, 0.0)
        await server.sleep.remote()
        await server.update_weights.remote(tiny_model("qwen2", seed=5).state_dict(), 1)
        await server.resume_generation.remote()
        return await call

    with slowed(server, 0.1):
        output = asyncio.run(scenario())
    assert len(output.token_ids) == len(output.log_probs) == 120 and output.stop_reason == "length"
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (0, 1)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_call_that_reached_its_time_limit_generates_no_more(server, deterministic):
    """The waiting coroutine and the request in the engine end together; `generated_tokens` counts the engine's."""
    prompt, sampling = [9, 8, 7], SEEDED | {"ignore_eos": True, "max_tokens": 128}
    tokenizer = SimpleNamespace(eos_token_id=EOS)
    rollout = SimpleNamespace(rollout=rollout_config())
    client = direct_client(LLMServerClient(SimpleNamespace(actor_rollout_ref=rollout)), [server])
    if deterministic:
        llm = WaveLLM(tokenizer, None, servers=[server], busy=lambda: 0)
    else:
        llm = ServedLLM(tokenizer, client_of_calls(client))

    async def scenario():
        before = await server.stats.remote()
        calls = [asyncio.ensure_future(llm.generate(prompt, sampling, ("q", f"a.{i}"))) for i in range(4)]
        while (await server.stats.remote())["active"] < 4:
            await asyncio.sleep(0.001)
        for call in calls[1:]:
            call.cancel()
        kept = await calls[0]
        while (now := await server.stats.remote())["active"]:
            await asyncio.sleep(0.001)
        return len(kept.token_ids), now["generated_tokens"] - before["generated_tokens"]

    with slowed(server, 0.03):
        kept, generated = asyncio.run(scenario())
    assert kept == 128 and generated < 3 * 128


def test_weight_update_changes_the_output_and_aborts_what_runs(server):
    old = ray.get(send(server, [4, 5, 6], ignore_eos=True, max_tokens=16))
    other = tiny_model("qwen2", seed=1)
    with slowed(server):
        running = send(server, [4, 5, 6], ignore_eos=True, max_tokens=128)
        wait_until(server, lambda s: s["active"] == 1)
        ray.get(server.update_weights.remote(other.state_dict(), 7))
        cut = ray.get(running)
    assert cut.stop_reason == "aborted" and cut.extra_fields["global_steps"] == 0
    new = ray.get(send(server, [4, 5, 6], ignore_eos=True, max_tokens=16))
    assert new.token_ids != old.token_ids and new.extra_fields["global_steps"] == 7
    ids = torch.tensor([[4, 5, 6, *new.token_ids]])
    plain = other(ids).logits[0, 2:-1].log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    assert torch.allclose(plain, torch.tensor(new.log_probs), atol=1e-5)


def test_wave_is_bit_identical_whatever_ran_before(server):
    wave = [
        {"prompt_ids": [3 + i % 7] * (1 + 5 * (i % 6)), "sampling_params": {"max_tokens": 5 + i}, "request_id": f"w{i}"}
        for i in range(30)
    ]
    wave.insert(4, {"prompt_ids": [5] * 500, "sampling_params": {}, "request_id": "too long"})
    first = server.generate_wave.remote(wave)
    noise = [send(server, [2 + i], max_tokens=50, seed=i) for i in range(25)]
    second = server.generate_wave.remote(wave)
    first, second, _ = ray.get(first), ray.get(second), ray.get(noise)
    for results in (first, second):
        assert isinstance(results.pop(4), ValueError)
    assert [o.token_ids for o in first] == [o.token_ids for o in second]
    assert [o.log_probs for o in first] == [o.log_probs for o in second]  # equal, not close
    assert len({tuple(o.token_ids) for o in first}) > 20


def adapter(model_dir, monkeypatch, rank: int, **changes) -> ServerAdapter:
    monkeypatch.setenv("RANK", str(rank))
    model = HFModelConfig(path=str(model_dir), **changes)
    return ServerAdapter(config=rollout_config(tensor_model_parallel_size=2), model_config=model, device_mesh=None)


def test_adapter_ships_from_the_leader_and_drains_on_every_rank(server, model_dir, monkeypatch):
    """Two trainer ranks share one server; a producer that reuses its buffer is no problem."""
    state = tiny_model("qwen2", seed=4).state_dict()
    drained = []

    def weights():
        for name, tensor in state.items():
            buffer = tensor.clone()
            yield name, buffer
            buffer.fill_(float("nan"))
            drained.append(name)

    follower, leader = (adapter(model_dir, monkeypatch, rank) for rank in (1, 0))
    assert (follower.replica_rank, follower.is_leader_rank) == (0, False)
    assert (leader.replica_rank, leader.is_leader_rank) == (0, True)
    assert adapter(model_dir, monkeypatch, 2).replica_rank == 1
    old = ray.get(send(server, [4, 5, 6], max_tokens=16))
    asyncio.run(follower.update_weights(weights(), global_steps=8))
    assert drained == list(state) and ray.get(send(server, [4, 5, 6], max_tokens=16)).token_ids == old.token_ids
    asyncio.run(leader.update_weights(weights(), global_steps=9))
    new = ray.get(send(server, [4, 5, 6], max_tokens=16))
    assert len(drained) == 2 * len(state) and new.extra_fields == {"global_steps": 9}
    assert new.token_ids != old.token_ids and all(value > -50 for value in new.log_probs)


def test_adapters_without_merging_are_refused_with_the_remedy(model_dir, monkeypatch):
    with pytest.raises(ValueError, match="lora.merge=True"):
        adapter(model_dir, monkeypatch, 0, lora_rank=8)
    merging = adapter(model_dir, monkeypatch, 0, lora_rank=8, lora={"merge": True})
    with pytest.raises(ValueError, match="lora.merge=True"):
        asyncio.run(merging.update_weights(iter(()), peft_config={"r": 8}))
    with pytest.raises(ValueError, match="wire_format"):
        asyncio.run(merging.update_weights(iter(()), wire_format="delta_flush"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_stops_the_start_with_the_remedy(model_dir):
    with pytest.raises(ValueError, match="set VERL_PLATFORM=cpu"):
        HFServer(rollout_config(engine_kwargs={"hf": {"device": "cuda"}}), HFModelConfig(path=str(model_dir)))


def test_an_error_of_the_constructor_surfaces_at_launch(cluster, model_dir):
    config = rollout_config(engine_kwargs={"hf": {"slot": 3}})
    replica = get_rollout_replica_class("hf")(7, config, HFModelConfig(path=str(model_dir)), gpus_per_node=1)
    with pytest.raises(ray.exceptions.ActorDiedError, match=r"unknown keys \['slot'\]"):
        asyncio.run(replica.launch_servers())
