"""Loaders of ToolBench, API-Bank and ToolHop on small documents, and `load_catalogue` over all kinds."""

import json

import pytest

from verl_ext.tools.catalogue import Catalogue, load_catalogue
from verl_ext.tools.catalogue.formats.api_bank import literals, schema_of
from verl_ext.tools.catalogue.formats.toolbench import standard_name
from verl_ext.tools.catalogue.load import KINDS


def jsonl(folder, *rows, name="tools.jsonl"):
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


def api(name="Songkick concert", tool="TheClique", category="Data", required=(), optional=(), **more):
    row = {"category_name": category, "tool_name": tool, "api_name": name, "api_description": " Info "}
    row |= {"required_parameters": list(required), "optional_parameters": list(optional), "method": "GET"}
    return {**row, **more}


def parameter(name, kind="STRING", default="", description=""):
    return {"name": name, "type": kind, "description": description, "default": default}


def only(folder, kind, *rows):
    return load_catalogue([{"kind": kind, "path": jsonl(folder, *rows)}])


# ToolBench


@pytest.mark.parametrize(
    "api_name, tool_name, name",
    [
        ("Songkick concert", "TheClique", "songkick_concert_for_theclique"),
        ("Get Chat User (like user from chat)", "Kick.com API | Kick API",
         "get_chat_user_like_user_from_chat_for_kick_com_api_kick_api"),
        ("/v1/{id}", "_Ab  c-", "v1_id_for_ab_c"),
        ("id", "Reqres", "is_id_for_reqres"),
        ("7 days", "24h Weather", "get_7_days_for_get_24h_weather"),
        ("天气 Now", "👋 Demo Project", "天气_now_for_demo_project"),
        ("a" * 70, "t", "a" * 58 + "_for_t"),
    ],
)  # fmt: skip
def test_toolbench_names(api_name, tool_name, name):
    assert standard_name(api_name, tool_name) == name


def test_toolbench_documents(tmp_path):
    row = api(
        required=[parameter("id", "NUMBER", "42"), parameter("on", "BOOLEAN", "True", " which ")],
        optional=[parameter("array[]", "ARRAY", '["a"]'), parameter("id"), parameter("date", "DATE (YYYY-MM-DD)")],
        template_response={"date": "str"},
    )
    (tool,) = only(tmp_path, "toolbench", row).values()
    assert tool.description == "Info" and tool.returns == {"date": "str"} and tool.source == "toolbench"
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "id": {"type": "number", "default": 42},
            "on": {"type": "boolean", "description": "which", "default": True},
            "array[]": {"type": "array", "default": ["a"]},
            "date": {"type": "string"},
        },
        "required": ["id", "on"],
        "additionalProperties": False,
    }
    assert tool.extra == {
        "category_name": "Data", "tool_name": "TheClique", "api_name": "Songkick concert", "method": "GET"
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind, default, schema",
    [
        ("OBJECT", "cities", {"type": ["object", "string"], "default": "cities"}),
        ("NUMBER", ["1"], {"type": ["number", "array"], "default": ["1"]}),
        ("NUMBER", "1e3", {"type": "number", "default": 1000.0}),
        ("NUMBER", "NaN?", {"type": ["number", "string"], "default": "NaN?"}),
        ("BOOLEAN", "yes", {"type": ["boolean", "string"], "default": "yes"}),
        ("STRING", 5, {"type": ["string", "number"], "default": 5}),
        ("ENUM", "", {"type": "string"}),
    ],
)
def test_toolbench_types_are_loose_where_the_default_contradicts_them(tmp_path, kind, default, schema):
    (tool,) = only(tmp_path, "toolbench", api(required=[parameter("x", kind, default)])).values()
    assert tool.parameters["properties"]["x"] == schema
    Catalogue([tool]).check()


def test_toolbench_rows_of_several_categories(tmp_path):
    other = api(category="Finance", required=[parameter("to")])
    same = api(category="Sports")
    third = api(category="Finance", required=[parameter("from")])
    tools = only(tmp_path, "toolbench", api(), same, other, third, api())
    assert list(tools) == [
        "songkick_concert_for_theclique",
        "songkick_concert_for_theclique_in_finance",
        "songkick_concert_for_theclique_in_finance_2",
    ]
    assert [tool.extra["category_name"] for tool in tools.values()] == ["Data", "Finance", "Finance"]


# API-Bank

CALCULATOR = {
    "name": "Calculator",
    "description": "Counts.",
    "input_parameters": {
        "formula": {"type": "str", "description": "What to count."},
        "digits": {"type": "int", "description": "[Optional] how many"},
        "names": {"type": "list(str)", "description": "Only needed for the second call."},
    },
    "output_parameters": {"result": {"type": "float", "description": ""}},
}


def test_api_bank_catalogue(tmp_path):
    (tool,) = only(tmp_path, "api_bank", CALCULATOR).values()
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "formula": {"type": "string", "description": "What to count."},
            "digits": {"type": "integer", "description": "[Optional] how many"},
            "names": {"type": "array", "items": {"type": "string"}, "description": "Only needed for the second call."},
        },
        "required": ["formula"],
        "additionalProperties": False,
    }
    assert tool.returns == {"type": "object", "properties": {"result": {"type": "number"}}}


def test_api_bank_python_text(tmp_path):
    info = "description = 'Today\\'s tasks'\ninput_parameters = {\n    None\n}\n"
    info += "output_parameters = {'t': {'type': 'json'}}"
    rows = [
        {"类名": "GetToday", "api_info": info},
        {"类名": "Nothing", "api_info": "."},
        {"类名": "Mail", "api_info": "description = 'Reads'\ninput_parameters = None\noutput_parameters = None"},
    ]
    tools = only(tmp_path, "api_bank", *rows)
    assert list(tools) == ["GetToday", "Mail"] and tools["GetToday"].description == "Today's tasks"
    assert tools["GetToday"].parameters["properties"] == {} and tools["Mail"].returns is None
    assert tools["GetToday"].returns == {"type": "object", "properties": {"t": {}}}


@pytest.mark.parametrize(
    "text",
    ["a = __import__('os').getcwd()", "import os", "a = (", "a.b = 1", "a = [x for x in ()]", "a = " + "(" * 500],
)
def test_api_bank_text_is_never_run(text):
    with pytest.raises(ValueError, match="f:1: api_info must be assignments of Python literals") as error:
        literals(text, "f:1")
    assert " at 0x" not in str(error.value), "an address in memory, another one each time"


@pytest.mark.parametrize(
    "kind, schema",
    [
        ("List[str]", {"type": "array", "items": {"type": "string"}}),
        ("list(list(int))", {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        ("datetime", {"type": "string"}),
        ("Bool", {"type": "boolean"}),
        ("object", {"type": "object"}),
        ("json", {}),
    ],
)
def test_python_type_names(kind, schema):
    assert schema_of(kind) == schema


# Functions as models are told of them


def test_json_functions_alone_and_wrapped(tmp_path):
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"minimum": 1}}}}
    rows = [
        {"name": "a", "description": "A.", "parameters": schema, "returns": {"type": "null"}, "category": "c"},
        {"type": "function", "function": {"name": "b"}},
    ]
    first, second = only(tmp_path, "json", *rows).values()
    assert (first.parameters, first.returns, first.extra) == (schema, {"type": "null"}, {"category": "c"})
    assert (second.name, second.description, second.parameters) == ("b", "", {"type": "object", "properties": {}})


# Failures name file, row and remedy


@pytest.mark.parametrize(
    "kind, row, message",
    [
        ("toolbench", {"category_name": "x"}, "tools.jsonl:2: field 'tool_name' must be of type str, given nothing"),
        ("toolbench", api(required=["x"]), "tools.jsonl:2: a parameter must be an object with a name, given 'x'"),
        ("api_bank", {"name": 3}, "tools.jsonl:2: field 'name' must be of type str, given int 3"),
        ("api_bank", {"类名": "A", "api_info": "x"}, "tools.jsonl:2: api_info must be assignments"),
        ("api_bank", {**CALCULATOR, "name": "B", "input_parameters": {"a": {"type": "complex"}}},
         "tools.jsonl:2: parameter 'a': type: given 'complex', allowed"),
        ("api_bank", {**CALCULATOR, "name": "B", "input_parameters": [3]}, "parameters must be an object"),
        ("toolhop", {"id": True, "tools": {}}, "tools.jsonl:2: field 'id' must be a text or a number"),
        ("toolhop", {"id": 1, "tools": {"Who?": "x"}}, "tools.jsonl:2: tool of 'Who\\?': given str"),
        ("json", {"description": "x"}, "tools.jsonl:2: field 'name' must be of type str, given nothing"),
        ("toolhop", "{", "tools.jsonl:2: not valid JSON"),
    ],
)  # fmt: skip
def test_malformed_rows_are_named(tmp_path, kind, row, message):
    first = {"toolbench": api(), "api_bank": CALCULATOR, "toolhop": {"id": 0, "tools": {}}, "json": {"name": "a"}}[kind]
    with pytest.raises(ValueError, match=message):
        only(tmp_path, kind, first, row)


@pytest.mark.parametrize("text", [b"\xff", b"x" * 10_000_001], ids=["no UTF-8", "too long"])
def test_a_corpus_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "corpus.tsv").write_bytes(b"docid\tdocument_content\n1\t" + text)
    with pytest.raises(ValueError, match=r"corpus\.tsv cannot be read"):
        load_catalogue([{"kind": "toolbench", "path": str(tmp_path / "corpus.tsv")}])


def test_missing_and_empty_files_are_named(tmp_path, kind="json"):
    with pytest.raises(ValueError, match="gone.jsonl does not exist"):
        load_catalogue([{"kind": kind, "path": str(tmp_path / "gone.jsonl")}])
    with pytest.raises(ValueError, match="tools.jsonl has no rows; expected one JSON object per line"):
        only(tmp_path, kind, "")


@pytest.mark.parametrize(
    "sources, message",
    [
        ({"kind": "toolhop"}, "sources must be a list of tool sources"),
        ([], "there are no tools in the sources"),
        ([{"kind": ["json"]}], r"tool source 0: given kind \['json'\], allowed"),
        ([{"kind": "json", "path": 3}], "a path must be a text, or several in a list; given 3"),
        ([{"kind": "json", "path": ["x", None]}], r"several in a list; given \['x', None\]"),
        ([{"kind": "opnapi"}], "tool source 0: given kind 'opnapi', allowed .*'openapi'.*'mcp'"),
        (
            [{"kind": "toolhop"}],
            r"tool source 0 \(toolhop\): unknown settings \[\], missing \['path'\]; allowed .*prefix",
        ),
        ([{"kind": "mcp", "cmd": "x"}], r"unknown settings \['cmd'\].*'command', 'url', 'env', 'timeout_s', 'prefix'"),
        ([{"kind": "mcp"}], "mcp: give command or url, one of them"),
        ([{"kind": "mcp", "command": "python x"}], "mcp: command must be a list of words, given 'python x'"),
        ([{"kind": "mcp", "url": "http://x", "timeout_s": 0}], "timeout_s must be a number > 0"),
    ],
)
def test_sources_that_cannot_be_are_refused(sources, message):
    with pytest.raises(ValueError, match=message):
        load_catalogue(sources)


def test_sources_add_up_and_only_restricts_them(tmp_path):
    bench = [jsonl(tmp_path, api(), name="b.jsonl"), jsonl(tmp_path, api("Me"), name="c.jsonl")]
    sources = [
        {"kind": "api_bank", "path": jsonl(tmp_path, CALCULATOR, name="a.jsonl")},
        {"kind": "toolbench", "path": bench, "prefix": None},
    ]
    assert list(load_catalogue(sources)) == ["Calculator", "songkick_concert_for_theclique", "me_for_theclique"]
    assert list(load_catalogue(sources, ["me_for_theclique"])) == ["me_for_theclique"]
    with pytest.raises(ValueError, match="1 of 1 names belong to no tool: 'Me'"):
        load_catalogue(sources, ["Me"])
    with pytest.raises(ValueError, match="only must be a list of names, given 'Calculator'"):
        load_catalogue(sources, "Calculator")
    assert set(KINDS) == {"json", "openapi", "toolbench", "api_bank", "toolhop", "functions", "mcp", "encyclopedia"}
