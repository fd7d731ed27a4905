"""Tasks of ALFWorld and WebShop, which are played and not read: a row only names its task.

ALFWorld (`alfworld-download` fetches the games): a task is a game.tw-pddl below --local_dataset_path; games that the
file itself calls unsolvable are rejected. WebShop: a task is the number of a goal; the authors test on the first 500.

    python data_prep/environments.py alfworld --local_dataset_path json_2.1.1/valid_unseen --output_dir data/alfworld
    python data_prep/environments.py webshop --goals 0 500 --output_dir data/webshop
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from verl_ext.data_prep.tool_tasks import Prepared, ToolTask, main
from verl_ext.recipe.deepagent.environments import alfworld, webshop
from verl_ext.tools.catalogue import load_catalogue

GAME = "game.tw-pddl"
TOOLS = {"alfworld": alfworld.TOOLS, "webshop": webshop.TOOLS}
QUESTIONS = {
    "alfworld": "Do the task of this household, step by step, with the tools. You see:",
    "webshop": "Buy the product that the instruction describes, with the tools. The page:",
}


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Name the tasks. Raises ValueError."""
    name, prepared = arguments.environment, Prepared()
    tools = list(load_catalogue([{"kind": "json", "path": str(TOOLS[name])}]))
    for task in _games(arguments.local_dataset_path, prepared) if name == "alfworld" else map(str, _goals(arguments)):
        prepared.read += 1
        prepared.tasks.append(ToolTask(task, QUESTIONS[name], [], data_source=name, shown=tools))
    return prepared


def _games(folder: Path | None, prepared: Prepared) -> Iterator[str]:
    """Paths of the games below a folder, in order."""
    if folder is None or not folder.is_dir():
        raise ValueError("alfworld needs --local_dataset_path, a folder of games. Remedy: alfworld-download")
    for path in sorted(folder.rglob(GAME)):
        task = path.relative_to(folder).as_posix()
        if json.loads(path.read_text(encoding="utf-8")).get("solvable") is False:
            prepared.read += 1
            prepared.reject("unsolvable by its own file", task)
        else:
            yield task


def _goals(arguments: argparse.Namespace) -> range:
    first, last = arguments.goals
    if not 0 <= first < last:
        raise ValueError(f"--goals must be FIRST LAST with 0 <= FIRST < LAST, given {first} {last}.")
    return range(first, last)


def options(parser: argparse.ArgumentParser) -> None:
    """What this script has beside the common options."""
    parser.add_argument("environment", choices=list(QUESTIONS))
    parser.add_argument("--goals", type=int, nargs=2, default=[0, 500], help="WebShop: the first, and behind the last")


if __name__ == "__main__":
    sys.exit(main(prepare, __doc__, options))
