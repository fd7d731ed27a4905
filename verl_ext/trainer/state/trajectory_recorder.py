"""The trainer's side of the trajectory log: chooses the logged questions, and adds their groups and advantages.

Beside the log are the rows of the logged questions as they trained, one file a step (`rows/step_000012.json.gz`), from
which `verl_ext doctor RUN --step 12` recomputes advantages and log-probabilities.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta

from verl_ext.observe.trajectories import Place, QuestionTrace, Trained, training_record
from verl_ext.observe.trajectory_files import ROWS, TrajectoryLog, folder_name
from verl_ext.storage.files import write_file
from verl_ext.trainer.row import unpack
from verl_ext.trainer.sections import TrajectoryLogSection

ABOUT = {
    "estimator": "algorithm.adv_estimator",
    "options": "mas.advantage",
    "by_std": "algorithm.norm_adv_by_std_in_grpo",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "model": "actor_rollout_ref.model.path",
    "policies": "mas.policies",
    "folder": "trainer.default_local_dir",
}
# Columns of the logged rows.
OF_TOKENS = ("response_mask", "advantages", "old_log_probs", "rollout_log_probs")
COLUMNS = ("prompts", "responses", *OF_TOKENS)


class TrajectoryRecorder:
    """Writes the trajectory log of a run (`mas.trajectory_log`).

    `collect` and `write_training` belong to one training step, or a part of one, in this order; `write_validation` to
    one validation.

    Args:
        config: verl's whole configuration.
        options: the section.
    """

    def __init__(self, config: DictConfig, options: TrajectoryLogSection):
        self.options = options
        folder = f"{config.trainer.default_local_dir}/{folder_name(config)}"
        self.log = TrajectoryLog(folder, int(options.file_mb * 1e6), options.files)
        self._folder = Path(folder)
        self._bypass = bool(OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode"))
        # What recomputes the rows of a step: estimator and its options, temperature and model.
        self._about = {name: OmegaConf.select(config, key) for name, key in ABOUT.items()}
        self._trainer = config.trainer
        self._last_step = 0
        self._traces: list[QuestionTrace] = []
        # Of the step under way, which may train in parts: its number, its logged questions so far, and their rows.
        self._step, self._logged, self._rows = 0, 0, list[dict[str, Any]]()

    def start(self, restored_step: int, last_step: int) -> None:
        """Prepare the log for a run that goes on after `restored_step` (0: from scratch)."""
        self._last_step = last_step
        self.log.start(restored_step, validates_again=bool(self._trainer.get("val_before_train", True)))

    def collect(self, step: int, uids: list[str], manager: Any, last: bool = False) -> None:
        """Fetch the traces of logged questions among these of the step; those of the others are dropped.

        `last`: the budget ends the run with this step.
        """
        if step != self._step:
            self._step, self._logged, self._rows = step, 0, []
        wanted = last or step % self.options.every == 0 or step in (1, self._last_step)
        questions = self.options.train_questions
        count = max(questions - self._logged, 0) if wanted else 0
        self._traces = manager.take_traces(uids, count) if questions else []

    def write_training(self, step: int, batch: KVBatchMeta, weights: torch.Tensor) -> None:
        """Write the collected questions with the groups and advantages that TransferQueue now holds for `batch`.

        Args:
            weights: of all rows in the loss.
        """
        # For each call: its row, and the range of its output there.
        rows: dict[str, dict[Place, tuple[int, int, int]]] = {trace.uid: {} for trace in self._traces}
        tags = unpack(batch.tags)
        for row, tag in enumerate(tags):
            if not tag.get("is_padding", False) and tag["question"] in rows:
                for position, start, stop in tag["calls"]:
                    rows[tag["question"]][tag["order"][2], position] = (row, start, stop)
        columns = _columns(batch, sorted({row for places in rows.values() for row, _, _ in places.values()}))
        if columns:
            numbers = {trace.uid: number for number, trace in enumerate(self._traces, self._logged)}
            about = ({"question": numbers[tags[row]["question"]], "tag": tags[row]} for row in columns)
            own = ({"weight": weights[row].item(), **columns[row]} for row in columns)
            self._rows += [one | other for one, other in zip(about, own, strict=True)]
            self._write_rows(step, self._rows)
        records = []
        for number, trace in enumerate(self._traces, self._logged):
            trained = {
                place: self._trained(tags[row]["group"].removeprefix(f"{trace.uid}/"), columns[row], weights[row], span)
                for place, (row, *span) in rows[trace.uid].items()
            }
            records.append(training_record(trace, "train", step, number, trained))
        self.log.write(records)
        self._logged += len(self._traces)
        self._traces = []

    def _trained(self, group: str, row: dict[str, list[Any]], weight: torch.Tensor, span: list[int]) -> Trained:
        """What a call whose output is `span` of the response of `row` learned from."""
        mask, advantages, trainer, rollout = (row[name][slice(*span)] for name in OF_TOKENS)
        differences = [abs(a - b) for a, b, on in zip(trainer, rollout, mask, strict=True) if on]
        return Trained(
            group,
            [value if on else None for value, on in zip(advantages, mask, strict=True)],
            weight.item(),
            None if self._bypass else max(differences, default=None),
        )

    def _write_rows(self, step: int, rows: list[dict[str, Any]]) -> None:
        text = json.dumps({"step": step, "run": self._about, "rows": rows}, default=OmegaConf.to_container)
        write_file(self._folder / ROWS.format(step=step), gzip.compress(text.encode(), mtime=0))

    def discard_validation(self, manager: Any) -> None:
        """Drop the traces of a validation that did not end."""
        if self.options.val_questions:
            manager.take_traces(None, 0)

    def write_validation(self, step: int, manager: Any) -> None:
        """Write the logged questions of the validation that has just ended."""
        count = self.options.val_questions
        traces = manager.take_traces(None, count) if count else []
        self.log.write([training_record(trace, "val", step, number) for number, trace in enumerate(traces)])


def _columns(batch: KVBatchMeta, rows: list[int]) -> dict[int, dict[str, list[Any]]]:
    """Row of the batch -> its columns: float32 values, written with as many digits as they have."""
    if not rows:
        return {}
    keys = [batch.keys[row] for row in rows]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(COLUMNS))
    found: dict[int, dict[str, list[Any]]] = {row: {} for row in rows}
    for name in COLUMNS:
        for row, values in zip(rows, data[name].unbind(), strict=True):
            whole = not values.is_floating_point()
            found[row][name] = values.tolist() if whole else [float(str(one)) for one in values.float().numpy()]
    return found
