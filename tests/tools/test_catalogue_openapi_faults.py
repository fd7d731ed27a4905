"""OpenAPI documents with faults: what is clear is read, and one odd operation does not take the others along."""

import json

import pytest

from verl_ext.tools.catalogue import Catalogue, load_catalogue
from verl_ext.tools.catalogue.formats.files import read_document
from verl_ext.tools.catalogue.formats.openapi import load

GOOD = {"responses": {"200": {"description": "ok"}}}
BAD = {"parameters": [{"name": "q", "in": "query", "schema": {"type": "int"}}]}


def query(schema):
    return {"parameters": [{"name": "q", "in": "query", "schema": schema}]}


def written(folder, paths, **more):
    (folder / "api.json").write_text(json.dumps({"openapi": "3.1.0", "paths": paths, **more}))
    return folder / "api.json"


def nested(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "operation, reason",
    [
        (query({"type": "int"}), "the parameters are no JSON Schema .*'int'"),
        (query({"$ref": "#/nowhere"}), "'#/nowhere' leads nowhere"),
        (query({"properties": None}), "no JSON Schema"),
        (query(nested(400)), "nested deeper than 64 levels"),
        ({"parameters": {"q": 1}}, "given str 'q', expected an object"),
        ({"parameters": 3}, "malformed .TypeError"),
        ({"responses": ["200"]}, "malformed .TypeError"),
        (None, "given NoneType None"),
    ],
)
def test_an_operation_that_cannot_be_read_is_left_out_with_one_warning(tmp_path, caplog, operation, reason):
    path = written(tmp_path, {"/bad": {"get": operation, "put": GOOD}, "/good": {"get": GOOD}})
    sources = [{"kind": "openapi", "path": str(path), "prefix": "my "}]
    catalogue = load_catalogue(sources)
    catalogue.check()
    assert list(catalogue) == ["my PUT /bad", "my GET /good"]
    (record,) = caplog.records
    message = record.getMessage()
    assert f"{path}: 1 of 3 operations are left out: GET /bad: " in message and len(message) < 500
    assert list(load_catalogue(sources, only=["my GET /good"])) == ["my GET /good"]
    with pytest.raises(ValueError, match=f"only names 'my GET /bad', which cannot be read: .*api.json: .*{reason}"):
        load_catalogue(sources, only=["my GET /bad"])
    with pytest.raises(ValueError, match=f"api.json: GET /bad: .*{reason}"):
        load(written(tmp_path, {"/bad": {"get": operation}}))


def test_a_warning_quotes_a_few_and_counts_all(tmp_path, caplog):
    load(written(tmp_path, {f"/{number}": {"get": GOOD if number == 9 else BAD} for number in range(10)}))
    (record,) = caplog.records
    assert "9 of 10 operations" in record.getMessage() and record.getMessage().endswith("; and 6 more")
    assert record.getMessage().count("'int'") == 3


def test_a_path_that_cannot_be_read_is_left_out_with_all_its_operations(tmp_path, caplog):
    path = written(tmp_path, {"/bad": {"$ref": "#/nowhere"}, "/good": {"get": GOOD}})
    assert [tool.name for tool in load(path)] == ["GET /good"] and "/bad" in caplog.text
    with pytest.raises(ValueError, match="only names 'PUT /bad', which cannot be read.*leads nowhere"):
        load_catalogue([{"kind": "openapi", "path": str(path)}], only=["PUT /bad"])


def test_extensions_and_empty_paths_are_no_operations(tmp_path, caplog):
    paths = {"x-note": "hello", "x-more": {"get": 1}, "/empty": None, "/a": {"x-b": 1, "get": GOOD}}
    assert [tool.name for tool in load(written(tmp_path, paths))] == ["GET /a"] and not caplog.records


@pytest.mark.parametrize(
    "schema, read",
    [
        ({"type": "file"}, {"type": "string", "format": "binary"}),
        ({"type": "string", "required": True}, {"type": "string"}),
        (
            {"properties": {"a": {"required": True}, "b": {"required": "true"}, "c": {"required": False}}},
            {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["a", "b"]},
        ),
        (
            {"required": ["b", "a"], "properties": {"a": {"required": True}, "b": {}}},
            {"required": ["b", "a"], "properties": {"a": {}, "b": {}}},
        ),
        ({"items": [{"type": "file"}]}, {"prefixItems": [{"type": "string", "format": "binary"}]}),
        ({"items": [{}], "additionalItems": False}, {"prefixItems": [{}], "items": False}),
        ({"examples": {"a": {"value": 1}, "b": 2}}, {"examples": [1, 2]}),
        ({"pattern": r"^\p{L}+$"}, {"pattern": r"^\p{L}+$"}),
        (nested(60), nested(60)),
    ],
)
def test_what_older_drafts_wrote_is_said_as_2020_12_says_it(tmp_path, caplog, schema, read):
    catalogue = Catalogue(load(written(tmp_path, {"/a": {"get": query(schema)}})))
    catalogue.check()
    assert catalogue["GET /a"].parameters["properties"]["q"] == read and not caplog.records


@pytest.mark.parametrize(
    "examples, example", [([{"a": 1}], {"a": 1}), ([{"value": 2}], 2), ({"x": {"value": 3}}, 3), (["text"], "text")]
)
def test_examples_of_a_response_may_be_a_list(tmp_path, examples, example):
    response = {"description": "", "content": {"application/json": {"examples": examples}}}
    (tool,) = load(written(tmp_path, {"/a": {"get": {"responses": {"200": response}}}}))
    assert tool.extra["response"]["example"] == example


def test_references_of_a_schema_with_an_id_lead_into_itself(tmp_path):
    schemas = {
        "Q": {
            "$id": "https://example.org/q",
            "type": "object",
            "properties": {"n": {"$ref": "#/$defs/N"}, "other": {"$ref": "#/components/schemas/R"}},
            "$defs": {"N": {"type": "array", "items": {"$ref": "#/$defs/M"}}, "M": {"type": "integer"}},
        },
        "R": {"$id": "R", "properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "string"}}},
    }
    path = written(
        tmp_path, {"/a": {"get": query({"$ref": "#/components/schemas/Q"})}}, components={"schemas": schemas}
    )
    catalogue = Catalogue(load(path))
    catalogue.check()
    assert catalogue.problems("GET /a", {"q": {"n": [1], "other": {"n": "text"}}}) == []
    assert catalogue.problems("GET /a", {"q": {"n": ["1"], "other": {"n": 1}}}) == [
        "q.n.0: '1' is not of type 'integer'",
        "q.other.n: 1 is not of type 'string'",
    ]


def test_long_chains_of_references_are_no_nesting(tmp_path):
    schemas = {f"S{n}": {"properties": {"next": {"$ref": f"#/components/schemas/S{n + 1}"}}} for n in range(900)}
    schemas["S900"] = {"type": "integer"}
    path = written(
        tmp_path, {"/a": {"get": query({"$ref": "#/components/schemas/S0"})}}, components={"schemas": schemas}
    )
    (tool,) = load(path)
    assert len(tool.parameters["$defs"]) == 901 and tool.parameters["$defs"]["S900"] == {"type": "integer"}


def test_parameters_that_only_the_route_names_are_required_texts(tmp_path):
    given = {"name": "petId", "in": "path", "schema": {"type": "integer"}}
    paths = {
        "/pets/{petId}": {"delete": GOOD, "get": {"parameters": [given]}},
        "/{a}/of/{b}": {"parameters": [{"name": "b", "in": "query"}], "get": GOOD},
    }
    delete, get, two = sorted(load(written(tmp_path, paths)), key=lambda tool: tool.name)
    assert get.name == "GET /pets/{petId}" and get.parameters["properties"]["petId"] == {"type": "integer"}
    assert delete.name == "DELETE /pets/{petId}" and delete.parameters["required"] == ["petId"]
    assert delete.parameters["properties"] == {"petId": {"type": "string"}}
    assert two.parameters["required"] == ["a", "b_path"] and set(two.parameters["properties"]) == {"b", "a", "b_path"}


def test_yaml_is_of_version_1_2(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "a: [010, 0o10, 0x1F, -5, 1e3, .5, 12:30, 1_000, 0b11, =, on, true, ~, 3.0.0, 2020-01-01]"
    )
    assert read_document(tmp_path / "a.yaml")["a"] == [
        *(10, 8, 31, -5, 1000.0, 0.5),
        *("12:30", "1_000", "0b11", "=", "on", True, None, "3.0.0", "2020-01-01"),
    ]


def test_nested_aliases_do_not_become_millions_of_values(tmp_path):
    """Each level doubles the values: 480 bytes would be four million. PyYAML 6.0.4 merges a mapping only once."""
    refused = "a.yaml is malformed: its aliases stand for more than 1,000,000 values"
    levels = [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 23)]
    merges = [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 23)]
    (tmp_path / "a.yaml").write_text("\n".join(["a0: &a0 [x]", *levels]))
    with pytest.raises(ValueError, match=refused):
        read_document(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("\n".join(["a0: &a0 {k: x}", *merges]))
    try:
        assert read_document(tmp_path / "a.yaml")["a22"] == {"k": "x"}
    except ValueError as error:
        assert refused in str(error)
    (tmp_path / "a.yaml").write_text("\n".join(["a0: &a0 [x]", *levels[:3]]))
    assert read_document(tmp_path / "a.yaml")["a3"] == [[[["x"], ["x"]]] * 2] * 2
    (tmp_path / "a.yaml").write_text("a: &a [*a]")
    with pytest.raises(ValueError, match="a.yaml is malformed"):
        read_document(tmp_path / "a.yaml")
