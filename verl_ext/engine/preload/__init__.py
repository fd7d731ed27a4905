"""Ray workers of a CPU run start as forks of one process that has imported torch and transformers already.

A fresh worker takes 4 to 8 seconds of processor time to import what verl needs, and a run has seven of them. Ray starts
workers by the command `runtime_env.py_executable`. Here that is `client.py`: it hands its arguments, environment and
output files to the preloaded process (`template.py`), which forks; the fork runs Ray's worker program as if it had been
started anew. The forks share the memory of the imported modules. If the preloaded process cannot be reached, the client
runs the worker program itself.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

HERE = Path(__file__).parent

SPINS = "GOMP_SPINCOUNT"  # how often a thread of libgomp looks for work before it sleeps; 300,000 times if not set
ADAPTS = "VERL_EXT_IDLE_THREADS"  # set: the number of threads follows what other programs leave idle (IdleThreads)
# Defaults of the run's processes. One thread: with the tiny model, a second one makes the rollouts slower; engine and
# training process take what they may (hf/hardware.py). A thread that waits for the others soon sleeps: otherwise a step
# takes ten times as long beside another busy program.
OPENMP = {"OMP_NUM_THREADS": "1", SPINS: "1000"}

RUNTIME_ENV = "ray_kwargs.ray_init.runtime_env"
# What a runtime environment may contain if workers are to be forked: the rest changes which modules a worker finds.
SUPPORTED = {"env_vars"}

# What verl's workers import, the parents first. They take 6 s of processor time; what a fork still imports takes 1 s.
MODULES = (
    "torch",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torchdata.stateful_dataloader",
    "tensordict",
    "transformers.modeling_utils",
    "transformers.generation",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "networkx",
    "peft",
    "datasets",
    "pandas",
    "hydra",
    "accelerate",
    "aiohttp",
    "fastapi",
    "uvicorn",
    "requests",
    "jsonschema",
    "zmq",
    "msgspec",
    "codetiming",
    "dill",
)


# The address of a preloaded process that runs already, in the environment: the end-to-end tests share one.
SHARED = "VERL_EXT_PRELOADED"

_template: list[subprocess.Popen[bytes]] = []  # of this process, once it is started


def can_fork(config: DictConfig) -> bool:
    """Whether the run starts a local Ray on the CPU whose workers find the same modules as this process."""
    runtime_env = OmegaConf.select(config, RUNTIME_ENV) or {}
    return (
        sys.platform == "linux"
        and OmegaConf.select(config, "trainer.device") == "cpu"
        and OmegaConf.select(config, "ray_kwargs.ray_init.address") == "local"
        and {name for name, value in runtime_env.items() if value is not None} <= SUPPORTED
        and not {"PYTHONPATH", "OMP_NUM_THREADS"} & set(runtime_env.get("env_vars") or ())
    )


def begin() -> None:
    """Start the preloaded process early if the command line trains a tiny recipe (`<name>_tiny`).

    The plug-in calls this while verl is being imported: the configuration is known only four seconds later.
    """
    command, settings = sys.orig_argv[1:3], sys.argv[1:]
    tiny = any(setting.lstrip("+").startswith("recipe=") and setting.endswith("_tiny") for setting in settings)
    trains = command == ["-m", "verl.trainer.main_ppo"] and not any(s.startswith("-") for s in settings)
    if trains and tiny and SHARED not in os.environ:
        _template.append(launch())


def start(config: DictConfig, openmp: Mapping[str, str] = OPENMP) -> subprocess.Popen[bytes] | None:
    """Start the preloaded process if that has not been done, and make Ray's workers forks of it, where `can_fork`.

    `openmp`: defaults of its environment.
    The preloaded process ends when the returned process's stdin is closed, or when this process ends. None: no process
    of this run.
    """
    if not can_fork(config):
        for process in _template:
            process.stdin.close()
        return None
    process: subprocess.Popen[bytes] | None = None
    address = os.environ.get(SHARED)
    if address is None:
        process = _template[0] if _template else launch(openmp=openmp)
        address = address_of(process)
    with open_dict(config):
        OmegaConf.update(config, f"{RUNTIME_ENV}.py_executable", command_of_workers(address), force_add=True)
    return process


def address_of(process: subprocess.Popen[bytes]) -> str:
    """The socket of a preloaded process."""
    return str(process.args[2])  # type: ignore[index]


def command_of_workers(address: str) -> str:
    """What Ray runs in place of Python for its workers to be forks of the preloaded process."""
    return shlex.join([sys.executable, "-I", "-S", str(HERE / "client.py"), address])


def launch(environment: Mapping[str, str] = os.environ, openmp: Mapping[str, str] = OPENMP) -> subprocess.Popen[bytes]:
    """Start a preloaded process in this environment, whose PYTHONPATH its forks have."""
    address = str(Path(tempfile.mkdtemp(prefix="verl_ext_")) / "workers")
    return subprocess.Popen(
        [sys.executable, str(HERE / "template.py"), address, *MODULES],
        env={**openmp, **environment},  # OpenMP reads them when it is loaded
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the driver, which ends everything
    )
