"""The benchmarks of ToolPO's masks and of the top K, in small: they run, and measure what they say."""

from __future__ import annotations

import random
import re

import pytest

from tests.bench import masks, top_k
from verl_ext.recipe.deepagent import DeepAgent
from verl_ext.trainer.rollout.llm import ServedLLM


def test_masks_are_found_exactly_and_reported():
    first, second, third = masks.run(per_step=5.0, sequences=2, tokens=64)
    assert first.startswith("  2 sequences of 1,024 tokens: ") and "the floor" in first
    assert "limit 1 %" in second and "of a step of (e)" in third


def test_the_check_of_the_masks_notices_a_token_too_many():
    rng = random.Random(1)
    coder = masks.tokenizer(rng)
    said = masks.outputs(coder, rng, 64)
    assert {output.action is None for output in said} == {True, False}, "searches are in none of them"
    found = masks.find(DeepAgent(), ServedLLM(coder, client=None), said)
    masks.check(coder, said, found)
    with pytest.raises(AssertionError):
        masks.check(coder, said, [[(first - 1, stop) for first, stop in spans] for spans in found])


@pytest.mark.slow
def test_the_update_runs_over_the_kept_rows():
    lines = top_k.run(questions=2, repeats=1)
    assert [re.search(r"K = (\d):\s+(\d+) rows, ([\d.]+) of all", line).groups() for line in lines] == [
        ("8", "64", "1.000"),
        ("4", "32", "0.500"),
        ("2", "16", "0.250"),
        ("1", "8", "0.125"),
    ]
