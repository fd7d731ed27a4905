"""ALFWorld: household tasks as text games (https://github.com/alfworld/alfworld, MIT).

    pip install 'verl_ext[alfworld]'

A task is a game file, `…/game.tw-pddl` of ALFWorld's data; the first observation names its goal ("Your task is to: …").
The nine actions are tools: go_to, take, move, open, close, use, clean, heat, cool. Success is the game's own `won`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_ext.recipe.deepagent.environments.base import EnvironmentTool, Turn
from verl_ext.tools.catalogue import load_catalogue

TOOLS = Path(__file__).parents[1] / "assets" / "alfworld.jsonl"
# What a game says of an action that is impossible or changes nothing.
NOTHING = "Nothing happens."
# The command of each tool, as ALFWorld's grammar has it.
COMMANDS = {
    "go_to": "go to {place}",
    "take": "take {thing} from {place}",
    "move": "move {thing} to {place}",
    "open": "open {place}",
    "close": "close {place}",
    "use": "use {thing}",
    "clean": "clean {thing} with {place}",
    "heat": "heat {thing} with {place}",
    "cool": "cool {thing} with {place}",
}

# A goal, and what must be read after its thing has been seen and picked up, in terms of its groups.
GOALS = {
    r"(?:put|find) two (\w+) (?:and put them )?(?:in|on) (\w+)": r"you (?:put|move) the {0} \d+ \S+ the {1} \d+",
    r"(?:look at|examine the) (\w+) (?:under|with) the (\w+)": r" you see.* an? {1}",
    r"(?:put a cool|cool some) (\w+)": r"you cool the {0} \d+ using the",
    r"(?:put a hot|heat some) (\w+)": r"you heat the {0} \d+ using the",
    r"(?:put a clean|clean some) (\w+)": r"you clean the {0} \d+",
    r"put (?:an?|some) (\w+) (?:in|on)": "",
}


def path_share(question: str, observations: Iterable[str]) -> float | None:
    """Path: the share of a goal's subgoals that the observations show, in any order; None for another goal.

    Subgoals: the thing is seen, it is picked up, and (but for goals that only put it somewhere) it is cleaned, cooled,
    heated, the lamp is seen, or one of two things is put in place. These are the ones that DeepAgent's published
    evaluation (github.com/RUC-NLPIR/DeepAgent, src/evaluate/evaluate_alfworld.py) reads from its list of test goals;
    the paper does not define Path. Its list does not count "You move …", as later versions of ALFWorld say for it.

    Args:
        question: the task, with "Your task is to: …".
        observations: what each call returned.
    """
    goal = question.lower().rpartition("your task is to: ")[2]
    for form, last in GOALS.items():
        if found := re.match(form, goal):
            thing = found[1]
            wanted = [rf" you see.* an? {thing} \d", rf"you pick up the {thing} \d", last.format(*found.groups())]
            read = [" ".join(text.lower().split()) for text in observations]
            reached = [any(re.search(one, text) for text in read) for one in wanted if one]
            return sum(reached) / len(reached)
    return None


class AlfWorld:
    """A game.

    Args:
        games: folder of the game files; tasks are named by their paths in it.
    """

    def __init__(self, games: Path):
        self.games = games
        self._game: Any = None

    def reset(self, task: str) -> Turn:
        """Load the game `task` and begin it.

        Raises:
            ValueError: there is no such file.
        """
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        path = self.games / task
        if not path.is_file():
            raise ValueError(f"no game {path}")
        wanted = textworld.EnvInfos(won=True, feedback=True)
        self._game = textworld.start(str(path), request_infos=wanted, wrappers=[AlfredDemangler()])
        return self._seen(self._game.reset())

    def step(self, name: str, arguments: Mapping[str, Any]) -> Turn:
        """Do one of the nine actions."""
        state, _, done = self._game.step(COMMANDS[name].format(**arguments))
        return self._seen(state, done)

    def close(self) -> None:
        """Close the game."""
        if self._game is not None:
            self._game.close()

    def _seen(self, state: Any, done: bool = False) -> Turn:
        won, said = bool(state.get("won")), str(state["feedback"]).strip()
        return Turn(said, float(won), done or won, effect=said != NOTHING)


def alfworld_tool(games: str, sessions: int = 64) -> EnvironmentTool:
    """`mas.tools.environment` of ALFWorld's recipe.

    Args:
        games: folder of the game files.
        sessions: games that are kept where trajectories have arrived.

    Raises:
        ModuleNotFoundError: the package is not installed.
        ValueError: the folder does not exist.
    """
    _preflight(games, sessions)
    return EnvironmentTool(lambda: AlfWorld(Path(games)), load_catalogue([_SOURCE]), sessions)


def _preflight(games: str, sessions: int = 64) -> None:
    if not Path(games).is_dir():
        raise ValueError(f"{games} does not exist. Remedy: alfworld-download, then games=FOLDER of its game files")
    if importlib.util.find_spec("alfworld") is None:
        raise ModuleNotFoundError("the package alfworld is not installed. Remedy: pip install 'verl_ext[alfworld]'")


alfworld_tool.preflight = _preflight
_SOURCE = {"kind": "json", "path": str(TOOLS)}
