"""The work of a training step between its rollouts and its first forward pass, as named methods in their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transfer_queue import KVBatchMeta

from verl_ext.observe.metrics import reduce_stats
from verl_ext.observe.question_stats import QuestionStats
from verl_ext.trainer import row_selection
from verl_ext.trainer.batch import unpack
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.state.run_state import RunState


@dataclass
class Step:
    """The training step under way.

    Attributes:
        number: of the step, from 1.
        uids: the questions that gave rows, sorted.
        stats: what the rollout workers recorded of the questions.
        metrics: ours, logged at the end of the step.
        idle: no row trains (only policy heads do, or no group has any variance): weights are not updated.
        limit_reached: a limit of `mas.budget` was reached in this step.
    """

    number: int = 0
    uids: list[str] = field(default_factory=list)
    stats: list[QuestionStats] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    idle: bool = False
    limit_reached: bool = False


class AfterRollouts:
    """Runs the named steps. `state` keeps what they change; `mas` is the configuration."""

    def __init__(self, state: RunState, mas: MasConfig):
        self.state, self.mas = state, mas

    def run(self, number: int, batch: KVBatchMeta, manager: Any) -> tuple[Step, KVBatchMeta]:
        """Do this work for one training step.

        Args:
            number: of the step.
            batch: verl's rows of the step's questions.
            manager: of the rollout workers (`rollout.agent_loop.MultiAgentLoopManager`).

        Returns:
            The step, and the rows that train. If none does: one placeholder row.
        """
        step = Step(number, uids=sorted({tag["question"] for tag in unpack(batch.tags)}))
        self.collect_statistics(step, manager)
        self.spend_budget(step)
        self.update_memories(step)
        self.update_heads(step)
        self.log_trajectories(step, manager)
        batch = self.order_rows(batch)
        batch = row_selection.drop_idle(batch)
        batch = self.regroup_rows(step, batch)
        batch = self.select_rows(step, batch)
        step.idle = row_selection.is_idle(batch)
        return step, batch

    def collect_statistics(self, step: Step, manager: Any) -> None:
        """Turn what the rollout workers counted into metrics."""
        step.stats = manager.take_stats(step.uids)
        # A resumed asynchronous run finds rows in the queue for which this process has no statistics.
        step.metrics |= reduce_stats(step.stats) if step.stats else {}
        step.metrics |= manager.take_tool_counts()

    def spend_budget(self, step: Step) -> None:
        """Count what the step has used against `mas.budget`."""
        step.limit_reached = self.state.budget.spend(step.metrics)

    def update_memories(self, step: Step) -> None:
        """Update the agents' memories by the step's trajectories; the next rollouts see them."""
        episodes = (episode for question in step.stats for episode in question.episodes)
        step.metrics |= self.state.memory.learn(step.number, episodes)

    def update_heads(self, step: Step) -> None:
        """Train the policy heads on the step's decisions; the next rollouts use them."""
        step.metrics |= self.state.heads.learn(step.number, step.stats)

    def log_trajectories(self, step: Step, manager: Any) -> None:
        """Collect the questions for the trajectory log, which is written once advantages are known."""
        last = self.state.budget.exhausted
        self.state.trajectories.collect(step.number, step.uids, manager, last=last)

    def order_rows(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Sort rows by question, trajectory and position, so that the order of arrival does not matter."""
        tags = unpack(batch.tags)
        batch.reorder(sorted(range(len(batch)), key=lambda i: tags[i]["order"]))
        return batch

    def regroup_rows(self, step: Step, batch: KVBatchMeta) -> KVBatchMeta:
        """Form the groups that reach across questions (strategy `rr`)."""
        batch, found = row_selection.regroup(batch, self.mas.sampling.group_size, self.mas.seed, step.number)
        step.metrics |= found
        return batch

    def select_rows(self, step: Step, batch: KVBatchMeta) -> KVBatchMeta:
        """Drop the rows that the algorithm does not train on."""
        batch, found = row_selection.select(batch, self.state.algorithm)
        step.metrics |= found
        return batch
