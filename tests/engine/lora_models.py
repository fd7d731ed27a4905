"""Models with adapters per agent, and what they are held against: one ordinary peft model per agent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from tests.engine.conftest import tiny_model
from verl_ext.engine.lora.adapters import AdapterOptions, wire_name
from verl_ext.engine.lora.routed_lora import Route, add_adapters

NAMES = ("rewriter", "reranker", "answerer")
OPTIONS = AdapterOptions(NAMES, rank=4, alpha=8)
TOKENS = torch.randint(2, 97, (8, 12), generator=torch.Generator().manual_seed(7))
# Whose row each of TOKENS is. Halves of it are what two ranks hold.
CASES = {
    "mixed": [0, 1, 1, 2, 1, 0, 2, 0],
    "skewed": [0, 0, 0, 0, 1, 1, 2, 2],
    "one each": [0] * 4 + [1] * 4,
    "two absent": [1] * 8,
}


def base_model(dtype: torch.dtype = torch.float32, checkpointing: bool = False) -> PreTrainedModel:
    """The tiny Qwen2 under sdpa attention, as the trainer has it."""
    model = tiny_model("qwen2").to(dtype)
    model.set_attn_implementation("sdpa")
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def randomise(parameters: dict[str, torch.Tensor], seed: int = 3) -> None:
    """Adapters that matter: random, and different ones (a fresh adapter changes nothing)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in sorted(parameters):
            values = torch.randn(parameters[name].shape, generator=generator, dtype=torch.float64)
            parameters[name].copy_(0.1 * values)


def adapter_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """By wire name."""
    return {key: p for name, p in model.named_parameters() if (key := wire_name(name))}


def routed(dtype: torch.dtype = torch.float32, checkpointing: bool = False) -> tuple[PeftModel, Route]:
    model, route = add_adapters(base_model(dtype, checkpointing), OPTIONS)
    randomise(adapter_parameters(model))
    return model, route


def separate(
    name: str,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
    model: PreTrainedModel | None = None,
) -> PeftModel:
    """An ordinary peft model that has one of the adapters alone."""
    config = LoraConfig(task_type="CAUSAL_LM", r=OPTIONS.rank, lora_alpha=OPTIONS.alpha, target_modules="all-linear")
    model = get_peft_model(model or base_model(dtype), config, adapter_name=name, autocast_adapter_dtype=False)
    own = adapter_parameters(model)
    assert own, "there is something to copy"
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(weights[key])
    return model


def row_losses(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """(rows,) mean negative log-likelihood of each row."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


def in_order(agents: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
    """The order that a route wants rows in, and how many each adapter has."""
    agents = torch.tensor(agents)
    return agents.argsort(stable=True), torch.bincount(agents, minlength=len(NAMES)).tolist()


def reference_gradients(case: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Of the mean loss of all rows, one separate model per agent; zeros for an agent without rows."""
    weights = adapter_parameters(routed(dtype)[0])
    gradients = {key: torch.zeros_like(value) for key, value in weights.items()}
    for number, name in enumerate(NAMES):
        rows = [row for row, agent in enumerate(CASES[case]) if agent == number]
        if not rows:
            continue
        model = separate(name, weights, dtype)
        (row_losses(model, TOKENS[rows]).sum() / len(TOKENS)).backward()
        gradients |= {key: parameter.grad for key, parameter in adapter_parameters(model).items()}
    return gradients
