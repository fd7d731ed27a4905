"""What the terminal and error.log say of a run that stopped."""

from __future__ import annotations

import pickle
import traceback
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from ray.exceptions import RayTaskError

from tests.observe.test_error_log import sampled
from tests.test_tracebacks import user_code
from tests.trainer.test_checkpoint import run
from verl_ext.observe.error_log import NAME
from verl_ext.observe.question_stats import Failure
from verl_ext.trainer.run_callback import _explain
from verl_ext.trainer.step import Step, check_left_out
from verl_ext.trainer.trainer import MultiAgentTrainer


def stopped(error: Exception, action, *stats) -> RuntimeError:
    """The error of a training step in which verl raises `error`, or `action` one of its own."""
    trainer = SimpleNamespace(global_steps=3, agent_loop_manager=Mock(take_stats=lambda uids: list(stats)))
    with pytest.raises(Exception) as told:
        with MultiAgentTrainer._explain_failures(trainer, "training"):
            action()
            raise error
    return told.value


def from_ray(error: Exception) -> Exception:
    """The error as the driver gets it of the trainer's actor: its traceback is a text."""
    text, sent = "".join(traceback.format_exception(error)), pickle.loads(pickle.dumps(error))
    return RayTaskError("run", text, sent).as_instanceof_cause()


def test_a_step_in_which_every_trajectory_failed_stops_with_the_users_line():
    error = stopped(RuntimeError("Received an empty list as keys"), Mock(), sampled("first", "first"), sampled("first"))
    reason, _, trace = str(error).partition("\n\n")
    assert reason == (
        "training at step 3: none of its trajectories could finish: 3 x workflow_error; the first: KeyError: 'q'"
    )
    assert "return {}[task.question]" in trace and "empty list" not in str(error)


def test_an_error_of_a_plugin_in_the_trainer_shows_its_line():
    error = stopped(RuntimeError(), lambda: user_code("{"))
    assert str(error).startswith("training at step 3 stopped by JSONDecodeError") and "in user_code" in str(error)


def test_another_error_is_left_as_it_is():
    given = ValueError("of verl's own")
    given.__traceback__ = None
    assert "of verl's own" in str(stopped(given, Mock()))


def test_the_terminal_and_the_file_have_the_users_line_first(tmp_path, capsys):
    error = stopped(RuntimeError("verl's"), Mock(), sampled("first"))
    with pytest.raises(SystemExit):
        _explain(from_ray(error), run(tmp_path).trainer)
    shown, log = capsys.readouterr().err, (tmp_path / NAME).read_text()
    for text in (shown, log):
        assert "none of its trajectories could finish" in text and "return {}[task.question]" in text
    assert "_explain_failures" not in shown and "verl's" not in shown
    assert log.index("return {}[task.question]") < log.index("The whole traceback") < log.index("_explain_failures")


def test_a_full_disk_does_not_hide_why_the_run_failed(tmp_path, capsys):
    (tmp_path / NAME).symlink_to("/dev/full")
    _explain(from_ray(RuntimeError("mine")), run(tmp_path).trainer)  # and Hydra shows the traceback
    shown = capsys.readouterr().err
    assert "The run failed.\nRuntimeError: mine" in shown and "not written: No space left on device" in shown


@pytest.mark.parametrize(
    ("statuses", "remedy"),
    [
        (["engine_error", "diverged", "workflow_error"], "raise mas.failure.max_left_out"),
        (
            ["timeout", "diverged"],
            "give such trajectories a reward (mas.failure.timeout=0.0), or raise mas.failure.max_left_out",
        ),
    ],
)
def test_only_settings_that_there_are_are_a_remedy_for_trajectories_left_out(statuses, remedy):
    errors = [Failure(status, "why", "", 1) for status in statuses]
    step = Step(3, stats=[SimpleNamespace(errors=errors)], metrics={"sampling/left_out": 0.75})
    with pytest.raises(RuntimeError) as error:
        check_left_out(step, 0.5)
    assert str(error.value).endswith(f"Remedy: mend the reason; or {remedy}")
