"""verl's own engine life cycle on the CPU: real FSDP2 over gloo, one rank, all kinds in one process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def results(model_dir) -> dict[str, str]:
    """Per kind of engine: "ok" or the error."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.fsdp_program", str(model_dir)], capture_output=True, text=True, timeout=120
    )
    lines = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines) == 4, done.stderr[-3000:]
    print(done.stderr[-3000:])  # shown with a failure
    return dict(lines)


@pytest.mark.parametrize("kind", ["actor", "reference", "value"])
def test_engine_builds_computes_and_trains(kind, results):
    assert results[kind] == "ok"


def test_fsdp1_is_refused_with_the_remedy(results):
    assert "set strategy=fsdp2" in results["fsdp1"]
