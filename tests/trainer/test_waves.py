"""Fixed scheduling: waves of calls whose content and order depend on what the calls are, not on when they arrive."""

import asyncio
import random
import threading
import time
from types import SimpleNamespace

import pytest

from tests.helpers import Script, chain, forest_of, now, run, speaker
from verl_ext.mas import Status, Task
from verl_ext.mas.forest import Forest
from verl_ext.mas.turns import AT_ONCE, Turns
from verl_ext.sampling import make_strategy, run_once
from verl_ext.trainer.rollout.waves import QUIET_TURNS, WaveLLM
from verl_ext.trainer.rollout.worker import RolloutWorker


class Server:
    """Stands for the handle of a Ray actor: `generate_wave.remote(requests)` gives an awaitable. Records the waves."""

    def __init__(self, answer=None, seconds=1.0):
        self.waves, self.started, self.aborted = [], [], []
        self.answer = answer or (lambda request: output(f"{request['sampling_params']['seed']}"))
        self.seconds = seconds
        self.generate_wave = SimpleNamespace(remote=self._generate)
        self.abort_request = SimpleNamespace(remote=self.aborted.append)

    async def _generate(self, requests):
        self.waves.append([request["request_id"] for request in requests])
        self.started.append(now())
        await asyncio.sleep(self.seconds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer(request) for request in requests]


def output(text):
    return SimpleNamespace(
        token_ids=list(text.encode()), log_probs=[0.0] * len(text), stop_reason=None, extra_fields={}
    )


class Tokens:
    """The part of a tokenizer that is used: texts are bytes."""

    def apply_chat_template(self, messages, **_):
        return list(messages[-1]["content"].encode())

    def decode(self, ids, **_):
        return bytes(ids).decode()


def waves(servers, busy=lambda: 0):
    return WaveLLM(Tokens(), None, servers=servers, busy=busy)


async def turns(n):
    for _ in range(n):
        await asyncio.sleep(0)


def ask(llm, *key, after=0):
    async def late():
        await turns(after)
        return await llm.generate([104], {"seed": 1}, key)

    return asyncio.ensure_future(late())


async def race(task, ctx):
    """Two branches; what comes next follows the order in which they end."""
    said = []

    async def branch(child, *agents):
        for agent in agents:
            said.append(await child.call(agent))

    await asyncio.gather(ctx.branch("x", branch, "a"), ctx.branch("y", branch, "b"))
    return await ctx.call("c", said=said)


@pytest.mark.parametrize("system,turns_of", [(chain, 3), (race, 2)])
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["fof", "is", "rr", "nmc"])
def test_waves_do_not_depend_on_the_order_of_arrival(strategy, replicas, system, turns_of):
    def record(order):
        async def scenario():
            servers = [Server(seconds=1.0 + (rank + order) % replicas) for rank in range(replicas)]
            llm = waves(servers)
            jitter = random.Random(order)

            async def question(number):
                await turns(jitter.randrange(30))
                forest = forest_of(Script(system), llm, seed=number)
                forest.name = f"{number:03d}"
                await make_strategy(strategy, 3, list("abc")).sample(forest)
                return sorted((str(t.stream.path), t.result) for t in forest.trajectories)

            numbers = list(range(6))
            jitter.shuffle(numbers)
            results = await asyncio.gather(*[question(number) for number in numbers])
            return [server.waves for server in servers], sorted(zip(numbers, results, strict=True)), now()

        return run(scenario())

    once = record(0)
    assert record(1) == record(2) == once
    # Each turn is a barrier as long as the slowest server; every call in a wave is sorted by its key.
    if system is chain or strategy in ("fof", "nmc"):
        assert [len(server) for server in once[0]] == [turns_of] * replicas and once[2] == turns_of * replicas
    assert all(wave == sorted(wave) for server in once[0] for wave in server)


async def test_calls_are_dealt_out_to_the_servers_in_key_order():
    servers = [Server(), Server()]
    llm = waves(servers)
    await asyncio.gather(*[ask(llm, name, after=i) for i, name in enumerate("ecadb")])
    assert [server.waves for server in servers] == [[["a", "c", "e"]], [["b", "d"]]]


async def test_a_wave_waits_for_what_is_being_recalled():
    """Recalls run in threads: how long one takes must not decide who is in which wave."""
    entered = threading.Event()

    async def recalling(task, ctx):
        await ctx.recall("a", task.question)
        return await ctx.call("a")

    def memory(agent, query):
        entered.set()
        time.sleep(0.2)  # many turns of the event loop
        return []

    server, forest = Server(), None
    llm = waves([server], busy=lambda: forest.busy)
    forest = forest_of(Script(recalling, "a"), llm)
    forest.memory = memory
    session = asyncio.ensure_future(run_once(forest))
    await asyncio.to_thread(entered.wait, 60)
    await asyncio.gather(ask(llm, "other"), session)
    (wave,) = server.waves
    assert len(wave) == 2


async def test_a_wave_waits_for_tools_in_flight():
    running = 0

    async def search():
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(10.0)
        finally:
            running -= 1
        return "found"

    async def slow(task, ctx):
        return await ctx.call("b", docs=await ctx.tool("search"))

    async def quick(task, ctx):
        return await ctx.call("a")

    server = Server()
    llm = waves([server], busy=lambda: running)
    for system, name in ((slow, "q1"), (quick, "q0")):
        forest = Forest(None, Script(system, {n: speaker(n) for n in "ab"}), llm, {"search": search}, name=name)
        asyncio.ensure_future(make_strategy("fof", 1, list("ab")).sample(forest))
    await asyncio.sleep(30)
    assert server.waves == [["q0/0/a.0", "q1/0/b.0"]]
    assert server.started == [pytest.approx(10.0, abs=0.01)]


async def test_a_wave_waits_for_answers_that_wait_for_a_turn():
    """The first and the last of many trajectories go on, more than `QUIET_TURNS` turns apart."""
    turns, count, server = Turns(), 2 * QUIET_TURNS * AT_ONCE, Server()

    async def some_go_on(task, ctx):
        await ctx.call("a")
        return await ctx.call("b") if task.index in (0, count - 1) else None

    worker = SimpleNamespace(turns=turns, _forests={})
    llm = waves([server], busy=lambda: RolloutWorker._busy(worker))
    for number in range(count):
        name, task = f"{number:06d}", Task("", index=number)
        worker._forests[name] = Forest(task, Script(some_go_on, "ab"), llm, name=name, turns=turns)
    await asyncio.gather(*[run_once(forest) for forest in worker._forests.values()])
    assert [len(wave) for wave in server.waves] == [count, 2]


async def test_a_call_that_arrives_during_a_wave_goes_with_the_next():
    server = Server(seconds=5.0)
    llm = waves([server])
    first = ask(llm, "a")
    await asyncio.sleep(1)
    await asyncio.gather(first, ask(llm, "c"), ask(llm, "b"))
    assert server.waves == [["a"], ["b", "c"]] and server.started == [0.0, 5.0]


@pytest.mark.parametrize(
    "answer,reason",
    [
        (ConnectionError("the replica died"), "the replica died"),
        (lambda request: KeyError("this one"), "this one"),
        (lambda request: SimpleNamespace(token_ids=[1]), "extra_fields"),
    ],
)
async def test_a_failing_server_fails_its_calls_and_no_others(answer, reason):
    llm = waves([Server(), Server(answer)])
    results = await asyncio.gather(*[ask(llm, name) for name in "abcd"], return_exceptions=True)
    assert [isinstance(result, Exception) for result in results] == [False, True, False, True]
    assert all(reason in str(result) for result in results[1::2])
    assert (await asyncio.gather(ask(llm, "a")))[0].token_ids == [49], "the next wave goes out as usual"


async def test_a_server_that_answers_too_few_requests_leaves_nobody_hanging():
    server = Server()
    whole = server._generate

    async def short(requests):
        return (await whole(requests))[:-1]

    server.generate_wave.remote = short
    results = await asyncio.gather(*[ask(waves([server]), name) for name in "a"], return_exceptions=True)
    assert "answered 0 of 1 requests" in str(results[0])


async def test_a_caller_that_gave_up_does_not_disturb_the_wave():
    server = Server(seconds=100.0)
    llm = waves([server])
    impatient = forest_of(chain, llm, limits={"call_timeout": 10.0})
    samples, patient = await asyncio.gather(make_strategy("fof", 2, list("abc")).sample(impatient), ask(llm, "z"))
    assert patient.token_ids == [49]
    assert {t.status for t in impatient.trajectories} == {Status.TIMEOUT}
    assert samples == [] and server.aborted == ["f/0/a.0", "f/0/*1/a.0"]


async def test_a_call_that_gave_up_before_its_wave_is_not_generated():
    server = Server(seconds=5.0)
    llm = waves([server])
    first = ask(llm, "a")
    await asyncio.sleep(1)
    late = ask(llm, "b")
    await asyncio.sleep(1)
    late.cancel()
    await asyncio.gather(first, ask(llm, "c"))
    assert server.waves == [["a"], ["c"]] and server.aborted == []
