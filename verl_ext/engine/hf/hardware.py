"""What the machine has for a model: idle cores, memory for keys and values."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import PreTrainedConfig

THREADS_PAY = 30e6  # parameters outside embeddings; smaller matrix products lose more than they gain by a second thread
KV_SHARE = 0.25  # of the memory that one server can use


def usable_cores(quota: str = "/sys/fs/cgroup/cpu.max") -> int:
    """Cores that this process may use: its affinity, and a container's quota ("microseconds period", or "max")."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = Path(quota).read_text().split()
        return max(1, min(cores, int(allowed) // int(period)))
    except (OSError, ValueError):  # no such file (another system), or "max"
        return cores


def idle_threads(parameters: int, servers: int, most: int | None = None) -> int:
    """Torch threads of a server: its share of the cores, of which the trainer uses none during a rollout.

    Args:
        parameters: of the model, without embeddings; a small model gets one thread.
        servers: servers on this machine.
        most: at most so many threads; None: as many as there are cores.
    """
    if parameters < THREADS_PAY:
        return 1
    cores = usable_cores()
    return max(1, min(cores // servers, most or cores))


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
