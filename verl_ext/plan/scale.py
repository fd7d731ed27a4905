"""Seconds of a step on N devices, shared or split between training and rollout, and what limits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verl_ext.plan.formulas import PHASES, Load, Sizes, Terms, communication, rollout, synchronisation, training
from verl_ext.plan.hardware import GIB, Device
from verl_ext.trainer.preflight.gpu_memory import Memory

# Of GPUs. Assumed, not measured: prefill 50 % of the operations, decode 60 % of the bandwidth, 3 ms of scheduling for a
# decode step, training 40 % (Llama 3 405B: 38 to 43 %, arXiv 2407.21783), links 70 %, 2 s for sleeping and waking the
# engine. Fitted to runs on a CPU: what a call, a row and a step cost in Python (docs/results/2026-11-26-plan.md).
ASSUMED: Terms = {
    **{"prefill": 2.0, "decode": 1 / 0.6, "decode_steps": 0.003, "tools": 1.0, "weights": 1 / 0.7, "sync": 2.0},
    **{"forward": 2.5, "forward_rows": 0.0, "forward_once": 0.0},
    **{"update": 2.5, "update_rows": 0.0, "update_once": 0.0},
    **{"calls": 0.0035, "rows": 0.0011, "once": 0.23},
}
# Of one core of a CPU, fitted to the same runs.
FITTED_CPU: Terms = ASSUMED | {
    **{"prefill": 2.5, "decode": 1.94, "decode_steps": 0.0237, "weights": 51.7, "sync": 0.0413},
    **{"forward": 1.29, "forward_rows": 0.00095, "forward_once": 0.147},
    **{"update": 1.59, "update_rows": 0.00111, "update_once": 0.305},
}
# Share of a card that an engine takes where nothing else is on it (vLLM's default).
ALONE = 0.9
# Terms that more devices do not shorten.
FIXED = ("chain", "calls", "tools", "weights", "sync", "rows", "once")


@dataclass(frozen=True)
class Job:
    """What is planned, but for the number of devices.

    memory: devices -> what training needs of each (`preflight.gpu_memory.estimate`). phases: of PHASES, those that the
    run has; none: the weights are frozen. max_seqs, workers, tensor, micro_tokens: of the configuration. passes,
    shared: see `formulas.training`.
    """

    load: Load
    sizes: Sizes
    device: Device
    coefficients: Terms
    memory: Callable[[int], Memory]
    phases: tuple[str, ...]
    max_seqs: int = 256
    workers: int = 8
    tensor: int = 1
    micro_tokens: int = 16384
    passes: float = 3.0
    shared: bool = False


@dataclass(frozen=True)
class Step:
    """A step on N devices: parts[phase][term] in seconds; trainers: devices that train alone, 0 if all do both.

    seconds: of a step. memory: bytes that a device needs. problem: why it does not fit, or empty.
    """

    devices: int
    trainers: int
    parts: dict[str, Terms]
    seconds: float
    memory: float
    problem: str = ""

    def phase(self, name: str) -> float:
        """Seconds of a phase."""
        return sum(self.parts.get(name, {}).values())

    def critical(self) -> dict[str, float]:
        """term -> seconds; split, only of the side that the other waits for, and of the new weights."""
        phases = dict(self.parts)
        if self.trainers:
            trained = [name for name in phases if name not in ("gen", "update_weights")]
            faster = trained if self.phase("gen") >= sum(map(self.phase, trained)) else ["gen"]
            phases = {name: terms for name, terms in phases.items() if name not in faster}
        found: dict[str, float] = {}
        for terms in phases.values():
            for term, value in terms.items():
                found[term] = found.get(term, 0.0) + value
        return found

    def limit(self) -> tuple[str, float, float]:
        """(the largest term, its share of the step, the share of what more devices do not shorten)."""
        terms = self.critical()
        most = max(terms, key=lambda name: terms[name])
        fixed = sum(terms.get(name, 0.0) for name in FIXED)
        return most, terms[most] / self.seconds, fixed / self.seconds


def _engine(job: Job, devices: int, room: float) -> Terms:
    """Seconds of sampling on so many devices whose cache has `room` tokens each."""
    engines, load = max(devices // job.tensor, 1), job.load
    slots = max(min(job.max_seqs, int(room / (load.prompt + load.output))), 1)
    terms = rollout(load, job.sizes, job.device, engines, job.tensor, slots, job.workers)
    parts = {name: terms[name] * job.coefficients[name] for name in PHASES["gen"]}
    decode = parts.pop("decode") + parts.pop("decode_steps")
    bound = terms["decode_steps"] <= load.longest
    return parts | {"chain" if bound else "decode": decode}


def _trainer(job: Job, devices: int) -> dict[str, Terms]:
    """Seconds of the other phases but `update_weights`: operations, or FSDP's traffic where that takes longer."""
    if not job.phases:
        return {}
    terms = training(job.load, job.sizes, job.device, devices, job.shared, job.passes)
    traffic = communication(job.load, job.sizes, job.device, devices, job.micro_tokens)
    found: dict[str, Terms] = {}
    for phase in job.phases:
        seconds = {name: terms[name] * job.coefficients[name] for name in PHASES[phase]}
        main = PHASES[phase][0]
        sent = traffic[main == "update"] * job.coefficients["weights"]
        if sent > seconds[main]:
            seconds["traffic"] = sent
            del seconds[main]
        found[phase] = seconds
    rest = {"rows": job.load.rows, "once": 1.0}
    return found | {"rest": {name: rest[name] * job.coefficients[name] for name in rest}}


def _sync(job: Job, devices: int, hops: int) -> Terms:
    terms = synchronisation(job.sizes, job.device, devices, hops)
    return {name: terms[name] * job.coefficients[name] for name in terms}


def colocated(job: Job, devices: int) -> Step:
    """All devices sample, then all train."""
    memory, card = job.memory(devices), job.device.memory
    room = memory.kv_tokens(card)
    parts = {"gen": _engine(job, devices, room), **_trainer(job, devices), "update_weights": _sync(job, devices, 1)}
    total = sum(sum(terms.values()) for terms in parts.values())
    problem = f"an engine needs {job.tensor} devices" if devices < job.tensor else _problem(memory.needed(), card)
    problem = problem or ("" if room > 0 else "no room for the engine's cache")
    return Step(devices, 0, parts, total, memory.needed(), problem)


def separate(job: Job, devices: int) -> Step | None:
    """The best split: some devices train on the questions before, while the others sample; None: there is none.

    The policy that samples is one step behind. A machine is not divided where there are several.
    """
    unit = job.device.node if devices > job.device.node else 1
    found = (split(job, trainers, devices - trainers) for trainers in range(unit, devices, unit))
    return min((step for step in found if step), key=lambda step: step.seconds, default=None)


def split(job: Job, trainers: int, engines: int) -> Step | None:
    """So many devices train, while so many others sample; None: it does not fit. Frozen weights are sent once."""
    memory = job.memory(trainers)
    room = min(engine._replace(share=ALONE).tokens(job.device.memory) for engine in memory.engines)
    if _problem(memory.training, job.device.memory) or room <= 0 or engines < job.tensor:
        return None
    gen, trained = _engine(job, engines, room), _trainer(job, trainers)
    sync = _sync(job, trainers + engines, 2) if job.phases else {}
    slower = max(sum(gen.values()), sum(sum(terms.values()) for terms in trained.values()))
    parts = {"gen": gen, **trained, "update_weights": sync}
    return Step(trainers + engines, trainers, parts, slower + sum(sync.values()), memory.training)


def _problem(needed: float, card: float) -> str:
    return f"needs {needed / GIB:.0f} GiB of {card / GIB:.0f}" if needed > card else ""
