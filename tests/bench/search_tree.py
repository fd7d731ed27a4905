"""(q) What a search over tools costs besides its model: Smurfs on the tiny tool world, one thread, CPU time.

The same questions twice: with the tiny model under our engine, and with its answers out of a dictionary. What is left
is workflow, forest of calls, catalogue, tools and search. The search's own bookkeeping is measured alone, on a search
that never succeeds.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_ext.mas.forest import Forest
from verl_ext.mas.types import Completion
from verl_ext.plugin import package_path
from verl_ext.recipe.cold_start.evaluate import ModelLLM
from verl_ext.recipe.cold_start.registry import COLD_STARTS
from verl_ext.recipe.smurfs.search import Element, Search
from verl_ext.sampling import run_once

QUESTIONS, REPEATS, TOKENS = 128, 3, 48
# A search that never succeeds: every tool errs at even depths, and goes on at odd ones.
TOOLS, CALLS, DEPTH = 16, 100_000, 4


class Answers:
    """A model's answers by what they answer: with `model`, those that are missing are asked of it.

    Everything else is the model's.
    """

    def __init__(self, model: ModelLLM):
        self.model, self.kept = model, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def complete(self, messages: Any, prompt_ids: Any, sampling: Any, key: tuple[str, ...]) -> Completion:
        """See `LLM.complete`."""
        if key not in self.kept:
            self.kept[key] = await self.model.complete(messages, prompt_ids, sampling, key)
        return self.kept[key]


def work(llm: Any, questions: int) -> tuple[float, list[Forest]]:
    """(CPU seconds, forests) of the untrained system, sampled."""
    examination = COLD_STARTS["smurfs"].examinations(questions)["with a plan"]
    sampling = {"temperature": 1.0, "max_tokens": TOKENS}
    forests = [
        Forest(task, examination.workflow, llm, examination.tools, seed=task.index, sampling=sampling, name=f"{i}")
        for i, task in enumerate(examination.tasks)
    ]

    async def all_at_once() -> None:
        await asyncio.gather(*map(run_once, forests))

    start = time.process_time()
    asyncio.run(all_at_once())
    return time.process_time() - start, forests


def bookkeeping(calls: int = CALLS) -> float:
    """CPU seconds per tool call of the search alone, rollbacks included."""
    search = Search([f"tool_{number}" for number in range(TOOLS)], calls, DEPTH)
    start = time.process_time()
    while search.open:
        name = search.open[0]
        if search.depth % 2:
            search.go_on(Element(name, "", ""))
        else:
            search.fail(name) if len(search.open) > 1 else search.go_on(Element(name, "", ""))
    return (time.process_time() - start) / search.calls


def run(questions: int = QUESTIONS, repeats: int = REPEATS) -> list[str]:
    """Lines."""
    torch.set_num_threads(1)
    folder = package_path("recipe/smurfs/assets/tiny_model")
    llm = ModelLLM(AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder))
    try:
        with_model = min(work(Answers(llm), questions)[0] for _ in range(repeats))
        told = Answers(llm)
        work(told, questions)
        without, forests = min((work(told, questions) for _ in range(repeats)), key=lambda one: one[0])
    finally:
        llm.loop.close()
    done = [trajectory for forest in forests for trajectory in forest.trajectories if trajectory.ok]
    assert len(done) == questions, "a trajectory has failed"
    outputs = sum(len(trajectory.calls) for trajectory in done)
    calls = int(sum(trajectory.metrics["tool_calls"] for trajectory in done))
    alone = bookkeeping()
    return [
        f"  {questions} questions, {outputs:,} outputs, {calls:,} tool calls with the model: "
        f"{1000 * with_model / outputs:.2f} ms an output",
        f"  without it: {1000 * without / outputs:.2f} ms an output, {without / with_model:.2f} of all",
        f"  the search alone: {1e6 * alone:.1f} µs a tool call, {calls * alone / with_model:.5f} of all",
    ]


if __name__ == "__main__":
    print("\n".join(run()))
