"""CPU seconds of every phase of a run, beside its wall seconds: on a busy machine only the former can be compared.

    python -m verl.trainer.main_ppo +recipe=mhgpo_tiny 'mas.plugins=[tests.bench.cpu_seconds]'

adds `timing_s/<phase>_cpu` to metrics.jsonl: CPU seconds that all processes of the run's own Ray instance spent while
the trainer was in the phase. `python -m verl_ext.plan` prefers them to wall seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

MODULES = ("verl.trainer.ppo.v1.trainer_base", "verl.trainer.ppo.v1.trainer_sync")


def spent() -> float:
    """CPU seconds so far of this process's siblings and their children: all workers of one raylet."""
    total = 0.0
    for process in (psutil.Process().parent() or psutil.Process()).children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended
            continue
        total += times.user + times.system
    return total


def counting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """verl's `marked_timer`, which adds CPU seconds to the same dictionary."""

    @contextmanager
    def marked_timer(name: str, timing_raw: dict[str, float], *args: Any, **kwargs: Any) -> Iterator[None]:
        before = spent()
        with stock(name, timing_raw, *args, **kwargs):
            yield
        timing_raw[f"{name}_cpu"] = timing_raw.get(f"{name}_cpu", 0.0) + spent() - before

    return marked_timer


for module in [sys.modules[name] for name in MODULES if name in sys.modules]:
    module.marked_timer = counting(module.marked_timer)
