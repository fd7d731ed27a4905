"""The engine against `generate()`, plain forward passes, and itself under other schedules."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.conftest import EOS, LENGTH, VOCAB, engine_of, prompt_of, request, same, tiny_model
from verl_ext.engine.hf import cache as slot_cache
from verl_ext.engine.hf import packed_weights
from verl_ext.engine.hf.admission import Job, plan
from verl_ext.engine.hf.params import Finished, Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine

FAMILIES = ("qwen2", "llama")


def drive(engine: SlotEngine, arrivals: dict[int, list[Request]]) -> dict[Request, Finished]:
    """Add requests at their steps and run to the end."""
    results, step = {}, 0
    while engine.busy or any(arrivals.get(later) for later in range(step, max(arrivals) + 1)):
        for new in arrivals.get(step, []):
            engine.add(new)
        results |= {done.request: done for done in engine.step()}
        step += 1
    return results


# -- against transformers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_with_joins_and_leaves(family):
    requests = [request(1 + 7 * i % 40, i, temperature=0.0, max_tokens=5 + 3 * i) for i in range(14)]
    arrivals = {0: requests[:3], 2: requests[3:4], 9: requests[4:11], 30: requests[11:]}
    engine = engine_of(family)
    results = drive(engine, arrivals)
    plain = tiny_model(family)
    for one in requests:
        prompt = torch.tensor([one.prompt_ids])
        want = plain.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=one.params.max_tokens,
            eos_token_id=EOS,
            pad_token_id=0,
        )
        assert results[one].token_ids == want[0, prompt.shape[1] :].tolist()
    reasons = {done.stop_reason for done in results.values()}
    assert engine.stats.peak_slots == 4 and not engine.busy and "length" in reasons


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.7])
def test_log_probs_equal_a_full_forward(family, temperature):
    requests = [request(1 + 11 * i % 50, i, temperature=temperature, top_p=0.9 if i % 2 else 1.0) for i in range(9)]
    plain = tiny_model(family)
    for done in engine_of(family).generate(requests):
        ids = torch.tensor([done.request.prompt_ids + tuple(done.token_ids)])
        logits = plain(ids).logits[0, -len(done.token_ids) - 1 : -1] / (temperature or 1.0)
        want = logits.log_softmax(-1).gather(1, ids[0, -len(done.token_ids) :, None])[:, 0]
        assert (want - torch.tensor(done.log_probs)).abs().max() < 1e-5


def test_model_stays_right_for_ordinary_padded_calls():
    """The engine replaces the model's attention function; `generate()` with left padding must not notice."""
    engine, plain = engine_of(), tiny_model("qwen2")
    ids = torch.tensor([[0, 0, 0, 5, 6, 7], [8, 9, 10, 11, 12, 13]])
    settings_ = {"attention_mask": (ids > 0).long(), "do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
    assert torch.equal(engine.model.generate(ids, **settings_), plain.generate(ids, **settings_))


def test_bfloat16_runs_and_agrees_roughly():
    engine = SlotEngine(tiny_model("qwen2").to(torch.bfloat16), 4, LENGTH, [EOS])
    plain = tiny_model("qwen2").to(torch.bfloat16)
    for done in engine.generate([request(5 + i, i) for i in range(6)]):
        ids = torch.tensor([done.request.prompt_ids + tuple(done.token_ids)])
        logits = plain(ids).logits[0, -len(done.token_ids) - 1 : -1].float()
        want = logits.log_softmax(-1).gather(1, ids[0, -len(done.token_ids) :, None])[:, 0]
        assert (want - torch.tensor(done.log_probs)).abs().max() < 0.3


# -- noise, schedules, sharing ----------------------------------------------------------------------------------------


def test_tokens_depend_on_seed_and_position_only():
    one = request(12, 5, max_tokens=40, ignore_eos=True)
    (alone,) = engine_of(slots=1).generate([one])
    crowd = [request(3 + i, 100 + i, max_tokens=3 + i) for i in range(20)]
    assert same(drive(engine_of(slots=6), {0: crowd[:12], 3: [one], 7: crowd[12:]})[one], alone)
    (other,) = engine_of(slots=1).generate([Request("x", one.prompt_ids, SamplingParams(40, seed=6, ignore_eos=True))])
    assert other.token_ids != alone.token_ids


def test_requests_without_a_seed_differ():
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    answers = engine_of().generate([Request("x", prompt_of(6), params) for _ in range(4)])
    assert len({tuple(done.token_ids) for done in answers}) == 4


def test_end_to_end_distribution_chi_square():
    """First tokens of 3000 seeds from one prompt, top_p = 0.9, against the filtered softmax of a plain forward."""
    prompt = prompt_of(9)
    requests = [Request("x", prompt, SamplingParams(max_tokens=1, top_p=0.9, seed=seed)) for seed in range(3000)]
    engine = engine_of(slots=64)
    counts = torch.zeros(VOCAB)
    for done in engine.generate(requests):
        counts[done.token_ids[0]] += 1
    probs = tiny_model("qwen2")(torch.tensor([prompt])).logits[0, -1].softmax(-1).detach()
    ordered, order = probs.sort(descending=True)
    keep = order[: int((ordered.cumsum(0) < 0.9).sum()) + 1]
    expected = probs[keep] / probs[keep].sum() * len(requests)
    assert counts[keep].sum() == len(requests) and len(keep) > 5
    often = expected >= 5
    parts = ((counts[keep] - expected) ** 2 / expected)[often]
    degrees = len(parts) - 1
    assert parts.sum() < degrees + 5 * (2 * degrees) ** 0.5


def test_shared_prefill_equals_unshared():
    """Four answers from one prompt: prefilled once, also when the others arrive while the first still runs."""
    prompt = prompt_of(30)
    requests = [Request(str(i), prompt, SamplingParams(max_tokens=25, seed=i, ignore_eos=True)) for i in range(5)]
    engine = engine_of(slots=8)
    shared = drive(engine, {0: [*requests[:3], request(17, 99)], 6: requests[3:]})
    assert engine.stats.prefill_tokens == 29 + 16 and engine.stats.prefill_tokens_saved == 4 * 29
    for one in requests:
        fresh = engine_of(slots=1)
        assert same(shared[one], fresh.generate([one])[0])
        assert fresh.stats.prefill_tokens == 29 and fresh.stats.prefill_tokens_saved == 0


def test_plan_groups_similar_lengths_and_covers_every_slot_once():
    lengths = [40, 3, 40, 200, 38, 1, 5, 1, 210]
    jobs = [Job(request(length, i), (), 1) for i, length in enumerate(lengths)]
    twin = Job(jobs[3].request, (), 1)
    running = [Job(request(60, 90), (), 1), Job(request(70, 91), (), 1), Job(jobs[4].request, (), 1)]
    admission = plan([*jobs, twin], running)
    assert sorted(map(id, admission.jobs)) == sorted(map(id, [*jobs, twin]))
    slot = {id(job): 3 + i for i, job in enumerate(admission.jobs)}
    (only,) = admission.rounds
    assert not only.prefixes
    assert [[job.prefill for job in group] for _, group in only.prefills] == [[2, 4], [39, 39], [199, 209]]
    for first, group in only.prefills:
        assert [slot[id(job)] for job in group] == list(range(first, first + len(group)))
    assert (2, slot[id(jobs[4])], slot[id(jobs[4])] + 1, 37) in admission.copies  # from a running request
    assert (slot[id(jobs[3])], slot[id(twin)], slot[id(twin)] + 1, 199) in admission.copies and len(
        admission.copies
    ) == 2


def sharing(slots: int, family: str = "qwen2") -> SlotEngine:
    """An engine that shares prefixes, which it would not on its own with so small a model."""
    engine = engine_of(family, slots=slots)
    engine.share_from = 4
    return engine


@pytest.mark.parametrize("family", FAMILIES)
def test_common_prefixes_go_through_the_model_once(family):
    """Questions under one system prompt, two with the same passages, and a conversation that goes on after its end."""
    system, passages = prompt_of(40, 1), prompt_of(30, 2)
    prompts = [system + prompt_of(9, 3), system + passages + prompt_of(8, 4), system + passages + prompt_of(20, 5)]
    requests = [
        Request(str(i), prompt, SamplingParams(12 + i, seed=i, ignore_eos=True)) for i, prompt in enumerate(prompts)
    ]
    engine = sharing(8, family)
    ended = engine.generate(requests)
    assert engine.stats.prefill_tokens == 48 + (30 + 7) + 19
    turn = ended[1].request.prompt_ids + tuple(ended[1].token_ids) + prompt_of(5, 6)
    follow = Request("next", turn, SamplingParams(10, seed=9, ignore_eos=True))
    (more,) = engine.generate([follow])
    assert (
        engine.stats.prefill_tokens == 48 + 37 + 19 + 5
    )  # the last token of an output is not in the cache, one is fed
    for done in (*ended, more):
        (want,) = engine_of(family, slots=1).generate([done.request])
        assert same(done, want)


def test_new_weights_forget_prefixes():
    engine = sharing(4)
    one = request(30, 1)
    engine.generate([one])
    engine.load_weights(tiny_model("qwen2", seed=1).state_dict())
    engine.generate([Request("again", one.prompt_ids, one.params)])
    assert engine.stats.prefill_tokens == 2 * 29


@cache
def alone(length: int, name: int, temperature: float, top_p: float, max_tokens: int) -> Finished:
    one = request(length, name, temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    return ALONE.generate([one])[0]


ALONE = engine_of(slots=1)
CALLS = st.tuples(
    st.integers(0, 25),  # arrival step
    st.sampled_from([1, 2, 15, 16, 17, 40]),  # prompt length
    st.integers(0, 3),  # seed and prompt: few, so that prompts are shared
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([0.5, 1.0]),
    st.integers(1, 30),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    calls=st.lists(CALLS, min_size=1, max_size=14),
    slots=st.integers(1, 5),
    abort_at=st.integers(0, 30),
    share=st.booleans(),
    large=st.booleans(),
)
def test_any_schedule_gives_what_each_request_gives_alone(calls, slots, abort_at, share, large):
    """Random arrivals, slots and sampling parameters; once, all that runs is aborted and then resumed.

    Also as for a large model: its weights packed, and rows of different length apart.
    """
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(packed_weights, "NUMBERS", 0)
            patch.setattr(slot_cache, "PADDING", 0)
        any_schedule(sharing(slots) if share else engine_of(slots=slots), calls, abort_at)


def any_schedule(engine: SlotEngine, calls: list[tuple], abort_at: int) -> None:
    start: dict[
        Request, tuple[Request, list[int], list[float]]
    ] = {}  # running request -> (original, tokens, log-probs)
    arrivals: dict[int, list[Request]] = {}
    wanted = {}
    for step, length, name, temperature, top_p, max_tokens in calls:
        one = request(length, name, temperature=temperature, top_p=top_p, max_tokens=max_tokens)
        one = Request(f"{len(start)}", one.prompt_ids, one.params)
        start[one] = (one, [], [])
        wanted[one] = alone(length, name, temperature, top_p, max_tokens)
        arrivals.setdefault(step, []).append(one)
    step, results = 0, {}
    while len(results) < len(wanted):
        for one in arrivals.get(step, []):
            engine.add(one)
        ended = engine.abort(waiting=False) if step == abort_at else engine.step()
        for done in ended:
            one, tokens, log_probs = start.pop(done.request)
            tokens, log_probs = tokens + done.token_ids, log_probs + done.log_probs
            if done.stop_reason != "aborted":
                results[one] = Finished(one, tokens, log_probs, done.stop_reason)
                continue
            left = SamplingParams(**{**vars(one.params), "max_tokens": one.params.max_tokens - len(tokens)})
            again = Request(one.request_id, one.prompt_ids + tuple(tokens), left)
            start[again] = (one, tokens, log_probs)
            engine.add(again)
        step += 1
    for one, done in results.items():
        assert same(done, wanted[one])
    assert not engine.busy


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=40), st.sampled_from([0, 300, 10_000, 10**9]))
def test_stretches_cover_the_rows_in_order_with_little_padding(lengths, padding):
    found = slot_cache.stretches(lengths, padding)
    assert [row for first, last, _ in found for row in range(first, last)] == list(range(len(lengths)))
    for first, last, attended in found:
        rows = lengths[first:last]
        assert attended == slot_cache.round_up(max(rows))
        assert last - first == 1 or sum(attended - length for length in rows) <= padding


def test_one_long_request_does_not_make_the_short_ones_read_padding(monkeypatch):
    read = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(slot_cache, "PADDING", 0)
    monkeypatch.setattr(
        slot_cache.F,
        "scaled_dot_product_attention",
        lambda q, k, v, **kw: read.append(k.shape) or attend(q, k, v, **kw),
    )
    engine = engine_of(slots=4)
    for one in [request(100, 0), *(request(5, i) for i in (1, 2, 3))]:
        engine.add(one)
    engine.step()
    read.clear()
    engine.step()
    assert sum(rows * length for rows, _, length, _ in read) == 2 * (112 + 3 * 16)  # of 2 layers


# -- ends -------------------------------------------------------------------------------------------------------------


def test_stop_tokens_end_a_request_and_are_part_of_it():
    one = request(8, 3, ignore_eos=True, max_tokens=60)
    (whole,) = engine_of().generate([one])
    stop = whole.token_ids[20]
    first = whole.token_ids.index(stop)
    stopped = Request("s", one.prompt_ids, SamplingParams(60, seed=3, stop_token_ids=(stop, 96), ignore_eos=True))
    (done,) = engine_of().generate([stopped])
    assert done.token_ids == whole.token_ids[: first + 1] and done.stop_reason == "completed"


def test_models_own_end_tokens_unless_ignored():
    params = SamplingParams(max_tokens=LENGTH, temperature=3.0, seed=0)
    requests = [Request("x", prompt_of(4, i), SamplingParams(**{**vars(params), "seed": i})) for i in range(12)]
    ended = engine_of().generate(requests)
    assert all((EOS in done.token_ids) == (done.stop_reason == "completed") for done in ended)
    assert sum(done.stop_reason == "completed" for done in ended) > 3
    ignoring = [Request("x", r.prompt_ids, SamplingParams(**{**vars(r.params), "ignore_eos": True})) for r in requests]
    assert all(done.stop_reason == "length" for done in engine_of().generate(ignoring))


def test_limits_max_tokens_and_context():
    answers = engine_of().generate(
        [request(10, 1, max_tokens=7, ignore_eos=True), request(LENGTH - 5, 2, max_tokens=50, ignore_eos=True)]
    )
    assert [len(done.token_ids) for done in answers] == [7, 5]
    assert [done.stop_reason for done in answers] == ["length", "length"]
    with pytest.raises(ValueError, match=f"a prompt of {LENGTH} tokens leaves no room"):
        engine_of().add(request(LENGTH, 3))


def test_abort_returns_partial_answers_and_resuming_continues_the_noise():
    one = request(9, 4, max_tokens=50, ignore_eos=True)
    (whole,) = engine_of().generate([one])
    engine = engine_of()
    engine.add(one)
    for _ in range(20):
        assert engine.step() == []
    (partial,) = engine.abort()
    assert partial.stop_reason == "aborted" and partial.token_ids == whole.token_ids[:20] and not engine.busy
    again = Request("r", one.prompt_ids + tuple(partial.token_ids), SamplingParams(30, seed=4, ignore_eos=True))
    (rest,) = engine.generate([again])
    assert partial.token_ids + rest.token_ids == whole.token_ids
    assert partial.log_probs + rest.log_probs == pytest.approx(whole.log_probs, abs=1e-5)


def test_more_requests_than_positions():
    engine = engine_of(slots=40, max_model_len=16)
    done = engine.generate(request(5, i, max_tokens=6) for i in range(40))
    assert engine.stats.peak_slots == 40 and all(finished.token_ids for finished in done)
