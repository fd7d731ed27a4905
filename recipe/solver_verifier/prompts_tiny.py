"""The two agents' prompts in compact form, for the tiny model that was trained on them (recipe/cold_start/train.py).

    solver     7 + 5 - 3 + 8                       -> `12 9 17`
    solver     … + its last solution and verdict   -> `12 9 17`
    verifier   7 + 5 - 3 + 8 and a solution        -> `ok` or `wrong 2`, the first wrong step from 1

Changing a character here changes what the tiny model was trained on: run its cold start again.
"""

from __future__ import annotations

from typing import Any

from verl_ext.mas.messages import Messages, user


def solver(problem: str, previous: Any = None, verdict: Any = None) -> Messages:
    """Ask for the totals of `problem`, after a rejected solution with that and the verdict."""
    again = f" : {previous.text} : {verdict.text}" if previous is not None else ""
    return user(f"solve: {problem}{again}")


def verifier(problem: str, solution: Any) -> Messages:
    """Ask whether the totals of `solution` are right."""
    return user(f"check: {problem} : {solution.text}")
