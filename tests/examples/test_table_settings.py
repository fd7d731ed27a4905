"""What the scripts of JoyAgents-R1's and Puppeteer's tables and figures run, against the papers."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig

from tests.examples.dry_run import EXAMPLES, composed_evaluation, composed_sft, dry_run
from tests.trainer.test_recipes import composed

TASKS = {"TASKS": "gsm_hard"}


def trained(script: str, folder: Any, *more: str, **environment: str) -> dict[str, DictConfig]:
    """The configurations of a script's trainings by reinforcement learning, by folder, without the model's."""
    printed = dry_run(EXAMPLES / script, *more, folder=folder, **environment)
    found = [composed(*command[3:]) for command in printed if "verl.trainer.main_ppo" in command]
    named = {config.trainer.default_local_dir.partition("/")[2].replace("/Qwen2.5-3B-Instruct/", "/"): config
             for config in found}  # fmt: skip
    assert len(named) == len(found), "two trainings in one folder"
    return named


def joyagents(config: DictConfig) -> tuple[Any, ...]:
    """What Tables 2 and 6 vary: K, the weight of R_E, memories, and whether RL takes place."""
    mas = config.mas
    return mas.advantage.top_k, mas.credit.efficiency, mas.memory is not None, not config.trainer.get("val_only", False)


def test_joyagents_table_2_and_table_6(tmp_path):
    table2, table6 = (trained(f"joyagents/table{number}.sh", tmp_path) for number in (2, 6))
    rows = {name: joyagents(config) for name, config in table2.items()}
    assert [rows.pop(f"joyagents_4/{name}")[2:] for name in ("m1", "m2")] == [(False, False)] * 2
    assert rows == {
        "joyagents_4/m3": (0, 1.0, True, True),
        "joyagents_4/m4": (5, 0.0, True, True),
        "joyagents_4/m5": (5, 1.0, False, True),
        "joyagents_4/m6": (5, 1.0, True, True),
    }
    ks = {name.rpartition("/")[2]: joyagents(config)[0] for name, config in table6.items()}
    assert ks == {"top1": 1, "top2": 2, "m3": 0, "m6": 5}
    same = ("joyagents_4/m3", "joyagents_4/m6")
    assert all(table6[name] == table2[name] for name in same), "Top-All is M3, and Top-5 is M6"


def test_joyagents_table_7_has_two_three_and_four_sub_agents(tmp_path):
    table = trained("joyagents/table7.sh", tmp_path)
    systems = {name: list(config.mas.workflow.specialists) for name, config in table.items()}
    two, three = ["question_agent", "shop_agent"], ["question_agent", "shop_agent", "math_agent"]
    four = ["question_agent", "shop_agent", "function_agent", "math_agent"]
    assert systems == {"joyagents_2/m6": two, "joyagents_3/m6": three, "joyagents_4/m6": four}


@pytest.mark.parametrize(
    ("script", "environment", "epochs"),
    [
        ("joyagents/table1.sh", {"SFT": "1"}, {"single_sft": 10}),
        ("joyagents/table2.sh", {}, {"sft_bare": 10, "sft_10": 10, "sft": 5}),
        ("joyagents/table5.sh", {"STATIC": "s", "DIALOGUES": "d"}, {"toolbench_sft": 10}),
        ("joyagents/table5.sh", {"STATIC": "s", "DIALOGUES": "d", "THINK": "0"}, {"toolbench_sft_bare": 10}),
        ("joyagents/table6.sh", {}, {"sft": 5}),
    ],
)
def test_what_is_fine_tuned_alone_takes_as_many_epochs_as_fine_tuning_and_rl(script, environment, epochs, tmp_path):
    """Section A.2: 10 epochs of fine-tuning are compared with 5 of it and 5 of RL; the rest is Table 3."""
    printed = dry_run(EXAMPLES / script, folder=tmp_path, **environment)
    given = [command[command.index("verl_ext.sft") + 1 :] for command in printed if "verl_ext.sft" in command]
    found = [composed_sft(tuple(overrides)) for overrides in given]
    assert {c.trainer.default_local_dir.rpartition("/")[2]: c.trainer.total_epochs for c in found} == epochs
    assert {(config.optim.lr, config.data.train_batch_size) for config in found} == {(5e-6, 32)}


def test_puppeteers_table_and_figures_vary_what_they_show(tmp_path):
    (table,) = trained("puppeteer/table1.sh", tmp_path, **TASKS).values()
    assert (table.mas.workflow.depth, table.mas.workflow.width, table.trainer.val_before_train) == (4, 3, True)
    figure3 = trained("puppeteer/figure3.sh", tmp_path).values()
    assert [config.mas.credit.returns.price for config in figure3] == [0, 0.1, 0.2, 0.5]
    assert {config.data.val_files for config in figure3} == {"data/mmlu_pro/test.parquet"}
    shapes = set()
    for name, config in trained("puppeteer/figure7.sh", tmp_path, **TASKS).items():
        shapes.add(f"W{config.mas.workflow.width}D{config.mas.workflow.depth}")
        assert name.endswith(tuple(shapes)) and config.mas.credit.returns.steps == config.mas.workflow.depth
    assert {"W4D2", "W3D4"} <= shapes, "the default of Figure 7, and that of Section 3"


def test_puppeteer_learns_from_200_questions_in_one_pass(tmp_path):
    """Appendix A.2: "Initialized" and "Evolved" are phases of one online run over 200 samples."""
    samples = ("data.train_max_samples=200", "data.train_batch_size=8", "trainer.total_epochs=1")
    (config,) = trained("puppeteer/table1.sh", tmp_path, *samples, **TASKS).values()
    assert (config.data.train_max_samples, config.data.train_batch_size, config.trainer.total_epochs) == (200, 8, 1)


def test_one_gateway_serves_the_titan_pool_beside_the_evaluations_server(tmp_path):
    url = "mas.workflow.models.gpt4_turbo.url=https://gateway.example/v1"
    for more, expected in (((url,), "https://gateway.example/v1"), ((), "http://127.0.0.1:8100/v1")):
        printed = dry_run(EXAMPLES / "puppeteer/table1.sh", *more, folder=tmp_path, POOL="titan", **TASKS)
        (training,) = (composed(*command[3:]) for command in printed if "verl.trainer.main_ppo" in command)
        (evaluation,) = (composed_evaluation(tuple(c[3:])) for c in printed if c[2:3] == ["verl_ext.evaluate"])
        for config in (training, evaluation):
            assert {model.url for model in config.mas.workflow.models.values()} == {expected}
        assert evaluation.evaluate.endpoint != expected


def test_the_base_model_is_one_variable(tmp_path):
    for config in trained("joyagents/table6.sh", tmp_path, MODEL="Qwen/Qwen2.5-3B").values():
        assert config.actor_rollout_ref.model.path.startswith("runs/joyagents_4/Qwen2.5-3B/sft/")
    printed = dry_run(EXAMPLES / "joyagents/table6.sh", folder=tmp_path, MODEL="Qwen/Qwen2.5-3B")
    assert ["model.path=Qwen/Qwen2.5-3B" in command for command in printed if "verl_ext.sft" in command] == [True]


def test_each_agent_starts_from_its_own_fine_tuning(tmp_path):
    agents = ["master", "question_agent", "shop_agent", "function_agent", "math_agent"]
    for config in trained("joyagents/table6.sh", tmp_path, POLICY="per_agent_lora").values():
        start = "runs/joyagents_4/Qwen2.5-3B-Instruct/sft/{0}/global_step_N/adapters/{0}"
        assert config.mas.policy_init == {agent: start.format(agent) for agent in agents}


def test_puppeteers_baselines_are_fixed_orders(tmp_path):
    """Pure models make one call; Self-Refine answers, criticises and refines. Neither explores side by side."""
    printed = dry_run(EXAMPLES / "puppeteer/baselines.sh", folder=tmp_path, **TASKS)
    found = [composed_evaluation(tuple(c[3:])) for c in printed if c[2:3] == ["verl_ext.evaluate"] and "--cfg" not in c]
    orders = [(list(c.mas.workflow.order), c.mas.workflow.width, c.mas.workflow.orchestration) for c in found]
    assert orders == [(["reasoning"], 1, "fixed"), (["reasoning", "critique", "modify"], 1, "fixed")]
