"""The tiny pool world: answers by hand, splits that do not meet, demonstrations that its system reads as they are."""

from __future__ import annotations

import random

import pytest

from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import Task
from verl_ext.recipe.puppeteer import Puppeteer, prompts_tiny
from verl_ext.recipe.puppeteer.cold_start.demonstrations import (
    NO_HABITS,
    POOL,
    Habits,
    Teacher,
    decision,
    marks,
    right_one,
    step_of,
    words,
)
from verl_ext.recipe.puppeteer.puppets import TERMINATE, State, read_result
from verl_ext.worlds import pool as tiny_pool
from verl_ext.worlds.pool import KINDS, Question


@pytest.mark.parametrize(
    ("question", "text", "answer", "path"),
    [
        (Question("sum", (34, 58)), "34 + 58", "92", ("run_python",)),
        (Question("price", (9,), "Amber Harbor"), "price of Amber Harbor", "9", ("web_search",)),
        (Question("more", (12, 47)), "more of 12 and 47", "47", ("reasoning",)),
        (Question("total", (34, 9), "A B"), "34 + price of A B", "43", ("web_search", "run_python")),
    ],
)
def test_by_hand(question, text, answer, path):
    assert (question.text, question.answer, question.path) == (text, answer, path)


def test_a_data_set_is_a_function_of_its_arguments_and_its_splits_do_not_meet(tmp_path):
    files = tiny_pool.data_set(400, 120, 3)
    assert files == tiny_pool.data_set(400, 120, 3) != tiny_pool.data_set(400, 120, 4)
    train, val = files["train.parquet"], files["val.parquet"]
    assert [row["extra_info"]["kind"] for row in val[:4]] == list(KINDS)
    texts = [{row["extra_info"]["question"] for row in rows} for rows in (train, val)]
    assert not texts[0] & texts[1] and [len(part) for part in texts] == [400, 120]
    things = [{text.partition("price of ")[2] for text in part if "price" in text} for part in texts]
    assert not things[0] & things[1]
    known = {line["name"]: line["price"] for line in files["prices.jsonl"]}
    for row in val:
        asked, (answer,) = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]["target"]
        numbers = [int(word) for word in asked.split() if word.isdigit()]
        numbers += [known[asked.partition("price of ")[2]]] if "price" in asked else []
        assert int(answer) == (max(numbers) if asked.startswith("more") else sum(numbers)) <= 99


def test_on_disk(tmp_path):
    folder = tiny_pool.ensure(tmp_path / "pool", 8, 4)
    stamp = (folder / "train.parquet").stat().st_mtime_ns
    assert tiny_pool.ensure(folder, 8, 4) == folder and (folder / "train.parquet").stat().st_mtime_ns == stamp
    search = tiny_pool.web_search(str(folder / "prices.jsonl"))
    name, price = next(iter(tiny_pool.prices(0, "val").items()))
    assert run(search(queries=[f"price of {name}"])) == str(price)
    for query in (name, f"price of {name}?", "", "price of nothing"):
        assert run(search(queries=[query])) == "nothing found"
    with pytest.raises(ValueError, match="does not exist. Remedy: python verl_ext/worlds/pool.py"):
        tiny_pool.web_search(str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="val_size=0: at least 1"):
        tiny_pool.ensure(tmp_path, 8, 0)
    with pytest.raises(ValueError, match="questions were found"):
        tiny_pool.questions(10**4, "val", 0)


async def calculator(code):
    return str(sum(int(term) for term in code.split("+")))


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_way_gives_the_right_answer_in_the_system_itself(kind):
    """Demonstrated outputs, played by the workflow: the state is that of the demonstrations, the reward 1."""
    rng, teacher = random.Random(1), Teacher(5)
    question = tiny_pool.draw(rng, kind, {"Amber Harbor": 7}, "train")
    demonstrated = State(question.text)

    def said(request):
        state = prompts_tiny.puppet(request.agent, demonstrated)[-1]["content"]
        assert request.prompt == state
        text = teacher._said(request.agent, question, demonstrated)
        demonstrated.steps.append(step_of(request.agent, text, question))
        return text

    async def python(program):
        return await calculator(program.removeprefix("print(").removesuffix(")"))

    async def scene():
        system = Puppeteer("tiny", POOL, orchestration="oracle")
        tools = {"run_python": python, "web_search": tiny_pool.Prices({"Amber Harbor": 7})}
        forest = forest_of(system, FakeLLM(said), tools=tools)
        forest.sampling = {"temperature": 1.0, "max_tokens": 99}
        forest.task = Task(question.text, {"target": [question.answer]}, "tiny_pool", extra={"path": question.path})
        return await walk(forest)

    trajectory = run(scene())
    assert trajectory.ok and trajectory.reward == 1.0
    assert [step.puppet for step in trajectory.result.states[0].steps] == list(question.path)
    assert trajectory.result.states[0].steps == demonstrated.steps


def test_without_habits_the_orchestrator_takes_the_shortest_way():
    rng = random.Random(0)
    for _ in range(200):
        question = tiny_pool.draw(rng, rng.choice(KINDS), {"A B": 5}, "train")
        state, teacher = State(question.text), Teacher(1)
        while (name := decision(rng, question, state, NO_HABITS)) != TERMINATE:
            assert name == right_one(question, state)
            state.steps.append(step_of(name, teacher._said(name, question, state), question))
        assert tuple(step.puppet for step in state.steps) == question.path and state.answer == question.answer


def test_habits_have_their_shares():
    rng, question = random.Random(0), Question("sum", (3, 4))
    first = [decision(rng, question, State(question.text), Habits()) for _ in range(4000)]
    share = first.count("planning") / 4000  # of what is not anybody; and a ninth of that
    assert share == pytest.approx(0.8 * 0.6 + 0.2 / 9, abs=0.02)
    done = State(question.text)
    done.steps.append(step_of("run_python", " print( 3 + 4 )", question))
    last = [decision(rng, question, done, Habits()) for _ in range(4000)]
    assert last.count(TERMINATE) / 4000 == pytest.approx(0.8 * 0.3 + 0.2 / 9, abs=0.02)


def test_every_word_has_a_token():
    known = set(words()) | set(marks())
    teacher = Teacher(0)
    for _ in range(50):
        for examples in teacher.batch(2, Habits()).values():
            for prompt, output in examples:
                text = f"{prompt[-1]['content']} {output}"
                for mark in sorted(marks(), key=len, reverse=True):
                    text = text.replace(mark, " ")
                for word in text.replace("[", " [ ").replace("]", " ] ").replace(":", " ").split():
                    assert word in known, word


def test_a_guess_is_marked_as_an_answer():
    question = Question("sum", (3, 4))
    text = Teacher(0)._said("reasoning", question, State(question.text))
    result, answer = read_result(text)
    assert result == "it may be" and answer.isdigit()
