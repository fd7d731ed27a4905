"""The trajectory record: what training, validation and evaluation keep of a question, one JSON object per line.

`verl_ext.observe.trajectories` makes records, `verl_ext.observe.trajectory_files` writes and finds their files, and
`by_step` below joins them for readers (the viewer, the pictures). An evaluation writes a record per
trajectory, training one per question; a record that is too long for a file of the log is split.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

from verl_ext.mas.types import Task

# Deeper nesting in a tool's arguments or result, or in a gold answer, is left out.
DEEPEST = 16
# Of a whole number: Python writes and reads at most 4300 digits.
MOST_BITS = 14_000


class QuestionFields(TypedDict):
    """Which question a record is about.

    Attributes:
        number: place in the log of its step, from 0. Not in an evaluation.
        index: `extra_info.index` of its row.
        source: data source of its row.
        text: content of the last message of its prompt.
        gold: the right answer, as the row stores it.
    """

    number: NotRequired[int]
    index: int
    source: str
    text: str
    gold: Any


class TrajectoryFields(TypedDict):
    """One trajectory.

    Attributes:
        number: from 0 within the question; in an evaluation, the sample. A later record of the same number replaces it.
        stream: sources of its sampling noise: the root, then one per fork (`reranker.0*2`: second further sample).
        status: `ok`, or why it could not finish (`verl_ext.mas.types.Status`).
        error: the reason in words; empty if it is ok.
        reward: of the workflow; null if it could not finish.
        metrics: what the workflow's `reward` reports beside the reward.
        notes: what the workflow wrote down by `ctx.note`.
        sinks: ids of the calls that its result came from.
        result: what the workflow returned. Evaluation only, as are the next three.
        recall: share of the gold titles that were retrieved, in [0, 1], by name; empty without gold titles.
        seconds: from its start to its end.
        finished: when it ended, in seconds since 1970.
    """

    number: int
    stream: list[str]
    status: str
    error: str
    reward: float | None
    metrics: dict[str, float | None]
    notes: dict[str, Any]
    sinks: list[str]
    result: NotRequired[Any]
    recall: NotRequired[dict[str, float]]
    seconds: NotRequired[float]
    finished: NotRequired[float]


class ToolFields(TypedDict):
    """One tool call; trajectories that share it have it once.

    Attributes:
        id: unique within the question.
        name: of the tool.
        trajectories: numbers of those that contain it.
        after: ids of the calls just before it.
        arguments, result: as the tool got and gave them.
        failure: why it failed; null if it did not.
    """

    id: str
    name: str
    trajectories: list[int]
    after: list[str]
    arguments: Any
    result: Any
    failure: str | None


class CallFields(TypedDict):
    """One call of an agent; trajectories that share it have it once.

    Attributes:
        id: unique within the question: streams, then scope, agent and turn, e.g. `0 > reranker.0*2 | answerer.0`.
        scope: path of branches and sub-workflows.
        agent: name of the role.
        turn: 0-based number of the agent's calls in this scope.
        depth: length of the longest way from a first call to this one, along `parents`.
        stream: see `TrajectoryFields`.
        trajectories: numbers of those that contain it.
        parents: ids of the calls whose output its prompt uses: the way that credit takes back.
        prompt: chat messages, as they were sent.
        output: text without special tokens.
        reasoning: what the model wrote before, where the engine keeps the two apart.
        prompt_tokens, generated_tokens: their numbers; 0 where an endpoint does not report them.
        status: `ok`, `unparsable`, `no_tool_call`, `truncated`, or why there is no output (`mas.types.Status`).
        error: the reason in words; empty if it is ok.
        truncated: it reached max_tokens, whether it could be read or not.
        rewards: `shared` (Eq. 4), `specific` (of the agent's penalty), `total`; null where credit did not reach.
        ends: `trajectory` and `reward` of each trajectory whose result came from this call.
        decision: `options`, `chosen` (null: none of them) and `log_prob` (null: not known); null if it is no decision.
        metrics: what the agent's penalty reports.
        versions: of the policy at its first and last token, in training steps; -1: not known.
        adapter: the one that the engine says it used ("": the base alone); null where it does not say.
        policy: of several (`mas.policies`) the one whose engine says that it answered; null in a run with one.
        seconds: of the generation, waiting included, pauses for a weight update not.
        tokens: the output in one piece per generated token; joined they are `output`. Not in an evaluation.
        trained: whether it was a row of the update. Training and validation only, as are the next two.
        group: what its advantage is relative to; `*batch/…`: a group across questions; null if it did not train.
        advantage: one number if all tokens have the same, otherwise one per token, null where the token does not train
            (observations, tokens without a choice in a decision); null if the call or none of its tokens trained.
        weight: of its row in the loss; null if it did not train. Training only, as is the next one.
        difference: largest |log π| by which trainer and rollout engine differ on its tokens; null if not known.
    """

    id: str
    scope: list[str]
    agent: str
    turn: int
    depth: int
    stream: list[str]
    trajectories: list[int]
    parents: list[str]
    prompt: list[dict[str, Any]]
    output: str
    reasoning: str
    prompt_tokens: int
    generated_tokens: int
    status: str
    error: str
    truncated: bool
    rewards: dict[Literal["shared", "specific", "total"], float | None]
    ends: list[dict[str, Any]]
    decision: dict[str, Any] | None
    metrics: dict[str, float | None]
    versions: list[int]
    adapter: str | None
    policy: str | None
    seconds: float
    tokens: NotRequired[list[str]]
    trained: NotRequired[bool]
    group: NotRequired[str | None]
    advantage: NotRequired[float | list[float | None] | None]
    weight: NotRequired[float | None]
    difference: NotRequired[float | None]


class Record(TypedDict):
    """One line.

    Attributes:
        phase: `train`, `val` (validation of a run) or `eval` (`verl_ext evaluate`).
        step: training step; of `val` the step after which it ran (0: before training), of `eval` the step of the
            checkpoint, null where it is none.
        question: which question.
        trajectories: its trajectories; empty in the further parts of a record that was split.
        tools: tool calls.
        calls: calls of agents.
    """

    phase: Literal["train", "val", "eval"]
    step: int | None
    question: QuestionFields
    trajectories: list[TrajectoryFields]
    tools: list[ToolFields]
    calls: list[CallFields]


# Of one logged step: (phase, step).
Moment = tuple[str, int | None]


def by_step(records: Iterable[Mapping[str, Any]]) -> dict[Moment, list[dict[str, Any]]]:
    """(phase, step) -> its questions, each with `trajectories` by number, `tools` and `calls`; steps in order."""
    found: dict[Moment, dict[Any, dict[str, Any]]] = {}
    for record in records:
        given = record["question"]
        questions = found.setdefault((record["phase"], record["step"]), {})
        fresh = {**given, "text": str(given.get("text")), "trajectories": [], "tools": [], "calls": []}
        key = given.get("number", (given.get("source"), given.get("index")))
        _extend(questions.setdefault(key, fresh), record)
    for questions in found.values():
        for question in questions.values():
            _complete(question)
    order = sorted(found, key=lambda moment: (moment[0], moment[1] or 0))
    return {moment: list(found[moment].values()) for moment in order}


def _extend(question: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Add a record to its question; its trajectories replace earlier ones with the same numbers."""
    if numbers := {trajectory["number"] for trajectory in record["trajectories"]}:
        question["trajectories"] = [one for one in question["trajectories"] if one["number"] not in numbers]
        for part in ("tools", "calls"):
            question[part] = [one for one in question[part] if not numbers.intersection(one["trajectories"])]
    for part in ("trajectories", "tools", "calls"):
        question[part] += record[part]


def _complete(question: dict[str, Any]) -> None:
    """Order the trajectories by number, with placeholders for those that calls name and no record describes."""
    known = {trajectory["number"]: trajectory for trajectory in question["trajectories"]}
    last = max([*known, *(number for call in question["calls"] for number in call["trajectories"])], default=-1)
    missing: dict[str, Any] = {
        "stream": [],
        "status": "unknown",
        "error": "not in the log",
        "reward": None,
        "sinks": [],
    }
    question["trajectories"] = [known.get(number, {"number": number, **missing}) for number in range(last + 1)]


def as_json(value: Any, depth: int = 0) -> Any:
    """`value` in JSON's types: NaN is null, infinities and what JSON does not know are text, arrays are lists.

    A whole number of thousands of digits is left out, too, as Python refuses to write it.

    A data class is an object of its fields, without those that hold a task: the record has the question already, and a
    result must not show the gold answer.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= MOST_BITS else f"<int of {value.bit_length()} bits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if hasattr(value, "tolist"):  # numpy
        return as_json(value.tolist(), depth)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        value = {name: item for name, item in held.items() if not isinstance(item, Task)}
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if depth == DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            return {str(name): as_json(item, depth + 1) for name, item in value.items()}
        return [as_json(item, depth + 1) for item in value]
    try:
        return str(value)
    except Exception:  # a tool's own class
        return f"<{type(value).__name__}>"
