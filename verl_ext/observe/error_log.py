"""error.log: why trajectories failed that did not stop the run, and why the run stopped."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from verl_ext.mas.types import Status
from verl_ext.observe.question_stats import REMARK, QuestionStats, alike

NAME = "error.log"
# What trajectories did that met a failure and have a reward.
WENT_ON = {
    Status.TOOL_ERROR.value: "went on without a tool's result",
    Status.DIVERGED.value: "could not be forked, and independent ones were sampled in their place",
}


class ErrorLog:
    """Appends each distinct failure of a run to `<folder>/error.log` when it first occurs; progress shows it.

    Failures are alike if they have the same status, were raised in the same place of the user's code, and their
    trajectories went on, or did not.
    """

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / NAME
        self._told: set[tuple[str, ...]] = set()

    def tell(self, stats: Iterable[QuestionStats], when: str) -> None:
        """Log what is new in these questions' failures; `when` begins a sentence, e.g. "step 3"."""
        if text := self.news(stats, when):
            append(self.path, text)

    def news(self, stats: Iterable[QuestionStats], when: str) -> str:
        """What is new in them; from now on it is not."""
        stats = list(stats)
        total = sum(question.trajectories for question in stats)
        texts = []
        for failure in alike(failure for question in stats for failure in question.errors):
            if failure.place in self._told:
                continue
            self._told.add(failure.place)
            if failure.status == REMARK:
                texts.append(f"\n{when}: {failure.error}\n")
                continue
            what = WENT_ON.get(failure.status, "") if failure.finished else f"failed: {failure.status}"
            words = f"{when}: {failure.trajectories} of {total} trajectories {what}. The first one:"
            texts.append(f"\n{words}\n{failure.trace or failure.error}\n")
        return "".join(texts).encode("utf-8", "backslashreplace").decode()  # half a character cannot be printed


def append(path: Path, text: str) -> None:
    """Append to a file whose folder may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
