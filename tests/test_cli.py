"""The console script: which module each command runs, what a misspelt name gets, what the recipes say of themselves."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from verl_ext import cli, recipe_list

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_runs_its_module_with_its_arguments_in_place_of_this_process(name, monkeypatch):
    ran = []
    monkeypatch.setattr(cli.os, "execv", lambda path, arguments: ran.append((path, arguments)))
    command = cli.COMMANDS[name]
    cli.main([name, *command.example.split()])
    assert ran == [(sys.executable, [sys.executable, "-m", command.module, *command.example.split()])]
    assert importlib.util.find_spec(command.module)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "usage: verl_ext COMMAND"),
        (["--help"], 0, "verl_ext check +recipe=mhgpo"),
        (["train"], 2, "verl_ext train +recipe=mhgpo_tiny"),
        (["train", "--help"], 0, "--cfg job"),
        (["trian"], 2, "unknown command 'trian'; did you mean 'train'? (allowed: train, evaluate, check"),
        (["xyz"], 2, "unknown command 'xyz' (allowed: train"),
        (["train", "+recipe=mhgpo_tny"], 2, "unknown recipe 'mhgpo_tny'; did you mean 'mhgpo_tiny'?"),
        (["check", "--config-dir", "examples/own_system", "+recipe=own_sytem"], 2, "did you mean 'own_system'?"),
        (
            ["train", "--config-dir", "recipe", "+recipe=debate"],
            2,
            "also looked for recipe/recipe/debate.yaml: --config-dir is the folder that contains recipe/",
        ),
    ],
)
def test_help_and_misspelt_names(arguments, status, text, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(arguments) == status
    assert text in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "arguments",
    [
        ["+recipe=mhgpo_tiny"],
        ["recipe=mhgpo", "mas.seed=3"],
        ["--config-dir=examples/own_system", "+recipe=own_system"],
        ["-cd", "examples/own_system", "+recipe=own_system"],
        ["+recipe=[mhgpo_tiny,x]"],
        ["trainer.total_epochs=1"],
    ],
)
def test_recipes_that_exist_are_not_refused(arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.misspelt_recipe(arguments) is None


def test_help_imports_nothing_heavy():
    code = "import sys; from verl_ext.cli import main; main(['-h']); print({'torch', 'verl', 'hydra'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ("recipes mhgpo_tiny", 0, "main_ppo +recipe=mhgpo_tiny"),
        ("recipes mhgpo_tny", 2, "did you mean 'mhgpo_tiny'?"),
        ("check +recipe=mhgpo_tiny --strict mas.seed=3", 0, "main_ppo +recipe=mhgpo_tiny mas.seed=3"),
        ("evaluate +recipe=mhgpo_tiny --confg-dir=x", 2, "did you mean '--config-dir'?"),
    ],
)
def test_the_status_of_the_module_is_the_status_of_the_command(arguments, status, text):
    command = [sys.executable, "-m", "verl_ext", *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status and text in done.stdout + done.stderr


def test_every_recipe_describes_itself_and_names_its_page():
    recipes = recipe_list.read_recipes()
    assert list(recipes)[0].endswith("_tiny") and len(recipes) == len(
        list((ROOT / "configs" / "recipe").glob("*.yaml"))
    )
    for name, recipe in recipes.items():
        assert (ROOT / recipe.page).exists(), name
        assert len(recipe.title) <= 110 and not recipe.title.endswith("."), name
    assert all(f"{name} " in recipe_list.listing() for name in recipes)


def test_a_head_without_what_it_needs_is_refused():
    with pytest.raises(ValueError, match="needs: …"):
        recipe_list.read_head("# @package _global_\n# A title\n#\n# More\ndefaults: []\n")


def test_the_page_of_recipes_is_the_list():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert recipe_list.table() in page, "paste the output of: verl_ext recipes --markdown"
