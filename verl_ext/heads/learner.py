"""Trains a policy head by REINFORCE (Puppeteer, Eq. 5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from verl_ext.heads.policy import Weights
from verl_ext.memory import Similarity

# What a checkpoint holds of a head, see `Learner.state`.
SAVED = ("encoder", "matrix", "adam", "version", "baseline")


class Learner:
    """Trains the matrix W of a head with Adam.

    Args:
        similarity: of the head.
        lr: Adam's learning rate.
        entropy: weight of the mean entropy of the decisions' distributions, which is added to what is maximised.
        temperature: of the rollouts.

    Attributes:
        version: number of steps so far.
        baseline: state of the baseline between steps.
    """

    def __init__(self, similarity: Similarity, lr: float, entropy: float = 0.0, temperature: float = 1.0):
        self.similarity, self.entropy, self.temperature = similarity, entropy, temperature
        self.matrix = torch.zeros(similarity.width, similarity.width, dtype=torch.float64, requires_grad=True)
        self._adam = torch.optim.Adam([self.matrix], lr=lr)
        self.version = 0
        self.baseline: dict[str, float] = {}

    @property
    def weights(self) -> Weights:
        """A copy of the weights."""
        return Weights(self.matrix.detach().numpy().copy(), self.version)

    def learn(
        self,
        states: Sequence[str],
        options: Sequence[tuple[str, ...]],
        chosen: Sequence[int],
        advantages: torch.Tensor,
        trajectories: int,
    ) -> dict[str, float]:
        """One step of Adam on −1/N Σ_n Σ_t A_t log π(a_t | S_t) − entropy · mean H(π(· | S_t)).

        Args:
            states: (n) text of the state of each decision.
            options: (n) the options of each decision.
            chosen: (n) index of the chosen option.
            advantages: (n,) A_t.
            trajectories: N.

        Returns:
            loss, entropy (mean H in nats) and grad_norm, all before the step.
        """
        log_pi, entropies = [], []
        by_pool: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for row, pool in enumerate(options):
            by_pool[pool].append(row)
        for pool, rows in by_pool.items():
            logits = self._embedded([states[row] for row in rows]) @ self.matrix @ self._embedded(pool).T
            log_probs = torch.log_softmax(logits / self.temperature, -1)  # (rows, pool)
            taken = log_probs[range(len(rows)), [chosen[row] for row in rows]]
            log_pi.append((advantages[rows].double() * taken).sum())
            entropies.append(-(log_probs.exp() * log_probs).sum())
        entropy = torch.stack(entropies).sum() / len(states)
        loss = -torch.stack(log_pi).sum() / trajectories - self.entropy * entropy
        self._adam.zero_grad()
        loss.backward()
        norm = self.matrix.grad.norm().item()
        self._adam.step()
        return {"loss": loss.item(), "entropy": entropy.item(), "grad_norm": norm}

    def _embedded(self, texts: Sequence[str]) -> torch.Tensor:
        """(n, width) float64; equal texts are embedded once."""
        place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        return torch.from_numpy(self.similarity.encode(list(place))).double()[[place[text] for text in texts]]

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {
            "encoder": self.similarity.name,
            "matrix": self.matrix.detach(),
            "adam": self._adam.state_dict()["state"],
            "version": self.version,
            "baseline": self.baseline,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint.

        Raises:
            ValueError: it is of another encoder.
        """
        check_encoder(state, self.similarity)
        with torch.no_grad():
            self.matrix.copy_(state["matrix"])
        self._adam.load_state_dict(self._adam.state_dict() | {"state": state["adam"]})
        self.version, self.baseline = state["version"], dict(state["baseline"])


def check_encoder(state: dict[str, Any], similarity: Similarity) -> None:
    """Check that the saved state is that of a head with this encoder.

    Raises:
        ValueError: it is not, or its weights contain NaN, which would make every decision fail.
    """
    lacking = [key for key in SAVED if not isinstance(state, dict) or key not in state]
    if lacking:
        raise ValueError(f"the saved state is no policy head: it lacks {', '.join(lacking)}")
    if state["encoder"] != similarity.name:
        raise ValueError(
            f"the saved policy head is of the encoder {state['encoder']}, this run's is {similarity.name}. Remedy: the "
            "`head` section with which it was trained"
        )
    matrix, shape = state["matrix"], (similarity.width, similarity.width)
    if not isinstance(matrix, torch.Tensor) or matrix.shape != shape or not torch.isfinite(matrix).all():
        raise ValueError(
            f"the weights of the saved policy head must be {shape[0]} × {shape[1]} finite numbers; the file is damaged"
        )
