"""Question files, and the command in this process."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from verl_ext.evaluate import config as evaluate_config
from verl_ext.evaluate.__main__ import main

HERE = Path(__file__).parent


def write_questions(path, answers, source="made", gold_titles=("Alpha", "Gamma"), start=0):
    """A parquet file with one question per answer: "question <i> <answer>"."""
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"question {i} {answer}"}],
            "reward_model": {"style": "rule", "ground_truth": {"target": [answer]}},
            "extra_info": {"index": i, "gold_titles": list(gold_titles)},
        }
        for i, answer in enumerate(answers, start)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


COMPOSED = {}


def quick_compose(overrides, config_dir=None, compose=evaluate_config.compose):
    """`compose`, which takes a second; configurations that differ in values alone are composed once."""
    values = [one for one in overrides if re.match(r"\w+(\.\w+)+=", one) and not one.startswith("hydra")]
    key = (config_dir, *(one for one in overrides if one not in values))
    if key not in COMPOSED:
        COMPOSED[key] = compose(list(key[1:]), config_dir)
    config = copy.deepcopy(COMPOSED[key])
    for override in OverridesParser.create().parse_overrides(values):
        section, _, name = override.key_or_group.rpartition(".")
        if name not in (OmegaConf.select(config, section) or ()):
            return compose(overrides, config_dir)  # which says what is wrong
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    return config


@pytest.fixture(autouse=True)
def composed_once(monkeypatch):
    monkeypatch.setattr(evaluate_config, "compose", quick_compose)


class Command:
    """Runs `python -m verl_ext.evaluate` in this process, in a folder of its own, and reads what it left."""

    def __init__(self, folder):
        self.folder, self.output = folder, folder / "out"

    def __call__(self, *overrides, recipe="closed", server=None, files=None):
        files = files or [self.folder / "questions.parquet"]
        fixed = [f"+recipe={recipe}", f"data.val_files=[{','.join(map(str, files))}]", f"evaluate.output={self.output}"]
        fixed += [f"evaluate.endpoint={server.url}"] if server else []
        return main(["--config-dir", str(HERE), *fixed, *overrides])

    @property
    def results(self):
        return json.loads((self.output / "results.json").read_text())

    @property
    def records(self):
        return [json.loads(line) for line in (self.output / "trajectories.jsonl").read_text().splitlines()]


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path)
