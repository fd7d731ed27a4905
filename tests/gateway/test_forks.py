"""Replay and fork: what is asked again is answered from the record, byte by byte; what is sampled anew is grouped."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gateway.programs import ManualPace, Program, ask, forest_of, numbered, parents, post, run, texts
from tests.helpers import FakeLLM, fork, walk
from verl_ext.gateway.settings import GatewaySection
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.forest import Forest
from verl_ext.mas.types import Status
from verl_ext.sampling import make_strategy
from verl_ext.sampling.base import fork_on


def chain(task, endpoint):
    """Planner, then solver; returns the whole first answer and the last text."""
    body = {"model": "planner", "messages": [{"role": "user", "content": task.question}]}
    status, answer = post(f"{endpoint.base_url}/chat/completions", endpoint.api_key, body)
    assert status == 200, answer
    return answer, ask(endpoint, "solver", "solve: " + answer["choices"][0]["message"]["content"])


def at_once(*works):
    """The results of blocking functions that run in threads at the same time."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(work) for work in works]]


async def sampled(forest: Forest, name: str, size: int = 3):
    samples = await make_strategy(name, size, forest.workflow.trained_agents).sample(forest)
    await forest.close()
    return samples


@pytest.mark.parametrize(
    ("name", "trajectories", "generated", "replayed", "groups"),
    [("fof", 3, 6, 0, [3, 3]), ("nmc", 5, 8, 2, [3, 3]), ("is", 6, 10, 2, [3, 3])],
)
def test_every_strategy_forks_a_program(name, trajectories, generated, replayed, groups):
    forest = forest_of(Program(chain), numbered())
    samples = run(sampled(forest, name))
    assert [trajectory.error for trajectory in forest.trajectories] == [""] * trajectories
    assert (forest.cost.agent_calls, forest.cost.replayed_calls) == (generated, replayed)
    assert sorted(Counter(sample.group for sample in samples).values()) == groups
    assert {sample.group for sample in samples} == {("planner", "0"), ("solver", "0")}
    for trajectory in forest.trajectories:
        planner, solver = trajectory.calls
        assert solver.parents == (planner,) and trajectory.sinks == (solver,)


@pytest.mark.parametrize("seed", range(3))
def test_round_robin_forks_at_the_first_call_of_the_drawn_agent(seed):
    """Forks at the solver: the planner's call is shared, and alone in its group."""
    forest = forest_of(Program(chain), numbered(), seed=seed)
    samples = run(sampled(forest, "rr"))
    calls = Counter(sample.call.agent for sample in samples)
    at_solver = calls["planner"] == 1
    assert calls == ({"planner": 1, "solver": 3} if at_solver else {"planner": 3, "solver": 3})
    assert forest.cost.replayed_calls == (2 if at_solver else 0)


def test_a_replayed_answer_has_the_same_bytes():
    forest = forest_of(Program(chain), numbered())
    run(sampled(forest, "nmc"))
    base, *others = forest.trajectories
    shared = [t for t in others if t.calls[0] is base.calls[0]]
    assert len(shared) == 2
    for trajectory in shared:
        assert trajectory.result[0] == base.result[0]
        assert trajectory.result[1] != base.result[1]
    assert len({str(t.result[0]["id"]) for t in forest.trajectories}) == 3


def diamond(task, endpoint):
    """A planner, two solvers at once, and a joiner."""
    plan = ask(endpoint, "planner", task.question)
    parts = at_once(*[lambda i=i: ask(endpoint, "solver", f"part {i} of: {plan}") for i in range(2)])
    return ask(endpoint, "joiner", " and ".join(sorted(parts)))


class Paced(Program):
    """Its pace is that of the whole first run: planner, both solvers, then the joiner."""

    def pace(self):
        return Steps()


class Steps(ManualPace):
    """Quiet after the first request, the third and the fourth: never between the two solvers."""

    def __init__(self) -> None:
        super().__init__(0)

    @property
    def quiet(self) -> bool:
        return self.count in (1, 3, 4)


@pytest.mark.parametrize("name", ["fof", "nmc", "is", "rr"])
def test_concurrent_requests_are_no_parents_of_each_other(name):
    """An engine that answers at once does not make the first of two concurrent requests a parent of the second."""
    forest = forest_of(Paced(diamond, "planner solver joiner"), numbered())
    samples = run(sampled(forest, name))
    assign_credit(forest.trajectories)
    for trajectory in forest.trajectories:
        assert trajectory.ok, trajectory.error
        planner, one, other, joiner = trajectory.calls
        assert one.parents == other.parents == (planner,)
        assert set(joiner.parents) == {one, other}
        assert {f"part {call.turn} " in str(call.messages) for call in (one, other)} == {True}
    assert all(sample.call.credited for sample in samples)


def test_a_fork_at_one_of_two_concurrent_requests_shares_the_other():
    forest = forest_of(Paced(diamond, "planner solver joiner"), numbered())

    async def work():
        trajectories, point = await fork_on(forest, "solver", 3)
        await forest.close()
        return trajectories, point

    (base, *forks), point = run(work())
    planner, *workers, joiner = base.calls
    one, other = sorted(workers, key=lambda call: call.turn)
    assert point == one.id
    for trajectory in forks:
        assert trajectory.ok, trajectory.error
        assert trajectory.calls[0] is planner and other in trajectory.calls
        assert not {one, joiner} & set(trajectory.calls)
    assert forest.cost.agent_calls == 4 + 2 * 2


def test_no_answer_is_given_on_replay_before_what_was_asked_beside_it():
    """On replay the second worker asks late. The first one's answer, which is recorded, waits for it."""
    runs, entered = [], threading.Event()

    def program(task, endpoint):
        runs.append(endpoint)
        replay = len(runs) > 1

        def late():
            if replay:
                assert entered.wait(60)
            return ask(endpoint, "solver", "second part")

        one, other = at_once(lambda: ask(endpoint, "solver", "first part"), late)
        return ask(endpoint, "joiner", f"{one} and {other}")

    class Watched(Program):
        def pace(self):
            pace = Told() if runs else Together()
            return pace

    class Together(ManualPace):
        def __init__(self) -> None:
            super().__init__(2)

    class Told(ManualPace):
        """Always quiet: nothing but the record makes an answer wait."""

        def __init__(self) -> None:
            super().__init__(0)

        async def change(self) -> None:
            entered.set()  # the first answer is held back
            await super().change()

    async def work():
        forest = forest_of(Watched(program, "solver joiner"), numbered())
        base = await walk(forest)
        joiner = base.calls[-1]
        again = await fork(forest, base, joiner.id)
        await forest.close()
        return base, again

    base, again = run(work())
    assert again.ok, again.error
    assert again.calls[:2] == base.calls[:2] and again.calls[2] is not base.calls[2]
    assert again.calls[2].parents == base.calls[2].parents


def test_what_is_not_asked_again_is_not_waited_for_without_end():
    """On replay the second of two concurrent requests is left out: the program diverges, and does not hang."""
    runs = []

    def program(task, endpoint):
        runs.append(1)
        works = [lambda i=i: ask(endpoint, "solver", f"part {i}") for i in range(2)]
        return ask(endpoint, "joiner", " and ".join(at_once(*works[: 3 - len(runs)])))

    workflow = Program(program, "solver joiner")
    workflow.gateway = GatewaySection(quiet=0.001)

    async def work():
        forest = forest_of(workflow, numbered())
        base = await walk(forest)
        return await fork(forest, base, base.calls[-1].id)

    again = run(work())
    assert again.status is Status.DIVERGED and "on replay" in again.error


def test_equal_requests_at_once_are_answered_apart_and_replayed():
    def vote(task, endpoint):
        votes = at_once(*[lambda: ask(endpoint, "solver", task.question)] * 3)
        return ask(endpoint, "joiner", ", ".join(sorted(votes)))

    class Counted(Program):
        def pace(self):
            return ManualPace(3)

    forest = forest_of(Counted(vote, "solver joiner"), numbered())

    async def work():
        base = await walk(forest)
        again = await fork(forest, base, base.calls[-1].id)
        await forest.close()
        return base, again

    base, again = run(work())
    assert again.ok, again.error
    assert len(set(texts(base)[:3])) == 3 and again.calls[:3] == base.calls[:3]
    assert base.result != again.result
    assert [call.turn for call in base.calls] == [0, 1, 2, 0]
    assert parents(again, again.calls[-1].text) == sorted(texts(base)[:3])


def test_an_asynchronous_program_runs_beside_others_that_block():
    """A program that blocks its own event loop with a request is answered: the server is not on that loop."""

    async def program(task, endpoint):
        said = ask(endpoint, "planner", task.question)
        await asyncio.sleep(0)
        return ask(endpoint, "solver", said)

    forest = forest_of(Program(program), numbered())
    run(sampled(forest, "fof"))
    assert all(trajectory.ok for trajectory in forest.trajectories)


def test_tools_are_recorded_and_lead_credit():
    """The search is made once for all forks at the solver; what it found makes the planner the solver's parent."""
    searched = []

    async def search(query: str) -> list[str]:
        searched.append(query)
        return [f"passage {len(searched)} about something"]

    def program(task, endpoint):
        query = ask(endpoint, "planner", task.question)
        ask(endpoint, "critic", "an unrelated matter")
        found = endpoint.tool("search", query=query)
        return ask(endpoint, "solver", found[0])

    forest = forest_of(Program(program, "planner critic solver"), numbered(), tools={"search": search})

    async def work():
        base = await walk(forest)
        again = await fork(forest, base, base.calls[-1].id)
        await forest.close()
        return base, again

    base, again = run(work())
    assert again.ok, again.error
    assert len(searched) == 1 and again.tools[0] is base.tools[0]
    assert again.calls[:-1] == base.calls[:-1]
    planner, critic, solver = base.calls
    assert critic.parents == (planner,) and solver.parents == (critic,)


def test_what_a_tool_has_found_leads_to_the_call_before_it():
    """The solver quotes the critic, and a passage which the planner's query has found."""

    async def search(query: str) -> list[str]:
        return ["a passage of some length"]

    def program(task, endpoint):
        hint = ask(endpoint, "critic", task.question)
        found = endpoint.tool("search", query=ask(endpoint, "planner", task.question))
        return ask(endpoint, "solver", f"{found[0]}: {hint}")

    base = run(walk(forest_of(Program(program, "planner critic solver"), numbered(), tools={"search": search})))
    critic, planner, solver = base.calls
    assert (planner.agent, solver.parents) == ("planner", (critic, planner))


def test_a_failed_call_is_replayed_as_failed():
    """The program goes on without the planner; a fork at the solver meets the same failure."""
    llm = FakeLLM(
        lambda request: ValueError("broken") if request.agent.startswith("planner") else f"text {len(llm.log)}"
    )

    def program(task, endpoint):
        status, answer = post(
            f"{endpoint.base_url}/chat/completions",
            endpoint.api_key,
            {"model": "planner", "messages": [{"role": "user", "content": "x"}]},
        )
        assert (status, answer["error"]["code"]) == (500, "engine_error")
        return ask(endpoint, "solver", "alone")

    forest = forest_of(Program(program), llm)

    async def work():
        base = await walk(forest)
        again = await fork(forest, base, base.calls[-1].id)
        await forest.close()
        return base, again

    base, again = run(work())
    assert base.ok and again.ok, again.error
    assert sum(request.agent.startswith("planner") for request in llm.log) == 1


def test_rewards_of_agents_reach_their_calls():
    def program(task, endpoint):
        said = ask(endpoint, "planner", task.question)
        status, _ = post(f"{endpoint.base_url}/reward", endpoint.api_key, {"agent": "solver", "value": -0.25})
        assert status == 200
        endpoint.reward("planner", 0.5)
        return ask(endpoint, "solver", said)

    forest = forest_of(Program(program, reward=lambda result: 2.0), numbered())
    run(sampled(forest, "fof"))
    assign_credit(forest.trajectories)
    for trajectory in forest.trajectories:
        assert [call.reward for call in trajectory.calls] == [2.5, 1.75]
        assert [call.reward_shared for call in trajectory.calls] == [2.0, 2.0]
