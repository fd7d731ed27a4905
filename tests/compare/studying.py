"""A study for tests, and a program in the place of verl's command."""

import sys
from pathlib import Path

import yaml

from verl_ext.compare.study import read_study

# verl's command takes minutes; what the launcher does with processes does not depend on what they compute.
PROGRAM = (sys.executable, str(Path(__file__).with_name("trainer.py")))
STUDY = {
    "title": "Slow and fast",
    "headline": "f1",
    "scores": ["f1", "em"],
    "seeds": [1, 2],
    "budget": {"generated_tokens": 300, "questions": 32},
    "overrides": ["mas.seed={seed}", "+steps=6"],
    "methods": [
        {"name": "none", "label": "Untrained", "start_of": "slow"},
        {"name": "slow", "label": "Slow | careful", "overrides": ["+slope=0.01"]},
        {"name": "fast", "label": "Fast", "overrides": ["+slope=0.1"]},
    ],
    "quick": {"seeds": [1], "methods": ["fast"], "budget": {"generated_tokens": 100, "questions": 8}},
}


def study_of(folder, **changes):
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(STUDY | changes))
    return read_study(str(path))
