"""The code of the pages on systems and extensions of one's own, as it stands there."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.gateway.programs import run as in_gateway
from tests.helpers import FakeLLM, run, walk
from tests.serving import ChatServer, answer
from verl_ext import check
from verl_ext.evaluate import __main__ as evaluate
from verl_ext.gateway import ProgramWorkflow
from verl_ext.gateway.running import result_of
from verl_ext.mas import Task
from verl_ext.mas.forest import Forest
from verl_ext.tools.retrieval import Passage, SearchTool, build_retriever

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(?:python|yaml)\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / "docs" / page).read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of own_system.md, each named by its first comment."""
    room = tmp_path_factory.mktemp("mine")
    for block in blocks("own_system.md"):
        name = next(line for line in block.splitlines() if not line.startswith("# @")).removeprefix("# ")
        (room / name).parent.mkdir(exist_ok=True)
        (room / name).write_text(block)
    done = subprocess.run([sys.executable, "make_data.py"], cwd=room, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return room


@pytest.fixture
def here(folder, monkeypatch):
    """The commands of the page run in this process, in that folder, whose modules can be imported."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")


def test_the_folder_of_the_page_is_right_and_runs(here, capsys):
    assert check.main(["--config-dir", ".", "+recipe=capitals"]) == 0
    assert "capitals.parquet: 32 rows" in capsys.readouterr().out
    assert check.main(["--gpu_memory", "24", "--config-dir", ".", "+recipe=capitals_gpu"]) == 0
    said = capsys.readouterr().out
    assert "GiB on each GPU" not in said and "memory, sampling     about 6 GiB stay" in said
    assert check.main(["--gpu_memory", "24", "--config-dir", ".", "+recipe=capitals_gpu", "+base=critic"]) == 0
    assert "memory: about 47 GiB on each GPU, 24 given" in capsys.readouterr().out
    assert evaluate.main(["--config-dir", ".", "+recipe=capitals", "evaluate.max_questions=4"]) == 0
    assert re.search(r"capitals +\| checker +\| 8 ", capsys.readouterr().out)
    assert evaluate.main(["--config-dir", ".", "+recipe=capitals_native", "evaluate.max_questions=4"]) == 0
    assert re.search(r"capitals +\| reader +\| (4|5|6|7|8|9|10|11|12) ", capsys.readouterr().out)


def test_a_served_model_calls_the_tool_of_the_page_natively(here, capsys):
    """The evaluation sends the atlas's definition, runs the call that the server answers with, and sends the result."""

    def behave(body, number):
        last = body["messages"][-1]
        if last["role"] == "tool":
            return answer(last["content"])
        assert body["tools"][0]["function"]["parameters"]["required"] == ["country"]
        function = {"name": "atlas", "arguments": json.dumps({"country": last["content"].removeprefix("capital of ")})}
        return answer(None, "tool_calls", tool_calls=[{"id": "1", "type": "function", "function": function}])

    with ChatServer(behave) as server:
        asked = ["evaluate.max_questions=4", f"evaluate.endpoint={server.url}", "evaluate.output=served"]
        assert evaluate.main(["--config-dir", ".", "+recipe=capitals_native", *asked]) == 0
    assert len(server.requests) == 8 and "1.000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mas.tools.atlas=null", "Capitals calls the tool atlas, which mas.tools does not have (it has: none)"),
        ("+mas.workflow.round=3", "unknown key mas.workflow.round; did you mean 'rounds'? (allowed: rounds)"),
        ("mas.workflow.round=3", "unknown key mas.workflow.round; did you mean 'rounds'?"),
        ("data.train_fles=x", "unknown key data.train_fles; did you mean 'train_files'?"),
        ("evaluate.model=x", "unknown key evaluate"),
        ("recipe=capitals", "+recipe=capitals"),
    ],
)
def test_what_a_beginner_gets_wrong_is_named(here, capsys, override, message):
    recipe = [] if override == "recipe=capitals" else ["+recipe=capitals"]
    assert check.main(["--config-dir", ".", *recipe, override]) == 2
    output = capsys.readouterr()
    assert message in output.out + output.err


@pytest.fixture
def own_program(tmp_path, monkeypatch):
    """The folder of gateway.md's program, recipe and reward, where the page's commands run."""
    named = [(re.search(r"\A(?:# @.*\n)?# (\S+\.(?:py|yaml))\n", block), block) for block in blocks("gateway.md")]
    for name, block in ((found[1], block) for found, block in named if found):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    yield tmp_path
    sys.modules.pop("my_rewards", None)


def test_the_program_of_the_gateways_page_is_right_and_is_rewarded(own_program, capsys):
    assert check.main(["--config-dir", ".", "+recipe=mine"]) == 0, capsys.readouterr()
    pytest.importorskip("openai", reason="pip install 'verl_ext[agents]'")
    settings = yaml.safe_load((own_program / "recipe" / "mine.yaml").read_text())["mas"]["workflow"]
    workflow = ProgramWorkflow(**{name: settings[name] for name in settings if name[0] != "_" and settings[name]})
    passage = {"pid": "1", "title": "Film", "text": "Ann Bell directed it."}
    search = SearchTool(build_retriever([Passage(**passage)]), top_k=1)
    llm = FakeLLM(lambda request: "Ann Bell" if "Ann Bell directed it." in request.prompt else "who directed the film")

    task = Task("Who directed it?", {"target": ["Ann Bell"]})

    async def scenario():
        forest = Forest(task, workflow, llm, tools={"search": search}, sampling={"max_tokens": 64}, name="f")
        return await walk(forest)

    trajectory = in_gateway(scenario())
    assert trajectory.ok, trajectory.error
    assert trajectory.result == "Ann Bell" and trajectory.reward == 1.0 and trajectory.metrics["em"] == 1.0
    assert 0 < workflow.reward(task, result_of('{"answer": "Bell"}'))[0] < 1, "an object that a model wrote"


@pytest.fixture
def page_tool(tmp_path, monkeypatch):
    """The block of extending.md as a module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "page_tool.py").write_text(*blocks("extending.md"))
    yield importlib.import_module("page_tool")
    del sys.modules["page_tool"]


def test_the_tool_of_the_page_counts(page_tool, tmp_path):
    notebook = page_tool.Notebook
    with pytest.raises(FileNotFoundError, match="no such file"):
        notebook.preflight(str(tmp_path / "none"))
    (tmp_path / "notes.txt").write_text("first\nsecond\n")
    made = notebook(str(tmp_path / "notes.txt"))
    assert run(made(line=1)) == "second" and made.counts() == {"asked": 1}
