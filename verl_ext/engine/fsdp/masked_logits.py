"""The log-probabilities of decisions in the training engine: the softmax is over the allowed tokens only.

The rollout engine samples a decision (verl_ext/mas/choices.py) among the tokens that its choices allow. Rows carry the
allowed tokens of each position in the field `ALLOWED`. The training engine leaves all other tokens out of the softmax
of that position, for the policy, π_old, the reference model and the entropy.
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
    """The field `ALLOWED` of a row, from (place in its response, allowed tokens) pairs."""
    pairs = [(place, token) for place, tokens in allowed for token in tokens]
    return torch.tensor(pairs or [NONE]).flatten()


def limits_of(data: TensorDict, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The allowed tokens of all rows: (P,) flat places, and (P,) a token that is allowed at each; places repeat.

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
    """Set the logits (N, V) of tokens that are not allowed to BLOCKED. Places that are not in `places` do not change.

    Args:
        places, tokens: (P,) pairs; for each place, all tokens that are allowed there.
    """
    if not len(places):
        return logits
    rows, owner = places.unique(return_inverse=True)
    keep = torch.zeros(len(rows), logits.shape[-1], dtype=torch.bool, device=logits.device)
    keep[owner, tokens] = True
    return logits.index_copy(0, rows, logits.index_select(0, rows).masked_fill(~keep, BLOCKED))


class OnlyAllowed(Engine):
    """Mixin of verl's FSDP engine for language models: limits logits before log-probs and entropies are computed.

    Raises:
        ValueError: under these settings no process has all logits of a token (fused kernels, sequence parallelism).
    """

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, *args: Any, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """As verl's method, on limited logits."""
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
