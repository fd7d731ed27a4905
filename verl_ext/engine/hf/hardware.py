"""What the machine has for a model: a faster float type, idle cores, memory for keys and values."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig

BF16_GAIN = 1.2  # bfloat16 must be this much faster than float32: it rounds log-probs to about 0.01
THREADS_PAY = 30e6  # parameters outside embeddings; smaller matrix products lose more than they gain by a second thread
KV_SHARE = 0.25  # of the memory that one server can use


def fastest_dtype(device: str, rows: tuple[int, ...] = (16, 256)) -> str:
    """The name of the faster float type for `device`: bfloat16 where matrix products gain by it, else float32.

    On a CPU the products of a decode step and of a prefill (`rows` tokens) are measured on one thread in CPU time, in
    some 30 ms. Without hardware for it bfloat16 is several times slower, with it about twice as fast: no close call.
    """
    if torch.device(device).type != "cpu":
        return "bfloat16"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        gain = min(_seconds(count, torch.float32) / _seconds(count, torch.bfloat16) for count in rows)
    finally:
        torch.set_num_threads(before)
    return "bfloat16" if gain >= BF16_GAIN else "float32"


def _seconds(rows: int, dtype: torch.dtype, repeats: int = 5) -> float:
    """CPU seconds of a layer of 1024 x 1024 over so many rows, the best of a few."""
    states, weight = torch.ones(rows, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.thread_time()
            F.linear(states, weight)
            best = min(best, time.thread_time() - start)
    return max(best, 1e-9)


def idle_threads(parameters: int, servers: int) -> int:
    """Torch threads of a server: its share of the cores, of which the trainer uses none during a rollout.

    Args:
        parameters: of the model, without embeddings; a small model gets one thread.
        servers: servers on this machine.
    """
    if parameters < THREADS_PAY:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // servers)


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
