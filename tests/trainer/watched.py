"""Workflows whose module watches the trainer: what the actor's update gets, and what is in the queue then.

The training process imports it, as the workflow's module (`mas.workflow._target_`); no test does.

    watched.jsonl   a line per step: `rows`, key -> tags of what the update got, and of its tokens mask, advantages and,
                    where an agent decides, what was allowed; `queue`, the keys of all rows there
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transfer_queue as tq

from verl_ext.engine.fsdp.masked_logits import ALLOWED
from verl_ext.recipe.deepagent import DeepAgent
from verl_ext.recipe.mhgpo import SearchQA
from verl_ext.recipe.smurfs import Smurfs
from verl_ext.trainer.trainer import MultiAgentTrainer

TAGS = ("agent", "group", "question", "trajectory", "reward", "response_len", "calls", "actions", "metrics", "decides")
TOKENS = ("response_mask", "advantages")


class Search(SearchQA):
    """The three-agent search system."""


class Tools(DeepAgent):
    """The agent with tools."""


class Team(Smurfs):
    """Planner, executor, answer agent and verifier."""


_update = MultiAgentTrainer._update_actor


def _watched(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
    live = {
        key: {name: tag[name] for name in TAGS}
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False)
    }
    wanted = [*TOKENS, ALLOWED] if any(row["decides"] for row in live.values()) else TOKENS
    data = tq.kv_batch_get(keys=list(live), partition_id=batch.partition_id, select_fields=list(wanted))
    for name in wanted:
        for row, values in zip(live.values(), data[name].unbind(), strict=True):
            row[name] = values.tolist()
    queue = tq.kv_list(batch.partition_id)[batch.partition_id]
    kept = sorted(key for key, tag in queue.items() if "trajectory" in tag and not tag.get("is_padding", False))
    with open(Path(self.config.trainer.default_local_dir) / "watched.jsonl", "a") as file:
        file.write(json.dumps({"rows": live, "queue": kept}) + "\n")
    return _update(self, batch, metrics)


MultiAgentTrainer._update_actor = _watched
