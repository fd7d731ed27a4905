"""Workflows and a tool for evaluations against a server of the tests."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

from verl_ext.mas import Agent, CallFailed, Unparsable, Workflow
from verl_ext.rewards.qa import qa_scores


def ask(question, **_):
    return [{"role": "user", "content": question}]


def one_word(text, **_):
    if len(text.split()) > 1:
        raise Unparsable("one word was asked for")
    return text


class Solver(Workflow):
    """One question, one call."""

    agents = {"solver": Agent(ask)}
    headline = "f1"

    async def run(self, task, ctx):
        return await ctx.call("solver", question=task.question)

    def reward(self, task, result):
        scores = qa_scores(result, list(task.ground_truth["target"]))
        return scores["f1"], scores


class Broken(Solver):
    """Its reward raises."""

    def reward(self, task, result):
        raise KeyError("no such field")


class Plain(Solver):
    """Its reward reports nothing beside itself, and its run fails where it is asked to."""

    headline = "reward"

    async def run(self, task, ctx):
        if "fail" in task.question:
            raise KeyError("no such field")
        return await super().run(task, ctx)

    def reward(self, task, result):
        return super().reward(task, result)[0], {}


class Team(Solver):
    """Two branches, of which one may fail, then a judge; documents from a tool, the first of which is chosen."""

    agents = {"left": Agent(ask), "right": Agent(ask, one_word), "judge": Agent(ask)}

    async def run(self, task, ctx):
        docs = await ctx.tool("library", question=task.question)
        ctx.note("chosen", docs[:1])

        async def side(child, agent):
            try:
                return await child.call(agent, question=f"{agent} {task.question}")
            except CallFailed:
                return "nothing"

        await asyncio.gather(ctx.branch("l", side, "left"), ctx.branch("r", side, "right"))
        return await ctx.call("judge", question=task.question)


class Library:
    """A tool: two documents for every question. Not one of ours: `close` is a plain function."""

    closed = 0

    async def __call__(self, question):
        return [{"pid": "1", "title": "Alpha", "text": "a"}, {"pid": "2", "title": "Béta", "text": "b"}]

    def close(self):
        Library.closed += 1


class Blocking:
    """A tool that blocks the event loop. Ctrl-C is pressed meanwhile, once."""

    ended = False

    async def __call__(self, question):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(20)
        Blocking.ended = True
        return []
