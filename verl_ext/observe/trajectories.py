"""Makes trajectory records (`verl_ext.observe.record`) from sampled questions.

The rollout worker turns a sampled question into a `QuestionTrace`. The trainer adds step, groups and advantages and
makes the records. An evaluation makes its records at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from typing import Any

from verl_ext.mas.forest import Forest
from verl_ext.mas.tool_texts import written_call, written_out
from verl_ext.mas.types import Call, CallId, Stream, ToolRecord, Trajectory
from verl_ext.observe.decisions import decision_of
from verl_ext.observe.record import Record, as_json

# Tokens after which `token_pieces` stops following a text step by step, and looks at the whole of it again.
PATIENCE = 16
# (number of the trajectory, position of the call in it): the row of a call.
Place = tuple[int, int]
Decode = Callable[[list[int]], str]


@dataclass
class QuestionTrace:
    """One sampled question in plain values, small enough to send between processes.

    Attributes:
        uid: verl's identifier of this question in this run.
        rank: questions of the smallest rank are chosen for the log.
        question, trajectories, tools, calls: parts of the record as far as they are known; calls have `token_ids` in
            place of `tokens`, and the `place` of their row; calls and tools have `times`, their begin and end in
            seconds since 1970. A record has neither `place` nor `times`.
    """

    uid: str
    rank: int
    question: dict[str, Any]
    trajectories: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    calls: list[dict[str, Any]]


@dataclass(frozen=True)
class Trained:
    """What a call learned from.

    Attributes:
        group: that it was compared in.
        advantages: of each of its tokens; None: the token does not train.
        weight: of its row in the loss.
        difference: the largest |log π_trainer − log π_rollout| of its tokens; None: not known.
    """

    group: str
    advantages: list[float | None]
    weight: float | None = None
    difference: float | None = None


def trace_question(forest: Forest, uid: str = "", rank: int = 0, first_number: int = 0) -> QuestionTrace:
    """The trace of a sampled forest, after credit was assigned. Cheap: texts are shared, token ids are not decoded.

    Args:
        first_number: of the forest's first trajectory.
    """
    task, numbered = forest.task, dict(enumerate(forest.trajectories, first_number))
    numbers: dict[Call, list[int]] = {}
    used: dict[ToolRecord, list[int]] = {}
    for number, trajectory in numbered.items():
        for call in trajectory.calls:
            numbers.setdefault(call, []).append(number)
        for record in dict.fromkeys(trajectory.tools):
            used.setdefault(record, []).append(number)
    return QuestionTrace(
        uid=uid,
        rank=rank,
        question={"index": task.index, "source": task.data_source, "text": task.question, "gold": task.ground_truth},
        trajectories=[_trajectory(number, trajectory) for number, trajectory in numbered.items()],
        tools=[_tool(record, among) for record, among in used.items()],
        calls=[_call(call, among, numbered) for call, among in numbers.items()],
    )


def identity(call_id: CallId, stream: Stream) -> str:
    """Id of a call or tool call within its question: the streams from the root to its own, then its place."""
    return f"{' > '.join(stream.path)} | {call_id}"


def _trajectory(number: int, trajectory: Trajectory) -> dict[str, Any]:
    return {
        "number": number,
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
        "times": (record.began, record.ended),
    }


def _call(call: Call, among: list[int], trajectories: Mapping[int, Trajectory]) -> dict[str, Any]:
    finished = [number for number in among if trajectories[number].scored]
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
        # Its row in training or validation, as verl_ext.trainer.rollout.forest_to_rows numbers them.
        "place": (finished[0], trajectories[finished[0]].calls.index(call)) if finished else None,
        "parents": sorted(identity(parent.id, parent.stream) for parent in call.parents),
        "prompt": call.messages if call.chat is None else written_out(call.messages, call.chat.tools),
        "output": "\n".join(filter(None, [call.text, *map(written_call, call.tool_calls or ())])),
        "reasoning": call.reasoning,
        "prompt_tokens": call.prompt_tokens,
        "generated_tokens": call.generated_tokens,
        "token_ids": call.generation.token_ids,
        "status": call.status.value,
        "error": call.error,
        "truncated": call.generation.stop_reason == "length",
        "rewards": {"shared": call.reward_shared, "specific": call.reward_specific, "total": call.reward},
        "ends": [{"trajectory": number, "reward": trajectories[number].reward} for number in ends],
        "decision": asdict(decision) if decision else None,
        "metrics": dict(call.metrics),
        "versions": [call.generation.min_version, call.generation.max_version],
        "adapter": call.generation.adapter,
        "policy": call.generation.policy or None,
        "seconds": call.seconds,
        "times": (call.began, call.ended),
    }


def resolve(
    trace: QuestionTrace, decode: Decode | None = None, decoders: Mapping[str, Decode] | None = None
) -> QuestionTrace:
    """Replace a trace's token ids by pieces of text, and all values by JSON's own types; returns the trace.

    Args:
        decode: token ids to text, without special tokens; None: the pieces are left out.
        decoders: the same by agent, for agents whose policies have tokenizers of their own.
    """
    for call in trace.calls:
        ids, own = call.pop("token_ids", None), (decoders or {}).get(call["agent"], decode)
        if ids is not None and own is not None:
            call["tokens"] = token_pieces(ids, call["output"], own)
    for name in ("question", "trajectories", "tools", "calls"):
        setattr(trace, name, as_json(getattr(trace, name)))
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
            piece, whole = text[done:reached], reached > done
            before, read = read, end - 1
        pieces.append(piece if whole else "")
        if whole:
            done, before, read = done + len(piece), read, end
    pieces[-1] += text[done:]
    return pieces


def training_record(
    trace: QuestionTrace, phase: str, step: int, number: int, trained: Mapping[Place, Trained] | None = None
) -> Record:
    """The record of a resolved trace in the log of a run.

    Args:
        phase: "train" or "val".
        number: of the question in the log of this step.
        trained: by the place of a call; calls that are not in it did not train.
    """
    calls = []
    for call in trace.calls:
        row = (trained or {}).get(tuple(call["place"])) if call["place"] else None
        learned = {"trained": row is not None, "group": row and row.group}
        learned |= {"weight": row and row.weight, "difference": row and row.difference}
        learned["advantage"] = row and (row.advantages if len(set(row.advantages)) > 1 else row.advantages[0])
        calls.append(_recorded(call) | as_json(learned))
    head = {"phase": phase, "step": step, "question": {"number": number, **trace.question}}
    return {**head, "trajectories": trace.trajectories, "tools": [*map(_recorded, trace.tools)], "calls": calls}


def evaluation_record(trace: QuestionTrace, step: int | None, about: Mapping[str, Any]) -> Record:
    """The record of a trace with one trajectory, of an evaluation.

    Args:
        step: of the checkpoint, if it is one.
        about: `result`, `recall`, `seconds` and `finished` of the trajectory.
    """
    resolve(trace)
    (trajectory,) = trace.trajectories
    tools, calls = [*map(_recorded, trace.tools)], [*map(_recorded, trace.calls)]
    head = {"phase": "eval", "step": step, "question": trace.question}
    return {**head, "trajectories": [trajectory | as_json(about)], "tools": tools, "calls": calls}


def _recorded(part: Mapping[str, Any]) -> dict[str, Any]:
    """A call or tool call of a trace as a record has it."""
    return {name: value for name, value in part.items() if name not in ("place", "times")}


@dataclass
class TraceStore:
    """Keeps the traces of a rollout worker until the trainer takes those that it logs; the others are dropped then."""

    _held: dict[str, QuestionTrace] = field(default_factory=dict)
    _empty: set[str] = field(default_factory=set)

    def add(self, trace: QuestionTrace, empty: bool = False) -> None:
        """Keep a trace; `empty`: the question has no training row, so the trainer does not know its uid."""
        self._held[trace.uid] = trace
        if empty:
            self._empty.add(trace.uid)

    def drop(self, uids: Iterable[str]) -> None:
        """Remove these questions."""
        for uid in uids:
            self._held.pop(uid, None)
            self._empty.discard(uid)

    def held(self) -> dict[str, QuestionTrace]:
        """All traces by uid. They stay."""
        return dict(self._held)

    def take(self, uids: Iterable[str] | None, count: int) -> list[QuestionTrace]:
        """Remove these questions (None: all) and those without rows; return the `count` of smallest rank."""
        names = list(self._held) if uids is None else [*uids, *self._empty]
        self._empty.clear()
        return first([self._held.pop(name) for name in names if name in self._held], count)


def first(traces: Iterable[QuestionTrace], count: int) -> list[QuestionTrace]:
    """The `count` traces of smallest rank, in this order."""
    return nsmallest(count, traces, key=lambda trace: (trace.rank, trace.uid))
