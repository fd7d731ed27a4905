"""Detects that an agent's decisions have collapsed: it takes the same path for every question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from verl_ext.observe.decisions import deciding
from verl_ext.reports import docs_page

# Share of the most frequent path, and training steps in a row with it, from which on an agent counts as collapsed.
SHARE = 0.95
STEPS = 5


def collapsed(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Agents that are collapsed at the end of these entries of a run's log: docs/metrics.md has the rule.

    Steps at which an agent did not decide in training are passed over.
    """
    found: dict[str, list[bool]] = defaultdict(list)
    for entry in entries:
        for agent in deciding(entry["metrics"]):
            found[agent].append(_on_one_path(entry["metrics"], agent))
    return sorted(agent for agent, steps in found.items() if len(steps) >= STEPS and all(steps[-STEPS:]))


def _on_one_path(metrics: Mapping[str, Any], agent: str) -> bool:
    """Whether an agent with more than two options took one path in nearly all trajectories of a training step."""

    def value(name: str) -> float:
        return metrics.get(name) or 0.0

    varied = value(f"decisions/{agent}/length") > 1 or value("sampling/questions") > 1
    return value(f"decisions/{agent}/options") > 2 and varied and value(f"decisions/{agent}/top_path") >= SHARE


def advice(agent: str) -> list[str]:
    """The lines of the warning: what it means and what to do."""
    actor = "actor_rollout_ref.actor"
    return [
        f"  {agent} has collapsed: in {STEPS} training steps in a row, {SHARE:.0%} or more of its paths were one path.",
        "  If that is not what all questions need, it has stopped exploring. What helps: a larger",
        f"  {actor}.entropy_coeff, a KL term ({actor}.use_kl_loss=true), a smaller",
        f"  {actor}.optim.lr, another mas.advantage.baseline ({docs_page('metrics.md')}, “Collapse”).",
    ]
