"""Path of ALFWorld (Table 2): the share of a task's subgoals that have been reached.

The paper does not define it. In its authors' code a subgoal is a pattern that an observation fits, listed by goal in a
file, data/ALFWorld/test.json (github.com/RUC-NLPIR/DeepAgent, MIT; the subgoals are AgentBoard's):

    [{"goal": "put a vase in safe.", "subgoals": "Subgoal 1: ^(?=.* you see)(?=.*a vase \\\\d+)\\nSubgoal 2: …"}, …]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

GOAL = re.compile(r"Your task is to: (.+)")
LINE = re.compile(r"Subgoal \d+: (.+)")


class Subgoals:
    """The subgoals of a file, by goal.

    Raises:
        ValueError: there is no such file, or it has another form.
    """

    def __init__(self, path: str):
        self.path, self._of = path, dict[str, list[re.Pattern[str]]]()
        try:
            for row in json.loads(Path(path).read_text(encoding="utf-8")):
                lines = LINE.findall(row["subgoals"])
                self._of[_plain(row["goal"])] = [re.compile(line.strip(), re.I) for line in lines]
        except (OSError, ValueError, KeyError, TypeError, re.error) as error:
            kind = "no pattern: " if isinstance(error, re.error) else ""
            expected = "Expected is data/ALFWorld/test.json of DeepAgent's repository"
            raise ValueError(f"subgoals={path}: {kind}{error}. {expected}") from error

    def share(self, question: str, seen: Iterable[str]) -> float:
        """The share of the subgoals that an observation of `seen` fits, in [0, 1].

        Args:
            question: has the environment's first observation, which names the goal.

        Raises:
            ValueError: the file does not have the goal.
        """
        goal, seen = (GOAL.findall(question) or [""])[-1].strip(), list(seen)
        patterns = self._of.get(_plain(goal))
        if not patterns:
            raise ValueError(f"{self.path} has no subgoals of {goal!r}. Remedy: mas.workflow.subgoals=null")
        return sum(any(pattern.search(text.strip()) for text in seen) for pattern in patterns) / len(patterns)


def _plain(goal: str) -> str:
    return goal.strip().rstrip(".").lower()
