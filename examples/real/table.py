"""One table of what systems.sh has evaluated: a row per agent, a system under each model after the other.

    python examples/real/table.py runs/real/smollm2 runs/real/cold_start

Reads FOLDER/SYSTEM/results.json, which `verl_ext evaluate` writes; docs/evaluate.md explains the columns.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from verl_ext.arguments import Parser, exit_status
from verl_ext.reports import in_words, markdown

COUNTED = ("parsed", "truncated", "executed")
HEAD = ("system", "model", "questions", "score", "agent", "calls", *COUNTED)


def rows(results: Path) -> Iterator[list[str]]:
    """The rows of one system: its score in the first one, and a row per agent."""
    found = json.loads(results.read_text())
    for source, made in found["data"].items():
        name = found.get("headline", "reward")
        score = made["metrics"].get(name)
        error = score["standard_error"] if score else None
        spread = f" ± {error:.3f}" if error is not None else ""
        said = f"{in_words(name)} {score['mean']:.3f}{spread}" if score else "–"
        system, model = f"{results.parent.name} ({source})", results.parent.parent.name
        first = [system, model, f"{made['answered']}/{made['questions']}", said]
        for agent, counts in made["agents"].items():
            yield [*first, agent, str(counts["calls"]), *(str(counts[one]) for one in COUNTED)]
            first = [""] * len(first)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status."""
    parser = Parser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="a folder per model")

    def work() -> None:
        files = [file for folder in given.folders for file in folder.glob("*/results.json")]
        if not files:
            raise ValueError(f"no SYSTEM/results.json in {', '.join(map(str, given.folders))}: run systems.sh first")
        order = sorted(files, key=lambda file: (file.parent.name, given.folders.index(file.parent.parent)))
        print("\n".join(markdown(HEAD, [row for file in order for row in rows(file)])))

    given = parser.parse_args(argv)
    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
