"""The base class of multi-agent systems: plain asynchronous Python over `ctx.call` and `ctx.tool`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl_ext.mas.agent import Agent
from verl_ext.mas.types import Task

if TYPE_CHECKING:
    from verl_ext.mas.context import Context
    from verl_ext.rewards.judge import Judge

Score = tuple[float, dict[str, float]]  # a reward, and quantities to log


class Workflow(ABC):
    """A multi-agent system. Subclass it, name the agents, write `run` and `reward`.

    `run` must be deterministic given the results of its calls and tools: take randomness from `ctx.rng`, no clocks.
    That is what lets any call be forked by replaying what came before it; a violation is detected and reported.

    Attributes:
        agents: the roles, by name, first to last. Keyword arguments of `mas.workflow` reach `__init__`.
        headline: the quantity reported by `reward` that a person watches (progress, learning curve).
        left_out: roles that it could have and was built without; `mas.agents` may name them, which has no effect.
        no_trained_agents_hint: what to do about it if no agent trains, for a system that can be built so.
        needs: names of the tools that it calls; it is refused where `mas.tools` lacks one.
        needs_sampling: its parallel parts differ by sampling noise alone, e.g. chains that vote: greedy, they would be
            copies of one, so greedy validations and evaluations are refused.
        needs_truth: its reward reads `task.ground_truth`; data with a row that has none are refused before the start.
        needs_judge: its reward asks `judge`, which `mas.judge` configures; it is refused where none is.
        judge: the judge of `mas.judge`, or None.
        forkable: False once it has turned out that a replay asks something else (`diverged`): the strategies then
            sample independent trajectories instead of forks.
        forks_after_end: forks begin when the trajectory that they fork from has ended, not when it has made the call.
        details: quantities reported by `reward` that are no scores (counts, costs): an evaluation shows them apart.
    """

    agents: dict[str, Agent]
    left_out: Sequence[str] = ()
    headline: str = "reward"
    no_trained_agents_hint: str = "Remedy: ++mas.agents.<name>.trained=true for one of them"
    needs: Sequence[str] = ()
    needs_sampling: bool = False
    needs_truth: bool = False
    needs_judge: bool = False
    judge: Judge | None = None
    forkable: bool = True
    forks_after_end: bool = False
    details: tuple[str, ...] = ()

    @property
    def trained_agents(self) -> list[str]:
        """Names of the agents that train, first to last."""
        return [name for name, agent in self.agents.items() if agent.trained]

    @property
    def policy_agents(self) -> list[str]:
        """Of them those whose tokens the policy trains on: the others train a model of their own."""
        return [name for name in self.trained_agents if self.agents[name].llm is None]

    @property
    def policy_decides(self) -> bool:
        """True if an agent that the policy answers for chooses among given texts."""
        return any(agent.choices is not None and agent.llm is None for agent in self.agents.values())

    @abstractmethod
    async def run(self, task: Task, ctx: Context) -> Any:
        """Work on one task and return its result, which `reward` scores."""

    @abstractmethod
    def reward(self, task: Task, result: Any) -> Score | Awaitable[Score]:
        """Shared reward of a result and named metrics (e.g. em, f1, acc). May be `async`: one that takes longer than
        milliseconds must be, or it holds up every other trajectory. Must not raise: a broken reward stops the training,
        because zeros in its place would flatten every group."""

    def diverged(self, found: str) -> None:
        """A replay asked something else, at `found`. By default the trajectory fails, as this is a bug to be mended."""
        return

    def table(self, answered: Sequence[tuple[Task, Any]]) -> Mapping[str, Mapping[str, float]]:
        """Rows of named columns over all that an evaluation has answered: what no mean over questions gives, e.g. a
        ratio of sums. None by default.

        Args:
            answered: at least one; a result is as JSON has it, in `trajectories.jsonl`.
        """
        return {}
