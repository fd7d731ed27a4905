"""verl's own engine life cycle on the CPU: real FSDP2 over gloo, one rank, all kinds in one process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from verl_ext.engine.fsdp.cpu import usable_cores


@pytest.fixture(scope="module")
def results(model_dir) -> dict[str, str]:
    """Per kind of engine: "ok" or the error."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.fsdp_program", str(model_dir)], capture_output=True, text=True, timeout=120
    )
    lines = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines) == 5, done.stderr[-3000:]
    print(done.stderr[-3000:])  # shown with a failure
    return dict(lines)


@pytest.mark.parametrize("kind", ["actor", "deciding", "reference", "value"])
def test_engine_builds_computes_and_trains(kind, results):
    assert results[kind] == "ok"


@pytest.mark.parametrize("text", ["100000 100000", "150000 100000", "50000 100000"])
def test_a_containers_quota_bounds_the_threads(tmp_path, text):
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(str(tmp_path / "cpu.max")) == 1


def test_without_a_quota_every_core_may_be_used(tmp_path):
    (tmp_path / "cpu.max").write_text("max 100000")
    assert usable_cores(str(tmp_path / "cpu.max")) == usable_cores(str(tmp_path / "none")) >= 1


def test_fsdp1_is_refused_with_the_remedy(results):
    assert "set strategy=fsdp2" in results["fsdp1"]
