"""What a run needs of the machine that starts it: packages, GPUs, Ray's logical CPUs."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest
import torch
import verl.trainer.ppo.utils  # noqa: F401  (it must not be imported while find_spec is replaced)

from tests.trainer.test_recipes import composed
from verl_ext.check import fill, main
from verl_ext.trainer.preflight import machine, paths
from verl_ext.trainer.preflight.plan import Report


def pretend(monkeypatch, gpus: int, cores: int, packages: bool) -> None:
    """Pretend that this machine has so much, and that no Ray runs on it."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("ray._private.utils.get_num_cpus", lambda **_: cores)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: object() if packages else None)
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: "/nowhere")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_all_that_a_machine_lacks_is_listed(monkeypatch):
    config, deciding = composed("+recipe=mhgpo"), composed("+recipe=puppeteer")
    pretend(monkeypatch, gpus=8, cores=42, packages=True)
    assert machine.lacking(config) == [] and machine.check_resources(config) is None
    pretend(monkeypatch, gpus=2, cores=41, packages=False)
    vllm, attention, gpus, cores = machine.lacking(config)
    assert "package vllm is not installed" in vllm and "package flash_attn" in attention
    assert "n_gpus_per_node=8, but this machine has 2 GPU(s)" in gpus
    assert "41 core(s) as logical CPUs; 42 are taken" in cores and "ray_kwargs.ray_init.num_cpus=42" in cores
    packed = "++actor_rollout_ref.model.override_config.attn_implementation=packed_sdpa"
    assert attention.endswith(f"{packed} actor_rollout_ref.model.use_fused_kernels=true")
    assert machine.without_flash(deciding) == packed, "decisions need whole logits"
    with pytest.raises(ValueError, match="(?s)vllm.*flash_attn.*2 GPU.*41 core.*mhgpo_tiny"):
        machine.check_resources(config)


@pytest.mark.parametrize(
    ("overrides", "environment", "lacks"),
    [
        ([], {}, ["GPU(s)", "core(s)"]),
        ([], {"RAY_ADDRESS": "auto"}, []),  # the cluster has them
        (["+ray_kwargs.ray_init.address=10.0.0.1:6379"], {}, []),
        (["+ray_kwargs.ray_init.address=local"], {"RAY_ADDRESS": "auto"}, ["GPU(s)", "core(s)"]),
        (["ray_kwargs.ray_init.num_cpus=42"], {}, ["GPU(s)"]),
        (["trainer.nnodes=2"], {}, ["GPU(s)"]),
    ],
)
def test_only_the_machine_that_runs_it_is_counted(overrides, environment, lacks, monkeypatch):
    config = composed("+recipe=mhgpo", *overrides)
    pretend(monkeypatch, gpus=0, cores=1, packages=True)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = machine.lacking(config)
    assert len(found) == len(lacks) and all(part in item for part, item in zip(lacks, found, strict=True)), found


def test_a_ray_that_was_started_here_is_joined(monkeypatch, tmp_path):
    config = composed("+recipe=mhgpo")
    pretend(monkeypatch, gpus=0, cores=1, packages=True)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    assert machine.lacking(config) == []


@pytest.mark.parametrize(
    ("lacks", "flags", "status"),
    [(["a GPU"], [], 0), (["a GPU"], ["--here"], 1), ([], ["--here"], 0), ([], ["--strict"], 1)],
)
def test_exit_status_for_what_the_machine_lacks(lacks, flags, status, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)  # without data, which --strict alone minds
    monkeypatch.setattr(machine, "lacking", lambda config: lacks)
    assert main([*flags, "+recipe=mhgpo_24gb"]) == status
    assert ("This machine lacks:\n  - a GPU" in capsys.readouterr().out) == bool(lacks)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("runs/typo", "actor_rollout_ref.model.path=./runs/typo: the model's folder does not exist"),
        (
            "nobody/nothing",
            "not in the hub's cache, and not to be had from the hub .RuntimeError.. Remedy: check the name",
        ),
    ],
)
def test_a_model_that_is_nowhere_is_named_before_the_start(model, problem, monkeypatch, tmp_path):
    def offline(*_, **__):
        raise RuntimeError

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    pretend(monkeypatch, gpus=0, cores=1, packages=True)
    path = f"./{model}" if model.startswith("runs") else model
    config = composed("+recipe=mhgpo", f"actor_rollout_ref.model.path={path}")
    with pytest.raises(ValueError, match=problem):
        paths.check_paths(config)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert (paths.missing_models(config) == []) == (model == "nobody/nothing"), "other machines may reach the hub"


def test_a_folder_without_a_model_in_it_is_named_with_the_one_below_that_has_it(tmp_path):
    config = composed("+recipe=mhgpo_tiny", f"actor_rollout_ref.model.path={tmp_path}")
    assert "has no config.json, so it holds no model. Remedy: a folder with" in paths.missing_models(config)[0]
    (tmp_path / "actor" / "huggingface").mkdir(parents=True)
    (tmp_path / "actor" / "huggingface" / "config.json").write_text("{}")
    assert f"Remedy: perhaps {tmp_path}/actor/huggingface" in paths.missing_models(config)[0]


def test_the_critics_model_is_looked_for_too():
    critic, same = "critic.model.path=./runs/typo", "critic.model.path=${actor_rollout_ref.model.path}"
    (problem,) = paths.missing_models(composed("+recipe=mappo_tiny", critic))
    assert problem.startswith("critic.model.path=./runs/typo: the model's folder does not exist")
    policy = "actor_rollout_ref.model.path=./runs/typo"
    (problem,) = paths.missing_models(composed("+recipe=mappo_tiny", policy, same))
    assert problem.startswith(policy), "one model of both is named once"
    assert paths.missing_models(composed("+recipe=mhgpo_tiny", critic)) == [], "no critic"


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    wrong = composed("+recipe=mhgpo_tiny", f"trainer.default_local_dir={tmp_path}/file/runs")
    with pytest.raises(ValueError) as error:
        paths.check_paths(wrong)
    said = f"trainer.default_local_dir={tmp_path}/file/runs cannot be written: {tmp_path}/file is a file. Remedy"
    assert str(error.value).startswith(said) and paths.unwritable_folder(wrong) == [str(error.value)]
    paths.check_paths(composed("+recipe=mhgpo_tiny", f"trainer.default_local_dir={tmp_path}/a/runs"))
    assert list((tmp_path / "a" / "runs").iterdir()) == []


@contextmanager
def nobody():
    """This process as a user without rights."""
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
def test_what_belongs_to_somebody_else_is_named(tmp_path):
    """A colleague's model, data and runs, in a folder that only they may enter."""
    theirs = tmp_path / "theirs"
    (theirs / "model").mkdir(parents=True)
    (theirs / "model" / "config.json").write_text("{}")
    tmp_path.chmod(0o700)
    given = [f"data.{name}={theirs}/q.parquet" for name in ("train_files", "val_files")]
    given += [f"mas.tools.search.corpus={theirs}/c.jsonl", "mas.prepare=null"]
    own = composed("+recipe=mhgpo_tiny", *given)
    fill(Report(own))  # imports what nobody may not read
    config = composed(
        *("+recipe=mhgpo_tiny", *given, f"actor_rollout_ref.model.path={theirs}/model"),
        f"trainer.default_local_dir={theirs}/runs",
    )
    report = Report(config)
    with nobody():
        fill(report)
    (problem,) = report.problems
    assert f"trainer.default_local_dir={theirs}/runs cannot be written: no permission to write in" in problem
    said = "\n".join(report.missing)
    assert f"model.path={theirs}/model: the model's folder does not exist, or may not be read" in said
    assert f"the data file {theirs}/q.parquet" in said and f"{theirs}/c.jsonl" in said
