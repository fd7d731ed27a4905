"""Attention of trees block by block: `attn_implementation=tree_sdpa`, which the engines on the CPU set.

Under a mask, attention computes all pairs of a tree's tokens, also those that the mask hides. But the pairs that count
are blocks without holes: a stretch of tokens between two forks sees itself, causally, and every token below it sees all
of the stretch.

    stretches   s0 s1 | p0 a0 a1 | q0 b0 b1       three causal blocks, and p0 ... b1 over s0 s1

PyTorch's FlashAttention for the CPU computes each block. Those of one token are put together by the logarithms of their
sums; backwards, each needs only the whole output and the whole sum (as blocks do in FlashAttention-2, Dao 2023,
arXiv:2307.08691, section 3.1, and in ring attention, Liu et al. 2023, arXiv:2310.01889).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from verl_ext.engine.fsdp.batching import Stretches

NAME = "tree_sdpa"

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def tree_mask(ends: torch.Tensor) -> torch.Tensor:
    """(B, 1, L, L) bool from the (B, L) ends of the columns' subtrees; 0: padding.

    A token sees itself and the columns before it whose subtrees it is in; padding sees itself, or it would be nan.
    """
    column = torch.arange(ends.shape[1])
    past = column[:, None] >= column
    return ((past & (column[:, None] < ends[:, None])) | (column[:, None] == column))[:, None]


def block_mask(trees: list[Stretches], length: int) -> Tensor:
    """A mask (B, 1, L, L) that stands for the trees' blocks, and that only `tree_attention` can read."""
    mask = torch.zeros((), dtype=torch.bool).expand(len(trees), 1, length, length)  # takes no memory
    mask.trees = trees  # type: ignore[attr-defined]
    return mask


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Of query (B, Hq, L, D), key (B, Hk, L, D) and value (B, Hk, L, E), E <= D, under a `block_mask`: (B, L, Hq, E).

    Any other mask, or none, goes by transformers' `sdpa`.

    Raises:
        RuntimeError: the model has made another mask of a `block_mask`.
    """
    trees = getattr(attention_mask, "trees", None)
    if trees is not None and dropout:  # which the blocks do not have
        attention_mask = tree_mask(torch.tensor([tree.ends for tree in trees]))
    if trees is None and attention_mask is not None and attention_mask.untyped_storage().nbytes() < query.shape[2]:
        raise RuntimeError(
            f"{type(module).__name__} changes the attention mask that it gets: rows cannot share prefixes in it.\n"
            "Remedy: actor_rollout_ref.model.override_config.attn_implementation=eager (slower)"
        )
    if trees is None or dropout:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    groups, width = query.shape[1] // key.shape[1], value.shape[-1]
    value = F.pad(value, (0, query.shape[-1] - width))  # DeepSeek's are narrower
    parts = [query, repeat_kv(key, groups), repeat_kv(value, groups)]
    if torch.is_autocast_enabled("cpu"):  # which knows no attention but PyTorch's own
        parts = [part.to(torch.get_autocast_dtype("cpu")) for part in parts]
    outs = [
        _Tree.apply(*one, stretches, scaling)
        for stretches, *one in zip(trees, *(part.split(1) for part in parts), strict=True)
    ]
    return torch.cat(outs)[..., :width].transpose(1, 2).contiguous(), None


class _Tree(torch.autograd.Function):
    """Attention of one tree: query, key and value (1, H, L, D) -> (1, H, L, D)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: Stretches, scale: float | None) -> Tensor:
        own = [[part[:, :, first:end] for part in (query, key, value)] for first, end, _ in tree]
        found = [_flash(*parts, 0.0, True, scale=scale) for parts in own]
        out, log_sum = (torch.cat(parts, dim=2) for parts in zip(*found, strict=True))
        for seen, below in tree.forks:
            more, log_more = _flash(query[:, :, below], key[:, :, seen], value[:, :, seen], 0.0, False, scale=scale)
            total = torch.logaddexp(log_sum[:, :, below], log_more)
            share = (log_more - total).exp()[..., None]
            out[:, :, below] = out[:, :, below].to(share).lerp(more.to(share), share).to(out)
            log_sum[:, :, below] = total
        ctx.save_for_backward(query, key, value, out, log_sum)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, log_sum = ctx.saved_tensors
        found = []
        for first, end, _ in ctx.tree:
            own = (part[:, :, first:end] for part in (grads[0], query, key, value, out, log_sum))
            found.append(_flash_backward(*own, 0.0, True, scale=ctx.scale))
        to_query, to_key, to_value = (torch.cat(parts, dim=2) for parts in zip(*found, strict=True))
        for seen, below in ctx.tree.forks:
            grad, asked, whole, sums = (part[:, :, below] for part in (grads[0], query, out, log_sum))
            given = key[:, :, seen], value[:, :, seen]
            more = _flash_backward(grad, asked, *given, whole, sums, 0.0, False, scale=ctx.scale)
            to_query[:, :, below] += more[0]
            to_key[:, :, seen] += more[1]
            to_value[:, :, seen] += more[2]
        return to_query, to_key, to_value, None, None


AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
