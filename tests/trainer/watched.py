"""Workflows whose module watches the trainer: what the actor's update gets, and what is in the queue then.

The training process imports it, as the workflow's module (`mas.workflow._target_`); no test does.

    watched.jsonl   a line per step: `rows`, key -> tags of what the update got; `queue`, the keys of all rows there
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transfer_queue as tq

from verl_ext.recipe.deepagent import DeepAgent
from verl_ext.recipe.mhgpo import SearchQA
from verl_ext.trainer.trainer import MultiAgentTrainer

TAGS = ("agent", "group", "question", "trajectory", "reward", "response_len", "calls", "actions", "metrics")


class Search(SearchQA):
    """The three-agent search system."""


class Tools(DeepAgent):
    """The agent with tools."""


_update = MultiAgentTrainer._update_actor


def _watched(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
    live = {
        key: {name: tag[name] for name in TAGS}
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False)
    }
    queue = tq.kv_list(batch.partition_id)[batch.partition_id]
    kept = sorted(key for key, tag in queue.items() if "trajectory" in tag and not tag.get("is_padding", False))
    with open(Path(self.config.trainer.default_local_dir) / "watched.jsonl", "a") as file:
        file.write(json.dumps({"rows": live, "queue": kept}) + "\n")
    return _update(self, batch, metrics)


MultiAgentTrainer._update_actor = _watched
