"""The studies that come with the package: every run of every one composes, and trains what its label says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

import verl_ext.plugin  # noqa: F401  (search path and resolvers, as `import verl` does it)
from verl_ext.compare.study import read_study
from verl_ext.trainer.budget import parameters_of_agents
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_multi_agent

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.stem for path in (ROOT / "configs" / "compare").glob("*.yaml"))
# What a method's name says that its configuration must hold.
ESTIMATORS = {"single": "grpo", "grpo": "grpo", "mappo": "gae"}
STRATEGIES = {"nmc": "nmc", "mhgpo_is": "is", "mhgpo_rr": "rr", "mhgpo_rr_shuffle": "rr", "mhgpo_fof": "fof"}


@cache
def settings(name: str, method: str, quick: bool = False, seed: int = 2):
    """The configuration of one run. A key that verl or the recipe does not have is Hydra's error."""
    study = read_study(name, quick)
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=study.command(study.method(method), seed))


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_whole_and_has_a_small_form(name):
    study, quick = read_study(name), read_study(name, quick=True)
    methods = {method.name for method in study.methods}
    run = [method for method in study.methods if method.start_of is None]
    seeds = 2 if name == "real" else 3  # a run of the real model takes hours
    assert len(study.seeds) == seeds and len(study.runs) == seeds * len(run) and "untrained" in methods
    assert 0 < len(quick.runs) < len(study.runs) and quick.name == f"{name}_quick"
    assert all(quick.budget[kind] < study.budget[kind] for kind in study.budget)
    assert all(study.method(method.name) for method in quick.methods)


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method.name) for name in STUDIES for method in read_study(name).methods if method.start_of is None],
)
def test_every_run_composes_and_reports_the_studys_headline(name, method):
    study = read_study(name)
    config = settings(name, method)
    mas = read_mas_config(config)
    assert check_multi_agent(config) == study.headline
    assert (mas.seed, config.data.seed) == (2, 2), "what differs between seeds"
    assert vars(mas.budget) == {"operations": None} | study.budget
    estimator, strategy = ESTIMATORS.get(method), STRATEGIES.get(method)
    assert config.algorithm.adv_estimator == estimator or estimator is None
    assert mas.sampling.strategy == strategy or strategy is None


@pytest.mark.parametrize("name", STUDIES)
def test_the_small_form_composes(name):
    quick = read_study(name, quick=True)
    (method, seed) = quick.runs[0]
    config = settings(name, method.name, True, seed)
    assert check_multi_agent(config) == quick.headline
    assert vars(read_mas_config(config).budget) == {"operations": None} | quick.budget


def test_the_ablations_of_the_tool_study_are_what_they_are_called():
    grpo, no_folding, no_tool_advantage = (
        read_mas_config(settings("tools", method)) for method in ("grpo", "no_folding", "no_tool_advantage")
    )
    assert grpo.advantage == {} and grpo.loss.agent_weights == "none"
    assert no_folding.workflow["max_folds"] == 0 and no_tool_advantage.advantage["tool_advantage"] is False


def test_the_policies_of_the_size_study_are_what_they_are_called():
    small, large = settings("policy_sizes", "shared_small"), settings("policy_sizes", "shared")
    own = {
        method: {
            name: (section.agents, (section.model.get("path") or large.actor_rollout_ref.model.path))
            for name, section in read_mas_config(settings("policy_sizes", method)).policies.items()
        }
        for method in ("shared", "two_large", "small_large")
    }
    both, last = ["rewriter", "reranker"], ["answerer"]
    paths = {"small": small.actor_rollout_ref.model.path, "large": large.actor_rollout_ref.model.path}
    assert parameters_of_agents(large, read_mas_config(large)) == dict.fromkeys((*both, *last), 769_536)
    assert paths["small"] == f"{Path.cwd()}/models/tiny_small" and paths["large"].endswith("tiny_model")
    assert own == {
        "shared": {},
        "two_large": {"first": (both, paths["large"]), "second": (last, paths["large"])},
        "small_large": {"small": (both, paths["small"]), "large": (last, paths["large"])},
    }
