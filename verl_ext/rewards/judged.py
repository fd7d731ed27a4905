"""Scores that a judge gives: ToolBench's pass rate and win rate, exact answers, CommonGen-Hard's four terms.

The protocol of the first two is ToolEval's, as in StableToolBench (github.com/THUNLP-MT/StableToolBench,
toolbench/tooleval), with the wording of our own templates.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from verl_ext.rewards.calls import Row
from verl_ext.rewards.judge import Judge
from verl_ext.rewards.truth import targets_of

# Worth of a status: StableToolBench counts an unsure answer half.
WORTH = {"solved": 1.0, "unsure": 0.5, "unsolved": 0.0}
EVALUATIONS = 3
# Value of `mas.workflow.success` -> what the judge is asked for an answer.
JUDGED = {
    "pass": "ToolEval's pass rate, 3 evaluations of one or two questions",
    "win": "ToolEval's win rate, 6 to 14 questions",
    "hle": "exact answers as Humanity's Last Exam, a question for each target",
}
TERMS = ("grammar", "relevance", "logic", "coverage")


async def status_of(judge: Judge, query: str, answer: str, calls: Sequence[Any], sample: int = 0) -> str:
    """One evaluation of an answer: solved, unsolved or unsure. Where the answer leaves it open, the calls are judged.

    Args:
        calls: the tool calls with their results, as JSON.

    Raises:
        JudgeFailed: see `Judge.ask`.
    """
    if not answer.strip():
        return "unsolved"
    status = (await judge.ask("answer_status", sample=sample, query=query, answer=answer))["status"]
    if status == "unsure":
        verdict = await judge.ask("path_status", sample=sample, query=query, calls=list(calls), answer=answer)
        status = verdict["status"]
    return str(status)


async def pass_rate(
    judge: Judge, query: str, answer: str, calls: Sequence[Any], evaluations: int = EVALUATIONS
) -> dict[str, float]:
    """{"passed", "solved"} of an answer by several evaluations, in [0, 1].

    passed: what most of them say (unsure where two statuses are equally frequent). solved: their mean. Both count
    solved as 1 and unsure as 1/2.

    Raises:
        JudgeFailed: one of the evaluations failed.
    """
    asked = [status_of(judge, query, answer, calls, sample) for sample in range(evaluations)]
    statuses = await asyncio.gather(*asked)
    (first, most), *others = Counter(statuses).most_common()
    tied = bool(others) and others[0][1] == most
    return {"passed": WORTH["unsure" if tied else first], "solved": fmean(WORTH[status] for status in statuses)}


async def win_rate(judge: Judge, query: str, ours: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """1 if our answer is better than the reference's, 0 if it is worse, 1/2 if neither is.

    The one whose status is better wins (`pass_rate`). Of equal statuses the judge chooses, in both orders, because
    judges prefer what stands in one place; a choice that follows the order is worth 1/2, and so are equal answers.

    Args:
        ours, reference: {"answer": text, "calls": as in `status_of`}.

    Raises:
        JudgeFailed: see `Judge.ask`.
    """
    if ours == reference:
        return 0.5
    asked = [pass_rate(judge, query, one["answer"], one["calls"]) for one in (ours, reference)]
    left, right = [rates["passed"] for rates in await asyncio.gather(*asked)]
    if left != right:
        return float(left > right)
    there, back = await asyncio.gather(
        judge.ask("preference", query=query, first=ours, second=reference),
        judge.ask("preference", query=query, first=reference, second=ours),
    )
    return float((there["better"] == "first") + (back["better"] == "second")) / 2


async def exact_answer(judge: Judge, question: str, target: str, response: str) -> float:
    """1 if a response's final answer is the target, else 0, as Humanity's Last Exam is scored.

    Raises:
        JudgeFailed: see `Judge.ask`.
    """
    if not response.strip():
        return 0.0
    verdict = await judge.ask("exact_answer", question=question, target=target, response=response)
    return float(verdict["correct"] == "yes")


async def commongen(judge: Judge, task: str, concepts: Sequence[str], text: str) -> dict[str, float]:
    """{"grammar", "relevance", "logic", "coverage"} of a text with these concepts, each in [0, 1].

    Raises:
        JudgeFailed: see `Judge.ask`.
    """
    if not text.strip():
        return dict.fromkeys(TERMS, 0.0)
    verdict = await judge.ask("commongen", task=task, concepts=list(concepts), text=text)
    return {term: (verdict[term] - 1) / 9 for term in TERMS}


def reference_of(task: Row) -> dict[str, Any]:
    """{"answer", "calls"} of `extra_info.reference`, whose calls may be a JSON text, as parquet files have them.

    Raises:
        ValueError: the row has none.
    """
    given: Any = task.extra.get("reference")
    try:
        calls = json.loads(given["calls"]) if isinstance(given["calls"], str) else list(given["calls"])
        return {"answer": str(given["answer"]), "calls": calls}
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"row {task.index} has no extra_info.reference with answer and calls, which win needs"
        ) from error


async def judged(kind: str, judge: Judge | None, task: Row, answer: str, calls: Sequence[Any]) -> dict[str, float]:
    """The scores of an answer, by what `mas.workflow.success` names; that name is among them.

    Args:
        kind: pass (`pass_rate`, whose mean is "solved", and "win" where the row has a reference), win (`win_rate`
            against `extra_info.reference`), hle (`exact_answer` for the best of the row's targets).
        calls: see `status_of`.

    Raises:
        JudgeFailed: see `Judge.ask`.
        ValueError: the row lacks a reference or a target.
    """
    assert judge is not None, "workflows that ask a judge set needs_judge"
    found: dict[str, float] = {}
    if kind == "pass":
        rates = await pass_rate(judge, task.question, answer, calls)
        found = {"pass": rates["passed"], "solved": rates["solved"]}
    if kind == "win" or (found and task.extra.get("reference") is not None):
        reference = reference_of(task)
        ours = {"answer": answer, "calls": list(calls)}
        found["win"] = await win_rate(judge, task.question, ours, reference)
    if found:
        return found
    targets = targets_of(task.ground_truth, f"row {task.index}")
    if not targets:
        raise ValueError(f"row {task.index} has no target (ground_truth.target), which hle needs")
    asked = [exact_answer(judge, task.question, target, answer) for target in targets]
    return {"hle": max(await asyncio.gather(*asked))}
