"""Records of the trajectory log: what becomes of a forest, tokens as exact pieces of text, the choice of questions."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, forest_of, run, speaker
from tests.observe.viewing import call, question, trajectory
from verl_ext.mas import Unparsable
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Task
from verl_ext.observe.record import CallFields, Record, ToolFields, TrajectoryFields, as_json, by_step
from verl_ext.observe.trajectories import (
    QuestionTrace,
    TraceStore,
    Trained,
    evaluation_record,
    first,
    resolve,
    token_pieces,
    trace_question,
    training_record,
)
from verl_ext.observe.trajectory_files import TrajectoryLog, read_records
from verl_ext.plugin import package_path
from verl_ext.sampling import make_strategy


def parse(text, **_):
    if "odd" in text:
        raise Unparsable("odd text", fallback="?")
    return text


async def searcher(task, ctx):
    """a -> search -> b -> c; a tool called "gone" fails before c, and b's word decides the reward."""
    said = await ctx.call("a", said=task.question)
    await ctx.tool("search", queries=[said])
    said = await ctx.call("b", said=said)
    try:
        await ctx.tool("gone")
    except Exception as error:
        assert "is gone" in str(error)
    await ctx.call("c", said=said)
    return said


async def search(queries):
    return [{"title": query, "score": numpy.float32(0.5)} for query in queries]


async def gone():
    raise RuntimeError("it is gone")


def sampled(strategy, say, system=searcher):
    async def scenario():
        agents = {name: speaker(name, parse=parse) for name in "abc"}
        agents["b"] = speaker(
            "b", parse=parse, penalty=lambda text, *_, **__: (-0.25 if text == "b0" else 0.0, {"n": 1})
        )
        script = Script(system, agents, reward=lambda result: {"b0": 1.0}.get(result, 0.0))
        forest = forest_of(script, FakeLLM(say), tools={"search": search, "gone": gone}, limits={"tool_retries": 0})
        forest.task = Task("q?", {"target": numpy.array(["gold"])}, "set", 7)
        await make_strategy(strategy, 3, list("abc")).sample(forest)
        forest.trajectories.sort(key=lambda trajectory: trajectory.stream.path)
        assign_credit(forest.trajectories)
        return forest

    return run(scenario())


def counting(request):
    counting.seen = {} if len(request.key) == 3 and request.agent == "a" else counting.seen
    number = counting.seen[request.agent] = counting.seen.get(request.agent, -1) + 1
    return f"{request.agent}{number}"


def traced(strategy="nmc", say=counting, **options):
    forest = sampled(strategy, say, **options)
    return forest, resolve(pickle.loads(pickle.dumps(trace_question(forest, "uid", 3))), forest.llm.decode)


def by_text(record):
    return {call["output"]: call for call in record["calls"]}


def test_a_question_its_shared_calls_and_its_tools():
    """Base a0 b0 c0 with reward 1, forks of b and of a with reward 0: Eq. 4 gives b0 1, a0 (1 + 0 + 0) / 3."""
    forest, trace = traced()
    record = training_record(trace, "train", 5, 0)
    calls = by_text(record)
    assert len(forest.trajectories) == 7 and len(record["calls"]) == 15  # 3 + 2·(3 + 2 + 1)
    assert (record["phase"], record["step"]) == ("train", 5)
    gold = {"target": ["gold"]}
    assert record["question"] == {"number": 0, "index": 7, "source": "set", "text": "q?", "gold": gold}
    base = [one["number"] for one in record["trajectories"] if one["stream"] == ["0"]]
    a0, b0, c0 = calls["a0"], calls["b0"], calls["c0"]
    assert a0["id"] == "0 | a.0" and a0["agent"] == "a" and a0["turn"] == 0 and a0["scope"] == []
    assert len(a0["trajectories"]) == 5 and len(b0["trajectories"]) == 3 and c0["trajectories"] == base
    assert b0["parents"] == ["0 | a.0"] and c0["parents"] == ["0 | b.0"] and a0["parents"] == []
    assert (a0["depth"], b0["depth"], c0["depth"]) == (0, 1, 2)
    assert [call["parents"] for call in record["calls"] if call["stream"] == ["0", "c.0*1"]] == [["0 | b.0"]]
    for one in record["calls"]:
        assert "".join(one["tokens"]) == one["output"] and len(one["tokens"]) == one["generated_tokens"]
        assert one["prompt"][0]["content"].startswith(one["agent"]) and one["prompt_tokens"] > 0
    assert b0["rewards"] == {"shared": 1.0, "specific": -0.25, "total": 0.75}
    assert a0["rewards"]["shared"] == pytest.approx(1 / 3)
    assert b0["ends"] == [] and b0["metrics"] == {"n": 1.0} and [end["reward"] for end in c0["ends"]] == [1.0]
    tools = {(tool["name"], tuple(tool["after"])): tool for tool in record["tools"]}
    searched, broken = tools["search", ("0 | a.0",)], tools["gone", ("0 | b.0",)]
    assert searched["arguments"] == {"queries": ["a0"]} and searched["result"] == [{"title": "a0", "score": 0.5}]
    assert len(searched["trajectories"]) == 5 and searched["failure"] is None
    assert "it is gone" in broken["failure"] and len(broken["trajectories"]) == 3


def test_failures_are_there_by_name():
    asked = []

    def say(request):
        asked.append(request)
        if request.agent == "b":
            return [RuntimeError("no engine"), "odd", "fine"][sum(r.agent == "b" for r in asked) - 1]
        return "word"

    record = training_record(traced("fof", say)[1], "train", 1, 0)
    assert sorted(one["status"] for one in record["trajectories"]) == ["engine_error", "ok", "ok"]
    failed = next(call for call in record["calls"] if call["status"] == "engine_error")
    assert "no engine" in failed["error"] and failed["output"] == "" and failed["tokens"] == []
    assert failed["rewards"]["total"] is None and failed["ends"] == []
    odd = next(call for call in record["calls"] if call["status"] == "unparsable")
    assert odd["error"] == "odd text" and odd["output"] == "odd"


def test_group_and_advantage_come_to_the_right_call():
    forest, trace = traced()
    places = {call["output"]: tuple(call["place"]) for call in trace.calls}
    for text, (number, position) in places.items():
        assert forest.trajectories[number].calls[position].text == text
    trained = {places["a0"]: Trained("a/0", [0.5, 0.5]), places["b0"]: Trained("b/0", [0.5, -0.25])}
    calls = by_text(training_record(trace, "train", 1, 0, trained))
    assert (calls["a0"]["trained"], calls["a0"]["group"], calls["a0"]["advantage"]) == (True, "a/0", 0.5)
    assert calls["b0"]["advantage"] == [0.5, -0.25]
    assert (calls["c0"]["trained"], calls["c0"]["group"], calls["c0"]["advantage"]) == (False, None, None)
    assert not any(call["trained"] for call in training_record(trace, "val", 1, 0)["calls"])


def test_numbers_that_are_none_do_not_end_the_run_that_logs_them(tmp_path):
    """JSON has no infinity, e.g. of a token that the rollout engine holds for impossible."""
    _, trace = traced()
    place = next(tuple(call["place"]) for call in trace.calls if call["output"] == "a0")
    trained = {place: Trained("a/0", [0.5, math.nan], difference=math.inf)}
    TrajectoryLog(tmp_path, 10**6, 1).write([training_record(trace, "train", 1, 0, trained)])
    (record,) = read_records(tmp_path)
    a0 = by_text(record)["a0"]
    assert a0["advantage"] == [0.5, None] and a0["difference"] == "inf"


def test_an_evaluations_record_has_the_same_fields_but_for_those_of_training():
    """Every field of a record is defined, and the definition is what docs/trajectories.md lists."""
    forest = sampled("fof", counting)
    del forest.trajectories[1:]
    about = {"result": {"x": math.nan}, "recall": {}, "seconds": 0.5, "finished": 1.0}
    made = evaluation_record(trace_question(forest, first_number=3), 40, about)
    training = training_record(traced("fof")[1], "val", 40, 0)
    (trajectory,) = made["trajectories"]
    assert (made["phase"], made["step"], trajectory["number"], trajectory["result"]) == ("eval", 40, 3, {"x": None})
    assert made["calls"][-1]["ends"] == [{"trajectory": 3, "reward": 1.0}] and made["tools"][0]["trajectories"] == [3]
    page = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text()
    for part, fields in (("calls", CallFields), ("trajectories", TrajectoryFields), ("tools", ToolFields)):
        here, there = ({*record[part][0]} for record in (made, training))
        assert here | there == {*fields.__annotations__} and here & there == fields.__required_keys__
        assert all(f"{field}:" in fields.__doc__ or f"{field}, " in fields.__doc__ for field in here | there)
        assert all(f"`{field}`" in page for field in here | there)
    assert {*made} == {*training} == {*Record.__annotations__}


def test_records_of_a_question_are_put_together_and_later_ones_count():
    """Two samples of a question, the first asked again after it failed, and one whose own part of a record is gone."""

    def answer(sample, text, status="ok", index=1):
        record = question(None, [call("a", output=text, trajectories=[sample])], [trajectory(status=status)], "eval")[0]
        record["question"] = {"index": index, "source": "s", "text": "q", "gold": None}
        return record | {"trajectories": [{**record["trajectories"][0], "number": sample}]}

    second = answer(1, "second")
    lost = answer(2, "lost") | {"trajectories": []}
    other = answer(0, "other", index=2)
    steps = by_step([second, answer(0, "early", "timeout"), other, lost, answer(0, "late")])
    assert list(steps) == [("eval", None)]
    one, two = steps["eval", None]
    assert sorted(one["output"] for one in one["calls"]) == ["late", "lost", "second"] and len(two["calls"]) == 1
    assert [end["status"] for end in one["trajectories"]] == ["ok", "ok", "unknown"]


@dataclass
class Work:
    task: Task
    calls: list[tuple[str, dict]]
    solved: set[str]


def test_a_result_is_json_and_does_not_show_the_gold_answer():
    work = Work(Task("Where?", {"target": ["Grado"]}), [("film", {"id": 5})], {"a"})
    assert as_json({"result": work}) == {"result": {"calls": [["film", {"id": 5}]], "solved": ["a"]}}


class Silent:
    """An object that cannot be put into words."""

    def __str__(self):
        raise RuntimeError("no words")


def test_whatever_tools_and_data_hold_becomes_json():
    deep = [[]]
    for _ in range(2000):
        deep = [deep]
    trace = QuestionTrace(
        "u",
        0,
        {"gold": {1: numpy.arange(2), "x": (math.nan, math.inf, -math.inf)}},
        [],
        [{"result": {"deep": deep, "object": Silent(), "bytes": b"\xff", "alone": "\ud800"}}],
        [],
    )
    resolve(trace, str)
    assert trace.question["gold"] == {"1": [0, 1], "x": [None, "inf", "-inf"]}
    text = json.dumps([trace.question, trace.tools], allow_nan=False)
    assert json.loads(text)[1][0]["result"]["alone"] == "\ud800" and text.isascii()
    assert '"object": "<Silent>"' in text and text.count("[") == 1 + 2 + 1 + 13, "deeper than 16 is left out"


def test_a_whole_number_that_python_refuses_to_write_is_named_by_its_size():
    found = as_json({"factorial": math.factorial(3000), "small": -(10**4000)})
    assert found == {"factorial": "<int of 30332 bits>", "small": -(10**4000)}
    assert json.loads(json.dumps(found)) == found


# --- tokens -----------------------------------------------------------------------------------------------------------


@cache
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(package_path("recipe/mhgpo/assets/tiny_model"))


def decode(ids):
    return tokenizer().decode(ids, skip_special_tokens=True)


def test_a_character_of_several_tokens_belongs_to_the_last_of_them():
    ids = tokenizer().encode("é🙂")
    assert len(ids) == 6, "bytes: this vocabulary has neither character"
    assert token_pieces(ids, decode(ids), decode) == ["", "é", "", "", "", "🙂"]
    whole = [*tokenizer().encode("naïve"), tokenizer().eos_token_id]
    pieces = token_pieces(whole, decode(whole), decode)
    assert "".join(pieces) == "naïve" and pieces[-1] == "" and "\ufffd" not in "".join(pieces)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 845), max_size=60))
def test_pieces_joined_are_the_output_whatever_the_tokens(ids):
    pieces = token_pieces(ids, decode(ids), decode)
    assert len(pieces) == len(ids) and "".join(pieces) == decode(ids)


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_pieces_of_real_text_stay_near_their_tokens(text):
    """No token's piece runs ahead: after k tokens, what is given away is what those tokens spell in full."""
    ids = tokenizer().encode(text)
    pieces = token_pieces(ids, decode(ids), decode)
    for k in range(len(ids)):
        assert decode(ids[:k]).startswith("".join(pieces[:k]))


def test_a_decoder_that_strips_the_first_blank_still_gives_exact_pieces():
    """SentencePiece decoders drop a leading blank: a token alone reads otherwise than in its place."""
    words = ["▁the", "▁cat", "s", "▁sat"]

    def strip(ids):
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    assert token_pieces([0, 1, 2, 3], strip([0, 1, 2, 3]), strip) == ["the", " cat", "s", " sat"]
    assert token_pieces([], "", strip) == []


def test_a_decoder_that_rewrites_its_past_costs_places_not_text():
    def shouting(ids):  # from 40 tokens on, everything is in capitals
        text = "".join("ab"[i] for i in ids)
        return text.upper() if len(ids) >= 40 else text

    ids = [0, 1] * 40
    pieces = token_pieces(ids, shouting(ids), shouting)
    assert len(pieces) == 80 and "".join(pieces) == "AB" * 40


def test_a_text_that_is_not_what_the_tokens_spell_costs_no_more_than_another():
    """Calls of tools are written in another form than the model wrote them in: from there on no piece fits."""
    ids, decoded = tokenizer().encode("the cat sat on the mat and saw another cat " * 40), []

    def counting(some):
        decoded.append(len(some))
        return decode(some)

    text = decode(ids[:20]) + "\n<tool_call>\n" + decode(ids[20:])
    assert "".join(token_pieces(ids, text, counting)) == text
    assert sum(decoded) < 1 / 8 * len(ids) ** 2, "the whole text is not read again for every token"


# --- the choice -------------------------------------------------------------------------------------------------------


def trace(uid, rank):
    return QuestionTrace(uid, rank, {}, [], [], [])


def test_the_first_by_rank_are_taken_and_the_others_are_dropped():
    store = TraceStore()
    for uid, rank in (("a", 5), ("b", 1), ("c", 3), ("later", 0)):
        store.add(trace(uid, rank))
    store.add(trace("without rows", 2), empty=True)
    assert [one.uid for one in store.take(["a", "b", "c", "never seen"], 2)] == ["b", "without rows"]
    assert store.take(["a", "c", "without rows"], 9) == []
    assert [one.uid for one in store.take(None, 9)] == ["later"]
    assert [one.uid for one in first([trace("x", 2), trace("y", 1)], 1)] == ["y"]
    store.add(trace("d", 1))
    assert store.take(["d"], 0) == [] and store.take(None, 1) == []
