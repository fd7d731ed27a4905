"""tools.py and environments.py: every layout, every row accounted for, and the files that the tools read."""

from __future__ import annotations

import csv
import http.server
import json
import threading
from collections import Counter
from functools import partial

import pytest

from tests.data_prep.shared import path_of, write_jsonl
from tests.data_prep.shared import prepare_tools as prepare
from tests.public_data import SHARED, needs_shared
from verl_ext.data_prep.sources import restbench
from verl_ext.data_prep.tool_tasks import ToolTask, divide
from verl_ext.recipe.deepagent.environments import alfworld, webshop
from verl_ext.tools.catalogue import load_catalogue

OPENAPI = {
    "openapi": "3.0.0",
    "info": {"title": "t", "version": "1"},
    "paths": {"/tracks/{id}": {"get": {"responses": {}}}, "/search": {"get": {"responses": {}}, "parameters": []}},
}
OPENAPI["paths"]["/albums"] = {"get": {"responses": {}}}
OPENAPI["paths"]["/person/{person_id}/movie_credits"] = {"get": {"responses": {}}}
ENDPOINTS = [f"GET {path}" for path in OPENAPI["paths"]]


def restbench_folder(folder):
    rows = [
        {"query": "Play it", "solution": [" GET /search", "GET /track/{id}"]},
        {"query": "Fly", "solution": ["GET /moon"]},
        {"query": "Nothing", "solution": []},
    ]
    for name, content in (("datasets/spotify", rows), ("specs/spotify_oas", OPENAPI)):
        (folder / name).parent.mkdir(parents=True)
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def check_restbench(status, test, train, printed):
    assert (status, len(test), train) == (0, 1, [])
    row = test[0]
    assert path_of(row) == ["GET /search", "GET /tracks/{id}"] and row["data_source"] == "spotify"
    assert row["reward_model"]["ground_truth"]["target"] == [] and row["extra_info"]["index"] == 0
    assert row["extra_info"]["tools"] == ENDPOINTS, "the whole API is shown, not the gold path"
    assert row["prompt"] == [{"role": "user", "content": "Play it"}]
    assert "read 3 rows; tasks: spotify 1; rejected: 2" in printed
    assert "endpoints that the document does not have, e.g. 'GET /moon': 1 (spotify-001)" in printed
    assert "no gold path: 1 (spotify-002)" in printed


def test_restbench_of_the_repository(tmp_path, capsys):
    source = restbench_folder(tmp_path / "RestGPT")
    done = prepare("restbench", tmp_path / "out", "--scenario", "spotify", "--local_dataset_path", source)
    check_restbench(*done, capsys.readouterr().out)
    catalogue = load_catalogue([{"kind": "openapi", "path": str(tmp_path / "out" / "openapi.json")}])
    assert list(catalogue) == ENDPOINTS


def test_a_misspelt_endpoint_of_tmdb_keeps_its_query(tmp_path):
    source = restbench_folder(tmp_path / "RestGPT")
    for folder, end in (("datasets", ""), ("specs", "_oas")):
        (source / folder / f"spotify{end}.json").rename(source / folder / f"tmdb{end}.json")
    row = {"query": "Which films?", "solution": ["GET /search", "GET /person/{movie_id}/movie_credits"]}
    (source / "datasets" / "tmdb.json").write_text(json.dumps([row]))
    status, test, _ = prepare("restbench", tmp_path / "out", "--scenario", "tmdb", "--local_dataset_path", source)
    assert status == 0 and path_of(test[0]) == ["GET /search", "GET /person/{person_id}/movie_credits"]


def test_restbench_from_its_own_place(tmp_path, capsys, monkeypatch):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = restbench_folder(tmp_path / "RestGPT")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(restbench, "HUB", f"http://127.0.0.1:{server.server_port}")
        check_restbench(*prepare("restbench", tmp_path / "out", "--scenario", "spotify"), capsys.readouterr().out)
        server.shutdown()
    assert prepare("restbench", tmp_path / "none", "--scenario", "spotify")[0] == 2
    assert "spotify.json could not be fetched" in capsys.readouterr().err


def test_a_download_that_breaks_off_is_named(tmp_path, capsys, monkeypatch):
    class Cut(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'[{"query": ')

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(restbench, "HUB", f"http://127.0.0.1:{server.server_port}")
        assert prepare("restbench", tmp_path / "out", "--scenario", "spotify")[0] == 2
        server.shutdown()
    assert "spotify.json could not be fetched: IncompleteRead" in capsys.readouterr().err


HOP = {
    "id": 7,
    "question": "Whose?",
    "answer": "Ann",
    "sub_task": {"who is it": "Ann"},
    "tools": {"who is it": {"name": "who", "description": "Says who.", "parameters": {"type": "object"}}},
    "functions": ["def who(): raise SystemExit"],
}


def test_toolhop_keeps_the_code_of_its_tools(tmp_path, capsys):
    rows = [HOP, HOP | {"id": 8, "answer": " "}, HOP | {"id": 9, "tools": {}}, HOP | {"id": 10, "question": None}]
    (tmp_path / "ToolHop.json").write_text(json.dumps(rows))
    status, test, _ = prepare("toolhop", tmp_path / "out", "--local_dataset_path", tmp_path)
    assert status == 0 and "rejected: 3" in capsys.readouterr().out
    assert test[0]["reward_model"]["ground_truth"]["target"] == ["Ann"]
    sources = [{"kind": "toolhop", "path": str(tmp_path / "out" / "tools.jsonl")}]
    (tool,) = load_catalogue(sources).values()
    assert [tool.name] == path_of(test[0]) == test[0]["extra_info"]["tools"] and tool.backend and "7" not in tool.extra
    assert prepare("toolhop", tmp_path / "out", "--local_dataset_path", tmp_path, "--simulated")[0] == 0
    (tool,) = load_catalogue(sources).values()
    assert tool.backend is None and tool.extra["answer"] == "Ann"


def document(category, api):
    said = {"category_name": category, "tool_name": "T", "api_name": api, "api_description": f"{api} of {category}"}
    return said | {"required_parameters": [], "optional_parameters": [], "method": "GET", "template_response": {}}


def test_toolbench_with_documents_in_its_queries(tmp_path, capsys):
    rows = [
        {"query_id": 1, "query": "a?", "relevant APIs": [["T", "a"]], "api_list": [document("A", "a")]},
        {"query_id": 2, "query": "b?", "relevant APIs": [["T", "a"]], "api_list": [document("B", "a")]},
        {"query_id": 3, "query": "c?", "relevant APIs": [["T", "c"]], "api_list": []},
        {"query_id": 4, "query": "d?", "relevant APIs": [], "api_list": []},
    ]
    (tmp_path / "G3_instruction.json").write_text(json.dumps(rows))
    status, test, train = prepare("toolbench", tmp_path / "out", "--local_dataset_path", tmp_path, "--test_size", 1)
    printed = capsys.readouterr().out
    assert status == 0 and (len(test), len(train)) == (1, 1) and "rejected: 2" in printed
    paths = {row["extra_info"]["id"]: path_of(row) for row in [*test, *train]}
    assert paths == {"G3_instruction-1": ["a_for_t"], "G3_instruction-2": ["a_for_t_in_b"]}, "api_list says which"
    assert "relevant APIs without a document: 1 (G3_instruction-3: c of T)" in printed
    assert {row["data_source"] for row in test} == {"toolbench_g3_instruction"} and "no relevant API: 1" in printed


def corpus(path, documents):
    """corpus.tsv as ToolBench's script writes it: a row per query and API, so that documents are repeated."""
    with path.open("w", newline="") as file:
        rows = [(i, json.dumps(one)) for i, one in enumerate([*documents, *documents])]
        csv.writer(file, delimiter="\t").writerows([("docid", "document_content"), *rows])
    return path


def test_toolbench_shows_its_queries_whole_api_list(tmp_path, capsys):
    documents = [document(category, api) for category, api in (("A", "a"), ("A", "b"), ("B", "a"), ("C", "far"))]
    documents[2]["api_description"] = "x" * 200_000
    listed = [documents[2], documents[1], document("X", "gone")]
    row = {"query_id": 1, "query": ["a or b?"], "relevant APIs": [["T", "a"]], "api_list": listed}
    (tmp_path / "G3_instruction.json").write_text(json.dumps([row]))
    files = corpus(tmp_path / "corpus.tsv", documents[:3]), corpus(tmp_path / "more.tsv", documents[1:])
    options = ["--local_dataset_path", tmp_path, "--corpus", *files]
    status, test, _ = prepare("toolbench", tmp_path / "out", *options)
    assert status == 0 and test[0]["prompt"][0]["content"] == "a or b?"
    assert path_of(test[0]) == ["a_for_t_in_b"] and test[0]["extra_info"]["tools"] == ["a_for_t_in_b", "b_for_t"]
    assert "shown: 2.0 tools a task, of which it needs 1.0" in capsys.readouterr().out
    names = ["a_for_t", "b_for_t", "a_for_t_in_b", "far_for_t"]
    for paths in ([str(tmp_path / "out" / "tools.jsonl")], list(map(str, files))):
        assert list(load_catalogue([{"kind": "toolbench", "path": paths}])) == names
    (tmp_path / "corpus.tsv").write_text("docid\tdocument_content\n1\t{broken\n")
    assert prepare("toolbench", tmp_path / "out", *options)[0] == 2
    assert "corpus.tsv row 1: column document_content is no JSON" in capsys.readouterr().err


def test_environments_name_their_tasks(tmp_path, capsys):
    for name, solvable in (("a", True), ("b", False)):
        write_jsonl(tmp_path / "games" / name / "game.tw-pddl", [{"solvable": solvable}])
    status, test, _ = prepare("alfworld", tmp_path / "a", "--local_dataset_path", tmp_path / "games")
    assert status == 0 and [row["extra_info"]["id"] for row in test] == ["a/game.tw-pddl"]
    assert test[0]["extra_info"]["tools"] == list(load_catalogue([{"kind": "json", "path": str(alfworld.TOOLS)}]))
    assert len(test[0]["extra_info"]["tools"]) == 9 and "unsolvable by its own file: 1" in capsys.readouterr().out
    _, test, _ = prepare("webshop", tmp_path / "w", "--goals", 3, 5)
    assert [row["extra_info"]["id"] for row in test] == ["3", "4"]
    assert test[0]["extra_info"]["tools"] == list(load_catalogue([{"kind": "json", "path": str(webshop.TOOLS)}]))
    assert prepare("webshop", tmp_path / "w", "--goals", 5, 5)[0] == 2


def test_a_game_that_is_cut_off_and_a_folder_that_nobody_would_read_are_named(tmp_path, capsys):
    game = tmp_path / "a" / "game.tw-pddl"
    game.parent.mkdir()
    for content in ('{"solvable": tr', "[]"):
        game.write_text(content)
        assert prepare("alfworld", tmp_path / "out", "--local_dataset_path", tmp_path)[0] == 2
        assert f"{game} is no whole game" in capsys.readouterr().err
    assert prepare("webshop", tmp_path / "out", "--local_dataset_path", tmp_path)[0] == 2
    assert "would do nothing for webshop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tools": [{"name": "n", "parameters": "{'type': "}]}, "field 'tools': given {'name': 'n'"),
        ({"tools": [{"parameters": "{}"}]}, "expected an object with a name"),
        ({"tools": ["n"]}, "field 'tools': given 'n'"),
        ({"messages": [{"role": "user", "content": None}]}, "field 'content': given NoneType"),
        ({"messages": ["Hello"]}, "message 1: given 'Hello'"),
    ],
)
def test_malformed_rows_of_toolbench_static_are_named(tmp_path, capsys, changes, message):
    row = {"tools": [{"name": "n", "parameters": "{}"}], "messages": [{"role": "user", "content": "Go on"}]}
    row["target"] = "Thought: so\nAction: n\nAction Input: {}"
    options = ["--sets", "in_domain", "--local_dataset_path", tmp_path]
    write_jsonl(tmp_path / "in_domain.jsonl", [row])
    assert prepare("toolbench_static", tmp_path / "out", *options)[0] == 0
    write_jsonl(tmp_path / "in_domain.jsonl", [row, row | changes])
    assert prepare("toolbench_static", tmp_path / "out", *options)[0] == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'in_domain.jsonl'}:2: " in said and message in said


def test_training_tasks_that_are_now_test_tasks_are_named(tmp_path, capsys):
    prepare("webshop", tmp_path, "--goals", 0, 10, "--test_size", 4)
    assert "left from" not in capsys.readouterr().out
    _, test, train = prepare("webshop", tmp_path, "--goals", 0, 10)
    assert len(test) == 10 and len(train) == 6
    assert f"left from an earlier run: {tmp_path}/train.parquet" in capsys.readouterr().out


def test_the_held_out_rows_do_not_depend_on_the_order():
    tasks = [ToolTask(str(i), "q", ["a"]) for i in range(20)]
    train, test = divide(tasks, 5, 0)
    again = divide(tasks[::-1], 5, 0)[1]
    assert len(test) == 5 and {task.id for task in test} == {task.id for task in again}
    assert {task.id for task in test}.isdisjoint(task.id for task in train) and len(train) == 15
    assert {task.id for task in divide(tasks, 5, 1)[1]} != {task.id for task in test}
    with pytest.raises(ValueError, match="between 0 and 20"):
        divide(tasks, 21, 0)
    with pytest.raises(ValueError, match="ids must be unique"):
        divide([tasks[0], tasks[0]], None, 0)


@needs_shared
@pytest.mark.parametrize(
    ("name", "options", "expected", "per_task"),
    [
        ("restbench", ["--scenario", "tmdb"], {"tmdb": 81}, (54.0, 2.3)),
        ("restbench", ["--scenario", "spotify"], {"spotify": 47}, (40.0, 2.6)),
        ("toolhop", [], {"toolhop": 80}, (4.4, 4.4)),
        ("toolbench", ["--sets", "G3_instruction"], {"toolbench_g3_instruction": 52}, (5.9, 2.9)),
    ],
)
def test_real_rows_show_distractors_as_the_source_does(tmp_path, name, options, expected, per_task):
    status, test, _ = prepare(name, tmp_path, "--local_dataset_path", SHARED / "tools" / name, *options)
    assert status == 0 and Counter(row["data_source"] for row in test) == expected
    assert all(path_of(row) and set(path_of(row)) <= set(row["extra_info"]["tools"]) for row in test)
    shown = sum(len(row["extra_info"]["tools"]) for row in test) / len(test)
    needed = sum(len(set(path_of(row))) for row in test) / len(test)
    assert (round(shown, 1), round(needed, 1)) == per_task


def test_malformed_documents_are_named(tmp_path, capsys):
    row = {"query_id": 1, "query": "a?", "relevant APIs": [["T", "a"]], "api_list": [{"category_name": "A"}]}
    (tmp_path / "G3_instruction.json").write_text(json.dumps([row]))
    assert prepare("toolbench", tmp_path / "out", "--local_dataset_path", tmp_path)[0] == 2
    assert "G3_instruction.json row 1: api_list: field 'tool_name'" in capsys.readouterr().err
    folder = restbench_folder(tmp_path / "RestGPT")
    (folder / "specs" / "spotify_oas.json").write_text("{}")
    assert prepare("restbench", tmp_path / "out", "--scenario", "spotify", "--local_dataset_path", folder)[0] == 2
    assert "expected an OpenAPI 3 document" in capsys.readouterr().err
