"""ToolHop's tools: their names, and their code in the sandbox."""

import asyncio
import json
import re

import pytest

from verl_ext.tools.catalogue import Catalogue, Toolbox, load_catalogue
from verl_ext.tools.catalogue.formats.toolhop import Sandboxed, tools_of
from verl_ext.tools.catalogue.types import CallError


def toolhop(kind, code=""):
    parameters = {"type": "object", "properties": {"x": {"type": kind}}}
    tool = {"name": "query", "description": " D ", "parameters": parameters}
    return {"tools": {"Who?": tool, "When?": tool}, "sub_task": {"Who?": "Ann"}} | (
        {"functions": [code]} if code else {}
    )


def load(folder, *rows):
    (folder / "tools.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_catalogue([{"kind": "toolhop", "path": str(folder / "tools.jsonl")}])


def test_toolhop_names_do_not_tell_which_tools_belong_together(tmp_path):
    rows = [{"id": "q-1"} | toolhop("string"), {"id": 2} | toolhop("array"), {"id": 3} | toolhop("string")]
    tools = load(tmp_path, *rows)
    endings = [re.fullmatch("query_([0-9a-f]{6})", name)[1] for name in tools]
    assert len(set(endings)) == 4, "the third question's tools are those of the first"
    assert list(load(tmp_path, rows[1])) == list(tools)[2:], "whatever other rows are loaded"
    first, *_, last = tools.values()
    assert first.extra == {"tool": "query", "sub_question": "Who?", "answer": "Ann"}
    assert last.extra["answer"] is None and last.description == "D"
    assert last.parameters == {"type": "object", "properties": {"x": {"type": "array"}}}  # as it is


CODE = """
import sys
def query(x):
    print("searching")
    sys.stderr.write("a warning")
    if x == 0:
        while True:
            pass
    return {"sum": sum(map(int, x))}
"""


def test_toolhops_code_runs_in_the_sandbox(tmp_path):
    async def calls():
        box = Toolbox(Catalogue(tools_of({"id": 1} | toolhop("string", CODE), "row", Sandboxed())))
        name, *_ = box.catalogue
        assert "Ann" not in str(box.catalogue[name].extra), "no answer is in view of anything"
        try:
            spec = box.catalogue[name]
            with pytest.raises(CallError, match="was ended after"):
                await spec.backend(spec, {"x": 0})
            return [await box(name=name, arguments={"x": given}) for given in ("12'\\n", "1302")]
        finally:
            await box.close()

    broken, right = asyncio.run(calls())
    assert not broken["ok"] and broken["error"].startswith("ValueError: invalid literal")
    assert right == {"ok": True, "result": {"sum": 6}}
