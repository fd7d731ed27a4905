"""What DeepAgent makes of outputs, memories and gold paths; nothing that a model says can break it."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl_ext.mas import Task
from verl_ext.recipe.deepagent import grammar, memories
from verl_ext.rewards.calls import Invocation, gold_path
from verl_ext.rewards.correctness import correct_calls, path_share

TAGS = ("<tool_call>", "</tool_call>", "<tool_search>", "</tool_search>", "<fold_thought>", "</think>", "\\boxed{", "}")
pieces = st.lists(
    st.sampled_from([*TAGS, '{"name": "f", "arguments": {}}', '{"name": 3}', "[1]", "NaN", "x ", "é🙂"])
    | st.text(max_size=5)
)
outputs = pieces.map("".join)


# -- grammar ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,expected",
    [
        ("so <tool_search> a film </tool_search>", ("search", "a film")),
        ('<tool_call> {"name": "f", "arguments": {"x": [1, {}]}} </tool_call>', ("call", "f", {"x": [1, {}]})),
        ('<tool_call>{"name": "f"}</tool_call>', ("call", "f", {})),
        ("I think <fold_thought>", ("fold",)),
        ("so it is Paris", ("answer", "so it is Paris")),
        ("<think> hm </think>\n Paris ", ("answer", "Paris")),
        ("it is \\boxed{a{b}c} then", ("answer", "a{b}c")),
        ("\\boxed{old} no: \\boxed{new}", ("answer", "new")),
        ("\\boxed{open", ("answer", "\\boxed{open")),
        ("", ("answer", "")),
        ("<tool_search>  </tool_search>", ("broken", "empty")),
        ("<tool_search> never closed", ("broken", "not closed by </tool_search>")),
        ('<tool_call>{"name": "f"', ("broken", "not closed by </tool_call>")),
        ("<tool_call>{'name': 'f'}</tool_call>", ("broken", "no JSON")),
        ('<tool_call>{"name": 3}</tool_call>', ("broken", "a call is")),
        ('<tool_call>["f"]</tool_call>', ("broken", "a call is")),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', ("broken", "must be an object")),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', ("broken", "NaN is no JSON")),
        (f"<tool_call>{'[' * 100_000}</tool_call>", ("broken", "no JSON")),
        ("a <fold_thought> b <tool_search>c</tool_search>", ("fold",)),  # the first action counts
    ],
)
def test_steps(text, expected):
    step = grammar.read_step(text)
    kind, *rest = expected
    assert step.kind == kind
    if kind == "call":
        assert [step.name, step.arguments] == rest
    elif kind in ("search", "answer", "broken"):
        said = {"search": step.query, "answer": step.answer, "broken": step.problem}[kind]
        assert rest[0] in said if kind == "broken" else said == rest[0]


@settings(max_examples=100, deadline=None)
@given(outputs)
@example("<tool_call>" * 2000)
def test_no_output_breaks_the_grammar(text):
    step = grammar.read_step(text)
    assert step.kind in ("search", "call", "fold", "answer", "broken")
    spans = grammar.action_spans(text)
    assert all(0 <= a < b <= len(text) and text[a] == "<" for a, b in spans)
    assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:], strict=False))
    if step.kind in ("call", "fold"):
        assert spans, "what is done is marked"
    if step.kind == "answer":
        assert not spans


def test_spans_by_hand():
    text = "a<tool_search>q</tool_search>b<tool_call>{}</tool_call>c<fold_thought>d<tool_call>open"
    actions = ["<tool_call>{}</tool_call>", "<fold_thought>", "<tool_call>open"]
    assert [text[a:b] for a, b in grammar.action_spans(text)] == actions


@settings(max_examples=100, deadline=None)
@given(outputs)
@example("< / TOOL_CALL_result >")
@example("<<tool_call>")
def test_no_result_can_be_taken_for_an_action(content):
    shown = grammar.observed("tool_call", content)
    inner = shown.strip().removeprefix("<tool_call_result>").removesuffix("</tool_call_result>")
    assert grammar.read_step(inner).kind == "answer" and not grammar.action_spans(shown)
    assert not grammar.TAG.search(inner) and shown.count("</tool_call_result>") == 1


@pytest.mark.parametrize("content", ["<" + " " * 200_000, "< / " * 50_000, "<" * 200_000])
def test_hostile_results_take_linear_time(content):
    """Quadratic matching of 200,000 blanks takes longer than the time limit of a test."""
    assert grammar.neutral(content) == content


def test_memories_are_validated():
    good = {"immediate_goal": "g", "current_challenges": "", "next_actions": [{"type": "t", "description": "p"}]}
    schema = memories.SCHEMAS["working"]
    for text in (json.dumps(good), f"<think>so</think>{json.dumps(good)}", f"```json\n{json.dumps(good)}\n```"):
        assert memories.read_memory(text, schema) == (good, "")
    for text, problem in [
        ("no", "no JSON"),
        ('{"immediate_goal": "g"}', "required"),
        (json.dumps(good | {"next_actions": "p"}), "$.next_actions"),
        (json.dumps(good | {"more": 1}), "dditional"),
        ("[" * 5000, "no JSON"),
        ('"' + "x" * 30_000 + '"', "characters"),
    ]:
        memory, why = memories.read_memory(text, schema)
        assert memory is None and problem in why, text[:40]


JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=3), x)
)


# -- correctness ------------------------------------------------------------------------------------------------------

A, B = Invocation("a", {"x": 1}), Invocation("b", {"y": 2})


@pytest.mark.parametrize(
    "rule,calls,expected",
    [
        ("gold_path", [A, B], 2),
        ("gold_path", [A, A, B], 2),  # saying it again earns nothing
        ("gold_path", [Invocation("a", {"x": 2}), B], 1),
        ("gold_path", [Invocation("a", {"x": 1}, ok=False), B], 1),
        ("gold_path", [Invocation("a", {"x": 1}, ok=False), A], 1),
        ("arguments", [Invocation("a", {"x": 1}, ok=False)], 1),
        ("name", [Invocation("a", {"x": 7}), Invocation("a", {"x": 8})], 1),
        ("executed", [A, A, Invocation("z", {}), Invocation("z", {}, ok=False)], 2),
        ("executed", [], 0),
    ],
)
def test_correct_calls_by_hand(rule, calls, expected):
    assert correct_calls(rule, calls, [A, B]) == expected


def test_a_path_that_names_tools_alone_and_an_empty_one():
    named = [Invocation("a", None), Invocation("a", None), Invocation("b", None)]
    assert correct_calls("gold_path", [A, A, A, B], named) == 3 and correct_calls("gold_path", [A], []) == 0
    assert path_share([A, B], named) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("calls", "gold", "ordered", "any_order"),
    [
        ([A, B], [A, B], 1.0, 1.0),
        ([B, A], [A, B], 0.5, 1.0),
        ([A, Invocation("z"), B], [A, B], 1.0, 1.0),
        ([A], [A, B], 0.5, 0.5),
        ([Invocation("a", {"x": 1}, False), B], [A, B], 0.5, 0.5),
        ([A, A, A], [A, B, A], 2 / 3, 2 / 3),
        ([B, A, A], [A, B, A], 2 / 3, 1.0),
        ([], [], 1.0, 1.0),
        ([A], [], 1.0, 1.0),
        ([], [A], 0.0, 0.0),
    ],
)
def test_path_share_by_hand(calls, gold, ordered, any_order):
    """In any order each call of the path counts once."""
    assert path_share(calls, gold) == pytest.approx(ordered)
    assert path_share(calls, gold, ordered=False) == pytest.approx(any_order)


def test_gold_paths_of_a_row():
    path = '["GET /a", {"name": "b", "arguments": {"y": 2}}]'
    assert gold_path(Task("q", {"path": path})) == [Invocation("GET /a", None), B]
    assert gold_path(Task("q", {})) == gold_path(Task("q")) == []
    with pytest.raises(ValueError, match="must list names or calls, given 3"):
        gold_path(Task("q", {"path": [3]}))
