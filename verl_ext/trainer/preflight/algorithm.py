"""Checks that `algorithm.adv_estimator` fits the system and its sampling."""

from __future__ import annotations

from typing import Any

from verl_ext.algorithms import ALGORITHMS, VERLS_RELATIVE, System, make_algorithm
from verl_ext.settings import unknown_name
from verl_ext.trainer.sections import SamplingSection

# verl's estimators that are right on the rows of several agents. The others compare all rows of a question with each
# other, whatever their agents, or ask for inputs that its V1 trainer does not give.
FOR_AGENTS = ("gae", "grpo", "reinforce_plus_plus")
# Those that compare the samples of a group: a group of one teaches nothing.
RELATIVE = ("mhgpo", "joyagents", "toolpo", *VERLS_RELATIVE)
FOR_ONE_AGENT = tuple(name for name in VERLS_RELATIVE if name not in FOR_AGENTS)


def check_groups(name: str, sampling: SamplingSection) -> None:
    """Check that there is something to compare in a group.

    Raises:
        ValueError: every group would have one sample. (Round robin also compares the rows of a batch.)
    """
    alone = sampling.group_size == 1 and sampling.group_by == "position" and sampling.strategy != "rr"
    if alone and name in RELATIVE:
        raise ValueError(
            f"mas.sampling.group_size=1: algorithm.adv_estimator={name} compares the samples of a group, so with one "
            "sample every advantage is 0 and nothing is learned. Remedy: actor_rollout_ref.rollout.n=4, or a critic in "
            "place of groups (+base=critic)"
        )


def check_algorithm(name: str, options: dict[str, Any], system: System) -> None:
    """Check that the estimator is known, has these options (`mas.advantage`), and is right for the system.

    Raises:
        ValueError: it is not; gives the reason and what to use instead.
    """
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, AdvantageEstimator

    verls = {estimator.value for estimator in AdvantageEstimator}
    users = [key for key in ADV_ESTIMATOR_REGISTRY if key not in verls and key not in ALGORITHMS]
    allowed = [*ALGORITHMS, *FOR_AGENTS, *(FOR_ONE_AGENT if len(system.agents) == 1 else ()), *users]
    if name in FOR_ONE_AGENT and name not in allowed:
        raise ValueError(
            f"algorithm.adv_estimator={name} compares all calls of a question with each other, also those of different "
            f"agents ({', '.join(system.agents)}); it is for systems of one agent. Allowed here: {', '.join(allowed)}"
        )
    if name in verls and name not in allowed:
        raise ValueError(
            f"algorithm.adv_estimator={name} needs inputs that verl's V1 trainer does not give it, or counts padding "
            f"rows as samples (gpg, grpo_passk). Allowed: {', '.join(allowed)}"
        )
    if name not in allowed:
        raise ValueError(unknown_name("algorithm.adv_estimator", name, allowed))
    if name in VERLS_RELATIVE and system.strategy != "fof":
        raise ValueError(
            f"algorithm.adv_estimator={name} compares all trajectories of a question, which mas.sampling.strategy="
            f"{system.strategy} forks at different agents. Remedy: mas.sampling.strategy=fof, or adv_estimator=mhgpo"
        )
    make_algorithm(name, options).check(system)
