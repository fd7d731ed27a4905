"""The cyclic system: early stop, repeated agents, what it parses and what it rewards."""

import pytest

from tests.helpers import DecidingLLM, FakeLLM, run
from verl_ext.mas import Status, Task, Unparsable
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.forest import Forest
from verl_ext.recipe.solver_verifier import SolveAndVerify, parsers
from verl_ext.sampling import make_strategy, run_once
from verl_ext.sampling.base import formula_calls

TASK = Task("7 + 5 - 3", {"target": ["9"]})


def engine(solutions, verdicts):
    """Answers in the order given; the last one for ever."""
    said = {"solver": list(solutions), "verifier": list(verdicts)}

    def answer(request):
        left = said[request.agent]
        return left.pop(0) if len(left) > 1 else left[0]

    return FakeLLM(answer)


def solve(solutions, verdicts, **settings):
    llm = engine(solutions, verdicts)
    forest = Forest(TASK, SolveAndVerify(**settings), llm)
    trajectory = run(run_once(forest))
    assign_credit([trajectory])
    return trajectory, llm


def test_an_accepted_solution_ends_it_at_once():
    trajectory, llm = solve([" 12 9"], [" ok"])
    assert (llm.count("solver"), llm.count("verifier")) == (1, 1)
    assert trajectory.reward == 1 and trajectory.metrics["solutions"] == 1


def test_a_rejected_solution_and_its_verdict_are_in_the_next_prompt():
    trajectory, llm = solve([" 12 19", " 12 9"], [" wrong 2", " ok"])
    assert [request.prompt for request in llm.log] == [
        "solve: 7 + 5 - 3",
        "check: 7 + 5 - 3 : 12 19",
        "solve: 7 + 5 - 3 : 12 19 : wrong 2",
        "check: 7 + 5 - 3 : 12 9",
    ]
    assert trajectory.reward == 1 and trajectory.metrics["solutions"] == 2
    assert [str(call.id) for call in trajectory.calls] == ["solver.0", "verifier.0", "solver.1", "verifier.1"]
    assert all(call.reward == 1 for call in trajectory.calls), "the shared reward reaches every turn"


def test_with_examples_the_verifier_decides_and_a_rejected_solution_is_a_turn():
    solutions = ["7 + 5 = 11\n#### 11", "7 + 5 = 12\n#### 12"]
    llm = DecidingLLM(lambda _: solutions.pop(0), lambda _: "wrong")
    task = Task("Mia has 7 cards. Mia finds 5 cards. How many cards does Mia have now?", {"target": ["12"]})
    forest = Forest(task, SolveAndVerify(max_solutions=2, prompts="examples"), llm)
    forest.sampling = {"temperature": 1.0, "max_tokens": 28}
    trajectory = run(run_once(forest))
    first, verdict, second = trajectory.calls
    assert trajectory.reward == 1 and verdict.options == ("right", "wrong")
    turns = [(message["role"], message["content"]) for message in second.messages]
    assert turns[: len(first.messages)] == [(one["role"], one["content"]) for one in first.messages]
    assert turns[-2:] == [("assistant", "7 + 5 = 11\n#### 11"), ("user", "That is wrong. Solve it again.")]


def test_the_last_solution_is_not_verified():
    trajectory, llm = solve([" 12 19"], [" wrong 2"], max_solutions=3)
    assert (llm.count("solver"), llm.count("verifier")) == (3, 2)
    assert trajectory.reward == 0 and trajectory.metrics["solutions"] == 3


def test_alone_there_is_no_verifier():
    workflow = SolveAndVerify(max_solutions=1)
    assert list(workflow.agents) == ["solver"]
    trajectory, llm = solve([" 12 9"], ["never asked"], max_solutions=1)
    assert llm.count("verifier") == 0 and trajectory.reward == 1


@pytest.mark.parametrize("wrong", [" -9", " 19", " 99", " 12 9 0"])
def test_a_number_that_only_looks_like_the_right_one_earns_nothing(wrong):
    trajectory, _ = solve([wrong], [" ok"])
    assert trajectory.reward == 0 and trajectory.metrics["em"] == 0


def test_output_without_format_is_counted_and_fined():
    trajectory, _ = solve([" twelve"], [" maybe"], unparsable=-0.25)
    solver, verifier = trajectory.calls
    assert solver.status is verifier.status is Status.UNPARSABLE
    assert (solver.reward, verifier.reward) == (-0.25, -0.25) and trajectory.reward == 0


@pytest.mark.parametrize("strategy", ["fof", "is", "rr", "nmc"])
def test_every_turn_is_a_group_of_its_own_under_every_strategy(strategy):
    llm = engine([" 12 19"], [" wrong 2"])
    forest = Forest(TASK, SolveAndVerify(max_solutions=2), llm, seed=3)
    samples = run(make_strategy(strategy, 4, ["solver", "verifier"]).sample(forest))
    for sample in samples:
        assert sample.group[-1] in (str(sample.call.id.turn), "fork@verifier", "fork@solver")
    if strategy != "rr":
        expected = {"fof": 12, "is": 12 + 1 + 8, "nmc": 3 + 9 + 6 + 3}[strategy]
        assert formula_calls(forest.trajectories) == forest.cost.agent_calls == expected


@pytest.mark.parametrize(
    ("text", "answer"),
    [(" 12 9 17", "17"), ("The sum is -4.", "-4"), ("7", "7"), (" 12 9\n", "9")],
)
def test_a_solution_ends_with_its_number(text, answer):
    assert parsers.solution(text) == parsers.Solution(text.strip(), answer)


@pytest.mark.parametrize("text", ["", "nine", "12 9 apples", "9 " * 3 + "x"])
def test_a_solution_without_a_number_falls_back_to_none(text):
    with pytest.raises(Unparsable) as problem:
        parsers.solution(text)
    assert problem.value.fallback.answer == ""


@pytest.mark.parametrize("text", ["", "okay", "wrongly", "wrong two", "ok wrong 2", "OK"])
def test_a_verdict_is_one_of_two_forms_and_falls_back_to_accepting(text):
    with pytest.raises(Unparsable) as problem:
        parsers.verdict(text)
    assert problem.value.fallback.accepted


def test_settings_are_checked():
    with pytest.raises(ValueError, match="max_solutions=0"):
        SolveAndVerify(max_solutions=0)
    with pytest.raises(ValueError, match="unparsable=1"):
        SolveAndVerify(unparsable=1)
