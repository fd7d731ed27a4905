"""`trainer.keep_best`: a copy of the checkpoint with the best validation, which verl does not remove."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_ext.storage.files import write_file
from verl_ext.trainer.state import checkpoint

FOLDER, RECORD = "best", "best.json"
# How names of metrics of validation begin: ours, and verl's.
VALIDATED = ("val/", "val-core/", "val-aux/")


class BestCheckpoint:
    """Keeps `<run>/best/global_step_N`, hard links to the files of the best checkpoint.

    Only steps that are both saved and validated count. Of equal ones the earlier is kept. Links need no space until
    verl removes the checkpoint itself.

    Args:
        folder: of the run.
        metric: of validation, as metrics.jsonl names it, e.g. val/system/f1; larger is better. None: nothing is kept.
    """

    def __init__(self, folder: str | Path, metric: str | None):
        self.run, self.folder, self.metric = Path(folder), Path(folder) / FOLDER, metric

    def consider(self, step: int, metrics: dict[str, Any]) -> None:
        """Keep the checkpoint of `step` if it is the best so far. A kill leaves the old one or the new one.

        Raises:
            ValueError: validation has no such metric, or the checkpoint's weights are not on this machine.
        """
        if self.metric is None:
            return
        if self.metric not in metrics:
            names = ", ".join(sorted(name for name in metrics if name.startswith("val/system/")))
            raise ValueError(
                f"trainer.keep_best={self.metric} is no metric of validation. Allowed, among others: {names}"
            )
        value, place = float(metrics[self.metric]), checkpoint.place_of(self.run, step)
        if not (place / checkpoint.COMPLETE).exists() or not value > self._value():
            return
        if not (place / "actor").is_dir():
            raise ValueError(
                f"trainer.keep_best: the weights of {place} are not on the trainer's machine. Remedy: "
                "trainer.default_local_dir on a disk that all machines share, or trainer.keep_best=null"
            )
        new = self.folder / place.name
        part = self.folder / f".{place.name}.part"
        for rest in (part, new):  # of a killed copy; of a step that was trained again
            shutil.rmtree(rest, ignore_errors=True)
        shutil.copytree(place, part, copy_function=_link)
        write_file(part / RECORD, json.dumps({"step": step, "metric": self.metric, "value": value}))
        part.rename(new)
        for old in self.folder.glob("*global_step_*"):  # with what a killed copy has left
            if old != new:
                shutil.rmtree(old)

    def _value(self) -> float:
        """The best value so far of this metric."""
        records = [json.loads(path.read_text()) for path in self.folder.glob(f"global_step_*/{RECORD}")]
        return max((one["value"] for one in records if one["metric"] == self.metric), default=float("-inf"))


def check_saving(config: DictConfig) -> None:
    """Refuse `trainer.keep_best` of what is no metric of validation, or where no step is both saved and validated, and
    saving from which no run continues, or without a folder.

    Raises:
        ValueError: see above.
    """
    trainer, actor = config.trainer, config.actor_rollout_ref.actor
    folder = trainer.default_local_dir
    if not isinstance(folder, str) or not folder.strip():
        raise ValueError(
            f"trainer.default_local_dir={folder!r} must be a folder, which the run writes into. Remedy: name one, e.g. "
            "trainer.default_local_dir=runs/mine"
        )
    if actor.checkpoint.get("async_save") and (actor.strategy != "megatron" or trainer.get("keep_best")):
        why = f"with trainer.keep_best={trainer.get('keep_best')} nobody would know when a checkpoint is complete"
        if actor.strategy != "megatron":
            why = f"verl has it for Megatron; with strategy={actor.strategy} it would only never say which one is last"
        raise ValueError(
            f"actor_rollout_ref.actor.checkpoint.async_save=true: {why}. "
            "Remedy: actor_rollout_ref.actor.checkpoint.async_save=false"
        )
    if trainer.get("keep_best") and not str(trainer.keep_best).startswith(VALIDATED):
        raise ValueError(
            f"trainer.keep_best={trainer.keep_best} can be no metric of validation: their names begin with "
            f"{', '.join(VALIDATED)}. Remedy: a name in metrics.jsonl, e.g. val/system/f1"
        )
    if trainer.get("keep_best") and min(trainer.save_freq, trainer.test_freq) < 1:
        raise ValueError(
            f"trainer.keep_best={trainer.keep_best} needs checkpoints and validations, given trainer.save_freq="
            f"{trainer.save_freq} and trainer.test_freq={trainer.test_freq}. Remedy: both above 0; a step counts if it "
            "is saved and validated"
        )


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
