"""Which checkpoint a run continues from. A kill at any moment leaves a run that continues; nothing is deleted here.

    global_step_N/saving                 the checkpoint is being written
    global_step_N/complete               everything is written: the settings of the run, and which weights are here
    latest_checkpointed_iteration.txt    verl's tracker, which names the last checkpoint
    previous_K/                          what a run that started from scratch has found in its folder

verl writes its tracker in place: a kill between truncation and write leaves it empty. verl also removes the weights of
old checkpoints and leaves the rest of their folders. Weights that were never seen here are on another machine's disk,
and no reason to take a checkpoint for a removed one.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, open_dict

from verl_ext.observe.runlog import NAME, TRACKER, VALIDATION
from verl_ext.observe.trajectory_files import FOLDER as TRAJECTORIES
from verl_ext.observe.trajectory_files import VALIDATION_FOLDER
from verl_ext.storage.files import lock_folder, write_file
from verl_ext.trainer.policies.checkpoints import read_record

logger = logging.getLogger(__name__)

SAVING, COMPLETE = "saving", "complete"
SETTINGS_FILE = "settings.json"
STATE_FILE = "algorithm.json"
WEIGHTS = ("actor", "critic")
# What a run writes into its folder, and a run from scratch would overwrite. Checkpoints and tracker come last: what a
# kill in the middle of `set_aside` leaves is set aside by the next start.
WRITTEN = (NAME, TRAJECTORIES, "memory", "best", "learning_curve.png", "collaboration.png", "global_step_*", TRACKER)


def keep_two(config: DictConfig) -> None:
    """Where one checkpoint is to be kept, let verl keep two.

    verl would remove the last complete one before the new one is complete, so that a kill in between loses both. It
    needs the space of two in any case: with two, it removes the older one before it writes.
    """
    with open_dict(config.trainer):
        for key in (f"max_{name}_ckpt_to_keep" for name in WEIGHTS):
            if config.trainer.get("remove_previous_ckpt_in_save", False) or config.trainer.get(key) == 1:
                config.trainer[key] = 2
        config.trainer.remove_previous_ckpt_in_save = False


def place_of(folder: str | Path, step: int) -> Path:
    """Folder of the checkpoint of `step`."""
    return Path(folder) / f"global_step_{step}"


def begin(folder: str | Path, step: int) -> None:
    """Mark the checkpoint of `step` as being written. A complete one of that step, of an earlier run, is set aside."""
    place = place_of(folder, step)
    if (place / COMPLETE).exists():
        set_aside(folder, [place.name])
    write_file(place / SAVING, "")


def mark_complete(folder: str | Path, step: int, recorded: dict[str, Any] | None = None) -> None:
    """Mark the checkpoint of `step` as complete, with the settings of the run, and write the tracker atomically.

    recorded: what the tools' caches hold (`tool_caches.recorded_results`).
    """
    place, settings = place_of(folder, step), Path(folder) / SETTINGS_FILE
    record = {
        "weights": weights_in(place),
        "settings": json.loads(settings.read_text()) if settings.exists() else {},
        "recorded": recorded or {},
    }
    write_file(place / COMPLETE, json.dumps(record))
    (place / SAVING).unlink(missing_ok=True)
    write_file(Path(folder) / TRACKER, str(step))


def weights_in(place: Path) -> list[str]:
    """The folders with weights in a checkpoint: of actor and critic, or of each policy in them (`mas.policies`).

    verl removes those of an old checkpoint one policy at a time, and leaves the folders above them.
    """
    parts = [name for name in WEIGHTS if (place / name).is_dir()]
    policies = [name for name, one in read_record(place / "actor").items() if not one["frozen"]]
    return [f"{part}/{name}" for part in parts for name in policies] or parts


def write_state(folder: str | Path, step: int, state: dict[str, Any]) -> None:
    """Save the state of the algorithm (plain JSON) in the checkpoint of `step`."""
    if state:
        write_file(place_of(folder, step) / STATE_FILE, json.dumps(state))


def read_state(place: Path) -> dict[str, Any]:
    """The state that `write_state` has saved in a checkpoint; empty if there is none."""
    file = place / STATE_FILE
    return json.loads(file.read_text()) if file.exists() else {}


def remove_stale(folder: Path, part: str) -> None:
    """Remove `part` from the checkpoints whose weights verl has removed; verl leaves the rest of their folders."""
    for copy in folder.glob(f"global_step_*/{part}"):
        if (copy.parent / COMPLETE).exists() and not _is_whole(copy.parent):
            shutil.rmtree(copy)


def read_marker(place: Path) -> dict[str, Any]:
    """{"weights", "settings", "recorded"} of a complete checkpoint; empty if the file does not say."""
    try:
        record = json.loads((place / COMPLETE).read_text())
    except (OSError, ValueError):
        record = {}
    record = record if isinstance(record, dict) else {}
    return {"weights": [], "settings": {}, "recorded": {}} | record


def complete_steps(folder: str | Path) -> list[int]:
    """Steps of the complete checkpoints in `folder` whose weights are still where they were, ascending."""
    return [step for step in _steps(folder) if _is_whole(place_of(folder, step))]


def last_checkpoint(folder: str | Path) -> int | None:
    """The step from which a run in `folder` continues; None: no checkpoint was ever complete.

    It is the step that the tracker names, or the last complete one if a kill has damaged the tracker.

    Raises:
        ValueError: the checkpoint that the tracker names is not there, or there are only traces of checkpoints.
    """
    tracker = Path(folder) / TRACKER
    text = tracker.read_text(errors="replace").strip() if tracker.exists() else None
    tracked = int(text) if text and text.isdigit() else None
    complete = complete_steps(folder)
    if tracked in complete or (tracked is not None and _is_unmarked(place_of(folder, tracked))):
        return tracked
    steps = [step for step in _steps(folder) if step not in complete]
    unfinished = [step for step in steps if (place_of(folder, step) / SAVING).exists()]
    if complete and tracked in (None, *unfinished):
        logger.warning("%s holds %r; complete checkpoints: %s", tracker, text, complete)
        return complete[-1]
    if unfinished == steps and not complete and (text is None or (steps and tracked in (None, *steps))):
        return None  # nothing, or a kill while the first checkpoint was written
    raise ValueError(_not_found(Path(folder), text, steps, complete))


def resumed_from(config: DictConfig) -> Path | None:
    """The checkpoint (…/global_step_N) from which a run continues; None: from scratch.

    Raises:
        ValueError: `resume_path` names no folder; or see `last_checkpoint`.
    """
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        given = trainer.get("resume_from_path")
        if not given or not Path(str(given)).is_dir():
            raise ValueError(
                f"trainer.resume_mode=resume_path goes on from the checkpoint that trainer.resume_from_path={given} "
                "names, which is no folder. Remedy: trainer.resume_from_path=…/global_step_N, or resume_mode=auto"
            )
        return Path(given)
    step = last_checkpoint(trainer.default_local_dir) if trainer.resume_mode == "auto" else None
    return None if step is None else place_of(trainer.default_local_dir, step)


def next_start(trainer: DictConfig) -> str:
    """What the same command does after this run, as the end of a sentence."""
    folder, begins = Path(trainer.default_local_dir), "starts afresh"
    try:
        step = last_checkpoint(folder)
    except ValueError:
        step = None
        if trainer.resume_mode == "auto":
            return f"is refused until a complete checkpoint is in {folder}"
    goes_on = "" if step is None else f"goes on from {place_of(folder, step)}"
    if trainer.resume_mode == "auto":
        return goes_on or f"{begins}: it has no checkpoint yet"
    if trainer.resume_mode == "resume_path":
        begins = f"begins again from {trainer.resume_from_path}"
    return f"{begins} (trainer.resume_mode={trainer.resume_mode}){goes_on and f'; with auto it {goes_on}'}"


def prepare_start(config: DictConfig) -> Path | None:
    """Prepare the folder of a run: repair verl's tracker, or set aside what a run from scratch would overwrite.

    Returns:
        The folder to which an earlier run's files were moved; None if there were none.

    Raises:
        ValueError: see `last_checkpoint`.
    """
    folder, mode = Path(config.trainer.default_local_dir), config.trainer.resume_mode
    step = last_checkpoint(folder) if mode == "auto" else None
    if step is not None:
        write_file(folder / TRACKER, str(step))
    if config.trainer.get("val_only", False):
        return set_aside(folder, [VALIDATION, VALIDATION_FOLDER])
    if mode == "resume_path":
        return _set_later_aside(folder, Path(config.trainer.resume_from_path))
    return set_aside(folder, WRITTEN if step is None else _later_best(folder, step))


def _set_later_aside(folder: Path, source: Path) -> Path | None:
    """Set aside what a run in `folder` would overwrite that continues from `source` (…/global_step_N)."""
    parents = source.resolve().parent, source.parent.resolve()  # it may be a link to another disk
    if not {folder.resolve(), folder.resolve() / "best"} & set(parents):  # of another run, as those in previous_K are
        return set_aside(folder, WRITTEN)
    number = source.name.removeprefix("global_step_")
    if not number.isdigit():
        raise ValueError(f"trainer.resume_from_path={source} must name a checkpoint: …/global_step_N")
    later = [place_of(folder, step).name for step in _steps(folder) if step > int(number)]
    place = set_aside(folder, [*later, *_later_best(folder, int(number))])
    if place is not None and (folder / NAME).exists():
        shutil.copy2(folder / NAME, place)
    return place


def _later_best(folder: Path, step: int) -> list[str]:
    """The best checkpoint if it is of a step after `step`: this run trains that step anew, and may never reach it."""
    return ["best"] if any(best > step for best in _steps(folder / "best")) else []


def lock_run(config: DictConfig) -> IO[str] | None:
    """Lock the folder of a run for this process; None for an evaluation, or where the file system has no locks.

    Raises:
        ValueError: another process trains into this folder.
    """
    if config.trainer.get("val_only", False):
        return None
    folder = Path(config.trainer.default_local_dir)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_folder(folder)
    except OSError as error:
        logger.warning("%s", error)
        return None
    if lock is None:
        raise ValueError(
            f"another process trains into {folder}. Remedy: wait for it, end it, or another folder "
            "(trainer.default_local_dir=…)"
        )
    return lock


def set_aside(folder: str | Path, patterns: Iterable[str]) -> Path | None:
    """Move what matches into a new folder `previous_K`; returns it, or None if nothing matches."""
    found = [path for pattern in patterns for path in sorted(Path(folder).glob(pattern))]
    if not found:
        return None
    places = (Path(folder) / f"previous_{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    place.mkdir()
    for path in found:
        path.rename(place / path.name)
    return place


def _steps(folder: str | Path) -> list[int]:
    names = (path.name.removeprefix("global_step_") for path in Path(folder).glob("global_step_*"))
    return sorted(int(name) for name in names if name.isdigit())


def _is_whole(place: Path) -> bool:
    return (place / COMPLETE).exists() and all((place / name).is_dir() for name in read_marker(place)["weights"])


def _is_unmarked(place: Path) -> bool:
    """True for a checkpoint of verl's asynchronous saving, or of another trainer: only the tracker vouches for it."""
    return place.is_dir() and not (place / COMPLETE).exists() and not (place / SAVING).exists()


def _not_found(folder: Path, text: str | None, steps: list[int], complete: list[int]) -> str:
    seen = [f"  {place_of(folder, step).name}: complete" for step in complete]
    for place in (place_of(folder, step) for step in steps):
        missing = [name for name in read_marker(place)["weights"] if not (place / name).is_dir()]
        state = f"its {' and '.join(missing)} is missing" if missing else f"without the file `{COMPLETE}`"
        seen.append(f"  {place.name}: {state}")
    tracker = "there is no" if text is None else f"{text!r} in"
    return "\n".join(
        [
            f"{folder} holds a run, but not the checkpoint from which it would continue: {tracker} {TRACKER}, and",
            *(seen or ["  there is no global_step_N"]),
            "Remedy: if the checkpoints are on another disk, make it visible in this folder; to continue from one of "
            "them: trainer.resume_mode=resume_path and trainer.resume_from_path=…/global_step_…; to train from "
            "scratch: trainer.resume_mode=disable, which moves what is there to previous_1, or another folder "
            "(trainer.default_local_dir=…)",
        ]
    )
