"""Programs that misbehave: each ends with a typed status or a clear error, and no other notices."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

from tests import helpers
from tests.chatting import ADD
from tests.gateway.programs import Program, ask, end_of, forest_of, numbered, post, run
from tests.helpers import FakeLLM, walk
from verl_ext.gateway.server import gateway_here
from verl_ext.gateway.settings import GatewaySection
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.types import Status

BODY = {"model": "planner", "messages": [{"role": "user", "content": "hello"}]}


def test_a_program_that_never_asks_has_a_result_and_no_calls():
    trajectory = end_of(lambda task, endpoint: "nothing to ask")
    assert trajectory.ok and trajectory.reward == 1.0 and not trajectory.calls


def test_a_program_that_raises_is_named():
    def program(task, endpoint):
        ask(endpoint, "planner", "x")
        raise KeyError("no such part")

    trajectory = end_of(program)
    assert trajectory.status is Status.WORKFLOW_ERROR and "no such part" in trajectory.error
    assert "test_hostile.py" in trajectory.trace and len(trajectory.calls) == 1


@pytest.mark.parametrize("patient", [False, True])
def test_a_program_that_asks_a_thousand_times_is_ended(patient):
    """One that takes no notice of the refusals as well."""
    told = []

    def program(task, endpoint):
        for number in range(1000):
            status, answer = post(
                f"{endpoint.base_url}/chat/completions",
                endpoint.api_key,
                {**BODY, "messages": [{"role": "user", "content": f"request {number}"}]},
            )
            told.append(status)
            if status != 200 and not patient:
                raise RuntimeError("refused")

    trajectory = end_of(program, numbered(), limits={"max_calls": 5})
    assert trajectory.status is Status.CALL_LIMIT and "max_calls=5" in trajectory.error
    assert len(trajectory.calls) == 5 and told[:6] == [200] * 5 + [429]


def test_a_request_after_the_end_is_refused():
    """A thread that a program has left behind asks under the key of its trajectory, and of one that runs."""
    asked, answers = threading.Event(), []

    def program(task, endpoint):
        def late():
            assert asked.wait(60)
            answers.append(post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, BODY))

        threads.append(threading.Thread(target=late))
        threads[-1].start()
        return ask(endpoint, "planner", "x")

    threads: list[threading.Thread] = []

    async def work():
        forest = forest_of(Program(program))
        trajectory = await walk(forest)
        asked.set()
        await asyncio.to_thread(threads[0].join)
        return trajectory

    trajectory = run(work())
    assert trajectory.ok and len(trajectory.calls) == 1
    assert [(status, answer["error"]["code"]) for status, answer in answers] == [(401, "invalid_api_key")]


def test_sessions_do_not_mix():
    """Two programs ask the same at the same time; each is answered in its own trajectory."""
    barrier = threading.Barrier(2)

    def program(task, endpoint):
        barrier.wait(60)
        said = ask(endpoint, "planner", "the same")
        barrier.wait(60)
        return endpoint.api_key, said

    async def work():
        forests = [forest_of(Program(program), FakeLLM(lambda r, i=i: f"of forest {i}"), name=f"{i}") for i in (0, 1)]
        return await asyncio.gather(*[walk(forest) for forest in forests])

    one, other = run(work())
    assert (one.result[1], other.result[1]) == ("of forest 0", "of forest 1")
    assert one.result[0] != other.result[0] and len(one.result[0]) > 40


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_program_that_hangs_times_out(asynchronous):
    """An asynchronous one is cancelled; the thread of a blocking one is left behind."""
    release, cancelled = threading.Event(), threading.Event()

    async def waits(task, endpoint):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def blocks(task, endpoint):
        release.wait(60)

    trajectory = end_of(waits if asynchronous else blocks, limits={"trajectory_timeout": 1.0})
    assert trajectory.status is Status.TIMEOUT
    assert not asynchronous or cancelled.wait(60)
    release.set()


def test_a_program_that_blocks_its_loop_holds_up_no_other():
    release = threading.Event()

    async def blocks(task, endpoint):
        release.wait(60)
        return "released"

    async def work():
        blocked = asyncio.ensure_future(walk(forest_of(Program(blocks))))
        other = await walk(forest_of(Program(lambda task, endpoint: ask(endpoint, "planner", "x"))))
        release.set()
        return other, await blocked

    other, blocked = run(work())
    assert other.ok and blocked.result == "released"


def test_a_program_that_blocks_the_common_loop_is_left_behind():
    """Asynchronous programs share a loop. One that blocks it times out, and later ones get another loop."""
    release = threading.Event()

    async def blocks(task, endpoint):
        release.wait(600)

    async def asks(task, endpoint):
        return await asyncio.to_thread(ask, endpoint, "planner", "x")

    assert end_of(blocks, limits={"trajectory_timeout": 0.5}).status is Status.TIMEOUT
    assert end_of(asks).ok
    release.set()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_goes_away_leaves_nothing_broken(streamed):
    """It closes the connection while the answer is made, and asks again. The call is recorded and does not train."""
    begun, gone = threading.Event(), threading.Event()

    class Slow(FakeLLM):
        async def generate(self, *args):
            begun.set()
            await asyncio.to_thread(gone.wait, 60)
            return await super().generate(*args)

    def program(task, endpoint):
        host, port = endpoint.url.removeprefix("http://").split(":")
        data = json.dumps({**BODY, "stream": streamed}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {endpoint.api_key}\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            assert begun.wait(60)
        gone.set()
        return ask(endpoint, "solver", ask(endpoint, "planner", "hello"))

    llm = Slow(lambda request: f"the output number {len(llm.log)}")
    trajectory = end_of(program, llm)
    assert trajectory.ok, trajectory.error
    assign_credit([trajectory])
    left, again, end = sorted(trajectory.calls, key=lambda call: call.text)
    assert [call.credited for call in (left, again, end)] == [False, True, True]
    assert (again.parents, end.parents, trajectory.sinks) == ((), (again,), (end,))


def test_a_client_that_goes_away_in_the_middle_of_its_request_is_not_logged(capfd):
    def program(task, endpoint):
        host, port = endpoint.url.removeprefix("http://").split(":")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {endpoint.api_key}\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b'{"model":')
        return ask(endpoint, "solver", "the next")

    assert end_of(program).ok and "ClientDisconnect" not in capfd.readouterr().err


def test_a_failing_engine_is_a_status_of_its_own():
    trajectory = end_of(lambda task, endpoint: ask(endpoint, "planner", "x"), FakeLLM(lambda request: OSError("gone")))
    assert trajectory.status is Status.ENGINE_ERROR and "gone" in trajectory.error


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_call_that_led_to_a_failure_is_rewarded_as_in_any_workflow(goes_on):
    """The calls before it had the reward of the failure, and it had none."""

    def program(task, endpoint):
        ask(endpoint, "planner", "first")
        body = {**BODY, "model": "solver", "tools": [ADD], "tool_choice": "required"}
        assert post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)[0] == 422
        if not goes_on:
            raise KeyError("no call of a tool")
        return ask(endpoint, "planner", "once more")

    trajectory = end_of(program, FakeLLM(lambda request: "an answer"), failure_rewards={"no_tool_call": -1.0})
    assign_credit([trajectory])
    assert trajectory.reward == (1.0 if goes_on else -1.0)
    assert [call.reward for call in trajectory.calls] == [trajectory.reward] * (3 if goes_on else 2)
    *_, failed = [call for call in trajectory.calls if call.status is Status.NO_TOOL_CALL]
    assert trajectory.calls[-1].parents == (failed,) if goes_on else trajectory.sinks == (failed,)


CALLS = [  # the program's last call, and the status that the trajectory has
    ("fails", Status.TOOL_ERROR),  # as with `endpoint.tool`, though the program knows an HTTP status alone
    ("works", Status.WORKFLOW_ERROR),  # the program's own error, not that of the call before
]


@pytest.mark.parametrize(("name", "status"), CALLS)
def test_a_program_that_raises_has_the_status_of_its_last_call_tools_included(name, status):
    def program(task, endpoint):
        for agent in ("planner", "solver"):
            post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, {**BODY, "model": agent})
        post(f"{endpoint.base_url}/tool", endpoint.api_key, {"name": name, "arguments": {}})
        raise KeyError("an error of the program")

    async def fails():
        raise ValueError("broken")

    async def works():
        return "a result"

    limits = {"max_calls": 1, "tool_retries": 0}
    trajectory = end_of(program, tools={"fails": fails, "works": works}, limits=limits)
    assert trajectory.status is status, trajectory.error


def test_a_program_within_another_workflow_is_refused():
    """Two of them shared their calls, and what was forked before one diverged."""
    inner = Program(lambda task, endpoint: ask(endpoint, "planner", task.question))

    async def vote(task, ctx):
        return [await ctx.run(inner, task, name) for name in ("one", "two")]

    async def work():
        forest = helpers.forest_of(helpers.Script(vote, inner.agents))
        trajectory = await walk(forest)
        await forest.close()
        return trajectory

    trajectory = run(work())
    assert trajectory.status is Status.WORKFLOW_ERROR and not trajectory.calls
    assert "Program is run by another workflow" in trajectory.error and "Remedy: ctx.call" in trajectory.error


def test_wrong_rewards_and_tools_are_refused():
    def program(task, endpoint):
        wrong = [
            ("reward", {"agent": "nobody", "value": 1}),
            ("reward", {"agent": "planner", "value": "much"}),
            ("reward", {"agent": "planner"}),
            ("tool", {"name": "nothing", "arguments": {}}),
            ("tool", {"name": "fails", "arguments": {"wrong": 1}}),
            ("tool", {"name": "fails", "arguments": "[" * 100_000}),
            ("tool", {"name": "fails", "arguments": {}}),
            ("tool", {"name": "circular", "arguments": {}}),
        ]
        ask(endpoint, "planner", "before the tools")
        return [post(f"{endpoint.base_url}/{path}", endpoint.api_key, body) for path, body in wrong]

    async def fails():
        raise ValueError("broken")

    async def circular():
        found = []
        found.append(found)
        return found

    trajectory = end_of(program, tools={"fails": fails, "circular": circular}, limits={"tool_retries": 0})
    assert trajectory.ok, trajectory.trace
    assert [status for status, _ in trajectory.result] == [400, 400, 400, 400, 400, 400, 424, 424]
    assert "planner, solver" in trajectory.result[0][1]["error"]["message"]


def test_a_used_port_is_named_and_the_next_ones_are_tried():
    async def work(ports):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            gateway = await gateway_here(GatewaySection(port=port, ports=ports))
            return port, gateway.port

    port, other = run(work(20))
    assert port < other < port + 20
    with pytest.raises(ValueError, match=r"mas\.gateway\.port=\d+: cannot listen there .* mas.gateway.port=0"):
        run(work(1))
