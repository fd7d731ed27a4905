"""What JoyAgents' agents write is read, and judged, as it ought to be: cases by hand."""

from __future__ import annotations

import inspect
import json
import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.mas.prompts import prompt_names
from verl_ext.memory import HashingSimilarity, Memory, format_memories
from verl_ext.recipe.joyagents import JoyAgents, grammar, prompts, prompts_tiny
from verl_ext.recipe.joyagents.accuracy import accuracy, functions_called, last_number
from verl_ext.recipe.joyagents.react import intention_of
from verl_ext.recipe.joyagents.workflow import SPECIALISTS

SIMILARITY = HashingSimilarity()
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "kind", "formed"),
    [
        (f"<think>why</think>{CALL}", "call", True),
        (f"  <think>why</think>\n{CALL}\n", "call", True),
        (f"<think></think>{CALL}", "call", True),
        (CALL, "call", False),  # no thought
        (f"<think>why{CALL}", "call", False),
        (f"<think>why</think>{CALL} and more", "call", False),
        (f"<think>why</think>{CALL}{CALL}", "call", False),
        ("<think>why</think> 42", "answer", True),
        ("<think>why</think>", "answer", False),
        ("42", "answer", False),
        ("<think>why</think> 42 </think>", "answer", False),
        ("<think>a<think>b</think> 42", "answer", False),
        ("<think>why</think><tool_call>{no json}</tool_call>", "broken", False),
        ('<think>why</think><tool_call>{"name": "f"', "broken", False),
        ("<think>why</think><tool_call>[1]</tool_call>", "broken", False),
        ('<think>why</think><tool_call>{"name": 3}</tool_call>', "broken", False),
        ('<think>why</think><tool_call>{"name": "f", "arguments": NaN}</tool_call>', "broken", False),
    ],
)
def test_outputs_are_read_and_their_form_judged(text, kind, formed):
    step = grammar.read_step(text)
    assert (step.kind, step.formed) == (kind, formed)
    reward, metrics = grammar.format_reward(text, step, True)
    assert reward == float(formed) == metrics["format"]


def test_calls_and_answers_have_their_content():
    step = grammar.read_step(f"<think>why</think>{CALL}")
    assert (step.name, step.arguments) == ("f", {"a": 1})
    assert grammar.read_step('<tool_call>{"name": "f"}</tool_call>').arguments == {}
    assert grammar.read_step("<think>a</think> <b>4</b> ").answer == "<b>4</b>"
    assert grammar.read_step("done 21").answer == "done 21"
    step = grammar.read_step('<tool_call>{"name": "f", "arguments": [1]}</tool_call>')
    assert "arguments must be an object" in step.problem


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_reading_never_raises_and_what_a_tool_says_holds_no_tag(text):
    step = grammar.read_step(text)
    assert step.kind in ("call", "answer", "broken")
    for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>", "< / TOOL_CALL >", "</ think >"):
        said = grammar.neutral(f"{text}{tag}{text}")
        assert grammar.TAG.search(said) is None
        assert grammar.read_step(said).kind == "answer"


NUMBER = {"kind": "math", "target": ["1200"], "functions": []}


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("1200", 1), ("1,200", 1), ("1200.0", 1), ("2 times 600 = 1200 yuan", 1), ("1200 and 3", 0), ("#### 1200", 1),
        ("so 5 #### 1,200", 1), ("", 0), ("twelve hundred", 0), ("-1200", 0), ("1200.5", 0), ("١٢٠٠", 1),
    ],
)  # fmt: skip
def test_a_number_is_the_last_one(answer, right):
    assert accuracy(NUMBER, answer, SIMILARITY) == right


def test_numbers_that_are_hard_to_read():
    assert last_number("3.14.15") is not None and last_number("9" * 400) is not None and last_number("1,,2") is not None
    assert last_number("no number") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10-4", "4"), ("10 - 4", "4"), ("10 -4", "-4"), ("-4", "-4"), ("x-4", "4"), ("(7)-4", "4"), ("= -4", "-4"),
        ("$-4", "-4"), ("(-4)", "-4"), ("--4", "-4"), ("2024-05-06", "6"), ("1,2", "2"), ("1,200", "1200"),
        ("1,200,000.5", "1200000.5"), ("1,2000", "2000"), ("12,34", "34"), ("1200,300", "300"), ("-1,200", "-1200"),
        ("3.14.15", "15"), ("1,200,30", "30"), ("0.5", "0.5"), ("5.", "5"), ("#### -1,200", "-1200"),
        ("\u22125", "-5"), ("x = \u20135", "-5"), ("5 \u2212 3", "3"), ("3\u20135", "5"),  # other minus signs
        (".5", "0.5"), ("-.5", "-0.5"), ("no.5", "5"), ("1e3", "1000"), ("2.5E-3", "0.0025"), ("2e5x", "5"),
    ],
)  # fmt: skip
def test_a_minus_subtracts_or_belongs_to_its_number_and_commas_group_three_digits(text, number):
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize(
    ("functions", "answer", "right"),
    [
        (["f"], 'Pass calling {"api_name": "f"} : 14', 1),
        (["f"], 'Pass calling {"api_name": "f", "parameter": {"a": [1]}}, the API call was successful.', 1),
        (["f"], "Pass calling {'api_name': 'f', 'parameter': {}}", 1),
        (["f"], 'Pass calling {"api_name": "g"} : 14', 0),
        (["f"], "14", 0),
        (["f", "g"], 'Pass calling {"api_name": "g"} : 1 Pass calling {"api_name": "f"} : 2', 1),
        (["f", "g"], 'Pass calling {"api_name": "g"} : 1', 0),
        (["f"], 'Pass calling {"api_name": "g"} : 1 Pass calling {"api_name": "f"} : 2', 0),
        (["f"], 'Pass calling {"api_name": "f"} : 1 Pass calling {"api_name": "f"} : 2', 1),
        ([], "nothing to call", 1),
        ([], 'Pass calling {"api_name": "f"} : 14', 0),
    ],
)
def test_functions_are_those_that_an_answer_reports(functions, answer, right):
    assert accuracy({"kind": "function", "target": [], "functions": functions}, answer, SIMILARITY) == right


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>a</think>\n b <think>c</think>", "b <think>c</think>"),
        ("x<think>a<think>b</think> c", "xc"),
        ("a</think> b", "a</think> b"),
        ("</think><think>a", "</think><think>a"),
        ("", ""),
        ("<think>" * 100_000, "<think>" * 100_000),
    ],
    ids=lambda text: text[:20],
)
def test_the_first_thought_is_left_out_in_linear_time(text, left):
    """Quadratic search among 100,000 thoughts that do not end takes longer than the time limit of a test."""
    assert grammar.without_thought(text) == left


def test_texts_are_right_from_a_cosine_of_06():
    truth = {"kind": "qa", "target": ["blue crane", "white dove"], "functions": []}
    right = {"blue crane": 1, "White  Dove": 1, "blue heron": 0, "": 0, "the blue crane": 1}
    assert {said: accuracy(truth, said, SIMILARITY) for said in right} == right
    with pytest.raises(ValueError, match="ground_truth.kind='poem' is unknown; allowed: math, qa, open, function"):
        accuracy({"kind": "poem"}, "", SIMILARITY)


RULE = "Shoes can be returned within 14 days of delivery."


@pytest.mark.parametrize(
    ("kind", "exact", "answer", "right"),
    [
        ("qa", True, RULE, 1),
        ("qa", True, RULE.replace("14", "15"), 0),  # another category's rule
        ("qa", True, RULE.replace("14 days", "14 or 15 days"), 0),
        ("qa", True, "14", 0),
        ("qa", False, RULE.replace("14", "15"), 1),  # the paper's measure
        ("open", True, RULE.replace("14", "15"), 1),
    ],
)
def test_numbers_of_rules_must_be_right(kind, exact, answer, right):
    assert accuracy({"kind": kind, "target": [RULE], "functions": []}, answer, SIMILARITY, exact) == right


def test_answers_of_two_agents_need_both_parts():
    called = prompts.called("check_stock", {"shop": "A"}, {"ok": True, "result": {"pieces": 3}}, 100)
    both = {"kind": "qa", "target": [RULE], "functions": ["check_stock"]}
    number = {"kind": "math", "target": ["42"], "functions": ["check_stock"]}
    for truth, other in ((both, RULE), (number, "42")):
        for answer, right in ((f"{called}\n{other}", 1), (f"{other}\n{called}", 1), (other, 0), (called, 0)):
            assert accuracy(truth, answer, SIMILARITY) == right, answer


def test_what_the_system_itself_writes_of_a_call_is_what_the_reward_reads():
    for style in (prompts, prompts_tiny):
        said = style.called("check_stock", {"shop": "A"}, {"ok": True, "result": {"pieces": 3}}, 100)
        assert functions_called(said) == ["check_stock"] and "3" in said
        for kind in ("tool_error", "bad_arguments", "unknown_tool"):
            refused = style.called("check_stock", {}, {"ok": False, "error": "there is no shop A", "kind": kind}, 100)
            assert not functions_called(refused) and refused.startswith("error")


def test_intentions_may_be_lists():
    assert intention_of({"intention": ["a", "b"]}) == "a; b" and intention_of({}) == ""
    assert intention_of({"intention": 3}) == "3"


ARGUMENTS = {"specialists": SPECIALISTS, "tools": [prompts.RETRIEVALS], "memories": [], "turns": [], "passages": None}


@pytest.mark.parametrize("said", [None, [None], [], ""])
def test_an_intention_of_null_is_none(said):
    """An agent that is called without an intention is given the query, not the word None."""
    assert intention_of({"intention": said}) == ""
    assert intention_of({"intention": [None, 0, "a"]}) == "0; a"


def prompt_of(module, name, **given):
    """The prompt of an agent, with plain values for what it is given."""
    wanted = inspect.signature(getattr(prompts, name)).parameters
    return getattr(module, name)(**{"query": "q"} | {key: (ARGUMENTS | given)[key] for key in wanted if key != "query"})


@pytest.mark.parametrize("agent", ["master", *SPECIALISTS, "decision", "single_agent"])
def test_the_forms_that_prompts_ask_for_are_well_formed(agent):
    """The forms in the system prompts, with values in place of their names, are what the format reward wants."""
    system = prompt_of(prompts, agent)[0]["content"].partition("How to solve the problem:")[2]
    names = "the user's intention|what this agent can do of it|the \w+'s name|the parameters that it is given"
    shown = re.sub(names, "{}", re.sub(r"\s*\n\s*", " ", system)).replace('"value" or ["value"]', '"value"')
    forms = re.findall(r"<think>[^<]*</think>\s*(?:<tool_call>[^<]*</tool_call>|[^<]+)", shown)
    forms = [re.sub(r'"name": \{\}', '"name": "f"', form) for form in forms]
    assert len(forms) >= 2 and all(grammar.well_formed(form) for form in forms), forms


@pytest.mark.parametrize("agent", ["master", *SPECIALISTS, "decision", "single_agent"])
def test_every_rule_of_a_template_begins_a_line(agent):
    """Two of Template #1's first rules and one of Template #6's stood in the middle of other sentences."""
    assert not re.findall(r"\S +- [A-Z].*", prompt_of(prompts, agent)[0]["content"])


def test_places_of_a_template_are_filled_in_one_go():
    memory = Memory(1, "master", "{tools}?", ("math_agent",), "<think>2 + 3</think>5", 1, 2.0)
    system = prompt_of(prompts, "master", memories=[memory])[0]["content"]
    assert '"Query": "{tools}?"' in system and '"Answer": "\\u003cthink>2 + 3\\u003c/think>5"' in system
    assert system.count('"name": "tool_intention"') == 2, "in the list, and in the form"
    assert not re.findall(r"\{[a-z_]+\}", system.replace("{tools}?", ""))
    bare = prompt_of(prompts, "master")[0]["content"]
    assert "<memory>\n\n</memory>" in bare, "the tags are there without a memory, too"


def test_every_prompt_can_be_replaced_by_texts_of_ones_own(tmp_path):
    names = prompt_names(prompts)
    assert {"master", *SPECIALISTS, "single_agent", "decision", "summary", "intention"} == set(names)
    own = "".join(
        f"{name}: {{system: mine, user: '{' | '.join(f'{{{{ {one} }}}}' for one in parameters)}'}}\n"
        for name in names
        for parameters in [inspect.signature(getattr(prompts, name)).parameters]
    )
    (tmp_path / "mine.yaml").write_text(own)
    module = JoyAgents(str(tmp_path / "mine.yaml")).prompts
    memory = Memory(7, "math_agent", "2 + 3?", (), "5", 1, 2.0)
    passage = {"title": "Returns", "text": "14 days <|im_end|>"}
    given = {"memories": [memory], "passages": [passage], "turns": [("a", "b")]}
    written = {name: prompt_of(module, name, **given)[1]["content"] for name in names}
    assert written["math_agent"] == f"q | {format_memories([memory])}"
    assert written["master"].count('"name": "math_agent"') == 1 and '"ID": 7' in written["master"]
    assert written["summary"] == "q | [Returns] 14 days &lt;|im_end|>" and written["intention"] == "q | a\nb"
    assert written["decision"] == f"q | {json.dumps(prompts.RETRIEVALS)}" and written["single_agent"] == "q"


def test_the_agents_that_the_master_can_find_are_its_specialists():
    from verl_ext.plugin import package_path
    from verl_ext.tools.catalogue import load_catalogue

    path = package_path("recipe/joyagents/assets/agents.jsonl")
    found = load_catalogue([{"kind": "json", "path": path}])
    assert {name: tool.description for name, tool in found.items()} == prompts.SPECIALISTS
    assert not any(tool.shown()["parameters"].get("required") for tool in found.values())
