"""What the commands say before they do anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = ("verl_ext.evaluate", "verl_ext.compare", "verl_ext.observe.viewer")
CODE = """
import runpy, sys
sys.argv = ["program", "--help"]
try:
    runpy.run_module("{module}", run_name="__main__")
except SystemExit as end:
    print("imported:", *{{name.partition(".")[0] for name in sys.modules}}, "status", end.code)
"""


@pytest.mark.parametrize("module", COMMANDS)
def test_help_shows_examples_and_imports_nothing_heavy(module):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(module=module)], capture_output=True, text=True, timeout=60
    )
    said, imported = done.stdout.split("imported: ")
    assert imported.split()[-2:] == ["status", "0"] and done.stderr == ""
    assert said.startswith(f"usage: python -m {module} ") and f"    python -m {module} " in said
    assert not {"torch", "verl", "hydra", "omegaconf", "numpy", "pandas", "matplotlib"} & set(imported.split())
