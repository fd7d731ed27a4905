"""Adapters per agent under vLLM as far as it goes without vLLM: verl's classes are real, vLLM's API is a named fake."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHECKS = (
    "the_vendor_registers_it",
    "a_request_goes_to_its_agents_lora",
    "one_push_becomes_a_lora_per_adapter",
    "an_engine_without_the_adapters_is_noticed",
    "verl_is_what_was_read",
)


@pytest.fixture(scope="module")
def results(model_dir):
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.vllm_program", str(model_dir)],
        env=os.environ | {"VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stderr[-6000:])  # shown with a failure
    return dict(line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("RESULT"))


@pytest.mark.parametrize("check", CHECKS)
def test_over_a_fake_of_vllms_api(results, check):
    assert results.get(check) == "ok"
