"""(s) What the checks of a training step cost (verl_ext/trainer/doctor.py).

python -m tests.bench.doctor 3.8        # seconds of a step, for its share
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_ext.trainer.checksums import of_batch
from verl_ext.trainer.doctor import Doctor
from verl_ext.trainer.loss import ASSIGNED, CHECKSUM
from verl_ext.trainer.row import Row, pack, unpack
from verl_ext.trainer.row_selection import weights_of

# Rows of a step of mhgpo_tiny: 32 questions, three agents, groups of four.
ROWS, PROMPT, RESPONSE, STEPS = 384, 60, 6, 20
CONFIG = {
    "actor_rollout_ref": {"actor": {"loss_agg_mode": "seq-mean-token-mean"}},
    "mas": {"loss": {"agent_weights": "batch"}},
}


def batch(step: int) -> tuple[KVBatchMeta, TensorDict, torch.Tensor]:
    """The rows of a step, their columns before the update, and their weights."""
    rows = [
        Row(
            *(f"u{number // 12}-{step}", [5 + number % 90] * PROMPT, [7 + number % 9] * RESPONSE, [1] * RESPONSE),
            *([-1.0] * RESPONSE, float(number % 2), "abc"[number % 3], f"g{number // 4}", "ok"),
            trajectory=number % 12,
            versions=(step - 1, step - 1),
        )
        for number in range(ROWS)
    ]
    tags = [pack(row.tag) for row in rows]
    names = ("input_ids", "prompts", "response_mask", "rollout_log_probs")
    columns = {
        name: torch.nested.as_nested_tensor([row.fields[name] for row in rows], layout=torch.jagged) for name in names
    }
    columns |= {name: columns["rollout_log_probs"] for name in ("old_log_probs", "advantages")}
    weights = weights_of(unpack(tags), "batch", "seq-mean-token-mean")
    data = TensorDict(columns, batch_size=ROWS)
    return KVBatchMeta(partition_id="train", keys=[row.key for row in rows], tags=tags), data, weights


def run(step_seconds: float | None = None) -> list[str]:
    """Lines: milliseconds of a step's checks in the trainer's process, and their share of a step."""
    doctor, seconds = Doctor(OmegaConf.create(CONFIG)), []
    for step in range(1, STEPS + 1):
        stored, columns, weights = batch(step)
        ours = doctor.examine(step, stored, columns, weights, weights, torch.zeros(ROWS, dtype=torch.bool))
        names = zip((CHECKSUM, ASSIGNED), of_batch(columns, weights), strict=True)
        verls: dict[str, Any] = {f"actor/{name}": float(value) for name, value in names}
        seconds.append(doctor.after_update(step, stored, verls, ours, 1)["doctor/seconds"])
    middle = statistics.median(seconds)
    share = f", {middle / step_seconds:.2%} of a step of {step_seconds:.1f} s (aim <= 1 %)" if step_seconds else ""
    return [f"  {ROWS} rows: {middle * 1e3:.1f} ms{share}"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("\n".join(run(*map(float, sys.argv[1:2]))))
