"""A step of several policies (`mas.policies`): the terms of each, by its model, its agents' calls and their tokens.

On common devices they sample together, each by its own engine, and train one after another. Under `mas_separate_async`
each has the rollout ranks that the configuration gives it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig

from verl_ext.plan.formulas import PHASES, Load
from verl_ext.plan.hardware import GIB, Device
from verl_ext.plan.jobs import job_of, limits_of, machine_facts, memory_on, model_of, tokens_of
from verl_ext.plan.report import LEGEND, PHASES_SHOWN, WHY
from verl_ext.plan.scale import Job, Step, colocated, split
from verl_ext.plan.steps import are_split, best_split, largest, seconds
from verl_ext.plan.workload import NODE_WISE, Calls, expected_load, read_calls
from verl_ext.reports import markdown
from verl_ext.trainer import modes
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config, strategy_from
from verl_ext.trainer.policies.settings import given_at, policies_of_agents, policy_config
from verl_ext.trainer.preflight.fitting import Sized
from verl_ext.trainer.preflight.gpu_memory import together

HEAD = ("policy", "calls", "rows", "rollout", "log-probs", "reference", "update", "weights", "rest", "GiB")
CHECK = "`verl_ext check` names the remedy"
NO_SHARE = (
    "the engines' shares (rollout.gpu_memory_utilization of each policy) leave nothing of a GPU; together at most 0.9"
)
SHARED = "All engines are awake together; policies train one after another. GiB: what a GPU needs at least."
APART = "Policies train one after another, while all sample; then weights are sent. GiB: of a training GPU."


def part_of(load: Load, calls: Calls, own: Collection[str], trained: Collection[str], node_wise: bool = False) -> Load:
    """The part of a step that some agents have.

    Args:
        load: of the step.
        calls: of all agents.
        own: the agents. trained: of all agents, those that train.
        node_wise: agents have as many rows as each other; otherwise a call that trains is a row.
    """
    count = sum(calls[name][0] for name in own)
    reads, writes = (sum(calls[name][0] * calls[name][column] for name in own) for column in (1, 2))
    share = count / sum(one[0] for one in calls.values())
    rows = {name: 1.0 if node_wise else calls[name][0] for name in trained}
    trains = sum(rows[name] for name in own if name in rows) / sum(rows.values())
    return replace(
        load,
        calls=load.calls * share,
        distinct=load.distinct * share,
        rows=load.rows * trains,
        distinct_rows=load.distinct_rows * trains,
        prompt=reads / count,
        output=writes / count,
        longest=load.longest * writes / sum(one[0] * one[2] for one in calls.values()),
        tool_turns=load.tool_turns * share,
    )


def policy_jobs(
    given: Any, config: DictConfig, device: Device, known: Mapping[str, Sized] | None = None
) -> tuple[dict[str, Job], list[str]]:
    """(policy -> job, lines that say what is planned), as `jobs.jobs_of`, for the configured strategy.

    Without `--run` agents have as many calls and tokens as each other; at their limits, each its own.
    """
    mas, questions = read_mas_config(config), config.data.train_batch_size
    workflow, named, name = build_workflow(mas), policies_of_agents(mas), mas.sampling.strategy
    agents, trained = [agent for agent in workflow.agents if agent in named], workflow.policy_agents
    tokens, where = tokens_of(given, mas, config, agents, device)
    tools = {"tool_turns": float(given.tool_turns), "tool_seconds": given.tool_seconds}
    strategy = strategy_from(mas.sampling, workflow.trained_agents)
    whole = expected_load(name, strategy, questions, *tokens, length=len(agents), **tools)
    limits = limits_of(mas, config, agents) if given.at_limits else dict.fromkeys(agents, tokens[1])
    calls = read_calls(given.run, agents) if given.run else {name: (1.0, tokens[0], limits[name]) for name in agents}
    jobs, trainers = dict[str, Job](), sum(not section.frozen for section in mas.policies.values())
    facts = [f"{questions} questions a step, {len(agents)} agents, {name}, G = {mas.sampling.group_size}", where]
    for policy, section in mas.policies.items():
        if not (own := [agent for agent in section.agents if agent in agents]):
            continue
        one = (known or {}).get(policy)
        settings = one.config if one else policy_config(config, policy)
        path = str(settings.actor_rollout_ref.model.path)
        model = one.model if one else model_of(path, given_at(policy, section, "model.path"))
        memory = memory_on(settings, model, one, section.frozen)
        load = part_of(whole, calls, own, trained, name in NODE_WISE)
        job = job_of(given, settings, device, model, (load.prompt, load.output, load.longest), memory)
        # Of a policy that trains in every k-th step, the mean of k steps. One process handles the rows of all.
        shares = dict.fromkeys(PHASES["update_actor"], section.every) | {"once": trainers}
        jobs[policy] = replace(
            job,
            load=load,
            coefficients=job.coefficients | {key: job.coefficients[key] / by for key, by in shares.items()},
            phases=job.phases if load.rows and not section.frozen else (),
        )
        text = f"{policy} ({', '.join(own)}): {path}, {model.parameters / 1e6:,.0f} M parameters, by {model.source}"
        facts.append(f"{text}; {load.prompt:,.0f} + {load.output:,.0f} tokens a call{'; frozen' * section.frozen}")
    return jobs, [*facts, *machine_facts(config, device)]


def configured(config: DictConfig, jobs: Mapping[str, Job]) -> dict[str, Step | None]:
    """The step of each policy on the GPUs, or CPU ranks, of the configuration; None: it does not fit."""
    trainers, pools = config.trainer.nnodes * config.trainer.n_gpus_per_node, modes.engines(config)
    if modes.mode_of(config) == modes.SEPARATE:
        return {policy: split(job, trainers, pools[policy][0]) for policy, job in jobs.items()}
    return {policy: colocated(job, trainers) for policy, job in jobs.items()}


def _split_words(config: DictConfig, jobs: Mapping[str, Job], devices: int, otherwise: float | None) -> list[str]:
    """Whether a split of so many devices would be better than the step that takes `otherwise` seconds; None: no fit."""
    if reason := modes.refused_split(config):
        return [f"No split: {reason}", ""]
    least = 1 + sum(job.tensor for job in jobs.values())
    if devices < least:
        return [f"No split: some GPUs train, and each policy has its own for its rollouts: {least} or more.", ""]
    if (steps := best_split(jobs, devices)) is None:
        return ["No split fits: a training GPU, or an engine, would have too little memory.", ""]
    trainers, pools = next(iter(steps.values())).trainers, {p: s.devices - s.trainers for p, s in steps.items()}
    named = f"{trainers} train, {', '.join(f'{number} sample for {policy}' for policy, number in pools.items())}"
    faster = f", {otherwise / seconds(steps):.2f} times as fast" if otherwise else ""
    if otherwise and seconds(steps) >= otherwise:
        return [f"The best split is no faster: {seconds(steps):,.1f} s ({named}).", ""]
    share, policy, term = largest(steps)
    node = next(iter(jobs.values())).device.node
    places = {"trainer": trainers} | {f"++mas.policies.{name}.rollout": number for name, number in pools.items()}
    given = [f"trainer.v1.trainer_mode={modes.SEPARATE}"]
    for place, number in places.items():
        given += [f"{place}.nnodes={max(number // node, 1)}", f"{place}.n_gpus_per_node={min(number, node)}"]
    return [
        f"Best split: {seconds(steps):,.1f} s{faster}: {named}.",
        f"Its largest part, {share:.0%} of it, {policy}: {WHY[term]}.",
        f"Its settings: {' '.join(given)}",
        "",
    ]


def policies_report(given: Any, config: DictConfig, device: Device) -> tuple[list[str], list[str]]:
    """(lines that say what is planned, a table per number of devices with a row per policy)."""
    jobs, facts = policy_jobs(given, config, device)
    if modes.mode_of(config) != modes.SEPARATE:
        lines = list[str]()
        for number in given.gpus:
            shared = {policy: colocated(job, number) for policy, job in jobs.items()}
            lines += _table(f"{number} × {device.name}", jobs, shared)[:-1]
            lines += _split_words(config, jobs, number, seconds(shared) if _fits(jobs, shared) else None)
        return facts, [*lines, SHARED, LEGEND[-1]]
    trainers, pools = config.trainer.nnodes * config.trainer.n_gpus_per_node, modes.engines(config)
    found = configured(config, jobs)
    ranks = ", ".join(f"{number} for the rollouts of {policy}" for policy, (number, _) in pools.items())
    title = f"{trainers} × {device.name} train, as configured; {ranks}"
    if absent := [policy for policy, step in found.items() if step is None]:
        return facts, [title, f"{', '.join(absent)}: does not fit. `verl_ext check` names the remedy."]
    steps = {policy: step for policy, step in found.items() if step}
    otherwise = seconds(steps) if _fits(jobs, steps) else None
    better = _split_words(config, jobs, trainers + modes.rollout_ranks(config), otherwise)
    return facts, [*_table(title, jobs, steps)[:-1], *better, APART, LEGEND[-1]]


def _needed(jobs: Mapping[str, Job], steps: Mapping[str, Step]) -> float:
    """Bytes of a training device that hold all policies."""
    ranks = max(step.trainers or step.devices for step in steps.values())
    memory = together({policy: job.memory(ranks) for policy, job in jobs.items()})
    # Engines have none of the trainer's card, or, on a CPU, what they need of its memory and no more.
    apart = are_split(steps) or next(iter(jobs.values())).device.node == 1
    return memory.training if apart else memory.needed()


def _fits(jobs: Mapping[str, Job], steps: Mapping[str, Step]) -> bool:
    card = next(iter(jobs.values())).device.memory
    return _needed(jobs, steps) <= card and not any(step.problem for step in steps.values())


def _table(title: str, jobs: Mapping[str, Job], steps: Mapping[str, Step]) -> list[str]:
    """A row per policy and one for all, the seconds of a step, and the largest part of it."""
    rows, total, needed = list[list[float]](), seconds(steps), _needed(jobs, steps)
    for policy, step in steps.items():
        load = jobs[policy].load
        rows.append([load.calls, load.rows, *map(step.phase, PHASES_SHOWN), step.memory / GIB])
    rows.append([*(sum(column) for column in list(zip(*rows, strict=True))[:-1]), needed / GIB])
    texts = [[f"{n:,.0f}" for n in row[:2]] + [f"{n:,.1f}" for n in row[2:-1]] + [f"{row[-1]:,.0f}"] for row in rows]
    share, policy, term = largest(steps)
    generated = sum(job.load.generated for job in jobs.values())
    short = "" if _fits(jobs, steps) else f" It does not fit: {NO_SHARE if math.isinf(needed) else CHECK}."
    return [
        title,
        *markdown(HEAD, [[name, *row] for name, row in zip([*steps, "all"], texts, strict=True)], words=1),
        f"A step takes {total:,.1f} s ({generated / total:,.0f} tok/s).{short}",
        f"Largest part, {share:.0%} of it, {policy}: {WHY[term]}.",
        "",
    ]
