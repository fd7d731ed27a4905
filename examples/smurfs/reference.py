"""Questions with the answers of a finished evaluation as `extra_info.reference`: what the win rate compares with.

    python examples/smurfs/reference.py --run runs/smurfs/MODEL/react --questions data/toolbench/test.parquet \\
        --output runs/smurfs/MODEL/reference.parquet

A question that the run did not answer has an empty reference, which loses against any answer that solves it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from verl_ext.arguments import Parser, exit_status
from verl_ext.evaluate.answers import outcome_of
from verl_ext.observe.trajectory_files import EVALUATION_FILE
from verl_ext.storage.jsonl import read_log
from verl_ext.storage.parquet import write_parquet


def convert(run: Path, questions: Path, output: Path) -> tuple[int, int]:
    """Write `output`; returns the numbers of questions, and of those that the run answered.

    Raises:
        ValueError: a file is missing, the run has none of these questions, or its answers have no `shown` calls.
    """
    outcomes = [outcome for outcome in map(outcome_of, read_log(run / EVALUATION_FILE)) if outcome.ok]
    given = {outcome.key[:2]: outcome.result for outcome in outcomes}
    try:
        rows = pq.read_table(questions).to_pylist()
        references = {
            key: {"answer": str(result["answer"]), "calls": json.dumps(result["shown"])}
            for key, result in given.items()
        }
    except (OSError, TypeError, KeyError) as error:
        raise ValueError(f"{run} or {questions} cannot be read as an evaluation and its questions: {error}") from error
    answered = 0
    for row in rows:
        found = references.get((row["data_source"], row["extra_info"]["index"]))
        answered += found is not None
        row["extra_info"]["reference"] = found or {"answer": "", "calls": "[]"}
    if not answered:
        raise ValueError(f"{run}/{EVALUATION_FILE} has no answer to a question of {questions}. Evaluate these first.")
    write_parquet(rows, output)
    return len(rows), answered


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="output folder of `verl_ext evaluate`")
    parser.add_argument("--questions", type=Path, required=True, help="the parquet file that it answered")
    parser.add_argument("--output", type=Path, required=True, help="parquet to write")
    given = parser.parse_args(argv)

    def work() -> None:
        questions, answered = convert(given.run, given.questions, given.output)
        print(f"wrote {given.output}: {questions} questions, {answered} with an answer of {given.run}")

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
