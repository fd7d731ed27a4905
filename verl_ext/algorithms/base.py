"""Algorithm: the interface of an algorithm to the trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import PrivateAttr

from verl_ext.algorithms.groups import group_normalise
from verl_ext.algorithms.rows import Rows, TokenRows
from verl_ext.mas.types import Trajectory
from verl_ext.settings import Settings

# Changes `Call.reward` of a question's successful trajectories, after the propagation of MHGPO's Eq. 4.
CreditRule = Callable[[Sequence[Trajectory]], None]


@dataclass(frozen=True)
class RowWeights:
    """A choice of `mas.loss.agent_weights`: how much each row weighs in the loss.

    Attributes:
        weigh: rows -> (N,) float64, which turn a mean over rows into the mean that the paper states.
        loss_agg_modes: values of `actor_rollout_ref.actor.loss_agg_mode` under which that is exact.
        source: paper and equation, for messages.
        mean: rows -> the mean of the weights, which the objective implies: every step is checked against it.
    """

    weigh: Callable[[Rows], torch.Tensor]
    loss_agg_modes: tuple[str, ...]
    source: str
    mean: Callable[[Rows], float] = lambda rows: 1.0


@dataclass(frozen=True)
class System:
    """What an algorithm checks before a run starts.

    Attributes:
        workflow: name of the workflow's class.
        agents: names of the agents that train, first to last.
        strategy: `mas.sampling.strategy`.
        reports: names of the quantities that the workflow's `reward` reports, as the workflow declares them.
    """

    workflow: str
    agents: list[str]
    strategy: str
    reports: list[str]


class Algorithm(Settings):
    """From sampled calls to what trains: credit, rows, weights, advantages. The trainer knows no algorithm by name.

    Its fields are its options, which `mas.advantage` sets; a value of the wrong type or out of range is refused before
    the run starts. Only `name` and `advantages` must be there.

    Attributes:
        name: value of `algorithm.adv_estimator` that selects it.
        credit: credit rules that this algorithm brings, each by its key in `mas.credit`: a function from the value
            that is set there to the rule. Available to every algorithm.
        row_weights: choices of `mas.loss.agent_weights` that this algorithm brings. Available to every algorithm.
        reads: quantities that it reads of what the workflow's `reward` reports.
        metrics: meaning of each metric of its own, by name; `measured` holds the values of the step under way.
    """

    name: ClassVar[str]
    credit: ClassVar[dict[str, Callable[[Any], CreditRule]]] = {}
    row_weights: ClassVar[dict[str, RowWeights]] = {}
    reads: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[dict[str, str]] = {}

    _state: dict[str, Any] = PrivateAttr(default_factory=dict)
    _measured: dict[str, float] = PrivateAttr(default_factory=dict)

    @property
    def state(self) -> dict[str, Any]:
        """What it keeps from step to step (of what JSON can hold); the trainer stores it in checkpoints."""
        return self._state

    @property
    def measured(self) -> dict[str, float]:
        """Its own metrics of the step under way; the trainer logs and empties it."""
        return self._measured

    def check(self, system: System) -> None:
        """Check before the run starts that the algorithm suits the system.

        Raises:
            ValueError: the workflow does not report what the algorithm reads.
        """
        missing = [name for name in self.reads if name not in system.reports]
        if missing:
            raise ValueError(
                f"algorithm.adv_estimator={self.name} reads {', '.join(missing)} of a trajectory, but "
                f"{system.workflow} reports only {', '.join(system.reports)}. Remedy: let its `reward` report it and "
                "its `details` name it, as DeepAgent's do (docs/toolpo.md), or adv_estimator=mhgpo"
            )

    def select(self, rows: Rows) -> torch.Tensor | None:
        """Which rows train: (N,) bool, or None for all. The others cost no forward and no backward pass."""
        return None

    def advantages(self, rows: TokenRows, config: Any) -> torch.Tensor:
        """The advantage of every token.

        Args:
            rows: the rows that train, without padding rows.
            config: verl's `algorithm` section.

        Returns:
            (N, T) float32, 0 outside `rows.mask`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `advantages`")

    def head_advantages(self, returns: torch.Tensor, group: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        """The advantages of decisions that a policy head made (`mas.agents.<name>.head`): here R − mean of its group.

        Args:
            returns: (n,) float64, the reward of each decision.
            group: (n,) int64, which decisions were made in the same place of the same question.
            state: what the head keeps from step to step.

        Returns:
            (n,) float64.
        """
        return group_normalise(returns, group, by_std=False)
