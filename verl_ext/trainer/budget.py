"""`mas.budget`: ends a run after so many tokens, questions or operations: methods are compared at equal cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from verl_ext.trainer.sections import BudgetSection

if TYPE_CHECKING:
    from verl_ext.trainer.config import MasConfig

OPERATIONS = "operations"


class Budget:
    """Counts what training has used, also over kills and resumes. Operations are counted if they have a limit.

    Args:
        section: the limits; None: no limit.
        parameters: of the model of each agent (`parameters_of_agents`).
    """

    def __init__(self, section: BudgetSection, parameters: dict[str, int] | None = None):
        self.limits = {name: limit for name, limit in vars(section).items() if limit is not None}
        self.used = {name: 0 for name in vars(section) if name != OPERATIONS or name in self.limits}
        self.parameters = parameters or {}

    def resume(self, entries: list[dict[str, Any]]) -> bool:
        """Continue the counts from the entries of the run log up to the restored step; True if it reached a limit."""
        before = self._reached()
        for entry in entries[-2:] or [{"metrics": {}}]:
            before = self._reached()
            self.used = {name: int(entry["metrics"].get(f"budget/{name}") or 0) for name in self.used}
        return self._reached() > before

    def spend(self, metrics: dict[str, float]) -> bool:
        """Add one step's `sampling/*`, write the sums as `budget/*`; True if a limit was reached by this step."""
        before = self._reached()
        if OPERATIONS in self.used:
            metrics[f"sampling/{OPERATIONS}"] = operations(metrics, self.parameters)
        for name in self.used:
            self.used[name] += int(metrics.get(f"sampling/{name}", 0))
            metrics[f"budget/{name}"] = self.used[name]
        return self._reached() > before

    @property
    def exhausted(self) -> bool:
        """True if there are limits and all have been reached."""
        return bool(self.limits) and self._reached() == len(self.limits)

    def _reached(self) -> int:
        return sum(self.used[name] >= limit for name, limit in self.limits.items())


def operations(metrics: dict[str, float], parameters: dict[str, int]) -> float:
    """2 × parameters × tokens of every answered call (Kaplan et al. 2020, arXiv 2001.08361, without attention).

    A prompt counts as often as it is sent, although engines keep common beginnings. Training is not counted: forward
    and backward pass over a call that trains take three times as much. Agents without an entry in `parameters` are
    free.
    """
    total = 0.0
    for agent, size in parameters.items():
        if f"agents/{agent}/output_tokens" in metrics:  # some call of it was answered
            answered = metrics[f"agents/{agent}/calls"] * (1 - metrics[f"agents/{agent}/failed"])
            tokens = metrics[f"agents/{agent}/prompt_tokens"] + metrics[f"agents/{agent}/output_tokens"]
            total += 2 * size * answered * tokens
    return total


def parameters_of_agents(config: DictConfig, mas: MasConfig) -> dict[str, int]:
    """Parameters of the model of each agent that a policy answers for; empty without a limit of operations.

    Raises:
        ValueError: the size of a model is not known.
    """
    if mas.budget.operations is None:
        return {}
    from verl_ext.trainer.build import build_workflow
    from verl_ext.trainer.policies.settings import policies_of_agents, policy_configs
    from verl_ext.trainer.preflight.gpu_memory import read_model

    try:
        sizes = {
            name: read_model(str(own.actor_rollout_ref.model.path)).parameters
            for name, own in policy_configs(config).items()
        }
    except LookupError as error:
        raise ValueError(f"mas.budget.operations needs the size of the models: {error}. Remedy: leave it out") from None
    named = policies_of_agents(mas)
    agents = [name for name, agent in build_workflow(mas).agents.items() if agent.llm is None]
    return {agent: sizes[named.get(agent, "")] for agent in agents}
