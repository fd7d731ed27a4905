"""Ray's workers as forks: they see what a fresh process would see, and without a template they are fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from verl_ext.engine import preload

HERE = Path(preload.__file__).parent
WORKER = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("COLOUR"), os.environ.get("ONLY_TEMPLATE"), os.getcwd(), os.getppid(),
                  __name__, "wave" in sys.modules, sys.stdin.read()]))
sys.exit(3)
"""


def run_client(address: Path, folder: Path) -> list:
    """What the worker program has printed."""
    (folder / "worker.py").write_text(WORKER)
    command = [sys.executable, "-I", "-S", HERE / "client.py", address, folder / "worker.py", "--a=b c", "d"]
    environment = {"COLOUR": "blue", "PATH": "/usr/bin"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def template(tmp_path):
    """A template that has imported the module `wave`: its process and address."""
    address = tmp_path / "socket" / "workers"
    address.parent.mkdir()
    command = [sys.executable, HERE / "template.py", address, "no_such_module", "wave"]
    environment = {"ONLY_TEMPLATE": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        while not address.exists() and process.poll() is None:
            time.sleep(0.01)
        yield process, address


def test_a_fork_has_the_clients_arguments_environment_folder_and_outputs(template, tmp_path):
    process, address = template
    for _ in range(2):
        arguments, colour, other, folder, parent, name, imported, text = run_client(address, tmp_path)
        assert (arguments, colour, other) == (["--a=b c", "d"], "blue", None)
        assert (folder, parent, name, text) == (str(tmp_path), process.pid, "__main__", "")
        assert imported


def test_the_template_ends_with_its_driver_and_leaves_nothing(template):
    process, address = template
    process.stdin.close()
    assert process.wait(60) == 0 and not address.parent.exists()


def test_without_a_template_the_client_runs_the_worker_itself(tmp_path):
    arguments, colour, *_, imported, _ = run_client(tmp_path / "nowhere", tmp_path)
    assert (arguments, colour, imported) == (["--a=b c", "d"], "blue", False)


@pytest.mark.parametrize(
    ("change", "possible"),
    [
        ({}, True),
        ({"trainer.device": "cuda"}, False),
        ({"ray_kwargs.ray_init.address": "auto"}, False),
        ({"ray_kwargs.ray_init.runtime_env.working_dir": None}, True),
        ({"ray_kwargs.ray_init.runtime_env.working_dir": "elsewhere"}, False),
        ({"ray_kwargs.ray_init.runtime_env.py_executable": "uv run"}, False),
        ({"ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH": "elsewhere"}, False),
    ],
)
def test_only_a_ray_of_its_own_with_plain_workers_is_forked(change, possible):
    ray_init = {"address": "local", "runtime_env": {"env_vars": {"VERL_PLATFORM": "cpu"}}}
    config = OmegaConf.create({"trainer": {"device": "cpu"}, "ray_kwargs": {"ray_init": ray_init}})
    for key, value in change.items():
        OmegaConf.update(config, key, value, force_add=True)
    assert preload.can_fork(config) is (possible and sys.platform == "linux")
