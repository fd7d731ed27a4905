"""Demonstrations by rule from gold: the agents' own parsers read them, the system solves the question by them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest

from verl_ext.data_prep.tool_tasks import ToolTask, verl_row
from verl_ext.recipe.baselines.cold_start import acting, cot
from verl_ext.recipe.deepagent.cold_start import gold as deepagent
from verl_ext.recipe.joyagents.cold_start import gold as joyagents
from verl_ext.recipe.joyagents.cold_start import word_problems
from verl_ext.recipe.joyagents.grammar import read_step
from verl_ext.recipe.puppeteer.cold_start import gold as puppeteer
from verl_ext.recipe.smurfs.cold_start import gold as smurfs
from verl_ext.recipe.smurfs.turns import read_turn
from verl_ext.storage.jsonl import write_rows
from verl_ext.storage.parquet import question_row, write_parquet

ASKED = "Add Lunch to my agenda. I am Ada, my password is pw."
CALLS = [
    {"name": "GetUserToken", "arguments": {"username": "Ada", "password": "pw"}},
    {"name": "AddAgenda", "arguments": {"token": "t1", "content": "Lunch"}},
]
RESULTS = [{"token": "t1"}, "success"]


def tool(name: str, does: str, **parameters: str) -> dict:
    given = {key: {"type": "str", "description": says} for key, says in parameters.items()}
    return {"name": name, "description": does, "input_parameters": given, "output_parameters": {}}


@pytest.fixture
def bank(tmp_path):
    """A folder as data_prep/tools.py api_bank writes it; the second question's call is not recorded."""
    tools = [
        tool("GetUserToken", "Get the user token by username and password.", username="the name", password="the word"),
        tool("AddAgenda", "The API for adding a agenda item.", token="of the user", content="what"),
    ]
    write_rows(tmp_path / "tools.jsonl", tools)
    turns = [
        {"role": "API", "api_name": call["name"], "param_dict": call["arguments"]}
        | {"result": {"api_name": call["name"], "input": call["arguments"], "output": output, "exception": None}}
        for call, output in zip(CALLS, RESULTS, strict=True)
    ]
    write_rows(tmp_path / "recorded.jsonl", [{"turns": turns}])
    other = [{"name": "AddAgenda", "arguments": {"token": "?", "content": "Tea"}}]
    names = [one["name"] for one in tools]
    tasks = [
        ToolTask("a", ASKED, CALLS, (), "api_bank", names),
        ToolTask("b", "Add Tea.", other, (), "api_bank", names),
    ]
    write_parquet([verl_row(task, "train", number) for number, task in enumerate(tasks)], tmp_path / "train.parquet")
    return tmp_path


def demonstrated(module, folder: Path, *more: str) -> list[dict]:
    """(agent, messages) of the rows that a system's command writes."""
    places = ["--questions", f"{folder}/train.parquet", "--output", f"{folder}/out/rows.parquet"]
    assert module.main([*places, *more]) == 0
    return pyarrow.parquet.read_table(folder / "out/rows.parquet").to_pylist()


def said(rows: list[dict], agent: str) -> list[str]:
    return [row["messages"][-1]["content"] for row in rows if row["agent"] == agent]


def test_smurfs_solve_the_question_step_by_step(bank, capsys):
    rows = demonstrated(smurfs, bank, "--tools", str(bank))
    (plan,) = said(rows, "planner")
    assert json.loads(plan)["Tasks"] == [
        "Get the user token by username and password: username Ada, password pw.",
        "The API for adding a agenda item: content Lunch.",
    ], "the token is known later"
    assert [json.loads(one) for one in said(rows, "arguments")] == [call["arguments"] for call in CALLS]
    second = [row["messages"][0]["content"] for row in rows if row["agent"] == "arguments"][1]
    assert 'GetUserToken has returned {"token": "t1"}' in second, "its prompt has the answer before"
    assert [json.loads(one)["ID"] for one in said(rows, "action")] == [0, 1]
    assert all(row["messages"][-1]["role"] == "assistant" for row in rows) and len(rows) == 1 + 2 * 6 + 1
    assert "left out: 1 questions that the rule does not solve" in capsys.readouterr().out


def test_deepagent_has_one_row_per_sequence(bank):
    (row,) = demonstrated(deepagent, bank, "--tools", str(bank))
    text = row["messages"][-1]["content"]
    assert text.count("<tool_search>") == 2 and text.count("<tool_call>") == 2 and text.endswith("\\boxed{done}")
    assert '<tool_call_result>\n{"token": "t1"}\n</tool_call_result>' in text and '"name": "AddAgenda"' in text


def test_a_single_decision(bank):
    rows = demonstrated(joyagents, bank, "--tools", str(bank))
    assert said(rows, "function_agent")[0] == (
        "<think>GetUserToken: Get the user token by username and password.</think>"
        f"<tool_call>{json.dumps(CALLS[0])}</tool_call>"
    )
    assert "GetUserToken" in rows[0]["messages"][0]["content"]


def test_react_has_one_row_per_question(bank):
    (row,) = demonstrated(acting, bank, "--tools", str(bank), "--system", "react")
    assert row["messages"][-1]["content"] == (
        "Thought: I need GetUserToken: Get the user token by username and password.\nAction: GetUserToken\n"
        'Action Input: {"username": "Ada", "password": "pw"}\nObservation: {"token": "t1"}\n'
        "Thought: I need AddAgenda: The API for adding a agenda item.\nAction: AddAgenda\n"
        'Action Input: {"token": "t1", "content": "Lunch"}\nObservation: success\n'
        "Thought: All calls are made.\nAction: Finish\n"
        'Action Input: {"answer": "I have called GetUserToken, AddAgenda."}'
    )
    (tight,) = demonstrated(acting, bank, "--tools", str(bank), "--system", "react", "--budget", "2")
    assert "Observation: success\nYou cannot call any more tools." in tight["messages"][-1]["content"]


def test_dfsdt_has_a_row_per_node_of_its_path(bank):
    rows = demonstrated(acting, bank, "--tools", str(bank), "--system", "dfsdt")
    assert [read_turn(text).name for text in said(rows, "agent")] == ["GetUserToken", "AddAgenda", ""]
    assert [read_turn(text).arguments for text in said(rows, "agent")[:2]] == [call["arguments"] for call in CALLS]
    prompts = [row["messages"][0]["content"] for row in rows]
    assert 'Observation: {"token": "t1"}' in prompts[1] and "Observation: success" in prompts[2]
    assert "not the first time" not in "".join(prompts), "no way leads nowhere"


@pytest.mark.parametrize(
    ("system", "budget", "agents"),
    [
        ("plan_and_solve", 4, {"planner": 1, "agent": 1}),
        ("reflexion", 4, {"agent": 1, "evaluator": 1}),
        ("self_refine", 4, {"agent": 1, "critic": 1}),
        ("debate", 12, {"agent": 3, "debater": 3}),
        ("rewoo", 4, {"planner": 1, "agent": 1}),
        ("codeact", 8, {"agent": 1}),
    ],
)
def test_other_baselines_make_the_gold_calls_in_their_own_forms(bank, system, budget, agents):
    rows = demonstrated(acting, bank, "--tools", str(bank), "--system", system, "--budget", str(budget))
    assert Counter(row["agent"] for row in rows) == agents
    shown = "\n".join(message["content"] for row in rows for message in row["messages"])
    assert ("{'token': 't1'}" if system == "codeact" else '{"token": "t1"}') in shown
    assert "I have called GetUserToken, AddAgenda." in shown
    if system == "codeact":
        assert "<execute>\nprint(call_tool('AddAgenda', token='t1', content='Lunch'))\n</execute>" in shown


@pytest.fixture
def problems(tmp_path):
    """A folder with a problem of GSM8K, its solution, and its question as data_prep/reasoning.py writes it."""
    question = "What is 3 times 4?"
    write_rows(tmp_path / "gsm8k_train.jsonl", [{"question": question, "answer": "3*4=<<3*4=12>>12.\n#### 12"}])
    row = question_row("gsm8k", question, {"kind": "number", "target": ["12"]}, "math", "train", 0)
    write_parquet([row], tmp_path / "train.parquet")
    return tmp_path


def test_the_chain_of_thought_is_the_solution(problems):
    rows = demonstrated(cot, problems, "--gsm8k", str(problems))
    assert said(rows, "agent") == ["3*4=12.\nFINAL ANSWER: 12"]


def test_the_master_hands_a_problem_to_the_math_agent(problems):
    row = question_row("math", "What is 3 times 4?", {"kind": "math", "target": ["12"]}, "math", "train", 0)
    write_parquet([row], problems / "train.parquet")
    rows = demonstrated(word_problems, problems, "--gsm8k", str(problems))
    assert said(rows, "math_agent") == ["<think>3*4=12.</think>12"]
    first, second = said(rows, "master")
    step = read_step(first)
    assert step.formed and (step.name, step.arguments) == ("math_agent", {"intention": "What is 3 times 4?"})
    assert read_step(second).answer == "12"
    shown = next(row["messages"] for row in rows if row["messages"][-1]["content"] == second)
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "tool", "assistant"]
    assert shown[-2]["content"] == "3*4=12.\n12", "what the math agent hands over"


def test_the_puppeteer_reasons_and_concludes(problems):
    rows = demonstrated(puppeteer, problems, "--gsm8k", str(problems))
    assert said(rows, "orchestrator") == ["reasoning", "conclude", "terminate"]
    assert said(rows, "reasoning") == ["REASONING RESULT: 3*4=12.\nFINAL ANSWER: 12"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Another?", "answer": "#### 1"}, "question 0 ('What is 3?') is not among the 1 of --gsm8k"),
        ({"question": "What is 3?"}, "field 'answer': given no such field"),
    ],
)
def test_a_question_without_a_solution_is_refused_by_a_sentence(row, message, tmp_path, capsys):
    write_rows(tmp_path / "gsm8k_train.jsonl", [row])
    question = question_row("gsm8k", "What is 3?", {"kind": "number", "target": ["3"]}, "math", "train", 0)
    write_parquet([question], tmp_path / "train.parquet")
    given = ["--questions", f"{tmp_path}/train.parquet", "--output", f"{tmp_path}/x.parquet", "--gsm8k", str(tmp_path)]
    assert puppeteer.main(given) == 2
    assert message in capsys.readouterr().err


def test_what_is_too_long_for_a_small_model_is_left_out(bank, capsys):
    with_all = demonstrated(smurfs, bank, "--tools", str(bank))
    longest = max(sum(len(message["content"]) for message in row["messages"]) for row in with_all)
    assert len(demonstrated(smurfs, bank, "--tools", str(bank), "--max_chars", str(longest - 1))) < len(with_all)
    given = ["--questions", f"{bank}/train.parquet", "--output", f"{bank}/x.parquet", "--tools", str(bank)]
    assert smurfs.main([*given, "--max_chars", "9"]) == 2
    assert "of 2 questions the rule solves 1, none short enough" in capsys.readouterr().err
