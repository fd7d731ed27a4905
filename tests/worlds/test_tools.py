"""The tiny tool world and its demonstrations: tasks can be solved as their gold paths say, and by searching."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from verl_ext.mas import Task
from verl_ext.recipe.deepagent import grammar, memories, prompts_tiny
from verl_ext.recipe.deepagent.cold_start import demonstrations as tool_demos
from verl_ext.recipe.deepagent.workflow import DeepAgent, Work
from verl_ext.rewards.calls import Invocation
from verl_ext.tools.catalogue import tool_call, tool_search
from verl_ext.worlds import tools as tiny_tools
from verl_ext.worlds.tools import RELATIONS, STATES, Thing, World, data_set, ensure, facts, names_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ensure(tmp_path_factory.mktemp("tools") / "world", train_size=40, val_size=30, seed=3, hops=[1, 2, 3, 4])


@pytest.fixture(scope="module")
def rows():
    return data_set(40, 30, 3, [1, 2, 3, 4])


def settings(folder):
    sources = [{"kind": "json", "path": str(folder / "tools.jsonl")}]
    search = tool_search(sources=sources, method="bm25", top_k=3, cache_dir=str(folder / "index"))
    return search, tool_call(sources=sources, backend=facts(str(folder / "facts.jsonl")))


def test_every_gold_path_leads_to_the_answer_and_every_step_can_be_found(folder, rows):
    async def solve():
        search, call = settings(folder)
        for split in ("train", "val"):
            for row in rows[f"{split}.parquet"]:
                truth, answer = row["reward_model"]["ground_truth"], None
                path = json.loads(truth["path"])
                assert row["extra_info"]["hops"] == len(path) and row["extra_info"]["tools"] == [
                    c["name"] for c in path
                ]
                kind, _, *relations = row["prompt"][0]["content"].split(":")
                for gold, relation in zip(path, relations, strict=True):
                    found = await search(query=f"{relation}:{kind}")
                    states = {document["name"]: document["description"] for document in found}
                    assert states[gold["name"]] == f"{relation}:open" and len(states) == 3, "open among its copies"
                    assert sorted(state.split(":")[1] for state in states.values()) == sorted(STATES)
                    answer = await call(**gold)
                    assert answer["ok"]
                    kind = RELATIONS[kind][relation]
                assert answer["result"] == truth["target"][0]
        await search.close()

    asyncio.run(solve())


def test_a_workflow_that_goes_the_gold_path_is_right(rows):
    row = rows["val.parquet"][3]
    task = Task("q", row["reward_model"]["ground_truth"])
    path = [Invocation(**call) for call in json.loads(task.ground_truth["path"])]
    reward, scores = DeepAgent("tiny").reward(task, Work(task, answer=task.ground_truth["target"][0], calls=path))
    assert (reward, scores["path"], scores["correct_calls"]) == (1.0, 1.0, 4.0)


@pytest.mark.parametrize("state", ["closed", "paid"])
def test_tools_that_are_not_open_answer_with_an_error(folder, rows, state):
    async def ask():
        _, call = settings(folder)
        spec = next(tool for tool in World(3).tools if tool.description == f"director:{state}")
        said = await call(name=spec.name, arguments={"film": "Amber Harbor"})
        unknown = await call(name=json.loads(rows["val.parquet"][0]["reward_model"]["ground_truth"]["path"])[0]["name"])
        return said, unknown

    said, unknown = asyncio.run(ask())
    assert said == {"ok": False, "error": state, "kind": "tool_error"} and unknown["kind"] == "bad_arguments"
    assert prompts_tiny.outcome(said, 99) == f"error {state}" and prompts_tiny.outcome(unknown, 99) == "error bad"


def test_validation_asks_about_nothing_that_training_knows(rows):
    assert not {row["prompt"][0]["content"].split(":")[1] for row in rows["train.parquet"]} & {
        row["prompt"][0]["content"].split(":")[1] for row in rows["val.parquet"]
    }
    for kind in RELATIONS:
        assert not set(names_of("train")[kind]) & set(names_of("val")[kind])


def test_worlds_are_functions_of_the_seed_and_names_say_nothing():
    one, same, other = World(1), World(1), World(2)
    assert [t.name for t in one.tools] == [t.name for t in same.tools] and one.facts == same.facts
    assert one.useful != other.useful and len({t.name for t in one.tools}) == len(one.tools) == 216
    assert World(1, "val").useful == one.useful, "both splits have the same tools"


@pytest.mark.parametrize("wrong", [{"hops": []}, {"hops": [0]}, {"hops": [9]}, {"train_size": 0}])
def test_wrong_arguments_are_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="hops from 1 to 8, sizes from 1"):
        ensure(tmp_path, **wrong)
    with pytest.raises(ValueError, match="does not exist. Remedy: python verl_ext/worlds/tools.py"):
        facts(str(tmp_path / "facts.jsonl"))


# -- demonstrations ---------------------------------------------------------------------------------------------------


def text_of(segments):
    return "".join(text for text, _ in segments)


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_demonstrations_are_windows_that_the_grammar_reads(factor):
    teacher = tool_demos.Teacher(5)
    teacher._easy = 0
    kinds = set()
    for _ in range(200):
        prompt, segments = teacher.agent(tool_demos.scaled(factor))
        assert prompt[0]["content"].startswith("task: ")
        for text, trains in segments:
            step = grammar.read_step(text.removesuffix(tool_demos.END))
            assert trains == (not text.startswith(("<tool_search_result>", "<tool_call_result>")))
            if trains:
                assert step.kind in ("search", "call", "fold", "answer")
                assert (step.kind == "answer") == text.endswith(tool_demos.END)
                kinds.add(step.kind)
        assert segments[-1][1], "a window ends with what the agent says"
    assert kinds == {"search", "call", "fold", "answer"}


def test_right_demonstrations_make_no_errors_and_answer_rightly():
    rng = random.Random(1)
    for _ in range(100):
        world = tool_demos.Improvised(rng)
        chain = world.draw(tool_demos.WINDOW_HOPS)
        segments = tool_demos.Window(world, chain, 0, tool_demos.NO_HABITS, rng).play()
        assert "error" not in text_of(segments) and segments[-1][0] == f"{world.follow(chain)[-1].name}{tool_demos.END}"
        longer = world.draw(tool_demos.WINDOW_HOPS + 1)
        folded = tool_demos.Window(world, longer, 0, tool_demos.NO_HABITS, rng).play()
        assert (
            folded[-1] == ("<fold_thought>", True) and text_of(folded).count("</tool_call>") == tool_demos.WINDOW_HOPS
        )


def test_an_improvised_search_finds_what_the_real_one_would():
    """The same tools in a real catalogue under BM25: same order for precise and for vague queries."""
    from verl_ext.tools.catalogue.search.documents import passages
    from verl_ext.tools.retrieval import build_retriever

    world = tool_demos.Improvised(random.Random(2))
    specs = [
        tiny_tools.tool(name, kind, relation, state)
        for kind, own in RELATIONS.items()
        for relation in own
        for state, name in world.tools(kind, relation).items()
    ]
    real = build_retriever(passages(specs))
    for kind, own in RELATIONS.items():
        for relation in own:
            for query in (f"{relation}:{kind}", relation):
                found = [hit.passage.pid for hit in real.search([query], tool_demos.TOP_K)[0]]
                assert [document["name"] for document in world.search(query)] == found, query


def test_memories_are_valid_and_lead_on():
    teacher = tool_demos.Teacher(7)
    for kind in memories.KINDS:
        for _ in range(20):
            prompt, ((said, _),) = teacher.memory(kind)
            assert prompt[0]["content"].endswith("<fold_thought>"), "what is shortened ends as it does in the recipe"
            memory, problem = memories.read_memory(said.removesuffix(tool_demos.END), memories.COMPACT[kind])
            assert not problem and prompt[0]["content"].startswith(f"{kind}: ")
    world = tool_demos.Improvised(random.Random(3))
    chain = world.draw(4)
    goal = tool_demos.fold("working", world, chain, 2)["goal"]
    third = world.follow(chain)[2]
    assert goal == f"{third.kind}:{third.name}:{chain.relations[2]}:{chain.relations[3]}"
    assert isinstance(third, Thing)
