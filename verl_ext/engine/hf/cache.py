"""Keys and values in slots: a transformers `Cache` whose rows are requests of different length, and its attention.

Per layer one tensor (slots, kv heads, capacity, head dim). The running requests are the contiguous prefix [0, n) of
the slots, so one decode step reads `keys[:n, :, :length]` as a view: nothing is gathered or concatenated.
The model's own code is unchanged: it calls `past_key_values.update(...)` and the attention function of its config. Both
are public extension points of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from verl_ext.engine.freed_memory import give_back

ATTENTION = "verl_ext_slots"
ROUND = 16  # attended lengths are multiples of this
PADDING = 2**19  # bytes of a layer's keys and values: a CPU reads so much in the time of one more call of attention
# (first row, last + 1, attended length) of the decode step that runs; empty: all rows attend to the same length
_stretches: ContextVar[Sequence[tuple[int, int, int]]] = ContextVar("stretches", default=())


def round_up(length: int, multiple: int = ROUND) -> int:
    """The smallest multiple of `multiple` that is >= length."""
    return -(-length // multiple) * multiple


def stretches(lengths: Sequence[int], padding: float) -> list[tuple[int, int, int]]:
    """Cut rows of these lengths into stretches (first, last + 1, attended length).

    Within each the rows are shorter than the longest by at most `padding` positions together.
    """
    found: list[tuple[int, int, int]] = []
    total = 0  # positions of the last stretch, without padding
    for row, length in enumerate(lengths):
        if found:
            first, _, longest = found[-1]
            longest = max(longest, round_up(length))
            if (row + 1 - first) * longest - total - length <= padding:
                found[-1], total = (first, row + 1, longest), total + length
                continue
        found.append((row, row + 1, round_up(length)))
        total = length
    return found


def slot_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """transformers' sdpa attention, except for one new token per row under a mask (a decode step).

    There the query heads that share a key head become the query axis, so that grouped-query models do not copy their
    whole cache (transformers repeats keys and values whenever there is a mask): 1.3x on 32 rows of a 10M model.
    query (B, Hq, 1, D), key and value (B, Hk, L, D), mask (B, 1, 1, L) -> (B, 1, Hq, D).
    """
    if query.shape[2] != 1 or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    rows, heads, _, width = query.shape
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    parts = _stretches.get()
    if len(parts) < 2 or attention_mask.shape[0] != rows:
        out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    else:
        out = torch.cat(
            [
                F.scaled_dot_product_attention(
                    grouped[first:last],
                    key[first:last, :, :length],
                    value[first:last, :, :length],
                    attn_mask=attention_mask[first:last, ..., :length],
                    scale=scaling,
                )
                for first, last, length in parts
            ]
        )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(ATTENTION, slot_attention)
# With a mask function of its own the model stays right for ordinary padded calls too; without, masks would be dropped.
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values; before each forward pass the `SlotCache` sets how `update` stores new ones."""

    is_sliding = False
    # (slots, heads, capacity, width) each
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for the cache's present capacity, with the model's own head count, width, dtype and device."""
        self.keys, self.values = (self._empty(states) for states in (key_states, value_states))
        self.is_initialized = True

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not empty: masked positions are multiplied by a weight of 0, and 0 * nan is nan.
        return like.new_zeros(self.cache.slots, like.shape[1], self.cache.capacity, like.shape[3])

    def grow(self) -> None:
        """Move to tensors of the cache's new capacity."""
        old = self.keys, self.values
        self.lazy_initialization(*old)
        for new, kept in zip((self.keys, self.values), old, strict=True):
            new[: kept.shape[0], :, : kept.shape[2]] = kept

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new states; return the keys and values to attend to (see `SlotCache.prefill` and `.extend`)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, heads, new, _ = key_states.shape
        first = self.cache.prefill_slot
        if first is not None:
            self.keys[first : first + rows, :, :new] = key_states
            self.values[first : first + rows, :, :new] = value_states
            return key_states, value_states
        index, length = self.cache.flat_index(heads), self.cache.length
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            store.view(-1, states.shape[3]).index_copy_(0, index, states.reshape(-1, states.shape[3]))
        held = slice(self.cache.first, self.cache.first + rows)
        return self.keys[held, :, :length], self.values[held, :, :length]

    def get_seq_length(self) -> int:
        return 0 if self.cache.prefill_slot is not None else self.cache.length - self.cache.new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_cache_shape(self) -> int:
        return -1


class SlotCache(Cache):
    """Keys and values of all layers; grows in steps, never beyond (max_slots, max_length)."""

    layers: list[SlotLayer]

    def __init__(self, layers: int, max_slots: int, max_length: int) -> None:
        self.max_slots, self.max_length = max_slots, round_up(max_length)
        self.slots = self.capacity = 0
        self._usual = 0, 0  # slots and capacity before the last `free`
        self.prefill_slot: int | None = None
        self.length = self.first = 0
        self.new = 1
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def drop(self) -> None:
        """Forget everything, sizes included, and free the memory."""
        self._usual = 0, 0
        self.slots = self.capacity = 0
        self.layers = [SlotLayer(self) for _ in self.layers]
        give_back()

    def free(self) -> None:
        """As `drop`, but the next `reserve` makes room at once for as much as there was: the next batch is like it."""
        usual = (self.slots, self.capacity) if self.slots else self._usual
        self.drop()
        self._usual = usual

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` rows of `length` tokens; half as much again keeps the number of copies logarithmic."""
        if slots <= self.slots and length <= self.capacity:
            return
        if slots > self.slots:
            self.slots = min(self.max_slots, max(slots, 3 * self.slots // 2, 8, self._usual[0]))
        if length > self.capacity:
            usual = max(round_up(length), round_up(3 * self.capacity // 2), 64, self._usual[1])
            self.capacity = min(self.max_length, usual)
        assert slots <= self.slots and length <= self.capacity, (slots, length, self.max_slots, self.max_length)
        for layer in self.layers:
            if layer.is_initialized:
                layer.grow()
        give_back()

    def prefill(self, first_slot: int) -> SlotCache:
        """The next forward pass brings whole prompts: row i goes to slot first_slot + i, from position 0 on.

        Each row attends to itself only (causal). Right padding needs no mask: it lies after every real token, and
        what it leaves in the cache is masked until it is overwritten.
        """
        self.prefill_slot = first_slot
        return self

    def extend(self, rows: torch.Tensor, positions: torch.Tensor, length: int, first: int = 0) -> SlotCache:
        """The next forward pass brings T tokens for each of the consecutive slots `rows` (n,), at `positions` (n, T).

        Attended are the first `length` positions of each slot; the caller masks those after `positions`. `first` is
        the first of the slots, as a number.
        """
        self.prefill_slot, self.length, self.new = None, length, positions.shape[1]
        self.first = first
        self._rows, self._positions = rows, positions
        self._flat: dict[int, torch.Tensor] = {}
        return self

    @contextmanager
    def apart(self, lengths: Sequence[int]) -> Iterator[None]:
        """A context for a decode step of rows of these lengths, which then reads little padding; on a CPU only.

        Otherwise all rows are read to the length of the longest. On a CPU reading takes most of attention's time.
        """
        one = self.layers[0]
        if not one.is_initialized or one.keys.device.type != "cpu":
            yield
            return
        position = sum(store.shape[1] * store.shape[3] * store.element_size() for store in (one.keys, one.values))
        token = _stretches.set(stretches(lengths, PADDING / position))
        try:
            yield
        finally:
            _stretches.reset(token)

    def flat_index(self, heads: int) -> torch.Tensor:
        """Where the new states go in a layer's (slots * heads * capacity, width) view: (n * heads * T,), slot-major."""
        if heads not in self._flat:
            head = torch.arange(heads, device=self._rows.device)
            start = (self._rows[:, None] * heads + head) * self.capacity
            self._flat[heads] = (start[..., None] + self._positions[:, None]).reshape(-1)
        return self._flat[heads]

    def move(self, source: list[int], target: list[int], length: int) -> None:
        """Copy slots onto others (source[i] -> target[i]), the first `length` positions."""
        for store in self._stores():
            store[target, :, :length] = store[source, :, :length]

    def spread(self, source: int, first: int, last: int, length: int) -> None:
        """Copy one slot onto the slots [first, last): answers sampled from one prompt share its prefill."""
        for store in self._stores():
            store[first:last, :, :length] = store[source, :, :length]

    def clean(self, slots: list[int]) -> None:
        """Zero these slots: a request with nan must not leave any behind, see `SlotLayer._empty`."""
        for store in self._stores():
            store[slots] = 0

    def _stores(self) -> Iterator[torch.Tensor]:
        for layer in self.layers:
            if layer.is_initialized:
                yield from (layer.keys, layer.values)
