"""The engine's forward passes over slots: what remains of prompts, and one token of every running request."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from verl_ext.engine.hf.admission import Job
from verl_ext.engine.hf.cache import SlotCache, round_up
from verl_ext.engine.hf.slot_table import View


class Passes:
    """Runs a model on a cache.

    Args:
        positions: 0, 1, ... on the model's device, at least as many as there are positions and slots.
        max_model_len: context limit in tokens.
    """

    def __init__(self, model: PreTrainedModel, cache: SlotCache, positions: torch.Tensor, max_model_len: int) -> None:
        self.model, self.cache, self._positions, self._limit = model, cache, positions, max_model_len
        self._visible = torch.zeros((), dtype=model.dtype, device=model.device)
        self._hidden = torch.full((), -math.inf, dtype=model.dtype, device=model.device)

    def prefill(self, first: int, group: list[Job]) -> None:
        """One pass over what remains of prompts (sorted), right-padded, into the slots first, first + 1, ..."""
        width = group[-1].rest
        rows = [job.request.prompt_ids[job.shared : job.prefill] + (0,) * (width - job.rest) for job in group]
        positions, mask = self._positions[:width].expand(len(rows), -1), None
        if any(job.shared for job in group):
            start = torch.tensor([job.shared for job in group], device=positions.device)
            # Padding may reach beyond the slot: it all goes to the last position, which no prompt has.
            positions = (start[:, None] + positions).clamp(max=min(self.cache.capacity, self._limit) - 1)
            attended = min(round_up(max(job.prefill for job in group)), self.cache.capacity)
            mask = self._mask(positions, attended)
            past = self.cache.extend(self._positions[first : first + len(rows)], positions, attended, first)
        else:
            past = self.cache.prefill(first)
        self.model(
            input_ids=torch.tensor(rows, device=positions.device),  # (P, T)
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )

    def decode(self, view: View, lengths: Sequence[int]) -> torch.Tensor:
        """Logits (B, V) of the next token of each running request; slot i then holds `lengths[i]` tokens."""
        positions, attended = view.position[:, None], round_up(max(lengths))
        past = self.cache.extend(view.rows, positions, attended)
        with self.cache.apart(lengths):
            return self.model(
                input_ids=view.current[:, None],  # (B, 1)
                attention_mask=self._mask(positions, attended),  # (B, 1, 1, L)
                position_ids=positions,
                past_key_values=past,
                use_cache=True,
            ).logits[:, -1]

    def _mask(self, positions: torch.Tensor, attended: int) -> torch.Tensor:
        """For tokens at `positions` (B, T): 0 at positions up to their own, -inf later; (B, 1, T, attended)."""
        seen = self._positions[:attended] <= positions[..., None]
        return torch.where(seen, self._visible, self._hidden)[:, None]
