"""Rows and TokenRows: a batch as algorithms see it, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Rows:
    """A batch of N rows, before any forward pass; idle and padding rows are already removed.

    A row is a call, or a sequence of calls that continue each other.

    Attributes:
        reward: (N,) float64, R of the row.
        group: (N,) int64, group of each row (MHGPO, Eq. 5's m).
        agent: (N,) int64, agent of each row.
        question: (N,) int64, question of each row.
        trajectory: (N,) int64, trajectory of each row; unique over the batch.
        decides: (N,) bool, True if the row is a decision (`Agent.choices`): its mask is where there was a choice.
        outcome: (N,) float64, reward of the row's trajectory.
        length: (N,) int64, tokens of the row's response, observations included.
        failed: (N,) bool, True if the trajectory could not finish; its outcome is that of `mas.failure`.
        position: (N,) int64, place of the row's first call among the calls of its trajectory, from 0.
        metrics: name -> (N,) float64, what the workflow's `reward` reported of the row's trajectory; NaN where it did
            not report it.
    """

    reward: torch.Tensor
    group: torch.Tensor
    agent: torch.Tensor
    question: torch.Tensor
    trajectory: torch.Tensor
    decides: torch.Tensor
    outcome: torch.Tensor
    length: torch.Tensor
    failed: torch.Tensor
    position: torch.Tensor
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class TokenRows(Rows):
    """Rows with their responses, padded to T tokens.

    Attributes:
        rewards: (N, T) float, token-level rewards; R sits on the last response token.
        mask: (N, T), 1 on tokens that the policy generated and that train; 0 on observations between calls.
        actions: (N, T) bool, True on the generated tokens that the agent's `actions` has marked (tool calls, …).
    """

    rewards: torch.Tensor = field(kw_only=True)
    mask: torch.Tensor = field(kw_only=True)
    actions: torch.Tensor = field(kw_only=True)
