"""How orchestrator and puppets work on a task: chains, a tree or a graph of steps (Puppeteer, Sections 2.1 and 3.3).

chains   `width` sequences that share nothing but the task; in each step of one a single puppet acts
tree     a step may choose several puppets; each goes on in a branch of its own, `width` branches at most
graph    a step may choose up to `width` puppets, which act side by side; the next step sees what all of them said
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl_ext.mas import CallFailed, Status, Task
from verl_ext.recipe.deepagent.grammar import after_thoughts
from verl_ext.recipe.puppeteer.orders import Order
from verl_ext.recipe.puppeteer.puppets import ACT, TERMINATE, TOOLS, State, Step, pattern_of, read_result, use_tool

ORCHESTRATOR = "orchestrator"
TOPOLOGIES = CHAINS, TREE, GRAPH = "chains", "tree", "graph"


@dataclass(frozen=True)
class Explorer:
    """The rules of an exploration: the arguments of `Puppeteer` of the same names.

    Attributes:
        order: who acts next without learning; None: the orchestrator decides.
        several: a step may choose several puppets.
    """

    pool: tuple[str, ...]
    depth: int
    width: int
    topology: str
    token_budget: int
    max_result_chars: int
    order: Order | None
    several: bool

    async def explore(self, ctx: Any, task: Task, whole: bool) -> list[State]:
        """All final states, first to last: one per chain or branch."""
        if self.topology == CHAINS and self.width > 1:
            chains = [
                ctx.branch(f"path{i}", self._go_on, task, State(task.question), 1, whole) for i in range(self.width)
            ]
            return [state for states in await asyncio.gather(*chains) for state in states]
        return await self._go_on(ctx, task, State(task.question), self.width, whole)

    async def _go_on(self, ctx: Any, task: Task, state: State, width: int, whole: bool) -> list[State]:
        """From this state to the end: a_t ~ π(S_t, τ), o_t = f(S_t), S_{t+1} = Φ(S_t, o_t).

        Args:
            width: branches that may come of this one, or puppets that may act in a step.
        """
        while state.length < self.depth and not (self.token_budget and state.tokens >= self.token_budget):
            chosen = await self._choose(ctx, task, state, width if self.several else 1)
            if not chosen:
                state.ended = True
                break
            if len(chosen) > 1 and self.topology == TREE:
                return await self._split(ctx, task, state, chosen, width, whole)
            await self._act(ctx, chosen, state, whole)
        return [state]

    async def _choose(self, ctx: Any, task: Task, state: State, most: int) -> list[str]:
        """The puppets of the next step, one decision after the other; none: to terminate."""
        state.chosen = []
        while len(state.chosen) < min(most, len(self.pool)):
            end = ACT if state.chosen else TERMINATE
            name = await self._next(ctx, task, state, [*(n for n in self.pool if n not in state.chosen), end])
            if name == end:
                break
            state.chosen.append(name)
        chosen, state.chosen = state.chosen, []
        return chosen

    async def _next(self, ctx: Any, task: Task, state: State, names: list[str]) -> str:
        """Who acts next. The choice is made on a copy: a prompt is kept, the state goes on."""
        if self.order is not None:
            return self.order(state, names, ctx, task)
        try:
            left = self.depth - state.length
            name = await ctx.call(ORCHESTRATOR, state=state.copy(), names=names, left=left)
        except CallFailed as error:
            return _ending(error, names[-1])
        state.count(ctx.last)
        return name

    async def _act(self, ctx: Any, chosen: Sequence[str], state: State, whole: bool) -> None:
        """Let puppets act side by side on the same state; then it holds what all of them said."""
        before, at = state.copy(), state.length + 1
        if len(chosen) == 1:
            steps = [await self._step(ctx, chosen[0], before, state, whole)]
        else:
            work = [ctx.branch(name, self._step, name, before, state, whole) for name in chosen]
            steps = await asyncio.gather(*work)
        state.steps += [replace(step, at=at) for step in steps]

    async def _step(self, ctx: Any, name: str, before: State, state: State, whole: bool) -> Step:
        """What a puppet does in the state `before`; its call is counted in `state`."""
        try:
            text = after_thoughts(await ctx.call(name, state=before.copy()))
        except CallFailed as error:
            return _ending(error, Step(name, "error: too much has been said to go on", failed=True))
        state.count(ctx.last, puppet=True)
        if pattern_of(name) in TOOLS:
            return await use_tool(ctx, name, text, self.max_result_chars)
        result, answer = read_result(text, whole, cut=ctx.last.status is Status.TRUNCATED)
        return Step(name, result, answer)

    async def _split(
        self, ctx: Any, task: Task, state: State, chosen: Sequence[str], width: int, whole: bool
    ) -> list[State]:
        """Each chosen puppet goes on in a branch, with its share of `width`. The first goes on counting the tokens."""
        share, more = divmod(width, len(chosen))
        work = []
        for place, name in enumerate(chosen):
            own = state.copy() if place == 0 else replace(state.copy(), tokens=0, calls=0)
            work.append(ctx.branch(name, self._from, task, own, name, share + (place < more), whole))
        return [state for states in await asyncio.gather(*work) for state in states]

    async def _from(self, ctx: Any, task: Task, state: State, name: str, width: int, whole: bool) -> list[State]:
        await self._act(ctx, [name], state, whole)
        return await self._go_on(ctx, task, state, width, whole)


def _ending(error: CallFailed, instead: Any) -> Any:
    """What takes the place of a call that the state made impossible; other failures are the engine's, and raised."""
    if error.status in (Status.PROMPT_TOO_LONG, Status.UNPARSABLE):
        return instead
    raise error


def edges(states: Sequence[State]) -> tuple[set[str], set[tuple[str, str]]]:
    """The graph of an episode: who acted, and who acted right after whom, in any of its chains or branches.

    Every puppet of a step follows every puppet of the step before, whose words it has read.
    """
    found: set[tuple[str, str]] = set()
    for state in states:
        for at in range(1, state.length):
            before, after = ([s.puppet for s in state.steps if s.at == number] for number in (at, at + 1))
            found |= {(one, other) for one in before for other in after}
    return {step.puppet for state in states for step in state.steps}, found
