"""What a comparison says: its numbers by hand, its report, its figures."""

import json
import math
import re

import pytest

from tests.compare.studying import PROGRAM, STUDY, study_of
from verl_ext.compare import figures, launcher
from verl_ext.compare.__main__ import main
from verl_ext.compare.launcher import DONE, plan, run_all
from verl_ext.compare.measure import estimate, measure, quantities, table
from verl_ext.compare.report import write_report, write_tables
from verl_ext.observe.metrics import METRICS

AS_IS = {"name": "as_is", "label": "As it is", "overrides": ["+slope=0.0", "trainer.val_only=true"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All runs of the study, with a method that does not learn."""
    made = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "LOOK", 0.02)
        assert run_all(plan(of(made), made), made, 2, PROGRAM) == []
    return made


def of(folder, **changes):
    """The study of these runs, reported in another way."""
    return study_of(folder, methods=[*STUDY["methods"], AS_IS], **changes)


def measured(folder):
    return measure(of(folder), plan(of(folder), folder))


@pytest.fixture
def runs(folder):
    """All of them but for the second seed of the fast method."""
    made = plan(of(folder), folder)
    (lost,) = [run for run in made if run.name == "fast seed 2"]
    (lost.folder / DONE).rename(lost.folder / "later")
    yield made
    (lost.folder / "later").rename(lost.folder / DONE)


def test_numbers_by_hand(folder):
    study = of(folder)
    methods = measure(study, plan(study, folder))
    tokens = {row["label"]: row for row in table(study, methods, "generated_tokens")}
    # 300 tokens are used up after step 3; the first validated step from there on is 4: 0.2 + 4·slope + 0.01·seed.
    fast = tokens["Fast"]["scores"]["f1"]
    assert fast.mean == pytest.approx(0.6 + 0.015) and fast.n == 2 and tokens["Fast"]["seeds"] == [1, 2]
    assert fast.error == pytest.approx(math.sqrt(((0.005) ** 2 * 2) / 1) / math.sqrt(2))
    assert tokens["Fast"]["costs"] == {"generated_tokens": 400, "questions": 32, "agent_calls": 96, "steps": 4}
    assert tokens["Untrained"]["scores"]["f1"].mean == pytest.approx(0.215)
    assert tokens["Untrained"]["costs"] == {"generated_tokens": 0, "questions": 0, "agent_calls": 0, "steps": 0}
    x, mean, error = methods["fast"].curve("val/system/f1", "questions", points=4)
    assert list(x) == [0, 16, 32, 48] and mean == pytest.approx([0.215, 0.415, 0.615, 0.815])
    assert error == pytest.approx([0.005] * 4)
    assert quantities(methods) == {"behaviour": [], "similarity": [], "reward": [], "penalty": ["agents/a/penalty"]}
    # A system that does not learn is measured as it is.
    assert methods["as_is"].untrained and not methods["fast"].untrained
    assert tokens["As it is"]["scores"]["f1"].mean == pytest.approx(0.2 + 0.01 * 1.5)
    assert tokens["As it is"]["costs"]["steps"] == 0


def test_a_study_with_a_budget_of_operations_has_a_table_and_a_curve_of_them(folder, tmp_path):
    study = of(folder, budget={"generated_tokens": 300, "questions": 32, "operations": 4_500_000})
    (row,) = [row for row in table(study, measured(folder), "operations") if row["label"] == "Fast"]
    assert row["costs"]["operations"] == 6_000_000 and row["costs"]["steps"] == 6  # the first validated step after 4.5
    text = write_tables(study, measured(folder), [], tmp_path).read_text()
    assert "## At equal operations (4.5e+06)" in text and "steps | operations |" in text and " 6e+06 |" in text
    assert set(json.loads((tmp_path / "results.json").read_text())) == set(study.budget)


def test_a_budget_that_a_run_did_not_reach_gives_no_number(folder):
    study = of(folder, budget={"generated_tokens": 10_000, "questions": 8})
    runs = plan(of(folder), folder)
    methods = measure(study, runs)
    assert [row["label"] for row in table(study, methods, "generated_tokens")] == ["Untrained", "As it is"]
    assert len(table(study, methods, "questions")) == 4


def test_a_run_that_was_not_validated_before_its_first_step_says_nothing_of_an_untrained_system(tmp_path):
    study = study_of(tmp_path, seeds=[1])
    runs = plan(study, tmp_path)
    for run in runs:
        run.folder.mkdir(parents=True)
        (run.folder / DONE).write_text(json.dumps({"command": run.command, "seconds": 1.0, "peak_gb": 1.0}))
        entry = {"step": 1, "time": 1.0, "total_steps": 1, "metrics": {"val/system/f1": 0.9, "val/system/em": 0.9}}
        (run.folder / "metrics.jsonl").write_text(json.dumps(entry) + "\n")
    with pytest.raises(ValueError, match="slow seed 1 has no validation before its first step"):
        measure(study, runs)


def test_the_standard_error_is_the_sample_one():
    one = estimate([1.0, 2.0, 3.0, 4.0])
    assert (one.mean, one.n) == (2.5, 4) and one.error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert str(estimate([0.5])) == "0.500" and str(one).startswith("2.500 ± 0.645")


def test_systems_that_do_not_learn_have_a_report_without_curves_and_costs(folder, tmp_path):
    study = study_of(tmp_path, name="mine", methods=[AS_IS], frontier=["em", "f1"])
    methods = {name: method for name, method in measured(folder).items() if name == "as_is"}
    text = write_tables(study, methods, [], tmp_path).read_text()
    assert "| As it is " in text and "](frontier.png)" in text
    assert "](cost.png)" not in text and "](curves.png)" not in text


def test_the_report_has_tables_figures_and_the_numbers(folder, runs, tmp_path):
    study = of(folder)
    with pytest.raises(ValueError, match="no run of mine is complete"):
        write_report(study, plan(study, tmp_path), tmp_path, "the command")
    report = write_report(study, runs, tmp_path, "the command").read_text()
    assert "5 of 6 runs complete" in report and "`the command`" in report and ", runs at a time: 2" in report
    assert re.search(r"^\| Fast +\| +0\.610 \|", report, re.MULTILINE)
    assert "Seeds not there (yet), so not in the means: Fast: 2." in report
    assert "**0.610" not in report, "the mean of fewer seeds must not be called the best"
    assert "Slow \\| careful" in report, "a bar in a label must not break the table"
    for name in ("curves.png", "cost.png", "penalty.png"):
        assert name in report and (tmp_path / name).stat().st_size > 5000
    numbers = json.loads((tmp_path / "results.json").read_text())
    f1 = {"mean": pytest.approx(0.215), "standard_error": pytest.approx(0.005)}
    assert numbers["questions"][0]["scores"]["f1"] == f1


def test_what_every_agent_reports_is_no_behaviour(folder):
    """Only what a system's own penalties count has panels of its own."""
    names = {name.removeprefix("agents/<agent>/") for name in METRICS if name.startswith("agents/")} - {"<quantity>"}
    method = measured(folder)["fast"]
    method.logs[1][1]["metrics"] |= dict.fromkeys((f"agents/a/{name}" for name in (*names, "queries")), 1.0)
    assert quantities({"fast": method})["behaviour"] == ["agents/a/queries"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures by path; they are not written."""
    kept = {}
    monkeypatch.setattr(figures, "_save", lambda figure, path: kept.setdefault(path, figure) and path)
    return kept


@pytest.mark.parametrize(
    ("curves", "scores"), [([], ["f1"]), (["em"], ["em"]), (["em", "f1"], ["em", "f1"])], ids="headline one two".split()
)
def test_a_row_of_panels_for_each_score_that_is_asked_for(folder, drawn, curves, scores):
    study = of(folder, **({"curves": curves} if curves else {}))
    said = figures.draw_all(study, measure(study, plan(of(folder), folder)), folder)
    words = " and ".join(score.upper() for score in scores)
    axes = drawn[said[f"Validation {words} against what training has used"]].axes
    assert len(axes) == 2 * len(scores)
    shown = [axis.get_ylabel() for axis in axes]
    assert shown == [text for score in scores for text in (f"validation {score.upper()}, mean over seeds", "")]
    assert [axis.get_xlabel() for axis in axes] == ["generated tokens", "questions"] * len(scores)
    for axis in axes:
        lines = [line for line in axis.lines if not line.get_label().startswith("_")]
        assert [line.get_label() for line in lines] == ["Slow | careful", "Fast"]
        assert lines[1].get_ydata()[-1] == pytest.approx(0.815), "0.2 + 0.1·6 + 0.01·1.5"


def test_the_frontier_shows_where_each_method_ends(folder, runs, drawn):
    study = of(folder, frontier=["em", "f1"])
    methods = measure(study, runs)
    said = figures.draw_all(study, methods, folder)
    (axis,) = drawn[said["F1 against EM, after 32 questions"]].axes
    points = {box.get_label(): box.lines[0].get_xydata()[0] for box in axis.containers}
    row = {row["label"]: row["scores"] for row in table(study, methods, "questions")}
    assert list(points) == ["Untrained", "Slow | careful", "Fast (1 of 2 seeds)", "As it is"]
    assert points["Slow | careful"] == pytest.approx([row["Slow | careful"][name].mean for name in ("em", "f1")])
    assert points["Fast (1 of 2 seeds)"][1] == pytest.approx(0.2 + 0.1 * 4 + 0.01)
    hollow = [box.lines[0].get_markerfacecolor() == "white" for box in axis.containers]
    assert hollow == [True, False, False, True]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("EM (validation, mean over seeds)", "F1")


def logged(folder, f1, memory, steps=4, headline=""):
    """A finished run's log: `f1` and the device memory of actor and critic by step."""
    folder.mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w") as log:
        for step in range(steps + 1):
            metrics = {"val/system/f1": f1 + 0.1 * step, "val/system/em": 0.0}
            if step:
                metrics |= {"budget/generated_tokens": 100 * step, "budget/questions": 8 * step, "timing_s/step": 2.0}
                metrics |= {"actor/perf/max_memory_allocated_gb": memory * step, "sampling/agent_calls": 24}
                metrics["critic/perf/max_memory_allocated_gb"] = memory
            about = {"step": step, "time": 1000.0 + step, "total_steps": 4, "headline": headline}
            log.write(json.dumps(about | {"metrics": metrics}) + "\n")
    return folder


def test_finished_runs_are_overlaid(tmp_path, capsys):
    """Figures 5 and 6 of MHGPO's paper, of the folders that training leaves."""
    ours, theirs = logged(tmp_path / "a" / "ours", 0.3, 10.0), logged(tmp_path / "b" / "theirs", 0.1, 2.0, steps=2)
    output = tmp_path / "out"
    assert main(["--runs", str(ours), str(theirs), "--output", str(output)]) == 0
    report = (output / "runs" / "report.md").read_text()
    assert re.search(r"^\| ours +\| +\*\*0\.500\*\* \|", report, re.M), "both have used 200 tokens by step 2"
    assert re.search(r"^\| theirs +\| +0\.300 \|", report, re.M)
    cost = report.partition("## Cost of a step")[2]
    assert re.search(r"^\| ours +\| +2\.00 .*\| +40\.00 \|", cost, re.M), "the highest of all steps"
    assert (output / "runs" / "curves.png").stat().st_size > 5000 and (output / "runs" / "cost.png").exists()
    assert main(["--runs", str(ours), str(theirs), "--output", str(output), "--first_steps", "1"]) == 0
    cost = (output / "runs" / "report.md").read_text().partition("## Cost of a step")[2]
    assert re.search(r"^\| ours +\| +2\.00 .*\| +10\.00 \|", cost, re.M), "Figure 6 is about the first steps"
    for wrong, message in (
        ([str(ours), str(tmp_path)], "has no metrics.jsonl"),
        ([str(ours), str(ours)], "a folder is given twice"),
        ([str(ours), str(theirs), "--score", "f2"], "--score='f2' is unknown (allowed: em, f1)"),
    ):
        assert main(["--runs", *wrong, "--output", str(output)]) == 2
        assert message in capsys.readouterr().err


def test_finished_runs_are_compared_by_their_own_headline(tmp_path):
    runs = [str(logged(tmp_path / name, 0.3, 1.0, headline="em")) for name in ("one", "two")]
    assert main(["--runs", *runs, "--output", str(tmp_path / "out")]) == 0
    report = (tmp_path / "out" / "runs" / "report.md").read_text()
    assert re.search(r"^\| method \| +EM \| +F1 \|", report, re.M), report


def test_the_settings_in_which_finished_runs_differ_are_shown(tmp_path):
    """Not those that are equal, the seed, or what is no setting; null is as good as absent."""
    runs = [logged(tmp_path / name, 0.3, 10.0) for name in ("one", "two", "old")]
    same = {"algorithm.gamma": 1.0, "mas.seed": 1, "contents of a.py": "x", "data.train_files": ["a.parquet"]}
    (runs[0] / "settings.json").write_text(json.dumps(same | {"mas.sampling.strategy": "rr", "mas.judge.url": None}))
    other = {"mas.seed": 2, "contents of a.py": "y", "mas.sampling.strategy": "fof", "mas.tools.search.top_k": 3}
    (runs[1] / "settings.json").write_text(json.dumps(same | other))
    assert main(["--runs", *map(str, runs), "--output", str(tmp_path / "out")]) == 0
    report = (tmp_path / "out" / "runs" / "report.md").read_text()
    section = report.partition("## Settings that differ")[2].partition("##")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in section.splitlines() if row.startswith("| ")]
    assert rows == [
        ["setting", "one", "two"],
        ["mas.sampling.strategy", "rr", "fof"],
        ["mas.tools.search.top_k", "–", "3"],
    ]
    assert "No settings are recorded of old." in section


def test_the_policies_of_runs_have_a_table_with_their_own_settings(tmp_path):
    one, two = logged(tmp_path / "one", 0.3, 10.0), logged(tmp_path / "two", 0.3, 10.0)
    policies = {"small.agents": ["a", "b"], "large.agents": ["c"], "large.actor.optim.lr": 0.001, "large.frozen": False}
    settings = {f"mas.policies.{key}": value for key, value in policies.items()} | {"mas.policies.gone": None}
    (two / "settings.json").write_text(json.dumps(settings))
    (one / "settings.json").write_text(json.dumps({"mas.policies.all.agents": ["a", "b", "c"]}))
    entries = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    for entry in entries:
        for agent, calls in (("a", 10), ("b", 20), ("c", 5)):
            entry["metrics"] |= {f"agents/{agent}/calls": calls, f"agents/{agent}/output_tokens": 4.5}
        learned = {"update/rows": 30, "actor/grad_norm": 0.25, "actor/kl_loss": 0.031, "actor/lr": 2e-4}
        entry["metrics"] |= {f"policies/small/{key}": value for key, value in learned.items()}
    (two / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert main(["--runs", str(one), str(two), "--output", str(tmp_path / "out")]) == 0
    table = (tmp_path / "out" / "runs" / "report.md").read_text().partition("## Policies")[2].partition("##")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| two")]
    assert rows == [
        ["two", "small", "a, b", "", "135", "30", "0.0002", "0.25", "–", "0.031"],
        ["two", "large", "c", "actor.optim.lr=0.001, frozen=False", "22", *"–––––"],
    ]
    assert "| one" not in table, "a run with one policy has nothing to tell apart"


def test_dollars_in_a_label_are_no_formula(tmp_path):
    """Two of them enclose a formula for matplotlib, and one that it cannot read ends the report."""
    runs = [logged(tmp_path / name, 0.3, 10.0) for name in ("at $1_", "at $2_", "$\\frac$")]
    assert main(["--runs", *map(str, runs), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "runs" / "curves.png").exists()


def test_finished_runs_of_one_step_are_overlaid(tmp_path):
    """Without a validation before it there is no step beside the first one, which no cost is measured of."""
    folder = tmp_path / "short"
    folder.mkdir()
    metrics = {"val/system/f1": 0.5, "budget/generated_tokens": 100, "budget/questions": 8, "timing_s/step": 2.0}
    entry = {"step": 1, "time": 1000.0, "total_steps": 1, "metrics": metrics}
    (folder / "metrics.jsonl").write_text(json.dumps(entry) + "\n")
    assert main(["--runs", str(folder), "--output", str(tmp_path / "out")]) == 0
    assert "0.500" in (tmp_path / "out" / "runs" / "report.md").read_text()
