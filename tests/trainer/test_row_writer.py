"""Rows of questions that end together share a request. TransferQueue itself: the end-to-end tests."""

import asyncio

from verl_ext.trainer.rollout import row_writer
from verl_ext.trainer.rollout.row_writer import RowWriter
from verl_ext.trainer.row import Row


class Queue:
    """Stands for the module `transfer_queue`: keeps the requests in order; may refuse rows."""

    def __init__(self, refuse=False):
        self.requests, self.refuse = [], refuse

    async def async_kv_batch_put(self, keys, partition_id, tags, fields=None):
        await asyncio.sleep(0.005)
        if fields is not None and self.refuse:
            raise ConnectionError("the storage is gone")
        width = None if fields is None else len(fields)
        self.requests.append((partition_id, keys, [tag.get("status") for tag in tags], width))


def row(uid, number):
    return Row(uid, [1] * (number + 1), [2], [1], [0.0], 0.0, "a", "g", "ok", trajectory=number)


def written(monkeypatch, work, **options):
    queue = Queue(**options)
    monkeypatch.setattr(row_writer, "tq", queue)

    async def scenario():
        return await work(RowWriter())

    result = asyncio.run(scenario())
    return queue.requests, result


def test_questions_that_end_together_share_a_request_and_rows_come_before_their_status(monkeypatch):
    async def work(writer):
        await writer.begin(["q1", "q2", "q3"], "train")
        rows = {"q1": [row("q1", 0), row("q1", 1)], "q2": [], "q3": [row("q3", 0)]}
        await asyncio.gather(*[writer.end(uid, "train", rows[uid]) for uid in rows])

    requests, _ = written(monkeypatch, work)
    assert requests == [
        ("train", ["q1", "q2", "q3"], ["running"] * 3, None),
        ("train", ["q1_0_0", "q1_1_0", "q3_0_0"], ["success"] * 3, 3),
        ("train", ["q1", "q3"], ["finished"] * 2, None),
        ("train", ["q2"], ["failure"], None),
    ]


def test_partitions_do_not_mix_and_late_questions_get_a_request_of_their_own(monkeypatch):
    async def work(writer):
        await asyncio.gather(writer.end("t", "train", [row("t", 0)]), writer.end("v", "val", [row("v", 0)]))
        await writer.end("late", "train", [row("late", 0)])

    requests, _ = written(monkeypatch, work)
    assert [(partition, keys) for partition, keys, _, width in requests if width] == [
        ("train", ["t_0_0"]),
        ("val", ["v_0_0"]),
        ("train", ["late_0_0"]),
    ]


def test_a_question_that_ends_while_others_are_written_is_not_forgotten(monkeypatch):
    async def work(writer):
        first = asyncio.ensure_future(writer.end("a", "train", [row("a", 0)]))
        await asyncio.sleep(row_writer.GATHER + 0.002)  # the request of "a" is under way
        await asyncio.wait_for(writer.end("b", "train", [row("b", 0)]), 60)
        await first

    requests, _ = written(monkeypatch, work)
    assert [keys for _, keys, _, width in requests if width] == [["a_0_0"], ["b_0_0"]]


def test_all_who_wait_hear_of_a_failure_and_the_next_request_is_tried(monkeypatch):
    async def work(writer):
        both = [writer.end(uid, "train", [row(uid, 0)]) for uid in "ab"]
        failures = await asyncio.gather(*both, return_exceptions=True)
        await writer.end("empty", "train", [])
        return failures

    requests, failures = written(monkeypatch, work, refuse=True)
    assert [type(failure) for failure in failures] == [ConnectionError, ConnectionError]
    assert requests == [("train", ["empty"], ["failure"], None)]


def test_nothing_is_asked_for_nothing(monkeypatch):
    async def work(writer):
        await writer.begin([], "train")

    assert written(monkeypatch, work)[0] == []
