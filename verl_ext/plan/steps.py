"""A step of several policies from those of each: its seconds, its largest part, and the best split of the devices."""

from __future__ import annotations

from collections.abc import Mapping

from verl_ext.plan.formulas import PHASES
from verl_ext.plan.scale import Job, Step, split
from verl_ext.trainer.preflight.gpu_memory import together


def seconds(steps: Mapping[str, Step]) -> float:
    """Of a step of all policies."""
    sampling, training, sending = _sides(steps)
    return (max(sampling, training) if are_split(steps) else sampling + training) + sending


def are_split(steps: Mapping[str, Step]) -> bool:
    """Whether some devices train while others sample."""
    return any(step.trainers for step in steps.values())


def _sides(steps: Mapping[str, Step]) -> tuple[float, float, float]:
    """Seconds of (rollouts, training, new weights) of all policies.

    On devices of their own, rollouts take as long as those of the slowest policy, or as the longest chain of calls,
    which goes through all of them.
    """
    sampled, sent = ([step.phase(name) for step in steps.values()] for name in ("gen", "update_weights"))
    trained = sum(sum(map(step.phase, step.parts)) for step in steps.values()) - sum(sampled) - sum(sent)
    chain = sum(step.parts["gen"].get(term, 0.0) for step in steps.values() for term in ("chain", "tools"))
    return max(chain, *sampled) if are_split(steps) else sum(sampled), trained, sum(sent)


def largest(steps: Mapping[str, Step]) -> tuple[float, str, str]:
    """(share of the step, policy, term) of its largest term; split, of the slower side and the new weights."""
    sampling, training, _ = _sides(steps)
    waiting = {"gen"} if training >= sampling else {*PHASES} - {"gen", "update_weights"}
    counted = {*PHASES} - (waiting if are_split(steps) else set())
    parts = [(policy, terms) for policy, step in steps.items() for name, terms in step.parts.items() if name in counted]
    most, policy, term = max((value, policy, term) for policy, terms in parts for term, value in terms.items())
    return most / seconds(steps), policy, term


def best_split(jobs: Mapping[str, Job], devices: int) -> dict[str, Step] | None:
    """The fastest: some devices train, and each policy has some of the others for its rollouts; None: none fits.

    A machine is not divided between training and rollouts where there are several.
    """
    node = next(iter(jobs.values())).device.node
    unit = node if devices > node else 1
    found = (_shared_out(jobs, trainers, devices - trainers) for trainers in range(unit, devices, unit))
    return min((steps for steps in found if steps), key=seconds, default=None)


def _shared_out(jobs: Mapping[str, Job], trainers: int, engines: int) -> dict[str, Step] | None:
    """The best for so many of each: rollout devices go, one after another, to the policy that samples the longest."""
    pools = {policy: _pools(job, trainers + engines, engines) for policy, job in jobs.items()}
    first = next(iter(jobs.values())).device
    needed = together({policy: job.memory(trainers) for policy, job in jobs.items()}).training
    if not all(pools.values()) or sum(sizes[0] for sizes in pools.values()) > engines or needed > first.memory:
        return None
    steps = {policy: split(job, trainers, pools[policy].pop(0)) for policy, job in jobs.items()}
    found = {policy: step for policy, step in steps.items() if step}
    while len(found) == len(jobs):
        slowest = max(found, key=lambda policy: found[policy].phase("gen"))
        others = sum(step.devices - trainers for policy, step in found.items() if policy != slowest)
        if not pools[slowest] or others + pools[slowest][0] > engines:
            return found
        step = split(jobs[slowest], trainers, pools[slowest].pop(0))
        assert step is not None, "it fits on fewer"
        found[slowest] = step
    return None


def _pools(job: Job, devices: int, most: int) -> list[int]:
    """Numbers of devices that a policy's rollouts may have, nnodes × n_gpus_per_node: part of a machine, or whole ones.

    Where there are several machines, parts divide one: then those of several policies fill it.
    """
    node, several = job.device.node, devices > job.device.node
    sizes = (n for n in range(job.tensor, most + 1, job.tensor) if n % node == 0 or n < node)
    return [n for n in sizes if n % node == 0 or not several or node % n == 0]
