"""An adapter per agent in one of several policies. The runs are deterministic: metrics and weights compare exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.end_to_end.other_vocabulary import TINY, other_vocabulary
from tests.end_to_end.running import concerns, entries, lasting, run, run_again_from, steps
from tests.end_to_end.test_policies import FIXED, policy, same, weights_of
from verl_ext.doctor import replay, words_of
from verl_ext.evaluate.__main__ import main

ADAPTED = policy("adapted", "rewriter, reranker", per_agent_lora="true", actor="{optim: {lr: 1e-2}}")


def adapters(folder: Path, step: int, policy: str = "") -> dict[str, dict[str, torch.Tensor]]:
    place = folder / "runs" / "mhgpo_tiny" / f"global_step_{step}" / "actor" / policy / "adapters"
    return {own.name: load_file(own / "adapter_model.safetensors") for own in sorted(place.iterdir())}


def test_one_policy_is_the_run_with_an_adapter_per_agent(tmp_path):
    run(tmp_path / "plain", *FIXED, "mas.policy=per_agent_lora")
    run(tmp_path / "one", *FIXED, policy("all", "rewriter, reranker, answerer", per_agent_lora="true"))
    for plain, one in zip(entries(tmp_path / "plain"), entries(tmp_path / "one"), strict=True):
        more = {"doctor/unknown_policy": 0.0} if plain["step"] else {}
        assert lasting(one) == lasting(plain) | more
    plain, one = adapters(tmp_path / "plain", 2), adapters(tmp_path / "one", 2, "all")
    assert plain.keys() == one.keys() == {"rewriter", "reranker", "answerer"}
    assert all(same(plain[name], one[name]) for name in plain)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[str]:
    """A policy with an adapter per agent, and one that trains whole, of another vocabulary."""
    other = other_vocabulary(tmp_path_factory.mktemp("models") / "other")
    everything = "data.val_max_samples=-1"  # fewer would be chosen at random
    return [*FIXED, everything, ADAPTED, policy("whole", "answerer", other, actor="{optim: {lr: 1e-3}}")]


@pytest.fixture(scope="module")
def trained(two, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    run(folder, *two)
    return folder


def test_each_adapter_and_the_other_policy_train_on_their_rows(trained):
    for metrics in steps(trained):
        assert metrics["policies/adapted/update/rows"] == 64 and metrics["policies/whole/update/rows"] == 32
        for name in ("rewriter", "reranker"):
            assert metrics[f"policies/adapted/adapters/{name}/grad_norm"] > 0
        assert metrics["policies/whole/actor/grad_norm"] > 0
        assert metrics["policies/adapted/doctor/unknown_adapter"] == 0
        for name in ("adapted", "whole"):
            assert metrics[f"policies/{name}/doctor/kl_numerical"] < 1e-6, "another adapter's would differ by far"
            assert metrics[f"policies/{name}/doctor/weights_served"] == 1
    before, after = adapters(trained, 1, "adapted"), adapters(trained, 2, "adapted")
    assert after.keys() == {"rewriter", "reranker"}
    assert not any(same(before[name], after[name]) for name in after) and not same(*after.values())
    assert not same(weights_of(trained, 1, "whole"), weights_of(trained, 2, "whole"))
    assert all("lora_" in name for name in weights_of(trained, 2, "adapted")), "the base is not saved"


def test_a_resumed_run_is_bit_identical(two, trained, tmp_path):
    run_again_from(1, trained, tmp_path, *two)
    for again, once in zip(entries(tmp_path), entries(trained), strict=True):
        assert lasting(again) == lasting(once), once["step"]
    resumed, once = adapters(tmp_path, 2, "adapted"), adapters(trained, 2, "adapted")
    assert all(same(resumed[name], once[name]) for name in once)
    assert same(weights_of(tmp_path, 2, "whole"), weights_of(trained, 2, "whole"))


def test_an_evaluation_of_the_checkpoint_gives_what_training_validated(trained, monkeypatch):
    """By another adapter, or by the base alone, an agent would answer otherwise: the first validation was by that."""
    monkeypatch.chdir(trained)
    checkpoint = "evaluate.model=runs/mhgpo_tiny/global_step_2"
    assert main(["+recipe=mhgpo_tiny", "evaluate.output=played", checkpoint]) == 0
    (source,) = json.loads(Path("played/results.json").read_text())["data"].values()
    first, *_, last = (entry["metrics"] for entry in entries(trained))
    names = ("em", "f1", "acc")
    validated = [last[f"val/system/{name}"] for name in names]
    assert [source["metrics"][name]["mean"] for name in names] == pytest.approx(validated, abs=1e-6)
    assert validated != [first[f"val/system/{name}"] for name in names]


def test_the_doctor_tells_the_adapters_and_does_not_recompute_them(trained):
    folder = trained / "runs" / "mhgpo_tiny"
    assert "which it trains" in words_of(folder) and concerns(words_of(folder)) == []
    assert "not recomputed" in replay(folder, 2, None, None)


@pytest.mark.slow
def test_beside_a_frozen_policy_adapters_learn_as_beside_an_agent_that_does_not_train(tmp_path):
    rate = "actor_rollout_ref.actor.optim.lr=1e-2"
    run(tmp_path / "single", *FIXED, "mas.policy=per_agent_lora", "++mas.agents.answerer.trained=false", rate)
    run(tmp_path / "frozen", *FIXED, ADAPTED, policy("stays", "answerer", TINY, frozen="true"))
    single, frozen = steps(tmp_path / "single")[-1], steps(tmp_path / "frozen")[-1]
    assert frozen["policies/stays/update/rows"] == 0 and frozen["val/system/f1"] == single["val/system/f1"]
    for key in ("actor/grad_norm", "actor/kl_loss", "adapters/rewriter/grad_norm"):
        assert frozen[f"policies/adapted/{key}"] == single[key], key
    alone, beside = adapters(tmp_path / "single", 2), adapters(tmp_path / "frozen", 2, "adapted")
    assert alone.keys() == beside.keys() and all(same(alone[name], beside[name]) for name in alone)
    assert not (tmp_path / "frozen" / "runs" / "mhgpo_tiny" / "global_step_2" / "actor" / "stays").exists()
