"""tools.py api_bank: the repository's layout, levels by folder, units, and what each level shows."""

from __future__ import annotations

import csv
import json
from collections import Counter

import pytest

from tests.data_prep.shared import path_of, prepare_tools, write_jsonl
from tests.public_data import SHARED, needs_shared
from verl_ext.tools.catalogue import Recorded


def prepare(output, *options):
    return prepare_tools("api_bank", output, *options)


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


GIVEN, SEARCHED = "level-1-given-desc", "level-2-toolsearcher"
UNKNOWN = [{"role": "User", "text": "Fly."}, {**CALL, "api_name": "Fly"}]
SILENT = [{"role": "User", "text": "Hello."}]
CODE = """raise SystemExit("not run")
class {name}(API):
    description = "Does {name}."
    input_parameters = {{"{argument}": {{"type": "int", "description": ""}}}}
"""


def repository(folder):
    """The authors' layout: the number in a file's name is not its level."""
    files = {(GIVEN, "Book-level-2-1"): TURNS, (GIVEN, "No-level-1-2"): SILENT, (GIVEN, "Fly-level-1-1"): UNKNOWN}
    files |= {(SEARCHED, "Book-level-3-1"): TURNS[:4], (f"{GIVEN}-e2e", "Book-level-2-1"): TURNS}
    for (level, name), turns in files.items():
        write_jsonl(folder / "lv1-lv2-samples" / level / f"{name}.jsonl", turns)
    for level, argument in (("apis", "room"), ("lv3_apis", "token")):
        (folder / level).mkdir()
        for name in ("Book", "ToolSearcher"):
            (folder / level / f"{name}.py").write_text(CODE.format(name=name, argument=argument))
    return folder


def prepared_copy(folder):
    """One file of dialogues, whose field `set` is the folder."""
    named = {"Book-level-2-1.jsonl": (GIVEN, TURNS), "Fly-level-1-1.jsonl": (GIVEN, UNKNOWN)}
    named |= {"No-level-1-2.jsonl": (GIVEN, SILENT), "Book-level-3-1.jsonl": (SEARCHED, TURNS[:4])}
    rows = [{"file": name, "set": of, "level": 3, "turns": turns} for name, (of, turns) in named.items()]
    write_jsonl(folder / "lv1_lv2_dialogues.jsonl", rows)
    write_jsonl(folder / "test_level-3.jsonl", [REQUIREMENT])
    write_jsonl(folder / "tool_catalogue.jsonl", [TOOL])
    return folder


@pytest.mark.parametrize("layout", [repository, prepared_copy])
def test_the_level_is_that_of_the_folder(tmp_path, capsys, layout):
    source = layout(tmp_path / "api-bank")
    status, test, _ = prepare(tmp_path / "out", "--local_dataset_path", source, "--levels", 1, 2)
    printed = capsys.readouterr().out
    assert status == 0 and [row["data_source"] for row in test] == ["api_bank_level1", "api_bank_level2"]
    assert path_of(test[0]) == [{"name": "Book", "arguments": {"room": 1}}, {"name": "Book", "arguments": {"room": 2}}]
    shown = ["User: Book a room.", "Assistant: Done. Another one?", "User: Yes."]
    assert test[0]["prompt"][0]["content"].splitlines()[1:] == shown, "neither calls nor what comes after the last one"
    assert "read 4 rows; tasks: api_bank_level1 1, api_bank_level2 1; rejected: 2" in printed
    assert "--unit: 1 (No-level-1-2.jsonl)" in printed and "does not have, e.g. Fly: 1 (Fly-level-1-1)" in printed
    assert "left out of the paths: 2 calls of ToolSearcher" in printed
    recorded = Recorded.load(tmp_path / "out" / "recorded.jsonl")
    assert recorded.get("Book", {"room": 2}) == recorded.get("Book", {"room": "2"}) == "full"
    assert [row["extra_info"]["tools"] for row in test] == [["Book"], []], "level 2 shows the search alone"


def test_level_3_has_tools_of_its_own(tmp_path, capsys):
    source = repository(tmp_path / "api-bank")
    local = ["--local_dataset_path", source]
    assert prepare(tmp_path / "out", *local, "--levels", 3)[0] == 2
    assert "holds none of test_level-3.jsonl, test-data/level-3.json" in capsys.readouterr().err
    (source / "test-data").mkdir()
    (source / "test-data" / "level-3.json").write_text(json.dumps([REQUIREMENT]))
    status, test, _ = prepare(tmp_path / "out", *local, "--levels", 3)
    assert status == 0 and test[0]["data_source"] == "api_bank_level3" and test[0]["extra_info"]["tools"] == []
    assert path_of(test[0]) == [{"name": "Book", "arguments": {"room": 1}}]
    assert '"token"' in (tmp_path / "out" / "tools.jsonl").read_text()
    assert prepare(tmp_path / "out", *local, "--levels", 1, 3)[0] == 2
    assert "Remedy: prepare --levels 3 into a folder of its own" in capsys.readouterr().err


def test_dialogues_that_are_complete_before_the_first_call(tmp_path):
    source = repository(tmp_path / "api-bank")
    whole = [TURNS[0], {"role": "AI", "text": "Which?"}, {"role": "User", "text": "1."}, TURNS[3], CALL, TURNS[-1]]
    write_jsonl(source / "lv1-lv2-samples" / GIVEN / "Whole-level-1-1.jsonl", whole)
    _, test, _ = prepare(tmp_path / "out", "--unit", "end_to_end", "--local_dataset_path", source)
    assert [row["extra_info"]["id"] for row in test] == ["Whole-level-1-1"]
    assert test[0]["prompt"][0]["content"].splitlines()[1:] == ["User: Book a room.", "Assistant: Which?", "User: 1."]


def test_the_table_of_apis_where_their_code_is_missing(tmp_path):
    source = repository(tmp_path / "api-bank")
    (source / "apis").rename(source / "elsewhere")
    (source / "data").mkdir()
    info = CODE.format(name="Book", argument="room").partition("(API):")[2].replace("\n    ", "\n").strip()
    with (source / "data" / "all_apis.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "类名", "api_info"], [1, "Book", info], [2, "Nothing", ""]])
    status, test, _ = prepare(tmp_path / "out", "--local_dataset_path", source)
    assert status == 0 and len(test) == 1


def test_a_task_per_turn(tmp_path):
    source = prepared_copy(tmp_path / "api-bank")
    _, test, _ = prepare(tmp_path / "out", "--unit", "turn", "--local_dataset_path", source)
    assert [row["extra_info"]["id"] for row in test[:2]] == ["Book-level-2-1-turn2", "Book-level-2-1-turn5"]
    assert [path_of(row) for row in test[:2]] == [[{"name": "Book", "arguments": {"room": room}}] for room in (1, 2)]
    assert 'API call: {"name": "Book", "arguments": {"room": 1}} -> "ok"' in test[1]["prompt"][0]["content"]
    assert "API call:" not in test[0]["prompt"][0]["content"] and "ToolSearcher" not in test[0]["prompt"][0]["content"]


def as_texts(row, lists, objects):
    """A row whose list of calls, and the objects in it, are JSON texts, as some parquet copies have them."""
    calls = [one | {key: json.dumps(one[key]) for key in objects if key in one} for one in row[lists]]
    return row | {lists: json.dumps(calls)}


@pytest.mark.parametrize("options", [[], ["--unit", "turn"], ["--levels", 3]])
def test_lists_and_objects_may_be_json_texts(tmp_path, options):
    sources, outs = [prepared_copy(tmp_path / name) for name in ("plain", "texts")], [tmp_path / "1", tmp_path / "2"]
    row = {"file": "Book-level-2-1.jsonl", "set": GIVEN, "turns": TURNS}
    for source, change in zip(sources, (lambda row, *_: row, as_texts), strict=True):
        write_jsonl(source / "lv1_lv2_dialogues.jsonl", [change(row, "turns", ("param_dict", "result"))])
        write_jsonl(source / "test_level-3.jsonl", [change(REQUIREMENT, "apis", ("input", "output"))])
    plain, texts = (
        prepare(out, "--local_dataset_path", source, *options) for source, out in zip(sources, outs, strict=True)
    )
    assert plain[0] == 0 and plain == texts
    assert [(out / "recorded.jsonl").read_text() for out in outs] == [(outs[0] / "recorded.jsonl").read_text()] * 2


def test_it_says_where_it_is_to_be_had(tmp_path, capsys):
    assert prepare(tmp_path / "out")[0] == 2
    assert "git clone" in capsys.readouterr().err and not (tmp_path / "out").exists()


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
def test_a_malformed_dialogue_is_named(tmp_path, capsys, change, message):
    source = prepared_copy(tmp_path / "api-bank")
    write_jsonl(source / "lv1_lv2_dialogues.jsonl", [{"file": "a", "set": GIVEN, "turns": [*TURNS[:2], change]}])
    assert prepare(tmp_path / "out", "--local_dataset_path", source)[0] == 2
    assert f"lv1_lv2_dialogues.jsonl:1: {message}" in capsys.readouterr().err


def test_a_malformed_requirement_and_level_are_named(tmp_path, capsys):
    source = prepared_copy(tmp_path / "api-bank")
    write_jsonl(source / "test_level-3.jsonl", [REQUIREMENT | {"apis": [{}]}])
    assert prepare(tmp_path / "out", "--local_dataset_path", source, "--levels", 3)[0] == 2
    assert "test_level-3.jsonl:1: API call 1: field 'api_name'" in capsys.readouterr().err
    write_jsonl(source / "lv1_lv2_dialogues.jsonl", [{"file": "a", "level": 4, "turns": TURNS}])
    assert prepare(tmp_path / "out", "--local_dataset_path", source)[0] == 2
    assert "lv1_lv2_dialogues.jsonl:1: given level 4, expected 1, 2" in capsys.readouterr().err


@needs_shared
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--levels", 1, 2, 3], {"api_bank_level1": 174, "api_bank_level2": 40, "api_bank_level3": 42}),
        (["--levels", 1, 2, "--unit", "turn"], {"api_bank_level1": 323, "api_bank_level2": 61}),
    ],
)
def test_real_rows(tmp_path, options, expected):
    status, test, _ = prepare(tmp_path, "--local_dataset_path", SHARED / "tools" / "api_bank", *options)
    assert status == 0 and Counter(row["data_source"] for row in test) == expected
    assert all(path_of(row) and bool(row["extra_info"]["tools"]) == row["data_source"].endswith("1") for row in test)
