"""ToolBench's table (Table 5 of JoyAgents-R1) from a whole evaluation: the shipped recipe, the command, a server."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.serving import ChatServer, answer
from verl_ext.rewards.toolbench import COLUMNS


def call(name, **arguments):
    return f"<think>so</think><tool_call>{json.dumps({'name': name, 'arguments': arguments})}"


ADD, LIST = {"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "list_all", "arguments": {}}
# Data source, gold calls, what is said. Only the first source has all columns: the table is over both.
STEPS = [
    ("one", [ADD], call("add", a=1, b=2)),
    ("one", [ADD], call("add", a=1, b=3)),  # 0.5; a right name counts half in the script: 0.75
    ("one", [ADD], call("subtract")),  # not on offer
    ("one", [LIST], call("list_all")),
    ("two", [], "<think>known</think>done"),
    ("two", [], call("add", a=1, b=2)),
    ("two", [ADD], None),  # never answered
]
# Five of six plans, three of four names, (1 + 0.5 + 0)/3, (1 + 0.5 + 0 + 1)/4, one name of five calls invented.
WORDS = (5 / 6, 3 / 4, 1, 1.5 / 3, 2.5 / 4, 4 / 5)
# The wrong name counts in Easy_F1, too; one name of six steps invented.
SCRIPT = (5 / 6, 3 / 4, 1 / 2, 1.75 / 3, 2.75 / 4, 5 / 6)


@pytest.fixture
def files(tmp_path):
    tools = [{"name": name, "description": name, "parameters": {}} for name in ("add", "list_all")]
    (tmp_path / "tools.jsonl").write_text("".join(json.dumps(tool) + "\n" for tool in tools))
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"step {index}"}],
            "reward_model": {"ground_truth": {"path": json.dumps(path)}},
            "extra_info": {"index": index, "tools": ["add", "list_all"]},
        }
        for index, (source, path, _) in enumerate(STEPS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "questions.parquet")


def test_the_table_is_over_all_steps_and_has_its_average(command, files, tmp_path, capsys):
    def behave(body, number):
        shown = json.dumps(body["messages"])
        said = next(said for index, (_, _, said) in enumerate(STEPS) if f"step {index}" in shown)
        return (400, {"error": "too long"}) if said is None else answer(said)

    tools = f"mas.tools.function_search.sources=[{{kind: json, path: {tmp_path}/tools.jsonl}}]"
    with ChatServer(behave) as server:
        assert command(tools, recipe="joyagents_decisions", server=server) == 0
        first, said = command.results["table"], capsys.readouterr().out
        assert command(tools, recipe="joyagents_decisions", server=server) == 0  # from the answers on the disk
    assert list(first) == ["published script", "paper's words"] and command.results["table"] == first
    for row, columns in zip(first.values(), (SCRIPT, WORDS), strict=True):
        assert list(row) == [*COLUMNS, "Avg"]
        assert list(row.values()) == pytest.approx([*columns, sum(columns) / 6])
    # 4.1875 / 6 and 4.508333 / 6
    assert [row["Avg"] for row in first.values()] == pytest.approx([0.6979167, 0.7513889])
    head, _, script, words = said[said.index("| over all trajectories") :].splitlines()[:4]
    assert head.split()[4:] == "| Plan_ACC | Act_EM | Easy_F1 | Hard_F1 | F1 | No_Hallu | Avg |".split()
    assert script.split("|")[1].strip() == "published script" and script.split()[-2] == "0.698"
    assert words.split()[-2] == "0.751" and "1 x engine_error" in said
