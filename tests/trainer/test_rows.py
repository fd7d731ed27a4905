"""Rows: token by token what was generated and observed, also for calls that continue each other, and their forks."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from statistics import fmean

import pytest
import torch
from transfer_queue import KVBatchMeta

from tests.helpers import FakeLLM, Script, choice, forest_of, fork, run, speaker, walk
from verl_ext.algorithms import make_algorithm
from verl_ext.engine.fsdp.masked_logits import ALLOWED
from verl_ext.mas import Agent
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import CallId
from verl_ext.sampling import Sample, make_strategy
from verl_ext.sampling.base import SHUFFLED, by_position, unique_calls
from verl_ext.trainer import row_selection
from verl_ext.trainer.rollout.forest_to_rows import training_rows, validation_rows
from verl_ext.trainer.row import OF_VERL, PACKED, Row, pack, unpack

QUESTION = {"uid": "u", "index": 3, "global_steps": 1, "data_source": "s"}


def tagged(text: str) -> list[tuple[int, int]]:
    """Everything between < and > is an action."""
    return [(i, text.index(">", i) + 1) for i, c in enumerate(text) if c == "<" and ">" in text[i:]]


async def stream(task, ctx):
    """Two windows: `a` goes on twice, then begins anew."""
    await ctx.call("a", said="q")
    await ctx.resume(ctx.last, "[one]")
    await ctx.resume(ctx.last, "[two]")
    return await ctx.call("a", said="fold")


AGENTS = {"a": Agent(lambda said: [{"role": "user", "content": said}], actions=tagged)}


def sampled_rows(system, agents, answer, then=None, **options):
    """Training and validation rows of one trajectory, and of a fork of it at the call `then`; and their forest."""

    async def scenario():
        forest = forest_of(Script(system, agents, lambda result: 0.5), FakeLLM(answer), **options)
        forest.trajectories.append(await walk(forest))
        if then is not None:
            forest.trajectories.append(await fork(forest, forest.trajectories[0], then))
        assign_credit(forest.trajectories)
        samples = [Sample(call, by_position(call)) for call in unique_calls(forest.trajectories)]
        return training_rows(forest, samples, QUESTION), validation_rows(forest, QUESTION), forest

    return run(scenario())


def rows_of(*arguments, **options):
    """The same, with (key, columns, tag) of each row."""
    train, validate, forest = sampled_rows(*arguments, **options)
    return *([(row.key, row.fields, row.tag) for row in rows] for rows in (train, validate)), forest


def text_of(row, name):
    return bytes(row[1][name].tolist()).decode()


def marked(row):
    """The response with `_` for what does not train."""
    said = row[1]["responses"].tolist()
    return bytes(t if m else ord("_") for t, m in zip(said, row[1]["response_mask"].tolist(), strict=True)).decode()


def test_calls_that_continue_each_other_are_one_row():
    words = iter(["x<1>", "<22>y", "z", "end"])
    train, validate, forest = rows_of(stream, AGENTS, lambda request: next(words))
    assert [text_of(row, "prompts") for row in train] == ["q", "fold"]
    assert [text_of(row, "responses") for row in train] == ["x<1>[one]<22>y[two]z", "end"]
    assert [marked(row) for row in train] == ["x<1>_____<22>y_____z", "end"]
    first, second = train
    assert first[0] == "u_0_0" and second[0] == "u_0_3" and len(validate) == 2
    tag = first[2]
    assert tag["calls"] == [[0, 0, 4], [1, 9, 14], [2, 19, 20]] and tag["actions"] == [[1, 4], [9, 13]]
    assert (tag["prompt_len"], tag["response_len"], tag["group"]) == (1, 20, "u/a/0")
    assert second[2]["group"] == "u/a/3" and second[2]["order"] == ["s", 3, 0, 3]
    fields = first[1]
    assert fields["rollout_log_probs"].tolist() == [-0.5 if m else 0.0 for m in fields["response_mask"].tolist()]
    assert fields["rm_scores"].tolist() == [0.0] * 19 + [0.5] and tag["outcome"] == 0.5
    assert {value.dtype for name, value in fields.items() if name in ("prompts", "responses", "loss_mask")} == {
        torch.int64
    }
    assert text_of(first, "input_ids") == "qx<1>[one]<22>y[two]z"
    # What the engine was given is what trains: each call's prompt is the row up to there.
    for position, start, stop in tag["calls"]:
        call = forest.trajectories[0].calls[position]
        whole = first[1]["input_ids"].tolist()
        assert whole[: 1 + start] == call.prompt_ids and whole[1 + start : 1 + stop] == call.generation.token_ids


def test_a_tag_comes_back_from_the_queue_as_it_was():
    third = 1 / 3
    words = iter(["x<1>", "<22>y", "z", "end"])
    train, _, _ = rows_of(stream, AGENTS, lambda request: next(words))
    tags = [tag | {"reward": third, "metrics": {"f1": math.nan, "em": third}} for _, _, tag in train]
    sent = [pack(tag) for tag in tags]
    assert all(
        set(tag) == {*OF_VERL, PACKED} - {"is_padding"} and all(isinstance(v, (int, str)) for v in tag.values())
        for tag in sent
    )
    received = unpack([tag | {"is_padding": True} for tag in sent])
    for tag, found in zip(tags, received, strict=True):
        assert found.pop("is_padding") and repr(sorted(found.items())) == repr(sorted(tag.items()))


@pytest.mark.parametrize("name", ["mhgpo", "joyagents"])
def test_of_rows_that_are_all_left_over_one_stays_idle(monkeypatch, name):
    """verl's loop needs a row."""
    rows = [
        Row(f"u{i}", [1], [2], [1], [0.0], float(i), "a", "/".join(SHUFFLED), "completed", index=i) for i in range(3)
    ]
    batch = KVBatchMeta(
        partition_id="train", keys=[row.key for row in rows], tags=[pack(row.tag) for row in rows], extra_info={}
    )
    cleared = []
    monkeypatch.setattr(row_selection.tq, "kv_clear", lambda keys, **_: cleared.extend(keys))
    batch, metrics = row_selection.regroup(batch, 4, seed=1, step=1)
    batch, _ = row_selection.select(batch, make_algorithm(name, {}))
    assert metrics == {"groups/dropped_rows": 3} and row_selection.is_idle(batch)
    assert len(batch) == 1 and {*batch.keys, *cleared} == {row.key for row in rows}


def test_a_forked_call_begins_a_row_in_its_own_trajectory_too():
    """So the samples of the fork are compared with each other, and no token trains twice."""
    train, _, forest = rows_of(stream, AGENTS, lambda request: f"<{len(request.prompt)}>", then=CallId((), "a", 1))
    assert [row[2]["order"][2:] for row in train] == [[0, 0], [0, 1], [0, 3], [1, 1], [1, 3]]
    before, base, _, branch, _ = train
    assert before[2]["calls"] == [[0, 0, 3]] and marked(before) == "<1>"
    for forked, length in ((base, 3), (branch, 3)):
        assert text_of(forked, "prompts") == "q<1>[one]" and forked[2]["group"] == "u/a/1"
        assert forked[2]["calls"] == [[1, 0, length], [2, 8, 12]]
    trained = sum(int(row[1]["response_mask"].sum()) for row in train)
    generated = sum(len(call.generation.token_ids) for call in unique_calls(forest.trajectories))
    assert trained == generated


def test_each_node_of_a_sequence_has_its_own_group_and_reward():
    """Node-wise Monte Carlo forks every call of call, resume, resume: three groups of G, each with Eq. 4's rewards."""

    async def thrice(task, ctx):
        await ctx.call("a", said="q")
        await ctx.resume(ctx.last, "[one]")
        return await ctx.resume(ctx.last, "[two]")

    async def scenario():
        values = iter(range(100))
        llm = FakeLLM(lambda request: f"{next(values):02d}")
        forest = forest_of(Script(thrice, AGENTS, lambda result: int(result) / 100), llm)
        samples = await make_strategy("nmc", 4, ["a"]).sample(forest)
        assign_credit(forest.trajectories)
        return training_rows(forest, samples, QUESTION), forest

    rows, forest = run(scenario())
    groups = {name: [row for row in rows if row.group == f"u/a/{name}"] for name in range(3)}
    assert [len(group) for group in groups.values()] == [4, 4, 4] and len(rows) == 12
    rewards = [trajectory.reward for trajectory in forest.trajectories]
    # The base's first output leads to the 1 + 3 + 3 ends behind it: the mean of its own successors' means (Eq. 4).
    last = fmean(rewards[i] for i, t in enumerate(forest.trajectories) if t.stream.fork in (None, CallId((), "a", 2)))
    middle = [rewards[i] for i, t in enumerate(forest.trajectories) if t.stream.fork == CallId((), "a", 1)]
    number = next(i for i, t in enumerate(forest.trajectories) if t.stream.fork is None)
    base = sorted((row for row in rows if row.trajectory == number), key=lambda row: row.position)
    assert base[2].reward == rewards[number]
    assert base[1].reward == pytest.approx(last) and base[0].reward == pytest.approx(fmean([last, *middle]))


def test_rewards_of_a_sequence_are_the_shared_one_and_all_specific_ones():
    agent = Agent(lambda said: [{"role": "user", "content": said}], penalty=lambda text, value, fine, **_: (-0.125, {}))
    train, _, _ = rows_of(stream, {"a": agent}, lambda request: "x")
    assert [row[2]["reward"] for row in train] == [0.5 - 3 * 0.125, 0.5 - 0.125]
    assert train[0][1]["rm_scores"][-1].item() == 0.125 and train[0][2]["actions"] == []


async def helped(task, ctx):
    await ctx.call("a", said="q")
    last = ctx.last
    note = await ctx.call("helper", text="long")
    return await ctx.resume(last, f"[{note}]")


def test_helpers_do_not_train_and_credit_passes_through_them():
    agents = AGENTS | {"helper": speaker("helper", trained=False)}
    train, validate, forest = rows_of(helped, agents, lambda request: "short" if request.agent == "helper" else "x")
    assert [text_of(row, "responses") for row in train] == ["x[short]x"] and train[0][2]["agent"] == "a"
    assert [call.agent for call in forest.trajectories[0].calls] == ["a", "helper", "a"]
    assert all(call.reward == 0.5 for call in forest.trajectories[0].calls)


def test_concurrent_sequences_are_rows_of_their_own():
    async def both(task, ctx):
        async def one(child, name):
            await child.call("a", said=name)
            return await child.resume(child.last, f"[{name}]")

        return await asyncio.gather(ctx.branch("l", one, "l"), ctx.branch("r", one, "r"))

    train, _, _ = rows_of(both, AGENTS, lambda request: "x")
    assert sorted(text_of(row, "input_ids") for row in train) == ["lx[l]x", "rx[r]x"]


@pytest.mark.parametrize(
    "room,statuses", [(30, ["ok"] * 4), (12, ["ok", "ok", "prompt_too_long"]), (9, ["ok", "prompt_too_long"])]
)
async def test_a_sequence_has_a_limit_of_its_own(room, statuses):
    """x<1> has 4 tokens, an observation 5: with 9 the second call has no room, with 12 the third."""
    limits, llm = {"max_sequence_tokens": room}, FakeLLM(lambda request: "x<1>")
    trajectory = await walk(forest_of(Script(stream, AGENTS), llm, limits=limits, sampling={"max_tokens": 8}))
    assert [call.status.value for call in trajectory.calls] == statuses
    assert trajectory.ok is (room == 30)
    asked = [request.sampling["max_tokens"] for request in llm.log]
    assert asked[:2] == [8, min(8, room - 9)] if room > 9 else asked == [8]


async def test_a_call_that_failed_cannot_be_continued():
    async def broken(task, ctx):
        with suppress(Exception):
            await ctx.call("a", said="q")
        return await ctx.resume(ctx.last, "[x]")

    trajectory = await walk(forest_of(Script(broken, AGENTS), FakeLLM(lambda request: RuntimeError("down"))))
    assert "has produced nothing to go on from: engine_error" in trajectory.error


DECIDES = {"sampling": {"temperature": 1.0, "max_tokens": 9}}


def boss(*options):
    return Agent(lambda: [{"role": "user", "content": "who?"}], choices=lambda: options)


def test_a_decision_trains_where_there_was_a_choice():
    """p|g, then l a n by themselves, then t or the end; in between a call of another agent."""

    async def system(task, ctx):
        return await ctx.call("a", said=await ctx.call("boss"))

    agents = {"boss": boss("plan", "plant", "go"), "a": AGENTS["a"]}
    (decision, work), *_ = rows_of(system, agents, lambda request: choice(request) or "xy", **DECIDES)
    assert decision[1]["responses"].tolist() == [*b"plant", 0]
    assert decision[1]["response_mask"].tolist() == [1, 0, 0, 0, 1, 0] == decision[1]["loss_mask"].tolist()
    assert decision[1][ALLOWED].tolist() == [0, ord("g"), 0, ord("p"), 4, 0, 4, ord("t")]
    assert decision[1]["rollout_log_probs"].tolist() == [-0.25, 0, 0, 0, -0.25, 0]
    assert decision[1]["rm_scores"].tolist() == [0, 0, 0, 0, 0.5, 0], "a critic skips what does not train"
    assert work[1][ALLOWED].tolist() == [-1, -1], "all rows of a run have the same fields"
    assert (decision[2]["decides"], work[2]["decides"]) == (True, False)


def test_a_decision_inside_a_sub_system_must_be_known_outside():
    inner = Script(lambda task, ctx: ctx.call("boss"), {"boss": boss("go", "no")})

    def rows(agents):
        return rows_of(lambda task, ctx: ctx.run(inner, task), agents, choice, **DECIDES)

    with pytest.raises(ValueError, match="agent 'boss' decides, but no agent of Script does"):
        rows({"a": AGENTS["a"]})
    assert ALLOWED in rows(inner.agents)[1][0][1]
