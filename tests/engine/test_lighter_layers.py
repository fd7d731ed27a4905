"""Norms and MLPs that keep less: the same model, less memory; others stay as they are."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from verl_ext.engine.fsdp.lighter_layers import _Norm, lighten
from verl_ext.engine.fsdp.memory import kept_bytes

IDS = torch.arange(3, 40)[None]
SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def made(family: str, seed: int = 0, **settings: object) -> torch.nn.Module:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **SIZES, **HEADS, pad_token_id=0, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    for name, one in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(one, mean=1.0)
    return model


def gradients(model: torch.nn.Module, autocast: bool = False) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(IDS, use_cache=False).logits.float()
    logits.log_softmax(-1)[0, :, 7].sum().backward()
    return logits.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize(("kind", "autocast", "atol"), [("float32", False, 1e-5), ("bfloat16", True, 0.1)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_same_logits_and_gradients_with_less_kept(family, kind, autocast, atol):
    plain = made(family).to(getattr(torch, kind))
    light = deepcopy(plain)
    lighten(light)
    kept = [kept_bytes(lambda one=one: one(IDS, use_cache=False).logits) for one in (light, plain)]
    weights = sum(one.nbytes for one in plain.parameters())
    assert kept[0] - weights < 0.7 * (kept[1] - weights)
    (logits, grads), (wanted, theirs) = gradients(light, autocast), gradients(plain, autocast)
    assert torch.equal(logits, wanted)
    assert grads.keys() == theirs.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, theirs[name], rtol=0, atol=atol * float(theirs[name].abs().max()), msg=name)


def test_under_adapters_no_product_of_matrices_is_computed_twice():
    plain = get_peft_model(made("qwen2"), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    light = deepcopy(plain)
    lighten(light)

    def products(model: torch.nn.Module) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            found.append(gradients(model))
        return sum(one.count for one in profile.key_averages() if one.key in ("aten::mm", "aten::addmm"))

    found: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
    assert products(light) == products(plain)
    for name, grad in found[0][1].items():
        torch.testing.assert_close(grad, found[1][1][name], rtol=1e-4, atol=1e-5, msg=name)


def test_the_norms_gradients_are_those_of_a_float64_reference():
    torch.manual_seed(0)
    states, weight, grad = torch.randn(3, 5, 16) * 3, torch.randn(16), torch.randn(3, 5, 16)
    given = [states.requires_grad_(), weight.requires_grad_()]
    found = torch.autograd.grad(_Norm.apply(*given, 1e-2), given, grad)
    wide, scale = (one.detach().double().requires_grad_() for one in given)
    out = scale * wide / (wide.square().mean(-1, keepdim=True) + 1e-2).sqrt()
    for one, other in zip(found, torch.autograd.grad(out, (wide, scale), grad.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


class Norm(torch.nn.Module):
    """The usual one; others differ from it a little."""

    variance_epsilon, factor, noise, base = 1e-6, 1.0, 0.0, 0.0

    def __init__(self, **settings: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        vars(self).update(settings)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        out = (self.base + self.weight) * normal.to(states.dtype) * self.factor
        return torch.nn.functional.dropout(out, self.noise, self.training)


class Gated(Norm):
    """May be called with a gate, as Mamba's."""

    def forward(self, states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(states if gate is None else states * gate)


class Images(Norm):
    """Takes images."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        _, _, _, _ = states.shape
        return super().forward(states)


def test_what_computes_something_else_is_left_alone():
    """Each by itself, whatever the others of its class do; Gemma's weights count from one, SeedOss' drop out."""
    others = [Gated(), Images(), Norm(base=1.0), Norm(factor=0.5), Norm(noise=0.5)]
    model = torch.nn.Sequential(Norm(), *others, Norm()).eval()
    lighten(model)
    assert ["forward" in vars(one) for one in model] == [True, *(False for _ in others), True]
    assert not any(one.training for one in model.modules())


def test_weights_that_are_not_there_yet_do_not_matter():
    with torch.device("meta"):
        model = made("llama")
    lighten(model)
    changed = [name for name, one in model.named_modules() if "forward" in vars(one)]
    assert len(changed) == 2 * 3 + 1, changed  # an MLP and two norms a layer, and the last norm
