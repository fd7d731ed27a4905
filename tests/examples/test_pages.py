"""The code of the pages on systems and extensions of one's own, as it stands there."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import run

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(?:python|yaml)\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / "docs" / page).read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The three files of own_system.md, each named by its first comment."""
    room = tmp_path_factory.mktemp("mine")
    for block in blocks("own_system.md"):
        name = next(line for line in block.splitlines() if not line.startswith("# @")).removeprefix("# ")
        (room / name).parent.mkdir(exist_ok=True)
        (room / name).write_text(block)
    done = subprocess.run([sys.executable, "make_data.py"], cwd=room, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return room


def command(folder: Path, module: str, *overrides: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"VERL_PLATFORM": "cpu", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    recipe = [] if "recipe=capitals" in overrides else ["+recipe=capitals"]
    given = [sys.executable, "-m", module, "--config-dir", ".", *recipe, *overrides]
    return subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_folder_of_the_page_is_right_and_runs(folder):
    checked = command(folder, "verl_ext.check")
    assert checked.returncode == 0 and "capitals.parquet: 32 rows" in checked.stdout, checked.stdout + checked.stderr
    done = command(folder, "verl_ext.evaluate", "evaluate.max_questions=4")
    assert done.returncode == 0, done.stderr
    assert re.search(r"capitals +\| checker +\| 8 ", done.stdout), done.stdout


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
def test_what_a_beginner_gets_wrong_is_named(folder, override, message):
    checked = command(folder, "verl_ext.check", override)
    assert checked.returncode == 2 and message in checked.stdout + checked.stderr


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
