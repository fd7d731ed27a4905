"""Requests to several adapters in one batch, against engines whose model has one adapter merged into its weights."""

from __future__ import annotations

import asyncio
import copy

import pytest
import ray
import torch
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import get_rollout_replica_class

from tests.engine.conftest import EOS, LENGTH, prompt_of, request, same, tiny_model
from tests.engine.lora_models import NAMES, OPTIONS, adapter_parameters, routed
from tests.engine.test_server import SEEDED, rollout_config
from verl_ext.engine.hf.replica import ServerAdapter, server_name
from verl_ext.engine.hf.slots import SlotEngine
from verl_ext.engine.lora.adapters import BASE, AdapterOptions
from verl_ext.engine.lora.served_adapters import AdapterEngine, AdapterRequest


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Of three adapters on the tiny Qwen2, as the trainer sends them."""
    return {key: parameter.detach() for key, parameter in adapter_parameters(routed()[0]).items()}


def engine_with(weights: dict[str, torch.Tensor] | None, slots: int = 8) -> AdapterEngine:
    engine = AdapterEngine(OPTIONS, tiny_model("qwen2"), slots, LENGTH, [EOS])
    if weights:
        engine.load_adapters(weights, 1)
    return engine


def merged(weights: dict[str, torch.Tensor], name: str | None) -> SlotEngine:
    """An ordinary engine: the adapter is part of the model's weights."""
    model = tiny_model("qwen2")
    for path, layer in model.named_modules():
        if name and (key := f"{name}/{path}.lora_A.weight") in weights:
            a, b = weights[key], weights[key.replace("lora_A", "lora_B")]
            layer.weight.data += OPTIONS.scaling * b @ a
    return SlotEngine(model, 8, LENGTH, [EOS])


def requests(adapters: list[str], same_prompt: bool = False) -> list[AdapterRequest]:
    plain = [
        request(5 if same_prompt else 3 + 4 * (i % 5), 0 if same_prompt else i, max_tokens=(20, 1, 17, 3)[i % 4])
        for i in range(len(adapters))
    ]
    return [AdapterRequest.of(one, name) for one, name in zip(plain, adapters, strict=True)]


def test_the_base_answers_beside_its_adapters_as_if_there_were_none(weights):
    """Of roles that do not train. Also where all start from one prompt, and where slots move."""
    wanted = requests([(*NAMES, BASE)[i % 4] for i in range(16)], same_prompt=True)
    mixed = engine_with(weights).generate(wanted)
    plain = merged(weights, None)
    for done, one in zip(mixed, wanted, strict=True):
        (alone,) = plain.generate([one])
        assert same(done, alone) == (one.adapter == BASE)


@pytest.mark.parametrize("same_prompt", [False, True])
@pytest.mark.parametrize("slots", [2, 64])
def test_a_mixed_batch_gives_what_each_adapter_gives_alone(weights, slots, same_prompt):
    """Also where all start from one prompt, whose keys and values only requests to one adapter may share.

    Short requests end first, and the requests of the last slots move into the free ones.
    """
    wanted = requests([NAMES[i % 3] for i in range(24)], same_prompt)
    engine = engine_with(weights, slots)
    mixed = engine.generate(wanted)
    if same_prompt and slots > len(NAMES):
        assert engine.stats.prefill_tokens_saved > 0
    for name in NAMES:
        mine = [(done, one) for done, one in zip(mixed, wanted, strict=True) if one.adapter == name]
        alone = merged(weights, name).generate([one for _, one in mine])
        assert len(mine) == 8
        for (done, _), other in zip(mine, alone, strict=True):
            assert same(done, other)


def test_another_adapter_or_none_gives_something_else(weights):
    """The control: a request that went through the wrong adapter would be noticed."""
    (done,) = engine_with(weights).generate(requests(["rewriter"]))
    for other in ("reranker", "answerer", None):
        (else_,) = merged(weights, other).generate(requests(["rewriter"]))
        assert abs(else_.log_probs[0] - done.log_probs[0]) > 1e-3


def test_new_adapters_end_what_runs_and_leave_the_base(weights):
    engine = engine_with(weights)
    base = copy.deepcopy(engine.model.state_dict())
    (wanted,) = requests(["answerer"])
    engine.add(AdapterRequest.of(request(5, 0, max_tokens=100, ignore_eos=True), "rewriter"))
    engine.step()
    doubled = {key: 2 * value for key, value in weights.items()}
    (cut,) = engine.load_adapters(doubled, 2)
    assert (cut.stop_reason, cut.version, engine.version) == ("aborted", 1, 2)
    (done,) = engine.generate([wanted])
    (expected,) = merged(doubled, "answerer").generate([wanted])
    assert same(done, expected)
    assert all(torch.equal(value, base[key]) for key, value in engine.model.state_dict().items())
    other_base = tiny_model("qwen2", seed=1)
    engine.load_weights(other_base.state_dict(), 3)
    (moved,) = engine.generate([wanted])
    assert not same(moved, done) and engine.version == 3, "the same adapter on another base"


def test_requests_without_a_known_adapter_are_refused(weights):
    engine = engine_with(None)
    with pytest.raises(ValueError, match="have not been sent yet"):
        engine.add(requests(["rewriter"])[0])
    engine.load_adapters(weights)
    for bad in (AdapterRequest.of(request(5), "writer"), AdapterRequest.of(request(5), None), request(5)):
        with pytest.raises(ValueError, match=r"is unknown; allowed: rewriter, reranker, answerer"):
            engine.add(bad)
    assert not engine.busy


FIRST = "rewriter/model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop(FIRST), f"{FIRST} is missing"),
        (lambda state: state.update({FIRST: torch.zeros(3, 64)}), r"is \(3, 64\), not \(4, 64\)"),
        (lambda state: state.update({FIRST: torch.full((4, 64), torch.nan)}), "is not finite"),
        (lambda state: state.update({FIRST.replace("q_proj", "x_proj"): torch.zeros(4, 64)}), "is not expected"),
        (lambda state: state.update({FIRST.replace("rewriter", "writer"): torch.zeros(4, 64)}), "is not expected"),
        (lambda state: [state.pop(key) for key in list(state) if "q_proj" in key], "layers have changed"),
        (lambda state: state.clear(), "none were given"),
    ],
)
def test_wrong_adapters_change_nothing(weights, change, message):
    engine = engine_with(weights)
    before = engine.generate(requests(list(NAMES)))
    state = {key: 3 * value for key, value in weights.items()}
    change(state)
    with pytest.raises(ValueError, match=message):
        engine.load_adapters(state, 9)
    after = engine.generate(requests(list(NAMES)))
    assert [done.log_probs for done in after] == [done.log_probs for done in before] and engine.version == 1


# --- the server, as verl runs it --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora_config(model_dir) -> HFModelConfig:
    return HFModelConfig(
        path=str(model_dir), lora_rank=OPTIONS.rank, lora_alpha=OPTIONS.alpha, lora={"adapters": list(NAMES)}
    )


@pytest.fixture(scope="module")
def server(lora_config):
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    replica = get_rollout_replica_class("hf")(0, rollout_config(), lora_config, gpus_per_node=1)
    asyncio.run(replica.launch_servers())
    yield replica.server_handle
    ray.shutdown()


def ship(server, config, state: dict[str, torch.Tensor], **kwargs) -> None:
    sender = ServerAdapter(config=rollout_config(), model_config=config, device_mesh=None)
    asyncio.run(sender.update_weights(iter(state.items()), peft_config={"adapters": list(NAMES)}, **kwargs))


def test_the_base_goes_over_once_and_then_adapters_only(server, lora_config, weights, monkeypatch):
    sent = []
    real = ServerAdapter.server.fget

    class Spy:
        def __getattr__(self, method):
            def remote(*given):
                if method != "fingerprints":
                    sent.append((method, sum(tensor.nbytes for tensor in given[0].values())))
                return getattr(ray.get_actor(server_name(0)), method).remote(*given)

            return type("Method", (), {"remote": staticmethod(remote)})

    monkeypatch.setattr(ServerAdapter, "server", property(lambda self: real(self) and Spy()))
    base = tiny_model("qwen2").state_dict()
    ship(server, lora_config, base, base_sync_done=False, global_steps=0)
    ship(server, lora_config, weights, base_sync_done=True, global_steps=0)
    ship(server, lora_config, weights, base_sync_done=True, global_steps=1)
    whole = sum(tensor.nbytes for tensor in base.values())
    adapters = 4 * sum(2 * OPTIONS.rank * 3 * (ins + outs) for ins, outs in LAYERS)
    assert sent == [("update_weights", whole), ("update_adapters", adapters), ("update_adapters", adapters)]
    outputs = ray.get(
        [
            server.generate.remote(list(prompt_of(5)), SEEDED | {"adapter": name, "max_tokens": 20}, name)
            for name in NAMES
        ]
    )
    for name, output in zip(NAMES, outputs, strict=True):
        assert output.extra_fields == {"global_steps": 1, "adapter": name}
        one = AdapterRequest.of(request(5, 0, seed=SEEDED["seed"]), name)
        (expected,) = merged(weights, name).generate([one])
        assert output.token_ids == expected.token_ids


# (in, out) of the linear layers of one of the two blocks: hidden 64, one key head of 32, inner 96.
LAYERS = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 96), (64, 96), (96, 64)]


def test_waves_of_several_adapters_are_reproducible(server, lora_config, weights):
    ship(server, lora_config, weights, base_sync_done=True, global_steps=1)
    wave = [
        {
            "prompt_ids": [3 + i % 4] * (1 + 5 * (i % 3)),
            "sampling_params": {"max_tokens": 5 + i, "adapter": NAMES[i % 3]},
            "request_id": f"w{i}",
        }
        for i in range(18)
    ]
    wave.append({"prompt_ids": [5], "sampling_params": {"adapter": BASE, "max_tokens": 3}, "request_id": "to the base"})
    wave.append({"prompt_ids": [5], "sampling_params": {}, "request_id": "to none"})
    first, second = ray.get(server.generate_wave.remote(wave)), ray.get(server.generate_wave.remote(wave))
    for results in (first, second):
        assert "adapter None is unknown" in str(results.pop())
    assert [o.log_probs for o in first] == [o.log_probs for o in second]
    assert len({tuple(o.token_ids) for o in first}) > 10


def test_an_engine_without_the_adapters_is_noticed(server, lora_config):
    sender = ServerAdapter(config=rollout_config(), model_config=lora_config, device_mesh=None)
    for about in (None, {"r": 4}, {"adapters": ["answerer", "rewriter", "reranker"]}):
        with pytest.raises(ValueError, match="VERL_ENGINE_VENDOR=verl_ext"):
            asyncio.run(sender.update_weights(iter(()), peft_config=about))


def test_an_engine_has_as_many_gates_as_adapters():
    engine = AdapterEngine(AdapterOptions(("a", "b"), rank=2, alpha=6), tiny_model("qwen2"), 2, LENGTH, [EOS])
    assert engine.adapters._gates.tolist() == [[3, 3, 0, 0], [0, 0, 3, 3], [0, 0, 0, 0]]
