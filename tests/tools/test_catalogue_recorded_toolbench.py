"""Recordings of StableToolBench: the folder's form, names of tools and parameters, entries that nobody can read."""

import json
import logging

import pytest

from tests.tools.test_catalogue_toolbox import ask
from verl_ext.tools.catalogue import Recorded, Toolbox, load_catalogue, tool_call
from verl_ext.tools.catalogue.recorded.results import content_of
from verl_ext.tools.catalogue.types import CallError

SEARCH = "transfermarkt_search_for_theclique"


def written(folder, path, entries):
    file = folder / "tool_response_cache" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(entries) if not isinstance(entries, str) else entries)
    return folder / "tool_response_cache"


def answer(response, error=""):
    return {"error": error, "response": response}


def row(category, tool, api, *parameters):
    said = [{"name": name, "type": "STRING", "description": "", "default": ""} for name in parameters]
    said = {"required_parameters": [], "optional_parameters": said, "api_description": category}
    return {"category_name": category, "tool_name": tool, "api_name": api, **said}


def source(folder, *rows):
    (folder / "toolbench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [{"kind": "toolbench", "path": str(folder / "toolbench.jsonl")}]


def test_calls_are_found_by_the_names_of_the_catalogue(tmp_path):
    entries = {
        str({"name": "it's", "page": 1, "all": True, "of": None}): answer({"id": 28003}),
        '{"name": "pelé", "all": true}': answer("text"),
        "{}": answer("", "name is missing"),
    }
    cache = written(tmp_path, "Data/theclique_for_Data/transfermarkt_search.json", entries)
    written(tmp_path, "Visual_Recognition/2d_for_Visual_Recognition/is_from.json", {"{'is_id': 3}": answer([])})
    rows = row("Data", "TheClique", "Transfermarkt search"), row("Visual Recognition", "2d", "from", "id", "is_id2")
    catalogue = load_catalogue(source(tmp_path, *rows))
    recorded = Recorded.load(cache, catalogue.values())
    assert len(recorded) == 4 and recorded.tools() == set(catalogue) == {SEARCH, "is_from_for_get_2d"}
    assert recorded.get(SEARCH, {"name": "it's", "page": 1, "all": True, "of": None}) == {"id": 28003}
    assert recorded.get(SEARCH, {"name": "pelé", "all": True}) == "text"
    with pytest.raises(CallError, match="name is missing"):
        recorded.get(SEARCH, {})
    assert recorded.get("is_from_for_get_2d", {"id": 3}) == []  # RapidAPI's name, as the catalogue has it
    without = Recorded.load(cache)
    assert without.tools() == recorded.tools() and without.get("is_from_for_get_2d", {"is_id": 3}) == []


def test_a_toolbox_serves_them_before_its_back_end(tmp_path):
    cache = written(tmp_path, "Data/theclique_for_Data/transfermarkt_search.json", {"{'name': 'a'}": answer(1)})
    written(tmp_path, "Data/theclique_for_Data/songkick_concert.json", "no JSON, and of no tool of this run")
    settings = {"sources": source(tmp_path, row("Data", "TheClique", "Transfermarkt search", "name"))}
    settings["recorded"] = str(cache)
    tool_call.preflight(**settings)
    toolbox = tool_call(**settings)
    assert isinstance(toolbox, Toolbox) and ask(toolbox, SEARCH, {"name": "a"}) == {"ok": True, "result": 1}
    assert ask(toolbox, SEARCH, {"name": "b"})["kind"] == "tool_error"


def test_the_same_tool_in_two_categories(tmp_path):
    for category in ("Data", "Finance"):
        cache = written(tmp_path, f"{category}/t_for_{category}/api.json", {"{}": answer(category)})
    written(tmp_path, "Data/u_for_Data/api.json", {"{}": answer("of another category")})
    rows = [row("Finance", "T", "api"), row("Data", "T", "api"), row("Finance", "U", "api")]
    catalogue = load_catalogue(source(tmp_path, *rows))
    assert list(catalogue) == ["api_for_t", "api_for_t_in_data", "api_for_u"]
    recorded = Recorded.load(cache, catalogue.values())
    assert [recorded.get(name, {}) for name in catalogue] == ["Finance", "Data", "of another category"]
    prefixed = load_catalogue([{**source(tmp_path, rows[0])[0], "prefix": "my "}])
    assert Recorded.load(cache, prefixed.values()).get("my api_for_t", {}) == "Finance"


def test_entries_of_another_form_are_left_out_with_a_warning(tmp_path, caplog):
    entries = {
        **{"[1]": answer(1), "no arguments": answer(1), "{'x': nan}": answer(1), "{1, 2}": answer(1)},
        **{"{'x': 1}": "text", "{'x': 2}": {"result": 1}, "{'x': 3}": {"error": "", "data": 1}, "": answer(1)},
        **{"{'x': 4}": {"response": None}, "{'x': 5}": {"error": {"code": 1}}, "('(' * 999": answer(1)},
    }
    cache = written(tmp_path, "Data/t_for_Data/api.json", entries)
    recorded = Recorded.load(cache)
    assert len(recorded) == 2 and recorded.get("api_for_t", {"x": 4}) is None
    with pytest.raises(CallError, match="{'code': 1}"):
        recorded.get("api_for_t", {"x": 5})
    (record,) = caplog.records
    assert "9 of 11 entries are left out, e.g. " in record.getMessage() and "api.json: [1]: " in record.getMessage()


@pytest.mark.parametrize(
    "entries, message",
    [
        ("{", "api.json is malformed"),
        ([1], "api.json: given list at the top"),
        ({"{'x': 1}": {"a": 1}}, "api.json: {'x': 1}: {'a': 1}: expected .*'name': 'messi'"),
        ({"messi": answer(1)}, "api.json: messi: .* expected"),
    ],
)
def test_files_of_another_form_are_named(tmp_path, entries, message):
    with pytest.raises(ValueError, match=message):
        Recorded.load(written(tmp_path, "Data/t_for_Data/api.json", entries))


def test_a_folder_of_another_form_is_named_and_one_of_other_tools_is_told(tmp_path, caplog):
    with pytest.raises(ValueError, match="has no files CATEGORY/TOOL/API.json; expected StableToolBench's"):
        Recorded.load(tmp_path)
    cache = written(tmp_path, "Data/t_for_Data/api.json", {"{}": answer(1)})
    with caplog.at_level(logging.WARNING):
        assert not len(Recorded.load(cache, load_catalogue(source(tmp_path, row("Data", "U", "api"))).values()))
    assert "none of its 1 files belongs to a tool of the catalogue" in caplog.text


def test_what_a_folder_holds_is_told_by_its_content_wherever_it_lies(tmp_path):
    one, two = (written(tmp_path / name, "Data/t_for_Data/api.json", {"{}": answer(1)}) for name in "ab")
    assert content_of(str(one)) == content_of(str(two)) and len(content_of([one, two])) == 2
    written(tmp_path / "b", "Data/t_for_Data/other.json", {"{}": answer(1)})
    assert content_of(one) != content_of(two)
