"""From forests to rows: one per call, or per sequence of calls that continue each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from verl_ext.mas.forest import Forest
from verl_ext.mas.types import Call
from verl_ext.sampling.base import BATCH, Sample
from verl_ext.trainer.row import Row

# Data-set columns that verl reads again after the rollout.
CARRIED = ("raw_prompt", "data_source", "reward_model", "index")
# Calls that continue each other in one trajectory, each with its position there.
Sequence = list[tuple[int, Call]]


def training_rows(forest: Forest, samples: list[Sample], question: dict[str, Any]) -> list[Row]:
    """Rows of the kept calls that credit reached. A call that trajectories share is in one row, of the first of them.

    The group of a sequence is that of its first call. Decisions of policy heads train elsewhere; if nothing else
    trains, there is an `idle_row` for the question.
    """
    groups = {sample.call: sample.group for sample in samples if sample.call.credited}
    with_tokens = {call: group for call, group in groups.items() if call.generation.token_ids}
    if groups and not with_tokens:
        number = next(n for n, trajectory in enumerate(forest.trajectories) if trajectory.scored and trajectory.calls)
        return [idle_row(number, forest, question)]
    rows = []
    for number, sequence in sequences(forest, with_tokens):
        group = with_tokens[sequence[0][1]]
        whole = "/".join(group if group[0] == BATCH else (question["uid"], *group))
        rows.append(sequence_row(sequence, number, forest, question, whole))
    return sorted(rows, key=lambda row: (row.trajectory, row.position))


def validation_rows(forest: Forest, question: dict[str, Any]) -> list[Row]:
    """Rows of all calls of the successful trajectories that credit reached; verl scores each trajectory by its last.

    Calls without known tokens (of endpoints, of policy heads) have none; a trajectory of such calls alone has an
    `idle_row`.
    """
    kept = [
        call
        for trajectory in forest.trajectories
        if trajectory.ok
        for call in trajectory.calls
        if call.status.trainable and call.credited and call.generation.token_ids
    ]
    rows = [sequence_row(sequence, number, forest, question) for number, sequence in sequences(forest, kept)]
    silent = [
        number
        for number, trajectory in enumerate(forest.trajectories)
        if trajectory.ok and trajectory.calls and not set(trajectory.calls) & set(kept)
    ]
    return [*rows, *(idle_row(number, forest, question) for number in silent)]


def sequences(forest: Forest, kept: Iterable[Call]) -> list[tuple[int, Sequence]]:
    """(trajectory, sequence): the kept calls, joined where one continues the one before.

    A call that was forked begins a new sequence, in the trajectory that it was forked from and in the forks: its
    samples are compared with each other (Eq. 5), so each has its own reward (Eq. 4), and the prompt of each row is
    everything before the fork. No token trains twice.
    """
    wanted, streams = set(kept), [trajectory.stream for trajectory in forest.trajectories]
    forks = {(stream.fork, ancestor) for stream in streams if stream.fork for ancestor in stream.lineage()}
    place: dict[Call, tuple[int, int]] = {}
    for number, trajectory in enumerate(forest.trajectories):
        for position, call in enumerate(trajectory.calls):
            if trajectory.scored and call in wanted:
                place.setdefault(call, (number, position))
    found: list[tuple[int, Sequence]] = []
    ending: dict[Call, Sequence] = {}
    for call, (number, position) in sorted(place.items(), key=lambda item: item[1]):
        before, forked = call.continues, (call.id, call.stream) in forks
        if before in ending and place[before][0] == number and not forked:
            sequence = ending.pop(before)
        else:
            sequence = []
            found.append((number, sequence))
        sequence.append((position, call))
        ending[call] = sequence
    return found


def sequence_row(sequence: Sequence, number: int, forest: Forest, question: dict[str, Any], group: str = "") -> Row:
    """One sequence of trajectory `number` as a row.

    Observations between two calls are part of the response, but masked; so are the tokens of a decision at which only
    one token was possible. The reward is R of the last call + R_spe of those before it.

    Raises:
        ValueError: the call is a decision, but no agent of the workflow has `choices`.
    """
    calls = [call for _, call in sequence]
    first, tokens, decides = calls[0], _tokens(sequence), forest.workflow.policy_decides
    if tokens.allowed and not decides:
        raise ValueError(
            f"agent {first.agent!r} decides, but no agent of {type(forest.workflow).__name__} does. Remedy: add it "
            "to the agents of this workflow; agents of sub-workflows must be there, too"
        )
    return Row(
        agent=first.agent,
        group=group,
        status=calls[-1].status.value,
        position=sequence[0][0],
        turn=first.turn,
        prompt=first.prompt_ids,
        response=tokens.response,
        mask=tokens.mask,
        log_probs=tokens.log_probs,
        reward=calls[-1].reward + sum(call.reward_specific for call in calls[:-1]),
        versions=_versions(calls),
        sampled_by=tuple(sorted({made for call in calls if (made := call.generation.adapter) is not None})),
        served_by=tuple(sorted({made for call in calls if (made := call.generation.policy)})),
        calls=tokens.calls,
        actions=tokens.actions,
        allowed=tokens.allowed if decides else None,
        **_of_trajectory(number, forest, question),
    )


@dataclass
class _Tokens:
    """The response of a row, token by token; see `Row`."""

    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    calls: list[list[int]] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)
    allowed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


def _tokens(sequence: Sequence) -> _Tokens:
    tokens = _Tokens()
    for position, call in sequence:
        output, observed = call.generation.token_ids, call.observed if tokens.response else 0
        tokens.response += call.prompt_ids[len(call.prompt_ids) - observed :] + output
        tokens.log_probs += [0.0] * observed + list(call.generation.log_probs)
        start = len(tokens.response) - len(output)
        choices = call.generation.allowed  # only positions with several allowed tokens train
        tokens.allowed += [(start + place, some) for place, some in enumerate(choices) if len(some) > 1]
        tokens.mask += [0] * observed + ([int(len(some) > 1) for some in choices] or [1] * len(output))
        tokens.calls.append([position, start, len(tokens.response)])
        tokens.actions += [[start + a, start + b] for a, b in call.actions]
    return tokens


def idle_row(number: int, forest: Forest, question: dict[str, Any]) -> Row:
    """An idle row for a question without a token that trains, because verl's loop needs a row of every question.

    Its prompt and its response are one end token each; it has the reward of trajectory `number`. The trainer drops it
    if other rows train, and updates nothing if none does.
    """
    trajectory = forest.trajectories[number]
    end = [forest.model_of(trajectory.calls[0].agent).end_token]
    place = _of_trajectory(number, forest, question)
    return Row(
        agent=trajectory.calls[0].agent,
        group=f"{question['uid']}_{number}_0",
        status="idle",
        prompt=end,
        response=end,
        mask=[1],
        log_probs=[0.0],
        reward=trajectory.reward,
        versions=_versions(trajectory.calls[:1]),
        allowed=[] if forest.workflow.policy_decides else None,
        **place,
    )


def _versions(calls: list[Call]) -> tuple[int, int]:
    generations = [call.generation for call in calls]
    return min(made.min_version for made in generations), max(made.max_version for made in generations)


def _of_trajectory(number: int, forest: Forest, question: dict[str, Any]) -> dict[str, Any]:
    """What a row has of its question and its trajectory."""
    trajectory = forest.trajectories[number]
    return {
        "uid": question["uid"],
        "data_source": str(question.get("data_source")),
        "index": int(question["index"]),
        "step": int(question["global_steps"]),
        "trajectory": number,
        "failed": not trajectory.ok,
        "outcome": trajectory.reward,
        "metrics": dict(trajectory.metrics),
        "turns": len(trajectory.calls),
        "carried": {name: question.get(name) for name in CARRIED},
    }
