"""Demonstrations of the Smurfs: right ones solve the tiny tool world in the system itself; habits have their shares."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.helpers import FakeLLM
from verl_ext.mas.forest import Forest
from verl_ext.mas.types import Completion, Generation
from verl_ext.recipe.cold_start.registry import COLD_STARTS
from verl_ext.recipe.cold_start.train import build_tokenizer
from verl_ext.recipe.smurfs import grammar
from verl_ext.recipe.smurfs.cold_start.demonstrations import Habits, Teacher, kinds_of, marks, scaled, subtasks, words
from verl_ext.recipe.smurfs.scoring import read_final
from verl_ext.sampling import run_once
from verl_ext.worlds import tools as tiny_tools
from verl_ext.worlds.tools import Chain, Thing

CHAIN = Chain(Thing("film", "Amber Harbor"), ("director", "birthplace", "twin"))


def test_sub_tasks_by_hand():
    assert subtasks(CHAIN) == ["film:Amber Harbor:director", "person:birthplace", "city:twin"]
    assert kinds_of(CHAIN.text) == ["person", "city", "city"] and kinds_of("person:birthplace") == ["city"]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_right_outputs_solve_the_world(hops):
    """The system's own prompts, answered as the demonstrations answer theirs."""
    exam = COLD_STARTS["smurfs"].examinations(9)["with a plan"]

    def answer(request):
        role, _, rest = request.prompt.partition(": ")
        if role == "plan":
            kind, name, *relations = rest.split(":")
            tasks = '", "'.join(subtasks(Chain(Thing(kind, name), tuple(relations))))
            return f'{{"Tasks": ["{tasks}"]}}'
        if role == "think":
            listed = [one.split(":") for one in rest.split(" tools: ")[1].split("; ")]
            return next((f"{state}:{name}" for _, state, name in listed if state == "open"), ":".join(listed[0][1:]))
        if role == "fill":
            task, _, found = rest.partition(" after: ")
            found, _, kind = found.partition(" tool: ")
            parts = task.split(":")
            return f'{{"{kind}": "{parts[1] if len(parts) > 2 else found}"}}'
        if role == "read":
            return rest.split(" result: ")[1]
        if role == "verify":
            return '{"Status": 1}'
        return f"FINAL ANSWER: {rest.split(' after: ')[1].split('; ')[-1]}"

    class Team(FakeLLM):
        async def complete(self, messages, prompt_ids, sampling, key):
            if "choices" in sampling:
                self.wanted = messages[-1]["content"].split(":")[-1]
                assert self.wanted in sampling["choices"]
                made = Generation([*self.wanted.encode(), 0], [0.0] * (len(self.wanted) + 1))
                return Completion(self.wanted, made, 1, 1)
            return await super().complete(messages, prompt_ids, sampling, key)

    async def scene():
        forests = []
        for task in exam.tasks[hops - 1 :: 3]:
            forest = Forest(task, exam.workflow, Team(answer), exam.tools, name=str(task.index))
            forest.sampling = {"temperature": 1.0, "max_tokens": 99}
            await run_once(forest)
            forests.append(forest)
        return [forest.trajectories[0] for forest in forests]

    trajectories = asyncio.run(scene())
    assert all(trajectory.ok for trajectory in trajectories), [t.error for t in trajectories]
    assert [trajectory.metrics["tasks"] for trajectory in trajectories] == [hops] * 3
    assert sum(trajectory.reward for trajectory in trajectories) >= 2
    assert sum(trajectory.metrics["failed_calls"] for trajectory in trajectories) <= 3


def test_every_demonstration_is_read_as_it_is_meant():
    teacher = Teacher(0)
    for _ in range(30):
        batch = teacher.batch(4, Habits())
        for prompt, said in batch["planner"]:
            assert grammar.read_tasks(said, question="")[0] in prompt[-1]["content"]
        for _, said in batch["arguments"]:
            ((kind, name),) = grammar.read_arguments(said).items()
            assert kind in tiny_tools.RELATIONS and name
        for _, said in batch["verifier"]:
            assert grammar.read_verdict(said)[0] == ("1" in said)
        for prompt, said in batch["final"]:
            assert read_final(said) in prompt[-1]["content"]
        for prompt, said in batch["action"]:
            assert prompt[-1]["content"].endswith(f":{said}")


def test_without_habits_everything_is_right():
    teacher, right = Teacher(1), scaled(0.0)
    for _ in range(50):
        batch = teacher.batch(2, right)
        for prompt, said in batch["planner"]:
            kind, name, *relations = prompt[-1]["content"].removeprefix("plan: ").split(":")
            assert grammar.read_tasks(said, question="") == subtasks(Chain(Thing(kind, name), tuple(relations)))
        assert all(said.startswith("open:") for _, said in batch["thought"])
        for prompt, said in batch["final"]:
            assert prompt[-1]["content"].endswith(read_final(said))


def test_habits_have_their_shares():
    teacher = Teacher(2)
    said = [teacher.thought(Habits())[1].split(":")[0] for _ in range(3000)]
    # The first is open by itself in a third of the lists of three, more often in shorter ones.
    assert 0.55 < said.count("open") / 3000 < 0.75
    plans = [teacher.planner(Habits()) for _ in range(3000)]
    several = [(p, s) for p, s in plans if len(p[-1]["content"].split(":")) > 4]
    whole = sum(len(grammar.read_tasks(s, question="")) == 1 for _, s in several) / len(several)
    assert whole == pytest.approx(0.6 + 0.4 * 0.05 * 0.5, abs=0.04)


def test_every_word_has_a_token():
    tokenizer = build_tokenizer([], [*marks(), *words()])
    rng, teacher = random.Random(0), Teacher(3)
    for examples in teacher.batch(20, Habits()).values():
        prompt, said = rng.choice(examples)
        text = prompt[-1]["content"]
        assert len(tokenizer.tokenize(text)) < 60 and len(tokenizer.tokenize(said)) < 24, (text, said)
