"""Supervised fine-tuning by verl's own trainer: checks before the start, one and two processes, the folder for RL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_ext import sft
from verl_ext.plugin import package_path
from verl_ext.recipe.joyagents.cold_start import sft_demonstrations

MODEL = package_path("recipe/joyagents/assets/tiny_model")


def composed(*overrides):
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("sft_trainer_engine", overrides=list(overrides), return_hydra_config=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sft_demonstrations.ensure(tmp_path_factory.mktemp("sft") / "data", size=120, habits=0.0)


def files(folder):
    train = ",".join(str(folder / f"{agent}.parquet") for agent in sft_demonstrations.AGENTS)
    return [f"data.train_files=[{train}]", f"data.val_files={folder / 'val.parquet'}", "prepare=null"]


@pytest.mark.parametrize("name", ["joyagents_tiny", "joyagents"])
def test_shipped_configurations_avoid_verls_traps(name):
    config = composed(f"+sft={name}", *([] if name == "joyagents" else [f"model.path={MODEL}"]))
    sft.check_settings(config)
    assert config.data.enable_thinking_default is None and "hf_model" in config.checkpoint.save_contents
    assert config.hydra.run.dir == config.trainer.default_local_dir == f"runs/{config.trainer.experiment_name}"


def test_the_papers_settings():
    """Table 3."""
    config = composed("+sft=joyagents")
    optim = config.optim
    assert (optim.lr, optim.weight_decay, optim.clip_grad, optim.lr_warmup_steps_ratio) == (5e-6, 0.01, 1.0, 0.03)
    assert (optim.lr_scheduler_type, config.trainer.total_epochs, config.data.max_length) == ("cosine", 5, 16384)
    assert config.data.train_batch_size == 8 * 1 * 4, "GPUs, per device, accumulated"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("checkpoint.save_contents=[model]", r"has no 'hf_model'.*Remedy: checkpoint.save_contents="),
        ("data.enable_thinking_default=none", "is a text, which verl takes for true.*Remedy"),
        ("model.path=runs/nowhere", "model.path=runs/nowhere does not exist"),
        ("model.path=models/nowhere", "model.path=models/nowhere does not exist"),
        ("data.train_batch_size=0", "must be a multiple of the 1 processes"),
    ],
)
def test_settings_that_would_fail_late_are_refused(override, message, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=message):
        sft.check_settings(composed("+sft=joyagents_tiny", f"model.path={MODEL}", override))


def test_a_model_must_be_named(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=r"does not exist \(verl's default: it is not set\). Remedy: model.path=…"):
        sft.check_settings(composed("+sft=joyagents_tiny"))


def test_validation_needs_a_file(monkeypatch):
    config = composed("+sft=joyagents_tiny", f"model.path={MODEL}", "data.val_files=null", "trainer.test_freq=5")
    with pytest.raises(ValueError, match="trainer.test_freq=5 needs data.val_files"):
        sft.check_settings(config)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="train_batch_size=64 must be a multiple of the 3 processes"):
        sft.check_settings(composed("+sft=joyagents_tiny", f"model.path={MODEL}"))


def test_data_are_looked_at_before_anything_is_loaded(folder, tmp_path):
    config = composed("+sft=joyagents_tiny", *files(folder), "data.train_batch_size=16")
    rows = sum(pq.ParquetFile(folder / f"{agent}.parquet").metadata.num_rows for agent in sft_demonstrations.AGENTS)
    assert sft.check_data(config) == rows // 16
    config.trainer.total_training_steps = 3 * (rows // 16)
    with pytest.raises(ValueError, match="verl would end without saving. Remedy: trainer.total_epochs=3"):
        sft.check_data(config)
    config.trainer.total_training_steps, config.data.train_batch_size = None, 256
    with pytest.raises(ValueError, match="fewer than data.train_batch_size=256"):
        sft.check_data(config)
    other = tmp_path / "other.parquet"
    for columns, message in (
        ({"text": ["a"]}, r"has the columns \['text'\], but no 'messages'"),
        ({"messages": [[{"role": "user", "content": "a"}]]}, "must end with what the assistant says"),
        ({"messages": [json.dumps([{"role": "assistant", "content": "a"}])]}, "must end with what the assistant says"),
        ({"messages": [[None]]}, "must end with what the assistant says"),
    ):
        pq.write_table(pa.table(columns), other)
        config.data.train_files = str(other)
        with pytest.raises(ValueError, match=message):
            sft.check_data(config)
    other.write_text("no parquet")
    with pytest.raises(ValueError, match="other.parquet cannot be read as parquet"):
        sft.check_data(config)
    config.data.train_files = "nowhere.parquet"
    with pytest.raises(ValueError, match="nowhere.parquet does not exist"):
        sft.check_data(config)


def test_a_training_that_cannot_start_says_why(tmp_path):
    done = launch(tmp_path, 1, "model.path=runs/nowhere")
    assert done.returncode == 2 and "This training cannot start.\nmodel.path=runs/nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def launch(cwd: Path, processes: int, *overrides: str) -> subprocess.CompletedProcess:
    """The command, alone or under torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(torchrun if processes > 1 else []), "-m", "verl_ext.sft", "+sft=joyagents_tiny"]
    # One core per rank: two threads on a busy machine wait for each other.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VERL_PLATFORM": "cpu"}
    return subprocess.run([*command, *overrides], cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)


def logged(folder: Path) -> list[float]:
    return sft.losses_of(folder / sft.LOG)[0]


@pytest.mark.slow
@pytest.mark.end_to_end
def test_one_and_two_processes_learn_the_same_and_leave_a_model_for_rl(folder, tmp_path):
    settings = [*files(folder), f"model.path={MODEL}", "data.train_batch_size=16", "optim.lr=1e-3"]
    settings += ["trainer.total_training_steps=3", "data.val_files=null"]
    done = {number: launch(tmp_path, number, *settings, f"trainer.default_local_dir=run{number}") for number in (1, 2)}
    for number, process in done.items():
        assert process.returncode == 0, process.stdout + process.stderr
        assert "Traceback" not in process.stderr and "loss " in process.stdout
        model = f"run{number}/global_step_3/huggingface"
        assert f"+recipe=joyagents_tiny actor_rollout_ref.model.path={model}" in process.stdout
    one, two = (logged(tmp_path / f"run{number}") for number in (1, 2))
    assert len(one) == 3 and one == pytest.approx(two, abs=1e-5) and one[2] != one[0], "the same rows in the same steps"
    before, after, other = (
        AutoModelForCausalLM.from_pretrained(path).state_dict()
        for path in (MODEL, *(tmp_path / f"run{number}/global_step_3/huggingface" for number in (1, 2)))
    )
    assert before.keys() == after.keys()
    # Adam divides by the gradient's size: where that is nothing but rounding, the order of a sum decides.
    moved, apart = (sum((after[name] - of[name]).square().sum() for name in after).sqrt() for of in (before, other))
    assert apart < 0.01 * moved
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run1/global_step_3/huggingface")
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(MODEL).get_vocab()
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(MODEL).chat_template


@pytest.mark.parametrize(
    ("cold_start", "more", "recipe"),
    [
        ("mhgpo_real", [], "mhgpo_real"),
        ("mhgpo_real", ["trainer.device=cuda"], "mhgpo_real_gpu"),
        ("gold", ["system=smurfs"], "RECIPE"),
    ],
)
def test_the_next_command_names_a_recipe_that_is_there(cold_start, more, recipe):
    config = composed(f"+sft={cold_start}", *more)
    assert f"main_ppo +recipe={recipe} actor" in sft.report(config, 24, cold_start)


def test_losses_are_read_per_step_the_last_run_counts(tmp_path):
    entries = [(1, {"train/loss": 3.0}), (2, {"train/loss": 2.0}), (2, {"val/loss": 2.5}), (2, {"train/loss": 1.0})]
    log = tmp_path / "sft.jsonl"
    log.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in entries))
    assert sft.losses_of(log) == ([3.0, 1.0], [2.5]) and sft.losses_of(tmp_path / "no") == ([], [])


def test_a_training_that_diverged_is_reported(tmp_path):
    """verl logs a loss that is not finite as null."""
    config = composed("+sft=joyagents_tiny", f"trainer.default_local_dir={tmp_path}")
    entries = [(1, {"train/loss": 3.0}), (2, {"train/loss": None}), (2, {"val/loss": None})]
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in entries]
    (tmp_path / "sft.jsonl").write_text("".join(lines))
    said = sft.report(config, 2, "joyagents_tiny")
    assert "loss         nan → nan in 2 steps" in said and "held out     nan" in said


def test_the_log_of_the_part_before_is_kept_and_counts(tmp_path):
    """verl empties the log at each start."""
    log = tmp_path / "sft.jsonl"

    def part(*losses):
        sft.set_aside(log)
        log.write_text("".join(json.dumps({"step": s, "data": {"train/loss": loss}}) + "\n" for s, loss in losses))

    part((1, 5.0), (2, 4.0), (3, 9.0))
    part((3, 3.0), (4, 2.0))  # the second step had a checkpoint
    assert sft.losses_of(log) == ([5.0, 4.0, 3.0, 2.0], [])
    with log.open("a") as file:
        file.write('{"step": 5, "da')  # a kill
    part((5, 1.0))
    part()  # killed before its first step
    part((6, 0.5))
    assert sft.losses_of(log) == ([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], [])
    assert {path.name for path in tmp_path.iterdir()} == {"sft.jsonl", *(f"sft.{number}.jsonl" for number in (1, 2, 3))}
    part((1, 7.0))  # from scratch
    assert sft.losses_of(log) == ([7.0], [])


def test_a_complete_training_is_not_trained_further(tmp_path):
    """Given its command again, verl would make a step beyond the last one."""
    config = composed("+sft=joyagents_tiny", f"trainer.default_local_dir={tmp_path}")
    assert not sft.finished(config, 3)
    (tmp_path / "global_step_3").mkdir()
    for last, complete in (("2", False), ("3", True), ("4", True), ("", False)):
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(last)
        assert sft.finished(config, 3) == complete
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    assert not sft.finished(config, 4)
    config.trainer.resume_mode = "disable"
    assert not sft.finished(config, 3)
