"""The Smurfs: sub-tasks in branches, decisions among tools, and ToolPO over trajectories."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

import pytest

from tests.end_to_end.running import entries, run, seen, steps
from verl_ext.engine.fsdp.masked_logits import ALLOWED

pytestmark = pytest.mark.slow
RECIPE = "smurfs_tiny"
SMALL = ["mas.workflow._target_=tests.end_to_end.watched.Team", "data.train_batch_size=4", "trainer.save_freq=-1"]
ALONE = ("planner", "final")
IN_TASKS = ("thought", "action", "arguments", "answer", "verifier")


def check_decision(row: dict[str, Any]) -> None:
    """The mask of a choice is where there was one: with two allowed tokens at least, of which the row knows."""
    pairs = list(zip(row[ALLOWED][::2], row[ALLOWED][1::2], strict=True))
    several = {place for place, _ in pairs}
    assert all(sum(place == other for other, _ in pairs) > 1 for place in several)
    assert row["decides"] and several == {place for place, on in enumerate(row["response_mask"]) if on}
    assert 0 < len(several) <= row["response_len"]


def test_mhgpo_trains_every_agent_of_every_sub_task(tmp_path):
    """Fork on first: four trajectories of each of four questions, grouped by sub-task, agent and turn."""
    run(tmp_path, *SMALL, "data.val_max_samples=8", "trainer.total_training_steps=2", recipe=RECIPE)
    log = {entry["step"]: entry["metrics"] for entry in entries(tmp_path, RECIPE)}
    assert sorted(log) == [0, 1, 2] and all(0.0 <= log[step]["val/system/success"] <= 1.0 for step in (0, 2))
    for step, watched in enumerate(seen(tmp_path, RECIPE), 1):
        metrics, rows = log[step], watched["rows"]
        actor = {name: value for name, value in metrics.items() if name.startswith("actor/")}
        assert len(actor) > 5 and all(math.isfinite(value) for value in actor.values()), actor
        # π_old is what the engine sampled with, choices among their tokens; the trainer's differs by rounding.
        assert abs(metrics["actor/ppo_kl"]) < 1e-5 and metrics["actor/grad_norm"] > 0
        assert metrics["update/rows"] == len(rows) and metrics["sampling/failed_trajectories"] == 0
        groups = defaultdict(set)
        for row in rows.values():
            question, *scope, agent, turn = row["group"].split("/")
            assert question == row["question"] and agent == row["agent"] and int(turn) >= 0
            assert agent in (IN_TASKS if scope else ALONE)
            assert not scope or re.fullmatch(r"task[0-5]", *scope)
            assert row["trajectory"] not in groups[row["group"]], "a trajectory has one call at a place"
            groups[row["group"]].add(row["trajectory"])
            if row["agent"] == "action":
                check_decision(row)
            else:
                assert not row["decides"] and set(row[ALLOWED]) == {-1} and all(row["response_mask"])
        assert len(groups) == metrics["groups/count"]
        sizes = {group.split("/")[1]: len(members) for group, members in groups.items() if group.count("/") == 2}
        assert sizes == {"planner": 4, "final": 4}, "agents that every trajectory has"
        assert {row["agent"] for row in rows.values()} == {*ALONE, *IN_TASKS}
        decided = [row["response_mask"] for row in rows.values() if row["agent"] == "action"]
        assert 0 < len(decided) <= metrics["agents/action/calls"], "where one tool was left there was no choice"
        assert any(0 in mask for mask in decided), "behind the token that tells the tools apart nothing is chosen"


def test_toolpo_credits_the_calls_of_tools_apart(tmp_path):
    """Eqs. 5 to 7: a trajectory's success on all its tokens, its correct calls on those of its tool calls."""
    few = ["trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    run(tmp_path, *SMALL, "+base=toolpo", *few, recipe=RECIPE)
    (metrics,), (watched,) = steps(tmp_path, RECIPE), seen(tmp_path, RECIPE)
    rows = watched["rows"]
    trajectories = {row["trajectory"]: row for row in rows.values()}
    questions = defaultdict(list)
    for row in trajectories.values():
        questions[row["question"]].append(row["metrics"])
    assert metrics["system/correct_calls"] > 0 and metrics["actor/grad_norm"] > 0
    apart = 0
    for row in rows.values():
        others, mine = questions[row["question"]], row["metrics"]
        success, calls = (
            mine[name] - sum(one[name] for one in others) / len(others) for name in ("success", "correct_calls")
        )
        acts = {place for start, stop in row["actions"] for place in range(start, stop)}
        assert bool(acts) == (row["agent"] in ("action", "arguments"))
        for place, (on, advantage) in enumerate(zip(row["response_mask"], row["advantages"], strict=True)):
            expected = (success + (calls if place in acts else 0.0)) if on else 0.0
            assert advantage == pytest.approx(expected, abs=1e-6)
            apart += on and place in acts and advantage != pytest.approx(success, abs=1e-6)
    assert apart > 0
