"""Which rows of a batch train, in which groups, and how much each weighs: before verl pads and balances."""

from __future__ import annotations

import random
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from verl_ext.algorithms import SELECTIONS
from verl_ext.algorithms.joyagents import group_variance
from verl_ext.algorithms.mhgpo import agent_weights
from verl_ext.algorithms.toolpo import trajectory_weights
from verl_ext.mas.noise import derive_seed
from verl_ext.sampling.round_robin import SHUFFLED
from verl_ext.trainer.advantage import column
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.preflight.algorithm import own_options

Chosen = tuple[KVBatchMeta, dict[str, float]]


def drop_idle(batch: KVBatchMeta) -> KVBatchMeta:
    """The batch without rows that only stand for a question (`rows.idle_row`), unless it has no others."""
    idle = {row for row, tag in enumerate(batch.tags) if tag.get("idle")}
    return batch if is_idle(batch) else without(batch, idle)


def is_idle(batch: KVBatchMeta) -> bool:
    """True if no row of the batch trains."""
    return all(tag.get("idle") for tag in batch.tags)


def regroup(batch: KVBatchMeta, config: DictConfig, mas: MasConfig, step: int) -> Chosen:
    """Cut the shuffled singletons of round robin into groups of G and drop the remainder (MHGPO, Algorithm 5)."""
    singles = [i for i, tag in enumerate(batch.tags) if tag["group"] == "/".join(SHUFFLED)]
    random.Random(derive_seed(mas.seed, step, "regroup")).shuffle(singles)
    size = mas.sampling.group_size
    whole = len(singles) // size * size
    for place, row in enumerate(singles[:whole]):
        batch.tags[row]["group"] = "/".join((*SHUFFLED, str(place // size)))
    if whole:  # in the queue, too: verl reads the tags from there again
        keys = [batch.keys[row] for row in singles[:whole]]
        tags = [{"group": batch.tags[row]["group"]} for row in singles[:whole]]
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, tags=tags)
    dropped = set(singles[whole:])
    return without(batch, dropped), {"groups/dropped_rows": len(dropped)}


def select(batch: KVBatchMeta, config: DictConfig, mas: MasConfig, step: int) -> Chosen:
    """Drop the rows that the algorithm does not train on (e.g. JoyAgents-R1, Eq. 2), before any forward pass.

    Where that is all of them (no group has any variance), the first one stays and is idle: verl's loop needs a row.
    """
    choose = SELECTIONS.get(config.algorithm.adv_estimator)
    if choose is None:
        return batch, {}
    reward = torch.tensor([tag["reward"] for tag in batch.tags], dtype=torch.float64)
    group, question = column(batch.tags, "group"), column(batch.tags, "question")
    kept = choose(reward, group, question, **own_options(choose, mas.advantage))
    metrics = selection_metrics(reward, group, kept)
    if not kept.any():
        kept[0] = batch.tags[0]["idle"] = True
    return without(batch, set((~kept).nonzero()[:, 0].tolist())), metrics


def without(batch: KVBatchMeta, dropped: set[int]) -> KVBatchMeta:
    """The batch without these rows, which leave the queue, too."""
    if not dropped:
        return batch
    tq.kv_clear(keys=[batch.keys[i] for i in sorted(dropped)], partition_id=batch.partition_id)
    kept = [i for i in range(len(batch)) if i not in dropped]
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[batch.keys[i] for i in kept],
        tags=[batch.tags[i] for i in kept],
        extra_info=batch.extra_info,
    )


def selection_metrics(reward: torch.Tensor, group: torch.Tensor, kept: torch.Tensor) -> dict[str, float]:
    """selection/*: how many rows and groups were dropped, and the share of the groups' summed variance that is kept."""
    variance, slot = group_variance(reward, group)
    left = torch.zeros(len(variance), dtype=torch.bool)
    left[slot[kept]] = True
    total = variance.sum().item()
    return {
        "selection/dropped_rows": int((~kept).sum()),
        "selection/dropped_groups": int((~left).sum()),
        "selection/kept_groups": int(left.sum()),
        "selection/variance_kept": variance[left].sum().item() / total if total else 1.0,
    }


def row_weights(kind: str, tags: list[dict[str, Any]]) -> torch.Tensor:
    """(N,) weights with mean 1 that turn a mean over rows into the mean that the algorithm asks for."""
    if kind == "trajectory":
        return trajectory_weights(column(tags, "trajectory"))
    return agent_weights(column(tags, "agent"), column(tags, "question") if kind == "question" else None)
