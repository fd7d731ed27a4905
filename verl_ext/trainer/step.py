"""The work of a training step between its rollouts and its first forward pass, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transfer_queue import KVBatchMeta

from verl_ext.observe.metrics import failure_report, reduce_stats
from verl_ext.observe.question_stats import QuestionStats
from verl_ext.tracebacks import users_traceback
from verl_ext.trainer import row_selection
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.row import unpack
from verl_ext.trainer.sections import REWARDED
from verl_ext.trainer.state.run_state import RunState


@dataclass
class Step:
    """The training step under way.

    Attributes:
        number: of the step, from 1.
        uids: the questions that gave rows, sorted.
        dropped: questions that verl has evicted since the step before, as too old to train on.
        stats: what the rollout workers recorded of the questions.
        sampled: the same, with that of dropped questions.
        metrics: ours, logged at the end of the step.
        idle: no row trains: only policy heads do, or an algorithm that drops groups without variance has dropped all.
            The weights are not updated.
        limit_reached: a limit of `mas.budget` was reached in this step.
    """

    number: int = 0
    uids: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    stats: list[QuestionStats] = field(default_factory=list)
    sampled: list[QuestionStats] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    idle: bool = False
    limit_reached: bool = False


def after_rollouts(
    number: int,
    batch: KVBatchMeta,
    state: RunState,
    mas: MasConfig,
    manager: Any,
    before: Sequence[Step] = (),
    last: bool = True,
) -> tuple[Step, KVBatchMeta]:
    """Do this work for one training step, or for a part of one.

    Args:
        number: of the step.
        batch: verl's rows of the step's questions.
        state: what the step changes.
        mas: the configuration.
        manager: of the rollout workers (`rollout.agent_loop.MultiAgentLoopManager`).
        before: the parts of the same step that have trained already.
        last: this is its last part, or all of it.

    Returns:
        The step, or the part, and the rows that train. If none does: one idle row.
    """
    step = Step(number, uids=sorted({tag["question"] for tag in unpack(batch.tags)}))
    collect_statistics(step, manager)
    state.oversampling.add_metrics(step.metrics)
    step.limit_reached = state.budget.spend(step.metrics)
    # The next rollouts see what memories and policy heads learn here. A memory has one change per step.
    if last:
        whole = merged([*before, step])
        check_left_out(whole, mas.failure.max_left_out)
        step.metrics |= state.memory.learn(number, (episode for one in whole.stats for episode in one.episodes))
    step.metrics |= state.heads.learn(number, step.stats)
    # The trajectory log collects its questions now, and is written once advantages are known.
    state.trajectories.collect(number, [*step.uids, *step.dropped], manager, last=state.budget.exhausted)
    batch = row_selection.drop_idle(row_selection.order(batch))
    batch, regrouped = row_selection.regroup(batch, mas.sampling.group_size, mas.seed, number)
    batch, selected = row_selection.select(batch, state.algorithm)
    step.metrics |= regrouped | selected
    step.idle = row_selection.is_idle(batch)
    return step, batch


def check_left_out(step: Step, limit: float) -> None:
    """End a run that would learn from the remains of its trajectories.

    Raises:
        RuntimeError: more than `mas.failure.max_left_out` of the step's trajectories have no reward; with the reasons,
            and the first error of each.
    """
    share = step.metrics.get("sampling/left_out", 0.0)
    if share > limit:
        examples = {failure.status: failure for one in step.stats for failure in reversed(one.errors)}
        reasons = "\n".join(f"  {status}: {failure.trace or failure.error}" for status, failure in examples.items())
        keys = ", ".join(f"mas.failure.{status}=0.0" for status in examples if status in REWARDED)
        reward = f"give such trajectories a reward ({keys}), or " if keys else ""
        raise RuntimeError(
            f"step {step.number}: {share:.0%} of the trajectories could not finish and would not train, more than "
            f"mas.failure.max_left_out={limit:g}. The first of each kind:\n{reasons}\nRemedy: mend the reason; or "
            f"{reward}raise mas.failure.max_left_out"
        )


def collect_statistics(step: Step, manager: Any) -> None:
    """Turn what the rollout workers counted into metrics.

    Dropped questions have cost as much as the others; memories and policy heads do not learn from them.
    """
    step.dropped = manager.dropped(step.uids)
    step.stats = manager.take_stats(step.uids)
    step.sampled = [*step.stats, *(manager.take_stats(step.dropped) if step.dropped else [])]
    step.metrics |= reduce_stats(step.sampled)
    step.metrics["sampling/dropped_questions"] = len(step.dropped)
    step.metrics |= manager.take_tool_counts()


# Metrics of the parts of a step that add up (names or their beginnings), and those of which the last or largest counts;
# of the others the mean over the rows is taken.
SUMMED = (
    *("tools/", "selection/kept", "selection/dropped", "sampling/dropped_questions", "sampling/operations"),
    *("groups/count", "groups/dropped_rows", "update/rows", "update/padding_rows", "update/optimiser_steps"),
    *("update/resting_rows", "doctor/seconds"),
)
LAST, LARGEST = ("budget/", "memory/"), ("doctor/log_prob_difference",)


def merged(parts: Sequence[Step]) -> Step:
    """One step of its parts."""
    if len(parts) == 1:
        return parts[0]
    sampled = [one for part in parts for one in part.sampled]
    rows = [part.metrics.get("update/rows", 0) for part in parts]
    names = dict.fromkeys(name for part in parts for name in part.metrics)
    known = {
        name: [(part.metrics[name], count) for part, count in zip(parts, rows, strict=True) if name in part.metrics]
        for name in names
    }
    return Step(
        parts[0].number,
        uids=[uid for part in parts for uid in part.uids],
        dropped=[uid for part in parts for uid in part.dropped],
        stats=[one for part in parts for one in part.stats],
        sampled=sampled,
        metrics={name: _merged(name, values) for name, values in known.items()}
        | (reduce_stats(sampled) if sampled else {}),
        idle=all(part.idle for part in parts),
        limit_reached=any(part.limit_reached for part in parts),
    )


def _merged(name: str, values: list[tuple[float, float]]) -> float:
    """The value of a step from those of its parts, each with its number of rows."""
    alone = [value for value, _ in values]
    if name.startswith(SUMMED) or name.endswith("/decisions"):  # head/<agent>/decisions
        return sum(alone)
    if name.startswith(LAST):
        return alone[-1]
    if name.endswith(("_max", "/max")) or name.startswith(LARGEST):
        return max(alone)
    if name.endswith(("_min", "/min")):
        return min(alone)
    rows = sum(count for _, count in values)
    return sum(value * count for value, count in values) / rows if rows else sum(alone) / len(alone)


def why_it_stopped(error: Exception, stats: Sequence[QuestionStats], when: str) -> str:
    """Why verl has failed, in words: the reasons of failed trajectories, and the lines of the user's code that raised.

    Args:
        stats: of the questions that were sampled.
        when: begins the sentence.

    Returns:
        "" if the error says all that is known.
    """
    reasons, trace = failure_report(stats), users_traceback(error)
    if reasons and not any(question.rewards for question in stats):
        return f"{when}: none of its trajectories could finish: {reasons}"
    if not reasons and not trace:
        return ""
    others = f"; trajectories that could not finish: {reasons}" if reasons else ""
    traced = f"\n\n{trace}" if trace else ""
    return f"{when} stopped by {type(error).__name__}: {error}{traced or others}"
