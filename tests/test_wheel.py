"""The wheel: it holds what a user needs, no cold starts, and works without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("trainer", "engine", "algorithms", "heads", "evaluate", "check", "sft")
SOURCES = ("verl_ext", "recipe", "configs", "data_prep")
# What imports torch and verl is imported from the repository by its own tests; the wheel has the same files.
IMPORT_LIGHT = """
import importlib, os, pathlib, sys
import verl_ext
root = pathlib.Path(verl_ext.__file__).parent
assert str(root).startswith(sys.argv[1]), root
failed = []
for path in sorted(root.rglob("*.py")):
    name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
    if name.split(".")[1:2] and name.split(".")[1] in sys.argv[2:] or "__main__" in name:
        continue
    try:
        importlib.import_module(name)
    except ImportError as error:
        if not str(error.name).startswith(("mcp", "faiss", "sentence_transformers")):  # extras
            failed.append(f"{name}: {error!r}")
from hydra.utils import get_object
import re
for path in root.rglob("*.yaml"):
    for target in re.findall(r"_target_: (verl_ext\\.\\S+)", path.read_text()):
        if target.split(".")[1] in sys.argv[2:]:
            continue
        try:
            get_object(target)
        except Exception as error:
            failed.append(f"{path.name}: {target}: {error!r}")
print("\\n".join(failed) or "all right", flush=True)
os._exit(0)  # verl leaves threads behind
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The unpacked wheel, built from a copy: a build writes into its source folder."""
    copy, unpacked = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("unpacked")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "import setuptools.build_meta as b; print(b.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    with zipfile.ZipFile(next((copy / "dist").glob("*.whl"))) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_it_holds_all_of_the_package_and_no_cold_start(wheel):
    found = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    assert {name.partition("/")[0] for name in found} == {"verl_ext", "verl_ext-0.1.0.dist-info"}
    assert not [name for name in found if "cold_start" in name or "tests/" in name]
    repository = [path for top in SOURCES for path in (ROOT / top).rglob("*") if path.is_file()]
    shipped = [path for path in repository if not {"cold_start", "__pycache__"} & {*path.parts}]
    names = {f"verl_ext/{path.relative_to(ROOT).as_posix().removeprefix('verl_ext/')}" for path in shipped}
    assert names - found == {"verl_ext/configs/sft/joyagents_tiny.yaml"}, "its data come from a cold start"


def test_light_modules_and_targets_are_found_in_the_wheel(wheel, tmp_path):
    """In a process whose only verl_ext is the unpacked wheel."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in getattr(f, '__module__', '')]\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{wheel}{os.pathsep}{tmp_path}", "VERL_PLATFORM": "cpu"}
    command = [sys.executable, "-c", IMPORT_LIGHT, str(wheel), *HEAVY]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip().endswith("all right"), done.stdout[-3000:] + done.stderr[-3000:]
