"""Random workflows: programs of calls, tools, loops, branches, nested systems, early ends and randomness."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from hypothesis import strategies as st

from tests.helpers import Script
from verl_ext.mas import Task

AGENTS = "abc"
calls = st.tuples(st.just("call"), st.sampled_from(AGENTS))
simple = st.one_of(calls, st.just(("tool",)), st.just(("rng",)), st.tuples(st.just("stop"), st.sampled_from(AGENTS)))


def _nest(steps: st.SearchStrategy) -> st.SearchStrategy:
    block = st.lists(steps, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("loop"), block),
        st.tuples(st.just("nested"), block),
        st.tuples(st.just("branches"), st.lists(block, min_size=2, max_size=3)),
    )


def most_calls(steps: list[Any]) -> int:
    """Calls of a program in which no loop ends early."""
    total = 0
    for kind, *argument in steps:
        if kind in ("call", "stop"):
            total += 1
        elif kind in ("loop", "nested"):
            total += (3 if kind == "loop" else 1) * most_calls(argument[0])
        elif kind == "branches":
            total += sum(map(most_calls, argument[0]))
    return total


programs = st.lists(st.recursive(simple, _nest, max_leaves=8), min_size=1, max_size=4)
# Those that a strategy can fork at every call in a blink.
short_programs = programs.filter(lambda steps: most_calls(steps) <= 12)


def number(text: str) -> int:
    """A number from a text, for decisions."""
    return int(hashlib.sha1(text.encode()).hexdigest(), 16)


async def execute(steps: list[Any], ctx: Any, state: str) -> str:
    """Run a program. Every prompt holds a digest of all that came before, so that any deviation shows in it."""
    for step in steps:
        if state.endswith("!"):
            return state
        kind, argument = step[0], step[1:]
        if kind in ("call", "stop"):
            said = await ctx.call(argument[0], state=state)
            state = f"{number(state + said) % 10**9}"
            if kind == "stop" and number(said) % 2:
                return state + "!"
        elif kind == "tool":
            state = f"{number(state + await ctx.tool('count', state=state)) % 10**9}"
        elif kind == "rng":
            state = f"{state}+{ctx.rng.randrange(100)}"
        elif kind == "nested":
            inner = Script(lambda task, child, block=argument[0]: execute(block, child, task.question))
            state = await ctx.run(inner, Task(state))
        elif kind == "loop":
            for turn in range(3):
                state = await execute(argument[0], ctx, state)
                if state.endswith("!") or number(f"{turn}{state}") % 3 == 0:
                    break
        else:
            ends = [ctx.branch(f"b{i}", _branch, block, state) for i, block in enumerate(argument[0])]
            state = ",".join(await asyncio.gather(*ends)).replace("!", "")
    return state


async def _branch(ctx: Any, block: list[Any], state: str) -> str:
    return await execute(block, ctx, state)


def workflow_of(program: list[Any]) -> Script:
    """The program as a workflow."""
    return Script(lambda task, ctx: execute(program, ctx, task.question), AGENTS)


class CountingTool:
    """Each execution gives another result, after a while."""

    def __init__(self, delay: Any):
        self.results: list[str] = []
        self.delay = delay

    async def __call__(self, state: str) -> str:
        result = f"tool{len(self.results)}"
        self.results.append(result)
        await asyncio.sleep(self.delay(state))
        return result
