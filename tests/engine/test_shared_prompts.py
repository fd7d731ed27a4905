"""Rows, shared prompts and back: against one plain forward pass per row."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp import transformer_impl

from verl_ext.engine.fsdp import batching
from verl_ext.engine.fsdp.batching import SPREAD, Shared, batches, merge_batches, share, split_rows
from verl_ext.engine.fsdp.memory import Footprint, kept_bytes, machine_memory, measure
from verl_ext.engine.fsdp.shared_prompts import (
    SharedPrompts,
    lay_out,
    prompts_and_responses,
    scored_logits,
    tree_mask,
)

TOKENS = st.integers(1, 30)
# Few distinct prompts, so that they repeat.
ROWS = st.lists(
    st.tuples(
        st.sampled_from([[2], [3, 4, 5], [3, 4, 6], list(range(1, 26))]),
        st.lists(TOKENS, min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def model(model_dir):
    """A tiny Qwen2 under sdpa attention, as in the trainer."""
    return AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="sdpa").eval()


def log_probs(model, prompts: list, responses: list) -> list[list[float]]:
    """Of every response token, through shared prompts."""
    result = [[None] * len(response) for response in responses]
    for batch in batches(share(prompts, responses)):
        layout = lay_out(batch, pad=0)
        logits = scored_logits(model, layout)
        chosen = logits.log_softmax(-1).gather(1, layout.labels[:, None])[:, 0]
        for row, place, value in zip(layout.rows.tolist(), layout.offsets.tolist(), chosen.tolist(), strict=True):
            assert result[row][place] is None  # once
            result[row][place] = value
    return result


def test_gradients_do_not_depend_on_the_order_of_threads(model):
    """Many responses share the end of a prompt, whose gradient is their sum: in one order, bit by bit."""
    layout = lay_out([Shared([3, 4, 5], [(row, [8 + row % 5, 9]) for row in range(400)])], pad=0)
    weights = torch.randn(len(layout.scored), 1, generator=torch.Generator().manual_seed(0))
    threads, seen = torch.get_num_threads(), set()
    torch.set_num_threads(4)
    try:
        for _ in range(20):
            model.zero_grad()
            (scored_logits(model, layout) * weights).sum().backward()
            seen.add(tuple(parameter.grad.numpy().tobytes() for parameter in model.parameters()))
    finally:
        torch.set_num_threads(threads)
        model.zero_grad(set_to_none=True)
    assert len(layout.scored) * model.config.vocab_size > 32768, "enough for several threads"
    different = len(seen)
    assert different == 1


@torch.no_grad()
def plain(model, prompt: list[int], response: list[int]) -> list[float]:
    logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist()


@given(rows=ROWS)
@settings(max_examples=25, deadline=None)
def test_every_row_gets_the_log_probs_of_a_pass_of_its_own(model, rows):
    prompts, responses = [list(part) for part in zip(*rows, strict=True)]
    with torch.no_grad():
        shared = log_probs(model, prompts, responses)
    for row, (prompt, response) in enumerate(rows):
        assert shared[row] == pytest.approx(plain(model, prompt, response), abs=1e-5)


@given(rows=ROWS)
def test_rows_are_dealt_out_once_and_lengths_stay_close(rows):
    prompts, responses = zip(*rows, strict=True)
    sequences = share(prompts, responses)
    assert sorted(row for sequence in sequences for row, _ in sequence.responses) == list(range(len(rows)))
    for sequence in sequences:
        assert all(prompts[row] == sequence.prompt and responses[row] == tokens for row, tokens in sequence.responses)
    for batch in batches(sequences):
        lengths = [len(sequence) for sequence in batch]
        assert lengths == sorted(lengths) and lengths[-1] <= SPREAD * lengths[0]


def test_a_layout_by_hand():
    (one,) = share([[7, 8], [7, 8]], [[1, 2, 3], [4]])
    (other,) = share([[5]], [[6, 9]])
    layout = lay_out([other, one], pad=0)
    assert layout.input_ids.tolist() == [[0, 0, 5, 6], [7, 8, 1, 2]]
    assert layout.position_ids.tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert layout.tail == 3
    # Columns of the tail are 1, 2, 3. Token 6 is scored at "5" (column 2), 9 at "6"; 1 and 4 both at "8" (column 1).
    assert layout.scored.tolist() == [1, 2, 3, 4, 5, 3]
    assert layout.labels.tolist() == [6, 9, 1, 2, 3, 4]
    assert layout.rows.tolist() == [0, 0, 0, 0, 0, 1]
    assert layout.offsets.tolist() == [0, 1, 0, 1, 2, 0]


def test_a_mask_by_hand():
    mask = tree_mask(torch.tensor([[-1, 0, 1, 2, 2]]))[0, 0].int().tolist()
    assert mask == [
        [1, 0, 0, 0, 0],  # padding: itself only
        [0, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 0, 1, 0],  # the second response does not see the first
        [0, 1, 0, 1, 1],
    ]


def test_a_batch_without_padding_or_sharing_needs_no_mask():
    assert lay_out(share([[1, 2], [2, 1]], [[3], [4]]), pad=0).attention_mask is None
    assert lay_out(share([[1, 2], [1, 2]], [[3, 3], [4, 4]]), pad=0).attention_mask is not None
    assert lay_out(share([[1, 2], [1]], [[3], [4]]), pad=0).attention_mask is not None


def test_long_responses_are_not_chained(monkeypatch):
    """Attention is quadratic in a sequence's length, so one prompt does not carry any number of responses."""
    monkeypatch.setattr(batching, "SHARED_TOKENS", 10)
    assert [len(s.responses) for s in share([[1]] * 5, [[2] * 6] * 5)] == [2, 2, 1]
    assert [len(s.responses) for s in share([[1] * 15] * 5, [[2] * 6] * 5)] == [3, 2]


def test_batches_are_bounded(monkeypatch):
    monkeypatch.setattr(batching, "BATCH_TOKENS", 12)
    sizes = [len(batch) for batch in batches(share([[i, 1, 1, 1] for i in range(7)], [[2]] * 7))]
    assert sizes == [3, 3, 1]


def test_ranks_with_more_batches_put_their_shortest_together():
    four = batches(share([[1] * n for n in (2, 10, 50, 200)], [[2]] * 4))
    assert [[len(s) for s in batch] for batch in merge_batches(four, 2)] == [[2, 10, 50], [200]]
    assert merge_batches(four, 4) == four


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, True),
        ({"sliding_window": 64}, False),
        ({"sliding_window": 64, "layer_types": ["full_attention"]}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"vision_config": {}}, False),
        ({"_attn_implementation": "eager"}, False),
    ],
)
def test_only_text_models_with_full_attention_share(change, shared):
    """Others go through verl's own pass: the tree mask would be wrong for them, or images would be lost."""
    config = SimpleNamespace(**{"_attn_implementation": "sdpa"} | change)
    config.get_text_config = lambda decoder: config
    engine = SimpleNamespace(module=SimpleNamespace(config=config), _autocast_dtype=torch.float32)
    row = torch.nested.as_nested_tensor([torch.tensor([1, 2])], layout=torch.jagged)
    batch = TensorDict({"prompts": row, "responses": row, "position_ids": row}, batch_size=1)
    assert SharedPrompts._can_share(engine, batch) is shared


def test_rows_of_a_prompt_come_into_one_micro_batch():
    """Whose limit counts their prompt once; verl deals rows out by their length."""

    class Upstream:
        def forward_backward_batch(self, data, loss_function, forward_only=False):
            return transformer_impl.prepare_micro_batches(data=data, dp_group=None, same_micro_num_in_dp=True)

    class Engine(SharedPrompts, Upstream):
        can_share = True
        _footprint, _budget = Footprint(token=10, scored=100), 1e9

        def _can_share(self, micro_batch):
            return self.can_share

        def get_data_parallel_size(self):
            return 1

    rows = [([prompt] * 20, [9, 9]) for _ in range(4) for prompt in (1, 2, 3)]
    prompts, responses = zip(*rows, strict=True)
    columns = {"prompts": prompts, "responses": responses, "input_ids": [prompt + said for prompt, said in rows]}
    data = TensorDict(batch_size=len(rows))
    for name, lists in columns.items():
        data[name] = torch.nested.as_nested_tensor([*map(torch.tensor, lists)], layout=torch.jagged)
    tu.assign_non_tensor(data, max_token_len_per_gpu=30, use_dynamic_bsz=True)
    engine = Engine()
    found, indices = engine.forward_backward_batch(data, None)
    assert indices == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]], "24 tokens each"
    assert [{*part["prompts"].values().tolist()} for part in found] == [{1}, {2}, {3}]
    engine._budget = 600  # of 3,120 bytes: 72 tokens, 24 of them scored
    assert [len(part) for part in engine.forward_backward_batch(data, None)[1]] == [2] * 6
    assert len(engine.forward_backward_batch(data, None, forward_only=True)[1]) == 3, "nothing is kept"
    engine.can_share = False
    _, indices = engine.forward_backward_batch(data, None)
    assert sorted(sum(indices, [])) == [*range(12)] and len(indices) == 12, "verl's own: 22 tokens each"
    assert transformer_impl.prepare_micro_batches.__module__ == "verl.workers.engine.utils"


@given(ROWS, st.integers(1, 12))
def test_rows_are_dealt_into_parts_that_are_not_empty(rows, number):
    sequences = share([prompt for prompt, _ in rows], [response for _, response in rows])
    number = min(number, len(rows))
    parts = split_rows(sequences, number)
    assert len(parts) == number and all(parts) and sorted(sum(parts, [])) == [*range(len(rows))]
    heaviest = max(len(sequence) for sequence in sequences)
    for part in parts if number <= len(sequences) else ():
        tokens = sum(len(s) * sum(row in part for row, _ in s.responses) / len(s.responses) for s in sequences)
        assert tokens <= sum(map(len, sequences)) / number + 2 * heaviest


def test_what_is_kept_of_a_pass_is_what_the_footprint_says(model):
    def forward(tokens: int, scored: int) -> torch.Tensor:
        layout = lay_out([Shared([1] * (tokens - scored), [(0, [1] * scored)])], pad=0)
        return scored_logits(model, layout).float().log_softmax(-1)

    measured = measure(forward)
    for tokens, scored in ((400, 7), (90, 80)):
        kept = kept_bytes(partial(forward, tokens, scored)) - kept_bytes(lambda: forward(32, 1))
        assert measured.of(tokens, scored) - measured.of(32, 1) == pytest.approx(kept, rel=0.02)


def test_memory_is_that_of_the_container(tmp_path):
    (tmp_path / "limit").write_text("1000000\n")
    assert machine_memory(str(tmp_path / "limit")) == 10**6
    (tmp_path / "limit").write_text("max\n")
    assert machine_memory(str(tmp_path / "limit")) == machine_memory(str(tmp_path / "none")) > 2**30


def test_a_conversation_is_read_up_to_the_first_token_that_trains():
    columns = {"input_ids": [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]], "loss_mask": [[0, 0, 1, 0, 1], [0, 0], [1, 1, 0]]}
    data = TensorDict(batch_size=3)
    for name, rows in columns.items():
        data[name] = torch.nested.as_nested_tensor([*map(torch.tensor, rows)], layout=torch.jagged)
    assert prompts_and_responses(data) == ([[1, 2], [6], [8]], [[3, 4, 5], [7], [9]])
