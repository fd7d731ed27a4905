"""The trainer's side of the trajectory log: chooses the logged questions, and adds their groups and advantages."""

from __future__ import annotations

from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from verl_ext.observe.trajectories import Place, QuestionTrace, Trained, training_record
from verl_ext.observe.trajectory_files import TrajectoryLog, folder_name
from verl_ext.trainer.config import TrajectoryLogSection
from verl_ext.trainer.row import unpack


class TrajectoryRecorder:
    """Writes the trajectory log of a run (`mas.trajectory_log`).

    `collect` and `write_training` belong to one training step, in this order; `write_validation` to one validation.

    Args:
        config: verl's whole configuration.
        options: the section.
    """

    def __init__(self, config: DictConfig, options: TrajectoryLogSection):
        self.options = options
        folder = f"{config.trainer.default_local_dir}/{folder_name(config)}"
        self.log = TrajectoryLog(folder, int(options.file_mb * 1e6), options.files)
        self._validates_first = bool(config.trainer.get("val_before_train", True))
        self._last_step = 0
        self._traces: list[QuestionTrace] = []

    def start(self, restored_step: int, last_step: int) -> None:
        """Prepare the log for a run that goes on after `restored_step` (0: from scratch)."""
        self._last_step = last_step
        self.log.start(restored_step, self._validates_first)

    def collect(self, step: int, uids: list[str], manager: Any, last: bool = False) -> None:
        """Fetch the traces of this step's logged questions; those of its other questions are dropped.

        `last`: the budget ends the run with this step.
        """
        wanted = last or step % self.options.every == 0 or step in (1, self._last_step)
        questions = self.options.train_questions
        self._traces = manager.take_traces(uids, questions if wanted else 0) if questions else []

    def write_training(self, step: int, batch: KVBatchMeta) -> None:
        """Write the collected questions with the groups and advantages that TransferQueue now holds for `batch`."""
        # For each call: its row, and the range of its output there.
        rows: dict[str, dict[Place, tuple[int, int, int]]] = {trace.uid: {} for trace in self._traces}
        tags = unpack(batch.tags)
        for row, tag in enumerate(tags):
            if not tag.get("is_padding", False) and tag["question"] in rows:
                for position, start, stop in tag["calls"]:
                    rows[tag["question"]][tag["order"][2], position] = (row, start, stop)
        advantages = _advantages(batch, sorted({row for places in rows.values() for row, _, _ in places.values()}))
        records = []
        for number, trace in enumerate(self._traces):
            trained = {
                place: Trained(tags[row]["group"].removeprefix(f"{trace.uid}/"), advantages[row][start:stop])
                for place, (row, start, stop) in rows[trace.uid].items()
            }
            records.append(training_record(trace, "train", step, number, trained))
        self.log.write(records)
        self._traces = []

    def discard_validation(self, manager: Any) -> None:
        """Drop the traces of a validation that did not end."""
        if self.options.val_questions:
            manager.take_traces(None, 0)

    def write_validation(self, step: int, manager: Any) -> None:
        """Write the logged questions of the validation that has just ended."""
        count = self.options.val_questions
        traces = manager.take_traces(None, count) if count else []
        self.log.write([training_record(trace, "val", step, number) for number, trace in enumerate(traces)])


def _advantages(batch: KVBatchMeta, rows: list[int]) -> dict[int, list[float | None]]:
    """Row of the batch -> advantage of each of its tokens, None for those that do not train (response_mask 0).

    They are float32 values, written with as many digits as they have.
    """
    if not rows:
        return {}
    keys = [batch.keys[row] for row in rows]
    columns = ["advantages", "response_mask"]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=columns)
    values, masks = ([column.float().numpy() for column in data[name].unbind()] for name in columns)
    return {
        row: [float(str(value)) if on else None for value, on in zip(*tokens, strict=True)]
        for row, *tokens in zip(rows, values, masks, strict=True)
    }
