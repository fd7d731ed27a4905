"""`mas.budget`: counting over resumes, and which step reaches what."""

from verl_ext.trainer.budget import Budget, operations
from verl_ext.trainer.sections import BudgetSection


def step(tokens, questions=2):
    return {"sampling/generated_tokens": tokens, "sampling/questions": questions}


def test_each_limit_is_reached_once_and_all_of_them_end_the_run():
    budget = Budget(BudgetSection(generated_tokens=100, questions=6))
    found = [(budget.spend(step(60)), budget.exhausted) for _ in range(4)]
    assert found == [
        (False, False),
        (True, False),
        (True, True),
        (False, True),
    ]  # 120 tokens, then 6 questions


def test_without_limits_nothing_ends_and_the_sums_are_logged():
    budget, metrics = Budget(BudgetSection()), step(7, 3)
    assert not budget.spend(metrics) and not budget.exhausted
    assert (metrics["budget/generated_tokens"], metrics["budget/questions"]) == (7, 3)


def test_a_resumed_run_goes_on_counting_from_the_kept_steps_and_a_new_one_begins_at_nothing():
    budget = Budget(BudgetSection(generated_tokens=100))
    budget.resume([{"metrics": {"budget/generated_tokens": 90, "budget/questions": 4}}])
    assert not budget.exhausted and budget.spend(step(10)) and budget.exhausted
    assert budget.used == {"generated_tokens": 100, "questions": 6}
    budget.resume([])
    assert budget.used == {"generated_tokens": 0, "questions": 0} and not budget.exhausted


def test_operations_are_counted_by_the_model_of_each_agent_where_they_have_a_limit():
    calls = {"agents/a/calls": 4, "agents/a/failed": 0.25, "agents/a/prompt_tokens": 90, "agents/a/output_tokens": 10}
    calls |= {"agents/b/calls": 2, "agents/b/failed": 1.0}  # none was answered: no tokens are logged
    calls |= {f"agents/c/{name}": value for name, value in (("calls", 1), ("failed", 0), ("output_tokens", 5))}
    calls |= {"agents/c/prompt_tokens": 15, "agents/served/calls": 9}
    sizes = {"a": 1000, "b": 10, "c": 50, "silent": 7}
    assert operations(calls, sizes) == 2 * 1000 * 3 * 100 + 2 * 50 * 1 * 20
    budget = Budget(BudgetSection(operations=700_000), sizes)
    metrics = [step(1) | calls, step(1) | calls]
    assert [budget.spend(one) for one in metrics] == [False, True] and budget.exhausted
    assert metrics[1]["sampling/operations"] == 602_000 and metrics[1]["budget/operations"] == 1_204_000
    budget.resume([{"metrics": {"budget/operations": 5}}])
    assert budget.used == {"generated_tokens": 0, "questions": 0, "operations": 5}
