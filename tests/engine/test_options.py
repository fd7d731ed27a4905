"""Options and sampling parameters: defaults, limits, errors that name the remedy."""

from __future__ import annotations

import pytest
from verl.workers.config import RolloutConfig

from verl_ext.engine.hf.options import EngineOptions
from verl_ext.engine.hf.params import SamplingParams, derived_seed


def rollout(**changes) -> RolloutConfig:
    return RolloutConfig(name="hf", prompt_length=100, response_length=50, dtype="float32", **changes)


def test_defaults_come_from_verls_rollout_config():
    assert EngineOptions.from_config(rollout(), 4096) == EngineOptions(256, None, 150, "cpu", "float32")
    assert EngineOptions.from_config(rollout(max_num_seqs=8, max_model_len=99), None).slots == 8
    given = {"slots": 3, "threads": 2, "max_model_len": 64, "device": "meta"}
    options = EngineOptions.from_config(rollout(max_model_len=99, engine_kwargs={"hf": given, "vllm": {"x": 1}}), 64)
    assert options == EngineOptions(3, 2, 64, "meta", "float32")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"thread": 2}, r"\['thread'\].*allowed: \['slots', 'threads', 'max_model_len', 'device', 'kv_cache_gb'\]"),
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"max_model_len": 500}, "max_position_embeddings=400"),
    ],
)
def test_wrong_options(given, message):
    with pytest.raises(ValueError, match=message):
        EngineOptions.from_config(rollout(engine_kwargs={"hf": given}), 400)


def test_sampling_parameters_as_verls_agent_loop_sends_them():
    sent = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True, "seed": None}
    assert SamplingParams.from_mapping(sent, 33) == SamplingParams(max_tokens=33)
    more = {"max_new_tokens": 5, "top_k": 0, "stop_token_ids": [7, 8], "seed": 2**70, "ignore_eos": False}
    assert SamplingParams.from_mapping(more, 33, ignore_eos=True) == SamplingParams(
        max_tokens=5, seed=2**70, stop_token_ids=(7, 8)
    )


@pytest.mark.parametrize(("sent", "used"), [(0, 0.0), (1e-40, 0.0), (9e-6, 0.0), (1e-5, 1e-5), (0.7, 0.7)])
def test_temperatures_that_would_overflow_are_greedy(sent, used):
    assert SamplingParams.from_mapping({"temperature": sent}, 8).temperature == used


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"top_k": -2}, "top_k must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"min_p": 0.1}, "min_p=0.1 is not supported"),
    ],
)
def test_wrong_sampling_parameters(sent, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams.from_mapping(sent, 8)


def test_derived_seeds_depend_on_every_part_and_nothing_else():
    assert derived_seed(42, "a/1") == 5881448560747400476  # half of the first 8 bytes of `printf 42/a/1 | sha256sum`
    assert len({derived_seed(s, r) for s in range(10) for r in "abc"}) == 30
