"""The search tool and the batching below it: merging, batches, cancelled and failing calls."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.tools import Tool, ToolError
from verl_ext.tools.retrieval import Hit, Passage, SearchTool, batching, build_retriever
from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.search import interleave

PASSAGES = [Passage(str(i), f"T{i}", f"word{i} common group{i % 4}") for i in range(40)]
RETRIEVER = build_retriever(PASSAGES)


def hit(pid):
    return Hit(Passage(pid, f"T{pid}", f"text {pid}"), 1.0)


def pids(documents):
    return [document["pid"] for document in documents]


class Recorder:
    """A retriever that answers with its arguments, and records its batches. Searches wait until `free` is set."""

    backend = "recorder"

    def __init__(self, error=None, held=False):
        self.batches, self.error, self.free, self.thread = [], error, threading.Event(), None
        if not held:
            self.free.set()

    def __len__(self):
        return 1

    def search(self, queries, k):
        self.batches.append(list(queries))
        self.thread = threading.get_ident()
        assert self.free.wait(300)
        if self.error is not None:
            raise self.error
        return [[hit(f"{query}/{rank}") for rank in range(k)] for query in queries]


async def until(condition):
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("not reached within 300 s")


def test_documents_are_interleaved_by_rank_and_deduplicated():
    lists = [[hit("a"), hit("b"), hit("c")], [hit("b"), hit("d")], [], [hit("a"), hit("e"), hit("f")]]
    assert pids(interleave(lists, 10)) == ["a", "b", "d", "e", "c", "f"]
    assert pids(interleave(lists, 3)) == ["a", "b", "d"]
    assert interleave([], 3) == interleave([[], []], 3) == []
    assert interleave([[hit("a")]], 1) == [{"pid": "a", "title": "Ta", "text": "text a"}]


def test_the_tool_returns_top_k_per_query_and_at_most_max_documents():
    tool = SearchTool(RETRIEVER, top_k=3, max_documents=5)
    assert isinstance(tool, Tool) and tool.name == "search"
    one = [{"pid": "7", "title": "T7", "text": "word7 common group3"}]
    for queries, found in (
        (["word7"], one),
        (["word7", ""], one),
        (["group1", "group2"], ["1", "2", "5", "6", "9"]),
        ([], []), ([""], []), (["xylophone"], []),
    ):  # fmt: skip
        documents = asyncio.run(tool(queries=queries))
        assert found in (documents, pids(documents))


@pytest.mark.parametrize(
    ("calls", "max_batch", "batches"),
    [
        ([[f"q{i % 8}", "same"] for i in range(24)], 1000, [["q0", "same", *(f"q{i}" for i in range(1, 8))]]),
        ([list("abc"), list("def"), list("uvwxyz")], 4, [list("abc"), list("def"), list("uvwxyz")]),
        ([["a"], ["b"], ["c"]], 2, [["a", "b"], ["c"]]),
    ],
)  # fmt: skip
def test_concurrent_calls_share_batches_but_no_call_is_split(calls, max_batch, batches, monkeypatch):
    """A query that occurs several times is searched once."""
    monkeypatch.setattr(batching, "MAX_BATCH", max_batch)
    recorder = Recorder()
    tool = SearchTool(recorder, top_k=1)

    async def run():
        return await asyncio.gather(*(tool(queries=queries) for queries in calls))

    assert [pids(answer) for answer in asyncio.run(run())] == [[f"{query}/0" for query in one] for one in calls]
    assert recorder.batches == batches


def test_calls_during_a_batch_form_the_next_one_and_the_event_loop_goes_on():
    recorder = Recorder(held=True)
    batched = BatchedRetriever(recorder)

    async def run():
        first = asyncio.ensure_future(batched.search(["first"], 1))
        await until(lambda: recorder.batches == [["first"]])  # the loop runs, although the search does not end
        others = [asyncio.ensure_future(batched.search([f"q{i}"], 1)) for i in range(10)]
        await asyncio.sleep(0)
        waiting = batched.waiting
        others[3].cancel()
        await asyncio.sleep(0)
        left = batched.waiting
        recorder.free.set()
        await asyncio.gather(first, *others, return_exceptions=True)
        return waiting, left

    assert asyncio.run(run()) == (10, 9)
    assert [len(batch) for batch in recorder.batches] == [1, 9] and "q3" not in recorder.batches[1]
    assert recorder.thread != threading.get_ident()


QUERIES = st.lists(st.sampled_from(["word1", "common", "group2 word3", "", "ü"]), max_size=4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(QUERIES, st.integers(1, 6))), st.integers(1, 9))
def test_batched_answers_equal_separate_ones(calls, max_batch):
    async def run():
        batched = BatchedRetriever(RETRIEVER)
        found = await asyncio.gather(*(batched.search(queries, k) for queries, k in calls))
        await batched.close()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "MAX_BATCH", max_batch)
        patch.setattr(batching, "MAX_DELAY_S", 0.0)
        assert asyncio.run(run()) == [RETRIEVER.search(queries, k) for queries, k in calls]


def test_a_failure_reaches_every_caller_of_the_batch_and_the_tool_works_afterwards():
    recorder = Recorder(error=ToolError("server down"))
    tool = SearchTool(recorder, top_k=1)

    async def run():
        failed = await asyncio.gather(*(tool(queries=[f"q{i}"]) for i in range(5)), return_exceptions=True)
        recorder.error = None
        return failed, await tool(queries=["again"])

    failed, again = asyncio.run(run())
    assert [str(error) for error in failed] == ["server down"] * 5 and len(recorder.batches) == 2
    assert pids(again) == ["again/0"]


def test_malformed_arguments_and_short_answers_are_errors():
    tool = SearchTool(Recorder(), top_k=1)

    async def run():
        calls = (tool(queries=queries) for queries in ("who", [None], ["fine"]))
        return await asyncio.gather(*calls, return_exceptions=True)

    text, none, fine = asyncio.run(run())
    assert isinstance(text, ValueError) and "wrap a single query in a list" in str(text)
    assert isinstance(none, ValueError) and pids(fine) == ["fine/0"]
    broken = Recorder()
    broken.search = lambda queries, k: []
    with pytest.raises(ValueError, match="shorter"):
        asyncio.run(SearchTool(broken)(queries=["a"]))


def test_close_cancels_waiting_calls():
    tool = SearchTool(Recorder(held=True), top_k=1)

    async def run():
        running = asyncio.ensure_future(tool(queries=["a"]))
        await until(lambda: tool._batched.retriever.batches)
        waiting = asyncio.ensure_future(tool(queries=["b"]))
        await asyncio.sleep(0)
        await tool.close()
        tool._batched.retriever.free.set()
        return await asyncio.gather(running, waiting, return_exceptions=True)

    assert [type(end) for end in asyncio.run(run())] == [asyncio.CancelledError] * 2


def test_close_cancels_a_call_of_the_same_moment():
    async def run():
        tool = SearchTool(Recorder(), top_k=1)
        calls = [asyncio.ensure_future(work) for work in (tool(queries=["a"]), tool.close())]
        ended, _ = await asyncio.wait(calls, timeout=30)
        return [call in ended for call in calls], calls[0].cancelled()

    assert asyncio.run(run()) == ([True, True], True)


def test_loops_may_follow_each_other():
    again = SearchTool(Recorder(), top_k=1)
    assert [pids(asyncio.run(again(queries=["x"]))) for _ in range(3)] == [["x/0"]] * 3
