"""Tools that the rollout workers of a node share. Trainings with one: test_async.py, test_nodes.py."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from typing import Any

import pytest
import ray

from tests.end_to_end.running import environment, preloaded
from verl_ext.engine import preload
from verl_ext.mas.chat_context import definition_of
from verl_ext.mas.limits import Limits
from verl_ext.mas.tool_calls import BadToolCall, Cost, attempt, check_tool
from verl_ext.mas.types import CallId, Stream, ToolRecord
from verl_ext.tools import Tool, ToolError, ToolRefused
from verl_ext.tools.threads import Threads
from verl_ext.tools.time_limits import not_counted
from verl_ext.trainer.build import build_tools
from verl_ext.trainer.rollout.node_tools import tools_of_node


class Probe(Tool):
    """Does as it is told, and says in which process."""

    name = "probe"

    def __init__(self, answer: str) -> None:
        self.answer, self.calls, self.cancelled = answer, 0, 0

    async def __call__(self, what: str, seconds: float = 0.0) -> Any:  # type: ignore[override]
        """Do something.

        Args:
            what: to do
            seconds: that it takes
        """
        self.calls += 1
        if what == "queue":
            with not_counted():
                await asyncio.sleep(seconds)
        try:
            await asyncio.sleep(seconds if what == "work" else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        errors = {"refuse": ToolRefused("not here"), "fail": ToolError("server down"), "err": KeyError("x")}
        if what in errors:
            raise errors[what]
        if what == "die":
            os._exit(1)
        return {"pid": os.getpid()}.get(what, self.answer)

    def counts(self) -> dict[str, int]:
        """Calls, and those that were cancelled."""
        return {"calls": self.calls, "cancelled": self.cancelled}


def blocking(seconds: float) -> int:
    """Block."""
    time.sleep(seconds)
    return os.getpid()


HERE = "tests.end_to_end.test_node_tools"
SECTIONS: dict[str, dict[str, Any]] = {
    "probe": {"_target_": f"{HERE}.Probe", "answer": "done", "once_per_node": True},
    "blocking": {"_target_": f"{HERE}.blocking", "_partial_": True, "once_per_node": True},
    "own": {"_target_": f"{HERE}.Probe", "answer": "own", "once_per_node": False},
}


class Worker:
    """The tools of a rollout worker."""

    def __init__(self, make: Any):
        self.tools = make(SECTIONS)

    def call(self, name: str, timeout: float | None = 30.0, **arguments: Any) -> tuple[Any, str | None, str]:
        """(result, failure, traceback) of one attempt."""
        check_tool(name, self.tools, arguments)
        record = ToolRecord(CallId((), name, 0), Stream("0"), name, arguments, ())
        limits = Limits(tool_timeout=timeout, tool_retries=0)
        asyncio.run(attempt(record, self.tools[name], limits, Cost(), Threads()))
        return record.result, record.failure, record.trace

    def cancel(self) -> None:
        """Begin a call, and end it before it is done."""

        async def begin_and_end() -> None:
            call = asyncio.ensure_future(self.tools["probe"](what="work", seconds=60))
            await asyncio.sleep(1)
            call.cancel()
            await asyncio.wait([call])

        asyncio.run(begin_and_end())

    def counts(self) -> dict[str, int]:
        """Of the shared tool `probe`."""
        return self.tools["probe"].counts()

    def definition(self, name: str) -> dict[str, Any]:
        """As `ctx.tool_schemas` gives it."""
        return definition_of(name, self.tools[name])


@pytest.fixture(scope="module")
def workers():
    """Two workers of a node."""
    env = {"py_executable": preload.command_of_workers(preload.address_of(preloaded()))}
    before = dict(os.environ)
    os.environ.update(environment())
    ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env=env)
    yield [ray.remote(Worker).remote(tools_of_node) for _ in range(2)]
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


def both(workers, method, *arguments, **named):
    return ray.get([getattr(worker, method).remote(*arguments, **named) for worker in workers])


def test_the_workers_of_a_node_share_a_tool(workers):
    for name, processes in {"probe": 1, "blocking": 1, "own": 2}.items():
        arguments = {"seconds": 0.0} if name == "blocking" else {"what": "pid"}
        assert len({answer[0] for answer in both(workers, "call", name, **arguments)}) == processes
    in_place = Worker(build_tools)
    for name, arguments in {"probe": {"wat": 1}, "blocking": {}}.items():
        with pytest.raises(BadToolCall) as expected:
            in_place.call(name, **arguments)
        with pytest.raises(BadToolCall) as refused:
            both(workers, "call", name, **arguments)
        assert str(refused.value.cause) == str(expected.value)
    assert both(workers, "definition", "probe") == [in_place.definition("probe")] * 2


@pytest.mark.parametrize("what", ["work", "refuse", "fail", "err"])
def test_results_and_errors_are_those_of_a_tool_in_the_worker(workers, what):
    expected = Worker(build_tools).call("probe", what=what)
    result, failure, trace = ray.get(workers[1].call.remote("probe", what=what))
    assert (result, failure) == expected[:2] and trace.splitlines()[-1:] == expected[2].splitlines()[-1:]
    assert ("raise errors[what]" in trace) == (what == "err")


def counted(workers) -> Counter[str]:
    """The sum over the workers, as the trainer's."""
    first, second = both(workers, "counts")
    return Counter(first) + Counter(second)


def test_time_limits_and_cancellations_end_a_call_where_it_runs(workers):
    before = counted(workers)
    late = "attempt 1 of 1: TimeoutError: no answer in time"
    assert late in ray.get(workers[0].call.remote("probe", timeout=2, what="work", seconds=60.0))[1]  # it has begun
    assert late in ray.get(workers[0].call.remote("blocking", timeout=0.5, seconds=2.0))[1]
    assert ray.get(workers[0].call.remote("probe", timeout=0.5, what="queue", seconds=1.0))[0] == "done"
    ray.get(workers[1].cancel.remote())
    for _ in range(100):  # it ends after the worker has gone on
        if (found := counted(workers) - before)["cancelled"] > 1:
            break
        time.sleep(0.1)
    assert found == {"calls": 3, "cancelled": 2}, "each once"


def test_a_tool_whose_process_dies_is_started_again(workers):
    failure = ray.get(workers[0].call.remote("probe", what="die"))[1]
    assert "ToolError: the process of the tool 'probe'" in failure and "has died: The actor died" in failure
    fresh = ray.get(workers[0].call.remote("probe", what="pid"))[0]
    assert "has died" in ray.get(workers[1].call.remote("probe", what="pid"))[1], "it learns of it now"
    assert ray.get(workers[1].call.remote("probe", what="pid"))[0] == fresh
    # The host is of the first worker's process, and ends with it.
    ray.kill(workers[0])
    others = [ray.get(workers[1].call.remote("probe", what="pid")) for _ in range(20) if not time.sleep(0.2)]
    assert others[-1][0] not in (None, fresh)
