"""Imports go one way, and the documentation is true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from verl_ext.mas.types import Status
from verl_ext.observe.metrics import METRICS

ROOT = Path(__file__).parents[1]
TRAINER = ROOT / "verl_ext" / "trainer"
# Each room may import from itself, from those listed and, except for storage, from EVERYONES.
EVERYONES = {"storage", "settings", "environments", "reports", "arguments", "tracebacks"}
MAY_IMPORT = {
    "storage": set(),
    "tools": set(),
    "memory": {"tools"},
    "rewards": {"tools"},
    "mas": {"tools", "rewards", "memory"},
    "sampling": {"mas"},
    "gateway": {"mas", "tools"},
    "algorithms": {"mas"},
    "heads": {"mas", "memory"},
    "observe": {"mas", "sampling", "memory"},
    "engine": set(),
    "trainer": {"mas", "sampling", "algorithms", "heads", "gateway", "observe", "engine", "tools", "rewards", "memory"},
    "evaluate": {"mas", "sampling", "observe", "engine", "tools", "trainer", "memory", "rewards"},
    "compare": {"observe", "tools", "trainer"},
    "plan": {"sampling", "observe", "trainer"},
    "worlds": {"tools"},
}
WITHOUT_TORCH_AND_VERL = ("storage", "mas", "sampling", "gateway", "tools", "memory", "rewards", "observe", "worlds")


def imports(path: Path, at_top_only: bool = False) -> set[str]:
    """Dotted names of the modules that a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_top_only else list(ast.walk(tree))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_use_only_what_stands_below_them(room):
    for path in (ROOT / "verl_ext" / room).rglob("*.py"):
        used = {name.split(".")[1] for name in imports(path) if name.startswith("verl_ext.") and "." in name}
        assert used <= MAY_IMPORT[room] | {room} | (EVERYONES if room != "storage" else set()), path


def test_the_modules_of_the_trainer_do_not_import_each_other_in_circles():
    files = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TRAINER.rglob("*.py")}
    above = {name: imports(path, at_top_only=True) & set(files.values()) - {name} for path, name in files.items()}
    order = list(TopologicalSorter(above).static_order())  # raises CycleError
    assert set(order) == set(files.values())


@pytest.mark.parametrize("room", WITHOUT_TORCH_AND_VERL)
def test_the_core_imports_neither_torch_nor_verl(room):
    for path in (ROOT / "verl_ext" / room).rglob("*.py"):
        used = {name.split(".")[0] for name in imports(path, at_top_only=True)}
        assert not used & {"torch", "verl", "ray"}, path


def test_recipes_use_the_core_and_not_the_trainer():
    for path in (ROOT / "recipe").rglob("*.py"):
        if "cold_start" not in path.parts:  # scripts of developers, which train and evaluate models themselves
            used = {name for name in imports(path) if name.startswith(("verl_ext.trainer", "verl_ext.engine"))}
            assert not used and not any("cold_start" in name for name in imports(path)), path


def test_data_prep_stands_below_the_recipes():
    for path in (ROOT / "data_prep").rglob("*.py"):
        assert not any(name.startswith("verl_ext.recipe") for name in imports(path)), path


def test_metrics_are_documented():
    text = (ROOT / "docs" / "metrics.md").read_text()
    documented = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, re.MULTILINE))
    assert documented == METRICS


@pytest.mark.parametrize("page", ["evaluate", "metrics"])
def test_every_way_to_fail_is_documented(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    failures = set(Status) - {Status.OK, Status.TRUNCATED}  # half an output ends no trajectory
    assert [status.value for status in failures if status.value not in text] == []


NOT_OURS = {".venv", ".venv-vllm", ".pytest_cache"}
PAGES = [page for path in ROOT.glob("**/*.md") if not NOT_OURS & set((page := path.relative_to(ROOT)).parts)]


@pytest.mark.parametrize("page", sorted(map(str, PAGES)))
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("page", ["mhgpo", "smurfs"])
def test_the_tests_that_a_page_names_are_there(page):
    """docs/reproduce: a row that says what the code does names the test of it."""
    text = (ROOT / "docs" / "reproduce" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+/test_\w+\.py)`", text))
    assert len(named) >= 8 and all((ROOT / "tests" / name).is_file() for name in named), sorted(named)
    rows = text.partition("## Against the paper")[2].splitlines()
    bare = [row for row in rows if row.startswith("| ") and "test_" not in row and "| test |" not in row]
    assert not bare, "rows without a test"


def test_the_page_of_folders_is_true():
    text = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \*?(\w+)\*? \| ([\w, ]*) ?\| .* \| \[", text, re.MULTILINE))
    rooms = {room: set(names.replace(",", " ").split()) for room, names in rows.items()}
    assert {room: rooms[room] for room in MAY_IMPORT} == MAY_IMPORT


FOLDERS = [path for top in ("verl_ext", "recipe", "data_prep") for path in (ROOT / top).rglob("__init__.py")]


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_the_docstring_of_a_folder_names_its_files(path):
    named = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    files = {file.stem for file in path.parent.glob("*.py") if not file.stem.startswith("__")}
    folders = {folder.parent.name for folder in path.parent.glob("*/__init__.py")}
    unnamed = {name for name in files | folders if not re.search(rf"\b{name}\b", named)}
    assert not unnamed, f"{path}: list {sorted(unnamed)} in the docstring, with what they are for"


# Rows and items that name something in the code and link its file: `Name` ([text](file)).
NAMED = re.compile(r"`(\w+)` \(\[[^\]]+\]\(([^)]+\.py)\)\)")


@pytest.mark.parametrize(("page", "least"), [("rooms.md", 10), ("glossary.md", 20)])
def test_names_in_the_code_are_where_the_page_says(page, least):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = NAMED.findall(text)
    assert least <= len(named) <= 30
    for name, path in named:
        code = (ROOT / "docs" / path).read_text(encoding="utf-8")
        assert re.search(rf"\b(class|def) {name}\b|^ *{name}\b.*[:=]", code, re.MULTILINE), (name, path)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 180


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_a_page_begins_with_an_example(page):
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(("    ", "```")) for line in lines[:7])


def test_commands_in_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    for recipe in re.findall(r"\+recipe=(\w+)", text):
        known = (ROOT / "configs" / "recipe", ROOT / "examples" / "own_system" / "recipe")
        assert any((folder / f"{recipe}.yaml").exists() for folder in known), recipe
    for script in re.findall(r"(?:python|bash) ((?:data_prep|examples)/\S+\.(?:py|sh))", text):
        assert (ROOT / script).exists(), script


@pytest.mark.parametrize("module", ["verl_ext.engine.fsdp.shared_prefixes", "tests.bench.__main__"])
def test_it_can_be_imported_first(module):
    """Whatever of verl's it needs loads the engines, which must not need it half made."""
    done = subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
