"""The seconds of a step in two lines, for `verl_ext check`: of the run as it is configured."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from omegaconf import DictConfig

from verl_ext.plan.hardware import DEVICES, measured_cpu, this_gpu
from verl_ext.plan.jobs import jobs_of
from verl_ext.plan.policies import configured, policy_jobs
from verl_ext.plan.report import WHY
from verl_ext.plan.steps import largest, seconds
from verl_ext.trainer import modes
from verl_ext.trainer.preflight.checks import trains_critic
from verl_ext.trainer.preflight.fitting import Sized

# The errors of docs/results/2026-11-26-plan.md: of runs that were left out of the fit, and of two policies.
ERROR = {
    "cpu": "15 runs were predicted within a factor of 1.7, by 15% on average, if nothing else uses the machine",
    "cuda": "nothing of this was measured on GPUs: utilisations are assumed, and the error is not known",
}
LIMITS = "calls at their limits often take several times the truth"


def time_of_a_step(given: argparse.Namespace, config: DictConfig, known: Mapping[str, Sized]) -> list[str]:
    """Sentences: seconds, of what, and their error; none where the model says nothing of the run.

    Without tokens of a call (`--run`, or both `--prompt_tokens` and `--output_tokens`), of calls at their limits.

    Args:
        given: of the command line, `options.add_load` and `device`.
        known: by policy; the time is told if the models of all are known.

    Raises:
        ValueError: see `jobs_of`.
    """
    kind, policies = config.trainer.device, [name for name, one in (config.mas.get("policies") or {}).items() if one]
    covered = kind == "cuda" or (kind == "cpu" and config.actor_rollout_ref.rollout.name == "hf")
    if not covered or config.trainer.get("val_only", False) or not {*known} >= {*(policies or [""])}:
        return []
    name = "cpu" if kind == "cpu" else given.device or this_gpu()
    if name is None:
        return [f"known once the kind of GPU is: --device {', '.join(DEVICES)}"]
    # A quarter of the numbers of `verl_ext plan`: a check should not wait for them.
    device = DEVICES.get(name) or measured_cpu(size=512, numbers=2**23, repeats=1)
    if kind == "cpu":  # the engines' micro-batches follow the memory that is there
        device = replace(device, memory=2.0**60)
    limits = given.run is None and given.prompt_tokens is None and given.output_tokens is None
    given = argparse.Namespace(**vars(given) | {"device": name, "at_limits": limits})
    if policies:
        jobs, facts = policy_jobs(given, config, device, known)
    else:
        every, facts = jobs_of(given, config, device, known)
        jobs = {"": every[config.mas.sampling.strategy]}
    steps = configured(config, jobs)
    if any(step is None or step.problem for step in steps.values()):
        return [f"not estimated: it does not fit on {device.name}"]
    found = {policy: step for policy, step in steps.items() if step}
    share, policy, term = largest(found)
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node + modes.rollout_ranks(config)
    left_out = ["a critic"] * trains_critic(config) + ["tools"] * (not given.tool_seconds and bool(config.mas.tools))
    without = f", without the time of {' and '.join(left_out)}" * bool(left_out)
    calls = next(fact for fact in facts if fact.startswith("a call reads"))
    why = WHY[term].replace("GPUs", "cores") if kind == "cpu" else WHY[term]
    return [
        f"{'at most ' * limits}about {seconds(found):,.3g} s on {ranks} × {device.name}{without}: {calls}",
        f"{share:.0%} of it{policy and f', {policy}'}: {why}; {LIMITS if limits else ERROR[kind]}",
    ]
