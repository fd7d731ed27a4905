"""What the machine has for a model: idle cores, memory for keys and values."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import torch
from transformers import PreTrainedConfig

from verl_ext.engine.preload import ADAPTS, SPINS

THREADS_PAY = 30e6  # parameters outside embeddings; smaller matrix products lose more than they gain by a second thread
KV_SHARE = 0.25  # of the memory that one server can use
INTERVAL = 0.25  # seconds, at least, over which idle cores are counted
YIELDED = 0.3  # of a core: other programs that use no more are not given one


def usable_cores(quota: str = "/sys/fs/cgroup/cpu.max") -> int:
    """Cores that this process may use: its affinity, and a container's quota ("microseconds period", or "max")."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = Path(quota).read_text().split()
        return max(1, min(cores, int(allowed) // int(period)))
    except (OSError, ValueError):  # no such file (another system), or "max"
        return cores


def bounded() -> bool:
    """Whether a container's quota gives this process fewer cores than it sees."""
    return usable_cores() < usable_cores(os.devnull)


def idle_threads(parameters: int, servers: int, most: int | None = None) -> int:
    """Torch threads of a server at most: its share of the cores.

    Args:
        parameters: of the model, without embeddings; a small model gets one thread.
        servers: servers on this machine.
        most: at most so many threads; None: as many as there are cores.
    """
    if parameters < THREADS_PAY:
        return 1
    cores = usable_cores()
    return max(1, min(cores // servers, most or cores))


class IdleThreads:
    """Torch threads of the thread that makes it: as many as there are cores that no other program uses.

    A thread of libgomp that waits for the others keeps its core busy. On an idle machine that is fastest. But if
    another program has taken a core, the thread that needs it waits for it, and so do all the others: a step takes two
    to ten times as long. So there must be no more threads than free cores. Their number changes only where ADAPTS is
    set (see `openmp` in trainer/run_callback.py) and SPINS is not: with that, waiting threads soon sleep.

    Args:
        most: threads on an idle machine.
        sharers: processes like this one on the machine; an idle core is for all of them.
    """

    def __init__(self, most: int, sharers: int = 1) -> None:
        self._most, self._sharers = most, sharers
        self._varies = most > 1 and ADAPTS in os.environ and SPINS not in os.environ
        torch.set_num_threads(most)
        self.begin()

    def begin(self) -> None:
        """Count from now on: until now this process has been waiting."""
        if self._varies:
            self._since = _clocks()

    def adapt(self) -> None:
        """Take cores that are idle, or leave some to other programs. To be called between pieces of work."""
        if not self._varies or time.monotonic() - self._since[0] < INTERVAL:
            return
        wall, own, idle = (now - before for now, before in zip(_clocks(), self._since, strict=True))
        threads = max(1, min(self._most, int((own + idle / self._sharers) / wall + YIELDED)))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self.begin()


def _clocks() -> tuple[float, float, float]:
    """Seconds: of the clock, of all threads of this process, and of the cores that it may use, while they were idle."""
    cores = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not usable or max(usable) >= len(cores):  # numbers of cores that are not those of the list
        usable = set(range(len(cores)))
    idle = sum(cores[number].idle + getattr(cores[number], "iowait", 0.0) for number in usable)
    return time.monotonic(), time.process_time(), idle


def kv_bytes(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * dtype.itemsize


def fitting_slots(slots: int, length: int, per_token: int, memory: float) -> int:
    """At most `slots` requests of `length` tokens whose keys and values fit into `memory` bytes.

    Raises:
        ValueError: not even one fits.
    """
    fitting = int(memory // (per_token * length))
    if fitting < 1:
        raise ValueError(
            f"rollout.name=hf: one request of {length} tokens needs {per_token * length / 2**30:.2f} GiB of keys and "
            f"values, allowed are {memory / 2**30:.2f} GiB; lower rollout.max_model_len or raise "
            "rollout.engine_kwargs.hf.kv_cache_gb"
        )
    return min(slots, fitting)
