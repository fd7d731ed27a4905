"""Orders rows, drops those that do not train, forms groups across questions, and weighs rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import uuid4

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_ext.algorithms import Algorithm, row_weights
from verl_ext.algorithms.groups import group_variance
from verl_ext.mas.noise import derive_seed
from verl_ext.sampling.base import SHUFFLED
from verl_ext.trainer.batch import live_rows, live_tags, rows_of
from verl_ext.trainer.row import Tag, pack, padding_row, unpack

Selected = tuple[KVBatchMeta, dict[str, float]]


def order(batch: KVBatchMeta) -> KVBatchMeta:
    """Sort rows by question, trajectory and position, so that the order of arrival does not matter."""
    tags = unpack(batch.tags)
    batch.reorder(sorted(range(len(batch)), key=lambda i: tags[i]["order"]))
    return batch


def drop_idle(batch: KVBatchMeta) -> KVBatchMeta:
    """Drop idle rows (`forest_to_rows.idle_row`), unless there are no others."""
    idle = {row for row, tag in enumerate(unpack(batch.tags)) if tag.get("idle")}
    return batch if is_idle(batch) else without(batch, idle)


def is_idle(batch: KVBatchMeta) -> bool:
    """True if no row of the batch trains."""
    return all(tag.get("idle") for tag in unpack(batch.tags))


def regroup(batch: KVBatchMeta, group_size: int, seed: int, step: int) -> Selected:
    """Shuffle the rows of group `SHUFFLED`, cut them into groups of G, drop the remainder (MHGPO, Algorithm 5).

    If that is all rows, one stays as an idle row: verl's loop needs a row.
    """
    tags = unpack(batch.tags)
    singles = [i for i, tag in enumerate(tags) if tag["group"] == "/".join(SHUFFLED)]
    random.Random(derive_seed(seed, step, "regroup")).shuffle(singles)
    whole = len(singles) // group_size * group_size
    for place, row in enumerate(singles[:whole]):
        tags[row]["group"] = "/".join((*SHUFFLED, str(place // group_size)))
        batch.tags[row] = pack(tags[row])
    if whole:  # verl reads the tags from TransferQueue again
        keys, grouped = [[values[row] for row in singles[:whole]] for values in (batch.keys, batch.tags)]
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, tags=grouped)
    dropped = set(singles[whole:])
    metrics = {"groups/dropped_rows": len(dropped)}
    if len(dropped) == len(batch):
        batch.tags[dropped.pop()]["idle"] = True
    return without(batch, dropped), metrics


def select(batch: KVBatchMeta, algorithm: Algorithm) -> Selected:
    """Drop the rows that the algorithm does not train on, before any forward pass.

    If it trains on none (no group has any variance), the first row stays as an idle row: verl's loop needs a row.
    """
    rows = rows_of(unpack(batch.tags))
    kept = algorithm.select(rows)
    if kept is None:
        return batch, {}
    metrics = selection_metrics(rows.reward, rows.group, kept)
    if not kept.any():
        kept[0] = batch.tags[0]["idle"] = True
    return without(batch, set((~kept).nonzero()[:, 0].tolist())), metrics


def pad(batch: KVBatchMeta, multiple: int, end_token: int) -> KVBatchMeta:
    """Append rows that train nothing, until the number of rows is a multiple of `multiple`."""
    missing = -len(batch) % multiple
    if not missing:
        return batch
    columns = set(tq.kv_batch_get(keys=batch.keys[:1], partition_id=batch.partition_id).keys())
    uid = f"pad{uuid4().hex}"
    rows = [padding_row(uid, number, end_token, columns) for number in range(missing)]
    keys, tags = [row.key for row in rows], [pack(row.tag) for row in rows]
    fields = list_of_dict_to_tensordict([row.fields for row in rows])
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields, tags=tags)
    return _changed(batch, [*batch.keys, *keys], [*batch.tags, *tags])


def without(batch: KVBatchMeta, dropped: set[int]) -> KVBatchMeta:
    """The batch without these rows; they are removed from TransferQueue, too."""
    if not dropped:
        return batch
    tq.kv_clear(keys=[batch.keys[i] for i in sorted(dropped)], partition_id=batch.partition_id)
    kept = [i for i in range(len(batch)) if i not in dropped]
    return _changed(batch, [batch.keys[i] for i in kept], [batch.tags[i] for i in kept])


def chosen(batch: KVBatchMeta, rows: Sequence[int]) -> KVBatchMeta:
    """These rows of the batch; the others stay in TransferQueue."""
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[batch.keys[row] for row in rows],
        tags=[batch.tags[row] for row in rows],
        fields=batch.fields,
        extra_info=batch.extra_info,
    )


def _changed(batch: KVBatchMeta, keys: list[str], tags: list[Tag]) -> KVBatchMeta:
    return KVBatchMeta(partition_id=batch.partition_id, keys=keys, tags=tags, extra_info=batch.extra_info)


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


def weights_of(tags: list[Tag], kind: str, loss_agg_mode: str) -> torch.Tensor:
    """(N,) float64: the weight of each row in the loss, by `mas.loss.agent_weights`; padding rows get 0.

    verl's seq-mean modes divide by the number of all rows, padding included, so the other weights are scaled up.
    token-mean divides by the number of tokens that train; padding rows have none, so nothing is scaled.
    """
    live, kept = live_rows(tags), live_tags(tags)
    scale = len(tags) / len(kept) if loss_agg_mode.startswith("seq-mean") else 1.0
    weights = torch.zeros(len(tags), dtype=torch.float64)
    weights[live] = scale if kind == "none" else scale * row_weights()[kind].weigh(rows_of(kept))
    return weights
