"""Makes verl's checkpoint tracker survive a kill at any moment.

verl writes `latest_checkpointed_iteration.txt` in place; a kill between truncation and write leaves it empty, and the
next start fails to read it. A marker in each finished checkpoint lets the tracker be rebuilt.

verl removes actor and critic of old checkpoints as soon as the new ones are saved, and leaves the rest of the folder.
So after a kill under max_actor_ckpt_to_keep=1 the tracker may name a checkpoint without weights.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_ext.storage.files import write_file

logger = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"
MARKER = "complete"
SETTINGS_FILE = "settings.json"
STATE_FILE = "algorithm.json"


def mark_complete(folder: str | Path, step: int) -> None:
    """Mark the checkpoint of `step` as complete, with the settings of the run, and write the tracker atomically."""
    place = Path(folder) / f"global_step_{step}"
    if not place.is_dir():  # saved elsewhere (asynchronous or remote saving); verl keeps the tracker
        return
    record = Path(folder) / SETTINGS_FILE
    write_file(place / MARKER, record.read_text() if record.exists() else "{}")
    write_file(Path(folder) / TRACKER, str(step))


def write_state(folder: str | Path, step: int, state: dict[str, Any]) -> None:
    """Save the state of the algorithm (plain JSON) in the checkpoint of `step`."""
    if state:
        write_file(Path(folder) / f"global_step_{step}" / STATE_FILE, json.dumps(state))


def read_state(place: Path) -> dict[str, Any]:
    """The state that `write_state` has saved in a checkpoint; empty if there is none."""
    file = place / STATE_FILE
    return json.loads(file.read_text()) if file.exists() else {}


def remove_stale(folder: Path, part: str) -> None:
    """Remove `part` from the checkpoints whose weights verl has removed; verl leaves the rest of their folders."""
    for copy in folder.glob(f"global_step_*/{part}"):
        if not (copy.parent / "actor").is_dir():
            shutil.rmtree(copy)


def repair_tracker(folder: str | Path) -> None:
    """If the tracker is unreadable or names a checkpoint without an actor, let it name the newest complete one."""
    tracker = Path(folder) / TRACKER
    if not tracker.exists():
        return
    text = tracker.read_text(errors="replace").strip()
    if text.isdigit() and (Path(folder) / f"global_step_{text}" / "actor").is_dir():
        return
    steps = complete_steps(folder)
    logger.warning("%s holds %r; complete checkpoints: %s", tracker, text, steps or "none")
    if steps:
        write_file(tracker, str(steps[-1]))
    else:
        tracker.unlink()


def complete_steps(folder: str | Path) -> list[int]:
    """Steps of the complete checkpoints in `folder` that still have their actor, ascending."""
    found = (path.parent for path in Path(folder).glob(f"global_step_*/{MARKER}") if (path.parent / "actor").is_dir())
    steps = (path.name.removeprefix("global_step_") for path in found)
    return sorted(int(step) for step in steps if step.isdigit())


# The settings that identify a run: continuing under other values would silently mix two runs.
SECTIONS = {
    "mas": "workflow policy sampling credit advantage loss agents memory prepare seed",
    "actor_rollout_ref.model": "path lora_rank lora_alpha",
    "actor_rollout_ref.actor": "ppo_mini_batch_size ppo_epochs clip_ratio_low clip_ratio_high use_kl_loss kl_loss_coef "
    "kl_loss_type entropy_coeff optim.lr",
    "actor_rollout_ref.rollout": "temperature top_p top_k",
    "critic": "optim.lr",
    "data": "train_files train_batch_size seed",
}
SETTINGS = ("algorithm", *(f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys.split()))


def check_same_run(config: DictConfig) -> None:
    """Record the settings of a run for its checkpoints; refuse to resume from a checkpoint with other settings.

    Only what `resume_mode=auto` finds is checked: `disable` and `resume_path` are the user's explicit wish.

    Raises:
        ValueError: the folder's last checkpoint is of a run with other settings; names those that differ.
    """
    if config.trainer.get("val_only", False):
        return
    folder = Path(config.trainer.default_local_dir)
    now = {name: plain(OmegaConf.select(config, name)) for name in SETTINGS}
    before = _settings_of_last(folder) if config.trainer.resume_mode == "auto" else {}
    changed = [name for name in SETTINGS if name in before and before[name] != now[name]]
    if changed:
        pairs = "\n".join(line for name in changed for line in differences(name, before[name], now[name]))
        raise ValueError(
            f"{folder} holds a run with other settings, which would be continued:\n{pairs}\n"
            "Remedy: another folder (trainer.default_local_dir=…), or remove this one; to go on with other settings on "
            "purpose: trainer.resume_mode=resume_path and trainer.resume_from_path=…/global_step_…"
        )
    write_file(folder / SETTINGS_FILE, json.dumps(now, indent=1))


def _settings_of_last(folder: Path) -> dict[str, Any]:
    """Settings of the checkpoint from which `resume_mode=auto` resumes; empty if there are none."""
    steps = complete_steps(folder)
    if not steps or not (folder / TRACKER).exists():
        return {}
    tracked = (folder / TRACKER).read_text(errors="replace").strip()
    last = tracked if tracked.isdigit() and int(tracked) in steps else steps[-1]
    settings = json.loads((folder / f"global_step_{last}" / MARKER).read_text())
    return settings if isinstance(settings, dict) else {}


def differences(name: str, before: Any, now: Any) -> list[str]:
    """A line per leaf that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [line for key in keys for line in differences(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"  {name}: {before} there, {now} here"]


def plain(value: Any) -> Any:
    """As JSON reads it back."""
    value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return json.loads(json.dumps(value, default=str))
