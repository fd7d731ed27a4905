"""The code of the pages on systems and extensions of one's own, as it stands there."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers import FakeLLM, Script, chain, forest_of, run
from verl_ext import check
from verl_ext.algorithms import ALGORITHMS, Rows
from verl_ext.evaluate import __main__ as evaluate
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


@pytest.fixture
def here(folder, monkeypatch):
    """The commands of the page run in this process, in that folder, whose modules can be imported."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")


def test_the_folder_of_the_page_is_right_and_runs(here, capsys):
    assert check.main(["--config-dir", ".", "+recipe=capitals"]) == 0
    assert "capitals.parquet: 32 rows" in capsys.readouterr().out
    assert evaluate.main(["--config-dir", ".", "+recipe=capitals", "evaluate.max_questions=4"]) == 0
    assert re.search(r"capitals +\| checker +\| 8 ", capsys.readouterr().out)


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
def extensions(tmp_path, monkeypatch):
    """The three blocks of extending.md as modules; what they register goes again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("page_strategy", "page_estimator", "page_tool")
    for name, block in zip(names, blocks("extending.md"), strict=True):
        (tmp_path / f"{name}.py").write_text(block)
    yield [importlib.import_module(name) for name in names]
    STRATEGIES.pop("last"), ALGORITHMS.pop("centred")
    for name in names:
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
