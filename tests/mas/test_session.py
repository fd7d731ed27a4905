"""Sessions: scheduling without barriers, and failures as typed statuses."""

import asyncio
import sys

import pytest

from tests.helpers import FakeLLM, Script, chain, forest_of, now, run, speaker, walk
from verl_ext.mas import CallFailed, Status, Unparsable
from verl_ext.mas.forest import BrokenReward
from verl_ext.mas.types import Generation, Stream
from verl_ext.mas.works import PATIENCE


async def roots(forest, n):
    return await asyncio.gather(*[walk(forest, Stream(f"{i}")) for i in range(n)])


# --- scheduling -----------------------------------------------------------------------------------------------------


async def test_no_barrier_each_trajectory_goes_at_its_own_pace():
    delays = {"0": 1.0, "1": 2.0, "2": 5.0}
    ended = {}

    async def system(task, ctx):
        await chain(task, ctx)
        ended[len(ended)] = now()

    forest = forest_of(system, FakeLLM(delay=lambda request: delays[request.key[1]]))
    await roots(forest, 3)
    assert now() == 15, "the wall time is that of the longest chain"
    assert list(ended.values()) == [3, 6, 15]
    starts = [(request.started, request.key[1], request.agent) for request in forest.llm.log]
    # The fast one is through before the slow one makes its second call.
    assert starts.index((2.0, "0", "c")) < starts.index((5.0, "2", "b"))


async def test_concurrent_branches_overlap_and_join():
    async def system(task, ctx):
        await ctx.call("a")
        await asyncio.gather(*[ctx.branch(f"s{i}", lambda c: c.call("b")) for i in range(3)])
        return await ctx.call("c")

    forest = forest_of(system, FakeLLM(delay=lambda request: {"a": 1, "b": 2, "c": 1}[request.agent]))
    await walk(forest)
    assert now() == 4


# --- failures -------------------------------------------------------------------------------------------------------


def failing(answer, limits=None, agents="abc", **options):
    """Two trajectories, of which only root "1" meets `answer` at agent b."""

    def say(request):
        return answer if request.agent == "b" and request.key[1] == "1" else "fine"

    forest = forest_of(Script(chain, agents), FakeLLM(say, **options), limits=limits or {})
    return forest, run(roots(forest, 2))


def test_an_engine_error_costs_its_trajectory_only():
    _, (good, bad) = failing(RuntimeError("out of memory"))
    assert good.ok and good.reward == 1.0 and good.result == "fine"
    assert bad.status is Status.ENGINE_ERROR and "RuntimeError: out of memory" in bad.error and bad.result is None
    assert [call.status for call in bad.calls] == [Status.OK, Status.ENGINE_ERROR]
    assert bad.reward != bad.reward, "no reward, not 0"


@pytest.mark.parametrize(
    ("answer", "status", "words", "text"),
    [
        (Generation(list(b"half"), [0.0] * 4, "aborted"), Status.ENGINE_ERROR, "aborted the output after 4 tokens", ""),
        (Generation(list(b"half"), [0.0] * 4, "abort"), Status.ENGINE_ERROR, "aborted the output after 4 tokens", ""),
        (Generation([], [], "aborted"), Status.ENGINE_ERROR, "no token generated (aborted)", ""),
        (Generation(list(b"half"), [0.0] * 4, "length"), Status.TRUNCATED, "max_tokens", "half"),
    ],
)
def test_how_an_output_ended_is_the_calls_status(answer, status, words, text):
    forest, (good, odd) = failing(answer)
    call = odd.calls[1]
    assert good.ok and call.status is status and words in call.error and call.text == text
    assert odd.ok == call.status.trainable == (status is Status.TRUNCATED)
    assert forest.cost.generated_tokens == (4 + odd.ok) * len("fine") + len(answer.token_ids)


def test_a_call_that_takes_too_long():
    slow = {"delay": lambda request: 99.0 if request.agent == "b" and request.key[1] == "1" else 0.0}
    _, (good, bad) = failing("late", {"call_timeout": 10.0}, **slow)
    assert good.ok and bad.status is Status.TIMEOUT and "10.0 s" in bad.error


def test_a_prompt_that_is_too_long_is_not_cut():
    forest, (good, bad) = failing("x" * 200, {"max_prompt_tokens": 100})
    assert good.ok and bad.status is Status.PROMPT_TOO_LONG and "allowed are 100" in bad.error
    assert forest.llm.count("c") == 1 and forest.cost.agent_calls == 5


def test_unparsable_output_with_and_without_fallback():
    def parse(text, **inputs):
        if text != "fine":
            raise Unparsable("not fine", **fallback)
        return text

    def penalty(text, value, parsable, **inputs):
        return (0.0 if parsable else -0.5), {"given": float(value is not None)}

    agents = {"a": speaker("a"), "b": speaker("b", parse=parse, penalty=penalty), "c": speaker("c")}
    fallback = {"fallback": None}
    _, (good, odd) = failing("garbage", agents=agents)
    assert good.ok and odd.ok and odd.calls[2].messages[0]["content"] == "c {'said': None}"
    assert odd.calls[1].status is Status.UNPARSABLE and odd.calls[1].error == "not fine"
    assert odd.calls[1].reward_specific == -0.5 and good.calls[1].reward_specific == 0.0
    fallback = {}
    _, (good, bad) = failing("garbage", agents=agents)
    assert good.ok and bad.status is Status.UNPARSABLE and "not fine" in bad.error
    assert bad.calls[1].status.trainable and bad.calls[1].reward_specific == -0.5


def test_a_workflow_bug_costs_that_trajectory_only():
    async def system(task, ctx):
        return [1][int(await ctx.call("a"))]

    good, bad = run(roots(forest_of(system, FakeLLM(lambda request: request.key[1])), 2))
    assert good.ok and bad.status is Status.WORKFLOW_ERROR and "IndexError" in bad.error


def test_a_workflow_may_catch_a_failed_call_and_go_on():
    async def system(task, ctx):
        try:
            await ctx.call("a")
        except CallFailed as failure:
            assert failure.status is Status.ENGINE_ERROR
        return await ctx.call("b")

    def say(request):
        return RuntimeError() if request.agent == "a" else "yes"

    trajectory = run(walk(forest_of(system, FakeLLM(say))))
    assert trajectory.ok and trajectory.result == "yes" and trajectory.calls[1].parents == (trajectory.calls[0],)


def test_the_call_limit_ends_loops_even_those_that_catch_everything():
    async def loop(task, ctx):
        while True:
            await ctx.call("a")

    async def stubborn(task, ctx):
        while True:
            try:
                await ctx.call("a")
            except Exception:
                continue

    async def modest(task, ctx):
        said = []
        try:
            while True:
                said.append(await ctx.call("a"))
        except CallFailed:
            return len(said)

    for system in (loop, stubborn):
        forest = forest_of(system, limits={"max_calls": 5})
        trajectory = run(walk(forest))
        assert trajectory.status is Status.CALL_LIMIT and "mas.limits.max_calls=5" in trajectory.error
        assert len(trajectory.calls) == len(forest.llm.log) == 5
    assert run(walk(forest_of(modest, limits={"max_calls": 5}))).result == 5


def broken(*_, **__):
    raise ZeroDivisionError("oops")


@pytest.mark.parametrize("catches", [False, True])
def test_a_broken_penalty_stops_the_training_whatever_the_workflow_catches(catches):
    async def system(task, ctx):
        try:
            return await ctx.call("a")
        except Exception:
            if not catches:
                raise

    workflow = Script(system, {"a": speaker("a", penalty=broken)})
    with pytest.raises(BrokenReward, match="penalty of agent 'a'.*oops"):
        run(walk(forest_of(workflow)))


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), None, "1.0"])
def test_a_penalty_that_is_no_number_stops_the_training(value):
    workflow = Script(chain, {"a": speaker("a", penalty=lambda *args, **inputs: (value, {}))})
    with pytest.raises(BrokenReward, match="penalty of agent 'a'"):
        run(walk(forest_of(workflow)))


@pytest.mark.parametrize("reward", [broken, lambda result: float("nan"), lambda result: None, lambda result: "1.0"])
def test_a_broken_or_infinite_reward_stops_the_training(reward):
    with pytest.raises(BrokenReward, match="Script.reward"):
        run(walk(forest_of(Script(chain, reward=reward))))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TaskGroup is new in 3.11")
def test_failures_keep_their_status_inside_task_groups():
    async def system(task, ctx):
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(ctx.branch(name, lambda child, name=name: child.call(name)))

    def say(request):
        return RuntimeError("gone") if request.agent == "b" else "x"

    assert run(walk(forest_of(system, FakeLLM(say)))).status is Status.ENGINE_ERROR
    with pytest.raises(BrokenReward):
        run(walk(forest_of(Script(system, {name: speaker(name, penalty=broken) for name in "abc"}))))


# --- cancellation ---------------------------------------------------------------------------------------------------


async def awaits_what_it_cancelled(task, ctx):
    said = await ctx.call("a")
    if said == "1":
        loser = asyncio.ensure_future(ctx.branch("x", lambda child: child.call("b")))
        await asyncio.sleep(0)
        loser.cancel()
        await loser
    return said


async def test_a_cancellation_that_the_workflow_lets_escape_costs_its_trajectory_only():
    forest = forest_of(awaits_what_it_cancelled, FakeLLM(lambda request: request.key[1], lambda request: 1.0))
    good, bad = await roots(forest, 2)
    assert good.ok and bad.status is Status.WORKFLOW_ERROR and "CancelledError" in bad.error
    assert [call.agent for call in bad.calls] == ["a"] and bad.sinks == ()
    await forest.close()


async def test_a_session_that_is_cancelled_from_outside_ends_so_with_its_workflow():
    cleaned = []

    async def system(task, ctx):
        try:
            await ctx.call("a")
        finally:
            await asyncio.sleep(1)
            cleaned.append(now())
            await ctx.call("b")

    forest = forest_of(system, FakeLLM(delay=lambda request: 10.0))
    session = asyncio.ensure_future(walk(forest))
    await asyncio.sleep(2)
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    assert cleaned == [3.0] and forest.llm.count("b") == 0
    await forest.close()
    with pytest.raises(asyncio.CancelledError):
        await walk(forest, Stream("late"))
    assert len(forest.llm.log) == 1


@pytest.mark.parametrize("slow", ["", "x", "y"])
@pytest.mark.parametrize("caught", [False, True])
async def test_a_failure_is_raised_once_what_runs_beside_it_has_ended(slow, caught):
    """Otherwise which calls of y train, and which failure is the trajectory's, would depend on which one was faster."""

    async def thrice(child):
        for _ in range(3):
            await child.call("a")

    async def system(task, ctx):
        branches = [ctx.branch("x", lambda child: child.call("b")), ctx.branch("y", thrice), ctx.call("c")]
        try:
            await asyncio.gather(*branches)
        except CallFailed:
            if not caught:
                raise
        return await ctx.call("a")

    def say(request):
        return RuntimeError(f"no {request.agent}") if request.agent in "bc" else "x"

    forest = forest_of(system, FakeLLM(say, delay=lambda request: 9.0 if request.key[-1].startswith(slow) else 1.0))
    trajectory = await walk(forest)
    made = sorted(str(call.id) for call in trajectory.calls if call.status is Status.OK)
    assert made == [*(["a.0"] if caught else []), "y/a.0", "y/a.1", "y/a.2"]
    assert trajectory.ok == caught and (caught or "no b" in trajectory.error)
    last = trajectory.calls[-1]
    assert not caught or sorted(str(call.id) for call in last.parents) == ["c.0", "x/b.0", "y/a.2"]


async def outer_ctx(task, ctx):
    async def part(child, agent):
        return await ctx.call(agent)  # ctx, not child

    branches = [ctx.branch(agent, part, agent) for agent in "ab"]
    return await asyncio.gather(*branches, return_exceptions=True)


async def outer_client(task, ctx):
    client = ctx.openai("a")

    async def part(child):
        return await client.chat.completions.create(messages=[{"role": "user", "content": "x"}])

    return await asyncio.gather(ctx.branch("x", part), return_exceptions=True)


async def common_task(task, ctx):
    found = asyncio.ensure_future(ctx.call("a"))

    async def part(child):
        return await found

    return await asyncio.gather(*[ctx.branch(name, part) for name in "xy"], return_exceptions=True)


async def a_queue(task, ctx):
    queue = asyncio.Queue()

    async def hand_over():
        await queue.put(await asyncio.gather(ctx.call("a"), return_exceptions=True))

    async def take(child):
        return await queue.get()

    return (await asyncio.gather(hand_over(), ctx.branch("x", take)))[1]


@pytest.mark.parametrize(
    ("system", "patience"), [(outer_ctx, 0.0), (outer_client, 0.0), (common_task, PATIENCE), (a_queue, PATIENCE)]
)
async def test_a_failure_does_not_wait_for_what_waits_for_it(system, patience):
    trajectory = await walk(forest_of(system, FakeLLM(lambda request: RuntimeError("gone"))))
    assert trajectory.ok, trajectory.error
    assert [type(error) for error in trajectory.result] == [CallFailed] * len(trajectory.result)
    assert now() == patience


async def test_a_failure_waits_for_calls_beside_it_that_take_longer_than_the_patience():
    async def system(task, ctx):
        async def thrice(child):
            return [await child.call("b") for _ in range(3)]

        failed, _ = await asyncio.gather(ctx.call("a"), ctx.branch("x", thrice), return_exceptions=True)
        assert isinstance(failed, CallFailed)
        return now()

    def say(request):
        return RuntimeError("gone") if request.agent == "a" else "x"

    trajectory = await walk(forest_of(system, FakeLLM(say, lambda request: 60.0 * (request.agent == "b"))))
    assert trajectory.result == 180 > PATIENCE, trajectory.error


async def test_branches_that_outlive_their_workflow_are_cut_off_at_their_next_call():
    async def system(task, ctx):
        async def loops(child):
            while True:
                await child.call("a")

        await asyncio.wait([asyncio.ensure_future(ctx.branch("x", loops))], timeout=1)

    forest = forest_of(system, FakeLLM(delay=lambda request: 10.0))
    await walk(forest)
    assert now() == 1
    await asyncio.sleep(60)
    assert forest.llm.count("a") == 1
