"""What a comparison says: its numbers by hand, its report, its figures."""

import json
import math
import re

import pytest

from tests.compare.studying import PROGRAM, STUDY, study_of
from verl_ext.compare import figures
from verl_ext.compare.launcher import plan, run_all
from verl_ext.compare.measure import estimate, measure, quantities, table
from verl_ext.compare.report import write_report


def test_numbers_by_hand(tmp_path):
    study = study_of(tmp_path)
    runs = plan(study, tmp_path)
    run_all(runs, tmp_path, 2, PROGRAM)
    methods = measure(study, runs)
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
    assert quantities(methods) == {"behaviour": [], "similarity": [], "penalty": ["agents/a/penalty"]}


def test_a_budget_that_a_run_did_not_reach_gives_no_number(tmp_path):
    study = study_of(tmp_path, budget={"generated_tokens": 10_000, "questions": 8}, seeds=[1])
    runs = plan(study, tmp_path)
    run_all(runs, tmp_path, 2, PROGRAM)
    methods = measure(study, runs)
    assert [row["label"] for row in table(study, methods, "generated_tokens")] == ["Untrained"]
    assert len(table(study, methods, "questions")) == 3


def test_the_standard_error_is_the_sample_one():
    one = estimate([1.0, 2.0, 3.0, 4.0])
    assert (one.mean, one.n) == (2.5, 4) and one.error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert str(estimate([0.5])) == "0.500" and str(one).startswith("2.500 ± 0.645")


def test_the_report_has_tables_figures_and_the_numbers(tmp_path):
    study = study_of(tmp_path)
    runs = plan(study, tmp_path)
    with pytest.raises(ValueError, match="no run of mine is complete"):
        write_report(study, runs, tmp_path / "mine", "the command")
    run_all(runs[:3], tmp_path, 2, PROGRAM)  # the fast one lacks its second seed
    report = write_report(study, runs, tmp_path / "mine", "the command").read_text()
    assert "3 of 4 runs complete" in report and "`the command`" in report and ", runs at a time: 2" in report
    assert re.search(r"^\| Fast +\| +0\.610 \|", report, re.MULTILINE)
    assert "Seeds not there (yet), so not in the means: Fast: 2." in report
    assert "**0.610" not in report, "the mean of fewer seeds must not be called the best"
    assert "Slow \\| careful" in report, "a bar in a label must not break the table"
    for name in ("curves.png", "cost.png", "penalty.png"):
        assert name in report and (tmp_path / "mine" / name).stat().st_size > 5000
    numbers = json.loads((tmp_path / "mine" / "results.json").read_text())
    assert numbers["questions"][0]["scores"]["f1"] == {
        "mean": pytest.approx(0.215),
        "standard_error": pytest.approx(0.005),
    }


@pytest.mark.parametrize(
    ("curves", "scores"), [([], ["f1"]), (["em"], ["em"]), (["em", "f1"], ["em", "f1"])], ids="headline one two".split()
)
def test_a_row_of_panels_for_each_score_that_is_asked_for(tmp_path, monkeypatch, curves, scores):
    changes = {"curves": curves} if curves else {}
    study = study_of(tmp_path, seeds=[1], **changes)
    runs = plan(study, tmp_path)
    run_all(runs, tmp_path, 2, PROGRAM)
    drawn = {}
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.setdefault(path, figure) and path)
    said = figures.draw_all(study, measure(study, runs), tmp_path)
    caption = (
        f"Validation {' and '.join(scores).replace('f1', 'F1').replace('em', 'EM')} against what training has used"
    )
    axes = drawn[said[caption]].axes
    assert len(axes) == 2 * len(scores)
    shown = [axis.get_ylabel() for axis in axes]
    assert shown == [text for score in scores for text in (f"validation {score.upper()}, mean over seeds", "")]
    assert [axis.get_xlabel() for axis in axes] == ["generated tokens", "questions"] * len(scores)
    for axis in axes:
        lines = [line for line in axis.lines if not line.get_label().startswith("_")]
        assert [line.get_label() for line in lines] == ["Slow | careful", "Fast"]
        assert lines[1].get_ydata()[-1] == pytest.approx(0.81), "0.2 + 0.1·6 + 0.01"


def test_a_system_that_does_not_learn_is_measured_as_it_is(tmp_path):
    as_is = {"name": "as_is", "label": "As it is", "overrides": ["+slope=0.0", "trainer.val_only=true"]}
    study = study_of(tmp_path, methods=[*STUDY["methods"], as_is])
    runs = plan(study, tmp_path)
    assert run_all(runs, tmp_path, 1, PROGRAM) == [] and len(runs) == 6
    methods = measure(study, runs)
    assert methods["as_is"].untrained and not methods["fast"].untrained
    rows = {row["label"]: row for row in table(study, methods, "questions")}
    assert rows["As it is"]["scores"]["f1"].mean == pytest.approx(0.2 + 0.01 * 1.5)
    assert rows["As it is"]["costs"]["steps"] == 0


def test_the_frontier_shows_where_each_method_ends(tmp_path, monkeypatch):
    study = study_of(tmp_path, frontier=["em", "f1"])
    runs = plan(study, tmp_path)
    run_all(runs[:3], tmp_path, 2, PROGRAM)  # the fast one lacks its second seed
    drawn = {}
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.setdefault(path, figure) and path)
    said = figures.draw_all(study, measure(study, runs), tmp_path)
    (axis,) = drawn[said["F1 against EM, after 32 questions"]].axes
    points = {box.get_label(): box.lines[0].get_xydata()[0] for box in axis.containers}
    row = {row["label"]: row["scores"] for row in table(study, measure(study, runs), "questions")}
    assert list(points) == ["Untrained", "Slow | careful", "Fast (1 of 2 seeds)"]
    assert points["Slow | careful"] == pytest.approx([row["Slow | careful"][name].mean for name in ("em", "f1")])
    assert points["Fast (1 of 2 seeds)"][1] == pytest.approx(0.2 + 0.1 * 4 + 0.01)
    assert [box.lines[0].get_markerfacecolor() == "white" for box in axis.containers] == [True, False, False]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("EM (validation, mean over seeds)", "F1")
