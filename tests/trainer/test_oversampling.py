"""`mas.sampling.oversample`: which questions a step begins, what is kept of those that are cut, and what is refused."""

from __future__ import annotations

import asyncio
import random
import re
import time
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from verl.utils.tensordict_utils import assign_non_tensor_stack

from tests.helpers import Script, chain
from tests.trainer.test_agent_loop import Queue, Sampler, manager
from tests.trainer.test_recipes import composed, examined
from verl_ext.mas.tool_calls import Cost
from verl_ext.observe.doctor_report import report
from verl_ext.observe.question_stats import QuestionStats
from verl_ext.trainer.rollout import agent_loop
from verl_ext.trainer.rollout.cutting import Waste
from verl_ext.trainer.rollout.row_writer import RowWriter
from verl_ext.trainer.sections import SamplingSection
from verl_ext.trainer.state.oversampling import Oversampling

ON = "mas.sampling.oversample=1.5"


class Data:
    """A data set of numbered questions, the same order in each epoch, that is read on after a resume."""

    def __init__(self, size):
        self.size, self.read = size, 0

    def fetch(self):
        row = TensorDict({"number": torch.tensor([self.read % self.size])}, batch_size=[1])
        assign_non_tensor_stack(row, "uid", [f"first{self.read}"])
        first = self.read % self.size == 0 and self.read > 0
        self.read += 1
        return row, first


def oversampling(folder, batch=4, factor=1.5, max_cuts=None):
    config = SimpleNamespace(
        trainer=SimpleNamespace(default_local_dir=folder), data=SimpleNamespace(train_batch_size=batch)
    )
    return Oversampling(config, SamplingSection(oversample=factor, max_cuts=max_cuts))


def step(chosen, data, slow=()):
    """The numbers of the questions that a step begins and trains; it cuts the slow ones first, then the last."""
    uids = {str(row["uid"][0]): int(row["number"]) for row in chosen.begin(data.fetch)}
    in_time = sorted(uids, key=lambda uid: uids[uid] in slow)[: chosen.questions]
    late = chosen.late(uids.keys() - set(in_time))
    chosen.put_back(late, Waste(len(late)))
    return list(uids.values()), [uids[uid] for uid in in_time]


@pytest.mark.parametrize(("size", "factor"), [(20, 1.5), (20, 1.25), (18, 1.5), (20, 3.0), (5, 2.0)])
def test_each_question_trains_once_an_epoch_whatever_is_cut_saved_and_resumed(tmp_path, size, factor):
    data, chosen, numbers = Data(size), oversampling(tmp_path, factor=factor), random.Random(3)
    trained, cut = dict.fromkeys(range(size), 0), 0
    for number in range(1, 1 + 3 * size // 4):
        begun, in_time = step(chosen, data, {numbers.randrange(size) for _ in range(3)})
        for question in in_time:
            trained[question] += 1
        assert len(in_time) == 4 and max(trained.values()) - min(trained.values()) <= 1
        assert len(set(begun)) == len(begun) or size % 4, "an epoch that ends within a step shares it with the next one"
        cut += len(begun) - len(in_time)
        if number % 3 == 0:
            (tmp_path / f"global_step_{number}").mkdir()
            chosen.save(number)
            chosen = oversampling(tmp_path, factor=factor)
            chosen.start(tmp_path / f"global_step_{number}")
    assert cut >= 1 and min(trained.values()) >= 2


def test_a_question_is_cut_so_often_and_then_waited_for(tmp_path):
    data, chosen = Data(100), oversampling(tmp_path, max_cuts=2)
    begun = [step(chosen, data, slow={1}) for _ in range(3)]
    assert [1 in numbers for numbers, _ in begun] == [True, True, True]
    assert [1 in in_time for _, in_time in begun] == [False, False, True]
    assert len(begun[2][0]) == 4, "this step waits for all, so it begins no more than it trains on"
    assert len(step(chosen, data)[0]) == 6


def test_what_was_cut_is_counted(tmp_path):
    chosen, metrics = oversampling(tmp_path), {"sampling/generated_tokens": 100}
    chosen.begin(Data(20).fetch)
    chosen.put_back(chosen.late(["first4", "first5", "of another step"]), Waste(8, 12.5, 40))
    chosen.add_metrics(metrics)
    assert metrics == {
        "sampling/generated_tokens": 140,
        **{"sampling/cut_questions": 2, "sampling/cut_again": 0, "sampling/cut_trajectories": 8},
        **{"sampling/cut_seconds": 12.5, "sampling/cut_tokens": 40},
    }


def test_without_it_nothing_changes(tmp_path):
    chosen, metrics = oversampling(tmp_path, factor=1.0), {}
    chosen.save(1)
    chosen.add_metrics(metrics)
    assert not (chosen.on or chosen.parts or metrics or list(tmp_path.iterdir()))


def ended(seconds=1.0):
    return QuestionStats(7, trajectories=4, seconds=seconds, cost=vars(Cost(generated_tokens=9)))


def test_the_worker_ends_what_is_cut_and_nothing_else(tmp_path, monkeypatch):
    """One that was under way, one that ignores its cancellation for a while, and one that has ended too late."""
    queue, cleared = Queue(slow={}, slow_0_0={}, late={}, late_0_0={}, other_0_0={}), []
    queue.kv_clear = lambda keys, partition_id: cleared.extend(keys)
    monkeypatch.setattr(agent_loop, "tq", queue)
    worker, stopped = Sampler(), []
    worker.settled = lambda: asyncio.sleep(0)

    async def stubborn(task, ctx):
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            stopped.append("stubborn")
            raise

    systems = {"slow": chain, "stubborn": Script(stubborn), "other": chain}
    worker.submit([{"uid": uid, "system": system} for uid, system in systems.items()], validate=False)
    worker._stats |= {"late": ended(), "kept": ended()}
    worker._empty += ["late", "kept"]
    end = time.monotonic() + 60
    while len(worker._forests) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    waste = manager(worker, tmp_path).cut(["slow", "stubborn", "late"])
    assert waste.trajectories == 1 + 1 + 4 and waste.tokens == 9 and waste.seconds >= 1.2
    assert stopped == ["stubborn"] and not worker.ended, "nothing is stored of them"
    assert len(worker._forests) == 1 and list(worker._stats) == ["kept"] == worker._empty
    assert cleared == ["slow", "slow_0_0", "late", "late_0_0"]
    worker.shut()


async def test_a_question_that_is_cut_while_it_is_written_takes_no_other_along(monkeypatch):
    written = []

    async def put(keys, **others):
        await asyncio.sleep(1)
        written.append(keys)

    monkeypatch.setattr("verl_ext.trainer.rollout.row_writer.tq.async_kv_batch_put", put)
    writer = RowWriter()
    first, second = (asyncio.ensure_future(writer.end(uid, "train", [])) for uid in ("a", "b"))
    await asyncio.sleep(0.5)
    first.cancel()
    await writer.settled()
    await second
    assert written == [["a", "b"]] and first.cancelled()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mas.sampling.oversample=0.5"], "mas.sampling.oversample=0.5 must be at least 1 .*begun.*1: off"),
        (["mas.sampling.max_cuts=0"], "mas.sampling.max_cuts=0 must be at least 1"),
        ([ON, "mas.deterministic=true"], "the clock decides which questions end first.*Remedy: .*oversample=1"),
        ([ON, "trainer.v1.trainer_mode=mas_colocate_async"], "needs trainer.v1.trainer_mode=mas_sync"),
        ([ON, "trainer.v1.trainer_mode=mas_separate_async"], "needs trainer.v1.trainer_mode=mas_sync"),
        ([ON, "data.gen_batch_size=4"], "does not go with data.gen_batch_size=4.*leave data.gen_batch_size out"),
        ([ON, "++algorithm.filter_groups.enable=true"], "verl's own refilling"),
        ([ON, "trainer.v1.sampler.sync_refill_failed_groups=true"], "verl's own refilling"),
    ],
)
def test_what_does_not_go_with_it_is_refused(overrides, message):
    found = examined("+recipe=mhgpo_tiny", *overrides).problems
    assert len(found) == 1 and re.search(message, found[0]), found


def test_check_says_what_it_does():
    facts = dict(examined("+recipe=mhgpo_tiny", ON, "data.train_batch_size=8").facts)
    assert facts["oversampling"].startswith("a step begins 12 questions and trains on the 8 that end first; the others")
    assert "oversampling" not in dict(examined("+recipe=mhgpo_tiny").facts)
    assert composed("+recipe=mhgpo_tiny").mas.sampling.oversample == 1.0


def test_the_doctor_says_when_much_is_wasted_and_when_it_is_always_the_same():
    names = ("questions", "generated_tokens", "cut_questions", "cut_again", "cut_seconds", "cut_tokens")

    def told(*values):
        metrics = {f"sampling/{name}": value for name, value in zip(names, values, strict=True)}
        return report("run", [{"step": number, "metrics": metrics} for number in range(1, 11)])

    fine, wasteful = told(8, 1000, 2, 0, 60.0, 100), told(8, 1000, 2, 2, 60.0, 400)
    assert "Questions cut  20 of 100 that were begun, 0% of them not for the first time; wasted: 10%" in fine
    assert "Nothing to look at" in fine and "Questions cut" not in told(8, 1000, 0, 0, 0.0, 0)
    assert "40% of the tokens were those of questions that were cut: a smaller mas.sampling.oversample" in wasteful
    assert "100% of the questions that were cut had been cut before" in wasteful
