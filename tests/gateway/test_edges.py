"""Which calls a request depends on where it quotes some of them only."""

from __future__ import annotations

import threading

import pytest

from tests.gateway.programs import ManualPace, Program, ask, forest_of, run
from tests.gateway.test_forks import at_once
from tests.helpers import FakeLLM, fork, walk
from verl_ext.gateway import GatewaySection
from verl_ext.mas.credit import assign_credit


class Counted(Program):
    """Is quiet only when this many things have been asked."""

    counts: tuple[int, ...] = ()

    def pace(self):
        counts = self.counts

        class Steps(ManualPace):
            @property
            def quiet(self) -> bool:
                return self.count in counts

        return Steps(0)


def forest_with(program, agents, outputs, counts, reward=None):
    """A forest whose agents answer `outputs[agent]`, a text or a list of what they answer one after the other."""

    def answer(request):
        said = outputs[request.agent.split("~")[0].split("#")[0]]
        return said if isinstance(said, str) else said.pop(0)

    workflow = Counted(program, agents, reward)
    workflow.counts = counts
    return forest_of(workflow, FakeLLM(answer))


def test_a_short_output_beside_a_long_one_is_a_parent():
    """The fork of the skeptic answers the same again: the editor, whose prompt is equal, is asked anew and credited."""
    results = iter([0.0, 1.0])

    def program(task, endpoint):
        said = at_once(lambda: ask(endpoint, "reader", "read"), lambda: ask(endpoint, "skeptic", "doubt"))
        return ask(endpoint, "editor", " or".join(said))

    outputs = {"reader": " Hedda Bellini", "skeptic": " Arvik", "editor": " done"}
    forest = forest_with(program, "reader skeptic editor", outputs, (2, 3), lambda result: next(results))

    async def work():
        base = await walk(forest)
        skeptic = next(call for call in base.calls if call.agent == "skeptic")
        again = await fork(forest, base, skeptic.id)
        await forest.close()
        return base, again

    base, again = run(work())
    assert again.ok, again.error
    assign_credit([base, again])
    for trajectory, reward in ((base, 0.0), (again, 1.0)):
        calls = {call.agent: call for call in trajectory.calls}
        assert set(calls["editor"].parents) == {calls["reader"], calls["skeptic"]}
        assert trajectory.sinks == (calls["editor"],)
        assert (calls["skeptic"].reward, calls["editor"].reward, calls["reader"].reward) == (reward, reward, 0.5)
    assert base.calls[-1] is not again.calls[-1]


def test_who_is_called_because_of_an_output_that_is_not_quoted_depends_on_it():
    def program(task, endpoint):
        facts = ask(endpoint, "researcher", "research")
        chosen = ask(endpoint, "router", facts)
        assert "writer" in chosen
        return ask(endpoint, "writer", f"write about {facts}")

    outputs = {"researcher": "the facts found", "router": "next one: the writer", "writer": "a text of length"}
    base = run(walk(forest_with(program, "researcher router writer", outputs, (1, 2, 3))))
    researcher, router, writer = base.calls
    assert (router.parents, set(writer.parents)) == ((researcher,), {researcher, router})


def test_conversations_that_go_on_side_by_side_stay_apart():
    """Each quotes its own: nothing is in doubt, whichever of the two asks first."""
    both = threading.Barrier(2)

    def conversation(endpoint, agent):
        said = ask(endpoint, agent, "begin")
        for _ in range(2):
            both.wait(60)
            said = ask(endpoint, agent, f"go on from: {said}")
        return said

    def program(task, endpoint):
        at_once(lambda: conversation(endpoint, "one"), lambda: conversation(endpoint, "two"))

    outputs = {agent: [f"words {turn} of {agent}" for turn in range(3)] for agent in ("one", "two")}
    base = run(walk(forest_with(program, "one two", outputs, (2, 4, 6))))
    assert base.ok, base.error
    for agent in ("one", "two"):
        calls = [call for call in base.calls if call.agent == agent]
        assert [call.parents for call in calls] == [(), (calls[0],), (calls[1],)]


def two_chains(meet=lambda: None):
    """Two chains side by side, which `meet` in their middle, and a judge who is shown all that they said."""

    def program(task, endpoint):
        def chain(first, second):
            said = ask(endpoint, first, task.question)
            meet()
            return [said, ask(endpoint, second, f"check: {said}")]

        said = at_once(lambda: chain("eager", "critic"), lambda: chain("careful", "doubter"))
        return ask(endpoint, "judge", " : ".join(sum(said, [])))

    return program


def edges(trajectory):
    """The agents that each agent's call depends on."""
    return {call.agent: {parent.agent for parent in call.parents} for call in trajectory.calls}


CHAINS = {"eager": set(), "careful": set(), "critic": {"eager"}, "doubter": {"careful"}}


def test_short_outputs_keep_conversations_apart_and_are_direct_parents():
    outputs = {"eager": "17 13", "careful": "9", "critic": "ok", "doubter": "no", "judge": "14"}
    both = threading.Barrier(2)
    base = run(walk(forest_with(two_chains(lambda: both.wait(60)), " ".join(outputs), outputs, (2, 4, 5))))
    assert base.ok, base.error
    assert edges(base) == {**CHAINS, "judge": set(CHAINS)}


@pytest.mark.parametrize("forked", ["eager", "careful", "critic"])
def test_a_fork_has_the_edges_of_the_run_that_it_forks_from(forked):
    """What is replayed does not run ahead of what is sampled anew."""
    seen = []

    def answer(request):
        agent = request.agent.split("~")[0].split("#")[0]
        seen.append(agent)
        return f"a long output of the {agent}, number {len(seen)}"

    def delay(request):
        return 0.5 if request.agent.split("~")[0].split("#")[0] == forked and len(seen) >= 5 else 0.0

    workflow = Program(two_chains(), "eager careful critic doubter judge")
    workflow.gateway = GatewaySection(quiet=0.3)
    forest = forest_of(workflow, FakeLLM(answer, delay=delay))

    async def work():
        base = await walk(forest)
        again = await fork(forest, base, next(call.id for call in base.calls if call.agent == forked))
        await forest.close()
        return base, again

    base, again = run(work())
    assert base.ok and again.ok, (base.error, again.error)
    assert edges(base) == edges(again) == {**CHAINS, "judge": {"eager", "critic", "careful", "doubter"}}
