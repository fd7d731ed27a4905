"""The trajectory log: prompts and outputs of every agent, with their rewards and advantages.

The rollout worker turns a sampled question into a `QuestionTrace`. The trainer adds step, groups and advantages and
writes the lines: one of the kind "question", then one of the kind "call" per agent call.
docs/trajectories.md describes every field; trajectory_files.py keeps the files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from typing import Any

from verl_ext.mas.forest import Forest
from verl_ext.mas.types import Call, CallId, Stream, ToolRecord, Trajectory
from verl_ext.observe.decisions import decision_of

# Deeper nesting in a tool's arguments or result, or in a gold answer, is left out.
DEEPEST = 16
# Tokens after which `token_pieces` gives up following a text step by step, and looks at the whole of it again.
PATIENCE = 16
# (trajectory, position of the call in it): the row of a call.
Place = tuple[int, int]


@dataclass
class QuestionTrace:
    """One sampled question in plain values, small enough to send between processes.

    Attributes:
        uid: verl's, of this question in this run.
        rank: order in which questions are chosen for the log, the smallest first.
        calls: records of its calls, as far as the worker knows them; `token_ids` instead of the final `tokens`.
    """

    uid: str
    rank: int
    question: dict[str, Any]
    trajectories: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    calls: list[dict[str, Any]]


@dataclass(frozen=True)
class Trained:
    """A call in training: the group in which it was compared, and the advantage of each of its tokens."""

    group: str
    advantages: list[float]


def trace_question(forest: Forest, uid: str, rank: int) -> QuestionTrace:
    """The trace of a sampled forest (credit assigned). Cheap: texts are shared with the forest, ids not decoded."""
    task = forest.task
    numbers: dict[Call, list[int]] = {}
    used: dict[ToolRecord, list[int]] = {}
    for number, trajectory in enumerate(forest.trajectories):
        for call in trajectory.calls:
            numbers.setdefault(call, []).append(number)
        for record in dict.fromkeys(trajectory.tools):
            used.setdefault(record, []).append(number)
    return QuestionTrace(
        uid=uid,
        rank=rank,
        question={"index": task.index, "source": task.data_source, "text": task.question, "gold": task.ground_truth},
        trajectories=[_trajectory(trajectory) for trajectory in forest.trajectories],
        tools=[_tool(record, among) for record, among in used.items()],
        calls=[_call(call, among, forest.trajectories) for call, among in numbers.items()],
    )


def identity(call_id: CallId, stream: Stream) -> str:
    """Name of a call or tool call within its question: the streams from the root to its own, then its place."""
    return f"{' > '.join(stream.path)} | {call_id}"


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "stream": list(trajectory.stream.path),
        "status": trajectory.status.value,
        "error": trajectory.error,
        "reward": trajectory.reward,
        "metrics": dict(trajectory.metrics),
        "notes": dict(trajectory.notes),
        "sinks": sorted(identity(call.id, call.stream) for call in trajectory.sinks),
    }


def _tool(record: ToolRecord, among: list[int]) -> dict[str, Any]:
    return {
        "id": identity(record.id, record.stream),
        "name": record.name,
        "trajectories": among,
        "after": sorted(identity(call.id, call.stream) for call in record.after),
        "arguments": record.arguments,
        "result": record.result,
        "failure": record.failure,
    }


def _call(call: Call, among: list[int], trajectories: list[Trajectory]) -> dict[str, Any]:
    finished = [number for number in among if trajectories[number].ok]
    ends = [number for number in finished if call in trajectories[number].sinks]
    decision = decision_of(call)
    return {
        "id": identity(call.id, call.stream),
        "scope": list(call.id.scope),
        "agent": call.agent,
        "turn": call.turn,
        "depth": call.depth,
        "stream": list(call.stream.path),
        "trajectories": among,
        # Its row in training or validation, as verl_ext.trainer.rollout.rows numbers them.
        "place": (finished[0], trajectories[finished[0]].calls.index(call)) if finished else None,
        "parents": sorted(identity(parent.id, parent.stream) for parent in call.parents),
        "prompt": call.messages,
        "output": call.text,
        "reasoning": call.reasoning,
        "token_ids": call.generation.token_ids,
        "status": call.status.value,
        "error": call.error,
        "rewards": {"shared": call.reward_shared, "specific": call.reward_specific, "total": call.reward},
        "ends": [{"trajectory": number, "reward": trajectories[number].reward} for number in ends],
        "decision": asdict(decision) if decision else None,
        "metrics": dict(call.metrics),
        "versions": [call.generation.min_version, call.generation.max_version],
        "seconds": call.seconds,
    }


def resolve(trace: QuestionTrace, decode: Callable[[list[int]], str]) -> QuestionTrace:
    """Prepare a chosen trace for another process: tokens become pieces of text, all values JSON types."""
    for call in trace.calls:
        ids = call.pop("token_ids", None)
        if ids is not None:
            call["tokens"] = token_pieces(ids, call["output"], decode)
    for name in ("question", "trajectories", "tools", "calls"):
        setattr(trace, name, _plain(getattr(trace, name)))
    return trace


def token_pieces(token_ids: list[int], text: str, decode: Callable[[list[int]], str]) -> list[str]:
    """`text` cut into one piece per token; the pieces joined are `text` exactly.

    A character that several tokens spell belongs to the last of them, the others' pieces are empty, as are those of
    special tokens. If no text was taken from the tokens (the engine aborted them), all pieces are empty. If the tokens
    are not known (an endpoint's), there are no pieces.

    Args:
        token_ids: generated tokens.
        text: what `decode` made of all of them.
        decode: token ids to text, without special tokens.
    """
    single = [decode([token]) for token in token_ids] if text else [""] * len(token_ids)
    if not token_ids or "".join(single) == text:
        return single
    pieces: list[str] = []
    done, before, read = 0, 0, 0  # characters of `text` given away; tokens of context; tokens whose text is given away
    for end in range(1, len(token_ids) + 1):
        piece = decode(token_ids[before:end])[len(decode(token_ids[before:read])) :]
        whole = text.startswith(piece, done)
        if not whole and end - read > PATIENCE:
            reached = len(os.path.commonprefix([decode(token_ids[:end]), text]))
            piece, whole, read = text[done:reached], reached > done, end - 1
        pieces.append(piece if whole else "")
        if whole:
            done, before, read = done + len(piece), read, end
    pieces[-1] += text[done:]
    return pieces


def records(
    trace: QuestionTrace, phase: str, step: int, number: int, trained: Mapping[Place, Trained] | None = None
) -> list[dict[str, Any]]:
    """The lines of a resolved trace: the question, then its calls.

    Args:
        phase: "train" or "val".
        number: of the question in the log of this step.
        trained: by the call's place; calls that are not in it did not train.
    """
    head = {"phase": phase, "step": step, "question": {"number": number, **trace.question}}
    lines = [{"kind": "question", **head, "trajectories": trace.trajectories, "tools": trace.tools}]
    for call in trace.calls:
        known = {name: value for name, value in call.items() if name != "place"}
        learned = (trained or {}).get(tuple(call["place"])) if call["place"] else None
        advantage = _one_or_all(learned.advantages) if learned else None
        group = learned.group if learned else None
        lines.append(
            {"kind": "call", **head, **known, "trained": bool(learned), "group": group} | {"advantage": advantage}
        )
    return lines


def _one_or_all(values: list[float]) -> float | list[float]:
    return values[0] if len(set(values)) == 1 else values


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` in JSON's types: NaN is null, infinities and what JSON does not know are text, arrays are lists."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if hasattr(value, "tolist"):  # numpy
        return _plain(value.tolist(), depth)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if depth == DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            return {str(name): _plain(item, depth + 1) for name, item in value.items()}
        return [_plain(item, depth + 1) for item in value]
    try:
        return str(value)
    except Exception:  # a tool's own class
        return f"<{type(value).__name__}>"


@dataclass
class TraceStore:
    """Holds the traces of a rollout worker until the trainer takes the ones to log; then drops the others."""

    _held: dict[str, QuestionTrace] = field(default_factory=dict)
    _without_rows: set[str] = field(default_factory=set)

    def add(self, trace: QuestionTrace, without_rows: bool = False) -> None:
        """Hold a trace; `without_rows`: nothing of this question trains, so the trainer does not know of it."""
        self._held[trace.uid] = trace
        if without_rows:
            self._without_rows.add(trace.uid)

    def take(self, uids: Iterable[str] | None, count: int) -> list[QuestionTrace]:
        """The `count` traces of smallest rank of these questions (None: all) and those without rows. Drops the rest."""
        names = list(self._held) if uids is None else [*uids, *self._without_rows]
        self._without_rows.clear()
        return first([self._held.pop(name) for name in names if name in self._held], count)


def first(traces: Iterable[QuestionTrace], count: int) -> list[QuestionTrace]:
    """The `count` traces of smallest rank, in this order."""
    return nsmallest(count, traces, key=lambda trace: (trace.rank, trace.uid))
