"""Trees of rows as a model's inputs, and the model's output where rows predict something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from verl_ext.engine.fsdp.batching import OPEN, Stretches, Tree
from verl_ext.engine.fsdp.tree_attention import NAME, block_mask, tree_mask


@dataclass
class Layout:
    """A batch of B trees as the model's inputs, padded on the right to the longest, L.

    input_ids, position_ids: (B, L).
    ends: per tree the end (exclusive) of each column's descendants, 0: padding; None = plainly causal, as no tree has a
        fork, and nothing sees the padding on its right.
    scored: (U,) the columns that predict something, as indices into the flattened batch (B * L), ascending.
    places: (T,) for each response token the place in `scored` of the column that predicts it; places repeat.
    labels: (T,) the response tokens. rows, offsets: (T,) the row of each, and its place in the response of that row.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    ends: list[list[int]] | None
    scored: torch.Tensor
    places: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor
    offsets: torch.Tensor


def lay_out(trees: Sequence[Tree], pad: int) -> Layout:
    """The model's inputs for one batch; `pad` is any token id."""
    width = max(map(len, trees))
    columns: list[int] = []
    labels: list[int] = []
    rows: list[int] = []
    offsets: list[int] = []
    for number, tree in enumerate(trees):
        for row, predicting, response in tree.rows:
            columns += [number * width + column for column in predicting]
            labels += response
            rows += [row] * len(response)
            offsets += range(len(response))
    scored, places = torch.tensor(columns).unique(return_inverse=True)
    pads = [width - len(tree) for tree in trees]
    ends = [[min(end, len(tree)) for end in tree.ends] + [0] * more for tree, more in zip(trees, pads, strict=True)]
    forked = any(end != OPEN for tree in trees for end in tree.ends)
    # Without a mask, positions of the padding go on: transformers takes a step back for the start of another document.
    # A tree with forks has more columns than any row has tokens, and a model need not have so many positions.
    positions = [
        tree.positions + ([0] * more if forked else [*range(len(tree), width)])
        for tree, more in zip(trees, pads, strict=True)
    ]
    return Layout(
        torch.tensor([tree.tokens + [pad] * more for tree, more in zip(trees, pads, strict=True)]),
        torch.tensor(positions),
        ends if forked else None,
        scored,
        places,
        *(torch.tensor(values) for values in (labels, rows, offsets)),
    )


def _mask(model: PreTrainedModel, ends: list[list[int]]) -> torch.Tensor:
    """A mask of blocks, where the model can read that and it takes less time than all pairs of tokens."""
    trees = [Stretches.of(own) for own in ends]
    fewer = sum(tree.cost for tree in trees) < sum(len(own) ** 2 for own in ends)
    if fewer and model.config._attn_implementation == NAME:
        return block_mask(trees, len(ends[0]))
    mask = tree_mask(torch.tensor(ends))  # as numbers, in the type of attention: each layer would make and keep its own
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else model.dtype
    return torch.zeros(mask.shape, dtype=kind).masked_fill_(~mask, -torch.inf)


def scored_logits(model: PreTrainedModel | PeftModel, layout: Layout) -> torch.Tensor:
    """(T, vocabulary), or (T, 1) of a critic: the model's output where it predicts the layout's response tokens.

    index_select, not indexing, whose backward pass adds repeated places up in whatever order the threads come.
    """
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    head = inner.get_output_embeddings()
    mask = None if layout.ends is None else _mask(inner, layout.ends)
    inputs = {"input_ids": layout.input_ids, "position_ids": layout.position_ids, "attention_mask": mask}
    if head is None or isinstance(head, BaseTunerLayer):  # a critic's is small; an adapter's route counts whole rows
        logits = model(**inputs, use_cache=False).logits.flatten(0, 1).index_select(0, layout.scored)
    else:
        with _only(head, layout.scored):
            logits = model(**inputs, use_cache=False).logits[0]
    return logits.index_select(0, layout.places)


@contextmanager
def _only(head: torch.nn.Module, columns: torch.Tensor) -> Iterator[None]:
    """Let the output layer see only some of the flattened columns of its input (B, L, hidden): (1, U, hidden)."""
    hook = head.register_forward_pre_hook(lambda _, given: (given[0].flatten(0, 1).index_select(0, columns)[None],))
    try:
        yield
    finally:
        hook.remove()
