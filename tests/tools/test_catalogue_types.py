"""Catalogues and schemas: names, versions, canonical JSON, and the validation of whatever an agent writes."""

import json
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.tools.catalogue import Catalogue, ToolSpec, canonical
from verl_ext.tools.catalogue.types import MAX_PROBLEM_CHARS, MAX_PROBLEMS, as_json

NESTED = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "pattern": "^[A-Z]"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "units": {"enum": ["metric", "imperial"]},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "maxItems": 3, "uniqueItems": True},
        "price": {"type": "number", "multipleOf": 0.01},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"stop": {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/stop"}}}},
}
TOOL = ToolSpec("forecast", "Weather of a city.", NESTED)
CATALOGUE = Catalogue([TOOL, ToolSpec("now", "The time.")])


def test_a_call_that_fits_has_no_problems():
    stops = [{"name": "a", "next": {"next": {"name": "b"}}}]
    assert CATALOGUE.problems("forecast", {"city": "Oslo", "days": 7, "units": "metric", "stops": stops}) == []
    assert (
        CATALOGUE.problems("forecast", {"city": "Oslo", "days": 3.0, "price": 0.02}) == []
    )  # 3.0 is an integer in JSON
    assert CATALOGUE.problems("now", {}) == []


@pytest.mark.parametrize(
    "arguments, problems",
    [
        ({}, ["forecast: 'city' is a required property"]),
        ({"city": "Oslo", "town": 1}, ["forecast: Additional properties are not allowed ('town' was unexpected)"]),
        ({"city": "oslo"}, ["city: 'oslo' does not match '^[A-Z]'"]),
        ({"city": "Oslo", "days": 8}, ["days: 8 is greater than the maximum of 7"]),
        ({"city": "Oslo", "stops": [{"next": {"name": 1}}]}, ["stops.0.next.name: 1 is not of type 'string'"]),
        ({"city": "Oslo", "units": 1, "days": 0}, ["days: 0 is less than", "units: 1 is not one of"]),
        ("city=Oslo", ["the arguments of forecast must be an object, given str"]),
        ({"city": "Oslo", "days": float("nan")}, ["the arguments of forecast are not JSON: Out of range float"]),
        ({"city": "Oslo", "days": 10**5000}, ["the arguments of forecast are not JSON: Exceeds the limit"]),
    ],
)
def test_problems_say_where_and_what(arguments, problems):
    found = CATALOGUE.problems("forecast", arguments)
    assert len(found) == len(problems)
    assert all(one.startswith(start) for one, start in zip(found, problems, strict=True)), found


def test_problems_are_few_and_short_however_large_the_arguments():
    (only,) = CATALOGUE.problems("forecast", {"city": ["x" * 10_000_000]})
    assert len(only) <= MAX_PROBLEM_CHARS + 1 and only.startswith("city: ['xxx")
    many = CATALOGUE.problems("forecast", {"city": "Oslo", "stops": [{"name": i} for i in range(50)]})
    assert len(many) == MAX_PROBLEMS + 1 and many[-1] == "and 41 more problems"  # 50 names, and too many stops


def test_arguments_nested_too_deeply_are_a_problem():
    stop: dict = {}
    for _ in range(3000):
        stop = {"next": stop}
    assert CATALOGUE.problems("forecast", {"city": "Oslo", "stops": [stop]})[0].endswith("nested too deeply")
    cycle: dict = {"city": "Oslo"}
    cycle["stops"] = [cycle]
    assert "not JSON: Circular reference" in CATALOGUE.problems("forecast", cycle)[0]


@pytest.mark.parametrize("name", ["", "Forecast", None, 3, ["forecast"], {"a": 1}, "\ud800", "x" * 10**6])
def test_an_unknown_name_is_a_problem_like_others(name):
    (problem,) = CATALOGUE.problems(name, {})
    assert problem.startswith("there is no tool ") and len(problem) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
WORDS = st.sampled_from(["city", "days", "units", "stops", "price", "x"])


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(WORDS, JSON, max_size=5) | JSON | st.binary() | st.sets(st.integers()))
def test_validation_never_raises_and_knows_json(arguments):
    problems = CATALOGUE.problems("forecast", arguments)
    assert all(isinstance(one, str) and one for one in problems)
    if not problems:  # what is let through can be sent to any back end
        assert json.loads(json.dumps(arguments, allow_nan=False)) == as_json(arguments)
        assert "city" in arguments and set(arguments) <= {"city", "days", "units", "stops", "price"}


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"type": "object", "properties": {"a": {"type": "integr"}}}, "at properties/a/type.*'integr' is not valid"),
        ({"type": "object", "properties": {"a": {"pattern": ["["]}}}, r"at properties/a/pattern.*not of type 'string'"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "reference '#/\\$defs/b' leads nowhere"),
        ({"type": "object", "properties": {"a": {"$ref": "https://x.org/s.json"}}}, "x.org/s.json' leads nowhere"),
        ({"type": "object", "required": "a"}, "at required"),
        ({"type": "array"}, '"type": "object", given type \'array\''),
        ([], "must be a JSON Schema"),
    ],
)
def test_check_names_the_tool_whose_parameters_are_no_schema(parameters, message):
    catalogue = Catalogue([TOOL, ToolSpec("broken", "", parameters, source="mcp")])
    with pytest.raises(ValueError, match=f"the parameters of tool 'broken'.*{message}"):
        catalogue.check()
    catalogue.check(trusted=["mcp"])
    with pytest.raises(ValueError, match="the parameters of tool 'broken'"):
        catalogue.problems("broken", {})


def test_words_in_data_are_no_references_and_drafts_are_heeded():
    parameters = {"type": "object", "properties": {"$ref": {"enum": [{"$ref": "#/nowhere"}]}}}
    draft4 = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"n": {"minimum": 1, "exclusiveMinimum": True}},
    }
    catalogue = Catalogue([ToolSpec("a", "", parameters), ToolSpec("b", "", draft4)])
    catalogue.check()
    assert catalogue.problems("a", {"$ref": {"$ref": "#/nowhere"}}) == []
    assert len(catalogue.problems("b", {"n": 1})) == 1 and catalogue.problems("b", {"n": 2}) == []


def test_names_are_unique_and_only_keeps_the_order_asked_for():
    with pytest.raises(ValueError, match="two tools are called 'forecast'.*prefix"):
        Catalogue([TOOL, TOOL])
    with pytest.raises(ValueError, match="has the name ' '"):
        Catalogue([ToolSpec(" ", "")])
    both = CATALOGUE.only(["now", "forecast", "now"])
    assert list(both) == ["now", "forecast"] and both["now"] is CATALOGUE["now"]
    with pytest.raises(ValueError, match="1 of 2 names belong to no tool: 'later'; the catalogue has 2 tools"):
        CATALOGUE.only(["now", "later"])


def test_versions_depend_on_the_documentation_alone():
    async def backend(spec, arguments):
        return None

    assert TOOL.version == ToolSpec("forecast", "Weather of a city.", dict(NESTED), backend=backend).version
    changed = [ToolSpec("forecast", "Weather.", NESTED), ToolSpec("forecast", TOOL.description, NESTED, returns={})]
    assert len({TOOL.version, *(tool.version for tool in changed)}) == 3
    assert Catalogue(reversed(list(CATALOGUE.values()))).version == CATALOGUE.version != CATALOGUE.only(["now"]).version
    assert ToolSpec("a", "half \ud800").version != ToolSpec("a", "half \udfff").version


def test_canonical_json_is_equal_for_equal_values():
    assert (
        canonical({"b": 1.0, "a": [True, None, 0.5]})
        == '{"a":[true,null,0.5],"b":1}'
        == canonical({"a": (True, None, 0.5), "b": 1})
    )
    assert canonical({"é": "\ud800"}) == '{"\\u00e9":"\\ud800"}'
    assert canonical(1) != canonical(True) != canonical("true")


def test_canonical_json_is_made_of_all_that_json_reads():
    deep = json.loads('{"x": ' + "[" * 800 + "1.0" + "]" * 800 + "}")
    assert canonical(deep) == '{"x":' + "[" * 800 + "1" + "]" * 800 + "}"
    assert canonical({"big": 1e22, "small": -0.0, "text": "1.0", 3: MappingProxyType({"a": 2.5})}) == (
        '{"3":{"a":2.5},"big":10000000000000000000000,"small":0,"text":"1.0"}'
    )


@given(JSON)
def test_canonical_json_survives_json(value):
    text = canonical(value)
    assert text.isascii() and canonical(json.loads(text)) == text
