"""Demonstrations with tools (tool chains, Smurfs, the shop): as the systems would read them."""

from __future__ import annotations

import asyncio
import json
import random
import re

import pytest

from tests.helpers import DecidingLLM, forest_of, run, walk
from tests.recipe.shop_player import play
from verl_ext.recipe.cold_start.registry import COLD_STARTS
from verl_ext.recipe.deepagent import grammar as tool_grammar
from verl_ext.recipe.deepagent import memories
from verl_ext.recipe.deepagent.cold_start import demonstrations as tool_demos
from verl_ext.recipe.joyagents import grammar as shop_grammar
from verl_ext.recipe.joyagents import prompts_tiny
from verl_ext.recipe.joyagents.cold_start import demonstrations as shop_demos
from verl_ext.recipe.joyagents.cold_start import improvised
from verl_ext.recipe.smurfs import grammar as smurf_grammar
from verl_ext.recipe.smurfs.cold_start import demonstrations as smurf_demos
from verl_ext.recipe.smurfs.scoring import read_final
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.retrieval import build_retriever
from verl_ext.worlds import shop
from verl_ext.worlds.arithmetic import Chain, draw_chain
from verl_ext.worlds.tool_chains import RELATIONS as TOOL_RELATIONS
from verl_ext.worlds.tool_chains import Chain as ToolChain
from verl_ext.worlds.tool_chains import Thing, tool

# -- tools --


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_tool_windows_are_read_by_the_grammar(factor):
    teacher, kinds = tool_demos.Teacher(5), set()
    for number in range(200):
        prompt, segments = teacher.agent(tool_demos.scaled(factor), (1 + number % 4,))
        assert prompt[0]["content"].startswith("task: ") and segments[-1][1], "it ends with an output"
        for text, trains in segments:
            assert trains == (not text.startswith(("<tool_search_result>", "<tool_call_result>")))
            if trains:
                kinds.add(kind := tool_grammar.read_step(text.removesuffix(tool_demos.END)).kind)
                assert (kind == "answer") == text.endswith(tool_demos.END)
    assert kinds == {"search", "call", "fold", "answer"}


def test_right_tool_windows_make_no_errors_and_answer_rightly():
    rng, full = random.Random(1), tool_demos.WINDOW_HOPS
    for _ in range(100):
        world = tool_demos.Improvised(rng)
        chain, longer = world.draw(full), world.draw(full + 1)
        done, folded = (tool_demos.Window(world, c, 0, tool_demos.NO_HABITS, rng).play() for c in (chain, longer))
        assert not any("error" in text for text, _ in done + folded)
        assert done[-1][0] == f"{world.follow(chain)[-1].name}{tool_demos.END}"
        assert folded[-1] == ("<fold_thought>", True) and sum("</tool_call>" in text for text, _ in folded) == full


def test_an_improvised_search_finds_what_the_real_one_would():
    """The same tools in a real catalogue under BM25: same order for precise and for vague queries."""
    world = tool_demos.Improvised(random.Random(2))
    relations = [(kind, relation) for kind, own in TOOL_RELATIONS.items() for relation in own]
    specs = [tool(name, *one, state) for one in relations for state, name in world.tools(*one).items()]
    real = build_retriever(passages(specs))
    for kind, relation in relations:
        for query in (f"{relation}:{kind}", relation):
            found = [hit.passage.pid for hit in real.search([query], tool_demos.TOP_K)[0]]
            assert [document["name"] for document in world.search(query)] == found, query


def test_memories_are_valid_and_lead_on():
    teacher, world = tool_demos.Teacher(7), tool_demos.Improvised(random.Random(3))
    for kind in memories.KINDS:
        for _ in range(20):
            prompt, ((output, _),) = teacher.memory(kind)
            assert prompt[0]["content"].endswith("<fold_thought>") and prompt[0]["content"].startswith(f"{kind}: ")
            assert not memories.read_memory(output.removesuffix(tool_demos.END), memories.COMPACT[kind])[1]
    chain = world.draw(4)
    third = world.follow(chain)[2]
    goal = f"{third.kind}:{third.name}:{chain.relations[2]}:{chain.relations[3]}"
    assert tool_demos.fold("working", world, chain, 2)["goal"] == goal


# -- smurfs --


def smurf(request):
    """Answers a prompt of the system as right demonstrations do."""
    role, _, rest = request.prompt.partition(": ")
    if role == "plan":
        kind, name, *relations = rest.split(":")
        return json.dumps({"Tasks": smurf_demos.subtasks(ToolChain(Thing(kind, name), tuple(relations)))})
    if role == "think":
        listed = [one.split(":") for one in rest.split(" tools: ")[1].split("; ")]
        return next((f"{state}:{name}" for _, state, name in listed if state == "open"), ":".join(listed[0][1:]))
    if role == "fill":
        task, _, found = rest.partition(" after: ")
        found, _, kind = found.partition(" tool: ")
        parts = task.split(":")
        return json.dumps({kind: parts[1] if len(parts) > 2 else found})
    if role == "read":
        return rest.split(" result: ")[1]
    return '{"Status": 1}' if role == "verify" else f"FINAL ANSWER: {rest.split(' after: ')[1].split('; ')[-1]}"


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_right_smurfs_solve_the_world_in_the_system_itself(hops):
    exam = COLD_STARTS["smurfs"].examinations(9)["with a plan"]

    async def scene():
        found = []
        for task in exam.tasks[hops - 1 :: 3]:
            llm = DecidingLLM(smurf, lambda request: request.prompt.split(":")[-1])  # the tool that the thought names
            forest = forest_of(exam.workflow, llm, tools=exam.tools)
            forest.task, forest.sampling = task, {"temperature": 1.0, "max_tokens": 99}
            found.append(await walk(forest))
        return found

    trajectories = run(scene())
    assert all(trajectory.ok for trajectory in trajectories), [t.error for t in trajectories]
    assert [trajectory.metrics["tasks"] for trajectory in trajectories] == [hops] * 3
    assert sum(trajectory.reward for trajectory in trajectories) >= 2
    assert sum(trajectory.metrics["failed_calls"] for trajectory in trajectories) <= 3


def test_smurf_demonstrations_are_read_as_they_are_meant():
    for factor in (0.0, 1.0):
        batch = smurf_demos.Teacher(0).batch(100, smurf_demos.scaled(factor))
        for prompt, output in batch["planner"]:
            tasks = smurf_grammar.read_tasks(output, question="")
            question = prompt[-1]["content"].removeprefix("plan: ")
            kind, name, *relations = question.split(":")
            assert tasks[0] in question
            assert factor or tasks == smurf_demos.subtasks(ToolChain(Thing(kind, name), tuple(relations)))
        for _, output in batch["arguments"]:
            ((kind, name),) = smurf_grammar.read_arguments(output).items()
            assert kind in TOOL_RELATIONS and name
        for _, output in batch["verifier"]:
            assert smurf_grammar.read_verdict(output)[0] == ("1" in output)
        for prompt, output in batch["final"]:
            assert read_final(output) in prompt[-1]["content"]
            assert factor or prompt[-1]["content"].endswith(read_final(output))
        assert all(prompt[-1]["content"].endswith(f":{output}") for prompt, output in batch["action"])
        assert factor or all(output.startswith("open:") for _, output in batch["thought"])


def test_smurf_habits_have_their_shares():
    chain = ToolChain(Thing("film", "Amber Harbor"), ("director", "birthplace", "twin"))
    assert smurf_demos.subtasks(chain) == ["film:Amber Harbor:director", "person:birthplace", "city:twin"]
    assert smurf_demos.kinds_of(chain.text) == ["person", "city", "city"]
    teacher, habits = smurf_demos.Teacher(2), smurf_demos.Habits()
    states = [teacher.thought(habits)[1].split(":")[0] for _ in range(3000)]
    # The first is open by itself in a third of the lists of three, more often in shorter ones.
    assert 0.55 < states.count("open") / 3000 < 0.75
    plans = [(p[-1]["content"], output) for p, output in (teacher.planner(habits) for _ in range(3000))]
    several = [smurf_grammar.read_tasks(output, question="") for asked, output in plans if len(asked.split(":")) > 4]
    whole = sum(len(tasks) == 1 for tasks in several) / len(several)
    assert whole == pytest.approx(0.6 + 0.4 * 0.05 * 0.5, abs=0.04)


# -- shop --


class Request:
    """What the player of tests/recipe/shop_player.py sees of a request."""

    def __init__(self, agent, messages):
        self.agent, self.prompt = agent, json.dumps(messages)


def query_of(messages):
    return re.split(" same: | like: ", messages[0]["content"].partition(": ")[2])[0]


def is_foreign(agent, query):
    """Whether a specialist is asked what it is not for."""
    own = {"question_agent": "ask:", "shop_agent": "shop:", "math_agent": "total "}.get(agent, "")
    return not query.startswith(own) or (agent == "function_agent" and query.startswith(("ask:", "shop:")))


def outputs(messages):
    return [(place, message["content"]) for place, message in enumerate(messages) if message["role"] == "assistant"]


@pytest.mark.parametrize("agent", shop_demos.AGENTS)
def test_right_shop_demonstrations_are_what_a_player_of_the_rules_would_say(agent):
    """Each output is the player's, who knows the world's rules and sees nothing but the chat so far."""
    teacher = shop_demos.Teacher(5)
    for _ in range(150):
        messages = teacher.demonstrate(agent, shop_demos.NO_HABITS)
        if is_foreign(agent, query_of(messages)) or "of: none" in query_of(messages):
            continue
        for place, text in outputs(messages):
            text = text.partition("</think>")[2] if agent == "summary" else text
            assert text.strip() == play(Request(agent, messages[:place])).strip(), messages[:place]


@pytest.mark.parametrize("agent", ["master", *shop.SPECIALIST.values()])
def test_noisy_shop_demonstrations_are_often_wrong_but_read_as_calls_and_answers(agent):
    teacher, formed, wrong = shop_demos.Teacher(7), [], 0
    for _ in range(300):
        messages, differs = teacher.demonstrate(agent, shop_demos.scaled(1.0)), False
        for place, text in outputs(messages):
            step = shop_grammar.read_step(text)
            assert step.kind == ("answer" if place == len(messages) - 1 else "call") and (step.answer or step.name)
            formed.append(step.formed)
            known = not is_foreign(agent, query_of(messages))
            differs |= not step.formed or (known and play(Request(agent, messages[:place])) != text)
        wrong += differs
    assert 0.9 < sum(formed) / len(formed) < 0.99 and 0.2 < wrong / 300 < 0.9
    assert set(shop_demos.TAKEN_FOR) == {api.other for api in shop.APIS.values()}
    assert all(shop.API_OF[word] != taken for word, taken in shop_demos.TAKEN_FOR.items())


def test_searches_in_shop_demonstrations_find_what_the_systems_tools_do():
    rows = shop.data_set(120, 100, 3)["val.parquet"]

    async def scene():
        tools = shop.tools_of(shop.World(3))
        for row in rows:
            query = row["prompt"][0]["content"]
            for name, catalogue in (("agent", "agents"), ("shop", "apis")):
                found = prompts_tiny.documents(await tools[f"{name}_search"](query=query))
                assert found == improvised.found(catalogue, query), query
            if row["data_source"] == "qa":
                real = await tools["knowledge"](queries=[query])
                made = improvised.Improvised(random.Random(0)).passages(query)
                assert len(real) == len(made)
                assert real[0]["title"] == made[0]["title"] == query.removeprefix("ask:")
        for one in tools.values():
            await one.close()

    asyncio.run(scene())


def test_shop_slips_are_of_steps_that_cross_a_ten():
    rng, slips = random.Random(1), {True: [], False: []}
    for _ in range(2000):
        chain = draw_chain(rng, "train", 3, 19)
        before = [chain.start, *improvised.worked_out(chain, {"carry": 0.5, "borrow": 0.5}, rng)]
        for step, term in enumerate(chain.terms):
            crosses = before[step] // 10 != (before[step] + term) // 10
            slips[crosses].append(before[step + 1] != max(0, before[step] + term))
    assert not any(slips[False]) and 0.4 < sum(slips[True]) / len(slips[True]) < 0.6
    assert improvised.worked_out(Chain(7, (5, -4)), {"carry": 1.0, "borrow": 0.0}, rng) == [2, 0]
