"""Differences between two evaluations of the same questions.

They are paired: what makes a question hard is in both, and cancels. The more alike the two answer, the smaller is the
standard error of the differences, by which a change is to be judged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from verl_ext.evaluate.answers import Key, Outcome, another_question, outcome_of
from verl_ext.evaluate.report import mean_of
from verl_ext.mas.types import Task
from verl_ext.observe.trajectory_files import EVALUATION_FILE
from verl_ext.storage.jsonl import read_log

# data source -> quantity -> its mean difference, the standard error of that, and the number of questions.
Differences = dict[str, dict[str, dict[str, Any]]]


def read_other(folder: str | Path, tasks: Sequence[Task]) -> dict[Key, Outcome]:
    """The answers of an earlier evaluation to these questions.

    Raises:
        ValueError: there are none, or they are to other questions.
    """
    path = Path(folder).expanduser() / EVALUATION_FILE
    asked = {(task.data_source, task.index): task for task in tasks}
    found = {}
    for record in read_log(path) if path.exists() else ():
        try:
            outcome, before = outcome_of(record), (record["question"]["text"], record["question"]["gold"])
        except (ValueError, KeyError, TypeError):  # damaged on the disk
            continue
        task = asked.get(outcome.key[:2])
        if task is None:
            continue
        if change := another_question(before, task):
            raise ValueError(
                f"evaluate.against={folder} answers another question with index {task.index} of data source "
                f"{task.data_source!r}: {change}. Remedy: an evaluation of the same data.val_files"
            )
        found[outcome.key] = outcome
    if not found:
        raise ValueError(
            f"evaluate.against={folder} has no answers to these questions ({path.name}). Remedy: the folder of an "
            "evaluation of the same data.val_files (evaluate.output of its command)"
        )
    return found


def differences(own: Mapping[Key, Outcome], other: Mapping[Key, Outcome]) -> Differences:
    """Of each quantity the mean of (own − other) over the questions that have it in both.

    A question's value is the mean over its samples that did not fail; the standard error is that of the differences.
    """
    mine, theirs = (_per_question(outcomes) for outcomes in (own, other))
    found: Differences = {}
    for source, quantities in mine.items():
        for name, values in quantities.items():
            there = theirs.get(source, {}).get(name, {})
            if each := [value - there[index] for index, value in values.items() if index in there]:
                found.setdefault(source, {})[name] = mean_of(each)
    return found


def _per_question(outcomes: Mapping[Key, Outcome]) -> dict[str, dict[str, dict[int, float]]]:
    """data source -> quantity -> index of a question -> its value."""
    samples: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for (source, index, _), outcome in outcomes.items():
        for name, value in outcome.metrics.items():
            if math.isfinite(value):
                samples[source, name, index].append(value)
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for (source, name, index), values in samples.items():
        found[source][name][index] = fmean(values)
    return found
