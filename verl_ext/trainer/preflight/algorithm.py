"""Whether an advantage estimator fits the system and its sampling, and has the options that it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from omegaconf import DictConfig

from verl_ext.algorithms import ALGORITHMS, SELECTIONS, Rows
from verl_ext.mas import Workflow

# verl's estimators that are right on the rows of several agents. The others compare all rows of a question with each
# other, whatever their agents, or ask for inputs that its V1 trainer does not give.
FOR_AGENTS = ("gae", "grpo", "reinforce_plus_plus")
FOR_ONE_AGENT = ("rloo", "rloo_vectorized", "grpo_vectorized", "opo", "gpg", "reinforce_plus_plus_baseline")

# What an algorithm reads of what the workflow's `reward` reports.
READS = {"toolpo": ("correct_calls",)}
# The argument of an algorithm that is no option: what it keeps from step to step.
STATE = "state"


def check_estimator(name: str, strategy: str, agents: list[str]) -> None:
    """Check `algorithm.adv_estimator`.

    Raises:
        ValueError: it is unknown, or would compare what must not be compared for these agents or this strategy.
    """
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, AdvantageEstimator

    verls = {estimator.value for estimator in AdvantageEstimator}
    own = [key for key in ADV_ESTIMATOR_REGISTRY if key not in verls and key not in ALGORITHMS]  # the user's
    allowed = [*ALGORITHMS, *FOR_AGENTS, *(FOR_ONE_AGENT if len(agents) == 1 else ()), *own]
    if name in FOR_ONE_AGENT and name not in allowed:
        raise ValueError(
            f"algorithm.adv_estimator={name} compares all calls of a question with each other, also those of different "
            f"agents ({', '.join(agents)}); it is for systems of one agent. Allowed here: {', '.join(allowed)}"
        )
    if name not in allowed:
        raise ValueError(
            f"algorithm.adv_estimator={name!r} is unknown, or needs what verl's V1 trainer does not hand it; "
            f"allowed: {', '.join(allowed)}"
        )
    if name in ("grpo", *FOR_ONE_AGENT) and strategy != "fof":
        raise ValueError(
            f"algorithm.adv_estimator={name} compares all trajectories of a question, which mas.sampling.strategy="
            f"{strategy} forks at different agents. Remedy: mas.sampling.strategy=fof, or adv_estimator=mhgpo"
        )
    if name == "toolpo" and strategy != "fof":
        raise ValueError(
            "algorithm.adv_estimator=toolpo needs all rows of every trajectory: their lengths make S_pref, and all of "
            f"them share its advantage. Under mas.sampling.strategy={strategy} trajectories share calls, or a part of "
            "them trains. Remedy: mas.sampling.strategy=fof, or adv_estimator=mhgpo"
        )


def check_reports(name: str, workflow: Workflow) -> None:
    """Check that the workflow says it reports what the algorithm reads; else it is noticed after a step's rollouts.

    Raises:
        ValueError: neither `headline` nor `details` names it.
    """
    said = [workflow.headline, *workflow.details]
    lacking = [metric for metric in READS.get(name, ()) if metric not in said]
    if lacking:
        raise ValueError(
            f"algorithm.adv_estimator={name} reads {', '.join(lacking)} of a trajectory, which "
            f"{type(workflow).__name__} does not name among what it reports ({', '.join(said)}). Remedy: let its "
            "`reward` report it and its `details` name it, as DeepAgent's do (docs/toolpo.md), or adv_estimator=mhgpo"
        )


def check_options(section: DictConfig, options: dict[str, Any], workflow: Workflow) -> None:
    """Check `mas.advantage` against the keyword arguments of the algorithm, and let it look at their values.

    Args:
        section: verl's `algorithm`.

    Raises:
        ValueError: an option that it does not have, of the wrong type or out of range; names the allowed ones.
    """
    name = section.adv_estimator
    allowed = options_of(ALGORITHMS.get(name)) | options_of(SELECTIONS.get(name))
    for key, value in options.items():
        if key not in allowed:
            known = ", ".join(allowed) or "none"
            raise ValueError(
                f"mas.advantage.{key}: algorithm.adv_estimator={name} has no such option (it has: {known})"
            )
        kinds = (int, float) if isinstance(allowed[key], float) else (type(allowed[key]),)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"mas.advantage.{key} must be of type {kinds[-1].__name__}, but is {value!r}")
    if options:
        with suppress(LookupError):  # of a metric that an algorithm of the user's reads and the workflow does not name
            _try_options(section, options, [workflow.headline, *workflow.details])


def _try_options(section: DictConfig, options: dict[str, Any], reported: list[str]) -> None:
    """Run the algorithm on one row: it says itself what is wrong with its options, here not after a step's rollouts."""
    one, number = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    names = ("group", "agent", "question", "trajectory", "length")
    rows = Rows(
        rewards=torch.zeros(1, 1),
        mask=torch.ones(1, 1),
        **dict.fromkeys(names, number),
        actions=torch.zeros(1, 1, dtype=torch.bool),
        decides=torch.ones(1, dtype=torch.bool),
        outcome=one,
        metrics=dict.fromkeys(reported, one),
    )
    algorithm, choose = ALGORITHMS[section.adv_estimator], SELECTIONS.get(section.adv_estimator)
    if choose is not None:
        choose(one, number, number, **own_options(choose, options))
    algorithm(rows, section, **own_options(algorithm, options), **({STATE: {}} if has_state(algorithm) else {}))


def options_of(function: Callable[..., Any] | None) -> dict[str, Any]:
    """Keyword-only arguments of a part of an algorithm, with their defaults; `state` is none of them."""
    parameters = inspect.signature(function).parameters.values() if function else ()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != STATE}


def has_state(function: Callable[..., Any]) -> bool:
    """True if an algorithm keeps something from step to step."""
    return STATE in inspect.signature(function).parameters


def own_options(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those of `options` that this part of the algorithm has."""
    known = options_of(function)
    return {name: value for name, value in options.items() if name in known}
