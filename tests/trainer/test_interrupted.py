"""Ctrl-C in training: status 130, one line in the place of tracebacks, nothing left running, the checkpoint kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.bench.ctrlc import lacks
from tests.helpers import heed_signals
from tests.trainer.test_checkpoint import checkpoints
from verl_ext.engine.preload import HERE
from verl_ext.trainer.interrupt import STATUS
from verl_ext.trainer.state.checkpoint import TRACKER

WAITING = """
import subprocess, sys, time
from pathlib import Path
from omegaconf import OmegaConf
from verl_ext.observe.progress import Progress
from verl_ext.trainer.interrupt import end_on_interrupt

folder = Path(sys.argv[1])
progress = Progress(folder, "f1")
progress.start()
trainer = {"default_local_dir": str(folder), "resume_mode": "auto", "save_freq": 20}
end_on_interrupt(progress, OmegaConf.create(trainer))
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def interrupted(command: list[str], folder: Path, moment: str, **environment: str) -> tuple[int, str, list[int]]:
    """Status, output, and processes left of a command that gets SIGINT once it has printed a line with `moment`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "preexec_fn": heed_signals}
    with subprocess.Popen(command, cwd=folder, env=os.environ | environment, **pipes) as process:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if moment in line:
                break
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        hangs = threading.Timer(300, process.kill)
        hangs.start()
        seen.append(process.stdout.read())
        status = process.wait(300)
        hangs.cancel()
    _, left = psutil.wait_procs(started, timeout=300)
    return status, "".join(seen), [one.pid for one in left]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_it_says_where_the_same_command_goes_on(tmp_path, checkpointed):
    if checkpointed:
        checkpoints(tmp_path, [40])
    status, output, left = interrupted([sys.executable, "-c", WAITING, str(tmp_path)], tmp_path, "ready")
    assert status == STATUS == 130 and "Traceback" not in output and left == []
    there = f"goes on from {tmp_path}/global_step_40" if checkpointed else "starts afresh: it has no checkpoint yet"
    assert f"Interrupted. The same command {there} (trainer.save_freq=20)." in output


def test_who_asks_for_tracebacks_gets_them(tmp_path):
    command = [sys.executable, "-c", WAITING.replace("child =", "#"), str(tmp_path)]
    status, output, _ = interrupted(command, tmp_path, "ready", HYDRA_FULL_ERROR="1")
    assert status == -signal.SIGINT and "KeyboardInterrupt" in output and "Traceback" in output


def preloading(pid: int) -> bool:
    """Whether the plug-in has started the template of the workers; libraries start children of their own before it."""
    try:
        return any(str(HERE / "template.py") in child.cmdline() for child in psutil.Process(pid).children())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):  # a child that ended meanwhile
        return False


def test_during_the_imports_it_ends_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=mhgpo_tiny"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals) as process:
        while not preloading(process.pid):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(300) == STATUS and said.strip() == "Interrupted before the run had started."


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_run_ends_with_its_processes_and_keeps_its_checkpoint(tmp_path):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=mhgpo_tiny", "data.train_batch_size=8"]
    command += ["data.val_max_samples=8", "trainer.save_freq=1", "trainer.total_training_steps=50"]
    status, output, left = interrupted(command, tmp_path, "step  2/50")
    assert status == 130 and left == [] and "Traceback" not in output and "The run failed" not in output
    folder = tmp_path / "runs" / "mhgpo_tiny"
    saved = (folder / TRACKER).read_text()
    assert f"goes on from runs/mhgpo_tiny/global_step_{saved}" in output
    assert list((folder / f"global_step_{saved}" / "actor").glob("*model*"))
    assert (folder / "learning_curve.png").exists() and lacks(tmp_path) == []
