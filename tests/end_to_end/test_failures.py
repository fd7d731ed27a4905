"""Training that cannot go on ends and says why."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.running import entries, run
from verl_ext.storage.jsonl import read_log

pytestmark = pytest.mark.slow


def test_an_unreachable_retrieval_server_ends_the_run_with_the_reason(tmp_path):
    dead = ["mas.tools.search.corpus=null", "mas.tools.search.url=http://127.0.0.1:9", "mas.limits.tool_retries=0"]
    with pytest.raises(AssertionError) as at_start:
        run(tmp_path, *dead)
    assert "127.0.0.1:9" in str(at_start.value) and "This run cannot start" in str(at_start.value)
    with pytest.raises(AssertionError) as later:
        run(tmp_path, *dead, "+mas.tools.search.check=false", "+mas.tools.search.attempts=1")
    assert "validation at step 0: none of its trajectories could finish: 16 x tool_error" in str(later.value)


def test_an_asynchronous_run_without_any_rows_ends_with_the_reason(tmp_path):
    """verl replaces failed questions by fresh ones, which would go on for ever."""
    dead = ["mas.tools.search.corpus=null", "mas.tools.search.url=http://127.0.0.1:9", "mas.limits.tool_retries=0"]
    with pytest.raises(AssertionError, match="questions gave nothing to train on.* x tool_error"):
        run(
            tmp_path,
            *dead,
            "+mas.tools.search.check=false",
            "+mas.tools.search.attempts=1",
            "trainer.val_before_train=false",
            "trainer.v1.trainer_mode=mas_colocate_async",
        )


def blocking_search(**_: object) -> Callable[..., Any]:
    """A tool that blocks its event loop."""

    async def search(queries: list[str]) -> None:
        time.sleep(1000)  # as a user may write it

    return search


def test_a_tool_that_blocks_its_event_loop_is_shown_and_ends_the_run(tmp_path):
    """A run of its own: no other ends by the watchdog, and no limit of a call holds while the loop is blocked."""
    limits = {"warn_after": 5, "stop_after": 20, "call_timeout": 10, "tool_timeout": 10}
    with pytest.raises(AssertionError) as error:
        run(
            tmp_path,
            "mas.tools.search._target_=tests.end_to_end.test_failures.blocking_search",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            *(f"mas.limits.{name}={seconds}" for name, seconds in limits.items()),
        )
    assert re.search(r"stop_after=20\): nothing has happened for \d+ s: .* of tool \"search\"", str(error.value))
    assert "time.sleep(1000)  # as a user may write it" in str(error.value)
    first = next(read_log(tmp_path / "runs/mhgpo_tiny/watchdog.jsonl"))["text"]
    assert first.startswith("nothing has happened for") and "is blocked by this code" in first


def test_a_stopped_training_process_is_named_and_ends_the_run(tmp_path):
    """The other one waits for it in a collective operation of the update, for torch's half an hour."""
    stopped: list[psutil.Process] = []
    over = threading.Event()

    def stop() -> None:
        while not stopped and not over.wait(0.05):
            if [entry for entry in entries(tmp_path) if entry["step"] == 1]:
                ranks = [one for one in ours(tmp_path) if "ray::WorkerDict" in " ".join(command_of(one))]
                idle = ranks[-1].cpu_times().user
                while ranks[-1].cpu_times().user < idle + 0.3:  # then it works for the trainer
                    time.sleep(0.02)
                ranks[-1].suspend()
                stopped.append(ranks[-1])

    watcher = threading.Thread(target=stop, daemon=True)
    watcher.start()
    limits = {"warn_after": 5, "stop_after": 15, "call_timeout": 10, "tool_timeout": 10}
    limits_given = [f"mas.limits.{name}={seconds}" for name, seconds in limits.items()]
    # Without a reference model the update is the first phase after the rollouts in which the processes work.
    endless = ["trainer.total_training_steps=1000", "actor_rollout_ref.actor.use_kl_loss=false"]
    try:
        # In a process tree of its own: Ray may leave a stopped worker, which ends with the process it is forked from.
        with pytest.raises(AssertionError) as error:
            run(tmp_path, "trainer.n_gpus_per_node=2", *endless, *limits_given, shared=False)
        text = str(error.value)
        # The update as a rule; on a busy machine the process may be stopped a little later.
        reason = r"failed.\nRuntimeError: .*stop_after=15\): the trainer has been in \w+, which "
        assert re.search(reason, text) and f"(process {stopped[0].pid}) is stopped (SIGSTOP)" in text
        assert re.search(r"rank \d \(process \d+\) is here, the innermost call first:\n  File", text)
        assert psutil.wait_procs(ours(tmp_path), timeout=300)[1] == []
    finally:
        over.set()
        for process in ours(tmp_path):
            process.kill()


def command_of(process: psutil.Process) -> list[str]:
    """Nothing for a process that has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def ours(folder: Path) -> list[psutil.Process]:
    """The processes of a run in this folder."""
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(folder)]


def test_a_killed_training_process_ends_the_run_with_the_reason(tmp_path):
    killed = threading.Event()

    def kill() -> None:
        while not killed.wait(0.2):
            if [entry for entry in entries(tmp_path) if entry["step"] == 1]:
                for process in psutil.process_iter(["cmdline", "cwd"]):
                    ours = process.info["cwd"] == str(tmp_path)
                    if ours and "ray::WorkerDict" in " ".join(process.info["cmdline"] or []):
                        process.kill()
                        killed.set()

    watcher = threading.Thread(target=kill, daemon=True)
    watcher.start()
    with pytest.raises(AssertionError) as error:
        run(tmp_path, "actor_rollout_ref.rollout.agent.num_workers=1", "trainer.total_training_steps=1000")
    assert killed.is_set()
    watcher.join()
    assert "The run failed" in str(error.value) and "died" in str(error.value)
