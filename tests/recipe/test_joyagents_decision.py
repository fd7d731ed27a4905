"""Single decisions of the function agent: every column of Table 5, by hand and against the function of all steps."""

from __future__ import annotations

import json
from statistics import fmean

import pyarrow.parquet as pq
import pytest

from tests.helpers import FakeLLM, forest_of, run
from verl_ext.data_prep import tools
from verl_ext.mas import Task
from verl_ext.recipe.joyagents.decision import FunctionDecision, decision_of, gold_decision
from verl_ext.recipe.joyagents.grammar import read_step
from verl_ext.rewards.toolbench import Step, toolbench_scores
from verl_ext.sampling import run_once
from verl_ext.tools.catalogue import load_catalogue

OFFERED = ["add", "list_all"]


def call(name, **arguments):
    return f"<think>so</think><tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def task(*path, index=0):
    return Task("next?", {"target": [], "path": json.dumps(path)}, "api_bank", index, {"tools": OFFERED})


ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}
LIST = {"name": "list_all", "arguments": {}}
CASES = [
    (task(ADD), call("add", a=1, b=2), 1.0, {"plan_acc": 1, "act_em": 1, "hard_f1": 1, "f1": 1, "no_hallu": 1}),
    (task(ADD), call("add", a=1, b=3), 0.5, {"plan_acc": 1, "act_em": 1, "hard_f1": 0.5, "f1": 0.5, "no_hallu": 1}),
    (task(ADD), call("subtract", a=1), 0.0, {"plan_acc": 1, "act_em": 0, "hard_f1": 0, "f1": 0, "no_hallu": 0}),
    (task(ADD), "<think>no</think>3", 0.0, {"plan_acc": 0, "act_em": 0, "hard_f1": 0, "f1": 0}),
    (task(LIST), call("list_all"), 1.0, {"plan_acc": 1, "act_em": 1, "easy_f1": 1, "f1": 1, "no_hallu": 1}),
    (task(), "<think>known</think>done", 1.0, {"plan_acc": 1}),
    (task(), call("add", a=1, b=2), 0.0, {"plan_acc": 0, "no_hallu": 1}),
    (task(ADD), '<tool_call>{"name": "add"', 0.0, {"plan_acc": 1, "act_em": 0, "hard_f1": 0, "f1": 0, "no_hallu": 0}),
]


def decided(one, said):
    async def function_search(query="", k=0, names=None):
        assert names is None or names == sorted(names)
        return [{"name": name, "description": "", "parameters": {}} for name in (names or ["list_all", "other"][:k])]

    forest = forest_of(FunctionDecision(), FakeLLM(lambda request: said), tools={"function_search": function_search})
    forest.task = one
    return run(run_once(forest))


@pytest.mark.parametrize("one,said,reward,columns", CASES)
def test_columns_by_hand(one, said, reward, columns):
    trajectory = decided(one, said)
    assert trajectory.ok and trajectory.reward == reward and trajectory.metrics == columns
    assert all(name in trajectory.calls[0].messages[0]["content"] for name in OFFERED)


def test_means_over_questions_are_the_columns_of_the_table():
    steps, found = [], {}
    for one, said, _, _ in CASES:
        for name, value in decided(one, said).metrics.items():
            found.setdefault(name, []).append(value)
        steps.append(Step(gold_decision(one), decision_of(read_step(said)), frozenset(OFFERED)))
    table = {name.lower(): value for name, value in toolbench_scores(steps).items() if name != "Avg"}
    assert {name: fmean(values) for name, values in found.items()} == pytest.approx(table)


def test_functions_of_the_row_are_on_offer_among_others():
    own = Task("next?", {"target": [], "path": json.dumps([ADD])}, "api_bank", 0, {"tools": ["add"]})
    shown = decided(own, call("other")).calls[0].messages[0]["content"]
    assert shown.index('"add"') < shown.index('"list_all"') < shown.index('"other"')
    assert decided(own, call("other")).metrics["no_hallu"] == 1.0
    assert decided(own, call("another")).metrics["no_hallu"] == 0.0


def test_of_several_calls_the_first_comes_next_and_names_alone_are_refused():
    assert gold_decision(task(ADD, LIST)).name == "add"
    with pytest.raises(ValueError, match="row 4: .* must have the call's arguments"):
        gold_decision(task("add", index=4))


FINISH = {"name": "Finish", "description": "", "parameters": "{'type': 'object', 'properties': {}}"}
STATIC = [
    ('Thought: \nAction: add\nAction Input: {\n  "a": 1, "b": 2}', [ADD]),
    ('Thought: known\nAction: Finish\nAction Input: {"return_type": "give_answer"}', []),
    (
        'Action: Finish\nAction Input: {"return_type": "give_up_and_restart"}',
        [{"name": "Finish", "arguments": {}}],
    ),
    ("Action: spott\nAction Input: {}", None),  # not offered
    ("Action: add\nAction Input: no json", None),
]


def test_toolbench_static_gives_single_steps_with_their_own_tools(tmp_path):
    """The rows of the published data, with their quirks."""
    add = {"name": "add", "description": "adds", "parameters": "{'type': 'object', 'properties': {}, 'optional': []}"}
    messages = [{"role": "system", "content": "AutoGPT"}, {"role": "user", "content": "1 and 2?\nBegin!"}]
    rows = [{"tools": [add, FINISH], "messages": messages, "target": target} for target, _ in STATIC]
    (tmp_path / "in_domain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--sets", "in_domain", "--local_dataset_path", str(tmp_path), "--output_dir", str(tmp_path / "out")]
    assert tools.main(["toolbench_static", *options]) == 0
    made = pq.read_table(tmp_path / "out/test.parquet").to_pylist()
    assert [json.loads(row["reward_model"]["ground_truth"]["path"]) for row in made] == [
        path for _, path in STATIC if path is not None
    ]
    assert all(list(row["extra_info"]["tools"]) == ["add", "Finish"] for row in made)
    assert "AutoGPT" not in made[0]["prompt"][0]["content"] and "user: 1 and 2?" in made[0]["prompt"][0]["content"]
    catalogue = load_catalogue([{"kind": "json", "path": str(tmp_path / "out/tools.jsonl")}])
    assert set(catalogue) == {"add", "Finish"}


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        ('{"return_type": "give_answer", "final_answer": "3"}', "answer"),
        ('{"return_type": "give_up_and_restart"}', "give_up"),
        ("{}", "give_up"),
    ],
)
def test_a_call_of_finish_answers_or_gives_up(said, plan):
    step = read_step(f'<think>so</think><tool_call>{{"name": "Finish", "arguments": {said}}}</tool_call>')
    assert decision_of(step).plan == plan
