"""The two agents' prompts for instruction-tuned models: a rule, and worked examples as earlier turns.

    solver     a word problem                        -> `12 + 7 = 19`, an equation per line, then `#### 19`
    solver     … + its last solution, told wrong     -> another solution
    verifier   a word problem and a solution         -> `right` or `wrong`: it decides between the two

The examples show the form. A model of 135M parameters keeps to it without any fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_ext.mas.messages import Messages, user

VERDICTS = ("right", "wrong")
SOLVER = "You solve word problems. Write one short equation per line. End with the line: #### <number>"
VERIFIER = "You check solutions of word problems. Say right or wrong."
AGAIN = "That is wrong. Solve it again."
# Problems with a solution for each verdict.
EXAMPLES = (
    (
        "Kim has 8 pens. Kim buys 5 more pens. How many pens does Kim have now?",
        {"right": "8 + 5 = 13\n#### 13", "wrong": "8 - 5 = 3\n#### 3"},
    ),
    (
        "Leo has 14 coins. Leo loses 6 coins. Leo finds 3 coins. How many coins does Leo have now?",
        {"right": "14 - 6 = 8\n8 + 3 = 11\n#### 11", "wrong": "14 - 6 = 8\n#### 8"},
    ),
    (
        "Ada has 9 books. Ada sells 4 books. How many books does Ada have now?",
        {"right": "9 - 4 = 5\n#### 5", "wrong": "9 + 4 = 13\n#### 13"},
    ),
)
# What the verifier's examples show: which problem, which solution. Both verdicts are equally frequent.
CHECKED = ((0, "right"), (1, "wrong"), (2, "wrong"), (1, "right"))


def solver(problem: str, previous: Any = None, verdict: Any = None) -> Messages:
    """Ask for a solution of `problem`, as the next turn after a rejected one."""
    turns = [(asked, solutions["right"]) for asked, solutions in EXAMPLES]
    messages = _shown(SOLVER, turns, problem)
    return messages if previous is None else [*messages, _said(previous.text), *user(AGAIN)]


def verifier(problem: str, solution: Any) -> Messages:
    """Ask whether `solution` is right."""
    turns = [(_to_check(EXAMPLES[i][0], EXAMPLES[i][1][verdict]), verdict) for i, verdict in CHECKED]
    return _shown(VERIFIER, turns, _to_check(problem, solution.text))


def _shown(system: str, turns: Sequence[tuple[str, str]], asked: str) -> Messages:
    """A rule, examples as earlier turns, and what is asked."""
    earlier = [message for question, answer in turns for message in (*user(question), _said(answer))]
    return [{"role": "system", "content": system}, *earlier, *user(asked)]


def _to_check(problem: str, solution: str) -> str:
    return f"{problem}\n\n{solution}"


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
