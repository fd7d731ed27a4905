"""The public data sets, where they are there: every document is read, every schema holds, every gold tool is found."""

import asyncio
import json
from functools import partial

import bm25s
import pytest

from tests.public_data import SHARED, needs_shared
from verl_ext.tools.catalogue import Recorded, Toolbox, load_catalogue
from verl_ext.tools.catalogue.formats.toolhop import tools_of
from verl_ext.tools.catalogue.search.queries import read_queries
from verl_ext.tools.catalogue.search.tool import open_search
from verl_ext.tools.retrieval.recall import recall
from verl_ext.tools.simulator.prompt import MAX_PART, messages

DATA = SHARED / "tools"
API_BANK, TOOLBENCH = "api_bank/tool_catalogue.jsonl", "toolbench/tool_catalogue.jsonl"
pytestmark = needs_shared


def load(kind, *paths):
    return load_catalogue([{"kind": kind, "path": [str(DATA / path) for path in paths]}])


def rows(path):
    with open(DATA / path) as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name, operations, queries", [("tmdb", 54, 81), ("spotify", 40, 47)])
def test_restbench(name, operations, queries):
    catalogue = load("openapi", f"restbench/{name}_oas.json")
    assert len(catalogue) == operations
    catalogue.check()
    for row in rows(f"restbench/{name}_tool_catalogue.jsonl"):  # what the data set's own reading of the document has
        tool = catalogue[row["tool"]]
        assert tool.extra["operationId"] == row["operationId"]
        for one in row["parameters"]:
            named = f"{one['name']}_{one['in']}", one["name"]
            argument = next(argument for argument in named if argument in tool.parameters["properties"])
            assert (argument in tool.parameters["required"]) == (str(one["required"]).lower() == "true")
            assert one["type"] in (tool.parameters["properties"][argument].get("type"), None)
        assert ("body" in tool.parameters["properties"]) == (row["request_body_schema"] is not None)
    asked = read_queries(DATA / "restbench" / f"{name}_queries.jsonl", catalogue)
    assert (len(asked.questions), asked.left_out, asked.without) == (queries, {}, 0)


@pytest.mark.parametrize(
    ("kind", "file", "queries"),
    [
        ("toolbench", TOOLBENCH, "toolbench/solvable_queries.jsonl"),
        ("openapi", "restbench/tmdb_oas.json", "restbench/tmdb_queries.jsonl"),
        ("openapi", "restbench/spotify_oas.json", "restbench/spotify_queries.jsonl"),
    ],
)
def test_tool_search_finds_at_least_what_plain_bm25_without_stop_words_finds(tmp_path, kind, file, queries):
    """Plain: bm25s over name and description, with its own tokens, list of stop words and ranking."""
    catalogue = load(kind, file)
    asked, tools = read_queries(DATA / queries, catalogue).questions, list(catalogue.values())
    words = partial(bm25s.tokenize, stopwords="en", show_progress=False)
    plain = bm25s.BM25()
    plain.index(words([f"{tool.name.replace('_', ' ')} {tool.description}" for tool in tools]), show_progress=False)
    ranked, scores = plain.retrieve(words([one.text for one in asked]), k=10, show_progress=False)
    theirs = [
        [tools[i].name for i, score in zip(*row, strict=True) if score] for row in zip(ranked, scores, strict=True)
    ]
    hits = open_search(catalogue, "bm25", cache_dir=tmp_path).search([one.text for one in asked], 10)
    ours = [[hit.passage.pid for hit in found] for found in hits]
    for k in (1, 5, 10):
        assert recall(asked, ours, k)[0] >= recall(asked, theirs, k)[0], k


def test_restbench_calls():
    tmdb, spotify = (load("openapi", f"restbench/{name}_oas.json") for name in ("tmdb", "spotify"))
    assert tmdb.problems("GET /movie/{movie_id}/credits", {"movie_id": 597}) == []
    assert tmdb.problems("GET /movie/{movie_id}/credits", {"movie_id": "Titanic", "lang": "en"}) == [
        "GET /movie/{movie_id}/credits: Additional properties are not allowed ('lang' was unexpected)",
        "movie_id: 'Titanic' is not of type 'integer'",
    ]
    example = tmdb["GET /movie/{movie_id}/credits"].extra["response"]["example"]
    assert {"id", "cast", "crew"} <= set(example)
    add = "POST /playlists/{playlist_id}/tracks"
    assert spotify.problems(add, {"playlist_id": "p", "uris": "u", "body": {"uris": ["u"], "position": 0}}) == []
    assert spotify.problems(add, {"playlist_id": "p", "body": {"uris": "u"}}) == [
        "body.uris: 'u' is not of type 'array'"
    ]
    limit = spotify["GET /playlists/{playlist_id}/tracks"].parameters["properties"]["limit"]
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (0, 50, 20)  # in quotes in the document


def test_toolbench():
    catalogue = load("toolbench", TOOLBENCH)
    documents = rows(TOOLBENCH)
    assert (len(documents), len(catalogue)) == (2490, 2485)  # five are said again under another category
    said = {(tool.extra["tool_name"], tool.extra["api_name"]) for tool in catalogue.values()}
    assert said == {(row["tool_name"], row["api_name"]) for row in documents}
    catalogue.only(list(catalogue)[::10]).check()
    asked = read_queries(DATA / "toolbench" / "solvable_queries.jsonl", catalogue)
    assert (len(asked.questions), asked.left_out, asked.without) == (617, {}, 0)
    several = [name for name in catalogue if name.startswith("convert_for_currency_converter_v2")]
    assert several == ["convert_for_currency_converter_v2", "convert_for_currency_converter_v2_in_finance"]


def test_api_bank():
    catalogue = load("api_bank", API_BANK)
    other = load("api_bank", "api_bank/all_apis_101.jsonl")
    assert (len(catalogue), len(other)) == (67, 100)  # ImageCaption has no documentation
    catalogue.check()
    other.check()
    assert other["GetToday"].parameters["properties"] == {} == other["ReceiveEmail"].parameters["properties"]


def test_api_bank_recordings_answer_their_own_calls():
    catalogue = load("api_bank", API_BANK)
    paths = [DATA / "api_bank" / name for name in ("lv1_lv2_dialogues.jsonl", "test_level-3.jsonl")]
    recorded = Recorded.load(paths)
    assert recorded.tools() - set(catalogue) == {"ToolSearcher"}
    toolbox, fitting, calls = Toolbox(catalogue, recorded=recorded), 0, 0
    for row in rows("api_bank/lv1_lv2_dialogues.jsonl"):
        for turn in (turn for turn in row["turns"] if turn["role"] == "API" and turn["api_name"] in catalogue):
            answer = asyncio.run(toolbox(name=turn["api_name"], arguments=turn["param_dict"]))
            assert answer == {"ok": True, "result": turn["result"]["output"]}
            calls += 1
            fitting += not catalogue.problems(turn["api_name"], turn["result"]["input"] or {})
    assert (calls, fitting) == (384, 377)  # TimedSwitch and CancelTimedSwitch take a device_id that is not documented


def test_toolhop():
    catalogue = load("toolhop", "toolhop/toolhop_100.jsonl")
    assert len(catalogue) == 353
    catalogue.only(list(catalogue)[::5]).check()
    for row in rows("toolhop/toolhop_100.jsonl"):
        tools = [catalogue[tool.name] for tool in tools_of(row, "row")]
        assert {tool.extra["sub_question"]: tool.extra["answer"] for tool in tools} == row["sub_task"]
        assert not any(str(row["id"]) in tool.name or str(row["source_id"]) == tool.name[-6:] for tool in tools)
        assert [tool.parameters for tool in tools] == [tool["parameters"] for tool in row["tools"].values()]


def test_every_prompt_of_the_simulator_is_two_lines_of_bounded_data():
    kinds = {"openapi": "restbench/spotify_oas.json", "toolbench": TOOLBENCH, "api_bank": API_BANK}
    for spec in (spec for kind, path in kinds.items() for spec in load(kind, path).values()):
        content = messages(spec, "{}")[1]["content"]
        tool, call = content.split("\n")
        shown = json.loads(tool.removeprefix("TOOL "))
        assert shown["name"] == spec.name and json.loads(call.removeprefix("CALL ")) == {"arguments": {}}
        assert "<" not in content and len(tool) < 5 * MAX_PART
        for part in ("description", "parameters"):
            assert shown.get(part, "") == (getattr(spec, part) or "") or "(cut after" in shown[part]
