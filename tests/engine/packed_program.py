"""Run by test_programs.py in a process of its own: rows without flash_attn. Prints `RESULT <check> ok`.

On GPUs verl packs the rows of a micro-batch into one sequence. Without flash_attn, packed_sdpa computes each by itself,
or transformers' sdpa keeps them apart by their positions; and verl's fused head gives log-probs and entropies without
the micro-batch's logits.
Each check compares verl's own pass over packed rows with its pass over padded ones: outputs and gradients.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import torch
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.base import EngineRegistry

from tests.engine import fsdp_program as program  # first: it registers our platform, and makes the process group
from verl_ext.engine.fsdp.shared_prefixes import SharedPrefixes

TEMPERATURE = 0.7
NEAR, NEAR_FUSED = 3e-5, 5e-4  # of outputs and gradients; of the fused head's gradients
Pass = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]


def build(folder: str, lora: int, fused: bool, attention: str = "packed_sdpa") -> Any:
    """verl's actor, with a random adapter of rank `lora`."""
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=HFModelConfig(
            path=folder,
            use_remove_padding=True,
            use_fused_kernels=fused,
            fused_kernel_options={"impl_backend": "torch"},
            enable_gradient_checkpointing=True,
            override_config={"attn_implementation": attention},
            lora_rank=lora,
            lora_alpha=2 * lora,
            target_modules="all-linear",
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype="fp32",
            dtype="float32",
            mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            use_torch_compile=False,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    torch.manual_seed(1)
    engine.initialize()
    with torch.no_grad():
        for name, parameter in engine.module.named_parameters():
            if "lora_B" in name:  # 0 in a fresh adapter
                parameter.to_local().normal_(std=0.1)
    return engine


def passed(engine: Any, packed: bool, fused: bool) -> Pass:
    """Outputs, and gradients by name, of verl's own pass over the rows."""
    data = program.micro_batch("actor")
    del data["temperature"]
    tu.assign_non_tensor(data, use_remove_padding=packed, use_fused_kernels=fused, temperature=TEMPERATURE)
    names = ("log_probs", "entropy")

    def loss(model_output: dict, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        return sum(program.scored(model_output[name]).pow(2).mean() for name in names), {}

    with engine.train_mode():
        total, output = super(SharedPrefixes, engine).forward_step(data, loss, False)
        total.backward()
        trained = {name: p for name, p in engine.module.named_parameters() if p.grad is not None}
        gradients = {name: p.grad.to_local().clone() for name, p in trained.items()}
        engine.optimizer_zero_grad()
    return {name: program.scored(output["model_output"][name]).detach() for name in names}, gradients


def check_same(one: Pass, other: Pass, near: float) -> None:
    """Outputs within NEAR; gradients within `near` of the largest."""
    assert one[0]["log_probs"].unique().numel() > 6  # not a constant
    for name, values in other[0].items():
        assert torch.allclose(one[0][name], values, atol=NEAR), (name, (one[0][name] - values).abs().max())
    assert one[1].keys() == other[1].keys() and one[1]
    largest = max(values.abs().max() for values in other[1].values())
    for name, values in other[1].items():
        assert (one[1][name] - values).abs().max() < near * largest, name


def check(lora: int, folder: str) -> Pass:
    """Compare packed with padded rows; returns the pass over the padded ones."""
    engine = build(folder, lora, fused=False, attention="sdpa")
    padded = passed(engine, packed=False, fused=False)
    assert all(("lora_" in name) == (lora > 0) for name in padded[1])
    check_same(passed(engine, packed=True, fused=False), padded, NEAR)
    check_same(passed(build(folder, lora, fused=False), packed=True, fused=False), padded, NEAR)
    return padded


def check_fused(lora: int, folder: str, padded: Pass) -> None:
    """The fused head over packed rows against whole logits over padded ones."""
    check_same(passed(build(folder, lora, fused=True), packed=True, fused=True), padded, NEAR_FUSED)


def attempt(name: str, action: Any) -> Any:
    try:
        found = action()
        print("RESULT", name, "ok")
        return found
    except Exception as error:
        traceback.print_exc()
        print("RESULT", name, type(error).__name__, error)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = {"": 0, "_with_lora": 8}
    # The fused head replaces the forward pass of the model's class, so it comes last.
    plain = {
        suffix: attempt(f"packed{suffix}", lambda lora=lora: check(lora, sys.argv[1])) for suffix, lora in ranks.items()
    }
    for suffix, lora in ranks.items():
        attempt(f"fused{suffix}", lambda lora=lora, suffix=suffix: check_fused(lora, sys.argv[1], plain[suffix]))
