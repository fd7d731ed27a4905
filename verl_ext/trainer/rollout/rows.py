"""From forests to rows of TransferQueue: one per call, or per sequence of calls that continue each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from verl_ext.engine.fsdp.masked_logits import ALLOWED, packed
from verl_ext.mas.forest import Forest
from verl_ext.mas.types import Call, Generation
from verl_ext.sampling.base import BATCH, Sample

Row = tuple[str, dict[str, Any], dict[str, Any]]
# Data-set columns that verl reads again after the rollout.
CARRIED = ("uid", "raw_prompt", "data_source", "reward_model", "index")


def training_rows(forest: Forest, samples: list[Sample], question: dict[str, Any]) -> list[Row]:
    """Rows of the kept calls that credit reached. A call that trajectories share is in one row, of the first of them.

    Row = (key, fields, tag), as verl's V1 trainer wants them: key `{uid}_{trajectory}_{position}`. The group of a
    sequence is that of its first call. Decisions of policy heads train elsewhere; if nothing else trains, there is an
    `idle_row` for the question.
    """
    groups = {sample.call: sample.group for sample in samples if sample.call.credited}
    spoken = {call: group for call, group in groups.items() if call.generation.token_ids}
    if groups and not spoken:
        number = next(number for number, trajectory in enumerate(forest.trajectories) if trajectory.ok)
        return [idle_row(number, forest, question)]
    groups, rows = spoken, []
    for number, sequence in sequences(forest, groups):
        key, fields, tag = sequence_row(sequence, number, forest, question)
        group = groups[sequence[0][1]]
        tag["group"] = "/".join(group if group[0] == BATCH else (question["uid"], *group))
        rows.append((key, fields, tag))
    return sorted(rows, key=lambda row: row[2]["order"])


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


def sequences(forest: Forest, kept: Iterable[Call]) -> list[tuple[int, list[tuple[int, Call]]]]:
    """(trajectory, [(position, call), …]): the kept calls, joined where one continues the one before.

    A fork within a sequence begins a new sequence, whose prompt is everything before the fork: no token trains twice.
    """
    wanted = set(kept)
    place: dict[Call, tuple[int, int]] = {}
    for number, trajectory in enumerate(forest.trajectories):
        for position, call in enumerate(trajectory.calls):
            if trajectory.ok and call in wanted:
                place.setdefault(call, (number, position))
    found: list[tuple[int, list[tuple[int, Call]]]] = []
    ending: dict[Call, list[tuple[int, Call]]] = {}
    for call, (number, position) in sorted(place.items(), key=lambda item: item[1]):
        before = call.continues
        if before in ending and place[before][0] == number:
            sequence = ending.pop(before)
        else:
            sequence = []
            found.append((number, sequence))
        sequence.append((position, call))
        ending[call] = sequence
    return found


def sequence_row(sequence: list[tuple[int, Call]], number: int, forest: Forest, question: dict[str, Any]) -> Row:
    """One sequence of trajectory `number` as a row: 1-D tensors, unpadded; the reward sits on the last response token.

    Observations between two calls are part of the response, but masked; so are the tokens of a decision at which only
    one token was possible. Masked tokens neither train nor count. The reward is R of the last call + R_spe of those
    before it.

    Raises:
        ValueError: the call is a decision, but no agent of the workflow has `choices`.
    """
    trajectory = forest.trajectories[number]
    calls = [call for _, call in sequence]
    first, said, deciding = calls[0], _response(sequence), forest.workflow.policy_decides
    if said.allowed and not deciding:
        raise ValueError(
            f"agent {first.agent!r} decides, but no agent of {type(forest.workflow).__name__} does. Remedy: add it "
            "to the agents of this workflow; agents of sub-workflows must be there, too"
        )
    reward = calls[-1].reward + sum(call.reward_specific for call in calls[:-1])
    oldest = max(min(call.generation.min_version for call in calls), 0)
    newest = max(max(call.generation.max_version for call in calls), 0)
    versions = {"global_steps": newest, "min_global_steps": oldest, "max_global_steps": newest}
    fields = _fields(first.prompt_ids, said, reward) | {
        "num_turns": len(trajectory.calls),
        "session_id": number,
        "multi_modal_inputs": {},
        "extra_fields": {"reward_extra_info": dict(trajectory.metrics), **versions},
    }
    if deciding:  # in all rows of the run: a batch has the same columns everywhere
        fields[ALLOWED] = packed(said.allowed)
    tag = versions | {
        "status": "success",
        "prompt_len": len(first.prompt_ids),
        "response_len": len(said.tokens),
        "seq_len": len(first.prompt_ids) + len(said.tokens),
        "global_steps": int(question["global_steps"]),
        "agent": first.agent,
        "trajectory": f"{question['uid']}_{number}",
        "question": question["uid"],
        "reward": reward,
        # The reward of the trajectory, and the other quantities that the workflow's `reward` reported.
        "outcome": trajectory.reward,
        "metrics": dict(trajectory.metrics),
        # [position in the trajectory, first token, last + 1] of each call's output; [first, last + 1] of each action.
        "calls": said.spans,
        "actions": said.actions,
        "decides": bool(said.allowed),
        # Position of the row in the batch whatever the order of arrival; uids are random in every run.
        "order": [str(question.get("data_source")), int(question["index"]), number, sequence[0][0]],
    }
    carried = {name: question.get(name) for name in CARRIED}
    return f"{question['uid']}_{number}_{sequence[0][0]}", carried | fields, tag


@dataclass
class _Response:
    """The response tokens of a row; `allowed` are (position, allowed tokens) where there was a choice."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)
    allowed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


def _response(sequence: list[tuple[int, Call]]) -> _Response:
    said = _Response()
    for position, call in sequence:
        output, observed = call.generation.token_ids, call.observed if said.tokens else 0
        said.tokens += call.prompt_ids[len(call.prompt_ids) - observed :] + output
        said.log_probs += [0.0] * observed + list(call.generation.log_probs)
        start = len(said.tokens) - len(output)
        choices = call.generation.allowed  # only positions with several allowed tokens train
        said.allowed += [(start + place, some) for place, some in enumerate(choices) if len(some) > 1]
        said.mask += [0] * observed + ([int(len(some) > 1) for some in choices] or [1] * len(output))
        said.spans.append([position, start, len(said.tokens)])
        said.actions += [[start + a, start + b] for a, b in call.actions]
    return said


def idle_row(number: int, forest: Forest, question: dict[str, Any]) -> Row:
    """A placeholder row for a question without a token that trains, because verl's loop needs a row of every question.

    Its prompt and its response are one end token each; it has the reward of trajectory `number`. Its tag has `idle`:
    the trainer drops it if other rows train, and updates nothing if none does.
    """
    trajectory, end = forest.trajectories[number], [forest.llm.end_token]
    first = trajectory.calls[0]
    versions = (first.generation.min_version, first.generation.max_version)
    output = Generation(end, [0.0], min_version=versions[0], max_version=versions[1])
    call = Call(first.id, first.stream, [], prompt_ids=end, generation=output, reward=trajectory.reward)
    key, fields, tag = sequence_row([(0, call)], number, forest, question)
    return key, fields, tag | {"group": key, "calls": [], "idle": True}


def _fields(prompt_ids: list[int], said: _Response, reward: float) -> dict[str, torch.Tensor]:
    prompt, response = torch.tensor(prompt_ids), torch.tensor(said.tokens)
    response_mask = torch.tensor(said.mask)
    scores = torch.zeros(len(response), dtype=torch.float32)
    scores[-1] = reward
    total = len(prompt) + len(response)
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": torch.cat([prompt, response]),
        "attention_mask": torch.ones(total, dtype=torch.int64),
        "position_ids": torch.arange(total, dtype=torch.int64),
        "response_mask": response_mask,
        "loss_mask": response_mask,
        "rm_scores": scores,
        "rollout_log_probs": torch.tensor(said.log_probs, dtype=torch.float32),
    }
