"""From decisions in the trajectory log to graphs of who acted after whom: by hand, and what holds for all paths."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.observe.deciding import decided, decision
from tests.observe.viewing import HOSTILE, forked, question, trajectory
from verl_ext.observe.collaboration import MOST, Shown, collaboration, fold, paths_in, shown
from verl_ext.observe.decisions import Path
from verl_ext.observe.graph_layout import page_index
from verl_ext.observe.record import by_step


def of(lines):
    """The questions of the one step that these lines are of."""
    (questions,) = by_step(lines).values()
    return questions


def test_paths_of_the_log_are_those_of_finished_trajectories():
    """Two trajectories share the first decision, a third failed; one call names no option, one is no decision."""
    shared = decision("boss", 0, "a", "ab", -0.5, trajectories=[0, 1, 2])
    calls = [
        shared,
        decision("boss", 1, "b", "ab", -0.5, id="1", trajectories=[0, 2]),
        decision("boss", 1, "z", "ab", None, id="2", trajectories=[1])
        | {"decision": {"options": ["a", "b"], "chosen": None, "log_prob": None}},
        decision("boss", 0, "x", "xyz", -1.5, id="3", trajectories=[1], scope=["l"]),
        decision("boss", 9, "b", "ab", -0.5, id="4", trajectories=[1]) | {"decision": None},
    ]
    ends = [trajectory(), trajectory(), trajectory(None, "timeout")]
    (one,) = of(question(1, calls, ends))
    assert paths_in(one) == [
        Path("boss", ("a", "b"), 0.5, 2.0),
        Path("boss", ("a",), 0.5, 2.0),
        Path("boss", ("x",), 1.5, 3.0),
    ]


def test_where_nobody_decides_there_is_no_graph():
    steps = by_step(forked(1))
    assert collaboration(steps) == {} and page_index(steps)["collaboration"] == []


def test_a_folded_graph_by_hand():
    lines = [
        *decided(1, ["b"], options="abc", log_prob=-2.0),
        *decided(1, ["aab", "ab", "ab"], options="abc", log_prob=-1.0, number=1),
    ]
    ((nodes, graphs),) = collaboration(by_step(lines)).values()
    # Mean places: a 1/6, 3/6, 1/4, 1/4; b 1/2, 5/6, 3/4, 3/4.
    assert nodes == Shown(("a", "b")) and nodes.labels == ["a", "b"]
    graph = graphs["train", 1]
    assert (graph.paths, graph.counts, graph.first, graph.shares) == (4, [4, 4], [3, 1], [0.5, 0.5])
    assert graph.edges == {(0, 0): 1, (0, 1): 3}
    assert (graph.top, graph.top_count, graph.question) == (("a", "b"), 2, 1)
    expected = {"length": 2.0, "top_path": 0.5, "paths": 0.75, "density": 0.25, "cycles": 0.25, "cycle_length": 1.0}
    assert graph.numbers == pytest.approx(expected | {"entropy": 1.25, "options": 3.0})


def test_the_rarest_choices_are_drawn_as_one():
    often = [Path("boss", (f"often {n:02d}",) * 2) for n in range(MOST)]
    assert len(shown(often).choices) == MOST and shown(often).others == 0
    rare = [Path("boss", ("rare", "often 00", "rarest"))]
    nodes = shown([*often, *rare])
    assert len(nodes.choices) == MOST - 1 and nodes.others == 3 and nodes.labels[-1] == "3 others"
    graph = fold([(0, path) for path in rare], nodes)
    named, rest = nodes.place("often 00"), nodes.place("rare")
    assert rest == nodes.place("rarest") == MOST - 1 and graph.counts[rest] == 2 and graph.first[rest] == 1
    assert graph.edges == {(rest, named): 1, (named, rest): 1} and graph.top == ("rare", "often 00", "rarest")


paths = st.lists(
    st.lists(st.sampled_from([f"c{n}" for n in range(16)]), min_size=1, max_size=8), min_size=1, max_size=8
)


@given(paths)
def test_nothing_is_lost_in_folding(given_paths):
    numbered = [(n, Path("boss", tuple(path))) for n, path in enumerate(given_paths)]
    nodes = shown([path for _, path in numbered])
    graph = fold(numbered, nodes)
    assert len(graph.counts) == len(nodes.labels) <= MOST and min(graph.counts) > 0
    assert sum(graph.counts) == sum(map(len, given_paths)) and sum(graph.first) == len(given_paths)
    assert sum(graph.edges.values()) == sum(len(path) - 1 for path in given_paths)
    assert sum(graph.shares) == pytest.approx(1) and graph.top == tuple(given_paths[graph.question])
    for node in range(len(graph.counts)):  # what comes to a node is that with which paths begin, and the edges into it
        into = sum(times for (_, to), times in graph.edges.items() if to == node)
        assert graph.counts[node] == graph.first[node] + into


def test_what_the_page_gets_is_json_and_bounded():
    long = [HOSTILE * 50] * 60
    lines = [*decided(1, [long], [HOSTILE * 50]), *decided(2, ["ab"], number=1), *decided(0, ["ba"], phase="val")]
    (agent,) = json.loads(json.dumps(page_index(by_step([*lines, *decided(3, [], number=2)]))))["collaboration"]
    assert (agent["agent"], sorted(agent["moments"])) == ("boss", ["0", "1", "3"]), "2: no decision"
    assert agent["labels"][0].startswith("</script>") and len(agent["labels"][0]) <= 200
    first = agent["moments"]["0"]
    assert len(first["top"]["path"]) == 40 and first["top"]["more"] == 20 and len(json.dumps(agent)) < 20_000
    (step, start) = agent["moments"]["3"]["ways"]
    assert (step["from"], step["to"]) == (agent["labels"].index("b"), agent["labels"].index("a"))
    assert (start["from"], start["to"], start["times"]) == (None, step["from"], 1)
