"""What the commands say before they do anything."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from verl_ext.cli import COMMANDS

NAMES = ("check", "evaluate", "view", "compare", "plan")
CODE = """
import runpy, sys
sys.argv = ["program", "--help"]
try:
    runpy.run_module("{module}", run_name="__main__")
except SystemExit as end:
    print("imported:", *{{name.partition(".")[0] for name in sys.modules}}, "status", end.code)
"""


@pytest.mark.parametrize("name", NAMES)
def test_help_has_the_commands_name_and_examples_and_imports_nothing_heavy(name):
    code = CODE.format(module=COMMANDS[name].module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    said, imported = done.stdout.split("imported: ")
    assert imported.split()[-2:] == ["status", "0"] and done.stderr == ""
    assert said.startswith(f"usage: verl_ext {name} ") and f"    verl_ext {name} " in said and "-m verl_ext" not in said
    assert not {"torch", "verl", "hydra", "omegaconf", "numpy", "pandas", "matplotlib"} & set(imported.split())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("check", [], "verl_ext check: error: give +recipe=NAME (`verl_ext recipes` lists the names)"),
        ("view", ["--opn", "x"], "verl_ext view: error: unrecognized arguments: --opn; did you mean '--open'?"),
        ("evaluate", ["--cgf"], "verl_ext evaluate: error: "),
        ("compare", [], "verl_ext compare: error: "),
        ("plan", [], "verl_ext plan: error: give +recipe=NAME (`verl_ext recipes` lists the names), or --fit FOLDER"),
    ],
)
def test_errors_have_the_commands_name(name, arguments, message, capsys):
    folder = name in ("evaluate", "compare", "plan")
    main = importlib.import_module(COMMANDS[name].module + ".__main__" * folder).main
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err
