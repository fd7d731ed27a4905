"""A comparison: its study file, and its runs (killed, failed, gone on with)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import yaml

from tests.compare.studying import PROGRAM, STUDY, study_of
from tests.helpers import heed_signals
from verl_ext.compare import launcher
from verl_ext.compare.__main__ import main
from verl_ext.compare.launcher import DONE, PROCESS, TRACKER, end_left_behind, plan, run_all, settings, shares
from verl_ext.compare.study import read_study


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(launcher, "LOOK", 0.02)


def launched(folder):
    """A process that runs the study `mine.yaml` of the folder, one run at a time."""
    code = (
        "import sys; from pathlib import Path; from verl_ext.compare import launcher\n"
        "from verl_ext.compare.study import read_study\n"
        "launcher.LOOK = 0.02\n"
        "room = Path(sys.argv[1])\n"
        "launcher.run_all(launcher.plan(read_study(str(room / 'mine.yaml')), room), room, 1, sys.argv[2:])"
    )
    command = [sys.executable, "-c", code, str(folder), *PROGRAM]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=heed_signals)


@pytest.fixture
def hold(tmp_path):
    """A run with the override `holding` whose folder this file names waits after its second step."""
    return tmp_path / "hold"


def holding(file, *more):
    return ["mas.seed={seed}", "+steps=6", f"+hold={file}", *more]


def wait_for(process, holds):
    """Until a condition holds, as long as the process runs."""
    while not holds():
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.02)


def steps_of(run):
    return [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def started(runs):
    return {run.name: (run.folder / "started").stat().st_mtime_ns for run in runs if (run.folder / "started").exists()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methodes": []}, "unknown key.*methodes.*did you mean 'methods'"),
        ({"seeds": [1, 1]}, "must be distinct"),
        ({"budget": {"questions": 5}}, "must give generated_tokens and questions"),
        ({"headline": "f2"}, "headline='f2' is unknown"),
        ({"methods": [{"name": "a", "label": "A", "start_of": "b"}]}, "method a is the start of 'b'"),
        ({"methods": [{"name": "a"}]}, "label"),
        ({"methods": [{"name": "a", "label": "A"}, {"name": "b", "label": "A"}]}, "labels of their own; given: A, A"),
        ({"methods": None}, "methods=None must be a list"),
        ({"methods": ["a"]}, "methods.0='a' must be a section with keys"),
        ({"overrides": "mas.seed={seed}"}, "overrides='mas.seed={seed}' must be a list"),
        ({"scores": "f1"}, "scores='f1' must be a list"),
        ({"curves": "em"}, "curves='em' must be a list"),
        ({"curves": ["em", "exact"]}, r"curves=\['em', 'exact'\] must be of scores=\['f1', 'em'\]"),
        ({"curves": ["em", "em"]}, "each once"),
        ({"frontier": ["em"]}, r"frontier=\['em'\] must be two of the scores"),
        ({"frontier": ["em", "exact"]}, r"frontier=\['em', 'exact'\] must be of scores"),
        ({"seeds": 3}, "seeds=3 must be a list"),
        ({"budget": {"generated_tokens": "16k", "questions": 5}}, "budget.generated_tokens='16k' must be of type int"),
        (
            {"methods": [*STUDY["methods"], {"name": "again", "label": "A", "start_of": "none"}]},
            "method again is the start of 'none'",
        ),
    ],
)
def test_wrong_studies_say_what_is_wrong(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        study_of(tmp_path, **changes)


def test_a_file_that_is_no_yaml_is_named(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("title: x\n\tscores: [f1\n")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "mine.yaml")])
    assert re.search(r"mine.yaml is no YAML: .*line 2", capsys.readouterr().err, re.DOTALL)


@pytest.mark.parametrize("option", [["--score", "em"], ["--first_steps", "2"]])
def test_an_option_of_finished_runs_is_refused_for_studies(tmp_path, capsys, option):
    study_of(tmp_path)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "mine.yaml"), "--report", "--output", str(tmp_path), *option])
    assert f"{option[0]} is about --runs" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--quick", "--report", "--cfg=job"])
def test_an_option_of_studies_is_refused_for_finished_runs(tmp_path, capsys, option):
    with pytest.raises(SystemExit):
        main(["--runs", str(tmp_path), option])
    assert f"{option.partition('=')[0]} is about studies" in capsys.readouterr().err


def test_the_small_form_names_methods_of_the_study(tmp_path):
    study_of(tmp_path, quick=STUDY["quick"] | {"methods": ["fast", "faster"]})
    with pytest.raises(ValueError, match="quick: methods has faster, which the study does not"):
        read_study(str(tmp_path / "mine.yaml"), quick=True)


def test_methods_override_what_is_common_and_the_small_form_both(tmp_path):
    methods = [{"name": "fast", "label": "Fast", "overrides": ["+steps=8", "+slope=0.1"]}]
    small = STUDY["quick"] | {"overrides": ["+slope=0.2"]}
    study = study_of(tmp_path, methods=methods, quick=small)
    whole = settings(study.command(study.method("fast"), 1))
    assert (whole["mas.seed"], whole["+steps"], whole["+slope"]) == ("1", "8", "0.1")
    quick = read_study(str(tmp_path / "mine.yaml"), quick=True)
    assert settings(quick.command(quick.method("fast"), 1))["+slope"] == "0.2"


def test_two_studies_of_one_name_are_refused(tmp_path, capsys):
    study_of(tmp_path)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "mine.yaml")] * 2)
    assert "two studies of one name" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["mine.yaml"], ["--runs", "run"]])
def test_an_output_that_is_no_folder_is_named(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    study_of(tmp_path)
    (tmp_path / "run").mkdir()
    entry = {"step": 0, "time": 1.0, "total_steps": 1, "metrics": {"val/system/f1": 0.5}}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(entry) + "\n")
    (tmp_path / "out").write_text("")
    assert main([*arguments, "--output", "out"]) in (1, 2)
    assert str(tmp_path / "out") in capsys.readouterr().err


def test_a_score_that_no_run_recorded_is_named_and_the_other_study_is_reported(tmp_path, capsys):
    runs = plan(study_of(tmp_path), tmp_path)
    run_all(runs, tmp_path, 2, PROGRAM)
    study_of(tmp_path, scores=["f1", "exact"])
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(STUDY))
    shutil.copytree(tmp_path / "mine", tmp_path / "other")
    status = main([str(tmp_path / "mine.yaml"), str(tmp_path / "other.yaml"), "--report", "--output", str(tmp_path)])
    said = capsys.readouterr()
    assert status == 1 and "scores='exact' is unknown (allowed: em, f1)" in said.err
    assert "| Fast " in said.out


def test_an_unknown_study_names_the_shipped_ones():
    with pytest.raises(ValueError, match="did you mean .search.*arithmetic, .*policies.*or give a YAML file"):
        read_study("seach")


def test_the_composed_configurations_are_shown_without_running(tmp_path, capsys):
    assert main(["policies", "--quick", "--cfg", "job", "--output", str(tmp_path)]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    runs = plan(read_study("policies", quick=True), tmp_path)
    assert [one["trainer"]["default_local_dir"] for one in documents] == [str(run.folder) for run in runs]
    assert not list(tmp_path.iterdir())


def test_complete_runs_are_not_run_again_and_changed_ones_are(tmp_path):
    study = study_of(tmp_path)
    runs = plan(study, tmp_path)
    assert run_all(runs, tmp_path, 2, PROGRAM) == []
    before = started(runs)
    assert len(before) == 4 and all(run.record["seconds"] > 0 for run in runs)
    run_all(runs, tmp_path, 2, PROGRAM)
    assert started(runs) == before
    (runs[0].folder / DONE).write_text("{")  # cut short
    changed = plan(study_of(tmp_path, overrides=["mas.seed={seed}", "+steps=6", "+other=1"]), tmp_path)
    assert all(run.record is None for run in changed)
    run_all(runs, tmp_path, 2, PROGRAM)
    after = started(runs)
    assert {name for name in before if after[name] != before[name]} == {runs[0].name}
    kept = runs[0].folder.with_name(runs[0].folder.name + ".1")
    assert (kept / DONE).read_text() == "{" and (kept / "metrics.jsonl").exists(), "results are set aside, not deleted"


def test_a_file_that_is_newer_than_complete_runs_is_named(tmp_path, capsys):
    """A new cold start at the old place: settings alone do not tell."""
    model, data = tmp_path / "model", tmp_path / "data.parquet"
    model.mkdir()
    for file in (model / "config.json", data):
        file.write_text("{}")
    read = ["mas.seed={seed}", "+steps=1", f"+model={model}", f"+data={data}", "+absent=/nowhere"]
    runs = plan(study_of(tmp_path, overrides=read), tmp_path)
    run_all(runs, tmp_path, 2, PROGRAM)
    run_all(runs, tmp_path, 2, PROGRAM)
    assert "has changed" not in capsys.readouterr().out
    later = time.time() + 9
    os.utime(model / "config.json", (later, later))
    run_all(runs, tmp_path, 2, PROGRAM)
    told = capsys.readouterr().out
    assert f"{model} has changed since complete runs read it" in told and str(data) not in told


def test_a_failed_run_stops_nothing_and_is_tried_again(tmp_path, capsys):
    methods = [*STUDY["methods"][1:], {"name": "broken", "label": "B", "overrides": ["+slope=0", "+fail=1"]}]
    runs = plan(study_of(tmp_path, methods=methods, seeds=[1]), tmp_path)
    failed = run_all(runs, tmp_path, 2, PROGRAM)
    assert [run.name for run in failed] == ["broken seed 1"]
    assert "there is no such model" in capsys.readouterr().out
    assert [run.record is None for run in runs] == [False, False, True]
    assert run_all(runs, tmp_path, 2, PROGRAM) == failed


def test_the_time_left_is_told_by_budgets(tmp_path):
    """A run that does not train says nothing about how long the others take, nor what an earlier process has done."""
    untrained = {"name": "untrained", "label": "U", "overrides": ["trainer.val_only=true"]}
    first, *waiting = plan(study_of(tmp_path, methods=[*STUDY["methods"], untrained], seeds=[1]), tmp_path)
    assert [len(run.budget) for run in (first, *waiting)] == [2, 2, 0]
    program = [sys.executable, "-c", "pass"]
    first.folder.mkdir(parents=True)
    (first.folder / TRACKER).touch()
    (first.folder / PROCESS).write_text(json.dumps({"command": first.command}))

    def log(questions):
        entry = {"step": 1, "metrics": {"budget/generated_tokens": 300, "budget/questions": questions}}
        with open(first.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(entry) + "\n")

    log(8)  # of 32: by an earlier process
    live = launcher.Live(first, tmp_path, program, dict(os.environ), set())
    live.look()
    assert live.share == 0.25 and launcher.time_left(waiting, [live], 0.0, 60.0) == ""
    log(16)
    live.look()
    assert live.progress == 0.25 and launcher.time_left(waiting, [live], 0.0, 60.0).strip() == "6 min 00 s left"
    assert launcher.time_left([], [live], 1.0, 150.0).strip() == "1 min 00 s left"
    log(40)
    live.look()
    live.kill()
    assert live.share == 1.0 and launcher.time_left(waiting[1:], [live], 0.0, 60.0) == "", "only a validation is left"


def test_interrupted_it_ends_what_it_started_and_goes_on_later(tmp_path, hold):
    with launcher._signals():
        handlers = {signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        assert handlers <= {signal.default_int_handler, signal.SIG_IGN}
    study = study_of(tmp_path, overrides=holding(hold, "+child=1"))
    runs = plan(study, tmp_path)
    hold.write_text(str(runs[1].folder))
    process = launched(tmp_path)
    wait_for(process, (runs[1].folder / "child").exists)
    os.kill(process.pid, signal.SIGTERM)
    process.wait(300)
    child = int((runs[1].folder / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert [run.record is None for run in runs] == [False, True, True, True]
    first = started(runs)[runs[0].name]
    hold.unlink()
    assert run_all(runs, tmp_path, 4, PROGRAM) == []
    assert started(runs)[runs[0].name] == first and all(run.record is not None for run in runs)


def test_what_a_killed_launcher_left_behind_is_ended_and_two_at_once_are_refused(tmp_path, hold):
    runs = plan(study_of(tmp_path, overrides=holding(hold), seeds=[1]), tmp_path)
    hold.write_text(str(runs[0].folder))
    process = launched(tmp_path)
    wait_for(process, (runs[0].folder / "metrics.jsonl").exists)
    with pytest.raises(BlockingIOError, match="another comparison is running"):
        run_all(runs, tmp_path, 1, PROGRAM)
    process.kill()
    process.wait(300)
    place = f"trainer.default_local_dir={runs[0].folder}"
    left = [one for one in psutil.process_iter(["cmdline"]) if place in (one.info["cmdline"] or ())]
    assert len(left) == 1, "nobody is left to end it"
    code = "import time; print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, place], stdout=subprocess.PIPE, start_new_session=True) as other:
        other.stdout.readline()
        threading.Thread(target=release_after, args=(left[0], hold)).start()
        assert run_all(runs, tmp_path, 2, PROGRAM) == []
        assert other.poll() is None, "another process with the same argument is not ours to end"
        other.kill()
    assert ended(left[0])
    assert steps_of(runs[0]) == [0, 1, 2, 3, 4, 5, 6], "only one process wrote"


def test_what_is_left_behind_is_ended_before_any_run_starts(tmp_path):
    """A run whose turn comes late would otherwise disturb those before it."""
    runs = plan(study_of(tmp_path, seeds=[1]), tmp_path)
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as left:
        record = {"pid": left.pid, "started": psutil.Process(left.pid).create_time()}
        runs[1].folder.mkdir(parents=True)
        (runs[1].folder / PROCESS).write_text(json.dumps(record))
        program = [sys.executable, "-c", f"import psutil; raise SystemExit(psutil.pid_exists({left.pid}))"]
        failed = run_all(runs[:2], tmp_path, 1, program)
        left.kill()
    assert failed == []


def test_a_run_that_cannot_be_recorded_does_not_go_on_alone(tmp_path, monkeypatch):
    """The disk is full, or Ctrl-C comes, just after its process has begun."""
    begun = []

    def full(path, content):
        begun.append(json.loads(content)["pid"])
        raise OSError("no space left on device")

    monkeypatch.setattr(launcher, "write_file", full)
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(OSError, match="no space left"):
        run_all(plan(study_of(tmp_path), tmp_path)[:1], tmp_path, 1, program)
    (pid,) = begun
    left = psutil.pid_exists(pid)
    if left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def release_after(process, file):
    """Remove the file once the process has ended."""
    while not ended(process):
        time.sleep(0.01)
    file.unlink()


def test_a_killed_run_goes_on_from_its_checkpoint_and_its_cost_adds_up(tmp_path, hold):
    run = plan(study_of(tmp_path, overrides=holding(hold, "+save=1"), seeds=[1]), tmp_path)[0]
    hold.write_text(str(run.folder))
    process = launched(tmp_path)
    wait_for(process, lambda: (run.folder / TRACKER).exists() and (run.folder / TRACKER).read_text() == "2")
    os.kill(process.pid, signal.SIGTERM)
    process.wait(300)
    hold.unlink()
    before = json.loads((run.folder / PROCESS).read_text())
    (run.folder / PROCESS).write_text(json.dumps(before | {"seconds": 1000.0, "commit": "abc"}))
    assert run_all([run], tmp_path, 1, PROGRAM) == []
    assert steps_of(run) == [0, 1, 2, 3, 4, 5, 6], "no step is run twice"
    assert run.record["seconds"] > 1000 and run.record["commit"].startswith("abc")
    assert not run.folder.with_name(run.folder.name + ".1").exists()


def test_a_process_that_got_the_recorded_number_later_is_left_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        started = psutil.Process(other.pid).create_time()
        for record in ({"pid": other.pid, "started": started - 60}, {"pid": other.pid}, [], "x"):
            (tmp_path / PROCESS).write_text(json.dumps(record))
            end_left_behind(tmp_path)
        assert other.poll() is None
        (tmp_path / PROCESS).write_text(json.dumps({"pid": other.pid, "started": started}))
        end_left_behind(tmp_path)
        other.wait(300)
    end_left_behind(tmp_path)  # it is gone
    end_left_behind(tmp_path / "nothing")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not pin processes")
def test_runs_have_cores_of_their_own(tmp_path):
    cores = os.sched_getaffinity(0)
    for jobs in (1, 2, 3, 5):
        dealt = shares(jobs)
        assert len(dealt) == jobs and all(dealt) and set().union(*dealt) == cores
    if len(cores) > 1:
        assert not shares(2)[0] & shares(2)[1]
    pinned = max(map(len, shares(2)))
    runs = plan(study_of(tmp_path, overrides=["mas.seed={seed}", "+steps=6", f"+pinned={pinned}"], seeds=[1]), tmp_path)
    run_all(runs, tmp_path, 2, PROGRAM)
    kept = [set(json.loads((run.folder / "cores").read_text())) for run in runs]
    assert kept == shares(2) and os.sched_getaffinity(0) == cores
