"""OpenAPI documents: operations, parameters, bodies, references, the 3.0 dialect and quoted scalars."""

import json

import pytest

from verl_ext.tools.catalogue import Catalogue, load_catalogue
from verl_ext.tools.catalogue.formats.openapi import load

DOCUMENT = """
openapi: 3.0.3
info: {title: Trees, version: "1"}
servers: [{url: https://trees.example/v1}]
paths:
  /trees/{id}:
    parameters:
      - $ref: "#/components/parameters/Id"
      - {name: lang, in: query, schema: {type: string, enum: [on, off]}, description: of the names}
    get:
      operationId: getTree
      summary: Get a tree
      description: One tree with its branches.
      tags: [trees]
      parameters:
        - {name: id, in: query, schema: {type: string}}
        - {name: lang, in: query, required: true, schema: {type: string, default: 2020-01-01}}
        - {name: Authorization, in: header, schema: {type: string}}
        - {name: X-Depth, in: header, schema: {type: integer, minimum: 0, exclusiveMinimum: true}}
        - {name: filter, in: query, content: {application/json: {schema: {$ref: "#/components/schemas/Tree"}}}}
      responses:
        404: {description: none}
        200:
          description: The tree
          content:
            text/plain: {schema: {type: string}}
            application/json:
              schema: {$ref: "#/components/schemas/Tree"}
              examples: {oak: {value: {name: Oak, branches: []}}}
    put:
      summary: Change a tree
      requestBody:
        required: true
        description: what changes
        content: {application/json: {schema: {$ref: "#/components/schemas/Tree"}}}
      parameters:
        - {name: body, in: query, schema: {type: boolean}}
      responses: {204: {description: done}}
components:
  parameters:
    Id: {name: id, in: path, required: true, schema: {type: integer, nullable: true}}
  schemas:
    Tree:
      type: object
      required: [name]
      properties:
        name: {type: string}
        height: {type: number, minimum: 0, nullable: true}
        kind: {type: string, enum: [oak, elm], nullable: true}
        parent: {nullable: true, allOf: [{$ref: "#/components/schemas/Tree"}]}
        branches: {type: array, items: {$ref: "#/components/schemas/Tree"}}
"""


def written(folder, text, name="api.yaml"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def trees(tmp_path):
    return Catalogue(load(written(tmp_path, DOCUMENT)))


def test_operations_become_tools_with_parameters_of_path_and_operation(trees):
    assert list(trees) == ["GET /trees/{id}", "PUT /trees/{id}"]
    get = trees["GET /trees/{id}"]
    assert get.description == "Get a tree\nOne tree with its branches." and get.source == "openapi"
    # the operation's own `lang` replaces the path's; id is in the path and in the query; Authorization is no parameter
    assert list(get.parameters["properties"]) == ["id", "lang", "id_query", "X-Depth", "filter"]
    assert get.parameters["required"] == ["id", "lang"] and get.parameters["additionalProperties"] is False
    assert get.parameters["properties"]["lang"] == {"type": "string", "default": "2020-01-01"}  # no date, as in JSON
    assert {key: get.extra[key] for key in ("operationId", "method", "path", "servers", "tags")} == {
        "operationId": "getTree",
        "method": "GET",
        "path": "/trees/{id}",
        "servers": ["https://trees.example/v1"],
        "tags": ["trees"],
    }


def test_bodies_are_arguments_and_recursive_schemas_validate(trees):
    put = trees["PUT /trees/{id}"]
    assert put.parameters["required"] == ["id", "body"]
    assert put.parameters["properties"]["body"] == {"$ref": "#/$defs/Tree", "description": "what changes"}
    assert put.parameters["properties"]["body_query"] == {"type": "boolean"}
    assert put.parameters["properties"]["lang"]["enum"] == ["on", "off"]  # texts, as in JSON
    tree = {"name": "a", "branches": [{"name": "b", "branches": [{"name": "c", "height": None}]}], "parent": None}
    assert trees.problems("PUT /trees/{id}", {"id": 1, "body": tree}) == []
    tree["branches"][0]["branches"][0]["height"] = -1
    assert trees.problems("PUT /trees/{id}", {"id": 1, "body": tree}) == [
        "body.branches.0.branches.0.height: -1 is less than the minimum of 0"
    ]
    assert trees.problems("PUT /trees/{id}", {"id": 1}) == ["PUT /trees/{id}: 'body' is a required property"]


def test_the_dialect_of_3_0_is_said_in_json_schema(trees):
    call = {"id": None, "lang": "x", "filter": {"name": "a", "kind": None, "parent": {"name": "p"}}}
    assert trees.problems("GET /trees/{id}", call) == []
    assert len(trees.problems("GET /trees/{id}", call | {"X-Depth": 0})) == 1  # exclusive
    assert trees.problems("GET /trees/{id}", call | {"X-Depth": 1}) == []
    assert trees.problems("GET /trees/{id}", call | {"filter": {"name": "a", "kind": "ash"}})[0].startswith(
        "filter.kind"
    )
    trees.check()


def test_the_first_successful_response_tells_what_comes_back(trees):
    get, put = trees.values()
    assert get.extra["response"] == {
        "status": "200",
        "description": "The tree",
        "content_type": "application/json",
        "example": {"name": "Oak", "branches": []},
    }
    assert get.returns["$ref"] == "#/$defs/Tree"
    assert get.returns["$defs"]["Tree"]["properties"]["branches"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Tree"},
    }
    assert put.extra["response"] == {"status": "204", "description": "done"} and put.returns is None


def test_quoted_scalars_are_read_and_words_that_only_look_so_are_not(tmp_path):
    schema = {
        "type": "object",
        "additionalProperties": "false",
        "properties": {
            "minimum": {"type": "integer", "minimum": "1", "maximum": "20", "default": "5", "enum": ["5", "6"]},
            "year": {"type": "string", "default": "2020", "enum": ["2020", "true"], "minLength": "4"},
            "flag": {"type": "boolean", "default": "true"},
            "many": {"type": "integer", "default": "lots", "nullable": "true"},
        },
    }
    parameters = [{"name": "q", "in": "query", "required": "true", "schema": schema}]
    parameters.append({"name": "p", "in": "query", "required": "false", "schema": {"type": "string"}})
    document = {"openapi": "3.0.0", "paths": {"/a": {"get": {"parameters": parameters}}}}
    (tool,) = load(written(tmp_path, json.dumps(document), "api.json"))
    assert tool.parameters["required"] == ["q"]
    read = tool.parameters["properties"]["q"]
    assert read["additionalProperties"] is False
    assert read["properties"] == {
        "minimum": {"type": "integer", "minimum": 1, "maximum": 20, "default": 5, "enum": [5, 6]},
        "year": {"type": "string", "default": "2020", "enum": ["2020", "true"], "minLength": 4},
        "flag": {"type": "boolean", "default": True},
        "many": {"type": ["integer", "null"], "default": "lots"},
    }


def test_schemas_of_3_1_are_kept_and_same_names_of_other_places_stay_apart(tmp_path):
    schema = {
        "type": ["object", "null"],
        "prefixItems": [{"$ref": "#/components/schemas/A~1B"}],
        "properties": {"x": {"$ref": "#/components/other/A~1B"}},
    }
    paths = {"/a": {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}}
    components = {"schemas": {"A/B": {"const": 1}}, "other": {"A/B": {"const": 2}}}
    document = {"openapi": "3.1.0", "paths": paths, "components": components}
    (tool,) = load(written(tmp_path, json.dumps(document), "api.json"))
    body, definitions = tool.parameters["properties"]["body"], tool.parameters["$defs"]
    names = [body["prefixItems"][0]["$ref"], body["properties"]["x"]["$ref"]]
    assert body["type"] == ["object", "null"] and len(set(names)) == 2
    assert [definitions[name.removeprefix("#/$defs/")] for name in names] == [{"const": 1}, {"const": 2}]
    catalogue = Catalogue([tool])
    assert catalogue.problems(tool.name, {"body": {"x": 2}}) == []
    assert catalogue.problems(tool.name, {"body": {"x": 1}}) == ["body.x: 2 was expected"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("swagger: '2.0'\npaths: {}", "given swagger: '2.0', expected an OpenAPI 3 document.*swagger2openapi"),
        ("title: x", "given openapi: None"),
        ("openapi: 3.0.0", "the document has no paths"),
        ("- a", "given list at the top"),
        ("a: [", "is malformed"),
        ('openapi: 3.0.0\npaths: {/a: {get: {parameters: [{$ref: "x.yaml#/c"}]}}}', "another file. Remedy: bundle"),
        ('openapi: 3.0.0\na: {$ref: "#/a"}\npaths: {/a: {get: {parameters: [{$ref: "#/a"}]}}}', "form a circle"),
        (
            "openapi: 3.0.0\npaths: {/a: {get: {parameters: [{name: a}]}}}",
            "GET /a: a parameter has no name or no place",
        ),
        ("openapi: 3.0.0\npaths: {/a: {get: {parameters: [{name: a, in: query, schema: 3}]}}}", "expected a schema"),
    ],
)
def test_what_is_no_document_is_said_with_its_place(tmp_path, text, message):
    with pytest.raises(ValueError, match=f"api.yaml.*{message}"):
        load(written(tmp_path, text))


def test_files_are_named_when_they_are_missing_or_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match="gone.json does not exist"):
        load(tmp_path / "gone.json")
    with pytest.raises(ValueError, match=r"given suffix '.txt', allowed \['.json', '.yaml', '.yml'\]"):
        load(written(tmp_path, "openapi: 3.0.0", "api.txt"))


def test_two_documents_with_the_same_paths_need_a_prefix(tmp_path):
    path = str(written(tmp_path, DOCUMENT))
    with pytest.raises(ValueError, match="two tools are called 'GET /trees/{id}'.*prefix"):
        load_catalogue([{"kind": "openapi", "path": [path, path]}])
    both = load_catalogue([{"kind": "openapi", "path": path}, {"kind": "openapi", "path": path, "prefix": "b "}])
    assert list(both)[2:] == ["b GET /trees/{id}", "b PUT /trees/{id}"]
    assert both["b GET /trees/{id}"].extra["path"] == "/trees/{id}"
