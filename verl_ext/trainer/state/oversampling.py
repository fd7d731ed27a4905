"""`mas.sampling.oversample`: a step begins more questions than it trains on, and those that end first train.

The others are cut, and begun again in the next steps, before new ones. No question is lost, and none trains twice in an
epoch: a step begins questions of the next epoch only if fewer than a batch are left of this one. So the last step of an
epoch waits for all of its questions. So does a step with a question that was cut `mas.sampling.max_cuts` times.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.utils.tensordict_utils import assign_non_tensor_stack

from verl_ext.trainer.modes import begun_in_a_step
from verl_ext.trainer.rollout.cutting import Waste
from verl_ext.trainer.sections import SamplingSection
from verl_ext.trainer.state.checkpoint import place_of

FILE = "cut_questions.pt"


@dataclass
class Question:
    """A row (1,) of the data set, how often it was cut, and the epoch that it belongs to."""

    row: TensorDict
    epoch: int
    cuts: int = 0


class Oversampling:
    """Chooses the questions that a step begins, and keeps those that were cut.

    Args:
        config: verl's whole configuration.
        sampling: its section `mas.sampling`.
    """

    def __init__(self, config: DictConfig, sampling: SamplingSection):
        self.folder, self.questions = Path(config.trainer.default_local_dir), int(config.data.train_batch_size)
        self.most, self.max_cuts = begun_in_a_step(self.questions, sampling.oversample), sampling.max_cuts
        self.on = self.most > self.questions
        # What a checkpoint must have.
        self.parts = (FILE,) if self.on else ()
        self._waiting: list[Question] = []
        self._begun: dict[str, Question] = {}
        self._epoch = 0
        self._metrics: dict[str, float] = {}

    def start(self, loaded: Path | None) -> None:
        """Take over what the checkpoint `loaded` holds (None: from scratch)."""
        if self.on and loaded is not None and (loaded / FILE).exists():
            held = torch.load(loaded / FILE, weights_only=False)
            self._epoch, self._waiting = held["epoch"], [Question(**question) for question in held["questions"]]

    def save(self, step: int) -> None:
        """Write the questions that were cut into the checkpoint of `step`."""
        if self.on:
            held = {"epoch": self._epoch, "questions": [vars(question) for question in self._waiting]}
            torch.save(held, place_of(self.folder, step) / FILE)

    def begin(self, fetch: Callable[[], tuple[TensorDict, bool]]) -> list[TensorDict]:
        """The questions of the next step.

        Args:
            fetch: gives the next question of the data set, and whether it is the first one of an epoch.
        """
        begun: list[Question] = []
        waiting = sorted(self._waiting, key=lambda question: (question.epoch, -question.cuts))
        while len(begun) < self.most:
            enough = len(begun) >= self.questions
            if enough and self.max_cuts is not None and begun[0].cuts >= self.max_cuts:
                break
            if not waiting:
                waiting.append(self._fetched(fetch))
            if enough and waiting[0].epoch > begun[0].epoch:
                break
            begun.append(waiting.pop(0))
        self._waiting, self._begun = waiting, {str(question.row["uid"][0]): question for question in begun}
        return [question.row for question in begun]

    def _fetched(self, fetch: Callable[[], tuple[TensorDict, bool]]) -> Question:
        row, first = fetch()
        self._epoch += first
        return Question(row, self._epoch)

    def late(self, left: Collection[str]) -> list[str]:
        """The questions of the step that are to be cut: those in the queue, once verl has taken its batch."""
        return [uid for uid in self._begun if uid in left]

    def put_back(self, late: Sequence[str], waste: Waste) -> None:
        """Keep the questions that were cut for the next steps, and count them."""
        cut = [self._begun[uid] for uid in late]
        self._metrics = {
            "sampling/cut_questions": len(cut),
            "sampling/cut_again": sum(question.cuts > 0 for question in cut),
            **{f"sampling/cut_{name}": value for name, value in waste._asdict().items()},
        }
        for question in cut:
            question.cuts += 1
            assign_non_tensor_stack(question.row, "uid", [str(uuid.uuid4())])
        self._waiting, self._begun = [*self._waiting, *cut], {}

    def add_metrics(self, metrics: dict[str, float]) -> None:
        """Add those of the last step. The tokens of cut questions were generated, too."""
        if self.on:
            metrics |= self._metrics
            metrics["sampling/generated_tokens"] += self._metrics["sampling/cut_tokens"]
