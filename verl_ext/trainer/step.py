"""What happens between the rollouts of a training step and its first forward pass, as named steps in their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transfer_queue import KVBatchMeta

from verl_ext.observe.metrics import reduce_stats
from verl_ext.observe.question import QuestionStats
from verl_ext.trainer import row_selection
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
        """All of it for one step.

        Args:
            number: of the step.
            batch: verl's rows of the step's questions.
            manager: of the rollout workers (`rollout.agent_loop.MultiAgentLoopManager`).

        Returns:
            The step, and the rows that train; one row that does not, if none does.
        """
        step = Step(number, uids=sorted({tag["question"] for tag in batch.tags}))
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
        """What the rollout workers counted becomes metrics."""
        step.stats = manager.take_stats(step.uids)
        # Rows that a resumed asynchronous run finds in the queue have no statistics in this process.
        step.metrics |= reduce_stats(step.stats) if step.stats else {}
        step.metrics |= manager.take_tool_counts()

    def spend_budget(self, step: Step) -> None:
        """`mas.budget`: what the step has used counts."""
        step.limit_reached = self.state.budget.spend(step.metrics)

    def update_memories(self, step: Step) -> None:
        """The agents' memories evolve by the step's trajectories; the next rollouts see them."""
        episodes = (episode for question in step.stats for episode in question.episodes)
        step.metrics |= self.state.memory.learn(step.number, episodes)

    def update_heads(self, step: Step) -> None:
        """Policy heads learn from the step's decisions; the next rollouts see them."""
        step.metrics |= self.state.heads.learn(step.number, step.stats)

    def log_trajectories(self, step: Step, manager: Any) -> None:
        """The trajectory log takes the questions that it will write once advantages are known."""
        last = self.state.budget.exhausted
        self.state.trajectories.collect(step.number, step.uids, manager, last=last)

    def order_rows(self, batch: KVBatchMeta) -> KVBatchMeta:
        """By question, trajectory and position, whatever the order of arrival."""
        batch.reorder(sorted(range(len(batch)), key=lambda i: batch.tags[i]["order"]))
        return batch

    def regroup_rows(self, step: Step, batch: KVBatchMeta) -> KVBatchMeta:
        """Groups that reach across the questions of the batch are formed."""
        batch, found = row_selection.regroup(batch, self.mas.sampling.group_size, self.mas.seed, step.number)
        step.metrics |= found
        return batch

    def select_rows(self, step: Step, batch: KVBatchMeta) -> KVBatchMeta:
        """The algorithm says which rows train."""
        batch, found = row_selection.select(batch, self.state.algorithm)
        step.metrics |= found
        return batch
