"""JoyAgents-R1's questions and conversations in natural language: executable, disjoint, and as agents see them."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from verl_ext.memory import HashingSimilarity
from verl_ext.recipe.joyagents import grammar
from verl_ext.recipe.joyagents.accuracy import accuracy, functions_called
from verl_ext.recipe.joyagents.cold_start import sft_demonstrations
from verl_ext.recipe.joyagents.data import generated_questions, rl_questions, sft_conversations
from verl_ext.recipe.joyagents.data.agent_chats import ChatGenerator, call_of
from verl_ext.recipe.joyagents.data.generated_questions import SPLITS, Question, QuestionGenerator, knowledge, run
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.tools.catalogue.formats.functions import load
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
GSM8K, TOOLBENCH = SHARED / "math", SHARED / "tools" / "toolbench"
needs_data = pytest.mark.skipif(
    not (GSM8K.is_dir() and TOOLBENCH.is_dir()), reason=f"{SHARED} has no GSM8K and ToolBench (development data)"
)
APIS = Catalogue(load("verl_ext.recipe.joyagents.shop"))
PROBLEM = Question("math", "How many are 2 and 3?", answer="5", thought="2 + 3 = <<2+3=5>>5")


@pytest.fixture(params=SPLITS)
def generator(request):
    return QuestionGenerator(0, request.param)


def test_questions_to_the_apis_can_be_answered_with_their_arguments(generator):
    for function in generated_questions.WORDINGS:
        for _ in range(20):
            question = generator.shop(function)
            assert APIS.problems(function, question.arguments) == [] and isinstance(run(question), dict), question
            assert question.truth == {"kind": "function", "target": [], "functions": [function]}
            given = [str(value) for value in question.arguments.values() if value != "small shop"]
            assert all(value in question.text for value in given), (question.text, given)


def test_cooperations_are_sums_of_what_the_apis_say(generator):
    kinds = Counter()
    for _ in range(60):
        question = generator.cooperation()
        *lookups, added = question.parts
        numbers = [int(number) for number in re.findall(r"\d+", added.text)]
        seen = [value for part in lookups for value in run(part).values()]
        assert any(number in seen for number in numbers), (question.text, seen)
        right = numbers[0] * numbers[1] if "times" in added.text else sum(numbers)
        assert question.answer == added.answer == str(right) and question.truth["target"] == [str(right)]
        kinds[lookups[0].functions[0]] += 1
    assert set(kinds) == {"check_shop_expenses", "search_order_code", "check_stock"}


def test_validation_asks_about_other_shops_and_in_other_words():
    train, test = (QuestionGenerator(0, split) for split in SPLITS)
    assert not set(train.shops) & set(test.shops) and not set(train.orders) & set(test.orders)
    assert not set(train.cases) & set(test.cases) and test.cases
    both = zip(SPLITS, (train, test), strict=True)
    words = {split: {generator.qa().text for _ in range(800)} for split, generator in both}
    assert not words["train"] & words["test"] and len(words["test"]) > 95


def test_everything_is_a_function_of_the_seed():
    first, again, other = (QuestionGenerator(seed, "train") for seed in (1, 1, 2))
    drawn = [[generator.cooperation(), generator.qa(), generator.shop()] for generator in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2] and knowledge(1) == knowledge(1) != knowledge(2)
    assert len(knowledge(0)) == len(generated_questions.RULES) * 8


def test_too_few_questions_are_said(monkeypatch):
    monkeypatch.setitem(rl_questions.SIZES, "test", {"qa": 500})
    with pytest.raises(ValueError, match="test qa questions=500: only 104 different questions were found"):
        rl_questions.questions(0, {}, {}, "test")


# -- conversations ----------------------------------------------------------------------------------------------------

PROPERTIES = {"city": {"type": "string", "default": "Oslo"}, "days": {"type": "integer", "default": 3}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
TOOL = ToolSpec("weather_for_sky", "Weather of a city.", SCHEMA, {"rain": "float"})
OTHERS = [ToolSpec(f"other_{number}", f"Something else {number}.") for number in range(8)]


@pytest.mark.parametrize(
    ("required", "question", "expected"),
    [
        (["city"], "Will it rain in Oslo?", {"city": "Oslo"}),
        (["city"], "Will it rain in oslo?", {"city": "Oslo"}),
        (["city"], "Will it rain in Oslofjord?", None),
        (["city"], "Will it rain in Rome?", None),
        (["city", "days"], "Oslo, the next 3 days?", {"city": "Oslo", "days": 3}),
        (["city", "days"], "Oslo, the next 13 days?", None),
        ([], "Anything?", {}),
    ],
)
def test_arguments_are_clear_only_where_the_documented_example_stands_in_the_question(required, question, expected):
    tool = ToolSpec(TOOL.name, TOOL.description, {**SCHEMA, "required": required})
    assert call_of(tool, question) == expected


@pytest.fixture(scope="module")
def conversations():
    one = Question("function", "Will it rain in Oslo?", functions=(TOOL.name,))
    two = Question("function", "Will it rain in Oslo? And else?", functions=(TOOL.name, "other_3"))
    half = Question("function", "Will it rain in Oslo, and in Rome?", functions=("unclear", TOOL.name))
    none = Question("function", "Will it rain in Rome?", functions=("unclear",))
    unclear = ToolSpec("unclear", "Something of a city.", {**SCHEMA, "required": ["days"]})
    chats = ChatGenerator(0, [PROBLEM] * 30, [one, two, half, none] * 3, [TOOL, unclear, *OTHERS])
    sizes = {agent: {kind: 12 for kind in kinds} for agent, kinds in sft_conversations.SIZES.items()}
    return dict(chats.sets(sizes))


def test_conversations_have_the_form_that_is_rewarded(conversations):
    assert set(conversations) == {"master", *SPECIALISTS}
    for agent, chats in conversations.items():
        assert chats
        for messages in chats:
            assert [message["role"] for message in messages[:2]] == ["system", "user"]
            assert messages[-1]["role"] == "assistant" and messages[2]["role"] == "assistant"
            for message in messages[2:]:
                if message["role"] == "assistant":
                    assert grammar.well_formed(message["content"]), (agent, message)
                    assert grammar.read_step(message["content"]).kind in ("call", "answer")
                else:
                    assert message["role"] == "tool" and grammar.neutral(message["content"]) == message["content"]


def test_conversations_answer_with_what_was_seen(conversations):
    recalled = 0
    for agent, chats in conversations.items():
        for system, _, *rest in chats:
            last = grammar.read_step(rest[-1]["content"])
            seen = " ".join(message["content"] for message in rest if message["role"] == "tool")
            recalled += len(rest) == 1 and "memory" in rest[0]["content"]
            if last.kind == "answer" and agent != "math_agent":
                memory = system["content"].partition("<memory>")[2]
                known = json.dumps(last.answer, ensure_ascii=False) in memory
                assert known or all(line in seen for line in last.answer.splitlines()), (agent, rest)
            if agent in ("shop_agent", "function_agent") and len(rest) > 1:
                called = grammar.read_step(rest[2]["content"])
                assert f'"name": "{called.name}"' in rest[1]["content"], "it was found before it is called"
                assert agent != "shop_agent" or functions_called(last.answer) == [called.name]
    assert recalled, "some conversations answer from the memory"


def test_function_agents_answer_where_all_calls_are_clear_and_end_with_a_call_where_some_are(conversations):
    ends = Counter()
    for _, query, *rest in conversations["function_agent"]:
        last = grammar.read_step(rest[-1]["content"])
        names = [TOOL.name, "other_3"] if "else" in query["content"] else [TOOL.name]
        assert all(f'"name": "{name}"' in rest[1]["content"] for name in names), "all are found"
        ends[query["content"], last.kind] += 1
        if last.kind == "answer":
            truth = {"kind": "function", "functions": names}
            assert accuracy(truth, last.answer, HashingSimilarity()) == 1.0
            assert '"rain": "float"' in rest[3]["content"], "the documented form, and the answer hands it on"
    assert ends == {
        ("Will it rain in Oslo?", "answer"): 3,
        ("Will it rain in Oslo? And else?", "answer"): 3,
        ("Will it rain in Oslo, and in Rome?", "call"): 3,
    }


def test_the_master_answers_what_the_function_agent_would(conversations):
    said = {query["content"]: rest for _, query, *rest in conversations["master"]}
    answer = grammar.read_step(said["Will it rain in Oslo? And else?"][-1]["content"]).answer
    assert functions_called(answer) == [TOOL.name, "other_3"]
    assert grammar.read_step(said["Will it rain in Oslo, and in Rome?"][-1]["content"]).name == "function_agent"


def test_a_conversation_about_a_problem_has_its_steps_without_the_calculator(conversations):
    for messages in conversations["math_agent"]:
        thought = messages[-1]["content"]
        assert "<<" not in thought and grammar.read_step(thought).answer == "5"


# -- the files --------------------------------------------------------------------------------------------------------


@needs_data
def test_the_files_have_the_papers_sizes(tmp_path):
    options = ["--output_dir", str(tmp_path), "--gsm8k", str(GSM8K), "--toolbench", str(TOOLBENCH)]
    assert rl_questions.main(options) == 0
    similarity = HashingSimilarity()
    texts = {}
    for split in SPLITS:
        rows = pq.read_table(tmp_path / f"{split}.parquet").to_pylist()
        assert Counter(row["data_source"] for row in rows) == rl_questions.SIZES[split]
        assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
        texts[split] = {row["prompt"][0]["content"] for row in rows}
        for row in random.Random(0).sample(rows, 60):
            truth = row["reward_model"]["ground_truth"]
            right = " ".join(f'Pass calling {{"api_name": "{name}"}}' for name in truth["functions"])
            assert accuracy(truth, right or truth["target"][0], similarity) == 1.0
            if truth["kind"] == "math":
                Decimal(truth["target"][0])
    assert not texts["train"] & texts["test"]
    titles = {json.loads(line)["title"] for line in (tmp_path / "knowledge.jsonl").read_text().splitlines()}
    assert len(titles) == len(generated_questions.RULES) * 8


@needs_data
def test_what_is_fewer_than_the_papers_sizes_is_said(tmp_path, capsys, monkeypatch):
    small = {"master": dict.fromkeys(("math", "qa", "shop", "function", "cooperation"), 50)}
    small |= {"question_agent": {"qa": 50}, "shop_agent": {"shop": 50}}
    monkeypatch.setattr(sft_conversations, "SIZES", sft_conversations.SIZES | small)
    options = ["--output_dir", str(tmp_path), "--gsm8k", str(GSM8K), "--toolbench", str(TOOLBENCH)]
    assert sft_conversations.main(options) == 0
    said = capsys.readouterr().out
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:6]] for line in said.splitlines()[:7]
    }
    assert rows["question_agent"] == ["50", "50", "50", ""]
    assert rows["math_agent"][3] == "7473 math questions of 7500"
    assert "without a call whose arguments are clear" in rows["function_agent"][3]
    assert 0 < int(rows["function_agent"][2]) < int(rows["function_agent"][1]) < 1500
    files = {path.stem: pq.read_table(path).num_rows for path in tmp_path.glob("*.parquet")}
    assert sum(files.values()) == sum(int(row[1]) for name, row in list(rows.items())[2:])
    assert "not data" in said


def test_errors_name_the_flag_and_what_is_expected(tmp_path, capsys):
    output = ["--output_dir", str(tmp_path / "out")]
    for path in (tmp_path, tmp_path / "no"):
        assert sft_conversations.main([*output, "--toolbench", str(path)]) == 2
        assert capsys.readouterr().err.startswith("error: --toolbench")
    options = [*output, "--gsm8k", str(tmp_path)]
    assert rl_questions.main(options) == 2
    assert f"--gsm8k {tmp_path} does not exist, or holds no" in capsys.readouterr().err
    for split, answer, message in (
        ("test", "#### 5", "a folder with a file whose name contains 'train' is expected"),
        ("train", "five", "gsm8k_train.jsonl:1: field 'answer' has no '####'"),
    ):
        (tmp_path / f"gsm8k_{split}.jsonl").write_text(f'{{"question": "q", "answer": "{answer}"}}\n')
        assert rl_questions.main(options) == 2 and message in capsys.readouterr().err


def test_the_tiny_sets_are_made_once_and_of_all_agents(tmp_path):
    assert sft_demonstrations.main(["--output_dir", str(tmp_path), "--size", "100", "--habits", "0"]) == 0
    rows = {path.stem: pq.read_table(path).to_pylist() for path in tmp_path.glob("*.parquet")}
    assert set(rows) == {*sft_demonstrations.AGENTS, "val"} and len(rows["val"]) == sft_demonstrations.HELD_OUT
    assert all(row["agent"] == agent for agent in sft_demonstrations.AGENTS for row in rows[agent])
    assert {row["agent"] for row in rows["val"]} == set(sft_demonstrations.AGENTS)
    assert sft_demonstrations.main(["--output_dir", str(tmp_path), "--size", "3"]) == 2
