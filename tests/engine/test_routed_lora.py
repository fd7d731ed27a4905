"""The routed layers against ordinary peft models that have one adapter each."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from tests.engine.lora_models import (
    CASES,
    NAMES,
    OPTIONS,
    TOKENS,
    adapter_parameters,
    base_model,
    in_order,
    reference_gradients,
    routed,
    row_losses,
    separate,
)
from verl_ext.engine.lora.adapter_files import check_start
from verl_ext.engine.lora.adapters import AdapterOptions, wire_name
from verl_ext.engine.lora.routed_lora import add_adapters


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_separate_models(case, checkpointing):
    model, route = routed(torch.float64, checkpointing)
    order, sizes = in_order(CASES[case])
    with route.using(sizes):
        loss = row_losses(model, TOKENS[order]).mean()
    loss.backward()  # outside of the route: checkpointing brings its own
    expected = reference_gradients(case, torch.float64)
    for key, parameter in adapter_parameters(model).items():
        scale = max(gradient.abs().max() for name, gradient in expected.items() if name[:4] == key[:4])
        assert (parameter.grad - expected[key]).abs().max() <= 1e-12 * max(scale, 1e-3), key
    absent = [key for key in expected if sizes[NAMES.index(key.split("/")[0])] == 0]
    assert all((adapter_parameters(model)[key].grad == 0).all() for key in absent)
    present = [key for key in expected if key not in absent]
    assert present and all(expected[key].abs().max() > 1e-3 for key in present), "gradients that could differ"
    assert all(p.grad is None for n, p in model.named_parameters() if not wire_name(n)), "the base is frozen"


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_own_adapter_and_of_no_other(name):
    model, route = routed()
    order, sizes = in_order(CASES["mixed"])
    with torch.no_grad(), route.using(sizes):
        logits = model(input_ids=TOKENS[order], use_cache=False).logits
    weights = adapter_parameters(model)
    for number, other in enumerate(NAMES):
        rows = order[[CASES["mixed"][row] == number for row in order]]
        ours = logits[[row in rows for row in order]]
        theirs = separate(name, weights)(input_ids=TOKENS[rows], use_cache=False).logits
        difference = (ours - theirs).abs().amax((1, 2)).detach()
        assert (difference < 1e-4).all() if name == other else (difference > 1e-3).all(), (other, difference)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_several_forward_passes_before_the_backward_pass(checkpointing):
    """As over shared prefixes. With checkpointing the backward pass goes through all of them again."""
    model, route = routed(torch.float64, checkpointing)
    order, _ = in_order(CASES["mixed"])
    agents = torch.tensor(CASES["mixed"])[order]
    total = 0.0
    for part in (slice(0, 3), slice(3, 4), slice(4, 8)):
        with route.using(torch.bincount(agents[part], minlength=len(NAMES)).tolist()):
            total = total + row_losses(model, TOKENS[order][part]).sum() / len(TOKENS)
    total.backward(retain_graph=True)
    once = {key: parameter.grad.clone() for key, parameter in adapter_parameters(model).items()}
    for key, gradient in reference_gradients("mixed", torch.float64).items():
        assert torch.allclose(once[key], gradient, atol=1e-12), key
    total.backward()
    assert all(torch.equal(p.grad, 2 * once[key]) for key, p in adapter_parameters(model).items())


def test_packed_rows_are_routed_by_token():
    model, route = routed(torch.float64)
    order, sizes = in_order(CASES["mixed"])
    rows, length = TOKENS.shape
    positions = torch.arange(length).repeat(rows)[None]
    with torch.no_grad():
        with route.using(sizes):
            padded = model(input_ids=TOKENS[order], use_cache=False).logits
        with route.using([size * length for size in sizes], dim=1):
            packed = model(input_ids=TOKENS[order].reshape(1, -1), position_ids=positions, use_cache=False).logits
    assert torch.allclose(packed.view_as(padded), padded, atol=1e-11)


def test_disabled_adapters_leave_the_base_and_come_back():
    model, route = routed()
    with torch.no_grad():
        plain = base_model()(input_ids=TOKENS, use_cache=False).logits
        with model.disable_adapter():
            assert torch.equal(model(input_ids=TOKENS, use_cache=False).logits, plain)
        with route.using([8, 0, 0]):
            assert (model(input_ids=TOKENS, use_cache=False).logits - plain).abs().max() > 1e-3
    trained = {key for key, parameter in adapter_parameters(model).items() if parameter.requires_grad}
    assert trained == set(adapter_parameters(model)), "all adapters train again"


def test_a_fresh_adapter_changes_nothing_and_depends_on_its_name_and_the_seed_only():
    def fresh(names, seed):
        torch.manual_seed(len(names))  # whatever else the process drew
        model, route = add_adapters(base_model(), AdapterOptions(names, rank=4, alpha=8), seed)
        return model, route, adapter_parameters(model)

    model, route, all_three = fresh(NAMES, 1)
    with torch.no_grad(), route.using([3, 3, 2]):
        logits = model(input_ids=TOKENS, use_cache=False).logits
    assert torch.equal(logits, base_model()(input_ids=TOKENS, use_cache=False).logits)
    _, _, two = fresh(("answerer", "rewriter"), 1)
    assert len(two) * 3 == len(all_three) * 2 == 2 * 3 * 2 * 7 * 2  # of 2 blocks, 7 layers, A and B
    assert all(torch.equal(value, all_three[key]) for key, value in two.items())
    _, _, other = fresh(NAMES, 2)
    key = "rewriter/model.layers.0.self_attn.q_proj.lora_A.weight"
    assert not torch.equal(other[key], all_three[key])
    assert not torch.equal(all_three[key.replace("rewriter", "answerer")], all_three[key])


def test_a_forward_pass_without_a_route_or_with_a_wrong_one_is_refused():
    model, route = routed()
    with pytest.raises(ValueError, match="Route.using"):
        model(input_ids=TOKENS, use_cache=False)
    with pytest.raises(ValueError, match="does not fit 7 rows"), route.using([3, 3, 1]):
        model(input_ids=TOKENS, use_cache=False)
    with pytest.raises(ValueError, match="does not fit 8 tokens"), route.using([3, 3, 2], dim=1):
        model(input_ids=TOKENS, use_cache=False)
    with route.using([8, 0, 0]):
        flat = torch.zeros(8, 64)
        with pytest.raises(ValueError, match="exclude_modules"):
            model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")(flat)
    with pytest.raises(ValueError, match="Route.using"):  # again: a route ends with its block
        model(input_ids=TOKENS, use_cache=False)


def test_targets_other_than_linear_layers_are_refused():
    with pytest.raises(ValueError, match="embed_tokens, which is Embedding"):
        add_adapters(base_model(), AdapterOptions(NAMES, 4, 8, ["q_proj", "embed_tokens"]))


def config(**changes) -> SimpleNamespace:
    """What `AdapterOptions.from_config` reads of verl's HFModelConfig."""
    values = {
        "lora": {"adapters": list(NAMES), "merge": False, "dropout": 0.0},
        "lora_rank": 4,
        "lora_alpha": 8,
        "target_modules": "all-linear",
        "exclude_modules": None,
        "lora_adapter_path": None,
        "target_parameters": None,
        "enable_activation_offload": False,
    }
    return SimpleNamespace(**values | changes)


@pytest.mark.parametrize("given", [{"use_rslora": True}, {"alpha_pattern": {"q_proj": 64}}])
def test_a_start_that_was_trained_with_another_factor_is_refused(tmp_path, given):
    config = {"r": OPTIONS.rank, "lora_alpha": OPTIONS.alpha, "use_rslora": False, "alpha_pattern": {}}
    start = dataclasses.replace(OPTIONS, start={NAMES[0]: str(tmp_path)})
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    check_start(start)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | given))
    with pytest.raises(ValueError, match=f"{NAMES[0]}=.* has {[*given][0]}=.*another factor.*Remedy"):
        check_start(start)


def test_options_are_read_from_the_model_section():
    assert AdapterOptions.from_config(config()) == OPTIONS
    section = OmegaConf.create({key: value for key, value in vars(config()).items() if key != "target_parameters"})
    OmegaConf.set_struct(section, True)
    assert AdapterOptions.from_config(section) == OPTIONS
    assert AdapterOptions.from_config(config(lora={})) is AdapterOptions.from_config(config(lora=None)) is None
    assert OPTIONS.scaling == 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": {"adapters": ["a", "a"]}}, "different names"),
        ({"lora": {"adapters": ["a.b"]}}, "letters, digits"),
        ({"lora": {"adapters": ["a"], "merge": True}}, "Remedy: lora.merge=false"),
        ({"lora": {"adapters": ["a"], "dropout": 0.1}}, "Remedy: lora.dropout=0"),
        ({"lora_rank": 0}, "lora_rank of at least 1"),
        ({"lora_adapter_path": "somewhere"}, "Remedy: lora_adapter_path=null"),
        ({"target_parameters": ["experts"]}, "Remedy: target_parameters=null"),
        ({"enable_activation_offload": True}, "Remedy: enable_activation_offload=false"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AdapterOptions.from_config(config(**changes))
