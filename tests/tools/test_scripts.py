"""`make clean`. The scripts of examples/: tests/examples."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_clean_keeps_prepared_data_and_checkpoints(tmp_path):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    for name in (".venv", ".pytest_cache", ".ruff_cache", ".hypothesis", "outputs", "data", "runs"):
        (tmp_path / name).mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("VENV", "MAKEFLAGS")}
    subprocess.run(["make", "clean"], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Makefile", "data", "runs"]
