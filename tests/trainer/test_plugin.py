"""Having verl_ext installed changes nothing for verl runs that use none of our recipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

# Composes verl's stock configuration through its own entry and reports what its registries hold. `find_spec` is there
# because asking whether a module exists must not use up the hook that waits for its import.
REPORT = """
import importlib.util, json, sys
import verl
light = sorted({"ray", "transformers", "datasets", "verl.trainer.ppo.v1", "matplotlib", "bm25s"} & set(sys.modules))
assert importlib.util.find_spec("verl.workers.rollout")
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
with initialize_config_module("verl.trainer.config", version_base=None):
    config = OmegaConf.to_container(compose("ppo_trainer"), resolve=False)
import verl.trainer.ppo.v1, verl.workers.engine.fsdp.transformer_impl, verl.workers.rollout
from verl.plugin.platform import get_platform
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.workers.engine.base import EngineRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry
engines = {
    f"{model}/{backend}/{device}": str(cls)
    for model, backends in EngineRegistry._engines.items()
    for backend, devices in backends.items()
    for device, cls in devices.items()
}
print("REPORT" + json.dumps({
    "ours": sorted(m for m in sys.modules if m.startswith("verl_ext")),
    "loaded": light,
    "config": config,
    "platform": get_platform().device_name,
    "platforms": {n: PlatformRegistry.get(n).__qualname__ for n in PlatformRegistry.registered_names()},
    "trainers": {n: c.__qualname__ for n, c in TRAINER_REGISTRY.items()},
    "estimators": sorted(map(str, ADV_ESTIMATOR_REGISTRY)),
    "engines": engines,
    "rollouts": {"/".join(k): v for k, v in _ROLLOUT_REGISTRY.items()},
    "replicas": sorted(RolloutReplicaRegistry._registry),
}))
"""


# Stands for another release of verl.
OLD_VERL = """
import importlib.metadata as m
real = m.version
m.version = lambda name: '0.0.1' if name == 'verl' else real(name)
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> Iterator[list[subprocess.Popen]]:
    """Without the plugin, with it, and a run with a plugin that cannot load: started together, each takes seconds."""
    folder = tmp_path_factory.mktemp("old_verl")
    (folder / "sitecustomize.py").write_text(OLD_VERL)
    stock = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    report, run = [sys.executable, "-c", REPORT], [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=mhgpo_tiny"]
    starts = [(report, stock | {"VERL_USE_EXTERNAL_PLUGINS": plugins}, None) for plugins in ("none", "auto")]
    starts.append((run, os.environ | {"PYTHONPATH": str(folder)}, folder))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env=env, cwd=cwd, **pipes) for command, env, cwd in starts]
    yield started
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def reports(processes) -> list[dict]:
    found = []
    for process in processes[:2]:
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        found.append(json.loads(out.split("REPORT", 1)[1]))
    return found


def test_the_plugin_was_loaded_in_one_and_not_in_the_other(reports):
    without, with_plugin = reports
    assert without["ours"] == []
    assert "verl_ext.plugin" in with_plugin["ours"]


def test_stock_configuration_is_the_same(reports):
    assert reports[0]["config"] == reports[1]["config"]


# In runs without our agent loop it does what verl's own does (tests/engine/test_programs.py).
CHECKED = {"vllm/async": "verl_ext.engine.vllm.sender.WeightSender"}


@pytest.mark.parametrize("registry", ["platforms", "trainers", "engines", "rollouts"])
def test_stock_entries_are_the_same(reports, registry):
    without, with_plugin = reports[0][registry], reports[1][registry]
    changed = {name: with_plugin.get(name) for name in without if with_plugin.get(name) != without[name]}
    assert without and changed == (CHECKED if registry == "rollouts" else {})


@pytest.mark.parametrize("registry", ["estimators", "replicas"])
def test_stock_names_stay(reports, registry):
    assert set(reports[0][registry]) < set(reports[1][registry])


def test_what_is_added(reports):
    added = {name: set(reports[1][name]) - set(reports[0][name]) for name in ("platforms", "trainers", "replicas")}
    trainers = {"mas_sync", "mas_colocate_async", "mas_separate_async"}
    assert added == {"platforms": {"cpu"}, "trainers": trainers, "replicas": {"hf"}}


def test_platform_is_the_same_with_or_without_an_accelerator(reports):
    assert reports[0]["platform"] == reports[1]["platform"]
    if torch.cuda.is_available():
        assert reports[1]["platform"] == "cuda"


def test_the_plugin_loads_nothing_heavy(reports):
    without, with_plugin = reports
    assert set(with_plugin["loaded"]) <= set(without["loaded"])


def test_a_plugin_that_cannot_load_says_so_and_stops_a_recipe_run(processes):
    _, err = processes[2].communicate(timeout=180)
    assert processes[2].returncode == 2
    assert "verl_ext could not be loaded" in err and "pip install verl==" in err
