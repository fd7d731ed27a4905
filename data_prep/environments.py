"""Prepare the tasks of an environment, which agents play: a row of test.parquet only names its task.

    python data_prep/environments.py alfworld --local_dataset_path json_2.1.1/valid_unseen --output_dir data/alfworld
    python data_prep/environments.py webshop --goals 0 500 --output_dir data/webshop

ALFWorld (`alfworld-download` fetches the games): a task is a game.tw-pddl below --local_dataset_path; games that the
file itself calls unsolvable are rejected. WebShop: a task is the number of a goal; the authors test on the first 500.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from verl_ext.arguments import Parser, described
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask, add_options, run
from verl_ext.tools.catalogue import load_catalogue

GAME = "game.tw-pddl"
# The catalogues of the environments' tools are data of the recipe that plays them; its code is not imported.
ASSETS = Path(__file__).parents[1] / "recipe" / "deepagent" / "assets"
QUESTIONS = {
    "alfworld": "Do the task of this household, step by step, with the tools. You see:",
    "webshop": "Buy the product that the instruction describes, with the tools. The page:",
}
ABOUT = {
    "alfworld": """ALFWorld's household games, one task per game file (https://github.com/alfworld/alfworld, MIT).

    alfworld-download
    python data_prep/environments.py alfworld --local_dataset_path json_2.1.1/valid_unseen --output_dir data/alfworld
""",
    "webshop": """WebShop's goals, one task per number (https://github.com/princeton-nlp/WebShop, MIT).

    python data_prep/environments.py webshop --goals 0 500 --output_dir data/webshop
""",
}


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Name the tasks. Raises ValueError."""
    name, prepared = arguments.name, Prepared()
    if name == "webshop" and arguments.local_dataset_path is not None:
        raise ValueError("--local_dataset_path would do nothing for webshop, whose goals are numbers. Remedy: --goals")
    tools = list(load_catalogue([{"kind": "json", "path": str(ASSETS / f"{name}.jsonl")}]))
    for task in _games(arguments.local_dataset_path, prepared) if name == "alfworld" else _goals(*arguments.goals):
        prepared.read += 1
        prepared.tasks.append(ToolTask(task, QUESTIONS[name], [], data_source=name, shown=tools))
    return prepared


def _games(folder: Path | None, prepared: Prepared) -> Iterator[str]:
    """Paths of the games below a folder, in order."""
    if folder is None or not folder.is_dir():
        raise ValueError("alfworld needs --local_dataset_path, a folder of games. Remedy: alfworld-download")
    for path in sorted(folder.rglob(GAME)):
        task = path.relative_to(folder).as_posix()
        try:
            solvable = json.loads(path.read_text(encoding="utf-8")).get("solvable")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path} is no whole game ({error}). Remedy: alfworld-download, or remove it") from error
        if solvable is False:
            prepared.read += 1
            prepared.reject("unsolvable by its own file", task)
        else:
            yield task


def _goals(first: int, last: int) -> Iterator[str]:
    if not 0 <= first < last:
        raise ValueError(f"--goals must be FIRST LAST with 0 <= FIRST < LAST, given {first} {last}.")
    return map(str, range(first, last))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, text in ABOUT.items():
        add_options(one := names.add_parser(name, **described(text)))
        if name == "webshop":
            goals = "the first goal, and the one after the last"
            one.add_argument("--goals", type=int, nargs=2, default=[0, 500], help=goals)
    return run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
