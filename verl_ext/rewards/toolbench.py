"""Scores of tool calling on ToolBench: the columns of Table 5 of JoyAgents-R1 (Section A.3), in [0, 1].

They are columns of the static evaluation of Shen et al., "Small LLMs Are Weak Tool Learners" (2024): a model decides on
one step at a time, given the gold steps before it. The paper defines each column in a line, but its numbers do not
follow from these lines: F1, "across all conditions", would lie between Easy_F1 and Hard_F1, but in Table 5 it is above
both. The published script of that evaluation (ToolBench-Static) behaves so. Hence two ways of counting:

- "text", as the paper says: every step with a gold call counts in the column of its own gold arguments.
- "script", to compare with Table 5: a wrong API name counts as 0 in Easy_F1 and in Hard_F1, a correct argument name
  with a wrong value counts half, and hallucinated names are a share of all steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from verl_ext.tools.catalogue.types import canonical

PLANS = ("call", "answer", "give_up", "none")
COUNTINGS = ("text", "script")
COLUMNS = ("Plan_ACC", "Act_EM", "Easy_F1", "Hard_F1", "F1", "No_Hallu")


@dataclass(frozen=True)
class Decision:
    """The action of an agent at one step.

    Attributes:
        plan: the planning decision: call an API, give the final answer, give up; or none, where nothing was said.
        name: of the API; "" unless it calls one.
        arguments: as JSON values; None where they could not be parsed.
    """

    plan: str
    name: str = ""
    arguments: Mapping[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.plan not in PLANS:
            raise ValueError(f"the plan of a decision is one of {list(PLANS)}, given {self.plan!r}.")
        if (self.plan == "call") != bool(self.name):
            raise ValueError(f"a decision has the name of an API if and only if it calls one, given {self!r:.200}.")


@dataclass(frozen=True)
class Step:
    """A step of a test trajectory: the gold decision, the predicted one, and the names of the available APIs."""

    gold: Decision
    predicted: Decision
    apis: frozenset[str]

    def __post_init__(self) -> None:
        if self.gold.plan == "call" and (self.gold.arguments is None or self.gold.name not in self.apis):
            raise ValueError(
                f"the gold call {self.gold!r:.200} has no arguments or is not among the available APIs; leave such "
                "steps out, as the published evaluation does."
            )

    @property
    def named(self) -> bool:
        """Whether the gold API was called."""
        return self.predicted.plan == "call" and self.predicted.name == self.gold.name


def argument_f1(gold: Mapping[str, Any], predicted: Mapping[str, Any] | None, half: float = 0.0) -> float:
    """F1 over (name, value) pairs, 2·matches / (|gold| + |predicted|); 1 if both are empty, 0 if predicted is None.

    Values are compared as JSON: 1 equals 1.0 but neither "1" nor true, and the order of keys does not matter.
    half: the count of a correct name with another value.
    """
    if predicted is None:
        return 0.0
    if not gold or not predicted:
        return float(not gold and not predicted)
    shared = [name for name in gold if name in predicted]
    matches = sum(1.0 if canonical(gold[name]) == canonical(predicted[name]) else half for name in shared)
    return 2 * matches / (len(gold) + len(predicted))


def toolbench_scores(steps: Iterable[Step], counting: str = "text") -> dict[str, float]:
    """The columns of Table 5 over all steps of a test set, and their average.

    - Plan_ACC: share of the steps with the correct plan.
    - Act_EM: share of the steps with a gold call at which the gold API was called.
    - Easy_F1, Hard_F1, F1: mean `argument_f1` over the steps whose gold call has no arguments, over those whose gold
      call has some, and over both; a step at which another API or none was called scores 0.
    - No_Hallu: share of the called names that were available, 1 if none was called. A step at which nothing was said
      counts as a name that was not: silence is no knowledge of the APIs, and would give the column its maximum.
    - Avg: the mean of the six.

    A column without steps is absent, and so is Avg then.

    Args:
        counting: "text" or "script", see the module's docstring.

    Raises:
        ValueError: no steps, or another counting.
    """
    steps = list(steps)
    if counting not in COUNTINGS or not steps:
        raise ValueError(f"toolbench_scores needs steps and a counting out of {list(COUNTINGS)}, given {counting!r}.")
    script = counting == "script"
    called = [step for step in steps if step.predicted.plan in ("call", "none")]
    invented = sum(step.predicted.name not in step.apis for step in called)
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    columns["Plan_ACC"] = [float(step.predicted.plan == step.gold.plan) for step in steps]
    columns["No_Hallu"] = [1 - invented / max(1, len(steps) if script else len(called))]
    for step in steps:
        if step.gold.plan == "call":
            gold = step.gold.arguments or {}
            score = argument_f1(gold, step.predicted.arguments, 0.5 if script else 0.0) if step.named else 0.0
            columns["Act_EM"].append(float(step.named))
            columns["F1"].append(score)
            if not gold or (script and not step.named):
                columns["Easy_F1"].append(score)
            if gold or (script and not step.named):
                columns["Hard_F1"].append(score)
    scores = {name: fmean(values) for name, values in columns.items() if values}
    return scores | ({"Avg": fmean(scores.values())} if len(scores) == len(COLUMNS) else {})
