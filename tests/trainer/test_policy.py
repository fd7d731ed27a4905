"""`mas.policy=per_agent_lora`: what the one override sets, what it refuses, whose adapter a call and a row have."""

from __future__ import annotations

import json
import re

import pytest
from omegaconf import OmegaConf

from tests.helpers import FakeLLM, Script, chain, forest_of, speaker, walk
from tests.trainer.test_recipes import RECIPES, ROOT, composed, examined
from tests.trainer.test_rows import sampled_rows
from tests.trainer.test_waves import Server, output, waves
from verl_ext.compare.study import read_study
from verl_ext.mas import Status
from verl_ext.mas.types import Generation
from verl_ext.trainer import lora_setup
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.doctor import check_adapters
from verl_ext.trainer.preflight.checks import check_multi_agent
from verl_ext.trainer.run_callback import RunCallback
from verl_ext.trainer.state.checkpoint import mark_complete
from verl_ext.trainer.state.run_settings import check_same_run

PER_AGENT = "mas.policy=per_agent_lora"
MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))
VLLM = [f"{ROLLOUT}.name=vllm", "trainer.device=cuda"]
SEARCHERS = ["rewriter", "reranker", "answerer"]
ONE_OF_POLICIES = f"+mas.policies.x={{agents: [{', '.join(SEARCHERS)}], per_agent_lora: true}}"


# --- what the override sets -------------------------------------------------------------------------------------------


def needed(recipe: str) -> list[str]:
    """What the table of docs/per_agent_lora.md says that a recipe needs besides; of most recipes it says nothing."""
    text = (ROOT / "docs" / "per_agent_lora.md").read_text().split("| recipe | needs besides |")[1]
    rows = re.findall(r"^\| (`.+`) \| `(.+)` \|$", text, re.MULTILINE)
    return [setting for names, setting in rows if f"`{recipe}`" in names]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_takes_it_or_says_why_not(recipe):
    more = needed(recipe)
    for setting in more:
        with pytest.raises(ValueError, match=re.escape(f"Remedy: {setting}")):
            check_multi_agent(composed(f"+recipe={recipe}", PER_AGENT))
    report = examined(f"+recipe={recipe}", PER_AGENT, *more)
    parts = report.config.actor_rollout_ref
    assert report.problems == [] and parts.model.lora.adapters and parts.actor.strategy == parts.ref.strategy == "fsdp2"


@pytest.mark.parametrize("recipe", ["mhgpo", "mhgpo_tiny", "mhgpo_24gb"])
def test_without_it_nothing_changes(recipe):
    config = composed(f"+recipe={recipe}")
    model, lora = config.actor_rollout_ref.model, recipe == "mhgpo_24gb"
    assert (config.mas.policy, model.lora.adapters) == ("shared", None)
    assert (model.lora_rank, model.lora_alpha, model.lora.merge) == ((32, 32, True) if lora else (0, 16, False))
    assert config.actor_rollout_ref.actor.strategy == ("fsdp" if recipe == "mhgpo" else "fsdp2")


def test_the_defaults_of_the_adapters_and_who_may_change_them():
    for given, expected in (
        ([], (16, 32, False)),
        ([f"{MODEL}.lora_rank=4", f"{MODEL}.lora_alpha=4"], (4, 4, False)),
        (["+base=lora"], (32, 32, False)),
    ):
        config = composed("+recipe=mhgpo_tiny", PER_AGENT, *given)
        check_multi_agent(config)
        model = config.actor_rollout_ref.model
        assert (model.lora_rank, model.lora_alpha, model.lora.merge) == expected
        assert list(model.lora.adapters) == SEARCHERS


@pytest.mark.parametrize(
    ("overrides", "adapters"),
    [
        (["+recipe=mhgpo_tiny"], SEARCHERS),
        (["+recipe=mhgpo_tiny", "+mas.agents.reranker.trained=false"], ["rewriter", "answerer"]),
        (["+recipe=toolpo_tiny"], ["agent"]),
        (["+recipe=puppeteer_tiny"], ["orchestrator"]),
    ],
)
def test_agents_that_train_have_one_and_verl_gets_plain_values(overrides, adapters):
    config = composed(*overrides, PER_AGENT)
    check_multi_agent(config)
    model = OmegaConf.to_container(config.actor_rollout_ref.model, resolve=True)
    assert model["lora"]["adapters"] == adapters
    OmegaConf.resolve(config)
    assert OmegaConf.to_container(config.actor_rollout_ref.model) == model


def test_the_study_has_the_search_studys_questions_seeds_and_budgets():
    study, search = read_study("policies"), read_study("search")
    assert (study.seeds, study.budget, len(study.runs)) == (search.seeds, search.budget, 9)
    common = [text for text in search.overrides if "optim.lr" not in text]
    assert set(common) <= set(study.overrides), "with learning rates of their own"
    found = {}
    for method, seed in study.runs:
        if seed != study.seeds[0]:
            continue
        config = composed(*study.command(method, seed))
        check_multi_agent(config)
        model = config.actor_rollout_ref.model
        found[method.name] = (model.lora_rank, model.lora_alpha, model.lora.merge, bool(model.lora.adapters))
    assert found["shared"][0] == 0 and found["shared_lora"] == (16, 32, True, False)
    assert found["per_agent_lora"] == (16, 32, False, True)


# --- what it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mas.policy=lora"], "mas.policy=.lora. is unknown; allowed: shared, per_agent_lora"),
        ([PER_AGENT, f"{ROLLOUT}.name=sglang"], "does not go with .*name=sglang. Remedy: .*rollout.name=hf"),
        ([PER_AGENT, f"{ROLLOUT}.checkpoint_engine.backend=nccl"], "Remedy: .*checkpoint_engine.backend=naive"),
        (
            [PER_AGENT, "trainer.v1.trainer_mode=mas_separate_async", f"{ROLLOUT}.checkpoint_engine.backend=nixl"],
            "Remedy: .*checkpoint_engine.backend=object_store",
        ),
        ([PER_AGENT, "trainer.device=npu"], "does not go with trainer.device=npu. Remedy: trainer.device=cpu"),
        (
            [PER_AGENT, *VLLM, f"{ROLLOUT}.dtype=float32"],
            "do not take .*dtype=float32.*Remedy: .*rollout.dtype=bfloat16",
        ),
        ([*VLLM, f"{ROLLOUT}.dtype=float32", f"{MODEL}.lora_rank=8"], "Remedy: .*rollout.dtype=bfloat16"),
        ([PER_AGENT, f"{ACTOR}.strategy=fsdp"], f"Remedy: {ACTOR}.strategy=fsdp2"),
        ([PER_AGENT, f"{ACTOR}.fsdp_config.strategy=fsdp"], f"Remedy: {ACTOR}.fsdp_config.strategy=fsdp2"),
        ([PER_AGENT, f"{ACTOR}.ulysses_sequence_parallel_size=2"], "Remedy: .*ulysses_sequence_parallel_size=1"),
        ([PER_AGENT, f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp16"], "Remedy: .*param_dtype=bf16"),
        ([PER_AGENT, f"{ACTOR}.checkpoint.save_contents=[model,hf_model]"], "Remedy: take hf_model out of"),
        ([PER_AGENT, f"{MODEL}.lora.merge=true"], "Remedy: lora.merge=false"),
        ([PER_AGENT, f"{MODEL}.lora_rank=0"], "lora_rank of at least 1, got 0"),
        ([PER_AGENT, f"{MODEL}.enable_activation_offload=true"], "Remedy: enable_activation_offload=false"),
        ([PER_AGENT, f"{MODEL}.lora.adapters=[answerer]"], "must be the agents that train, .*Remedy: leave it to"),
        ([f"{MODEL}.lora.adapters=[answerer]"], "needs mas.policy=per_agent_lora, which sets it .given: shared"),
    ],
)
def test_combinations_that_do_not_go(overrides, message):
    with pytest.raises(ValueError, match=message):
        check_multi_agent(composed("+recipe=mhgpo_tiny", *overrides))


def test_decisions_do_not_go_with_the_fused_head():
    with pytest.raises(ValueError, match="Remedy: actor_rollout_ref.model.use_fused_kernels=false"):
        check_multi_agent(composed("+recipe=puppeteer_tiny", f"{MODEL}.use_fused_kernels=true"))


def test_a_run_of_the_other_policy_is_not_continued(tmp_path):
    place = f"trainer.default_local_dir={tmp_path}"
    system = ["+recipe=mhgpo_tiny", place, "mas.tools.search={_target_: tests.helpers.FakeLLM}"]
    check_same_run(composed(*system))
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    mark_complete(tmp_path, 2)
    with pytest.raises(ValueError, match="mas.policy: shared there, per_agent_lora here"):
        check_same_run(composed(*system, PER_AGENT))


# --- CUDA: the environment of the workers -----------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [PER_AGENT, ONE_OF_POLICIES])
def test_on_cuda_the_job_asks_for_the_engine_with_adapters(setting):
    """Ray's runtime_env takes it to every worker, also of a cluster; Hydra gives the job what the callback has set."""
    config = composed("+recipe=mhgpo", setting)
    with pytest.raises(ValueError, match="one adapter for all agents. Remedy: (.*)$") as error:
        lora_setup.check_engine(config)  # as in the jobs of a multirun, which Hydra composes itself
    lora_setup.check_engine(composed("+recipe=mhgpo", setting, str(error.value).rpartition(" ")[2]))
    RunCallback().on_run_start(config)
    assert config.ray_kwargs.ray_init.runtime_env.env_vars == {"VERL_ENGINE_VENDOR": "verl_ext"}
    lora_setup.check_engine(config)


@pytest.mark.parametrize("overrides", [["+recipe=mhgpo"], ["+recipe=mhgpo_tiny", PER_AGENT]])
def test_a_run_that_does_not_need_it_is_left_alone(overrides):
    config = composed(*overrides)
    before = OmegaConf.to_container(config.ray_kwargs)
    lora_setup.choose_engine(config)
    lora_setup.check_engine(config)
    assert OmegaConf.to_container(config.ray_kwargs) == before


# --- whose adapter a call and a row have ------------------------------------------------------------------------------


AGENTS = {"a": speaker("a"), "helper": speaker("helper", trained=False), "b": speaker("b")}


def system() -> Script:
    return Script(chain, AGENTS)


def said(request) -> str:
    return "words"


def test_calls_name_their_adapter_and_rows_its_number():
    mas = MasConfig(workflow={}, policy="per_agent_lora")
    adapters = lora_setup.adapters_of(mas, system())
    assert adapters == {"a": "a", "helper": "", "b": "b"}
    train, validate, forest = sampled_rows(chain, AGENTS, said, adapters=adapters)
    assert {request.agent: request.sampling["adapter"] for request in forest.llm.log} == adapters
    found = {row.agent: row.fields["agent_id"] for row in lora_setup.add_agent_ids(train, adapters)}
    assert found == {"a": 0, "b": 1}
    found = {row.agent: row.fields["agent_id"] for row in lora_setup.add_agent_ids(validate, adapters)}
    assert found == {"a": 0, "helper": -1, "b": 1}, "all rows of a batch have the same fields"


def test_a_row_says_which_adapter_the_engine_has_used():
    adapters = lora_setup.adapters_of(MasConfig(workflow={}, policy="per_agent_lora"), system())

    def confused(request):
        name = request.sampling["adapter"]
        return Generation([65], [-1.0], adapter="a" if name == "b" else name)

    train, *_ = sampled_rows(chain, AGENTS, confused, adapters=adapters)
    tags = [row.tag for row in lora_setup.add_agent_ids(train, adapters)]
    assert {tag["agent"]: tag["sampled_by"] for tag in tags} == {"a": ["a"], "b": ["a"]}
    with pytest.raises(RuntimeError, match="'b' .trajectory u_0., sampled by .'a'., would train .'b'."):
        check_adapters(tags, ["a", "b"], 7)


def test_of_shared_weights_neither_calls_nor_rows_say_anything():
    assert lora_setup.adapters_of(MasConfig(workflow={}), system()) is None
    train, _, forest = sampled_rows(chain, AGENTS, said)
    assert all("adapter" not in request.sampling for request in forest.llm.log)
    assert lora_setup.add_agent_ids(train, None) is train and "agent_id" not in train[0].fields


def test_a_role_with_an_endpoint_is_asked_without():
    other = FakeLLM()
    agents = AGENTS | {"helper": AGENTS["helper"].changed(llm=other)}
    adapters = lora_setup.adapters_of(MasConfig(workflow={}, policy="per_agent_lora"), Script(chain, agents))
    *_, forest = sampled_rows(chain, agents, said, adapters=adapters)
    assert "adapter" not in other.log[0].sampling and len(forest.llm.log) == 2


def test_an_agent_of_a_sub_workflow_must_be_named_above():
    inner = Script(chain, {"b": speaker("b"), "c": speaker("c")})

    async def outer(task, ctx):
        await ctx.call("a", said="q")
        return await ctx.run(inner, task)

    adapters = lora_setup.Adapters({"a": "a", "b": "b"})
    _, _, forest = sampled_rows(outer, {"a": speaker("a"), "b": speaker("b")}, said, adapters=adapters)
    (trajectory,) = forest.trajectories
    assert trajectory.status is Status.WORKFLOW_ERROR
    assert "agent 'c' has no adapter. Remedy: name it among the workflow's own agents (a, b)" in trajectory.error
    assert [request.sampling["adapter"] for request in forest.llm.log] == ["a", "b"], "by name, wherever it is"


async def test_waves_carry_the_adapter_to_the_server():
    server = Server(lambda request: output(request["sampling_params"]["adapter"] or "base"))
    forest = forest_of(system(), waves([server]), adapters={"a": "a", "helper": "", "b": "b"})
    assert [call.text for call in (await walk(forest)).calls] == ["a", "base", "b"]


def test_other_adapters_than_a_named_checkpoint_s_are_refused_before_the_start(tmp_path):
    place = tmp_path / "global_step_1" / "actor" / "adapters" / "rewriter"
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "base"}))
    record = place.parents[1] / "adapters.json"
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/global_step_1"]
    per_agent, shared = (composed("+recipe=mhgpo_tiny", *more, *resume) for more in ([PER_AGENT], []))
    lora_setup.check_resumed(shared)
    with pytest.raises(ValueError, match="is no checkpoint of adapters per agent"):
        lora_setup.check_resumed(per_agent)
    record.write_text(json.dumps({"names": SEARCHERS, "rank": 16, "alpha": 32}))
    lora_setup.check_resumed(per_agent)
    lora_setup.check_resumed(composed("+recipe=mhgpo_tiny"))
    with pytest.raises(ValueError, match="the configuration has none. Remedy: mas.policy=per_agent_lora, or a run of"):
        lora_setup.check_resumed(shared)
    record.write_text(json.dumps({"names": SEARCHERS[1:], "rank": 16, "alpha": 32}))
    with pytest.raises(
        ValueError, match="holds adapters .*'reranker', 'answerer'.* Remedy: the former's agents and LoRA"
    ):
        lora_setup.check_resumed(per_agent)
