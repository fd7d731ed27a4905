"""Table 1 of the paper (MHGPO) beside what the scripts of this folder measured, in percent.

    python examples/table1/table.py runs/table1/Llama-3.1-8B-Instruct

Reads FOLDER/ROW/eval/results.json, which `verl_ext evaluate` writes; a row without one has not been run.
Prints the table and writes it to FOLDER/table1.md.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_ext.arguments import Parser, exit_status

SETS = {"hotpotqa": "HotpotQA", "2wikimultihopqa": "2WikiMultihopQA", "musique": "MuSiQue"}
METRICS = {"acc": "Acc", "em": "EM", "f1": "F1"}
ROWS = {
    "single_llm": "single LLM",
    "single_llm_rl": "single LLM + RL",
    "mas": "LLM + MAS",
    "mappo": "MAPPO",
    "mhgpo_is": "MHGPO-IS",
    "mhgpo_fof": "MHGPO-FoF",
    "mhgpo_rr": "MHGPO-RR",
}
# The paper's numbers by model and row, in the order of SETS × METRICS.
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "Llama-3.1-8B-Instruct": {
        "single_llm": (21.269, 14.018, 22.782, 16.963, 7.069, 20.817, 5.492, 1.365, 2.813),
        "single_llm_rl": (27.643, 0.500, 27.421, 14.019, 0.676, 11.025, 4.096, 2.400, 9.287),
        "mas": (20.800, 14.000, 21.452, 22.281, 15.872, 22.427, 4.220, 2.524, 8.044),
        "mappo": (38.217, 34.450, 46.400, 35.790, 31.767, 38.722, 11.626, 9.350, 19.738),
        "mhgpo_is": (37.677, 33.707, 45.582, 34.796, 31.115, 38.050, 9.888, 7.944, 18.421),
        "mhgpo_fof": (40.459, 36.570, 49.429, 36.299, 31.750, 39.089, 12.702, 10.012, 21.633),
        "mhgpo_rr": (40.864, 37.043, 49.724, 36.840, 31.838, 39.388, 11.378, 9.350, 21.144),
    },
    "Qwen2.5-72B-Instruct": {
        "single_llm": (30.304, 25.564, 36.183, 29.373, 27.234, 32.038, 7.737, 5.337, 15.411),
        "mas": (32.519, 24.254, 34.631, 36.379, 18.511, 25.630, 7.075, 4.717, 11.959),
    },
}


def measured(results: Path) -> tuple[list[str], list[str]]:
    """Cells of one row in the order of SETS × METRICS, and what must be known about them.

    Raises:
        ValueError: the file is not one of `verl_ext.evaluate`.
    """
    if not results.is_file():
        return ["–"] * len(SETS) * len(METRICS), []
    try:
        data = json.loads(results.read_text())["data"]
        cells, notes = [], []
        for name in SETS:
            found = data.get(name, {"metrics": {}, "questions": 0, "answered": 0})
            cells += [_percent(found["metrics"].get(metric)) for metric in METRICS]
            if found["answered"] < found["questions"]:
                notes.append(f"{name}: only {found['answered']} of {found['questions']} answered, means are over those")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{results} is no result of verl_ext.evaluate ({error!r}). Remove it and evaluate again"
        ) from error
    return cells, notes


def _percent(value: dict[str, float] | None) -> str:
    return "–" if value is None else f"{100 * value['mean']:.3f}"


def table(folder: Path) -> str:
    """The table of the evaluations in `folder`, RUNS/MODEL, in Markdown."""
    model = folder.resolve().name
    paper = PAPER.get(model, {})
    columns = [f"{name} {metric}" for name in SETS.values() for metric in METRICS.values()]
    lines = [f"| {model} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    remarks = ["Ours (the paper's); –: not run."] if paper else [f"Ours; –: not run. The paper has no {model}."]
    for row, title in ROWS.items():
        cells, notes = measured(folder / row / "eval" / "results.json")
        published = [f" ({number:.3f})" for number in paper[row]] if row in paper else [""] * len(cells)
        lines.append(f"| {title} | {' | '.join(map(str.__add__, cells, published))} |")
        remarks += [f"{title}, {note}." for note in notes]
    return "\n".join([*lines, "", *remarks]) + "\n"


def write(folder: Path) -> None:
    """Print the table and write it to FOLDER/table1.md. Raises ValueError."""
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist; the scripts of examples/table1 make it.")
    text = table(folder)
    (folder / "table1.md").write_text(text)
    print(text, end="")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the rows are: runs/table1/MODEL")
    given = parser.parse_args(argv)
    return exit_status(lambda: write(given.folder))


if __name__ == "__main__":
    sys.exit(main())
