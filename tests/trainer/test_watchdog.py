"""What a run says when nothing happens: what it waits for, which code blocks it; and when it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
import types

import psutil
import pytest
from verl.utils.debug import marked_timer

from tests.helpers import FakeLLM, Script, chain, forest_of, speaker, walk
from verl_ext.mas import Agent
from verl_ext.mas.stopwatch import Stopwatch
from verl_ext.trainer import ranks
from verl_ext.trainer.rollout import phases
from verl_ext.trainer.rollout import watchdog as tested
from verl_ext.trainer.rollout.watchdog import Look, Watch, Watchdog


class Worker:
    """The event loop of a rollout worker in its thread, with a watch."""

    def __init__(self):
        self.loop, self.clock = asyncio.new_event_loop(), Stopwatch()
        thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        thread.start()
        self.watch = Watch(self.clock, self.loop, thread)

    def begin(self, system, count=1, **options):
        async def sample():
            forest = forest_of(system, **options)
            forest.clock = self.clock
            await walk(forest)

        for _ in range(count):
            asyncio.run_coroutine_threadsafe(sample(), self.loop)

    def look_until(self, condition):
        end = time.monotonic() + 60
        while not condition(look := self.watch.look()):
            assert time.monotonic() < end, look
            time.sleep(0.01)
        return look


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(tested, "BLOCKED", 0.2)
    made = Worker()
    yield made

    async def end():
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), made.loop).result(60)
    made.loop.call_soon_threadsafe(made.loop.stop)


def test_calls_and_tools_are_counted_by_name(worker):
    async def search():
        await asyncio.sleep(1000)

    async def searching(task, ctx):
        await ctx.tool("search")

    worker.begin(chain, count=3, llm=FakeLLM(delay=lambda request: 1000.0))
    worker.begin(searching, tools={"search": search})
    look = worker.look_until(lambda look: sum(count for _, count, _ in look.waits) == 4)
    counts = {what: count for what, count, _ in look.waits}
    assert counts == {'call of agent "a" waiting for the model': 3, 'call of tool "search"': 1}
    assert worker.look_until(lambda look: look.silent > 0.1).blocked == ""
    worker.loop.call_soon_threadsafe(worker.clock.stop)  # a weight update
    worker.look_until(lambda look: look.silent == 0.0)


def test_a_workflow_that_waits_by_itself_is_named_by_its_line(worker):
    async def own(task, ctx):
        await asyncio.sleep(1000)  # here

    worker.begin(own, count=2)
    ((what, count, _),) = worker.look_until(lambda look: look.waits and look.waits[0][1] == 2).waits
    path, _, line = what.removeprefix("run of the workflow at ").rpartition(":")
    assert count == 2 and path == __file__ and open(path).readlines()[int(line) - 1].strip().endswith("# here")


@pytest.mark.parametrize("where", ["tool", "prompt", "reward"])
def test_code_that_blocks_the_event_loop_is_shown(worker, where):
    free = threading.Event()

    def block(*_):
        free.wait(60)  # the blocking line
        return 1.0

    async def blocking():
        block()

    async def program(task, ctx):
        return await (ctx.tool("search") if where == "tool" else ctx.call("a", said=""))

    system = blocking_system(program, block if where == "reward" else None, block if where == "prompt" else None)
    worker.begin(system, tools={"search": blocking})
    try:
        stack = worker.look_until(lambda look: look.blocked).blocked
    finally:
        free.set()
    assert "free.wait(60)  # the blocking line" in stack and "/asyncio/" not in stack and "mas/forest" not in stack


def blocking_system(program, reward, prompt):
    def write(said):
        prompt()
        return [{"role": "user", "content": said}]

    return Script(program, {"a": Agent(write) if prompt else speaker("a")}, reward)


WRITER, SEARCH = 'call of agent "writer" waiting for the model', 'call of tool "search"'


def said(folder):
    path = folder / "watchdog.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def test_it_speaks_at_growing_intervals_and_ends_the_run(tmp_path):
    dog = Watchdog(tmp_path, 30.0, 500.0, lambda: "server 0 runs 3 requests, 0 wait there")

    def looks(silent):
        return [Look(silent, [(WRITER, 2, silent + 11)]), Look(silent + 5, [(WRITER, 1, 3), (SEARCH, 1, 35)]), Look()]

    reasons = [dog.check(looks(silent)) for silent in (5, 25, 30, 35, 55, 60, 100, 119, 125)]
    text = (
        'nothing has happened for 30 s: 3 calls of agent "writer" waiting for the model (oldest 41 s), 1 call of tool '
        '"search" (35 s); server 0 runs 3 requests, 0 wait there'
    )
    assert set(reasons) == {None} and said(tmp_path)[0] == text
    assert [line.split(":")[0] for line in said(tmp_path)] == [f"nothing has happened for {n} s" for n in (30, 60, 125)]
    assert dog.check(looks(10)) is None and dog.check(looks(31)) is None and len(said(tmp_path)) == 4
    reason = dog.check(looks(500))
    assert reason.startswith("the run was ended (mas.limits.stop_after=500): nothing has happened for 500 s: 3 calls")


def test_it_is_silent_while_any_worker_makes_progress_or_none_samples(tmp_path):
    dog = Watchdog(tmp_path, 30.0, 60.0)
    assert dog.check([Look(90, [(SEARCH, 1, 90)]), Look(1, [(WRITER, 1, 2)])]) is None
    assert dog.check([Look(90), Look(90)]) is None and not said(tmp_path)
    assert Watchdog(tmp_path, None, None).check([Look(1e6, [(SEARCH, 1, 1e6)])]) is None and not said(tmp_path)


def test_a_blocked_worker_is_named_although_others_make_progress(tmp_path):
    dog = Watchdog(tmp_path, 30.0, None)
    dog.check([Look(1, [(WRITER, 1, 2)]), Look(40, [(WRITER, 1, 50)], blocked='  File "tool.py", line 3\n')])
    assert 'rollout worker 1 is blocked by this code:\n  File "tool.py", line 3' in said(tmp_path)[0]


def test_a_process_that_has_died_is_told_at_once_and_the_phase_ends(tmp_path):
    """The trainer may wait for it for ever."""
    dog = Watchdog(tmp_path, None, None)
    dog.phases = trainer = phases.Phases(None, None)
    dog.lost = lambda seconds: "rank 1 died: no connection\nRemedy: …"
    assert dog.check([Look()]) == "rank 1 died: no connection\nRemedy: …"
    assert said(tmp_path) == ["rank 1 died: no connection. The run ends"] and trainer.must_end


class Clock:
    """In the place of the monotonic clock."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(phases.time, "monotonic", lambda: self.now)

    def watch(self, dog, seconds, *looks):
        """The reason to end, if there was one; the watch looks every five seconds."""
        for _ in range(seconds // 5):
            self.now += 5
            if reason := dog.check(looks):
                return reason
        return None


def test_a_phase_of_the_trainer_that_hangs_is_named_once_and_ended(tmp_path, monkeypatch):
    clock, dog = Clock(monkeypatch), Watchdog(tmp_path, 30.0, 1800.0)
    dog.phases = trainer = phases.Phases(30.0, 1800.0, lambda: "\nrank 0 is stopped")
    with trainer.phase("step"), trainer.phase("gen"):
        assert clock.watch(dog, 5000, Look(1.0, [(SEARCH, 1, 1.0)])) is None  # the rollout workers are at work
    with trainer.phase("step"), trainer.phase("update_actor"):
        assert clock.watch(dog, 295) is None and not said(tmp_path)  # the first update of a large model takes long
        assert clock.watch(dog, 105) is None  # 400 s in all
    assert said(tmp_path) == [
        "the trainer has been in update_actor, which has not ended before in this run, for 300 s\nrank 0 is stopped"
    ]
    with trainer.phase("step"), trainer.phase("update_actor"):
        assert clock.watch(dog, 1995) is None and len(said(tmp_path)) == 1
        reason = clock.watch(dog, 5000)
    assert reason == (
        "the run was ended (mas.limits.stop_after=1800): the trainer has been in update_actor, which took at most "
        "400.0 s before, for 2000 s\nrank 0 is stopped"
    )
    assert trainer.must_end


def test_a_phase_that_is_ended_raises_where_the_trainer_waits():
    module = types.SimpleNamespace(marked_timer=marked_timer)
    stock, trainer, timing = module.marked_timer, phases.Phases(30.0, 60.0), {}
    with trainer.watched([module]):
        threading.Timer(0.2, trainer.interrupt).start()
        with pytest.raises(KeyboardInterrupt), module.marked_timer("update_actor", timing, color="red"):
            threading.Event().wait(60)
        with module.marked_timer("step", timing):
            pass
    assert list(timing) == ["step"] and module.marked_timer is stock
    trainer.interrupt()  # too late: nothing is raised, and the process lives


def test_what_a_training_process_does(tmp_path, monkeypatch):
    """A stopped one, one that waits in native code, one between two tasks, one that is gone, one elsewhere.

    However they end, they leave no file.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(ranks, "WRITTEN", 5.0)  # on a loaded machine a second is short
    (tmp_path / "verl/single_controller").mkdir(parents=True)
    own = "import threading, time\nentered = threading.Event()\ndef gather():\n    entered.set()\n    time.sleep(600)\n"
    (tmp_path / "verl/single_controller/own.py").write_text(own)
    code = f"import sys, threading, time; sys.path.insert(0, {str(tmp_path / 'verl/single_controller')!r})\n"
    code += "from own import entered, gather\nfrom verl_ext.trainer import ranks\nrank = ranks._prepare(None)\n"
    code += "def task(): threading.Thread(target=gather).start(); entered.wait()\n"
    code += "def none(): pass\n"
    end = "print(*rank, flush=True)\ntime.sleep(600)"
    processes = [
        subprocess.Popen([sys.executable, "-c", f"{code}{place}()\n{end}"], stdout=subprocess.PIPE, text=True)
        for place in ("task", "none", "task")
    ]
    try:
        found = [
            ranks.Rank(host, int(pid), path) for host, pid, path in (p.stdout.readline().split() for p in processes)
        ]
        processes[2].send_signal(signal.SIGSTOP)
        while psutil.Process(processes[2].pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        assert re.search(r"\) is here, the innermost call first:\n  File .* in gather", ranks.state(found[0]))
        assert ranks.state(found[1]).endswith(") waits for its next task")
        assert ranks.state(found[2]).endswith(") is stopped (SIGSTOP)")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert ranks.state(found[0]).endswith(") has ended")
    assert not list(tmp_path.glob("verl_ext_stack_*"))
    assert "on another machine" in ranks.state(found[0]._replace(host="elsewhere"))
