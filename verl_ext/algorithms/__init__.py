"""One file and one class per algorithm; the class answers every question that the trainer has.

    base       Algorithm: the interface of all of them
    rows       Rows, TokenRows: the batch that an algorithm sees, as tensors
    groups     means and variances per group
    mhgpo      heterogeneous-group advantages                   algorithms/mhgpo.py        docs/mhgpo.md
    toolpo     success on all tokens, tool calls on theirs      algorithms/toolpo.py       docs/toolpo.md
    joyagents  GRPO at the nodes of largest reward variance     algorithms/joyagents.py    docs/joyagents.md
    puppeteer  REINFORCE for decisions, by cost-shaped returns  algorithms/puppeteer.py    docs/puppeteer.md

verl's own estimators gae, grpo and reinforce_plus_plus work on the same rollouts by their names.

To add one: a file with an `Algorithm` and a line below. Outside of this package: put `@register_algorithm` before the
class, in the module of your workflow (docs/new_algorithm.md).
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from verl_ext.algorithms.base import Algorithm, CreditRule, RowWeights, System
from verl_ext.algorithms.joyagents import JoyAgents
from verl_ext.algorithms.mhgpo import MHGPO
from verl_ext.algorithms.puppeteer import Puppeteer
from verl_ext.algorithms.rows import Rows, TokenRows
from verl_ext.algorithms.toolpo import ToolPO

A = TypeVar("A", bound=type[Algorithm])

ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in (MHGPO, ToolPO, JoyAgents, Puppeteer)}


def register_algorithm(cls: A) -> A:
    """Make an algorithm available as `algorithm.adv_estimator=<its name>` (a class decorator)."""
    ALGORITHMS[cls.name] = cls
    return cls


class _VerlEstimator(Algorithm):
    """An estimator of verl's: no options, every row trains."""

    name = "verl"


# Estimators of verl that compare the trajectories of a question with each other.
VERLS_RELATIVE = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "reinforce_plus_plus_baseline")


class _RelativeEstimator(_VerlEstimator):
    """One of VERLS_RELATIVE. To a trajectory that is alone they give its reward as its advantage, compared with 0."""

    def select(self, rows: Rows) -> torch.Tensor | None:
        """The rows of questions of which several trajectories are left; `mas.failure` says which are."""
        pairs = torch.unique(torch.stack([rows.question, rows.trajectory]), dim=1)
        kept = (torch.bincount(pairs[0]) > 1)[rows.question]
        return None if kept.all() else kept


def make_algorithm(name: str, options: dict[str, Any]) -> Algorithm:
    """The algorithm that `algorithm.adv_estimator` names, with the options of `mas.advantage`.

    An estimator of verl's, or one that is registered with verl alone, has no options.

    Raises:
        ValueError: an option that it does not have, of the wrong type, or out of range.
    """
    if name not in ALGORITHMS and options:
        raise ValueError(f"mas.advantage has {', '.join(options)}, but algorithm.adv_estimator={name} has no options")
    of_verl = _RelativeEstimator if name in VERLS_RELATIVE else _VerlEstimator
    return ALGORITHMS.get(name, of_verl).read(options, "mas.advantage")


def row_weights() -> dict[str, RowWeights]:
    """All choices of `mas.loss.agent_weights` beside "none", by name."""
    return {name: weights for cls in ALGORITHMS.values() for name, weights in cls.row_weights.items()}


def credit_keys() -> list[str]:
    """The keys of `mas.credit` that algorithms bring."""
    return [key for cls in ALGORITHMS.values() for key in cls.credit]


def credit_rules(section: dict[str, Any]) -> list[CreditRule]:
    """The credit rules that are set in `mas.credit`, in the order of the algorithms that bring them.

    Args:
        section: the keys of `mas.credit` that algorithms bring; null: the rule is off.

    Raises:
        ValueError: a rule's value is wrong.
    """
    return [
        make(section[key])
        for cls in ALGORITHMS.values()
        for key, make in cls.credit.items()
        if section.get(key) is not None
    ]


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CreditRule",
    "RowWeights",
    "Rows",
    "System",
    "TokenRows",
    "VERLS_RELATIVE",
    "credit_keys",
    "credit_rules",
    "make_algorithm",
    "register_algorithm",
    "row_weights",
]
