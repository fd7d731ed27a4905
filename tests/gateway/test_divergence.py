"""Programs that are not deterministic: detected with the first difference, then sampled without forks."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.gateway.programs import Program, ask, forest_of, numbered, run
from verl_ext.mas.types import Status
from verl_ext.observe.error_log import ErrorLog
from verl_ext.observe.metrics import reduce_stats
from verl_ext.observe.question_stats import question_stats
from verl_ext.sampling import make_strategy


def clock(task, endpoint, tick):
    plan = ask(endpoint, "planner", f"It is {tick} o'clock. {task.question}")
    return ask(endpoint, "solver", plan)


def random_id(task, endpoint, tick):
    plan = ask(endpoint, "planner", task.question)
    return ask(endpoint, "solver", plan, user=f"request-{tick:08x}")


def order_of_a_set(task, endpoint, tick):
    plan = ask(endpoint, "planner", " ".join(["apples", "pears", "plums"][:: 1 if tick % 2 else -1]))
    return ask(endpoint, "solver", plan)


def random_tool(task, endpoint, tick):
    plan = ask(endpoint, "planner", task.question)
    return ask(endpoint, "solver", f"{plan}. The shop has {tick} left.")


def race_of_threads(task, endpoint, tick):
    """Two answers whose order in the next prompt depends on which thread was faster."""
    parts = [ask(endpoint, "planner", f"part {i}") for i in range(2)]
    return ask(endpoint, "solver", ", ".join(parts if tick % 2 else reversed(parts)))


def forest_with(program):
    """Each run of the program meets another tick; a set of two orders has every other one."""
    ticks = itertools.count()
    return forest_of(Program(lambda task, endpoint: program(task, endpoint, next(ticks))), numbered())


async def sampled(forest, name="nmc", size=3):
    samples = await make_strategy(name, size, forest.workflow.trained_agents).sample(forest)
    await forest.close()
    return samples


KINDS = [clock, random_id, order_of_a_set, random_tool, race_of_threads]


@pytest.mark.parametrize("program", KINDS)
def test_it_is_sampled_without_forks(program):
    forest = forest_with(program)
    samples = run(sampled(forest))
    assert not forest.workflow.forkable
    assert all(trajectory.ok for trajectory in forest.trajectories)
    assert 0 < forest.cost.without_forks <= len(forest.trajectories) - 1
    for replaced in forest.replaced:
        assert replaced.status is Status.DIVERGED and "endpoint.tool" in replaced.error
    sizes = Counter(sample.group for sample in samples)
    assert set(sizes.values()) == {3} and ("solver", "0") in sizes


def test_the_first_difference_is_named():
    forest = forest_with(clock)
    run(sampled(forest))
    assert "recorded …" in forest.replaced[0].error and "It is 0 o'clock" in forest.replaced[0].error


def test_it_is_said_what_equal_requests_need_and_what_happens_now():
    """Equal requests at once are told apart by nothing but their order, which may change."""
    forest = forest_with(race_of_threads)
    run(sampled(forest))
    assert "a `user` of their own" in forest.replaced[0].error
    assert "All further trajectories of this worker are sampled without forks" in forest.replaced[0].error


def test_a_difference_in_the_parameters_is_shown_as_well():
    forest = forest_with(random_id)
    run(sampled(forest))
    assert "request-00000000" in forest.replaced[0].error


@pytest.mark.parametrize("name", ["rr", "is", "fof"])
def test_every_strategy_goes_on(name):
    forest = forest_with(clock)
    samples = run(sampled(forest, name))
    assert all(trajectory.ok for trajectory in forest.trajectories)
    assert {sample.call.agent for sample in samples} <= {"planner", "solver"} and samples


def test_later_questions_are_not_tried_again():
    workflow = forest_with(clock).workflow
    for expected in (True, False):
        forest = forest_of(workflow, numbered())
        run(sampled(forest))
        assert bool(forest.replaced) is expected and forest.cost.without_forks > 0


def test_it_is_said_once_and_counted(tmp_path):
    forest = forest_with(clock)
    run(sampled(forest))
    stats = [question_stats(forest, [])]
    log = ErrorLog(tmp_path)
    news = log.news(stats, "step 1")
    assert "could not be forked" in news and "endpoint.tool" in news and not log.news(stats, "step 2")
    metrics = reduce_stats(stats)
    assert (
        metrics["sampling/without_forks"] == forest.cost.without_forks and not metrics["sampling/failed_trajectories"]
    )


def test_a_program_that_ends_before_the_fork_is_not_deterministic_either():
    runs = []

    def program(task, endpoint):
        runs.append(1)
        said = ask(endpoint, "planner", task.question)
        return said if len(runs) > 1 else ask(endpoint, "solver", said)

    forest = forest_of(Program(program), numbered())
    run(sampled(forest, size=2))
    assert not forest.workflow.forkable and all(trajectory.ok for trajectory in forest.trajectories)
    assert "not reached again" in " ".join(trajectory.error for trajectory in forest.replaced)
