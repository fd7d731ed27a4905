"""`mas_separate_async`: what follows from it, what is refused, and a step that trains in parts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.trainer.test_agent_loop import Queue
from tests.trainer.test_recipes import RECIPES, composed, examined
from tests.trainer.test_trajectories import Manager, recorder
from verl_ext.engine.fsdp.copies import CopyingActor
from verl_ext.mas.tool_calls import Cost
from verl_ext.observe.question_stats import QuestionStats
from verl_ext.trainer import step as steps
from verl_ext.trainer.config import optimiser_steps
from verl_ext.trainer.preflight import checks, machine
from verl_ext.trainer.state import trajectory_recorder, waiting
from verl_ext.trainer.step import Step, after_rollouts, merged

MODE = "trainer.v1.trainer_mode=mas_separate_async"
OWN, SAMPLER, ROLLOUT = "trainer.v1.separate_async", "trainer.v1.sampler", "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize("recipe", ["mhgpo", *(recipe for recipe in RECIPES if recipe.endswith("_tiny"))])
def test_one_setting_is_enough_for_every_recipe(recipe):
    assert examined(f"+recipe={recipe}", MODE).problems == []


def test_what_follows_from_the_mode():
    for overrides, backend in ((["+recipe=mhgpo_tiny"], "object_store"), (["+recipe=mhgpo"], "nccl")):
        plain, config = composed(*overrides), composed(*overrides, MODE)
        parts, own = config.actor_rollout_ref, config.trainer.v1.separate_async
        assert (parts.hybrid_engine, parts.rollout.nnodes, own.parameter_sync_step) == (False, 1, 1)
        assert parts.rollout.checkpoint_engine.backend == backend
        stock = plain.actor_rollout_ref
        assert (stock.hybrid_engine, stock.rollout.nnodes, stock.rollout.checkpoint_engine.backend) == (
            *(True, 0, "naive"),
        )
        assert plain.trainer.v1.separate_async.parameter_sync_step == 4, "verl's, so older runs continue"
    tiny = composed("+recipe=mhgpo_tiny", MODE, f"{ROLLOUT}.n_gpus_per_node=2")
    assert tiny.ray_kwargs.ray_init.num_gpus == 3
    assert machine.logical_cpus(tiny)["rollouts' ranks (2 each)"] == 4
    with pytest.raises(ValueError, match="num_cpus=9 is too small; 10 are taken: rollouts' ranks .2 each. 4"):
        machine.check_logical_cpus(
            composed("+recipe=mhgpo_tiny", MODE, f"{ROLLOUT}.n_gpus_per_node=2", "ray_kwargs.ray_init.num_cpus=9")
        )


def test_check_says_how_far_the_rollouts_are_ahead():
    facts = dict(examined("+recipe=mhgpo_tiny", MODE, f"{SAMPLER}.max_off_policy_threshold=3").facts)
    assert facts["asynchronous"].startswith("32 questions ahead; rows are begun at most 2 updates before (others are")
    assert facts["runs on"].startswith("1 machine with 1 CPU rank, 1 CPU rank for the rollouts; 1 hf engine")
    weighed = [f"{CORRECTION}.bypass_mode=false", f"{CORRECTION}.rollout_is=token"]
    facts = dict(examined("+recipe=mhgpo_tiny", MODE, *weighed).facts)
    assert facts["asynchronous"].endswith("importance weights per token, at most 2.0")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mas.deterministic=true"], "needs trainer.v1.trainer_mode=mas_sync: under mas_separate_async"),
        ([f"{ROLLOUT}.nnodes=0"], "needs machines for the rollouts .given: .*nnodes=0"),
        ([f"{ROLLOUT}.n_gpus_per_node=3", f"{ROLLOUT}.tensor_model_parallel_size=2"], "3 ranks .* engines of 2"),
        ([f"{ROLLOUT}.checkpoint_engine.backend=naive"], "Remedy: .*backend=object_store"),
        (["actor_rollout_ref.hybrid_engine=true"], "Remedy: actor_rollout_ref.hybrid_engine=false"),
        ([f"{OWN}.parameter_sync_step=5"], "parameter_sync_step=5 must divide data.train_batch_size=32"),
        ([f"{OWN}.parameter_sync_step=2"], "must divide the 1 optimiser step.*smaller ppo_mini_batch_size"),
        ([f"{SAMPLER}.max_off_policy_threshold=0"], "max_off_policy_threshold=0 must be a whole number of at least 1"),
        ([f"{SAMPLER}.max_off_policy_threshold=1"], "num_warmup_batches=0 or less, or .*max_off_policy_threshold=2"),
        ([f"{OWN}.num_warmup_batches=8"], "num_warmup_batches=7 or less, or .*max_off_policy_threshold=9"),
        ([f"{CORRECTION}.rollout_is=token"], "rollout_is=token has no effect with .*bypass_mode=true"),
        (["+base=lora", "actor_rollout_ref.model.lora.merge=false"], "sends the frozen base and never the"),
    ],
)
def test_what_does_not_go_with_it_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        checks.check_multi_agent(composed("+recipe=mhgpo_tiny", MODE, *overrides))


def test_the_optimiser_steps_of_a_training_step_are_shared_out_to_its_parts():
    """parameter_sync_step times too many, if each part took all of them."""
    overrides = ["+recipe=mhgpo_tiny", "actor_rollout_ref.actor.ppo_mini_batch_size=8"]
    for mode, expected in (([], 4), ([MODE], 4), ([MODE, f"{OWN}.parameter_sync_step=2"], 2)):
        config = composed(*overrides, *mode)
        assert optimiser_steps(config, config.actor_rollout_ref.actor) == expected
    facts = dict(examined(*overrides, MODE, f"{OWN}.parameter_sync_step=4").facts)
    assert facts["steps"].startswith("32 questions and 4 optimiser steps each")


# --- parts of a step --------------------------------------------------------------------------------------------------


def question(index, reward):
    cost = vars(Cost())
    return QuestionStats(
        index, rewards=[reward], quantities=[{}], trajectories=1, cost=cost, episodes=[f"episode {index}"]
    )


def part(rows, index, reward, **metrics):
    stats = [question(index, reward)]
    own = {"update/rows": rows, "doctor/version_lag_max": rows, "budget/questions": index} | metrics
    return Step(7, [f"q{index}"], [], stats, stats, own, idle=rows == 0)


def test_the_metrics_of_a_step_are_those_of_its_parts():
    parts = [part(3, 1, 0.0, **{"groups/count": 2, "groups/size": 1.0}), part(1, 2, 1.0, **{"groups/count": 5})]
    parts[1].metrics["groups/size"] = 5.0
    for one, decisions in zip(parts, (6, 2), strict=True):
        one.metrics["head/router/decisions"] = decisions
    whole = merged(parts)
    assert whole.metrics["head/router/decisions"] == 8
    found = {name: whole.metrics[name] for name in ("update/rows", "groups/count", "groups/size", "budget/questions")}
    assert found == {"update/rows": 4, "groups/count": 7, "groups/size": 2.0, "budget/questions": 2}
    assert whole.metrics["doctor/version_lag_max"] == 3 and whole.metrics["system/reward"] == 0.5
    assert (whole.uids, whole.idle, merged(parts[:1])) == (["q1", "q2"], False, parts[0])


def test_the_memory_learns_once_of_all_parts(monkeypatch):
    learned = []
    memory = SimpleNamespace(learn=lambda number, episodes: learned.append((number, list(episodes))) or {})
    heads = SimpleNamespace(learn=lambda number, stats: {})
    budget = SimpleNamespace(spend=lambda metrics: False, exhausted=False)
    recorder = SimpleNamespace(collect=lambda *args, **kwargs: None)
    off = SimpleNamespace(add_metrics=lambda metrics: None)
    state = SimpleNamespace(
        memory=memory, heads=heads, budget=budget, trajectories=recorder, algorithm=None, oversampling=off
    )
    for name in ("order", "drop_idle"):
        monkeypatch.setattr(steps.row_selection, name, lambda batch: batch)
    for name in ("regroup", "select"):
        monkeypatch.setattr(steps.row_selection, name, lambda batch, *_: (batch, {}))
    monkeypatch.setattr(steps.row_selection, "is_idle", lambda batch: False)
    mas = SimpleNamespace(failure=SimpleNamespace(max_left_out=0.5), sampling=SimpleNamespace(group_size=4), seed=1)
    parts = []
    for index in (1, 2):
        manager = SimpleNamespace(
            dropped=lambda uids: [], take_tool_counts=dict, take_stats=lambda uids, index=index: [question(index, 0.0)]
        )
        batch = SimpleNamespace(tags=[{"mas": f'{{"question": "q{index}"}}'}])
        parts.append(after_rollouts(7, batch, state, mas, manager, parts, last=index == 2)[0])
    assert learned == [(7, ["episode 1", "episode 2"])]


def test_the_log_numbers_the_questions_of_all_parts_and_keeps_the_rows_of_all(tmp_path, monkeypatch):
    log, manager, written = recorder(tmp_path, train_questions=3), Manager(), []
    columns = {name: [1.0] for name in trajectory_recorder.COLUMNS}
    monkeypatch.setattr(trajectory_recorder, "_columns", lambda batch, rows: {row: columns for row in rows})
    monkeypatch.setattr(log, "_write_rows", lambda step, rows: written.append([row["question"] for row in rows]))
    for uids in (["a", "b"], ["c", "d"]):
        log.collect(1, uids, manager)
        tags = [
            {"question": uid, "calls": [[0, 0, 1]], "order": ["s", 0, 0, 0], "group": f"{uid}/g", "agent": "x"}
            for uid in uids
        ]
        monkeypatch.setattr(trajectory_recorder, "unpack", lambda given: given)
        batch = SimpleNamespace(tags=tags, keys=uids, partition_id="train")
        log.write_training(1, batch, torch.ones(len(tags)))
    assert [count for _, count in manager.asked] == [3, 1]
    assert written == [[0, 1], [0, 1, 2]]


def test_the_weights_from_before_a_step_stay_when_the_weights_change():
    """verl's copy is the weights themselves on the CPU: π_old would be π."""
    worker = CopyingActor.__new__(CopyingActor)
    module = torch.nn.Linear(2, 2)
    worker.config = SimpleNamespace(actor=SimpleNamespace(strategy="fsdp2"))
    worker.actor = SimpleNamespace(engine=SimpleNamespace(module=module))
    kept = {name: (parameter.detach().cpu(), None) for name, parameter in module.named_parameters()}
    worker._strategy_handlers = (lambda module: (kept, "spec"), None)
    worker.save_model_to_cpu(0)
    before = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.add_(1.0)
    assert torch.equal(kept["weight"][0], module.weight), "of verl's function"
    assert torch.equal(worker.cpu_saved_models[0][0]["weight"][0], before)


def test_rows_of_the_step_that_was_saved_leave_the_restored_queue(monkeypatch):
    queue = Queue(a={"is_prompt": True, "status": "finished"}, a_0_0={}, b={"is_prompt": True, "status": "running"})
    queue.tags |= {"trained_0_0": {}, "pad7_0_0": {"is_padding": True}}
    queue.kv_clear = lambda keys, partition_id: [queue.tags.pop(key) for key in keys]
    monkeypatch.setattr(waiting, "tq", queue)
    assert waiting.clear_trained() == 2 and set(queue.tags) == {"a", "a_0_0", "b"}
    monkeypatch.setattr(waiting, "tq", SimpleNamespace(kv_list=lambda partition: None))
    assert waiting.clear_trained() == 0, "there is no queue"
