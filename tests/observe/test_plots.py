"""The pictures of a run: which panels, which steps, and that a person can read them."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.observe.deciding import decided
from tests.observe.viewing import HOSTILE, forked
from verl_ext.observe.collaboration import collaboration
from verl_ext.observe.collaboration_plot import (
    before_and_after,
    collaboration_picture,
    draw_graph,
    plain,
    shares_over_steps,
)
from verl_ext.observe.decisions import Path, decision_metrics
from verl_ext.observe.graph_layout import layout, most_frequent
from verl_ext.observe.plots import learning_curve, panels
from verl_ext.observe.record import by_step
from verl_ext.observe.runlog import NAME, RunLog
from verl_ext.observe.summary import print_summary
from verl_ext.observe.trajectory_files import FOLDER, TrajectoryLog


def entry(step, **metrics):
    return {"step": step, "metrics": {name.replace("__", "/"): value for name, value in metrics.items()}}


def titles(*entries, headline="f1"):
    return [title for title, _ in panels(list(entries), headline)]


def test_panels_are_those_that_have_something_to_show():
    usual = {"val__system__f1": 0.5, "system__reward": 0.5, "agents__a__penalty": -0.1}
    always = ["Validation F1 (greedy)", "Training reward (sampled)", "Agent-specific penalty"]
    assert titles(entry(1, **usual)) == always
    more = {"decisions__boss__entropy": 1.0, "decisions__boss__top_path": 0.5}
    more |= {"val__system__tokens": 7, "system__agents": 3}
    assert titles(entry(1, **usual), entry(2, **more))[3:] == [
        "Entropy of decisions (nats)",
        "Share of the most frequent path",
        "Tokens of a trajectory",
        "Agents of a trajectory",
    ]
    assert "Agent-specific penalty" not in titles(entry(1, **usual | {"agents__a__penalty": 0.0}))
    lines = dict(panels([entry(1, **usual), entry(2, **more)], "f1"))
    assert lines["Tokens of a trajectory"] == [("validation", "val/system/tokens")]
    assert lines["Entropy of decisions (nats)"] == [("boss", "decisions/boss/entropy")]
    assert "Tokens of a trajectory" not in titles(entry(1, **usual | more), headline="tokens"), "it has its own panel"
    assert titles(entry(1, decisions__boss__top_path=None)) == []


@pytest.mark.parametrize("metrics", [{}, {"system__reward": 0.5}, {"agents__$a_$__similarity": 0.5}])
def test_a_run_with_hardly_any_metrics_has_a_learning_curve(tmp_path, metrics):
    assert learning_curve([entry(1, **metrics)], "f1", tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")


def test_shares_over_the_steps_by_hand():
    entries = [
        {"step": 0, "metrics": {"val/choices/boss/a": 1.0}},
        {"step": 1, "metrics": {"choices/boss/a/b": 0.25, "choices/boss/c": 0.75, "choices/bo/d": 1.0}},
        {"step": 2, "metrics": {"system/reward": 0.0}},
        {"step": 3, "metrics": {"choices/boss/c": 1.0}},
    ]
    assert shares_over_steps(entries, "boss") == ([1, 3], {"a/b": [0.25, 0.0], "c": [0.75, 1.0]})
    assert shares_over_steps(entries[:1], "boss") == ([0], {"a": [1.0]}), "validation where nothing was trained"
    assert shares_over_steps(entries, "other") == ([], {})


def test_before_and_after_are_validations_if_there_are_two():
    train = [("train", 1), ("train", 5), ("train", 9)]
    assert before_and_after([*train, ("val", 0), ("val", 9)]) == [("val", 0), ("val", 9)]
    assert before_and_after([*train, ("val", 0)]) == [("train", 1), ("train", 9)]
    assert before_and_after([("train", 1), ("val", 0)]) == [("val", 0)] and before_and_after([]) == []


def run_of(folder, *steps):
    """Writes the trajectory log and returns the entries of the metrics' log, made from the same paths."""
    entries = []
    for step, paths in enumerate(steps, 1):
        lines = decided(step, paths, sorted({name for path in paths for name in path}))
        TrajectoryLog(folder / FOLDER, 10**7, 2).write(lines)
        metrics = decision_metrics(Path("boss", tuple(path), 1.0) for path in paths)
        entries.append({"step": step, "metrics": metrics})
    return entries


@pytest.mark.parametrize(
    "steps",
    [
        [["a"], ["aaa"]],
        [[[HOSTILE, "$x$", "_", "\\alpha$", "知识\ud800", ""]], [["$", "$$", "a\nb"]]],
        [[[f"role {n}", f"role {n + 1}"] for n in range(40)]] * 2,
    ],
)
def test_any_decisions_give_a_picture(tmp_path, steps, recwarn):
    entries = run_of(tmp_path, *steps)
    for logged in (True, False):
        picture = tmp_path / f"{logged}.png"
        assert collaboration_picture(tmp_path, entries, picture).read_bytes().startswith(b"\x89PNG")
        for path in (tmp_path / FOLDER).glob("*"):
            path.unlink()
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_without_decisions_there_is_no_picture(tmp_path):
    TrajectoryLog(tmp_path / FOLDER, 10**7, 2).write(forked(1))
    assert collaboration_picture(tmp_path, [entry(1, system__reward=0.5)], tmp_path / "c.png") is None
    assert not (tmp_path / "c.png").exists()


@pytest.mark.parametrize("count", [1, 2, 12])
def test_labels_of_a_graph_do_not_overlap(count):
    """Everybody is the first once, and goes on to everybody: loops and starts everywhere, and long names."""
    from matplotlib.figure import Figure

    names = [f"WWWWWWWWWWWW {n:02d} WWWWWWWWW" for n in range(count)]
    lines = decided(1, [[a, a, b] for a in names for b in names], names)
    ((nodes, graphs),) = collaboration(by_step(lines)).values()
    figure = Figure(figsize=(6.2, 5))
    axis = figure.add_axes((0, 0, 1, 1))
    graph = graphs["train", 1]
    drawn = layout(graph, nodes.labels, most_frequent([graph]))
    draw_graph(axis, drawn, nodes.labels, ["C0"] * len(nodes.labels))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == 2 * min(count, 12)
    names, shares = boxes[::2], boxes[1::2]
    labels = list(zip(names, shares, strict=True))
    assert not [1 for one, two in combinations(labels, 2) for a in one for b in two if a.overlaps(b)]
    discs = [patch for patch in axis.patches if hasattr(patch, "radius") and patch.get_zorder() == 3]
    for disc in discs:
        x, y = axis.transData.transform(disc.center)
        radius = axis.transData.transform((disc.center[0] + disc.radius, 0))[0] - x
        for box in boxes:
            away = (max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))
            assert (away[0] ** 2 + away[1] ** 2) ** 0.5 > radius, "a label on a node"
    inside = figure.bbox
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 and box.y1 <= inside.y1 for box in boxes)


def test_names_are_one_line_without_formulas():
    assert plain("a\nb\x00\u202ec") == "a b  c" and plain("$x$") == r"\$x\$"
    assert plain("x" * 30) == "x" * 17 + "…" and len(plain("x" * 18)) == 18


def test_the_end_of_a_run_names_the_picture(tmp_path, capsys):
    log = RunLog(tmp_path, NAME)
    log.start(0, 2)
    for made in run_of(tmp_path, ["ab", "b"], ["ab", "ab"]):
        log.write(made["step"], made["metrics"])
    print_summary(tmp_path / NAME, "f1", "is", [])
    assert f"  collaboration    {tmp_path / 'collaboration.png'}\n" in capsys.readouterr().out
    assert (tmp_path / "collaboration.png").stat().st_size > 20_000
