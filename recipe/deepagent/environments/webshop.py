"""WebShop: buying products in a simulated shop (https://github.com/princeton-nlp/WebShop, MIT; a clone on PYTHONPATH).

A task is the number of a goal. `search` fills the search bar, `click` presses a button or link of the page; the
observation is the text of the page. The score is WebShop's reward after "buy now", success a score of 1.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from verl_ext.recipe.deepagent.environments.base import EnvironmentTool, Turn
from verl_ext.tools.catalogue import load_catalogue

TOOLS = Path(__file__).parents[1] / "assets" / "webshop.jsonl"
PACKAGE = "web_agent_site"


class WebShop:
    """A visit to the shop.

    Args:
        make: WebShop's own text environment (`WebAgentTextEnv`), all visits over one server of products.
    """

    def __init__(self, make: Callable[[], Any]):
        self._site = make()

    def reset(self, task: str) -> Turn:
        """Begin with the goal of that number.

        Raises:
            ValueError: the task is no number.
        """
        observation, _ = self._site.reset(session=int(task))
        return Turn(self._page(observation))

    def step(self, name: str, arguments: Mapping[str, Any]) -> Turn:
        """Search or click. An impossible click does not change the page; the observation says so."""
        value = str(arguments["keywords" if name == "search" else "button"])
        can = self._site.get_available_actions()
        possible = can["has_search_bar"] if name == "search" else value.lower() in can["clickables"]
        observation, reward, done, _ = self._site.step(f"{name}[{value}]")
        said = "" if possible else f"{name}[{value}] is not possible here.\n"
        page = observation if done else self._page(observation)
        return Turn(said + page, float(reward), bool(done), effect=bool(possible))

    def close(self) -> None:
        """Close the visit."""
        self._site.close()

    def _page(self, observation: str) -> str:
        buttons = ", ".join(self._site.get_available_actions()["clickables"])
        return f"{observation}\nButtons: {buttons}"


def webshop_tool(
    num_products: int | None = None,
    file_path: str | None = None,
    human_goals: bool = True,
    sessions: int = 64,
) -> EnvironmentTool:
    """`mas.tools.environment` of WebShop's recipe.

    Args:
        num_products: of the shop: 100, 1000, 100000 or null (all), as WebShop's search indexes are built.
        file_path: file of the products; null: the package's own.
        human_goals: goals written by people, else synthetic ones.
        sessions: visits that are kept where trajectories have arrived.

    Raises:
        ModuleNotFoundError: the package is not there.
    """
    _preflight()
    from web_agent_site.envs import WebAgentTextEnv

    settings: dict[str, Any] = {"observation_mode": "text", "human_goals": human_goals, "num_products": num_products}
    settings |= {"file_path": file_path} if file_path else {}
    first = WebAgentTextEnv(**settings)  # loads the products: minutes and gigabytes, once

    def make() -> WebShop:
        return WebShop(lambda: WebAgentTextEnv(**settings, server=first.server))

    return EnvironmentTool(make, load_catalogue([{"kind": "json", "path": str(TOOLS)}]), sessions)


def _preflight(**settings: Any) -> None:
    if importlib.util.find_spec(PACKAGE) is None:
        raise ModuleNotFoundError(
            f"the package {PACKAGE} is not installed. Remedy: clone https://github.com/princeton-nlp/WebShop, run its "
            "setup.sh, and put the clone on PYTHONPATH"
        )


webshop_tool.preflight = _preflight
