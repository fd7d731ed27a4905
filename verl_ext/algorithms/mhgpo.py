"""MHGPO: heterogeneous-group advantage estimation and the weights of its objective.

Source: "Heterogeneous Group-Based Reinforcement Learning for LLM-based Multi-Agent Systems", Eqs. 4 to 6.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from verl_ext.algorithms.base import Algorithm, RowWeights
from verl_ext.algorithms.groups import group_normalise
from verl_ext.algorithms.rows import TokenRows


def agent_weights(agent: torch.Tensor, question: torch.Tensor | None = None) -> torch.Tensor:
    """Row weights that turn a mean over rows into Eq. 6's mean over agents of means over each agent's rollouts.

    Eq. 6 averages 1/n Σ_k 1/G_k Σ_i; a batch mean averages 1/N Σ. With w_i = N / (n · G_k) the second becomes the
    first. Under `seq-mean-token-mean` this is exact for the policy term (the clipped surrogate is positively
    homogeneous in the advantage, so w_i may stand inside it) and for the KL term.

    Args:
        agent: (N,) agent of each row. n is the number of agents present, G_k the number of rows of agent k.
        question: (N,) given: n and G_k are counted per question, and questions weigh the same (the expectation over q
            read literally); with equal group sizes both readings agree.

    Returns:
        (N,) float64 with mean 1.
    """
    ones = torch.ones(len(agent), dtype=torch.float64)
    if question is None:
        question = torch.zeros_like(agent)
    _, q = torch.unique(question, return_inverse=True)
    pairs, pair = torch.unique(torch.stack([q, agent]), dim=1, return_inverse=True)
    rollouts = torch.zeros(pairs.shape[1], dtype=torch.float64).index_add(0, pair, ones)
    agents = torch.bincount(pairs[0]).double()
    return len(agent) / (len(agents) * agents[q] * rollouts[pair])


class MHGPO(Algorithm):
    """Heterogeneous groups (Eq. 5); all agents weigh the same in the objective (Eq. 6).

    Credit is the propagation of Eq. 4 (verl_ext/mas/credit.py). Every row trains.

    Attributes:
        tokens: where Â stands, of which the paper says both (below Eq. 3, and R^t below Eq. 5): "all" tokens of the
            output, as verl's GRPO; "last": the token that has the reward, so that it alone trains.
    """

    name = "mhgpo"
    row_weights = {
        "batch": RowWeights(lambda rows: agent_weights(rows.agent), ("seq-mean-token-mean",), "MHGPO's Eq. 6"),
        "question": RowWeights(
            lambda rows: agent_weights(rows.agent, rows.question), ("seq-mean-token-mean",), "MHGPO's Eq. 6"
        ),
    }

    tokens: Literal["all", "last"] = "all"

    def advantages(self, rows: TokenRows, config: Any) -> torch.Tensor:
        """Eq. 5: Â = (R − mean of its group) / std of its group, on the response tokens that `tokens` names.

        A group holds all calls with the same identifier m, whatever their prompts: homogeneous at the forked agent,
        heterogeneous after it. Degenerate groups (one member, no variance) give 0. Ambiguity resolved: the paper does
        not say which std; the unbiased one with epsilon 1e-6 makes this verl's GRPO on homogeneous groups. verl's
        `norm_adv_by_std_in_grpo=False` leaves out the division. R of a row is the sum of its token-level rewards.
        """
        total = rows.rewards.double().sum(-1)  # unmasked, as verl's GRPO: a token mask must not hide the last token's R
        by_std = bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True
        relative = group_normalise(total, rows.group, by_std=by_std)
        mask = rows.mask
        if self.tokens == "last":
            mask = mask * (mask.flip(-1).cumsum(-1).flip(-1) == 1)  # nothing that trains stands behind it
        return (relative[:, None] * mask).float()
