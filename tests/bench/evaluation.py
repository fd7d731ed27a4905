"""Evaluation of the tiny model on the tiny world: 32 trajectories at a time over one at a time, the same questions."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

from verl_ext.evaluate.__main__ import main
from verl_ext.observe.trajectory_files import EVALUATION_FILE

CONCURRENT, QUESTIONS = 32, 96


def _evaluate(concurrency: int, round_: int) -> tuple[float, int]:
    """Seconds from the first question to the last answer (loading and indexing not included), and trajectories."""
    output = Path(f"runs/{concurrency}_{round_}")
    command = ["+recipe=mhgpo_tiny", f"evaluate.concurrency={concurrency}", f"evaluate.output={output}"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main([*command, f"evaluate.max_questions={QUESTIONS}"])
    if status:
        raise RuntimeError(f"the evaluation failed:\n{said.getvalue()[-3000:]}")
    records = [json.loads(line) for line in (output / EVALUATION_FILE).read_text().splitlines()]
    ends = [record["trajectories"][0] for record in records]
    begun = min(end["finished"] - end["seconds"] for end in ends)
    return max(end["finished"] for end in ends) - begun, len(ends)


def run(rounds: int = 2) -> list[str]:
    """A line: the ratio of the two, each measured `rounds` times in turn and taken at its best."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            pairs = [[_evaluate(n, i) for n in (1, CONCURRENT)] for i in range(rounds)]
        finally:
            os.chdir(here)
    (one, count), (many, _) = (min(runs) for runs in zip(*pairs, strict=True))
    return [
        f"  {count} questions of three calls: {one / many:.1f} x (1 at a time {count / one:.1f} questions/s, "
        f"{CONCURRENT} at a time {count / many:.1f})"
    ]


if __name__ == "__main__":
    print("\n".join(run()))
