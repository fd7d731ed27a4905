"""Recorded results, and the factory of the toolbox: settings, what is checked before a run, what answers depend on."""

import asyncio
import json

import pytest

from tests.tools.test_catalogue_toolbox import ECHO, Log, ask, box
from verl_ext.tools.catalogue import Catalogue, Recorded, Toolbox, ToolSpec, tool_call


def dialogues(folder):
    def turn(name, given, taken, output, exception=None):
        answer = {"api_name": name, "input": taken, "output": output, "exception": exception}
        return {"role": "API", "api_name": name, "param_dict": given, "result": answer}

    second = [turn("echo", {"x": "1"}, {"x": 1}, "another"), turn("echo", {"x": "2"}, {"x": 2}, None, "no such x")]
    output = {"input": None, "output": {"a": 1}, "exception": None}
    rows = [
        {"turns": [{"role": "User", "text": "hi"}, turn("echo", {"x": "1"}, {"x": 1}, "one")]},
        {"turns": second},
        {"apis": [{"api_name": "echo", "input": {"x": 3.0}, "output": output}]},
    ]
    path = folder / "dialogues.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_recorded_results_come_first(tmp_path):
    recorded, backend = Recorded.load(dialogues(tmp_path)), Log("of the back end")
    assert len(recorded) == 5 and recorded.tools() == {"echo"}
    toolbox = box(backend, recorded=recorded)
    assert ask(toolbox) == {"ok": True, "result": "one"}
    assert ask(toolbox, arguments={"x": 2}) == {"ok": False, "error": "no such x", "kind": "tool_error"}
    assert ask(toolbox, arguments={"x": 3}) == {"ok": True, "result": {"a": 1}} and backend.calls == []
    assert ask(toolbox, arguments={"x": "1"}) == {"ok": True, "result": "one"}  # as it was recorded, fitting or not
    assert ask(toolbox, arguments={"x": "4"})["kind"] == "bad_arguments" and backend.calls == []
    assert ask(toolbox, arguments={"x": 4}) == {"ok": True, "result": "of the back end"}
    for nonsense in ("x", [1], {"x": object()}, {"x": float("nan")}):
        assert ask(toolbox, arguments=nonsense)["kind"] == "bad_arguments" and len(backend.calls) == 1
    with pytest.raises(KeyError):
        recorded.get("echo", {"x": 4})


def test_without_a_back_end_only_recorded_calls_have_results(tmp_path):
    toolbox = Toolbox(Catalogue([ECHO]), recorded=Recorded.load(dialogues(tmp_path)))
    assert ask(toolbox)["result"] == "one"
    assert ask(toolbox, arguments={"x": 9}) == {
        "ok": False,
        "error": "echo has no result for these arguments",
        "kind": "tool_error",
    }
    for recorded in (None, Recorded.load(dialogues(tmp_path))):
        with pytest.raises(ValueError, match="1 of 1 tools have nothing that runs them.*Remedy"):
            Toolbox(Catalogue([ToolSpec("other", "")]), recorded=recorded)


@pytest.mark.parametrize("row", [{"turns": [{"role": "API"}]}, {"apis": {}}, {"a": 1}])
def test_malformed_recordings_are_named(tmp_path, row):
    (tmp_path / "r.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match="r.jsonl:1: field '.*' must be of type"):
        Recorded.load(tmp_path / "r.jsonl")


def source(folder):
    row = {"name": "echo", "description": "Says x.", "input_parameters": {"x": {"type": "int", "description": ""}}}
    (folder / "tools.jsonl").write_text(json.dumps(row))
    return [{"kind": "api_bank", "path": str(folder / "tools.jsonl")}]


class Played(Log):
    """What `_target_` leads to in the tests below."""


def played(text):
    return Played(text)


played.preflight = lambda text: {"asked": text}[text]
played.identity = lambda text: {"text": text}


def test_the_factory_makes_a_toolbox_of_settings(tmp_path):
    from hydra.utils import instantiate

    target = {"_target_": f"{__name__}.played", "text": "asked"}
    section = {"_target_": "verl_ext.tools.catalogue.tool_call", "sources": source(tmp_path), "backend": target}
    section |= {"recorded": dialogues(tmp_path), "only": None, "timeout_s": 5}
    toolbox = instantiate(section, _convert_="all")
    assert isinstance(toolbox.backend, Played) and toolbox.timeout_s == 5
    assert [ask(toolbox, arguments={"x": x})["result"] for x in (1, 8)] == ["one", "asked"]
    asyncio.run(toolbox.close())
    assert toolbox.backend.closed == 1
    settings = {key: value for key, value in section.items() if key != "_target_"}
    tool_call.preflight(**settings)
    with pytest.raises(KeyError, match="wrong"):
        tool_call.preflight(**settings | {"backend": {**target, "text": "wrong"}})


def test_the_identity_is_of_contents_not_of_places(tmp_path):
    (tmp_path / "b").mkdir()
    target = {"_target_": f"{__name__}.played", "text": "asked"}
    said = [
        tool_call.identity(sources=source(folder), recorded=dialogues(folder), backend=target, timeout_s=seconds)
        for folder, seconds in ((tmp_path, 1), (tmp_path / "b", 2))
    ]
    assert said[0] == said[1] and said[0]["backend"] == {"_target_": target["_target_"], "settings": {"text": "asked"}}
    assert said[0] != tool_call.identity(sources=source(tmp_path), recorded=dialogues(tmp_path))


def test_a_back_end_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="backend must be a coroutine function"):
        Toolbox(Catalogue([ECHO]), {"_target_": "x"})
    for refuse in (tool_call, tool_call.preflight):
        with pytest.raises(ValueError, match="1 of 1 tools have nothing that runs them"):
            refuse(sources=source(tmp_path))
    with pytest.raises(ValueError, match="backend must have a _target_"):
        tool_call.preflight(sources=source(tmp_path), backend={"model": "x"})
