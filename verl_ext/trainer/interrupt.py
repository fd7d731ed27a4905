"""Ctrl-C ends a run at once, with a line of text instead of tracebacks of Ray, Hydra and verl."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from subprocess import Popen
from types import FrameType

import psutil
from omegaconf import DictConfig

from verl_ext.observe.plots import learning_curve
from verl_ext.observe.progress import Progress
from verl_ext.observe.runlog import NAME, read_log
from verl_ext.trainer.state import checkpoint

# The exit status that a shell reports for a program that Ctrl-C has ended.
STATUS = 128 + signal.SIGINT
# Seconds for ended processes to be gone.
PATIENCE = 2.0


def end_on_interrupt(progress: Progress, trainer: DictConfig, template: Popen[bytes] | None = None) -> None:
    """From now on Ctrl-C ends this process and all that it has started, with exit status 130.

    Ray's processes are killed: an orderly shutdown waits for the actors' present step. A checkpoint is complete only
    once its tracker names it, so a killed save leaves the last one.

    Args:
        progress: shows the last steps, then ends.
        trainer: verl's section: folder of the run, and where the same command would begin.
        template: the preloaded process that Ray's workers are forked from; it ends and removes its socket by itself
            once this process is gone.
    """
    if threading.current_thread() is not threading.main_thread() or os.environ.get("HYDRA_FULL_ERROR"):
        return
    folder = Path(trainer.default_local_dir)

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the second Ctrl-C of an impatient user changes nothing
        ended: list[psutil.Process] = []
        try:
            ended = end_processes(template)
            progress.stop()
            print(_message(trainer), file=sys.stderr, flush=True)
            if entries := read_log(folder / NAME):
                curve = learning_curve(entries, progress.headline, folder / "learning_curve.png")
                print(f"  learning curve   {curve}\n")
        finally:
            psutil.wait_procs(ended, timeout=PATIENCE)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(STATUS)  # no atexit: Ray would wait for the processes that are gone

    signal.signal(signal.SIGINT, end)


def end_processes(spared: Popen[bytes] | None = None) -> list[psutil.Process]:
    """Kill, and return, the descendants of this process: Ray's, its workers, the tools' of the workers."""
    started = [one for one in psutil.Process().children(recursive=True) if spared is None or one.pid != spared.pid]
    for process in started:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return started


def _message(trainer: DictConfig) -> str:
    start = checkpoint.next_start(trainer)
    return f"\nInterrupted. The same command {start} (trainer.save_freq={trainer.save_freq}).\n"
