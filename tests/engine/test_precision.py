"""`auto` as the float type: one measurement for trainer and rollout engine, settled before anything reads it."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.test_recipes import composed
from verl_ext.engine import precision
from verl_ext.trainer.policies.settings import policy_configs
from verl_ext.trainer.preflight.checks import check_multi_agent
from verl_ext.trainer.run_callback import RunCallback


@pytest.fixture
def machine(monkeypatch):
    """Sets how many times as fast as float32 bfloat16 is on this machine."""

    def gains(gain: float) -> None:
        seconds = {torch.float32: 1.0, torch.bfloat16: 1 / gain}
        monkeypatch.setattr(precision, "_seconds", lambda rows, dtype: seconds[dtype])

    return gains


@pytest.mark.parametrize(
    ("gain", "chosen", "why"),
    [(2.0, "bfloat16", "2.0 times as fast"), (0.25, "float32", "4.0 times slower"), (1.1, "float32", "1.1 times as")],
)
def test_bfloat16_is_taken_where_it_is_faster(machine, gain, chosen, why):
    machine(gain)
    found = precision.choose("cpu")
    assert found.dtype == chosen and why in found.reason
    assert precision.choose("cuda").dtype == "bfloat16"


@pytest.mark.parametrize(("gain", "chosen"), [(2.0, "bfloat16"), (0.3, "float32")])
def test_trainer_and_engine_get_the_same_type_before_the_job_starts(machine, monkeypatch, gain, chosen):
    machine(gain)
    monkeypatch.setattr("verl_ext.engine.preload.start", lambda *_: None)
    config = composed("+recipe=mhgpo_real")
    callback = RunCallback()
    callback.on_run_start(config)
    parts = config.actor_rollout_ref
    found = {part.fsdp_config.mixed_precision.param_dtype for part in (parts.actor, parts.ref)} | {parts.rollout.dtype}
    assert found == {chosen} and callback.float_type.dtype == chosen
    assert parts.actor.fsdp_config.model_dtype == "fp32"


def test_a_type_that_was_asked_for_stays(machine):
    machine(2.0)
    config = composed("+recipe=mhgpo_tiny")
    assert precision.settle_run(config) is None
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"


def test_auto_of_a_policy_is_settled_too(machine):
    machine(2.0)
    own = "actor: {fsdp_config: {mixed_precision: {param_dtype: auto}}}"
    small = f"+mas.policies.small={{agents: [rewriter, reranker], {own}}}"
    config = composed(
        "+recipe=mhgpo_tiny", "mas.sampling.strategy=fof", small, "+mas.policies.large={agents: [answerer]}"
    )
    precision.settle_run(config)
    found = {name: of.actor_rollout_ref.actor.fsdp_config for name, of in policy_configs(config).items()}
    assert found["small"].mixed_precision.param_dtype == "bfloat16"
    assert found["large"].mixed_precision.param_dtype == "fp32"


def test_vllms_auto_is_left_to_it(machine):
    machine(0.3)
    config = composed("+recipe=mhgpo_real", "actor_rollout_ref.rollout.name=vllm")
    precision.settle_run(config)
    assert config.actor_rollout_ref.rollout.dtype == "auto"


def test_adapters_go_with_auto():
    check_multi_agent(composed("+recipe=mhgpo_real", "mas.policy=per_agent_lora"))
