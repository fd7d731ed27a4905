"""Questions that are neither hopeless nor solved, as data for training.

A question whose samples all have the same reward teaches a policy nothing: its advantages are zero.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.evaluate.answers import Key, Outcome
from verl_ext.storage.files import replacing
from verl_ext.trainer.preflight.data import files_of

NAME, WRITTEN = "questions{}.parquet", re.compile(r"questions(_\d+)?\.parquet")


def check_kept(folder: Path, val_files: Any) -> None:
    """Refuse to write over the questions that are asked.

    Raises:
        ValueError: one of `val_files` is a file that an evaluation into `folder` has written.
    """
    given = [Path(name).expanduser() for name in files_of(val_files, "data.val_files")]
    asked = [*given, *(path.resolve() for path in given)]  # a link, and where it leads to
    if own := [path for path in asked if path.parent.resolve() == folder.resolve() and WRITTEN.fullmatch(path.name)]:
        raise ValueError(
            f"evaluate.keep_between would write over {own[0]}, whose questions are asked (data.val_files). "
            "Remedy: another folder (evaluate.output=…)"
        )


def write_kept(folder: Path, val_files: Any, asked: Mapping[Key, Outcome], between: Sequence[float]) -> str:
    """Write the rows whose mean reward lies in `between`, bounds included, unless all samples have the same.

    Each file of `val_files` gets a file of its own in `folder`, with the same schema: questions.parquet, or
    questions_1.parquet and so on. Files of an earlier call go. Samples that failed do not count.

    Returns:
        What was kept, in a sentence.
    """
    import pyarrow.parquet as pq

    rewards: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (source, index, _), outcome in asked.items():
        if math.isfinite(reward := outcome.metrics.get("reward", math.nan)):
            rewards[source, index].append(reward)
    verdicts = {question: _verdict(values, *between) for question, values in rewards.items()}
    number_of = Counter(verdicts.values())
    for path in folder.iterdir():
        if WRITTEN.fullmatch(path.name):
            path.unlink()
    names = files_of(val_files, "data.val_files")
    written = []
    for number, name in enumerate(names, 1):
        rows = pq.read_table(Path(name).expanduser())
        sources = rows["data_source"].to_pylist() if "data_source" in rows.column_names else ["unknown"] * len(rows)
        indices = [int(info["index"]) for info in rows["extra_info"].to_pylist()]
        questions = zip(map(str, sources), indices, strict=True)
        if kept := [place for place, question in enumerate(questions) if verdicts.get(question) == "kept"]:
            written.append(str(folder / NAME.format(f"_{number}" if len(names) > 1 else "")))
            with replacing(written[-1]) as new:
                pq.write_table(rows.take(kept), new)
    low, high = between
    others = ", ".join(f"{number_of[why]} {why}" for why in ("below", "above", "always the same"))
    total = len({key[:2] for key in asked})
    said = f"{number_of['kept']} of {total} questions have rewards that differ and a mean from {low:g} to {high:g} "
    said += f"({others})"
    if not written:
        return f"{said}: no file of questions was written. Remedy: other bounds in evaluate.keep_between"
    return f"{said}: data.train_files={written[0] if len(written) == 1 else '[' + ','.join(written) + ']'}"


def _verdict(rewards: Sequence[float], low: float, high: float) -> str:
    mean = math.fsum(rewards) / len(rewards)
    if mean < low or mean > high:
        return "below" if mean < low else "above"
    return "always the same" if max(rewards) == min(rewards) else "kept"
