"""The estimate of an update's activations against what autograd keeps."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from tests.trainer.test_recipes import composed
from verl_ext.engine.fsdp.packed_attention import NAME
from verl_ext.trainer.preflight.gpu_memory import Model, estimate

TOKENS = 256


def kept(config: LlamaConfig | Qwen2Config, adapters: bool) -> int:
    """Bytes that a pass over two packed rows keeps for its backward pass, in bf16, without parameters and logits."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.bfloat16)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")).to(torch.bfloat16).base_model.model
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    positions = torch.arange(TOKENS // 2).repeat(2)[None]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(input_ids=torch.ones(1, TOKENS, dtype=torch.long), position_ids=positions, use_cache=False)
    return sum(storage.nbytes() for address, storage in found.items() if address not in parameters)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [(LlamaConfig, (576, 1536, 9, 3)), (Qwen2Config, (384, 2240, 6, 1))],  # proportions of SmolLM2 and Qwen2.5-1.5B
)
def test_activations_are_what_autograd_keeps(family, sizes, adapters):
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    config = family(vocab_size=64, num_hidden_layers=6, **dict(zip(names, sizes, strict=True)))
    tokens = f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={TOKENS}"
    whole = composed("+recipe=mhgpo", tokens, "actor_rollout_ref.model.enable_gradient_checkpointing=false")
    found = estimate(whole, Model(config, 0, (), "here"), critic=False).parts["activations"]
    assert found == pytest.approx(kept(config, adapters), rel=0.15)
