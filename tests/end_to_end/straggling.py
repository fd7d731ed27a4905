"""The search system with two questions of which one trajectory does not end, and what is left where a step cuts them.

The process of the trainer and the rollouts imports this module as that of the workflow. Tests read its files:

    begun.jsonl   the index of each question as its first trajectory begins
    tools.jsonl   a line for each call of the tool that was cancelled
    cut.jsonl     a line per step, before the engine sleeps: its requests aborted so far, under way and waiting; the
                  number of questions in the queue
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq

from verl_ext.engine.hf.replica import server_handles
from verl_ext.mas import Agent, Task
from verl_ext.recipe.mhgpo import SearchQA
from verl_ext.storage.jsonl import read_log
from verl_ext.tools.retrieval import SearchTool
from verl_ext.tools.retrieval.search import search_tool
from verl_ext.trainer.first_to_end import FirstToEnd

BEGUN, TOOLS, CUT = Path("begun.jsonl"), Path("tools.jsonl"), Path("cut.jsonl")
# What the tool is asked that does not answer.
NEVER = "never"
# How often a straggler straggles.
TIMES = 3


def write(file: Path, **line: Any) -> None:
    """Add a line of JSON."""
    with open(file, "a") as opened:
        opened.write(json.dumps(line) + "\n")


class Stragglers(SearchQA):
    """Of the first two questions that a run begins, one trajectory waits for a tool, or asks the engine for ever."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.runs: dict[int, int] = {}
        talker = Agent(lambda question: [{"role": "user", "content": question}], trained=False)
        talker.sampling.update(max_tokens=400, ignore_eos=True)
        self.agents["talker"] = talker

    async def run(self, task: Task, ctx: Any) -> str:
        self.runs[id(task)] = number = self.runs.get(id(task), 0) + 1
        if number == 1:
            write(BEGUN, index=task.index)
        begun = [line["index"] for line in read_log(BEGUN)]
        result = await super().run(task, ctx)
        stragglers = list(dict.fromkeys(begun))[:2]
        if number == 3 and task.index in stragglers and begun.count(task.index) <= TIMES:
            while task.index == stragglers[0]:
                await ctx.call("talker", question=task.question)
            await ctx.tool("search", queries=[NEVER])
        return result


class Waiting(SearchTool):
    """The search tool. It never answers NEVER."""

    async def __call__(self, queries: list[str]) -> list[dict[str, str]]:  # type: ignore[override]
        if NEVER not in queries:
            return await super().__call__(queries)
        try:
            await asyncio.sleep(3600)
        finally:
            write(TOOLS, cancelled=True)
        return []


def search(**settings: Any) -> SearchTool:
    """The search tool of a recipe."""
    tool = search_tool(**settings)
    tool.__class__ = Waiting
    return tool


_cut = FirstToEnd._cut


def _watched(self: Any) -> None:
    _cut(self)
    stats = [ray.get(server.stats.remote()) for server in server_handles()]
    engine = {name: sum(one[name] for one in stats) for name in ("aborted", "active", "waiting")}
    keys = sorted(tq.kv_list("train").get("train", {}))
    write(CUT, step=self.global_steps, questions=len({key.partition("_")[0] for key in keys}), **engine)


FirstToEnd._cut = _watched  # type: ignore[method-assign]
