"""tools.py and environments.py: every layout, every row accounted for, and the files that the tools read."""

from __future__ import annotations

import http.server
import json
import threading
from collections import Counter
from functools import partial

import pyarrow.parquet as pq
import pytest

from tests.data_prep.shared import SHARED, needs_shared, write_jsonl
from verl_ext.data_prep import environments, tools
from verl_ext.data_prep.sources import restbench
from verl_ext.data_prep.tool_tasks import ToolTask, divide
from verl_ext.recipe.deepagent.environments import alfworld, webshop
from verl_ext.tools.catalogue import Recorded, load_catalogue

OPENAPI = {
    "openapi": "3.0.0",
    "info": {"title": "t", "version": "1"},
    "paths": {"/tracks/{id}": {"get": {"responses": {}}}, "/search": {"get": {"responses": {}}, "parameters": []}},
}


def prepare(name, output, *options):
    """(status, test rows, train rows)"""
    command = environments if name in environments.ABOUT else tools
    status = command.main([name, "--output_dir", str(output), *map(str, options)])
    files = [output / "test.parquet", output / "train.parquet"]
    return status, *[pq.read_table(path).to_pylist() if path.exists() else [] for path in files]


def path_of(row):
    return json.loads(row["reward_model"]["ground_truth"]["path"])


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
    assert row["extra_info"]["tools"] == path_of(row) and row["prompt"] == [{"role": "user", "content": "Play it"}]
    assert "read 3 rows; tasks: spotify 1; rejected: 2" in printed
    assert "endpoints that the document does not have, e.g. 'GET /moon': 1 (spotify-001)" in printed
    assert "no gold path: 1 (spotify-002)" in printed


def test_restbench_of_the_repository(tmp_path, capsys):
    source = restbench_folder(tmp_path / "RestGPT")
    done = prepare("restbench", tmp_path / "out", "--scenario", "spotify", "--local_dataset_path", source)
    check_restbench(*done, capsys.readouterr().out)
    catalogue = load_catalogue([{"kind": "openapi", "path": str(tmp_path / "out" / "openapi.json")}])
    assert list(catalogue) == ["GET /tracks/{id}", "GET /search"]


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


def api(name, output="ok", **given):
    written = {key: str(value) for key, value in given.items()}
    result = {"input": given, "output": output, "exception": None}
    return {"role": "API", "api_name": name, "param_dict": written, "result": result}


CALL = api("Book", room=1)
TURNS = [
    {"role": "User", "text": " Book a room. "},
    api("ToolSearcher", [], keywords="book"),
    CALL,
    {"role": "AI", "text": "Done. Another one?"},
    {"role": "User", "text": "Yes."},
    api("Book", "full", room=2),
    {"role": "AI", "text": "It is full."},
]
TOOL = {"name": "Book", "description": "Books.", "input_parameters": {"room": {"type": "int", "description": ""}}}
REQUIREMENT = {
    "requirement": "Book room 3.",
    "response": "Booked.",
    "apis": [{"api_name": name, "input": {"room": 3}, "output": CALL["result"]} for name in ("ToolSearcher", "Book")],
}


def api_bank_folder(folder, samples=False):
    unknown = [{"role": "User", "text": "Fly."}, {**CALL, "api_name": "Fly"}]
    silent = [{"role": "User", "text": "Hello."}]
    named = {"Book-level-2-1.jsonl": TURNS, "Fly-level-1-1.jsonl": unknown, "No-level-1-2.jsonl": silent}
    if samples:
        for name, turns in named.items():
            write_jsonl(folder / "lv1-lv2-samples" / "level-1-given-desc" / name, turns)
    else:
        rows = [{"file": name, "level": int(name.split("-")[2]), "turns": turns} for name, turns in named.items()]
        write_jsonl(folder / "lv1_lv2_dialogues.jsonl", rows)
    write_jsonl(folder / "test_level-3.jsonl", [REQUIREMENT])
    write_jsonl(folder / "tool_catalogue.jsonl", [TOOL])
    return folder


@pytest.mark.parametrize("samples", [False, True])
def test_api_bank_by_dialogue(tmp_path, capsys, samples):
    source = api_bank_folder(tmp_path / "api-bank", samples)
    status, test, _ = prepare("api_bank", tmp_path / "out", "--local_dataset_path", source)
    printed = capsys.readouterr().out
    assert status == 0 and [row["data_source"] for row in test] == ["api_bank_level2", "api_bank_level3"]
    assert path_of(test[0]) == [{"name": "Book", "arguments": {"room": 1}}, {"name": "Book", "arguments": {"room": 2}}]
    shown = ["User: Book a room.", "Assistant: Done. Another one?", "User: Yes."]
    assert test[0]["prompt"][0]["content"].splitlines()[1:] == shown, "neither calls nor what comes after the last one"
    assert path_of(test[1]) == path_of(test[0])[:1] and test[1]["extra_info"]["tools"] == ["Book"]
    assert "read 4 rows; tasks: api_bank_level2 1, api_bank_level3 1; rejected: 2" in printed
    assert "no call: 1 (No-level-1-2.jsonl)" in printed and "does not have, e.g. Fly: 1 (Fly-level-1-1)" in printed
    assert "left out of the paths: 2 calls of ToolSearcher" in printed
    recorded = Recorded.load(tmp_path / "out" / "recorded.jsonl")
    assert recorded.get("Book", {"room": 2}) == recorded.get("Book", {"room": "2"}) == "full"


def test_api_bank_by_turn(tmp_path):
    source = api_bank_folder(tmp_path / "api-bank")
    _, test, _ = prepare("api_bank", tmp_path / "out", "--unit", "turn", "--local_dataset_path", source)
    assert [row["extra_info"]["id"] for row in test[:2]] == ["Book-level-2-1-turn2", "Book-level-2-1-turn5"]
    assert [path_of(row) for row in test[:2]] == [[{"name": "Book", "arguments": {"room": room}}] for room in (1, 2)]
    assert 'API call: {"name": "Book", "arguments": {"room": 1}} -> "ok"' in test[1]["prompt"][0]["content"]
    assert "API call:" not in test[0]["prompt"][0]["content"] and "ToolSearcher" not in test[0]["prompt"][0]["content"]


def test_api_bank_says_where_it_is_to_be_had(tmp_path, capsys):
    assert prepare("api_bank", tmp_path / "out")[0] == 2
    assert "git clone" in capsys.readouterr().err and not (tmp_path / "out").exists()


HOP = {
    "id": 7,
    "question": "Whose?",
    "answer": "Ann",
    "sub_task": {"who is it": "Ann"},
    "tools": {"who is it": {"name": "who", "description": "Says who.", "parameters": {"type": "object"}}},
    "functions": ["def who(): raise SystemExit"],
}


def test_toolhop_leaves_code_alone_and_names_tools_by_question(tmp_path, capsys):
    rows = [HOP, HOP | {"id": 8, "answer": " "}, HOP | {"id": 9, "tools": {}}, HOP | {"id": 10, "question": None}]
    (tmp_path / "ToolHop.json").write_text(json.dumps(rows))
    status, test, _ = prepare("toolhop", tmp_path / "out", "--local_dataset_path", tmp_path)
    assert status == 0 and "rejected: 3" in capsys.readouterr().out
    assert (path_of(test[0]), test[0]["reward_model"]["ground_truth"]["target"]) == (["who_7"], ["Ann"])
    assert "functions" not in (tmp_path / "out" / "tools.jsonl").read_text()
    assert list(load_catalogue([{"kind": "toolhop", "path": str(tmp_path / "out" / "tools.jsonl")}])) == ["who_7"]


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
    ("name", "options", "expected"),
    [
        ("restbench", ["--scenario", "tmdb"], {"tmdb": 81}),
        ("restbench", ["--scenario", "spotify"], {"spotify": 47}),
        ("api_bank", [], {"api_bank_level1": 105, "api_bank_level2": 69, "api_bank_level3": 82}),
        ("api_bank", ["--unit", "turn"], {"api_bank_level1": 144, "api_bank_level2": 179, "api_bank_level3": 103}),
        ("toolhop", [], {"toolhop": 80}),
        ("toolbench", ["--sets", "G3_instruction"], {"toolbench_g3_instruction": 52}),
    ],
)
def test_real_rows(tmp_path, name, options, expected):
    status, test, _ = prepare(name, tmp_path, "--local_dataset_path", SHARED / "tools" / name, *options)
    assert status == 0 and Counter(row["data_source"] for row in test) == expected
    assert all(path_of(row) and row["extra_info"]["tools"] for row in test)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("Hello", "turn 3: given 'Hello', expected an object"),
        ({"role": "API"}, "turn 3: field 'api_name'"),
        (CALL | {"param_dict": "room"}, "turn 3: field 'param_dict': given 'room', expected an object"),
        (CALL | {"result": "full"}, "turn 3: field 'result': given 'full'"),
        ({"role": "User"}, "turn 3: field 'text'"),
    ],
)
def test_a_malformed_dialogue_of_api_bank_is_named(tmp_path, capsys, change, message):
    source = api_bank_folder(tmp_path / "api-bank")
    write_jsonl(source / "lv1_lv2_dialogues.jsonl", [{"file": "a", "level": 1, "turns": [*TURNS[:2], change]}])
    assert prepare("api_bank", tmp_path / "out", "--local_dataset_path", source)[0] == 2
    assert f"lv1_lv2_dialogues.jsonl:1: {message}" in capsys.readouterr().err


def test_a_malformed_requirement_and_documents_are_named(tmp_path, capsys):
    source = api_bank_folder(tmp_path / "api-bank")
    write_jsonl(source / "test_level-3.jsonl", [REQUIREMENT | {"apis": [{}]}])
    assert prepare("api_bank", tmp_path / "out", "--local_dataset_path", source)[0] == 2
    assert "test_level-3.jsonl:1: API call 1: field 'api_name'" in capsys.readouterr().err
    row = {"query_id": 1, "query": "a?", "relevant APIs": [["T", "a"]], "api_list": [{"category_name": "A"}]}
    (tmp_path / "G3_instruction.json").write_text(json.dumps([row]))
    assert prepare("toolbench", tmp_path / "out", "--local_dataset_path", tmp_path)[0] == 2
    assert "G3_instruction.json row 1: api_list: field 'tool_name'" in capsys.readouterr().err
    folder = restbench_folder(tmp_path / "RestGPT")
    (folder / "specs" / "spotify_oas.json").write_text("{}")
    assert prepare("restbench", tmp_path / "out", "--scenario", "spotify", "--local_dataset_path", folder)[0] == 2
    assert "expected an OpenAPI 3 document" in capsys.readouterr().err
