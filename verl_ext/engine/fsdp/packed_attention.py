"""Attention that computes packed rows one by one, by PyTorch alone: `attn_implementation=packed_sdpa`.

verl packs the rows of a micro-batch into one sequence, whose positions begin again with each row. transformers' `sdpa`
computes all pairs of tokens of the sequence, and masks those of different rows. flash_attn computes pairs within rows
only, but is a package that has to be compiled. PyTorch carries its kernel (`torch.nn.attention.varlen`), for CUDA and
half precision. Elsewhere one row follows another: as exact, meant for tests.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "packed_sdpa"

# By positions, which all layers of a pass share: finding the rows waits for the GPU.
_rows = WeakTensorKeyDictionary()


def rows_of(positions: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The rows in packed `positions` (1, T): where each begins and the last ends, int32 (rows + 1,); their lengths."""
    if positions not in _rows:
        begins = F.pad(positions[0].diff() != 1, (1, 1), value=True)
        offsets = begins.nonzero()[:, 0].to(torch.int32)
        _rows[positions] = offsets, offsets.diff().tolist()
    return _rows[positions]


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each row: query (1, Hq, T, D), key and value (1, Hk, T, D) -> (1, T, Hq, D).

    What is not packed (several rows, a mask, a cache) goes by transformers' `sdpa`.

    Raises:
        ValueError: the layer has a sliding window, or dropout.
    """
    positions = kwargs.get("position_ids")
    if attention_mask is not None or positions is None or len(query) > 1 or query.shape[2] != key.shape[2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    if dropout or kwargs.get("sliding_window"):
        raise ValueError(
            f"attn_implementation={NAME} computes neither sliding windows nor dropout; the layer has "
            f"sliding_window={kwargs.get('sliding_window')}, dropout={dropout}.\nRemedy: attn_implementation=sdpa"
        )
    offsets, lengths = rows_of(positions)
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn  # PyTorch 2.11

        most = max(lengths)
        q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))
        out = varlen_attn(q, k, v, offsets, offsets, most, most, window_size=(-1, 0), scale=scaling)
        return cast(torch.Tensor, out)[None], None
    rows = zip(*(heads.split(lengths, dim=2) for heads in (query, key, value)), strict=True)
    outs = [F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling) for q, k, v in rows]
    return torch.cat(outs, dim=2).transpose(1, 2).contiguous(), None


def packed_mask(*, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    """No mask for packed rows; transformers' own for padded ones."""
    return None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **kwargs)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, packed_mask)
