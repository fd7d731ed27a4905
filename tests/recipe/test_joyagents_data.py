"""JoyAgents-R1's questions in natural language, and the files: executable, disjoint, of the paper's sizes."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from tests.public_data import SHARED, needs_shared
from verl_ext.memory import HashingSimilarity
from verl_ext.recipe.joyagents.accuracy import accuracy
from verl_ext.recipe.joyagents.cold_start import sft_demonstrations
from verl_ext.recipe.joyagents.data import generated_questions, rl_questions, sft_conversations
from verl_ext.recipe.joyagents.data.generated_questions import SPLITS, Question, QuestionGenerator, knowledge, run
from verl_ext.tools.catalogue.formats.functions import load
from verl_ext.tools.catalogue.types import Catalogue

GSM8K, TOOLBENCH = SHARED / "math", SHARED / "tools" / "toolbench"
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


REAL = {"math": [PROBLEM], "function": [Question("function", "Will it rain?", functions=("weather", "radar"))]}


def test_cooperations_are_of_all_pairs_and_their_truth_needs_both_parts():
    """Before, there were three templates, always of the shop and the math agent."""
    generator, pairs = QuestionGenerator(0, "train", REAL), Counter()
    for _ in range(200):
        question = generator.cooperation()
        kinds = frozenset(part.kind for part in question.parts)
        pairs[kinds] += 1
        truth, last = question.truth, question.parts[-1]
        if kinds in ({"shop", "math"}, {"qa", "math"}):  # the sum needs what the other specialist said
            *lookups, _ = question.parts
            numbers = [int(number) for number in re.findall(r"\d+", last.text)]
            seen = [value for part in lookups if part.kind == "shop" for value in run(part).values()]
            seen += [int(number) for part in lookups for number in re.findall(r"\d+", part.answer)]
            assert any(number in seen for number in numbers), (question.text, seen)
            right = numbers[0] * numbers[1] if "times" in last.text else sum(numbers)
            assert truth == {"kind": "math", "target": [str(right)], "functions": []} and question.answer == last.answer
        else:
            assert all(part.text in question.text for part in question.parts)
            assert set(truth["functions"]) == {name for part in question.parts for name in part.functions}
            kind = next(iter(kinds & {"qa", "math"}), "function")
            assert (truth["kind"], truth["target"]) == (kind, [p.answer for p in question.parts if p.answer])
    assert len(pairs) == 6 and min(pairs.values()) > 10, pairs
    few = QuestionGenerator(0, "train", {}, ["question_agent", "math_agent"])
    assert few.pairs == [("qa", "math")] and few.cooperation().truth["kind"] == "math"


def test_entries_of_a_topic_have_different_numbers():
    """An answer from the entry of another category is near in words; its number gives it away."""
    entries, similarity = knowledge(0), HashingSimilarity()
    for topic in generated_questions.RULES:
        texts = [text for title, text in entries.items() if title.startswith(f"{topic}:")]
        truth = {"kind": "qa", "target": texts[:1], "functions": []}
        assert [accuracy(truth, text, similarity) for text in texts] == [1.0] + [0.0] * 7, topic


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
        rl_questions.questions(0, {}, "test")


# -- the files --------------------------------------------------------------------------------------------------------


@needs_shared
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
            right = [f'Pass calling {{"api_name": "{name}"}}' for name in truth["functions"]] + truth["target"]
            assert accuracy(truth, "\n".join(right), similarity) == 1.0
            if truth["kind"] == "math":
                Decimal(truth["target"][0])
    assert not texts["train"] & texts["test"]
    titles = {json.loads(line)["title"] for line in (tmp_path / "knowledge.jsonl").read_text().splitlines()}
    assert len(titles) == len(generated_questions.RULES) * 8


@needs_shared
def test_what_is_fewer_than_the_papers_sizes_is_said(tmp_path, capsys, monkeypatch):
    small = {"master": dict.fromkeys(("math", "qa", "shop", "function", "cooperation"), 50)}
    small |= {"question_agent": {"qa": 50}, "shop_agent": {"shop": 50}}
    monkeypatch.setattr(sft_conversations, "SIZES", sft_conversations.SIZES | small)
    options = ["--output_dir", str(tmp_path), "--gsm8k", str(GSM8K), "--toolbench", str(TOOLBENCH)]
    assert sft_conversations.main([*options, "--function_chats", "3500"]) == 0
    said = capsys.readouterr().out
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:6]] for line in said.splitlines()[:8]
    }
    assert rows["question_agent"] == ["50", "50", "50", ""]
    assert rows["math_agent"][3] == "7473 math questions of 7500"
    assert "without a call whose arguments are clear" in rows["function_agent"][3]
    assert rows["function_agent"][0] == "3500", "the other reading of Section 4.2; 1,500 by default"
    assert 0 < int(rows["function_agent"][2]) < int(rows["function_agent"][1]) < 1500
    files = {path.stem: pq.read_table(path).num_rows for path in tmp_path.glob("*.parquet")}
    assert sum(files.values()) == sum(int(row[1]) for name, row in list(rows.items())[2:])
    assert "not data" in said


OF_MATH = ("--specialists", "math_agent")


def test_fewer_specialists_have_fewer_questions_and_files(tmp_path):
    """Table 7; nothing is asked of GSM8K and ToolBench for agents that are not there."""
    options = ["--output_dir", str(tmp_path), "--specialists", "question_agent", "shop_agent"]
    assert rl_questions.main(options) == 0
    kinds = Counter(row["data_source"] for row in pq.read_table(tmp_path / "train.parquet").to_pylist())
    assert kinds == {"qa": 100, "shop": 100} and not (tmp_path / "tools.jsonl").exists()


def test_three_of_ten_questions_to_the_qa_agent_are_coigs(tmp_path, capsys, monkeypatch):
    """700 of the shop and 300 of COIG (Section 4.2); an open question is answered without the knowledge base."""
    rows = [
        {"instruction": "解释", "input": f"什么是{number}号牛奶？", "output": f"第{number}种饮料。"}
        for number in range(400)
    ]
    rows += [{"instruction": "q", "output": "x" * 9000}, {"instruction": "<think>", "output": "x"}, {"output": "x"}]
    (tmp_path / "coig.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    options = ["--specialists", "question_agent", "shop_agent", "--coig", str(tmp_path / "coig.jsonl"), "--output_dir"]
    assert rl_questions.main([*options, str(tmp_path / "rl")]) == 0
    assert "3 rows left out" in capsys.readouterr().out
    for split in SPLITS:
        written = pq.read_table(tmp_path / "rl" / f"{split}.parquet").to_pylist()
        kinds = Counter((row["data_source"], row["reward_model"]["ground_truth"]["kind"]) for row in written)
        assert kinds == {("qa", "qa"): 70, ("qa", "open"): 30, ("shop", "function"): 100}
    sizes = {"master": {"qa": 10}, "question_agent": {"qa": 100}, "single_agent": {"qa": 10}}
    monkeypatch.setattr(sft_conversations, "SIZES", sft_conversations.SIZES | sizes | {"shop_agent": {"shop": 5}})
    monkeypatch.setattr(sft_conversations, "HELD_OUT", 0)
    assert sft_conversations.main([*options, str(tmp_path / "sft")]) == 0
    chats = [row["messages"] for row in pq.read_table(tmp_path / "sft" / "question_agent.parquet").to_pylist()]
    opened = [chat for chat in chats if "牛奶" in chat[1]["content"]]
    assert len(opened) == 30 and len(chats) == 100
    assert not any("tool_retrievals" in message["content"] for chat in opened for message in chat[2:])
    (tmp_path / "coig.jsonl").write_text(json.dumps(rows[0]))
    assert rl_questions.main([*options, str(tmp_path / "few")]) == 2
    assert "30 open questions are wanted" in capsys.readouterr().err


def test_errors_name_the_flag_and_what_is_expected(tmp_path, capsys):
    output = ["--output_dir", str(tmp_path / "out")]
    for path in (tmp_path, tmp_path / "no"):
        assert sft_conversations.main([*output, "--toolbench", str(path)]) == 2
        assert capsys.readouterr().err.startswith("error: --toolbench")
    options = [*output, "--gsm8k", str(tmp_path)]
    assert rl_questions.main([*options, *OF_MATH]) == 2
    assert f"--gsm8k {tmp_path} does not exist, or holds no" in capsys.readouterr().err
    for split, answer, message in (
        ("test", "#### 5", "a folder with a file whose name contains 'train' is expected"),
        ("train", "five", "gsm8k_train.jsonl:1: field 'answer' has no '####'"),
    ):
        (tmp_path / f"gsm8k_{split}.jsonl").write_text(f'{{"question": "q", "answer": "{answer}"}}\n')
        assert rl_questions.main([*options, *OF_MATH]) == 2 and message in capsys.readouterr().err


def test_the_tiny_sets_are_made_once_and_of_all_agents(tmp_path):
    assert sft_demonstrations.main(["--output_dir", str(tmp_path), "--size", "100", "--habits", "0"]) == 0
    rows = {path.stem: pq.read_table(path).to_pylist() for path in tmp_path.glob("*.parquet")}
    assert set(rows) == {*sft_demonstrations.AGENTS, "val"} and len(rows["val"]) == sft_demonstrations.HELD_OUT
    assert all(row["agent"] == agent for agent in sft_demonstrations.AGENTS for row in rows[agent])
    assert {row["agent"] for row in rows["val"]} == set(sft_demonstrations.AGENTS)
    assert sft_demonstrations.main(["--output_dir", str(tmp_path), "--size", "3"]) == 2
