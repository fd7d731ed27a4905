"""Log-probabilities among allowed tokens, in the trainer's engine as in the rollout's.

A decision (verl_ext/mas/choices.py) is sampled among the tokens that its choices allow. Rows carry those of each of its
tokens in the field `ALLOWED`; all other logits are then out of the softmax of that token: of the policy, of π_old, of
the reference model, and of the entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

if TYPE_CHECKING:  # the engine of verl that the mixin goes in front of
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine as Engine
else:
    Engine = object

# Field of a row: (2 K,) int64, pairs (place in the response, allowed token); `NONE` if nothing is decided in it.
ALLOWED = "allowed_tokens"
NONE = (-1, -1)
# Far below every logit, and finite: the entropy multiplies it by a probability of 0. It survives bf16 and temperatures.
BLOCKED = -1e30


def packed(allowed: Sequence[tuple[int, tuple[int, ...]]]) -> torch.Tensor:
    """The field of a row from (place in its response, allowed tokens) pairs."""
    pairs = [(place, token) for place, tokens in allowed for token in tokens]
    return torch.tensor(pairs or [NONE]).flatten()


def limits_of(data: TensorDict, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where logits are limited, and to what: (P,) flat place, (P,) token that is allowed there.

    Args:
        data: rows with `ALLOWED`, or without.
        starts: (B,) flat place of each row's first response token.
    """
    if ALLOWED not in data.keys():
        return starts.new_zeros(0), starts.new_zeros(0)
    parts = [part.reshape(-1, 2) for part in data[ALLOWED].unbind()]
    pairs = torch.cat(parts).to(starts.device)
    rows = torch.repeat_interleave(torch.tensor([len(part) for part in parts]).to(starts.device))
    used = pairs[:, 0] >= 0
    return (starts[rows] + pairs[:, 0])[used], pairs[used, 1]


def limited(logits: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Logits (N, V) with BLOCKED wherever a place that is among `places` does not allow a token; others stay.

    Args:
        places, tokens: (P,) pairs; of a place all that it allows.
    """
    if not len(places):
        return logits
    rows, owner = places.unique(return_inverse=True)
    keep = torch.zeros(len(rows), logits.shape[-1], dtype=torch.bool, device=logits.device)
    keep[owner, tokens] = True
    return logits.index_copy(0, rows, logits.index_select(0, rows).masked_fill(~keep, BLOCKED))


class OnlyAllowed(Engine):
    """Mixin of verl's FSDP engine with a language model's head: logits are limited before anything is made of them.

    Raises:
        ValueError: settings under which whole logits of a token are nowhere at hand.
    """

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, *args: Any, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """verl's, on limited logits."""
        if ALLOWED in micro_batch.keys():
            self._check_whole(micro_batch)
            logits = output.logits  # (1, tokens, V), or padded on the right: (B, L, V)
            ids = micro_batch["input_ids"].offsets()[:-1]
            packed_rows = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
            begin = ids if packed_rows else torch.arange(len(ids), device=ids.device) * logits.shape[1]
            # A token's logits stand at the token before it.
            starts = (begin + micro_batch["prompts"].offsets().diff() - 1).to(logits.device)
            flat = limited(logits.flatten(0, 1), *limits_of(micro_batch, starts))
            output.logits = flat.view_as(logits)
        return super().prepare_model_outputs(output, output_args, micro_batch, *args, **kwargs)

    def _check_whole(self, micro_batch: TensorDict) -> None:
        parallel = self.engine_config.ulysses_sequence_parallel_size
        if tu.get_non_tensor_data(data=micro_batch, key="use_fused_kernels", default=False) or parallel > 1:
            raise ValueError(
                "agents that choose need a token's whole logits: set actor_rollout_ref.model.use_fused_kernels=false "
                f"and ulysses_sequence_parallel_size=1 (given: {parallel})"
            )
