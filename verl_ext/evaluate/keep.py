"""Questions that are neither hopeless nor solved, as data for training.

A question whose samples all have the same reward teaches a policy nothing: its advantages are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ext.evaluate.against import per_question
from verl_ext.evaluate.answers import Key, Outcome
from verl_ext.trainer.preflight.data import files_of

KEPT = "questions.parquet"


def write_kept(
    folder: Path, val_files: Any, outcomes: Mapping[Key, Outcome], between: Sequence[float], asked: int
) -> str:
    """Write the rows of `val_files` whose mean reward over the answered samples lies in `between`, bounds included.

    Args:
        folder: gets questions.parquet, or loses one that is there if no question is kept.
        asked: the number of questions, for the report.

    Returns:
        What was kept, in a sentence.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    low, high = between
    path = folder / KEPT
    means = {source: quantities.get("reward", {}) for source, quantities in per_question(outcomes).items()}
    tables = [pq.read_table(Path(name).expanduser()) for name in files_of(val_files, "data.val_files")]
    rows = pa.concat_tables(tables, promote_options="default")
    sources = rows.column("data_source").to_pylist() if "data_source" in rows.column_names else ["unknown"] * len(rows)
    numbers = [int(info["index"]) for info in rows.column("extra_info").to_pylist()]
    found = [means.get(str(source), {}).get(number) for source, number in zip(sources, numbers, strict=True)]
    kept = [place for place, mean in enumerate(found) if mean is not None and low <= mean <= high]
    answered = [mean for mean in found if mean is not None]
    sides = f"{sum(mean < low for mean in answered)} below, {sum(mean > high for mean in answered)} above"
    said = f"{len(kept)} of {asked} questions have a mean reward from {low:g} to {high:g} ({sides})"
    if not kept:
        path.unlink(missing_ok=True)
        return f"{said}: no file of questions was written. Remedy: other bounds in evaluate.keep_between"
    pq.write_table(rows.take(kept), path)
    return f"{said}: data.train_files={path}"
