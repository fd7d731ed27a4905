"""Rows, trees of their prefixes and back: against one plain forward pass per row."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp import transformer_impl

from verl_ext.engine.fsdp import batching
from verl_ext.engine.fsdp import layout as layouts
from verl_ext.engine.fsdp.batching import (
    OPEN,
    SPREAD,
    Stretches,
    batches,
    cheapest_number,
    merge_batches,
    share,
    split_rows,
)
from verl_ext.engine.fsdp.layout import lay_out, scored_logits, tree_mask
from verl_ext.engine.fsdp.memory import Footprint, kept_bytes, machine_memory, measure, recomputing
from verl_ext.engine.fsdp.shared_prefixes import SharedPrefixes, prompts_and_responses
from verl_ext.engine.fsdp.tree_attention import NAME, block_mask, tree_attention
from verl_ext.engine.replaced import replaced

TOKENS = st.integers(1, 30)
# Few distinct prompts, so that they repeat, or are where another one and its response begin.
ROWS = st.lists(
    st.tuples(
        st.sampled_from([[2], [3, 4, 5], [3, 4, 6], [3, 4, 6, 7, 7], list(range(1, 26)), [*range(1, 20), 30, 2, 2]]),
        st.lists(st.sampled_from([7, 8]) | TOKENS, min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def model(model_dir):
    """A tiny Qwen2 under sdpa attention, as in the trainer."""
    return AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="sdpa").eval()


@pytest.fixture(scope="module")
def by_blocks(model):
    """The same model under attention block by block, as the engine sets it."""
    copy = deepcopy(model)
    copy.set_attn_implementation(NAME)
    return copy


def log_probs(model, prompts: list, responses: list) -> list[list[float]]:
    """Of every response token, through shared prefixes."""
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
    layout = lay_out(share([[3, 4, 5]] * 400, [[8 + row % 80, 9] for row in range(400)], reach=10**9), pad=0)
    weights = torch.randn(len(layout.labels), 1, generator=torch.Generator().manual_seed(0))
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
    assert len(layout.labels) * model.config.vocab_size > 32768, "enough for several threads"
    different = len(seen)
    assert different == 1


@torch.no_grad()
def plain(model, prompt: list[int], response: list[int]) -> list[float]:
    logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist()


@given(rows=ROWS, blocks=st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_row_gets_the_log_probs_of_a_pass_of_its_own(model, by_blocks, rows, blocks):
    prompts, responses = [list(part) for part in zip(*rows, strict=True)]
    with torch.no_grad(), replaced(batching, BLOCK=0 if blocks else batching.BLOCK):
        shared = log_probs(by_blocks if blocks else model, prompts, responses)
    for row, (prompt, response) in enumerate(rows):
        assert shared[row] == pytest.approx(plain(model, prompt, response), abs=1e-5)


@given(rows=ROWS)
def test_rows_are_dealt_out_once_and_lengths_stay_close(rows):
    prompts, responses = zip(*rows, strict=True)
    trees = share(prompts, responses)
    assert sorted(row for tree in trees for row, _, _ in tree.rows) == list(range(len(rows)))
    for batch in batches(trees):
        lengths = [len(tree) for tree in batch]
        assert lengths == sorted(lengths) and lengths[-1] <= SPREAD * lengths[0]


def test_a_model_needs_no_more_positions_than_its_longest_row_has():
    torch.manual_seed(0)
    small = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2, n_positions=32)).eval()
    prompts, responses = [[1] * 20] * 4 + [[2] * 20] * 3, [[5 + row] * 12 for row in range(7)]
    (batch,) = batches(share(prompts, responses))
    assert len({len(tree) for tree in batch}) == 2 and min(map(len, batch)) > 32, "two trees, of which one is padded"
    with torch.no_grad():
        for found, prompt, response in zip(log_probs(small, prompts, responses), prompts, responses, strict=True):
            assert found == pytest.approx(plain(small, prompt, response), abs=1e-5)


@pytest.mark.parametrize("twice", [False, True])
def test_blocks_have_the_gradients_of_a_mask(model, by_blocks, monkeypatch, twice):
    """Also where the layers are computed again in the backward pass; a float64 reference."""
    rows = [([3, 4, 5, 6], said) for said in ([7, 8, 9, 1], [7, 8, 2, 2], [7, 8, 2, 3], [9, 1])] + [([5, 6], [7, 7])]
    layout = lay_out(share(*zip(*rows, strict=True), reach=10**9), pad=0)
    assert len(layout.ends) == 2 and layout.ends[1][-1] == 0, "two trees, of which one is padded"

    def gradients(one, block: int) -> list[torch.Tensor]:
        monkeypatch.setattr(batching, "BLOCK", block)
        one = deepcopy(one).double().train()
        with recomputing(one, twice, {"use_reentrant": False}):
            logits = scored_logits(one, layout)
        (logits.log_softmax(-1) * torch.arange(len(logits))[:, None]).sum().backward()
        return [parameter.grad for parameter in one.parameters()]

    made = []
    monkeypatch.setattr(layouts, "block_mask", lambda *given: made.append(block_mask(*given)) or made[-1])
    expected = gradients(by_blocks, 10**9)
    assert not made
    for found in (gradients(by_blocks, 0), gradients(model, 0)):
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-10)
    assert len(made) == 1, "not with a model under plain sdpa"


def test_attention_by_blocks_of_any_shape():
    """Key heads that query heads share, and values narrower than keys (DeepSeek)."""
    ends = [9, 9, 6, 5, 5, 6, 9, 9, 9]
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 9, 6), torch.randn(1, 2, 9, 6), torch.randn(1, 2, 9, 3)
    layer = torch.nn.Identity()
    layer.num_key_value_groups = 2
    mask = block_mask([Stretches.of(ends)], 9)
    found, _ = tree_attention(layer, query, key, value, mask, scaling=0.3)
    more = (part.repeat_interleave(2, dim=1) for part in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, *more, attn_mask=tree_mask(torch.tensor([ends])), scale=0.3
    )
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-6)
    dropped, _ = tree_attention(layer, query, key, value, mask, dropout=0.5, scaling=0.3)
    times = dropped[0, 0, :, 0] / found[0, 0, :, 0]  # the first token sees itself alone
    assert {*times.round().tolist()} <= {0.0, 2.0}, "under a mask: blocks drop nothing"
    assert not torch.allclose(dropped, found)
    with pytest.raises(RuntimeError, match="Identity changes the attention mask .*\n.*eager"):
        tree_attention(layer, query, key, value, mask[:, :, :, :9])


def test_stretches_by_hand():
    tree = Stretches.of([8, 8, 8, 5, 5, 8, 8, 8, 0])
    assert tree == [(0, 3, 8), (3, 5, 5), (5, 8, 8), (8, 9, 9)]
    assert [*tree.forks] == [(slice(0, 3), slice(3, 8))]
    seen = sum(sum(row) for row in tree_mask(torch.tensor([[8, 8, 8, 5, 5, 8, 8, 8, 0]]))[0, 0].tolist())
    assert tree.cost == pytest.approx(5 * batching.BLOCK + seen, abs=8), "causal blocks have half a pair less a token"


def test_a_layout_by_hand():
    (tree,) = share([[7, 8], [7, 8], [7, 6]], [[1, 2, 3], [4], [5, 9]])
    (other,) = share([[5]], [[6, 9]])
    assert (tree.tokens, tree.positions) == ([7, 6, 5, 8, 1, 2], [0, 1, 2, 1, 2, 3])
    assert tree.ends == [OPEN, 3, 3, OPEN, OPEN, OPEN]
    layout = lay_out([other, tree], pad=0)
    assert layout.input_ids.tolist() == [[5, 6, 0, 0, 0, 0], tree.tokens]
    assert layout.position_ids.tolist()[1] == tree.positions
    columns = layout.scored[layout.places].tolist()
    found = zip(layout.rows.tolist(), layout.offsets.tolist(), columns, layout.labels.tolist(), strict=True)
    # Token 6 is predicted at "5" and 9 at "6"; of the other tree 1 and 4 both at "8", its column 3.
    assert list(found) == [
        *((0, 0, 0, 6), (0, 1, 1, 9)),
        *((2, 0, 6 + 1, 5), (2, 1, 6 + 2, 9), (1, 0, 6 + 3, 4)),
        *((0, 0, 6 + 3, 1), (0, 1, 6 + 4, 2), (0, 2, 6 + 5, 3)),
    ]


def test_a_mask_by_hand():
    mask = tree_mask(torch.tensor([[4, 2, 4, 4, 0]]))[0, 0].int().tolist()
    assert mask == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],  # the second branch does not see the first
        [1, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],  # padding: itself only
    ]


def test_a_batch_without_forks_needs_no_mask():
    assert lay_out(share([[1, 2], [2]], [[3], [4]]), pad=0).ends is None
    assert lay_out(share([[1, 2], [1, 2]], [[3, 3], [4, 4]]), pad=0).ends is not None


def test_trees_grow_while_that_saves_time(monkeypatch):
    assert len(share([[1] * 40] * 50, [[2] * 6] * 50)) == 1, "equal rows"
    different = [[row] * 20 for row in range(50)]
    # 40 known and 19 new tokens: attention in blocks makes the tree larger at the same price for each row.
    assert [len(tree.rows) for tree in share([[1] * 40] * 50, different, reach=400)] == [50]
    # 4 of 23 tokens in common do not pay for two blocks, nor for a mask over 42 x 42.
    assert len(share([[1] * 4] * 50, different, reach=40)) == 50
    monkeypatch.setattr(batching, "BATCH_TOKENS", 200)
    assert [len(tree.rows) for tree in share([[1] * 40] * 50, different, reach=400)] == [50], "mostly known"
    sizes = [len(tree.rows) for tree in share([[1] * 15] * 50, different, reach=10**9)]
    assert sizes == [9] * 5 + [5], "15 + 9 x 19 of 200 tokens"
    assert len(share([[1, row] for row in range(9)], [[2]] * 9, kinds=[0, 1, 2] * 3)) == 3, "rows of a kind"


def test_batches_are_bounded(monkeypatch):
    monkeypatch.setattr(batching, "BATCH_TOKENS", 12)
    sizes = [len(batch) for batch in batches(share([[i, 1, 1, 1] for i in range(7)], [[2]] * 7))]
    assert sizes == [3, 3, 1]


def test_ranks_with_more_batches_put_their_shortest_together():
    four = batches(share([[n] * n for n in (2, 10, 50, 200)], [[2]] * 4))
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
    assert SharedPrefixes._can_share(engine, batch) is shared


def test_rows_of_a_prompt_come_into_one_micro_batch():
    """Whose limit counts their prompt once; verl deals rows out by their length."""

    class Upstream:
        def forward_backward_batch(self, data, loss_function, forward_only=False):
            return transformer_impl.prepare_micro_batches(data=data, dp_group=None, same_micro_num_in_dp=True)

    class Engine(SharedPrefixes, Upstream):
        can_share = True
        config = SimpleNamespace(num_hidden_layers=10, hidden_size=0, get_text_config=lambda decoder: Engine.config)
        module = SimpleNamespace(config=config)
        _footprint, _budget, _reach = Footprint(token=10, scored=100), 1e9, 10**9

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
    # With their layers computed twice 24 tokens keep 24 + 800 bytes: 4/3 of 72 tokens are less than 6 times 22.
    engine._budget, engine.module.supports_gradient_checkpointing = 750, True
    assert [len(part) for part in engine.forward_backward_batch(data, None)[1]] == [4] * 3
    engine.can_share = False
    _, indices = engine.forward_backward_batch(data, None)
    assert sorted(sum(indices, [])) == [*range(12)] and len(indices) == 12, "verl's own: 22 tokens each"
    assert transformer_impl.prepare_micro_batches.__module__ == "verl.workers.engine.utils"


@pytest.mark.parametrize(
    ("room", "room_twice", "number"),
    [
        (10**6, 10**6, 1),
        (107, 10**6, 1),  # twice: 4/3 of 108 tokens; in two parts 208
        (107, 107, 2),  # no room for one part
        (103, 103, 4),  # nor for two
        (103, 104, 2),  # but for two whose layers are computed twice
        (10, 10, 4),  # no row has room: as many parts as there are rows
    ],
)
def test_a_step_is_split_or_computed_twice_whichever_is_cheaper(room, room_twice, number):
    prompts, responses = [[1] * 100] * 4, [[row, row, row] for row in range(2, 6)]

    def shared(rows):
        return share([prompts[row] for row in rows], [responses[row] for row in rows], reach=10**9)

    def tokens(part):
        return sum(map(len, part))

    everything = shared([*range(4)])
    assert tokens(everything) == 108
    found = cheapest_number(
        everything, shared, 1, lambda part: tokens(part) <= room, lambda part: tokens(part) <= room_twice, 10**9
    )
    assert found == number


@given(ROWS, st.integers(1, 12))
def test_rows_are_dealt_into_parts_that_are_not_empty(rows, number):
    trees = share([prompt for prompt, _ in rows], [response for _, response in rows])
    number = min(number, len(rows))
    parts = split_rows(trees, number)
    assert len(parts) == number and all(parts) and sorted(sum(parts, [])) == [*range(len(rows))]
    heaviest = max(map(len, trees))
    for part in parts if number <= len(trees) else ():
        tokens = sum(len(t) * sum(row in part for row, _, _ in t.rows) / len(t.rows) for t in trees)
        assert tokens <= sum(map(len, trees)) / number + 2 * heaviest


def test_parts_end_between_questions():
    """Not within one, whose passages would be computed in both."""
    prompts = [[1] * 50 + [2 + question] * 100 for question in range(4) for _ in range(4)]
    trees = share(prompts, [[60 + row] * 20 for row in range(16)], reach=1728)
    assert [len(tree.rows) for tree in trees] == [16]
    assert [sorted({row // 4 for row in part}) for part in split_rows(trees, 3)] == [[0], [1, 2], [3]]


def test_what_is_kept_of_a_pass_is_what_the_footprint_says(model):
    def forward(tokens: int, scored: int) -> torch.Tensor:
        layout = lay_out(share([[1] * (tokens - scored)], [[1] * scored]), pad=0)
        return scored_logits(model, layout).float().log_softmax(-1)

    measured = measure(forward)
    for tokens, scored in ((400, 7), (90, 80)):
        kept = kept_bytes(partial(forward, tokens, scored)) - kept_bytes(lambda: forward(32, 1))
        assert measured.of(tokens, scored) - measured.of(32, 1) == pytest.approx(kept, rel=0.02)


def test_a_gathered_parameter_that_was_freed_does_not_hide_what_got_its_address():
    """FSDP frees it during the pass, and the allocator gives the memory to the next tensor."""

    def forward() -> object:
        gathered = torch.ones(1000, requires_grad=True)
        freed = gathered * gathered  # autograd keeps the storage, which FSDP resizes to nothing
        gathered.untyped_storage().resize_(0)
        activation = torch.ones(500, requires_grad=True)
        return freed, activation * activation

    assert kept_bytes(forward) == 500 * 4


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
