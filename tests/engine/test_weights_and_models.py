"""New weights in a running engine, and which architectures it takes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.engine.conftest import EOS, LENGTH, VOCAB, engine_of, prompt_of, request, same, tiny_config, tiny_model
from verl_ext.engine.hf import packed_weights
from verl_ext.engine.hf.params import Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine


@pytest.mark.parametrize("large", [False, True])
def test_new_weights_drop_every_key_and_value(large, monkeypatch):
    """Answers after an update equal those of a fresh engine, also for a prompt that was just shared.

    Also as for a large model, whose weights are packed.
    """
    if large:
        monkeypatch.setattr(packed_weights, "NUMBERS", 0)
    one = request(20, 1, max_tokens=30, ignore_eos=True)
    engine = engine_of()
    engine.add(one)
    for _ in range(5):
        engine.step()
    (cut,) = engine.load_weights(tiny_model("qwen2", seed=9).state_dict(), version=3)
    assert cut.stop_reason == "aborted" and cut.version is None and engine.cache.capacity == 0
    (new,) = engine.generate([one])
    monkeypatch.undo()
    fresh = SlotEngine(tiny_model("qwen2", seed=9), 4, LENGTH, [EOS])
    assert same(new, fresh.generate([one])[0]) and new.version == 3
    assert new.token_ids[:5] != cut.token_ids


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no such kernels")
def test_packed_weights_follow_the_weights_and_are_freed(monkeypatch):
    monkeypatch.setattr(packed_weights, "NUMBERS", 0)
    layer = torch.nn.Linear(32, 48)
    packed_weights.pack(torch.nn.Sequential(layer))
    states = torch.randn(3, 1, 32)
    for _ in range(2):
        with torch.inference_mode():
            assert torch.allclose(layer(states), F.linear(states, layer.weight, layer.bias), atol=1e-5)
        assert layer._packed is not None
        with torch.no_grad():
            layer.weight.mul_(-2)
    packed_weights.unpack(layer)
    assert layer._packed is None and layer(states).requires_grad and layer._packed is None  # outside of the engine


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no such kernels")
def test_wrong_packed_products_are_found_at_the_start(monkeypatch):
    monkeypatch.setattr(packed_weights, "NUMBERS", 0)
    forward = packed_weights.PackedLinear.forward

    def wrong(self, x):
        return forward(self, x) * (-1.7 if torch.is_inference_mode_enabled() else 1)

    monkeypatch.setattr(packed_weights.PackedLinear, "forward", wrong)
    with pytest.raises(ValueError, match="its log-probs differ"):
        engine_of()


def test_packed_weights_leave_memory_to_others(monkeypatch):
    """The largest first, until their share is used up."""
    monkeypatch.setattr(packed_weights, "NUMBERS", 0)
    monkeypatch.setattr(packed_weights, "machine_memory", lambda: 4 * 150 / packed_weights.SHARE)
    layers = [torch.nn.Linear(5, 10), torch.nn.Linear(10, 10), torch.nn.Linear(3, 10)]
    packed_weights.pack(torch.nn.ModuleList(layers))
    assert [type(layer) is packed_weights.PackedLinear for layer in layers] == [True, True, False]


@pytest.mark.parametrize("given_head", [True, False])
def test_tied_head_may_be_given_or_left_out(given_head):
    state = tiny_model("qwen2", seed=2).state_dict()
    if not given_head:
        del state["lm_head.weight"]
    engine = engine_of()
    engine.load_weights(state)
    fresh = SlotEngine(tiny_model("qwen2", seed=2), 4, LENGTH, [EOS])
    assert same(engine.generate([request(5)])[0], fresh.generate([request(5)])[0])


def test_weights_of_another_model_change_nothing():
    engine, state = engine_of("llama"), tiny_model("llama", seed=2).state_dict()
    (before,) = engine.generate([request(5)])
    state["model.layers.0.mlp.up_proj.lora_A.weight"] = state.pop("lm_head.weight")
    with pytest.raises(ValueError, match=r"does not have: .*lora_A.*lora.merge=True.*not given: lm_head.weight"):
        engine.load_weights(state)
    assert same(engine.generate([request(5)])[0], before)


def test_wrong_shape_is_named():
    state = tiny_model("qwen2").state_dict()
    state["model.norm.weight"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"model.norm.weight: model \(64,\), given \(3,\)"):
        engine_of().load_weights(state)


# -- architectures ----------------------------------------------------------------------------------------------------


def test_sliding_windows_shorter_than_the_context_are_refused():
    config = MistralConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=32,
    )  # fmt: skip
    with pytest.raises(ValueError, match="max_model_len to at most 32"):
        SlotEngine(MistralForCausalLM(config), 4, LENGTH)
    assert SlotEngine(MistralForCausalLM(config), 4, 32).generate([request(9)])[0].token_ids


def test_positions_that_depend_on_the_other_requests_are_refused():
    config = tiny_config("llama")
    config.rope_parameters = {
        **{"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64},
        **{"short_factor": [1.0] * 16, "long_factor": [4.0] * 16},
    }
    with pytest.raises(ValueError, match="longrope.*max_model_len to at most 64"):
        SlotEngine(LlamaForCausalLM(config), 4, LENGTH)
    assert SlotEngine(LlamaForCausalLM(config), 4, 64).generate([request(9)])[0].token_ids


def test_other_architectures_run_too():
    """GPT-2: learned positions, its own attention call, no grouped queries."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=2, n_positions=LENGTH)).eval()
    want = model.generate(
        torch.tensor([prompt_of(9)]), do_sample=False, max_new_tokens=12, eos_token_id=EOS, pad_token_id=0
    )
    (done,) = SlotEngine(model, 4, LENGTH, [EOS]).generate(
        [Request("x", prompt_of(9), SamplingParams(12, temperature=0.0))]
    )
    assert done.token_ids == want[0, 9:].tolist()


@pytest.mark.parametrize("sharp", [1, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_ignores_its_cache_is_refused(dtype, sharp):
    class Forgetful(type(tiny_model("qwen2"))):
        def forward(self, *args, past_key_values=None, **kwargs):
            return super().forward(*args, past_key_values=DynamicCache() if past_key_values else None, **kwargs)

    model = sharper(sharp).to(dtype)
    model.__class__ = Forgetful
    with pytest.raises(ValueError, match="rollout.name=hf cannot run Forgetful"):
        SlotEngine(model, 4, LENGTH)


def test_large_logits_may_be_rounded_as_half_precision_rounds_them():
    assert SlotEngine(sharper(1000).to(torch.bfloat16), 4, LENGTH).generate([request(9)])[0].token_ids


def sharper(factor: float):
    """A model with logits so many times as large."""
    model = tiny_model("qwen2")
    model.model.norm.weight.data *= factor
    return model
