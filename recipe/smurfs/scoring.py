"""Scores the answer of a question and the path of its tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl_ext.mas import Task
from verl_ext.recipe.deepagent.grammar import after_thoughts
from verl_ext.rewards.calls import Invocation, gold_path
from verl_ext.rewards.correctness import correct_calls, path_share, unneeded_calls
from verl_ext.rewards.gaia import gaia_match
from verl_ext.rewards.judged import JUDGED
from verl_ext.rewards.qa import exact_match, f1_score, without_preface
from verl_ext.rewards.truth import targets_of

SUCCESSES = ("answer", "f1", "gaia", "path", *JUDGED)
FINAL = "FINAL ANSWER:"
# Those that compare the answer with a short one. Under the others a judge or a user reads it, or nothing does.
COMPARED = ("answer", "f1", "gaia", "hle")
# Replaces an output whose prompt did not fit.
NOTHING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tool_check": lambda inputs: True,
    "planner": lambda inputs: [inputs["question"]],
    "thought": lambda inputs: "",
    "action": lambda inputs: inputs["names"][0],
    "arguments": lambda inputs: None,
    "answer": lambda inputs: "",
    "verifier": lambda inputs: (False, ""),
    "final": lambda inputs: "",
}


def read_final(text: str, /, *, whole: bool = False, **_: Any) -> str:
    """The line after the last `FINAL ANSWER:`; without one, the last line, without `The answer is:` before it.

    What stands in the reasoning, in <think>, is no answer.

    Args:
        whole: all that stands after the mark; without one, all.
    """
    _before, mark, answer = after_thoughts(text).rpartition(FINAL)  # without a mark all is in `answer`
    if whole:
        return answer.strip()
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return (lines[0] if mark else without_preface(lines[-1].strip("*` "))).strip("*` ") if lines else ""


def scores(
    task: Task, answer: str, calls: Sequence[Invocation], ordered: bool, success: str = "answer"
) -> dict[str, float]:
    """The scores of a trajectory by rules.

    Returns:
        answer (exact match), f1, and gaia if that is `success`, if the row has answers; path (1: the gold path was
        followed), path_share, correct_calls and unneeded_calls, if it has a gold path.

    Raises:
        ValueError: the row has neither, and `success` is not for a judge; or one has a wrong form.
    """
    found: dict[str, float] = {}
    targets = targets_of(task.ground_truth, f"row {task.index}")
    if targets:
        found["answer"] = max(exact_match(answer, target) for target in targets)
        found["f1"] = max(f1_score(answer, target) for target in targets)
        if success == "gaia":
            found["gaia"] = max(gaia_match(answer, target) for target in targets)
    gold = gold_path(task)
    if gold:
        share = path_share(calls, gold, ordered)
        found |= {"path": float(share == 1.0), "path_share": share}
        found["correct_calls"] = float(correct_calls("gold_path", calls, gold))
        found["unneeded_calls"] = float(unneeded_calls(calls, gold))
    if not found and success not in JUDGED:
        raise ValueError(
            f"row {task.index} has neither an answer nor a gold path: ground_truth is {task.ground_truth!r}"
        )
    return found
