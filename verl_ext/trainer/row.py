"""Row: what one call, or one sequence of calls, carries from the rollout to the optimiser."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch

from verl_ext.engine.fsdp.masked_logits import ALLOWED, packed
from verl_ext.engine.lora.adapters import AGENT_ID
from verl_ext.trainer.checksums import of_tokens

Tag = dict[str, Any]

# What verl reads of a row's tag. Everything else travels as one JSON string under PACKED, because TransferQueue copies
# the tags of a whole batch deeply some thirty times in a step: copies of nested values were 5 % of a tiny step.
OF_VERL = (
    *("status", "prompt_len", "response_len", "seq_len", "global_steps", "min_global_steps", "max_global_steps"),
    "is_padding",
)
PACKED = "mas"


@dataclass(frozen=True)
class Row:
    """One row of a batch: one call, or calls that continue each other, in one sequence of tokens.

    Attributes:
        uid, data_source, index, step: of its question: name in this run, data set, position there, training step.
        trajectory, position: number of the trajectory, and of the first call in it. Unique in the question.
        turn: of the agent, at the first call, from 0.
        prompt, response: token ids; at least one each.
        mask: of each response token, 1 if the policy sampled it and it trains: 0 for observations between two calls,
            and for tokens of a decision at which only one token was possible.
        log_probs: of each response token, under the policy that sampled it; 0 for observations.
        reward: R. It is stored on the last token that trains, because GAE and REINFORCE++ skip all others; on the last
            token if none trains.
        agent, group: the agent, and the rows that its reward is compared with; groups are unique over the batch.
        status: how its last call ended (`mas.types.Status`), or "idle" or "padding".
        versions: oldest and newest policy version (training step) that sampled its tokens; -1: unknown.
        sampled_by: names of the adapters by which the engine says that it sampled its tokens; empty: it does not say.
        policy, served_by: of several policies the one that trains on the row, and those whose engines say that they
            sampled its tokens; None: there is one.
        failed: the trajectory could not finish; `outcome` is then what `mas.failure` says, and `metrics` is empty.
        outcome, metrics: reward of the trajectory, and the other quantities that the workflow's `reward` reported.
        calls: (position in the trajectory, first token, last + 1) of each call's output in the response.
        actions: (first, last + 1) of each action in the response (`Agent.actions`).
        allowed: (place in the response, allowed tokens) where a decision had a choice. None: no agent decides.
        adapter: number of the agent's adapter (-1: the base); None: the policy has no adapters.
        turns: calls of the trajectory.
        carried: columns of the data set that verl reads after the rollout.
    """

    uid: str
    prompt: list[int]
    response: list[int]
    mask: list[int]
    log_probs: list[float]
    reward: float
    agent: str
    group: str
    status: str
    data_source: str = ""
    index: int = 0
    step: int = 0
    trajectory: int = 0
    position: int = 0
    turn: int = 0
    versions: tuple[int, int] = (-1, -1)
    sampled_by: tuple[str, ...] = ()
    policy: str | None = None
    served_by: tuple[str, ...] = ()
    failed: bool = False
    outcome: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    calls: list[list[int]] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)
    allowed: list[tuple[int, tuple[int, ...]]] | None = None
    adapter: int | None = None
    turns: int = 0
    carried: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.prompt and len(self.response) == len(self.mask) == len(self.log_probs) > 0, self

    @property
    def key(self) -> str:
        """Name of the row, in verl's form `{uid}_{trajectory}_{position}`."""
        return f"{self.uid}_{self.trajectory}_{self.position}"

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Columns in TransferQueue: 1-D tensors, unpadded. All rows of a run have the same."""
        prompt, response, mask = torch.tensor(self.prompt), torch.tensor(self.response), torch.tensor(self.mask)
        rewarded = max((place for place, on in enumerate(self.mask) if on), default=len(self.mask) - 1)
        scores = torch.zeros(len(response), dtype=torch.float32)
        scores[rewarded] = self.reward
        total = len(prompt) + len(response)
        oldest, newest = (max(version, 0) for version in self.versions)
        versions = {"global_steps": newest, "min_global_steps": oldest, "max_global_steps": newest}
        columns: dict[str, Any] = {
            "prompts": prompt,
            "responses": response,
            "input_ids": torch.cat([prompt, response]),
            "attention_mask": torch.ones(total, dtype=torch.int64),
            "position_ids": torch.arange(total, dtype=torch.int64),
            "response_mask": mask,
            "loss_mask": mask,
            "rm_scores": scores,
            "rollout_log_probs": torch.tensor(self.log_probs, dtype=torch.float32),
            "num_turns": self.turns,
            "session_id": self.trajectory,
            "multi_modal_inputs": {},
            "extra_fields": {"reward_extra_info": dict(self.metrics), **versions},
        }
        if self.allowed is not None:
            columns[ALLOWED] = packed(self.allowed)
        if self.adapter is not None:
            columns[AGENT_ID] = self.adapter
        return self.carried | {"uid": self.uid} | columns

    @property
    def checksum(self) -> int:
        """Of prompt, response and mask, 0 if nothing trains; the training processes compute it from what they get."""
        if not any(self.mask):
            return 0
        columns = self.fields
        trains = torch.cat([torch.full_like(columns["prompts"], 2), columns["response_mask"]])
        return int(of_tokens(columns["input_ids"], trains, torch.tensor([len(trains)]))[0])

    @cached_property
    def tag(self) -> Tag:
        """What travels beside the columns: read by verl (OF_VERL), by the algorithms and for metrics."""
        oldest, newest = (max(version, 0) for version in self.versions)
        tag = {
            "status": "success",
            "prompt_len": len(self.prompt),
            "response_len": len(self.response),
            "seq_len": len(self.prompt) + len(self.response),
            "global_steps": self.step,
            "min_global_steps": oldest,
            "max_global_steps": newest,
            "ended": self.status,
            "checksum": self.checksum,
            "versions": list(self.versions),
            "adapter": self.adapter,
            "sampled_by": list(self.sampled_by),
            "agent": self.agent,
            "turn": self.turn,
            "group": self.group,
            "trajectory": f"{self.uid}_{self.trajectory}",
            "question": self.uid,
            "reward": self.reward,
            "failed": self.failed,
            "outcome": self.outcome,
            "metrics": self.metrics,
            "calls": self.calls,
            "actions": self.actions,
            "decides": bool(self.allowed),
            # Position of the row in the batch whatever the order of arrival; uids are random in every run.
            "order": [self.data_source, self.index, self.trajectory, self.position],
        }
        if self.policy is not None:
            tag |= {"policy": self.policy, "served_by": list(self.served_by)}
        return tag | {name: True for name in ("idle", "is_padding") if self.status == name.removeprefix("is_")}


def padding_row(uid: str, number: int, end_token: int, columns: set[str]) -> Row:
    """A row that trains nothing, so that ranks and mini-batches come out even.

    verl would copy the first row and shorten it: places of that row's decisions would then point outside it.

    Args:
        uid: of the padding rows of this step; no question's begins with it.
        number: of this row among them. Each is a question of its own: verl's `opo` divides by the tokens of a question.
        end_token: its only prompt token and its only response token.
        columns: names of the columns that the other rows have.
    """
    return Row(
        *(f"{uid}{number}", [end_token], [end_token], [0], [0.0], 0.0, "", f"{uid}_{number}", "padding"),
        allowed=[] if ALLOWED in columns else None,
        adapter=0 if AGENT_ID in columns else None,
    )


def pack(tag: Tag) -> Tag:
    """The tag as TransferQueue holds it."""
    of_verl = {name: tag[name] for name in OF_VERL if name in tag}
    return of_verl | {PACKED: json.dumps({name: value for name, value in tag.items() if name not in of_verl})}


def unpack(tags: list[Tag]) -> list[Tag]:
    """The tags as `Row.tag` made them, from those that TransferQueue holds."""
    return [
        _read(tag.get(PACKED, "{}")) | {name: value for name, value in tag.items() if name != PACKED} for tag in tags
    ]


@lru_cache(16384)  # a step reads each tag about ten times
def _read(packed_tag: str) -> Tag:
    return json.loads(packed_tag)
