"""Ray workers of a CPU run start as forks of one process that has imported torch and transformers already.

A fresh worker takes 4 to 8 seconds of processor time to import what verl needs, and a run has seven of them. Ray starts
workers by the command `runtime_env.py_executable`. Here that is `client.py`: it hands its arguments, environment and
output files to the process of `template.py`, which forks; the fork runs Ray's worker program as if it had been started
anew. The forks share the memory of the imported modules. If the template cannot be reached, the client runs the worker
program itself.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

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


def can_fork(config: DictConfig) -> bool:
    """Whether the configuration starts a Ray of its own, on the CPU, in the modules of this process."""
    runtime_env = OmegaConf.select(config, RUNTIME_ENV) or {}
    return (
        sys.platform == "linux"
        and OmegaConf.select(config, "trainer.device") == "cpu"
        and OmegaConf.select(config, "ray_kwargs.ray_init.address") == "local"
        and {name for name, value in runtime_env.items() if value is not None} <= SUPPORTED
        and "PYTHONPATH" not in (runtime_env.get("env_vars") or {})
    )


def start(config: DictConfig) -> subprocess.Popen | None:
    """Start the template and make Ray's workers forks of it, where `can_fork`.

    The template ends when the returned process's stdin is closed, at the latest with this process.
    """
    if not can_fork(config):
        return None
    here, address = Path(__file__).parent, str(Path(tempfile.mkdtemp(prefix="verl_ext_")) / "workers")
    variables = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env.get("env_vars") or OmegaConf.create())
    process = subprocess.Popen(
        [sys.executable, str(here / "template.py"), address, *MODULES],
        env={"OMP_NUM_THREADS": "1", **os.environ, **variables},  # the default of choose_cpu_platform
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the driver, which ends everything
    )
    command = shlex.join([sys.executable, "-I", "-S", str(here / "client.py"), address])
    with open_dict(config):
        OmegaConf.update(config, f"{RUNTIME_ENV}.py_executable", command, force_add=True)
    return process
