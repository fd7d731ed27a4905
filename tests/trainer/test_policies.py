"""`mas.policies`: the configuration of each policy, what is refused, and what keeps them apart."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf, open_dict

from tests.helpers import FakeLLM, chain, forest_of, run
from tests.trainer.test_recipes import composed, examined
from verl_ext.engine.policy_names import address_of, policy_of, prefix_of
from verl_ext.evaluate.checkpoint import find_model
from verl_ext.observe.doctor_report import report
from verl_ext.plugin import package_path
from verl_ext.sampling import run_once
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.policies.checkpoints import record_of
from verl_ext.trainer.policies.coordinator import _rows_of
from verl_ext.trainer.policies.fan import WeightManagers, WorkerGroups
from verl_ext.trainer.policies.policy import PolicyTrainer
from verl_ext.trainer.policies.settings import PolicySection, policy_config
from verl_ext.trainer.policies.trainers import PolicySeparateAsync
from verl_ext.trainer.preflight.checks import check_multi_agent
from verl_ext.trainer.preflight.gpu_memory import estimate, read_model, together
from verl_ext.trainer.preflight.machine import logical_cpus
from verl_ext.trainer.row_checks import check_policy_rows
from verl_ext.trainer.state import checkpoint
from verl_ext.trainer.step import Step

TINY = package_path("recipe/mhgpo/assets/tiny_model")
SMALL = {"agents": ["rewriter", "reranker"], "actor": {"optim": {"lr": 1e-6}}}
ADAPTED = SMALL | {"per_agent_lora": True}
LARGE = {"model": {"path": "/models/large"}, "agents": ["answerer"]}


@pytest.fixture(scope="module")
def tiny():
    return composed("+recipe=mhgpo_tiny")


def configured(base, settings=None, **policies):
    """A copy of `base` with these policies and settings."""
    config = base.copy()
    with open_dict(config):
        for key, value in ({"mas.policies": policies} | (settings or {})).items():
            OmegaConf.update(config, key, value, merge=False, force_add=True)
    return config


def test_a_policy_has_the_runs_settings_but_for_its_own():
    config = configured(composed("+recipe=mappo_tiny"), small=SMALL, large=LARGE)
    small, large = policy_config(config, "small"), policy_config(config, "large", total_steps=7)
    actors = [own.actor_rollout_ref.actor for own in (small, large)]
    assert [actor.optim.lr for actor in actors] == [1e-6, config.actor_rollout_ref.actor.optim.lr]
    assert small.actor_rollout_ref.model.path == TINY and large.actor_rollout_ref.model.path == "/models/large"
    assert large.critic.model.path == large.critic.model.tokenizer_path == "/models/large", "its critic starts from it"
    assert [policy_of(own.actor_rollout_ref.rollout) for own in (small, large)] == ["small", "large"]
    assert actors[1].optim.total_training_steps == 7 and small.data == config.data


def test_a_frozen_policy_has_no_lora_no_kl_and_agents_that_do_not_train(tiny):
    lora = {"actor_rollout_ref.model.lora_rank": 32, "actor_rollout_ref.model.lora.merge": True}
    config = configured(tiny, lora, small=SMALL, large=LARGE | {"frozen": True})
    stays = policy_config(config, "large").actor_rollout_ref
    assert stays.model.lora_rank == 0 and not stays.actor.use_kl_loss
    assert policy_config(config, "small").actor_rollout_ref.model.lora_rank == 32
    assert build_workflow(read_mas_config(config)).trained_agents == ["rewriter", "reranker"]


def test_when_a_policy_trains():
    section = PolicySection(agents=["a"], every=3, from_step=2)
    assert [step for step in range(1, 10) if section.trains(step)] == [2, 5, 8]
    assert [section.updates(steps) for steps in (1, 2, 4, 5, 9)] == [0, 1, 1, 2, 3]
    assert not PolicySection(agents=["a"], frozen=True).trains(1)


UNMERGED = {"actor_rollout_ref.model.lora_rank": 32, "actor_rollout_ref.model.lora.merge": False}
CONTENTS = {"actor_rollout_ref.actor.checkpoint.save_contents": ["model", "hf_model"]}
HALF = {"actor_rollout_ref.rollout.name": "vllm", "mas.deterministic": False}
SENT = {"trainer.v1.trainer_mode": "mas_separate_async", "mas.deterministic": False}


@pytest.mark.parametrize(
    ("policies", "settings", "message"),
    [
        ({"large": None}, {}, "mas.policies names no policy for answerer"),
        ({"large": {"agents": ["anserer"]}}, {}, "there is no agent 'anserer'; did you mean 'answerer'"),
        ({"large": {"agents": ["answerer", "answerer"]}}, {}, "mas.policies.large.agents names 'answerer' twice"),
        (
            {"large": {"agents": ["reranker", "answerer"]}},
            {},
            "'reranker' is in mas.policies.small and in mas.policies.l",
        ),
        (
            {"small": SMALL | {"rollout": {"n_gpus_per_node": 2}}},
            {},
            "small sets rollout.nnodes or rollout.n_gpus_per_node.*needs trainer.v1.trainer_mode=mas_separate_async",
        ),
        ({}, SENT | {"actor_rollout_ref.rollout.checkpoint_engine.backend": "nixl"}, "=object_store or nccl .given: n"),
        ({}, SENT | {"actor_rollout_ref.hybrid_engine": True}, "Remedy: actor_rollout_ref.hybrid_engine=false"),
        (
            {"large": LARGE | {"rollout": {"n_gpus_per_node": 0}}},
            SENT,
            "machines for the rollouts of large .given: .*large.rollout.n_gpus_per_node=0",
        ),
        (
            {"large": LARGE | {"rollout": {"n_gpus_per_node": 3, "tensor_model_parallel_size": 2}}},
            SENT,
            "3 ranks .mas.policies.large.rollout.nnodes.* engines of 2",
        ),
        (
            {},
            {"mas.policy": "per_agent_lora"},
            "does not go with mas.policy=per_agent_lora.*<name>.per_agent_lora=true",
        ),
        ({"small": SMALL | {"per_agent_lora": True, "frozen": True}}, {}, "per_agent_lora: true trains .* is frozen"),
        ({"small": ADAPTED}, {"mas.policy_init": {"answerer": "x"}}, "mas.policy_init names answerer, and the policy"),
        ({"small": ADAPTED}, {"mas.policy_init": {"reranker": "x"}}, "mas.policy_init.reranker=x is no peft folder"),
        ({"small": ADAPTED}, CONTENTS, "take hf_model out of checkpoint.save_contents"),
        (
            {"small": ADAPTED},
            {"trainer.device": "npu"},
            "small.per_agent_lora=true does not go with trainer.device=npu",
        ),
        ({}, UNMERGED, "the LoRA of small, large is not merged.*model.lora.merge=true"),
        ({}, {"actor_rollout_ref.rollout.name": "sglang"}, "rollout.name=hf or vllm"),
        ({}, {"trainer.log_val_generations": 3}, "trainer.log_val_generations.*one tokenizer"),
        ({}, {"reward.num_workers": 2}, "reward workers"),
        ({"small": SMALL | {"from_step": 0}}, {}, "from_step=0 must be at least 1"),
        ({"small": SMALL | {"frozen": True, "every": 2}}, {}, "this one is frozen"),
        (
            {"small": SMALL | {"actor": {"optim": {"lr": -1}}}},
            {},
            "mas.policies.small: actor_rollout_ref.actor.optim.lr=-1",
        ),
        (
            {"small": SMALL | {"actor": {"use_kl_loss": True}}},
            {},
            "actor.use_kl_loss cannot differ.*run: actor_rollout_ref",
        ),
        ({"large": LARGE | {"model": {"pth": "x"}}}, {}, "model.pth cannot differ.*did you mean 'model.path'"),
        ({"large": None, "huggingface": LARGE}, {}, "mas.policies: huggingface cannot name a policy"),
        ({}, HALF, r"together take 1.20 of a GPU's memory \(small 0.6, large 0.6\)"),
    ],
)
def test_what_is_refused(tiny, policies, settings, message):
    with pytest.raises(ValueError, match=message):
        check_multi_agent(configured(tiny, settings, **{"small": SMALL, "large": LARGE, **policies}))


def test_check_tells_the_rollout_ranks_of_each_policy():
    two = ["+mas.policies.small={agents: [rewriter, reranker]}", "+mas.policies.large={agents: [answerer]}"]
    mode = "trainer.v1.trainer_mode=mas_separate_async"
    config = composed("+recipe=mhgpo_tiny", mode, *two)
    assert config.ray_kwargs.ray_init.num_gpus == 1 + 2 and logical_cpus(config)["rollouts' ranks (2 each)"] == 4
    runs = dict(examined("+recipe=mhgpo_tiny", mode, *two, "+mas.policies.large.rollout.n_gpus_per_node=2").facts)
    assert "3 CPU ranks for the rollouts; 1 hf engine of 1 CPU rank for small, 2 hf engines of" in runs["runs on"]
    assert runs["runs on"].endswith("Ray needs 12 logical CPUs")


def test_engines_on_gpus_of_their_own_do_not_share_a_card():
    mode, two = "trainer.v1.trainer_mode=mas_separate_async", {"a": SMALL, "b": {"agents": ["answerer"]}}
    model = read_model(TINY)
    for overrides, apart, share in (([], False, 1.2), ([mode], True, 0.6)):
        config = configured(composed("+recipe=mhgpo", *overrides), **two)
        both = together({name: estimate(policy_config(config, name), model, critic=False) for name in two})
        assert (both.apart, both.share) == (apart, pytest.approx(share))


def test_each_policy_s_weights_travel_under_its_name():
    config = configured(composed("+recipe=mhgpo_tiny", "trainer.v1.trainer_mode=mas_separate_async"), a=SMALL, b=LARGE)
    sent = [policy_config(config, name).actor_rollout_ref.rollout.checkpoint_engine for name in "ab"]
    assert [one.engine_kwargs.object_store.policy for one in sent] == ["a", "b"]
    one = policy_config(configured(config, {"trainer.v1.separate_async.parameter_sync_step": 2}, a=SMALL), "a", 7)
    assert one.actor_rollout_ref.actor.optim.total_training_steps == 14, "a learning rate changes with each part"


class Manager:
    """Stands for verl's manager of weights."""

    def __init__(self):
        self.steps = []

    def update_weights(self, step):
        self.steps.append(step)
        return {"update/sent_mb": 2.0}


def test_weights_that_have_not_changed_are_not_sent_again():
    settings = {"always": {}, "turns": {"every": 2}, "stays": {"frozen": True}}
    sections = {name: PolicySection(agents=["a"], **more) for name, more in settings.items()}
    managers = {name: Manager() for name in sections}
    fan = WeightManagers(managers, sections)
    sent = [fan.update_weights(step) for step in range(2, 6)]  # as after a resume
    assert [manager.steps for manager in managers.values()] == [[2, 3, 4, 5], [2, 3, 5], [2]]
    assert sent[2] == {"update/sent_mb": 2.0, "policies/always/update/sent_mb": 2.0}
    assert WeightManagers({"a": Manager()}, {"a": sections["always"]}).update_weights(0) == {"update/sent_mb": 2.0}


def test_a_policy_counts_the_parts_of_a_step_in_which_it_has_rows(monkeypatch):
    """verl keeps the weights for π_old in part 0; without rows there it would take those of a step before."""
    monkeypatch.setattr(PolicyTrainer, "_spread", lambda self, batch, metrics: batch)
    policy = object.__new__(PolicySeparateAsync)
    policy.run, policy.section = SimpleNamespace(several=True, global_steps=2), PolicySection(agents=["a"])
    policy.now, policy.parts, found = Step(), [], []
    for number, rows in ((1, "ab"), (1, ""), (1, "c"), (2, ""), (2, "d")):
        policy.begin(Step(number), rows, {})
        policy.now.metrics |= {"update/rows": len(rows), "update/optimiser_steps": len(rows) > 0}
        found.append(policy.local_trigger_step)
    assert found == [0, 0, 1, -1, 0]
    policy.end()
    assert policy.now.metrics.items() >= {"update/rows": 1, "update/optimiser_steps": 1, "update/rests": 0}.items()


def test_ray_gets_as_many_logical_cpus_as_the_worker_groups_take(tiny):
    four = {f"p{number}": {"agents": [f"x{number}"]} for number in range(4)}
    assert logical_cpus(configured(tiny, **four))["ranks (4 each)"] == 4


def test_engines_have_names_of_their_own():
    handle = "ipc:///tmp/rl-colocate-zmq-01-replica-0-rank-0.sock"
    assert prefix_of("vllm", "") == "vllm_" and address_of(handle, "") == handle, "verl's own"
    assert prefix_of("hf", "a") != prefix_of("hf", "b") and address_of(handle, "a") != address_of(handle, "b")
    assert policy_of(OmegaConf.create({"name": "hf"})) == ""


def test_rows_of_another_policy_are_noticed():
    good = {"policy": "small", "served_by": ["small"], "agent": "a", "trajectory": "t"}
    assert check_policy_rows([good, good | {"served_by": []}], "small", 3) == {"doctor/unknown_policy": 0.5}
    for wrong in (good | {"policy": "large"}, good | {"served_by": ["large"]}):
        with pytest.raises(RuntimeError, match="step 3: 1 rows would train the policy 'small' that are another one's"):
            check_policy_rows([good, wrong], "small", 3)
    assert check_policy_rows([{}], "", 3) == {}, "a run without policies"


def test_the_rows_of_a_policy_are_those_of_the_whole_batch():
    rows = [torch.arange(n).float() for n in (3, 1, 4, 2)]
    column = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    assert all(torch.equal(a, b) for a, b in zip(_rows_of(column, 1, 3).unbind(), rows[1:3], strict=True))


def test_each_agent_calls_the_model_of_its_policy():
    small, large = FakeLLM(lambda request: "from small"), FakeLLM(lambda request: "from large")
    forest = forest_of(chain, small, models={"a": small, "b": large, "c": small})
    trajectory = run(run_once(forest, "0"))
    assert [call.text for call in trajectory.calls] == ["from small", "from large", "from small"]


class Group:
    """Stands for verl's worker group."""

    def __init__(self):
        self.calls = []

    def save_checkpoint(self, *args, **kwargs):
        self.calls.append(args)


def test_each_policy_saves_into_its_folder(tmp_path):
    groups = {"small": Group(), "large": Group(), "stays": Group()}
    fan = WorkerGroups(groups, ["small", "large"], record="{}")
    fan.save_checkpoint(str(tmp_path / "actor"), "hdfs://x/actor", 3, max_ckpt_to_keep=2)
    assert groups["large"].calls == [(str(tmp_path / "actor" / "large"), "hdfs://x/actor/large", 3)]
    assert not groups["stays"].calls, "its weights are those of its model"


def test_a_checkpoint_without_one_of_its_policies_is_not_whole(tiny, tmp_path):
    config = configured(tiny, small=SMALL, large=LARGE)
    for step in (1, 2):
        place = checkpoint.place_of(tmp_path, step)
        for name in ("small", "large"):
            (place / "actor" / name).mkdir(parents=True)
        (place / "actor" / "policies.json").write_text(record_of(config))
        checkpoint.mark_complete(tmp_path, step)
    shutil.rmtree(tmp_path / "global_step_1" / "actor" / "small")  # verl removes one policy after the other
    assert checkpoint.complete_steps(tmp_path) == [2] and checkpoint.last_checkpoint(tmp_path) == 2


def test_a_checkpoint_says_which_models_answer_for_which_agents(tiny, tmp_path):
    config = configured(tiny, small=SMALL, large={"agents": ["answerer"], "frozen": True})
    place = tmp_path / "global_step_4"
    shutil.copytree(TINY, place / "actor" / "small" / "huggingface")
    (place / "actor" / "policies.json").write_text(record_of(config))
    found = find_model(str(place))
    assert found.agents == {"small": ["rewriter", "reranker"], "large": ["answerer"]} and found.step == 4
    assert found.policies["small"].path == str(place / "actor" / "small" / "huggingface")
    assert found.policies["large"].path == TINY, "a frozen policy is its model"


def test_the_doctor_tells_each_policy():
    good = {"update/rows": 4, "update/rests": 0, "doctor/tokens_checked": 1, "doctor/mask_coverage": 1.0}
    bad = good | {"doctor/kl_numerical": 0.5, "doctor/without_advantage": 0.25}
    metrics = [{f"policies/{n}/{k}": v for n, own in (("a", good), ("b", bad)) for k, v in own.items()}] * 2
    metrics[1] = metrics[1] | {"policies/b/update/rests": 1, "groups/size": 4.0, "groups/zero_variance": 0.2}
    page = report("run", [{"step": step, "metrics": one} for step, one in enumerate(metrics, 1)])
    assert "Policy a: trained in 2 of 2 steps" in page and "Policy b: trained in 1 of 2 steps" in page
    assert "trained in 1 of 2 steps; 25% of the rows have no advantage" in page and page.count("no advantage") == 1
    assert "b: rollout engine and trainer disagree" in page and "a: rollout engine" not in page


@pytest.mark.parametrize("prefix, named", [("policies/a/", "a: "), ("", "")], ids=["of several", "the only one"])
def test_the_doctor_tells_whose_engine_sampled_the_rows(prefix, named):
    good = {"update/rows": 4, "update/rests": 0, "doctor/tokens_checked": 1, "doctor/mask_coverage": 1.0}
    fine, lost = (
        report("run", [{"step": 1, "metrics": {f"{prefix}{key}": value for key, value in metrics.items()}}])
        for metrics in (good | {"doctor/unknown_policy": 0.0}, good | {"doctor/unknown_policy": 1.0})
    )
    assert "every row was sampled by the engine of its policy" in fine and "Nothing to look at." in fine
    assert "the engine did not say it of 100% of the rows" in lost
    assert f"  - {named}the engine did not always say which policy sampled a row" in lost
    plain = report("run", [{"step": 1, "metrics": good}])
    assert "engine of its policy" not in plain, "a run without mas.policies has none to tell apart"
