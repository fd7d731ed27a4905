"""Several policies in one run: one alone is today's run, each trains on its own rows, and they resume together.

The runs are deterministic: metrics and weights are compared exactly.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.end_to_end.other_vocabulary import SHIFT, TINY, other_vocabulary
from tests.end_to_end.running import (
    concerns,
    entries,
    environment,
    lasting,
    records,
    run,
    run_again_from,
    saved,
    steps,
    weights,
)
from tests.end_to_end.trajectory_log import check_tokens
from verl_ext.doctor import replay, words_of

FIXED = ["mas.deterministic=true", "trainer.total_training_steps=2", "trainer.save_freq=1"]
SHARD = "model_world_size_1_rank_0.pt"
SPECIALISTS = "question_agent, shop_agent, function_agent, math_agent"
OPTIMISER = "optim_world_size_1_rank_0.pt"


def policy(name: str, agents: str, model: Path = TINY, **more: str) -> str:
    """The override that adds a policy."""
    rest = "".join(f", {key}: {value}" for key, value in more.items())
    return f"+mas.policies.{name}={{model: {{path: {model}}}, agents: [{agents}]{rest}}}"


def weights_of(folder: Path, step: int, name: str, part: str = "actor") -> dict[str, torch.Tensor]:
    state = saved(folder, step, f"{part}/{name}/{SHARD}")
    return {key: getattr(value, "_local_tensor", value) for key, value in state.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_one_policy_is_the_run_without_policies(tmp_path):
    run(tmp_path / "plain", *FIXED)
    run(tmp_path / "one", *FIXED, policy("all", "rewriter, reranker, answerer"))
    for plain, one in zip(entries(tmp_path / "plain"), entries(tmp_path / "one"), strict=True):
        more = {"doctor/unknown_policy": 0.0} if plain["step"] else {}
        assert lasting(one) == lasting(plain) | more
    assert same(weights(tmp_path / "plain", 2), weights_of(tmp_path / "one", 2, "all"))


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return other_vocabulary(tmp_path_factory.mktemp("models") / "other")


@pytest.fixture(scope="module")
def two(other) -> list[str]:
    """Two policies with different vocabularies and learning rates."""
    large = policy("large", "answerer", other, actor="{optim: {lr: 1e-3}}")
    return [*FIXED, policy("small", "rewriter, reranker"), large]


@pytest.fixture(scope="module")
def trained(two, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run(folder, *two)
    return folder


def test_each_policy_trains_on_the_rows_of_its_agents(trained):
    for metrics in steps(trained):
        assert metrics["policies/small/update/rows"] == 64 and metrics["policies/large/update/rows"] == 32
        assert metrics["update/rows"] == 96
        for name in ("small", "large"):
            mine = {key.removeprefix(f"policies/{name}/"): value for key, value in metrics.items()}
            assert mine["actor/grad_norm"] > 0 and mine["update/optimiser_steps"] == 1
            assert mine["doctor/tokens_checked"] == 1 and mine["doctor/unknown_policy"] == 0
            assert mine["doctor/kl_numerical"] < 1e-6
        assert metrics["policies/large/actor/lr"] == 1e-3 and metrics["policies/small/actor/lr"] == 2e-4
    for name in ("small", "large"):
        assert not same(weights_of(trained, 1, name), weights_of(trained, 2, name))


def test_each_policy_speaks_its_own_vocabulary(trained):
    rows = {name: weights_of(trained, 2, name)["model.embed_tokens.weight"].shape[0] for name in ("small", "large")}
    assert rows["large"] == rows["small"] + SHIFT
    _, calls = records(trained)
    check_tokens(calls)
    train = [call for call in calls if call["phase"] == "train"]
    assert {call["agent"] for call in train} == {"rewriter", "reranker", "answerer"}
    assert all("".join(call["tokens"]) == call["output"] for call in calls)
    assert steps(trained)[-1]["val/system/f1"] > 0.1, "an answerer that reads another one's tokens knows nothing"


def test_the_checkpoint_has_a_folder_for_each(trained):
    place = trained / "runs" / "mhgpo_tiny" / "global_step_2"
    assert json.loads((place / "complete").read_text())["weights"] == ["actor/small", "actor/large"]
    assert json.loads((place / "actor" / "policies.json").read_text())["large"]["agents"] == ["answerer"]
    for name in ("small", "large"):
        assert (place / "actor" / name / "huggingface" / "tokenizer.json").exists()


def test_a_resumed_run_is_bit_identical(two, trained, tmp_path):
    run_again_from(1, trained, tmp_path, *two)
    for again, once in zip(entries(tmp_path), entries(trained), strict=True):
        assert lasting(again) == lasting(once), once["step"]
    for name in ("small", "large"):
        assert same(weights_of(tmp_path, 2, name), weights_of(trained, 2, name))


def test_the_doctor_recomputes_the_rows_of_each_policy(trained):
    folder = trained / "runs" / "mhgpo_tiny"
    page = words_of(folder)
    assert "Policy small: trained in 2 of 2 steps" in page and concerns(page) == []
    for step in (1, 2):  # with the models, and with the checkpoint of step 1
        found = re.search(r"largest difference from the rollout (\S+)", replay(folder, step, None, None))
        assert float(found[1]) < 1e-3


def test_the_checkpoint_is_evaluated_by_its_policies(trained):
    checkpoint = "runs/mhgpo_tiny/global_step_2"
    settings = ["+recipe=mhgpo_tiny", f"evaluate.model={checkpoint}", "evaluate.max_questions=16"]
    words = [sys.executable, "-m", "verl_ext.evaluate", *settings, "evaluate.output=answers"]
    done = subprocess.run(words, cwd=trained, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in (trained / "answers" / "trajectories.jsonl").read_text().splitlines()]
    scores = [trajectory["metrics"]["f1"] for answer in answers for trajectory in answer["trajectories"]]
    assert len(scores) == 16 and sum(scores) / 16 > 0.1, "an answerer that reads another one's tokens knows nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, strategy, small, large",
    [
        ("joyagents_tiny", "nmc", "master, summary, intention", SPECIALISTS),
        ("mhgpo_tiny", "rr", "rewriter, reranker", "answerer"),
    ],
)
def test_other_recipes_and_strategies_train_each_policy_on_its_agents(recipe, strategy, small, large, tmp_path):
    """Rows that the algorithm drops, agents that never train, a fork at an agent of either policy: one step of each."""
    one_step = ["trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    run(
        tmp_path,
        *[*one_step, "trainer.save_freq=-1", "data.train_batch_size=4", "mas.deterministic=true"],
        f"mas.sampling.strategy={strategy}",
        f"+mas.policies.small={{agents: [{small}]}}",
        f"+mas.policies.large={{agents: [{large}], actor: {{optim: {{lr: 1e-3}}}}}}",
        recipe=recipe,
    )
    (metrics,), (_, calls) = steps(tmp_path, recipe), records(tmp_path, recipe)
    for name, own in (("small", small.split(", ")), ("large", large.split(", "))):
        mine = [call for call in calls if call["agent"] in own]
        assert {call["policy"] for call in mine} == {name}
        rows = metrics[f"policies/{name}/update/rows"] - metrics[f"policies/{name}/update/padding_rows"]
        assert rows == sum(call["trained"] for call in mine) > 0, "every question of the step is in the log"
        assert metrics[f"policies/{name}/actor/grad_norm"] > 0
        assert metrics[f"policies/{name}/doctor/tokens_checked"] == 1
        assert metrics[f"policies/{name}/doctor/unknown_policy"] == 0


@pytest.mark.slow
def test_a_frozen_policy_of_the_same_model_is_an_agent_that_does_not_train(tmp_path):
    run(tmp_path / "single", *FIXED, "++mas.agents.answerer.trained=false")
    run(
        tmp_path / "frozen",
        *FIXED,
        policy("trains", "rewriter, reranker"),
        policy("stays", "answerer", frozen="true"),
    )
    single, frozen = steps(tmp_path / "single")[0], steps(tmp_path / "frozen")[0]
    assert frozen["policies/stays/update/rows"] == 0
    for key in ("actor/grad_norm", "actor/pg_loss", "update/rows", "doctor/kl_numerical"):
        assert frozen[f"policies/trains/{key}"] == single[key], key
    assert frozen["system/reward"] == single["system/reward"]
    assert same(weights(tmp_path / "single", 1), weights_of(tmp_path / "frozen", 1, "trains"))
    actor = tmp_path / "frozen" / "runs" / "mhgpo_tiny" / "global_step_2" / "actor"
    assert not (actor / "stays").exists()


@pytest.mark.slow
def test_policies_that_train_in_turn(tmp_path):
    turns = ["mas.deterministic=true", "trainer.total_training_steps=3", "trainer.save_freq=1"]
    first = policy("first", "rewriter, reranker", every="2")
    second = policy("second", "answerer", every="2", from_step="2")
    run(tmp_path, *turns, first, second, "trainer.max_actor_ckpt_to_keep=5")
    for step, metrics in enumerate(steps(tmp_path), 1):
        assert metrics["policies/first/update/optimiser_steps"] == step % 2
        assert metrics["policies/second/update/optimiser_steps"] == 1 - step % 2
    assert same(weights_of(tmp_path, 1, "first"), weights_of(tmp_path, 2, "first"))
    assert not same(weights_of(tmp_path, 2, "first"), weights_of(tmp_path, 3, "first"))
    assert not same(weights_of(tmp_path, 1, "second"), weights_of(tmp_path, 2, "second"))
    assert same(weights_of(tmp_path, 2, "second"), weights_of(tmp_path, 3, "second"))


@pytest.mark.slow
def test_a_lora_of_its_own_rank_beside_a_whole_model(tmp_path):
    ranked = f"{{path: {TINY}, lora_rank: 8, lora_alpha: 16}}"
    run(
        tmp_path,
        "+base=lora",
        "trainer.total_training_steps=2",
        f"+mas.policies.ranked={{model: {ranked}, agents: [rewriter], actor: {{optim: {{lr: 1e-3}}}}}}",
        f"+mas.policies.whole={{model: {{path: {TINY}, lora_rank: 0}}, agents: [reranker]}}",
        policy("stays", "answerer", frozen="true"),
    )
    actor = tmp_path / "runs" / "mhgpo_tiny" / "global_step_2" / "actor"
    assert json.loads((actor / "ranked" / "lora_train_meta.json").read_text())["r"] == 8
    assert any("lora_" in name for name in weights_of(tmp_path, 2, "ranked"))
    assert not any("lora_" in name for name in weights_of(tmp_path, 2, "whole"))
    assert steps(tmp_path)[-1]["policies/ranked/actor/grad_norm"] > 0


@pytest.mark.slow
def test_each_policy_has_a_critic(tmp_path):
    run(
        tmp_path,
        "trainer.total_training_steps=2",
        policy("small", "rewriter, reranker"),
        policy("large", "answerer", critic="{optim: {lr: 1e-4}}"),
        recipe="mappo_tiny",
    )
    for metrics in steps(tmp_path, "mappo_tiny"):
        for name in ("small", "large"):
            assert metrics[f"policies/{name}/critic/grad_norm"] > 0
    assert metrics["policies/large/critic/lr"] == 1e-4 and metrics["policies/small/critic/lr"] == 1e-3
    place = tmp_path / "runs" / "mappo_tiny" / "global_step_2"
    assert all((place / "critic" / name / SHARD).exists() for name in ("small", "large"))
