"""The float type of matrix products, by measurement: bfloat16 where this machine gains by it, else float32.

The trainer (`mixed_precision.param_dtype=auto`) and the rollout engine hf (`rollout.dtype=auto`) use the same
measurement. The weights that the optimiser changes are float32 in either case (`model_dtype`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf

AUTO = "auto"
BF16_GAIN = 1.2  # bfloat16 must be this much faster than float32: it rounds log-probs to about 0.01
FSDP_KEYS = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")


@dataclass(frozen=True)
class Choice:
    """A float type, as torch, verl and transformers all name it, and why it was chosen."""

    dtype: str
    reason: str

    def __str__(self) -> str:
        return f"{self.dtype}: {self.reason}"


def choose(device: str, rows: tuple[int, ...] = (16, 256)) -> Choice:
    """The faster float type for `device`.

    On a CPU the products of a decode step and of a prefill (`rows` tokens) are measured on one thread in CPU time, in
    half a second at most. Without hardware for it bfloat16 is several times slower, with it about twice as fast: no
    close call.
    """
    if torch.device(device).type != "cpu":
        return Choice("bfloat16", "GPUs compute it faster")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        gain = min(_seconds(count, torch.float32) / _seconds(count, torch.bfloat16) for count in rows)
    finally:
        torch.set_num_threads(before)
    speed = f"{gain:.1f} times as fast as" if gain >= 1 else f"{1 / gain:.1f} times slower than"
    measured = f"measured on this CPU, bfloat16 is {speed} float32"
    return Choice("bfloat16" if gain >= BF16_GAIN else "float32", measured)


def choose_together(device: str) -> Choice:
    """As `choose`: the first rank measures for all ranks of the process group."""
    found = [choose(device) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    assert found[0] is not None
    return found[0]


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


def settle(config: DictConfig, names: Iterable[str], choice: Callable[[], Choice]) -> Choice | None:
    """Put the float type of `choice` in place of `auto` in the settings `names`; None: none of them is `auto`."""
    automatic = [name for name in names if OmegaConf.select(config, name) == AUTO]
    if not automatic:
        return None
    chosen = choice()
    for name in automatic:
        OmegaConf.update(config, name, chosen.dtype)
    return chosen


def settle_run(config: DictConfig) -> Choice | None:
    """`settle` for verl's PPO configuration, for trainer and rollout engine at once, and for policies of their own.

    `rollout.dtype=auto` of vLLM and SGLang is left to them: it is the type of the checkpoint.
    """
    policies = OmegaConf.select(config, "mas.policies")
    named = policies if OmegaConf.is_dict(policies) else ()  # what else it may be, is refused later
    keys = [f"mas.policies.{name}.{key.removeprefix('actor_rollout_ref.')}" for name in named for key in FSDP_KEYS]
    names = [f"{key}.mixed_precision.param_dtype" for key in (*FSDP_KEYS, *keys)]
    if OmegaConf.select(config, "actor_rollout_ref.rollout.name") == "hf":
        names.append("actor_rollout_ref.rollout.dtype")
    device = OmegaConf.select(config, "trainer.device") or "cuda"
    return settle(config, names, lambda: choose(device))
