"""What a finished run says."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from verl_ext.observe.doctor_report import report
from verl_ext.observe.progress import Progress
from verl_ext.observe.runlog import NAME, TRACKER, VALIDATION, RunLog, read_log
from verl_ext.observe.summary import (
    CRITICS,
    next_steps,
    nothing_learned,
    print_summary,
    what_was_learned,
    without_forks,
)
from verl_ext.observe.trajectory_files import FOLDER
from verl_ext.reports import docs_page


def entry(step: int, f1: float | None, penalty: float) -> dict:
    metrics = {"system/reward": f1 or 0.0, "agents/judge/penalty": penalty, "agents/judge/unparsable": 0.25}
    return {"step": step, "metrics": metrics | ({"val/system/f1": f1} if f1 is not None else {})}


def test_first_and_last_validation_and_the_best():
    lines = what_was_learned(
        [entry(0, 0.25, -0.5), entry(1, 0.75, 0.0), entry(2, None, 0.0), entry(3, 0.5, -0.1)], "f1"
    )
    assert "validation F1   0.250 → 0.500 (+0.250) in 3 steps; best 0.750" in lines[0]
    assert "judge           penalty -0.500 → -0.100, unparsable 25.0% → 25.0%" in lines[-1]


def test_next_steps_keep_what_was_overridden(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/elsewhere/bin/python")
    given = ["--config-dir", "my dir", "+recipe=mhgpo_tiny", "mas.agents={a: {top_p: 0.9}}", "mas.sampling.strategy=is"]
    lines = next_steps([*given, "trainer.default_local_dir=runs/x"], "is", Path("runs/x"))
    strategy, critic = (shlex.split(line.split("   ", 1)[1]) for line in lines[:2])
    assert strategy == [
        *"python -m verl.trainer.main_ppo --config-dir".split(),
        *["my dir", "+recipe=mhgpo_tiny", "mas.agents={a: {top_p: 0.9}}"],
        *["mas.sampling.strategy=rr", "trainer.default_local_dir=runs/x_rr"],
    ]
    assert "+recipe=mappo_tiny" in critic and "+recipe=mhgpo_tiny" not in critic and "my dir" in critic
    assert "mas.sampling.strategy=rr" not in " ".join(critic)


def test_a_longer_run_goes_on_only_from_a_checkpoint(tmp_path):
    assert "this run has no checkpoint to go on from" in "".join(next_steps([], "is", tmp_path))
    (tmp_path / TRACKER).write_text("4")
    assert "total_training_steps goes on from here" in "".join(next_steps([], "is", tmp_path))


def test_only_recipes_that_exist_are_recommended():
    configs = Path(__file__).parents[2] / "configs" / "recipe"
    assert all((configs / f"{name}.yaml").is_file() for pair in CRITICS.items() for name in pair)
    assert not [line for line in next_steps(["+recipe=mhgpo_24gb"], "fof", Path("runs/x")) if "MAPPO" in line]


def test_looking_and_evaluating_come_first_by_the_console_script(monkeypatch, tmp_path):
    """README's next steps, with the script of the environment that runs; what only training needs is left out."""
    monkeypatch.chdir(tmp_path)
    programs, run = tmp_path / "env" / "bin", Path("runs/my run")
    for path in (programs, run / FOLDER, run / "global_step_4"):
        path.mkdir(parents=True)
    (run / FOLDER / "000001.jsonl").touch()
    for name in ("python", "verl_ext"):
        (programs / name).touch(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    given = ["--config-dir", ".", "+recipe=mine", "mas.policy=per_agent_lora"]
    given += ["trainer.save_freq=4", "data.train_batch_size=8", "data.val_max_samples=8", "mas.deterministic=true"]

    def commands() -> list[str]:
        lines = next_steps(given, "rr", run, run / "global_step_4")
        assert not [line for line in lines if "own system" in line], "it is one"
        return [line.split("   ", 1)[1].strip().removesuffix("   (writes one page for your browser)") for line in lines]

    view, evaluate, *_ = commands()
    assert shlex.split(view) == ["env/bin/verl_ext", "view", "runs/my run", "--open"]
    assert shlex.split(evaluate) == [
        *["env/bin/verl_ext", "evaluate", *given[:4], "evaluate.model=runs/my run/global_step_4"]
    ]
    monkeypatch.setenv("PATH", str(programs))
    assert [command.split()[0] for command in commands()[:3]] == ["verl_ext", "verl_ext", "python"]
    assert "own_system.md" in next_steps(["+recipe=mhgpo_tiny"], "rr", run)[-1]


def test_a_step_whose_trajectories_failed_says_how_many_and_why(tmp_path, capsys):
    log = RunLog(tmp_path, NAME)
    log.start(0, 2)
    failed = {"sampling/trajectories": 128, "sampling/failed_trajectories": 98}
    log.write(1, failed | {"sampling/failed/call_limit": 98})
    log.write(2, failed | {"sampling/failed/call_limit": 2, "sampling/failed/diverged": 96})
    print_summary(log.path, "f1", "fof", [])
    words = "98 of 128 training trajectories of the last step failed: call limit 2, diverged 96"
    assert words in capsys.readouterr().out
    entry = {"step": 2, "total_steps": 2, "time": 1.0, "metrics": read_log(log.path)[-1]["metrics"]}
    assert "98 trajectories failed: call limit 2, diverged 96" in Progress(tmp_path, "f1")._line(entry)
    log.write(3, {"sampling/trajectories": 128, "sampling/failed_trajectories": 0})
    print_summary(log.path, "f1", "fof", [])
    assert "failed" not in capsys.readouterr().out, "what has passed does not matter any more"


def test_a_long_name_does_not_break_the_column():
    entries = [{"step": n, "metrics": {"val/system/answer_in_title": 0.25 * n, "system/reward": 0.5}} for n in (0, 1)]
    first, second = what_was_learned(entries, "answer_in_title")
    assert first.index("0.000") == second.index("0.500") and "in 1 step; best" in first


def test_pages_are_named_as_they_can_be_opened(monkeypatch, tmp_path):
    clone = Path(__file__).parents[2]
    monkeypatch.chdir(clone)
    assert docs_page("metrics.md") == "docs/metrics.md"
    monkeypatch.chdir(tmp_path)
    assert docs_page("metrics.md") == str(clone / "docs" / "metrics.md")


def test_next_steps_of_another_system_and_of_round_robin(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    lines = next_steps(["+recipe=own_system"], "rr", Path("runs/own"))
    assert lines[0].split("   ", 1)[1].startswith(".venv/bin/python -m verl.trainer.main_ppo +recipe=own_system")
    assert "mas.sampling.strategy=fof" in lines[0]
    assert not [line for line in lines if "MAPPO" in line]


def test_a_run_without_metrics_says_so(tmp_path, capsys):
    print_summary(tmp_path / NAME, "f1", "fof", [])
    assert "left no metrics" in capsys.readouterr().out


def test_an_evaluation_says_its_figure_and_leaves_the_curve_alone(tmp_path, capsys):
    log = RunLog(tmp_path, VALIDATION)
    log.start(0, 40)
    log.write(20, {"val/system/f1": 0.75})
    (tmp_path / "global_step_20").mkdir()
    print_summary(log.path, "f1", "fof", [])
    output = capsys.readouterr().out
    assert "validation F1   0.750 at step 20" in output and "global_step_20" in output and VALIDATION in output
    assert "Next:" not in output and [path.name for path in tmp_path.glob("*.png")] == []


def flat(share: float, reward: float) -> dict:
    return {"step": 1, "metrics": {"groups/zero_variance": share, "system/reward": reward}}


def test_a_run_that_could_not_learn_says_so():
    words = "\n".join(nothing_learned([flat(0.97, 0.0), flat(1.0, 0.01)]))
    assert "Nothing was learned: in at least 97% of the groups at every step all samples" in words
    assert "Nothing was learned: in all groups all samples" in "\n".join(nothing_learned([flat(1.0, 0.0)]))
    assert not nothing_learned([flat(0.97, 0.0), flat(0.5, 0.01)])
    assert not nothing_learned([flat(1.0, 1.0)])  # solved
    assert not nothing_learned([{"step": 0, "metrics": {}}])


def test_independent_trajectories_in_the_place_of_forks_are_told_at_the_end_and_by_the_doctor():
    entries = [{"step": step, "metrics": {"sampling/without_forks": count}} for step, count in ((1, 3), (2, 24))]
    assert "27 trajectories" in " ".join(without_forks(entries)) and without_forks(entries[:0]) == []
    assert "27 trajectories" in report("run", entries).partition("To look at")[2]


def test_a_system_without_rewards_of_its_agents_own_does_not_speak_of_them():
    lines = what_was_learned([entry(0, 0.1, 0.0), entry(1, 0.2, 0.0)], "f1")
    assert lines[-1] == "  judge           unparsable 25.0% → 25.0%"
    flawless = [{"step": step, "metrics": {"agents/a/penalty": 0.0, "agents/a/unparsable": 0.0}} for step in (0, 1)]
    assert what_was_learned(flawless, "f1") == ["  agents          every output of all 1 could be read"]
    cut = [one | {"metrics": one["metrics"] | {"agents/a/truncated": 0.75}} for one in flawless]
    assert what_was_learned(cut, "f1")[0].endswith(
        "could be read, and in the last step were cut off: a 75% (max_tokens)"
    )


def test_tokens_are_told_where_the_workflow_reports_them_and_a_headline_that_it_does_not():
    entries = [{"step": step, "metrics": {"val/system/em": 0.5, "val/system/tokens": 36.0 - step}} for step in (0, 10)]
    lines = what_was_learned(entries, "exat")
    assert "headline is 'exat', but its reward reports em, tokens" in lines[0]
    assert "tokens a question 36.0 → 26.0" in lines[1]
    assert "headline" not in "\n".join(what_was_learned(entries, "em"))
