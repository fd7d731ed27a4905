"""Mix prepared data sets by weight into one file, for a run on several data sources and environments.

    python data_prep/mix.py data/toolbench/train.parquet:0.5 data/alfworld/train.parquet:0.3 \\
        data/hotpotqa/train.parquet:0.2 --rows 6400 --output data/mixture/train.parquet

Without --rows the mixture is as large as it can be without a repeated row. With it, a data set that is too small is
repeated in whole passes, each in another order, and this is printed. Rows are numbered anew (extra_info.index), because
sampling noise depends on a row's number; extra_info.id and data_source stay. A field that only some data sets have is
null in the rows of the others.

`data_source` tells a run what a row is: which workflow plays it and which reward it gets
(verl_ext.recipe.deepagent.Mixture), and under which name it is reported. (A list in data.train_files draws each file by
its number of rows, and verl refuses files whose fields differ.)
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_ext.arguments import Parser, exit_status
from verl_ext.data_prep.rows import print_written
from verl_ext.storage.parquet import write_parquet


@dataclass(frozen=True)
class Part:
    """A data set and its weight; shares are weights divided by their sum."""

    path: Path
    weight: float


def part(text: str) -> Part:
    """FILE:WEIGHT of the command line."""
    path, _, weight = text.rpartition(":")
    try:
        found = Part(Path(path), float(weight))
    except ValueError:
        raise argparse.ArgumentTypeError(f"given {text!r}, expected FILE:WEIGHT, e.g. train.parquet:0.5") from None
    if not path or not 0 < found.weight < float("inf"):
        raise argparse.ArgumentTypeError(f"given {text!r}, expected FILE:WEIGHT with a weight above 0")
    return found


def sizes(weights: Sequence[float], available: Sequence[int], rows: int | None) -> list[int]:
    """How many rows of each data set, by largest remainders; rows: their sum, None: as many as none has to repeat."""
    shares = [weight / sum(weights) for weight in weights]
    if rows is None:
        rows = int(min(have / share for have, share in zip(available, shares, strict=True)) + 1e-9)
    exact = [share * rows for share in shares]
    found = [int(size + 1e-9) for size in exact]
    by_remainder = sorted(range(len(found)), key=lambda i: found[i] - exact[i])
    for i in by_remainder[: rows - sum(found)]:
        found[i] += 1
    return found


def drawn(rows: Sequence[Any], size: int, rng: random.Random) -> list[Any]:
    """`size` rows in random order, without repetition before each has come once more than any other."""
    found: list[Any] = []
    while len(found) < size:
        found += rng.sample(rows, min(len(rows), size - len(found)))
    return found


def mix(parts: Sequence[Part], rows: int | None, seed: int) -> tuple[list[dict[str, Any]], Any, list[str]]:
    """(rows of the mixture, their Arrow schema, lines that say what was drawn). Raises ValueError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for one in parts:
        try:
            tables.append(pq.read_table(one.path))
        except (OSError, pa.ArrowInvalid) as error:
            raise ValueError(f"{one.path} cannot be read as parquet ({error}). Remedy: data_prep/ writes it") from error
        if not len(tables[-1]) or {"data_source", "extra_info"} - set(tables[-1].column_names):
            raise ValueError(
                f"{one.path} has no rows, or no column data_source or extra_info. Remedy: prepare it again"
            )
        info = tables[-1].schema.field("extra_info").type
        known = pa.types.is_struct(info) and info.get_field_index("index") >= 0
        if not known or not pa.types.is_integer(info.field("index").type):
            raise ValueError(
                f"{one.path}: extra_info has no index that is a whole number, but {info}. Remedy: prepare it again"
            )
    try:
        schema = pa.unify_schemas([table.schema.remove_metadata() for table in tables], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"the files' fields have types that do not go together: {error}") from error
    rng, found, lines = random.Random(seed), [], []
    counts = sizes([one.weight for one in parts], [len(table) for table in tables], rows)
    for one, table, count in zip(parts, tables, counts, strict=True):
        found += drawn(table.to_pylist(), count, rng)
        more = f", {count / len(table):.1f} times over" if count > len(table) else ""
        lines.append(f"{count} rows ({count / max(1, sum(counts)):.1%}) of the {len(table)} of {one.path}{more}")
    rng.shuffle(found)
    numbered = [row | {"extra_info": (row["extra_info"] or {}) | {"index": i}} for i, row in enumerate(found)]
    return numbered, schema, lines


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    parser.add_argument("parts", nargs="+", type=part, metavar="FILE:WEIGHT", help="prepared parquet files")
    parser.add_argument("--output", type=Path, required=True, help="the mixture's parquet file")
    parser.add_argument("--rows", type=int, help="rows of the mixture; as many as fit without repetition if left out")
    parser.add_argument("--seed", type=int, default=0, help="of the choice and of the order")
    given = parser.parse_args(argv)

    def work() -> None:
        if given.rows is not None and given.rows < 1:
            raise ValueError(f"--rows must be at least 1, given {given.rows}.")
        rows, schema, lines = mix(given.parts, given.rows, given.seed)
        if not rows:
            raise ValueError("the weights leave no rows. Remedy: --rows, or other weights")
        write_parquet(rows, given.output, schema)
        print("\n".join(lines))
        print_written(given.output.parent, {given.output.name: len(rows)})

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
