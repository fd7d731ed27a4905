"""Questions that wait in the queue when a run is killed: the resumed run has all that the workers knew of them."""

from __future__ import annotations

import asyncio
import threading

from tests.helpers import FakeLLM, run
from tests.trainer.test_agent_loop import Queue
from tests.trainer.test_head_rows import puppeteer, sampled
from verl_ext.mas.types import Status
from verl_ext.memory import Episode, Use
from verl_ext.observe.metrics import reduce_stats
from verl_ext.observe.question_stats import question_stats
from verl_ext.observe.trajectories import TraceStore, trace_question, training_record
from verl_ext.trainer.rollout import agent_loop
from verl_ext.trainer.rollout.agent_loop import MultiAgentLoopManager
from verl_ext.trainer.rollout.watchdog import Watch
from verl_ext.trainer.rollout.worker import RolloutWorker
from verl_ext.trainer.state import waiting


class Worker(RolloutWorker):
    """A rollout worker that has sampled already."""

    def __init__(self, *uids):
        self._stats, self._empty, self._traces, self._broken = {}, [], TraceStore(), None
        self.llm, self.models = FakeLLM(), {}
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self._watch = Watch(None, self._loop, thread)
        for seed, uid in enumerate(uids):
            forest, samples = run(sampled(puppeteer(), seed))
            forest.trajectories[1].error, forest.trajectories[1].status = "late", Status.TIMEOUT
            self._stats[uid] = question_stats(forest, samples)
            self._stats[uid].episodes = [Episode("q", "0", 1.0, 0.5, (Use("a", "query", ("tool",), "said"),))]
            self._traces.add(trace_question(forest, uid, rank=seed), empty=uid == "empty")
            self._empty += ["empty"] if uid == "empty" else []


def manager(worker):
    made = MultiAgentLoopManager.__new__(MultiAgentLoopManager)
    made._local, made._remote = worker, []
    return made


def taken(worker, uids):
    """What metrics, memories, heads and the log take of these questions; the text shows NaN and types as well."""
    stats = manager(worker).take_stats(uids)
    records = [training_record(trace, "train", 3, 0) for trace in manager(worker).take_traces(uids, 9)]
    return repr(stats), reduce_stats(stats), records


def test_a_resumed_run_knows_of_waiting_questions_what_the_killed_one_knew(tmp_path, monkeypatch):
    uids = ["a", "b", "empty", "later"]
    killed, resumed = Worker(*uids), Worker()
    waiting.save(tmp_path, manager(killed).waiting())
    tags = {"a": "finished", "b": "finished", "empty": "failure", "later": "running"}
    queue = Queue(**{uid: {"status": status} for uid, status in tags.items()})
    monkeypatch.setattr(agent_loop, "tq", queue)
    manager(resumed).restore(waiting.load(tmp_path))
    assert resumed.sampled() == {"a", "b"}, "verl samples the question again that the queue has as unfinished"
    found, expected = taken(resumed, ["b"]), taken(killed, ["b"])
    assert found[1]["sampling/questions"] == 2 and found[1]["sampling/failed_trajectories"] == 2
    assert len(found[2]) == 2 and all(any(call["tokens"] for call in record["calls"]) for record in found[2])
    assert found == expected
    assert taken(resumed, ["a"]) == taken(killed, ["a"])


def test_without_waiting_questions_there_is_no_file(tmp_path):
    waiting.save(tmp_path, {})
    assert not list(tmp_path.iterdir()) and waiting.load(tmp_path) == {}
