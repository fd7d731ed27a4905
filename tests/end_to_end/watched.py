"""Workflows whose module records the rows that the actor's update gets, and the rows that are in the queue then.

The training process imports this module as that of the workflow (`mas.workflow._target_`). Tests read its file and do
not import it, because it changes the trainer.

    watched.jsonl   a line per update: `rows`, key -> tags of a row, and for its tokens the mask, the advantages and,
                    where an agent decides, the allowed tokens; `queue`, the keys of all rows there
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transfer_queue as tq

from tests.end_to_end.running import WATCHED
from verl_ext.engine.fsdp.masked_logits import ALLOWED
from verl_ext.mas import Task
from verl_ext.recipe.deepagent import DeepAgent
from verl_ext.recipe.mhgpo import SearchQA
from verl_ext.recipe.smurfs import Smurfs
from verl_ext.trainer.row import PACKED, unpack
from verl_ext.trainer.trainer import MultiAgentTrainer

TAGS = ("agent", "group", "question", "trajectory", "reward", "response_len", "calls", "actions", "metrics", "decides")
TOKENS = ("response_mask", "advantages")


class Search(SearchQA):
    """The three-agent search system without penalties. After the first update every trajectory has the same reward."""

    def __init__(self, prompts: str = "faithful", penalties: Any = None):
        super().__init__(prompts, {"too_many_queries": 0, "bad_choice": 0, "long_answer": 0})

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        reward, scores = super().reward(task, result)
        return (0.0 if any(Path("runs").glob(f"*/{WATCHED}")) else reward), scores


class Tools(DeepAgent):
    """DeepAgent."""


class Team(Smurfs):
    """The Smurfs."""


_update = MultiAgentTrainer._update_actor


def _watched(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
    live = {
        key: {name: tag[name] for name in TAGS}
        for key, tag in zip(batch.keys, unpack(batch.tags), strict=True)
        if not tag.get("is_padding", False)
    }
    wanted = [*TOKENS, ALLOWED] if any(row["decides"] for row in live.values()) else TOKENS
    data = tq.kv_batch_get(keys=list(live), partition_id=batch.partition_id, select_fields=list(wanted))
    for name in wanted:
        for row, values in zip(live.values(), data[name].unbind(), strict=True):
            row[name] = values.tolist()
    queue = tq.kv_list(batch.partition_id)[batch.partition_id]
    kept = sorted(key for key, tag in queue.items() if PACKED in tag and not tag.get("is_padding", False))
    with open(Path(self.config.trainer.default_local_dir) / WATCHED, "a") as file:
        file.write(json.dumps({"rows": live, "queue": kept}) + "\n")
    return _update(self, batch, metrics)


MultiAgentTrainer._update_actor = _watched
