"""examples/real: every command of a dry run is one that the programs take; the table by hand."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.examples.dry_run import EXAMPLES, ROOT, composed_evaluation, composed_sft, dry_run, loaded, parsed
from verl_ext.evaluate.config import read_config

BASELINES = ("react", "dfsdt", "plan_and_solve", "reflexion", "self_refine", "debate", "rewoo", "codeact")
SYSTEMS = ("mhgpo", "single", "smurfs", *BASELINES, "deepagent", "decisions", "joyagents", "puppeteer", "cot")


@pytest.mark.parametrize("cold", ["", "1"])
def test_every_command_is_one_that_its_program_takes(tmp_path, cold):
    printed = dry_run(EXAMPLES / "real/systems.sh", "mas.seed=7", folder=tmp_path, N="5", COLD=cold)
    evaluated, trained = [], []
    for command in printed:
        assert command[0] == "python"
        if command[1] != "-m":
            parsed(loaded(ROOT / command[1]).main, command[2:])
        elif command[2] == "verl_ext.evaluate":
            config = composed_evaluation(tuple(command[3:]))
            assert read_config(config)[0].max_questions == 5 and config.mas.seed == 7
            evaluated.append(config.evaluate.output.rpartition("/")[2])
        elif command[2] == "verl_ext.sft":
            trained.append(composed_sft(tuple(command[3:])).trainer.experiment_name.removesuffix("_cold_start"))
        else:
            parsed(importlib.import_module(command[2]).main, command[3:])
    assert tuple(evaluated) == SYSTEMS and tuple(trained) == (("mhgpo_real", *SYSTEMS[1:]) if cold else ())


def test_the_table_has_a_row_per_agent(tmp_path, capsys):
    agents = {
        "planner": {"calls": 4, "parsed": 3, "truncated": 1, "executed": 0},
        "arguments": {"calls": 5, "parsed": 2, "truncated": 2, "executed": 2},
    }
    made = {"answered": 4, "questions": 5, "agents": agents, "metrics": {"f1": {"mean": 0.5, "standard_error": 0.25}}}
    for model in ("small", "cold_start"):
        folder = tmp_path / model / "smurfs"
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps({"headline": "f1", "data": {"api": made}}))
    table = loaded(EXAMPLES / "real/table.py")
    assert table.main([str(tmp_path / "small"), str(tmp_path / "cold_start")]) == 0
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == ["smurfs (api)", "small", "4/5", "F1 0.500 ± 0.250", "planner", "4", "3", "1", "0"]
    assert lines[3] == ["", "", "", "", "arguments", "5", "2", "2", "2"] and lines[4][1] == "cold_start"
    assert table.main([str(tmp_path / "none")]) == 2 and "run systems.sh first" in capsys.readouterr().err
