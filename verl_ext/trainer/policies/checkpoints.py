"""The policies in a checkpoint: global_step_N/actor/<policy>, critic/<policy>, and actor/policies.json.

verl's weights stay in folders named actor and critic: of a checkpoint without them, our own repair would say that it
was removed. Frozen policies have no folder; the record names their model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_ext.trainer.policies.settings import policy_config, read_policies

RECORD = "policies.json"
FIELDS = ("agents", "frozen", "model", "chat_template")


def record_of(config: DictConfig) -> str:
    """Which policies a run has, as JSON."""
    return json.dumps(described(config), indent=1)


def described(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Which policies a run has: {name: {agents, model, frozen, chat_template}}."""
    whole: dict[str, dict[str, Any]] = {}
    for name, section in read_policies(config).items():
        model = policy_config(config, name).actor_rollout_ref.model
        whole[name] = {"agents": section.agents, "frozen": section.frozen, "model": str(model.path)}
        whole[name]["chat_template"] = section.chat_template
    return whole


def read_record(actor: Path) -> dict[str, dict[str, Any]]:
    """What `record_of` says, in the folder `actor` of a checkpoint; empty if it has one policy.

    Raises:
        ValueError: it is damaged.
    """
    file = actor / RECORD
    try:
        found = json.loads(file.read_text()) if file.exists() else {}
        return {name: {field: about[field] for field in FIELDS} for name, about in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the policies of the checkpoint, {file}, is damaged: {type(error).__name__}: {error}"
        ) from error
