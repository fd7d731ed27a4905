"""docs/new_algorithm.md and docs/new_strategy.md: their files train as they stand there."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.end_to_end.running import run as train
from tests.end_to_end.running import steps
from tests.helpers import FakeLLM, Script, chain, forest_of, run
from tests.trainer.test_recipes import composed
from verl_ext.algorithms import ALGORITHMS, TokenRows, credit_rules
from verl_ext.mas.credit import assign_credit
from verl_ext.sampling import STRATEGIES, make_strategy
from verl_ext.trainer.preflight.checks import check_multi_agent

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"ranked": "new_algorithm.md", "random_fork": "new_strategy.md"}
PLUGINS = ["mas.plugins=[ranked,random_fork]", "algorithm.adv_estimator=ranked", "mas.sampling.strategy=random_fork"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files of the two pages; what they register goes again."""
    for name, page in PAGES.items():
        (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
        assert len(code.splitlines()) <= 60
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    ALGORITHMS.pop("ranked", None), STRATEGIES.pop("random_fork", None)
    for name in PAGES:
        sys.modules.pop(name, None)


def test_the_strategy_samples_one_call_of_each_base(folder):
    importlib.import_module("random_fork")
    strategy = make_strategy("random_fork", 3, ["a", "b", "c"], bases=2)
    forests = [forest_of(chain, seed=seed) for seed in range(9)]
    for forest in forests:
        samples = run(strategy.sample(forest))
        assert len(samples) == 6 and {len({s.call.id for s in samples if s.group[0] == n}) for n in "01"} == {1}
    assert {sample.call.agent for forest in forests for sample in run(strategy.sample(forest_of(chain, seed=4)))}
    assert strategy.expected_calls(3) == 2 * (3 + 2 * 2)


def test_the_algorithm_by_hand(folder):
    importlib.import_module("ranked")
    reward, group = torch.tensor([1.0, 0.0, 5.0, 5.0, 7.0]), torch.tensor([7, 7, 2, 2, 2])
    tokens = torch.zeros(5, 2)
    tokens[:, 1] = reward
    rows = TokenRows(
        *(reward, group, group, group, group, group > 9, reward, group, group > 9, group),
        rewards=tokens,
        mask=torch.ones(5, 2),
        actions=tokens > 9,
    )
    algorithm = ALGORITHMS["ranked"](power=2.0)
    assert algorithm.select(rows).tolist() == [True] * 5
    assert algorithm.advantages(rows, None)[:, 0].tolist() == [1.0, -1.0, -0.25, -0.25, 1.0]
    assert algorithm.state == {"best": 7.0} and set(algorithm.measured) == set(algorithm.metrics)
    forest = forest_of(Script(chain), FakeLLM(lambda request: "four"))
    run(make_strategy("fof", 2, ["a", "b", "c"]).sample(forest))
    calls = [call for trajectory in forest.trajectories for call in trajectory.calls]
    assign_credit(forest.trajectories)
    plain = [call.reward for call in calls]
    assign_credit(forest.trajectories, rules=credit_rules({"brevity": 0.5}))
    costs = [0.5 * call.generated_tokens / 100 for call in calls]
    assert [call.reward for call in calls] == pytest.approx([r - c for r, c in zip(plain, costs, strict=True)])
    assert min(costs) > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+mas.advantage.power=0", "mas.advantage.power=0 must be above 0"),
        ("+mas.advantage.powr=1", "unknown key mas.advantage.powr; did you mean 'power'"),
        ("+mas.sampling.random_fork.bases=0", "mas.sampling.random_fork.bases=0 must be at least 1"),
        ("+mas.credit.brevit=1", "unknown key mas.credit.brevit; did you mean 'brevity'"),
        ("mas.sampling.strategy=is", "ranked needs several agents in a group"),
        ("mas.plugins=[ranked,random_frok]", "mas.plugins: the module 'random_frok' cannot be imported"),
    ],
)
def test_wrong_settings_of_plugins_are_told_before_the_start(folder, override, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_multi_agent(composed("+recipe=mhgpo_tiny", *PLUGINS, override))


@pytest.mark.slow
@pytest.mark.end_to_end
def test_both_train_as_they_stand_on_their_pages(folder):
    train(folder, *PLUGINS, "trainer.total_training_steps=2", "+mas.advantage.power=0.5", "+mas.credit.brevity=0.1")
    first, second = steps(folder)
    for metrics in (first, second):
        assert metrics["sampling/agent_calls"] == metrics["sampling/agent_calls_formula"]
        assert 0 < metrics["update/rows"] + metrics["selection/dropped_rows"] <= 8 * 4
        assert metrics["actor/grad_norm"] > 0 and -1 < metrics["ranked/best"] <= 1
    assert first["ranked/best"] <= second["ranked/best"]
