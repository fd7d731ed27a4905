"""Sampling strategies: which calls of a workflow are forked, which samples train, and in which groups.

    base           Strategy: the interface; the primitives `fork_on`, `fork_at` and `fork_all`; default groups
    fof            fork on first           MHGPO, Algorithm 3
    independent    `is`: independent       MHGPO, Algorithm 4: one base trajectory and a fork at each agent; keeps the
                                           forked agent's outputs only
    round_robin    `rr`: round robin       MHGPO, Algorithm 5
    nmc            node-wise Monte Carlo   JoyAgents-R1, Section 3.2

To add one: a file with a `Strategy`, a line here. Outside of this package: `STRATEGIES["mine"] = Mine` in the module of
your workflow (docs/new_strategy.md). A strategy forks with the three primitives only. The fields of its class are its
options, `mas.sampling.mine`.
"""

from verl_ext.sampling.base import (
    Sample,
    Strategy,
    by_position,
    fork_all,
    fork_at,
    fork_on,
    run_once,
    unique_calls,
)
from verl_ext.sampling.fof import ForkOnFirst
from verl_ext.sampling.independent import IndependentSampling
from verl_ext.sampling.nmc import NodeWiseMonteCarlo
from verl_ext.sampling.round_robin import RoundRobin
from verl_ext.settings import check_keys, unknown_name

STRATEGIES: dict[str, type[Strategy]] = {
    "fof": ForkOnFirst,
    "is": IndependentSampling,
    "rr": RoundRobin,
    "nmc": NodeWiseMonteCarlo,
}


def make_strategy(name: str, group_size: int, agents: list[str], **options: object) -> Strategy:
    """A strategy by its name in `mas.sampling.strategy`.

    Args:
        group_size: G, samples per fork.
        agents: names of the workflow's agents in the order of their dictionary.
        options: `mas.sampling.<name>`; see the strategy's class.

    Raises:
        ValueError: unknown name or option, or a value out of range.
    """
    if name not in STRATEGIES:
        raise ValueError(unknown_name("mas.sampling.strategy", name, STRATEGIES))
    own = [key for key in STRATEGIES[name].model_fields if key not in Strategy.model_fields]
    check_keys(options, own, f"mas.sampling.{name}")
    return STRATEGIES[name].read({"group_size": group_size, "agents": agents, **options}, f"mas.sampling.{name}")


__all__ = [
    "STRATEGIES",
    "Sample",
    "Strategy",
    "by_position",
    "fork_all",
    "fork_at",
    "fork_on",
    "make_strategy",
    "run_once",
    "unique_calls",
]
