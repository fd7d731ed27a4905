"""The search tool: merging, micro-batching, determinism, and behaviour when something fails."""

import asyncio
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.tools import Tool, ToolError
from verl_ext.tools.batching import AsyncBatcher
from verl_ext.tools.retrieval import Hit, Passage, SearchTool, build_retriever
from verl_ext.tools.retrieval.search import BatchedRetriever, interleave

PASSAGES = [Passage(str(i), f"T{i}", f"word{i} common group{i % 4}") for i in range(40)]


def hit(pid):
    return Hit(Passage(pid, f"T{pid}", f"text {pid}"), 1.0)


class Recorder:
    """A retriever that answers with its arguments and keeps the batches it was given."""

    backend = "recorder"

    def __init__(self, seconds=0.0, error=None):
        self.batches, self.threads, self.seconds, self.error = [], set(), seconds, error

    def __len__(self):
        return 1

    def search(self, queries, k):
        self.batches.append(list(queries))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return [[hit(f"{query}/{rank}") for rank in range(k)] for query in queries]


def test_documents_are_interleaved_by_rank_and_deduplicated():
    lists = [[hit("a"), hit("b"), hit("c")], [hit("b"), hit("d")], [], [hit("a"), hit("e"), hit("f")]]
    assert [document["pid"] for document in interleave(lists, 10)] == ["a", "b", "d", "e", "c", "f"]
    assert [document["pid"] for document in interleave(lists, 3)] == ["a", "b", "d"]
    assert interleave([], 3) == interleave([[], []], 3) == []
    assert interleave([[hit("a")]], 1) == [{"pid": "a", "title": "Ta", "text": "text a"}]


def test_tool_returns_at_most_top_k_per_query_and_max_documents():
    tool = SearchTool(build_retriever(PASSAGES), top_k=3, max_documents=5)
    assert isinstance(tool, Tool) and tool.name == "search"

    async def run():
        return (
            await tool(queries=["word7"]),
            await tool(queries=["group1", "group2"]),
            await tool(queries=["word7", ""]),
        )

    one, two, blank = asyncio.run(run())
    assert one == [{"pid": "7", "title": "T7", "text": "word7 common group3"}] == blank
    assert [document["pid"] for document in two] == ["1", "2", "5", "6", "9"]


def test_nothing_found_is_an_empty_list():
    tool = SearchTool(build_retriever(PASSAGES))

    async def run():
        return [await tool(queries=queries) for queries in ([], [""], ["xylophone"])]

    assert asyncio.run(run()) == [[], [], []]


def test_concurrent_calls_share_batches_and_repeated_queries_are_searched_once():
    recorder = Recorder()
    tool = SearchTool(recorder, top_k=1, max_batch=1000, max_delay_s=0.02)

    async def run():
        return await asyncio.gather(*(tool(queries=[f"q{i % 8}", "same"]) for i in range(64)))

    answers = asyncio.run(run())
    assert recorder.batches == [["q0", "same", "q1", "q2", "q3", "q4", "q5", "q6", "q7"]]
    assert [[document["pid"] for document in answer] for answer in answers] == [
        [f"q{i % 8}/0", "same/0"] for i in range(64)
    ]


def test_batches_end_at_max_batch_and_calls_are_never_split():
    recorder = Recorder()
    tool = SearchTool(recorder, top_k=1, max_batch=4, max_delay_s=0.01)

    async def run():
        await asyncio.gather(
            *(tool(queries=[f"{i}a", f"{i}b", f"{i}c"]) for i in range(3)), tool(queries=list("uvwxyz"))
        )

    asyncio.run(run())
    assert [len(batch) for batch in recorder.batches] == [3, 3, 3, 6]


def test_event_loop_keeps_running_while_the_retriever_works():
    recorder = Recorder(seconds=0.3)
    tool = SearchTool(recorder, top_k=1)

    async def run():
        ticks, search = 0, asyncio.ensure_future(tool(queries=["a"]))
        while not search.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(run()) >= 10
    assert threading.get_ident() not in recorder.threads


def test_arrivals_during_a_batch_form_the_next_one():
    recorder = Recorder(seconds=0.05)
    batched = BatchedRetriever(recorder, max_batch=100, max_delay_s=0.0)

    async def run():
        first = asyncio.ensure_future(batched.search(["first"], 1))
        await asyncio.sleep(0.02)
        await asyncio.gather(first, *(batched.search([f"q{i}"], 1) for i in range(10)))

    asyncio.run(run())
    assert [len(batch) for batch in recorder.batches] == [1, 10]


RETRIEVER = build_retriever(PASSAGES)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["word1", "common", "group2 word3", "", "ü"]), max_size=4), st.integers(1, 6)
        )
    ),
    st.integers(1, 9),
)
def test_batched_answers_equal_separate_ones(calls, max_batch):
    async def run():
        batched = BatchedRetriever(RETRIEVER, max_batch=max_batch, max_delay_s=0.0)
        found = await asyncio.gather(*(batched.search(queries, k) for queries, k in calls))
        await batched.close()
        return found

    assert asyncio.run(run()) == [RETRIEVER.search(queries, k) for queries, k in calls]


def test_failure_reaches_every_caller_of_the_batch_and_the_tool_goes_on():
    recorder = Recorder(error=ToolError("server down"))
    tool = SearchTool(recorder, top_k=1, max_delay_s=0.01)

    async def run():
        failed = await asyncio.gather(*(tool(queries=[f"q{i}"]) for i in range(5)), return_exceptions=True)
        recorder.error = None
        return failed, await tool(queries=["again"])

    failed, again = asyncio.run(run())
    assert [str(error) for error in failed] == ["server down"] * 5 and len(recorder.batches) == 2
    assert again[0]["pid"] == "again/0"


def test_malformed_arguments_fail_alone():
    tool = SearchTool(Recorder(), top_k=1, max_delay_s=0.01)

    async def run():
        return await asyncio.gather(
            tool(queries="who"), tool(queries=[None]), tool(queries=["fine"]), return_exceptions=True
        )

    text, none, fine = asyncio.run(run())
    assert isinstance(text, ValueError) and "wrap a single query in a list" in str(text)
    assert isinstance(none, ValueError) and fine[0]["pid"] == "fine/0"


def test_a_cancelled_call_leaves_the_others_alone():
    recorder = Recorder()
    tool = SearchTool(recorder, top_k=1, max_delay_s=0.05)

    async def run():
        cancelled, kept = (asyncio.ensure_future(tool(queries=[query])) for query in ("gone", "kept"))
        await asyncio.sleep(0)
        cancelled.cancel()
        answer = await kept
        return cancelled.cancelled(), answer

    cancelled, answer = asyncio.run(run())
    assert cancelled and answer[0]["pid"] == "kept/0" and recorder.batches == [["kept"]]


def test_close_cancels_waiting_calls_and_loops_may_follow_each_other():
    tool = SearchTool(Recorder(), top_k=1, max_delay_s=5.0)

    async def run():
        waiting = asyncio.ensure_future(tool(queries=["a"]))
        await asyncio.sleep(0.01)
        await tool.close()
        return await asyncio.gather(waiting, return_exceptions=True)

    assert isinstance(asyncio.run(run())[0], asyncio.CancelledError)
    again = SearchTool(Recorder(), top_k=1)
    assert [asyncio.run(again(queries=["x"]))[0]["pid"] for _ in range(3)] == ["x/0"] * 3


def test_batcher_refuses_results_that_do_not_fit_and_bad_settings():
    async def short(items):
        return items[1:]

    with pytest.raises(RuntimeError, match="2 items came back with 1"):
        asyncio.run(AsyncBatcher(short).submit([1, 2]))
    with pytest.raises(ValueError, match="max_batch must be >= 1"):
        AsyncBatcher(short, max_batch=0)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"top_k": 0}, "top_k must be an integer >= 1"),
        ({"max_documents": "10"}, "max_documents must be an integer"),
        ({"top_k": 1001}, "top_k must be at most 1000"),
        ({"topk": 3}, r"unknown settings of the search tool: \['topk'\]; allowed: .*top_k"),
    ],
)
def test_from_config_validates(tmp_path, config, message):
    (tmp_path / "c.jsonl").write_text('{"pid": 1, "title": "A", "text": "amber"}\n')
    with pytest.raises(ValueError, match=message):
        SearchTool.check_config({"corpus": str(tmp_path / "c.jsonl"), **config})
    with pytest.raises(ValueError, match=message):
        SearchTool.from_config({"corpus": str(tmp_path / "c.jsonl"), **config})
    tool = SearchTool.from_config({"corpus": str(tmp_path / "c.jsonl"), "top_k": 2, "url": None})
    assert tool.top_k == 2 and asyncio.run(tool(queries=["amber"]))[0]["pid"] == "1"
