"""Sampling strategies: which calls of a workflow are forked, which samples train, and in which groups.

    fof   fork on first       MHGPO, Algorithm 3
    is    independent         MHGPO, Algorithm 4 of the text (all agents forked in turn, homogeneous groups only)
    rr    round robin         MHGPO, Algorithm 5
    nmc   node-wise Monte Carlo   JoyAgents-R1, Section 3.1

To add one: a file with a `Strategy`, a line here; outside of this package, `STRATEGIES["mine"] = Mine` in the module of
your workflow. A strategy forks through `fork_on`, `fork_at` and `fork_all` alone.
"""

from verl_ext.sampling.base import (
    Formula,
    Sample,
    Strategy,
    by_position,
    fork_all,
    fork_at,
    fork_on,
    position_of,
    run_once,
    unique_calls,
)
from verl_ext.sampling.fof import ForkOnFirst
from verl_ext.sampling.independent import IndependentSampling
from verl_ext.sampling.nmc import NodeWiseMonteCarlo
from verl_ext.sampling.round_robin import RoundRobin
from verl_ext.settings import unknown_name

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
        options: those of the strategy; see its class.

    Raises:
        ValueError: unknown name or option, or a value out of range.
    """
    if name not in STRATEGIES:
        raise ValueError(unknown_name("mas.sampling.strategy", name, STRATEGIES))
    return STRATEGIES[name](group_size=group_size, agents=agents, **options)


__all__ = [
    "STRATEGIES",
    "Formula",
    "Sample",
    "Strategy",
    "by_position",
    "fork_all",
    "fork_at",
    "fork_on",
    "make_strategy",
    "position_of",
    "run_once",
    "unique_calls",
]
