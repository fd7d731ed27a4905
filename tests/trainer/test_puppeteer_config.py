"""Puppeteer's recipes: the paper's numbers, what is learned by default, and what would not be what it says."""

from __future__ import annotations

import asyncio

import pytest

from tests.trainer.test_recipes import composed, examined
from verl_ext.recipe.puppeteer.puppets import State, Step
from verl_ext.trainer import lora_setup
from verl_ext.trainer.build import build, build_workflow
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.preflight.checks import check_multi_agent

WEB = ("web_search", "access_website", "search_arxiv")


def test_phi_is_the_depth():
    assert composed("+recipe=puppeteer_tiny", "mas.workflow.depth=6").mas.credit.returns.steps == 6


@pytest.mark.parametrize("recipe", ["puppeteer", "puppeteer_tiny"])
def test_only_decisions_train_unless_agents_are_to(recipe):
    agents = build_workflow(read_mas_config(composed(f"+recipe={recipe}"))).trained_agents
    assert agents == ["orchestrator"]
    joint = ["mas.workflow.train_agents=true", "mas.loss.agent_weights=batch"]
    joint += ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"]
    config = composed(f"+recipe={recipe}", *joint)
    assert check_multi_agent(config) == "accuracy"
    assert len(build_workflow(read_mas_config(config)).trained_agents) == 1 + len(config.mas.workflow.pool)


@pytest.mark.parametrize("recipe", ["puppeteer", "puppeteer_tiny"])
def test_puppets_are_answered_by_the_frozen_base(recipe):
    """The orchestrator's gradients move its adapter alone: puppets that ran on it would change with it."""
    config = composed(f"+recipe={recipe}")
    assert check_multi_agent(config) == "accuracy"
    mas = read_mas_config(config)
    system = build_workflow(mas)
    adapters = lora_setup.adapters_of(mas, system)
    assert adapters == {"orchestrator": "orchestrator", **dict.fromkeys(config.mas.workflow.pool, "")}
    assert list(config.actor_rollout_ref.model.lora.adapters) == ["orchestrator"]


@pytest.mark.parametrize("recipe", ["puppeteer", "puppeteer_tiny"])
@pytest.mark.parametrize(
    "override", ["+mas.agents.orchestrator.head.encoder=hashing", "mas.workflow.orchestration=random"]
)
def test_where_the_policy_trains_for_no_agent_there_are_no_adapters(recipe, override):
    config = composed(
        f"+recipe={recipe}", override, "++trainer.val_only=true" if "random" in override else "data.seed=1"
    )
    assert check_multi_agent(config) == "accuracy"
    mas = read_mas_config(config)
    assert lora_setup.adapters_of(mas, build_workflow(mas)) is None
    model = config.actor_rollout_ref.model
    assert (model.lora.adapters, model.lora_rank) == (None, 0)


def test_decisions_ask_for_our_engine_on_gpus_and_for_none_on_the_cpu():
    config = composed("+recipe=puppeteer")
    with pytest.raises(ValueError, match="per_agent_lora needs VERL_ENGINE_VENDOR=verl_ext"):
        lora_setup.check_engine(config)
    with pytest.raises(ValueError, match="an agent that decides .* needs VERL_ENGINE_VENDOR=verl_ext"):
        lora_setup.check_engine(composed("+recipe=puppeteer", "mas.policy=shared"))
    lora_setup.choose_engine(config)
    lora_setup.check_engine(config)
    for other in ("+recipe=puppeteer_tiny", "+recipe=mhgpo"):
        config = composed(other)
        lora_setup.check_engine(config)
        before = str(config)
        lora_setup.choose_engine(config)
        assert str(config) == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mas.credit.returns.price=-1"], "mas.credit.returns.price=-1 must be at least 0"),
        (["mas.credit.returns.steps=0"], "mas.credit.returns.steps=0 must be at least 1"),
        (["mas.credit.returns.unit=0"], "mas.credit.returns.unit=0 must be above 0"),
        (["+mas.credit.returns.lambda=1"], "unknown key mas.credit.returns.lambda"),
        (["+mas.agents.orchestrator.cost=-1"], "mas.agents.orchestrator.cost=-1 must be at least 0"),
        (["mas.advantage.baseline=last"], "baseline='last' is unknown; allowed: none, mean, group"),
        (["mas.advantage.momentum=1"], "momentum=1 must be below 1"),
        (["actor_rollout_ref.rollout.temperature=0"], "rollout.temperature=0 must be above 0"),
        (["mas.workflow.judge=no"], "mas.workflow.judge='no' must be of type bool"),
        (["mas.workflow.width=3"], "greedy answers would be copies of one.*val_kwargs.do_sample=true"),
        (["mas.workflow.topology=ring"], "topology='ring' is unknown; allowed: chains, tree, graph"),
        (["mas.credit.returns.weigh_by=call"], "weigh_by='call' is unknown; allowed: step, trajectory"),
        (["+mas.workflow.models={q: {urll: x}}"], "unknown key mas.workflow.models.q.urll; did you mean 'url'"),
        (["+mas.workflow.models={q: {cost: -1}}"], "mas.workflow.models.q.cost=-1 must be at least 0"),
        (["mas.workflow.pool=[planning-q]"], r"pool=\['planning-q'\] must be different ones of planning"),
        (["mas.workflow.width=true"], "mas.workflow.width=True must be of type int"),
        (["+mas.advantage.state={}"], "unknown key mas.advantage.state .allowed: baseline, momentum"),
        (["mas.workflow.orchestration=random"], "no agent of this system trains.*`learned` .*verl_ext.evaluate"),
        (["mas.workflow.orchestration=oracle"], "no agent of this system trains.*`learned` .*verl_ext.evaluate"),
    ],
)
def test_bad_values(overrides, message):
    with pytest.raises(ValueError, match=message):
        check_multi_agent(composed("+recipe=puppeteer_tiny", *overrides))


def test_an_agents_cost_reaches_it():
    config = composed("+recipe=puppeteer_tiny", "+mas.agents.reasoning.cost=2.5")
    agents = build_workflow(read_mas_config(config)).agents
    assert (agents["reasoning"].cost, agents["planning"].cost) == (2.5, 1.0)


def test_a_pool_of_models_and_patterns():
    config = composed(
        "+recipe=puppeteer",
        "+mas.workflow.models={q7: {url: 'http://127.0.0.1:8101/v1', model: qwen, cost: 0.5}, own: {url: null}}",
        "mas.workflow.pool=[planning-q7,planning-own,planning,run_python-q7]",
    )
    assert check_multi_agent(config) == "accuracy"
    mas = read_mas_config(config)
    system = build_workflow(mas)
    served = {name: agent.llm and (agent.llm.chat.url, agent.llm.chat.model) for name, agent in system.agents.items()}
    place = ("http://127.0.0.1:8101/v1", "qwen")
    names = ["orchestrator", "planning-q7", "planning-own", "planning", "run_python-q7"]
    assert served == dict(zip(names, (None, place, None, None, place), strict=True))
    assert [system.agents[name].cost for name in names] == [1.0, 0.5, 1.0, 1.0, 0.5]
    assert system.needs == ["run_python"] and system.trained_agents == ["orchestrator"]
    state = State("7 * 6?")
    (message,) = system.agents["orchestrator"].prompt(state=state, names=["planning-q7", "terminate"], left=2)
    assert "- planning-q7: breaks the question down and plans the next steps, by the model q7" in message["content"]
    prompts = [system.agents[name].prompt(state=state) for name in names[1:4]]
    assert prompts[0] == prompts[1] == prompts[2]


def test_one_puppets_text_is_replaced_by_a_file(tmp_path):
    text = "{% if name == 'critique' %}Find one flaw.{% else %}{{ action }}{% endif %}"
    (tmp_path / "mine.yaml").write_text(
        f"puppet: {{system: '{{{{ role }}}}', user: \"{text}\\n{{{{ state }}}}\\n{{{{ cue }}}}\"}}"
    )
    given = composed("+recipe=puppeteer", f"mas.workflow.prompts={tmp_path / 'mine.yaml'}")
    own, usual = (build_workflow(read_mas_config(one)).agents for one in (given, composed("+recipe=puppeteer")))
    state = State("7 * 6?", [Step("planning", "multiply")])
    system, asked = own["critique"].prompt(state=state)
    assert "Find one flaw.\nTask: 7 * 6?" in asked["content"] and "[planning] multiply" in asked["content"]
    assert system == usual["critique"].prompt(state=state)[0] and "criticism" in system["content"]
    for name in ("planning", "run_python"):
        mine, other = (agents[name].prompt(state=state)[1]["content"].split() for agents in (own, usual))
        assert sorted(mine) == sorted(other), "the same parts"
    assert own["orchestrator"].prompt(state=state, names=["planning"], left=1) == usual["orchestrator"].prompt(
        state=state, names=["planning"], left=1
    )


def web(*overrides: str):
    """The configuration with the agents of the web, and its tools."""
    config = composed("+recipe=puppeteer", "+base=puppeteer_web", *overrides)
    assert check_multi_agent(config) == "accuracy"
    return config, read_mas_config(config).tools


def test_the_webs_agents_are_played_by_one_simulator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, sections = web()
    assert set(build_workflow(read_mas_config(config)).agents) == {"orchestrator", *config.mas.workflow.pool}
    assert set(sections) & {"run_python", *WEB} == {"run_python", *WEB} and set(WEB) <= set(config.mas.workflow.pool)
    tools = {name: build(sections[name], f"mas.tools.{name}") for name in WEB}
    assert {tool.settings.mode for tool in tools.values()} == {"simulated"}
    assert {tool.settings.backend.mode for tool in tools.values()} == {"record"}
    for tool in tools.values():
        asyncio.run(tool.close())
    assert [path.name for path in tmp_path.rglob("*.db")] == ["simulator_web.db"]


def test_the_web_off_live_and_by_a_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, sections = web("mas.tools.web_search.mode=off")
    assert [build(sections[name], name).settings.mode for name in WEB] == ["off"] * 3
    _, sections = web("mas.tools.access_website.mode=live", "+mas.tools.access_website.timeout_s=5")
    read = build(sections["access_website"], "access_website").settings
    assert (read.mode, read.timeout_s) == ("live", 5) and sections["search_arxiv"]["mode"] == "simulated"
    server = [f"mas.tools.web_search.backend.{key}=null" for key in ("mode", "cache", "endpoint")]
    _, sections = web("mas.tools.web_search.backend.url=http://127.0.0.1:8200", *server)
    assert {build(sections[name], name).settings.backend.url for name in WEB} == {"http://127.0.0.1:8200"}


def test_a_check_leaves_the_webs_servers_in_peace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = examined("+recipe=puppeteer", "+base=puppeteer_web")
    assert report.problems == [] and not any("mas.tools" in one for one in report.missing), report.missing
    facts = dict(report.facts)
    assert all(facts[f"tools.{name}"] == "endpoint http://127.0.0.1:8100/v1: remote, not asked" for name in WEB)


def test_web_tools_in_a_mixed_pool():
    pool = (
        "mas.workflow.pool=[planning-qwen14b,run_python-qwen7b,web_search-qwen7b,access_website-llama8b,search_arxiv]"
    )
    config = composed("+recipe=puppeteer", "+base=[puppeteer_web,puppeteer_mimas]", pool)
    assert check_multi_agent(config) == "accuracy"
    assert build_workflow(read_mas_config(config)).needs == [
        "access_website",
        "run_python",
        "search_arxiv",
        "web_search",
    ]


def test_read_file_needs_its_folder(tmp_path):
    tool = "+mas.tools.read_file={_target_: verl_ext.tools.files.read_file, folder: " + str(tmp_path / "files") + "}"
    report = examined("+recipe=puppeteer_tiny", tool)
    assert (
        any("there is no folder" in one for one in report.missing) or "made at" in dict(report.facts)["tools.read_file"]
    )
    (tmp_path / "files").mkdir()
    assert dict(examined("+recipe=puppeteer_tiny", tool).facts)["tools.read_file"].endswith("files: present")
