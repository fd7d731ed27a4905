"""The code of the pages on systems and extensions of one's own, as it stands there."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers import FakeLLM, Script, chain, forest_of, run
from verl_ext.algorithms import ALGORITHMS, Rows
from verl_ext.sampling import STRATEGIES, make_strategy

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
def extensions(tmp_path, monkeypatch):
    """The blocks of three pages as modules; what they register is removed again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    pages = {"page_strategy": "new_strategy.md", "page_estimator": "new_algorithm.md", "page_tool": "extending.md"}
    for name, page in pages.items():
        (tmp_path / f"{name}.py").write_text("\n".join(blocks(page)))
    yield [importlib.import_module(name) for name in pages]
    STRATEGIES.pop("last"), ALGORITHMS.pop("centred")
    for name in pages:
        del sys.modules[name]


def test_the_strategy_of_the_page_samples_the_last_agent(extensions):
    strategy = make_strategy("last", 3, ["a", "b", "c"])
    forest = forest_of(Script(chain), FakeLLM())
    samples, formula = run(strategy.sample(forest))
    assert [sample.call.agent for sample in samples] == ["c"] * 3 and {s.group for s in samples} == {("c", "0")}
    assert len({sample.call.text for sample in samples}) == 3
    assert formula.calls == 2 + 3 == forest.cost.agent_calls


def test_the_estimator_of_the_page_by_hand(extensions):
    rewards = torch.zeros(3, 2)
    rewards[:, 1] = torch.tensor([1.0, 0.0, 5.0])
    number = torch.tensor([7, 7, 2])
    blank = torch.zeros(3, 2)
    rows = Rows(
        rewards, torch.ones(3, 2), number, number, number, number, blank.bool(), number > 9, blank[:, 0], number
    )
    assert ALGORITHMS["centred"](rows, None, scale=2.0).tolist() == [[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]]


def test_the_tool_of_the_page_counts(extensions, tmp_path):
    notebook = extensions[2].Notebook
    with pytest.raises(FileNotFoundError, match="no such file"):
        notebook.preflight(str(tmp_path / "none"))
    (tmp_path / "notes.txt").write_text("first\nsecond\n")
    made = notebook(str(tmp_path / "notes.txt"))
    assert run(made(line=1)) == "second" and made.counts() == {"asked": 1}
