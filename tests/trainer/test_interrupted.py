"""Ctrl-C in training: what is said in the place of tracebacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import heed_signals
from verl_ext.trainer.state.checkpoint import TRACKER

WAITING = """
import sys, time
from pathlib import Path
from verl_ext.observe.progress import Progress
from verl_ext.trainer.run_callback import _say_what_an_interrupt_leaves

folder = Path(sys.argv[1])
progress = Progress(folder, "f1")
progress.start()
_say_what_an_interrupt_leaves(progress, folder, 20)
print("ready", flush=True)
time.sleep(60)
"""


def interrupted(folder: Path, **environment: str) -> tuple[int, str]:
    """Exit status and stderr of a process that is interrupted while it waits, as a driver does for Ray."""
    command = [sys.executable, "-c", WAITING, str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": heed_signals}
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as process:
        for line in process.stdout:
            if line == "ready\n":
                break
        process.send_signal(signal.SIGINT)
        return process.wait(30), process.stderr.read()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_it_says_where_the_same_command_goes_on(tmp_path, checkpointed):
    if checkpointed:
        (tmp_path / TRACKER).write_text("40")
    status, said = interrupted(tmp_path)
    assert status == -signal.SIGINT and "Traceback" not in said
    there = f"goes on from {tmp_path}/global_step_40" if checkpointed else "starts afresh: it has no checkpoint yet"
    assert f"Interrupted. The same command {there} (trainer.save_freq=20)." in said


def test_who_asks_for_tracebacks_gets_them(tmp_path):
    status, said = interrupted(tmp_path, HYDRA_FULL_ERROR="1")
    assert status == -signal.SIGINT and "KeyboardInterrupt" in said and "Traceback" in said
