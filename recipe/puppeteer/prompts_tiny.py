"""The same prompts in compact form, for the tiny model trained on recipe/puppeteer/cold_start/demonstrations.py.

    orchestrator   who: 34 + price of Amber Harbor [web_search] 9         says run_python, one of the pool's names
    run_python     run_python: 34 + price of Amber Harbor [web_search] 9  says print( 34 + 9 )
    web_search     web_search: 34 + price of Amber Harbor                 says price of Amber Harbor
    reasoning      reasoning: more of 12 and 47                           says … FINAL ANSWER: 47

Changing a character here changes what the tiny model was trained on: run its cold start again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl_ext.mas.messages import Messages, user
from verl_ext.recipe.puppeteer.puppets import State, pattern_of


def orchestrator(state: State, names: Sequence[str], left: int) -> Messages:
    """Who is to act next."""
    chosen = "".join(f" [{name}]" for name in state.chosen)
    return user(f"who: {_so_far(state)}{chosen}")


def parts(name: str) -> dict[str, str]:
    """Nothing: a puppet's prompt has no texts of its own."""
    return {}


def puppet(name: str, state: State, role: str = "", action: str = "", cue: str = "") -> Messages:
    """What an agent of the pool is asked."""
    return user(f"{pattern_of(name)}: {_so_far(state)}")


def _so_far(state: State) -> str:
    done = "".join(f" {step.shown}" for step in state.steps)
    return f"{state.task}{done}"


# How a user's text sees arguments that are no texts (mas/prompts.py).
TEXTS: dict[str, Callable[[Any], str]] = {"state": _so_far, "names": ", ".join}
