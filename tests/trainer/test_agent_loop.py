"""How questions are dealt to rollout workers, and what happens when the workers cannot go on."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from verl.utils.tensordict_utils import get_tensordict

from tests.helpers import FakeLLM, Script, chain, forest_of, walk
from verl_ext.mas.stopwatch import Stopwatch
from verl_ext.mas.tool_calls import Cost
from verl_ext.observe.question_stats import QuestionStats
from verl_ext.observe.trajectories import TraceStore
from verl_ext.trainer.rollout import agent_loop
from verl_ext.trainer.rollout.agent_loop import MultiAgentLoopManager
from verl_ext.trainer.rollout.cutting import Cuts
from verl_ext.trainer.rollout.remote_workers import deal
from verl_ext.trainer.rollout.watchdog import Look, Watch, Watchdog
from verl_ext.trainer.rollout.worker import RolloutWorker
from verl_ext.trainer.step import Step, collect_statistics


@pytest.mark.parametrize("sizes", [[8, 8], [1] * 11, [5, 1, 1, 7, 3], [0, 2]])
def test_every_question_once_and_all_workers_alike_over_many_deals(sizes):
    dealt, received = 0, [[], [], []]
    for size in sizes:
        questions = list(range(dealt, dealt + size))
        for worker, share in zip(received, deal(questions, 3, dealt), strict=True):
            worker += share
        dealt += size
    assert received == [list(range(rank, sum(sizes), 3)) for rank in range(3)]


def test_a_row_without_a_data_source_is_of_the_one_that_verls_validation_counts():
    rows = get_tensordict({"index": torch.arange(2)})
    assert [agent_loop._row(rows, i)["data_source"] for i in range(2)] == ["unknown"] * 2
    named = get_tensordict({"data_source": ["a", "b"]})
    assert agent_loop._row(named, 1)["data_source"] == "b"


class Queue:
    """The part of TransferQueue that is used: uid -> tag, of one partition."""

    def __init__(self, **tags):
        self.tags = tags

    def kv_list(self, partition="train"):
        return {"train": self.tags}

    def kv_put(self, key, partition_id, tag):
        self.tags[key] = tag


class Local:
    """A rollout worker in this process."""

    def __init__(self, look=None, sampled=()):
        self.look, self.sampled, self.reason = lambda: look, lambda: set(sampled), None

    def stop(self, reason):
        self.reason = reason


def manager(worker, folder, train_batch_size=4):
    made = MultiAgentLoopManager.__new__(MultiAgentLoopManager)
    made._local, made._remote, made._dead, made._given = worker, [], None, {"q1", "q2", "q3"}
    made._most_empty, made.watchdog = 2 * train_batch_size, Watchdog(folder, 30.0, 600.0)
    return made


def test_two_batches_without_rows_are_counted_over_all_workers(tmp_path):
    made = manager(None, tmp_path)
    looks = [Look(empty=3, reasons="3 x timeout"), Look(empty=3), Look(empty=2)]
    assert "the last 8 questions gave nothing to train on" in made._reason(looks)
    assert made._reason([Look(empty=20), Look(empty=0), Look(empty=2)]) is None, "one worker has rows"
    assert made._reason(looks[:2]) is None


def test_questions_that_verl_evicted_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_loop, "tq", Queue(waiting={"status": "finished"}))
    made = manager(Local(sampled=["waiting", "evicted", "trained"]), tmp_path)
    assert made.dropped(["trained"]) == ["evicted"]


def test_evicted_questions_have_cost_as_much_as_the_others_and_teach_nothing():
    stats = {
        uid: QuestionStats(index, rewards=[1.0], quantities=[{}], cost=vars(Cost(generated_tokens=tokens)))
        for index, (uid, tokens) in enumerate({"trained": 10, "evicted": 7}.items())
    }
    manager = SimpleNamespace(
        dropped=lambda uids: ["evicted"],
        take_stats=lambda uids: [stats.pop(uid) for uid in uids],
        take_tool_counts=dict,
    )
    step = Step(1, uids=["trained"])
    collect_statistics(step, manager)
    assert not stats and [one.index for one in step.stats] == [0]
    counted = {
        name: step.metrics[f"sampling/{name}"] for name in ("questions", "dropped_questions", "generated_tokens")
    }
    assert counted == {"questions": 2, "dropped_questions": 1, "generated_tokens": 17}


@pytest.mark.parametrize("look", [Look(broken="the judge raised"), Look(600, [('call of tool "search"', 1, 600)])])
def test_questions_for_which_verl_waits_are_failed_with_the_reason(tmp_path, monkeypatch, look):
    queue = Queue(
        q1={"status": "running"}, q2={"status": "pending"}, q3={"status": "finished"}, old={"status": "running"}
    )
    monkeypatch.setattr(agent_loop, "tq", queue)
    monkeypatch.setattr(agent_loop, "WATCH", 0.01)
    worker = Local(look)
    made = manager(worker, tmp_path)
    made._watch()
    assert {uid: tag["status"] for uid, tag in queue.tags.items()} == {
        **{"q1": "failure", "q2": "failure"},
        **{"q3": "finished", "old": "running"},
    }
    reason = look.broken or 'nothing has happened for 600 s: 1 call of tool "search" (600 s)'
    assert reason in worker.reason
    with pytest.raises(RuntimeError, match="judge|search"):
        made.raise_if_broken()


class Sampler(RolloutWorker):
    """A rollout worker that samples given systems with a fake engine and stores no rows."""

    def __init__(self):
        self.rank, self.clock, self._counter = 0, Stopwatch(), itertools.count()
        self._broken, self._streak, self._forests, self._tasks, self._empty = None, 0, {}, set(), []
        self._stats, self._traces, self._cuts = {}, TraceStore(), Cuts()
        self._writer, self.ended, self.llm = self, {}, FakeLLM(delay=lambda request: 1000.0)
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self._watch = Watch(self.clock, self._loop, thread)

    def shut(self):
        async def end():
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def begin(self, uids, partition):
        pass

    async def end(self, uid, partition, rows):
        self.ended[uid] = rows

    async def _rows(self, name, question, validate):
        forest = self._forests[name] = forest_of(question["system"], self.llm)
        await walk(forest)
        return ["row"]


def test_a_judge_that_raises_ends_the_other_questions_at_once():
    async def quick(task, ctx):
        return "guess"

    worker = Sampler()
    worker.submit([{"uid": f"slow{i}", "system": chain} for i in range(3)], validate=False)
    worker.submit([{"uid": "judged", "system": Script(quick, reward=lambda result: 1 / 0)}], validate=False)
    end = time.monotonic() + 60
    while len(worker.ended) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert worker.ended == {uid: [] for uid in ("judged", "slow0", "slow1", "slow2")}
    assert "division by zero" in worker.look().broken and len(worker.llm.log) == 3
    worker.submit([{"uid": "later", "system": chain}], validate=False)
    while "later" not in worker.ended and time.monotonic() < end:
        time.sleep(0.01)
    assert worker.ended["later"] == [] and len(worker.llm.log) == 3, "nothing is sampled any more"
    worker.shut()


def test_a_blocked_event_loop_does_not_hold_up_the_trainer():
    free = threading.Event()

    async def blocking(task, ctx):
        free.wait(60)

    worker = Sampler()
    worker.submit([{"uid": "blocking", "system": blocking}], validate=False)
    try:
        worker.stop("nothing has happened for long")
        with pytest.raises(RuntimeError, match="nothing has happened for long"):
            worker.submit([{"uid": "more", "system": chain}], validate=False)
    finally:
        free.set()
        worker.shut()
