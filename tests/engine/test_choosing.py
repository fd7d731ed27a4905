"""Decisions in both engines: sampled, and scored, among what is allowed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from transformers import AutoModelForCausalLM

from verl_ext.engine.fsdp.masked_logits import ALLOWED, BLOCKED, OnlyAllowed, limited, limits_of, packed
from verl_ext.engine.hf.params import Request, SamplingParams
from verl_ext.engine.hf.sampler import sample
from verl_ext.engine.hf.slots import SlotEngine


def jagged(rows):
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def test_a_rows_field():
    assert packed([(0, (5, 9)), (3, (7,))]).tolist() == [0, 5, 0, 9, 3, 7] and packed([]).tolist() == [-1, -1]


def test_where_logits_are_limited():
    data = TensorDict({ALLOWED: jagged([packed([(0, (5, 9))]), packed([]), packed([(1, (7, 2))])])}, batch_size=3)
    places, tokens = limits_of(data, starts=torch.tensor([2, 10, 20]))
    assert (places.tolist(), tokens.tolist()) == ([2, 2, 21, 21], [5, 9, 7, 2])
    assert [len(part) for part in limits_of(TensorDict({}, batch_size=3), torch.tensor([2, 10, 20]))] == [0, 0]


def test_rows_of_one_length_come_as_a_plain_tensor():
    data = TensorDict({ALLOWED: torch.stack([packed([(0, (5,))]), packed([])])}, batch_size=2)
    assert limits_of(data, torch.tensor([4, 8]))[0].tolist() == [4]


@given(st.data())
def test_only_the_allowed_have_probability_and_gradient(data):
    logits = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    rows = data.draw(st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 7), min_size=1)))
    pairs = [(row, token) for row, tokens in rows.items() for token in tokens]
    pairs = data.draw(st.permutations(pairs))
    places, tokens = (torch.tensor([pair[i] for pair in pairs], dtype=torch.int64) for i in (0, 1))
    result = limited(logits, places, tokens)
    assert torch.isfinite(result).all(), "the entropy multiplies by it"
    weights = torch.randn(6, 8, dtype=torch.float64)
    (result.softmax(-1) * weights).sum().backward()
    for row in range(6):
        open_to = sorted(rows.get(row, range(8)))
        chances = result[row].softmax(-1)
        assert chances[open_to].tolist() == pytest.approx(logits[row][open_to].softmax(-1).tolist())
        shut = [token for token in range(8) if token not in open_to]
        assert chances[shut].abs().sum() == 0 and logits.grad[row][shut].abs().sum() == 0


class Base:
    """Stands in the place of verl's engine: hands back the logits that it gets."""

    engine_config = SimpleNamespace(ulysses_sequence_parallel_size=1)

    def prepare_model_outputs(self, output, output_args, micro_batch, logits_processor_func):
        return output.logits


class Engine(OnlyAllowed, Base):
    pass


def micro_batch(**extra):
    prompts, responses = [[1, 2], [1, 2, 3]], [[4, 5, 6], [7]]
    data = TensorDict(
        {
            "prompts": jagged(prompts),
            "input_ids": jagged([p + r for p, r in zip(prompts, responses, strict=True)]),
            ALLOWED: jagged([packed([(0, (4, 9)), (2, (6, 8))]), packed([(0, (7, 1, 2))])]),
        },
        batch_size=2,
    )
    for name, value in extra.items():
        data.set_non_tensor(name, value)
    return data


@pytest.mark.parametrize("remove_padding", [True, False])
def test_the_logits_that_score_a_token_stand_one_before_it(remove_padding):
    logits = torch.randn(1, 9, 10) if remove_padding else torch.randn(2, 5, 10)
    output = SimpleNamespace(logits=logits.clone())
    found = Engine().prepare_model_outputs(output, {}, micro_batch(use_remove_padding=remove_padding), None)
    expected = {(0, 1): (4, 9), (0, 3): (6, 8), (1, 2): (1, 2, 7)}
    for row, length in ((0, 5), (1, 4)):
        for place in range(length):
            at = (0, row * 5 + place) if remove_padding else (row, place)
            open_to = expected.get((row, place), range(10))
            assert [t for t in range(10) if found[at][t] != BLOCKED] == list(open_to)
            assert torch.equal(found[at][list(open_to)], logits[at][list(open_to)])


def test_settings_under_which_there_are_no_whole_logits():
    with pytest.raises(ValueError, match="use_fused_kernels=false"):
        Engine().prepare_model_outputs(SimpleNamespace(logits=None), {}, micro_batch(use_fused_kernels=True), None)
    split = Engine()
    split.engine_config = SimpleNamespace(ulysses_sequence_parallel_size=2)
    with pytest.raises(ValueError, match="ulysses_sequence_parallel_size=1"):
        split.prepare_model_outputs(SimpleNamespace(logits=None), {}, micro_batch(), None)


def test_the_sampler_draws_among_the_allowed_with_their_odds():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(1000, -1)
    allowed = (torch.arange(1000), torch.tensor([True, False, True, False]).expand(1000, -1))
    noise = (torch.arange(1000) + 0.5) / 1000
    one, all_p = torch.full((1000,), -1), torch.ones(1000)
    tokens, log_probs = sample(logits, noise, None, None, None, one, all_p, allowed)
    share = 1 / (1 + torch.tensor(2.0).exp())
    assert set(tokens.tolist()) == {0, 2} and (tokens == 0).float().mean() == pytest.approx(float(share), abs=1e-3)
    assert log_probs[0] == pytest.approx(float(share.log()), abs=1e-6)
    assert logits[0].tolist() == [0.0, 1.0, 2.0, 3.0], "the model's logits stay"


@pytest.fixture(scope="module")
def engine(model_dir):
    return SlotEngine(AutoModelForCausalLM.from_pretrained(model_dir).eval(), slots=8, max_model_len=64)


def test_the_engine_runs_free_and_limited_requests_side_by_side(engine):
    """A limited request's tokens and log-probs against a plain forward pass; its neighbours are as without it."""
    prompt, open_to = (2, 3, 4, 5), (6, 9, 20)
    free = [Request(f"{i}", prompt, SamplingParams(4, seed=i)) for i in range(4)]
    alone = engine.generate(free)
    few = [
        Request("few", prompt, SamplingParams(3, seed=7, temperature=0.8, allowed_token_ids=open_to)),
        Request("greedy", prompt, SamplingParams(1, temperature=0.0, allowed_token_ids=open_to)),
    ]
    done = engine.generate([Request(r.request_id, r.prompt_ids, r.params) for r in free[:2]] + few)
    assert [d.token_ids for d in done[:2]] == [d.token_ids for d in alone[:2]]
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *done[2].token_ids]])
        logits = engine_logits(engine, ids)[0, len(prompt) - 1 : -1] / 0.8
    expected = logits[:, list(open_to)].log_softmax(-1)
    for place, (token, log_prob) in enumerate(zip(done[2].token_ids, done[2].log_probs, strict=True)):
        assert token in open_to and log_prob == pytest.approx(float(expected[place][open_to.index(token)]), abs=1e-4)
    assert done[3].token_ids == [max(open_to, key=lambda t: float(logits[0][t]))]


def engine_logits(engine, ids):
    """Of the engine's model under its ordinary attention."""
    model = AutoModelForCausalLM.from_config(engine.model.config, attn_implementation="sdpa").eval()
    model.load_state_dict(engine.model.state_dict())
    return model(input_ids=ids, use_cache=False).logits


def test_tokens_that_the_model_does_not_have(engine):
    for tokens in ((-1,), (10**9,)):
        with pytest.raises(ValueError, match="allowed_token_ids must be in"):
            engine.add(Request("r", (1, 2), SamplingParams(1, allowed_token_ids=tokens)))


def test_parameters_as_agent_loops_send_them():
    assert SamplingParams.from_mapping({"allowed_token_ids": [3, 1]}, 4).allowed_token_ids == (3, 1)
    assert SamplingParams.from_mapping({"allowed_token_ids": None}, 4).allowed_token_ids == ()
