"""Training that cannot go on ends and says why."""

from __future__ import annotations

import threading

import psutil
import pytest

from tests.end_to_end.running import entries, run

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


def test_a_killed_rollout_worker_ends_the_run_with_the_reason(tmp_path):
    killed = threading.Event()

    def kill() -> None:
        while not killed.wait(0.2):
            if [entry for entry in entries(tmp_path) if entry["step"] == 1]:
                for process in psutil.process_iter(["cmdline", "cwd"]):
                    ours = process.info["cwd"] == str(tmp_path)
                    if ours and "ray::RemoteRolloutWorker" in " ".join(process.info["cmdline"] or []):
                        process.kill()
                        killed.set()

    watcher = threading.Thread(target=kill, daemon=True)
    watcher.start()
    with pytest.raises(AssertionError) as error:
        run(tmp_path, "actor_rollout_ref.rollout.agent.num_workers=1", "trainer.total_training_steps=1000")
    assert killed.is_set()
    watcher.join()
    assert "The run failed" in str(error.value) and "died" in str(error.value)
