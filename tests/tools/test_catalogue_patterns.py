"""Patterns of tools' schemas: bounded in time, ECMA's, and those that nobody can read."""

import json
import time

import pytest

from verl_ext.tools.catalogue import Catalogue, ToolSpec
from verl_ext.tools.catalogue.patterns import LIMIT_S, compiled

SLOW = "^(a|a)*$"  # 2^n ways to read n letters
TEXT = "a" * 60 + "!"


def problems(arguments, **schema):
    catalogue = Catalogue([ToolSpec("tool", "", {"type": "object", **schema})])
    catalogue.check()
    return catalogue.problems("tool", arguments)


@pytest.mark.parametrize(
    "arguments, schema",
    [
        ({"x": TEXT}, {"properties": {"x": {"pattern": SLOW}}}),
        ({"x": TEXT}, {"properties": {"x": {"anyOf": [{"not": {"pattern": SLOW}}, {}]}}}),
        ({"x": ["a" * 15 + "!"] * 1000}, {"properties": {"x": {"items": {"pattern": SLOW}}}}),  # each alone is fast
        ({TEXT: 1}, {"patternProperties": {SLOW: {}}}),
        ({TEXT: 1}, {"patternProperties": {SLOW: {}}, "additionalProperties": False}),
        ({TEXT: 1}, {"patternProperties": {SLOW: {}}, "unevaluatedProperties": False}),
        ({TEXT: 1}, {"propertyNames": {"pattern": SLOW}}),
        ({TEXT: 1}, {"patternProperties": {SLOW: {}}, "$schema": "http://json-schema.org/draft-04/schema#"}),
    ],
)
def test_a_slow_pattern_is_a_problem_soon(arguments, schema):
    start = time.process_time()
    (problem,) = problems(arguments, **schema)
    assert problem.startswith("tool: whether 'aaa") and "cannot be told within 0.1 s" in problem
    assert time.process_time() - start < 30 * LIMIT_S


def test_each_call_has_the_whole_time():
    for _ in range(3):
        assert len(problems({"x": TEXT}, properties={"x": {"pattern": SLOW}})) == 1
        assert problems({"x": "aa"}, properties={"x": {"pattern": SLOW}}) == []


def test_elements_that_must_differ_are_compared_in_linear_time():
    """Quadratic time would take longer than the time limit of a test."""
    schema = {"properties": {"x": {"type": "array", "uniqueItems": True}}}
    assert problems({"x": [{"i": i} for i in range(20_000)]}, **schema) == []
    assert problems({"x": [1, True, "1", [1], {"a": 1}, {"a": True}, None, 0, False]}, **schema) == []
    for same in ([1, 1.0], [{"a": 1, "b": 2}, 3, {"b": 2, "a": 1.0}], [[{}], [{}]], ["é", "\u00e9"]):
        assert problems({"x": same}, **schema) == [f"x: {json.loads(json.dumps(same))} has non-unique elements"]
    assert problems({"x": [1, 1]}, properties={"x": {"uniqueItems": False}}) == []
    assert problems({"x": "aa"}, properties={"x": {"uniqueItems": True}}) == []


def test_patterns_are_ecma_s():
    schema = {"properties": {"x": {"pattern": r"^\p{L}+$"}}}
    assert problems({"x": "été"}, **schema) == []
    assert problems({"x": "3"}, **schema) == [r"x: '3' does not match '^\\p{L}+$'"]
    assert problems({"x": 3}, **schema) == []  # a pattern says nothing of what is no text


@pytest.mark.parametrize(
    "draft", ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]
)
def test_parts_that_name_their_draft_have_the_same_patterns(draft):
    """The root of a schema names it, and a reference may lead back there. `re` knows no \\p{L}, and has no limit."""
    names, patterns = {"$schema": draft}, {"x": {"pattern": r"^\p{L}+$"}, "slow": {"pattern": SLOW}}
    recursive = names | {"properties": patterns | {"child": {"$ref": "#"}}}
    for schema in (recursive, {"properties": {"child": names | {"properties": patterns}}}):
        assert problems({"child": {"x": "été"}}, **schema) == []
        assert problems({"child": {"x": "3"}}, **schema) == [r"child.x: '3' does not match '^\\p{L}+$'"]
        (problem,) = problems({"child": {"slow": TEXT}}, **schema)
        assert "cannot be told within 0.1 s" in problem


def test_properties_by_pattern_and_all_others():
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert problems({"a": "A", "x-b": 1}, **schema) == []
    assert problems({"x-b": "B"}, **schema) == ["x-b: 'B' is not of type 'integer'"]
    assert problems({"y": 1}, **schema) == ["tool: Additional properties are not allowed ('y' was unexpected)"]
    schema["additionalProperties"] = {"type": "string"}
    assert problems({"y": 1}, **schema) == ["y: 1 is not of type 'string'"]
    assert problems({"y": 1}, properties={"x": {}}, unevaluatedProperties=False) != []


def test_a_pattern_that_cannot_be_read_is_logged_once_and_refuses_nothing(caplog):
    compiled.cache_clear()
    for _ in range(2):
        assert problems({"x": "anything"}, properties={"x": {"pattern": "[never"}}) == []
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["the pattern '[never' cannot be read"]
    unknown = {"patternProperties": {"[never": {"type": "integer"}}, "additionalProperties": False}
    assert problems({"x": "anything"}, **unknown) == []


def test_schemas_nested_too_deeply_are_named():
    schema: dict = {}
    for _ in range(2000):
        schema = {"properties": {"x": schema}}
    with pytest.raises(ValueError, match="the parameters of tool 'deep' are nested too deeply"):
        Catalogue([ToolSpec("deep", "", {"type": "object", **schema})]).check()
