"""What is read of the baselines' outputs, and DFSDT's tree: by hand, and what holds for whatever is said and tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.recipe.smurfs.tree import Step, Tree
from verl_ext.recipe.smurfs.turns import Turn, action_spans, observed, read_turn

CALL = 'Thought: the film first\nAction: film\nAction Input: {"q": "x"}\nObservation:'


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (CALL, Turn("call", "the film first", "film", {"q": "x"})),
        (f"{CALL} made up\nFINAL ANSWER: made up, too", Turn("call", "the film first", "film", {"q": "x"})),
        ("**Action:** `film`\n**Action Input:** {'q': 'x',}", Turn("call", "", "film", {"q": "x"})),
        ('<think>Action: no</think>\nAction: film\nAction Input: {"q": 1}', Turn("call", "", "film", {"q": 1})),
        (
            '<think>Action: film\nAction Input: {"q": 1}\nFINAL ANSWER: Tova',
            Turn("broken", problem="there is neither an action nor an answer"),
        ),
        ("I know.\nFINAL ANSWER: **Tova**\nAction: film", Turn("answer", "I know.", answer="Tova")),
        ('Thought: ok\nAction: Finish\nAction Input: {"answer": "Tova"}', Turn("answer", "ok", answer="Tova")),
        ("Action: Finish\nAction Input: Tova Brandt\n", Turn("answer", answer="Tova Brandt")),
        ('Action: Finish\nAction Input: {"answer": 0}', Turn("answer", answer="0")),
        ('Action: Finish\nAction Input: {"answer": null}', Turn("answer")),
        ('Action: Finish\nAction Input: {"answer": "Tova Bra', Turn("answer")),
        ("Action: Finish", Turn("answer")),
        ("Thought: stuck\nAction: give_up_and_restart\nAction Input: {}", Turn("give_up", "stuck")),
        ("Tova", Turn("broken", problem="there is neither an action nor an answer")),
        ("Action: \nAction Input: {}", Turn("broken", problem="the action has no name")),
    ],
)
def test_outputs(text, turn):
    assert read_turn(text, question="q") == turn


@pytest.mark.parametrize("said", ["", "\nAction Input: x", "\nAction Input: [1]", '\nAction Input: {"a": NaN}'])
def test_calls_whose_arguments_cannot_be_read(said):
    turn = read_turn(f"Action: film{said}")
    assert (turn.kind, turn.name, turn.arguments) == ("call", "film", None)
    assert turn.problem.startswith("the Action Input cannot be read")


def test_only_tool_calls_are_actions():
    ((start, end),) = action_spans(CALL)
    assert CALL[start:end] == 'Action: film\nAction Input: {"q": "x"}'
    assert action_spans("FINAL ANSWER: x") == action_spans("Action: Finish") == action_spans("no") == []


def test_the_observation_is_announced_once():
    assert observed(CALL, "Tova") == " Tova\nThought:"
    assert observed(CALL.removesuffix("\nObservation:"), "Tova") == "\nObservation: Tova\nThought:"


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "Thought:",
        "Action:",
        "Action Input:",
        "Observation:",
        "FINAL ANSWER:",
        "Finish",
        "film",
        '{"q": "x"}',
        "\n",
        "{",
    ]
)


@given(st.lists(PIECES | st.text(max_size=8), max_size=12).map("".join))
def test_whatever_an_output_is_it_is_read(text):
    turn = read_turn(text)
    assert turn.kind in ("call", "answer", "give_up", "broken") and "\n" not in turn.answer
    assert (turn.kind == "broken" or turn.arguments is None) == bool(turn.problem) or turn.kind in ("answer", "give_up")
    assert all(0 <= start < end <= len(text) for start, end in action_spans(text))


def step(name):
    return Step("t", name, {}, "o")


def names(steps):
    return "".join(one.name for one in steps)


def test_a_tree_by_hand():
    """a, below it b (which is given up) and c (below which there is nothing); width 2 closes a's node; then d."""
    tree = Tree(width=2, max_depth=2)
    tree.go_on(step("a"))
    tree.go_on(step("b"))
    assert (names(tree.path), tree.deepest, tree.tried) == ("ab", True, [])
    tree.give_up()
    assert (names(tree.path), names(tree.tried), tree.rollbacks, tree.deepest) == ("a", "b", 1, False)
    assert tree.has_tried("b", {}) and not tree.has_tried("b", {"x": 1}) and not tree.has_tried("a", {})
    tree.go_on(step("c"))
    tree.give_up()
    assert (names(tree.path), names(tree.tried), tree.rollbacks) == ("", "a", 3), "two ways below a were tried"
    tree.go_on(step("d"))
    assert names(tree.path) == "d" and names(tree.everything) == "abcd"
    tree.give_up()
    assert not tree.open and tree.rollbacks == 5 and names(tree.everything) == "abcd"


@given(st.integers(1, 3), st.integers(1, 4), st.lists(st.sampled_from("abc") | st.none(), max_size=60))
def test_no_call_is_made_twice_at_a_node(width, max_depth, said):
    tree, visits = Tree(width, max_depth), []
    for name in said:
        if not tree.open:
            break
        if name is None or tree.deepest:
            tree.give_up()
        elif not tree.has_tried(name, {}):
            # The nodes on the way are told apart by how often the ones above them were tried.
            visits.append((tuple(map(id, tree.path)), name))
            tree.go_on(Step("t", name, {}, "o"))
        if tree.open:
            assert len(tree.path) <= max_depth and len(tree.tried) < width
    assert len(set(visits)) == len(visits) == len(tree.everything)
    assert len(visits) <= sum(width**depth for depth in range(1, max_depth + 1))
