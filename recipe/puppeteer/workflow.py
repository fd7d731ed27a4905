"""Puppeteer: at each step an orchestrator chooses who of a pool acts next, until it ends the work or a budget does.

Source: "Multi-Agent Collaboration via Evolving Orchestration", Section 2.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from verl_ext.mas import Agent, CallFailed, Status, Task, Workflow
from verl_ext.mas.options import at_least, one_of
from verl_ext.mas.prompts import prompts_of
from verl_ext.recipe.puppeteer import orders, prompts, prompts_tiny, scoring
from verl_ext.recipe.puppeteer.puppets import POOL, TERMINATE, TOOLS, State, Step, read_result, use_tool
from verl_ext.tools.catalogue.render import neutral

PROMPTS = {"faithful": prompts, "tiny": prompts_tiny}
ORCHESTRATOR, JUDGE = "orchestrator", "judge"
LEARNED = "learned"
ORCHESTRATIONS = (LEARNED, "random", "fixed", "oracle")


@dataclass(frozen=True)
class Outcome:
    """What the explorations came to: the answer of their vote, and their states."""

    answer: str
    states: tuple[State, ...]
    quality: float | None = None


class Puppeteer(Workflow):
    """An orchestrator and a pool of puppets.

    Args:
        prompts: faithful, for instruction-tuned models; tiny, for the embedded one; or a YAML file (`mas/prompts.py`).
        pool: names of the puppets: reasoning patterns (planning, reasoning, critique, reflect, question, summarize,
            conclude, modify) and tool agents (read_file, run_python, web_search, access_website, search_arxiv; each
            needs the tool of its name under `mas.tools`). `terminate` is always there.
        depth: steps of an exploration, at most; the paper's 4.
        width: parallel explorations, whose answers are put to the vote; the paper's are up to 3.
        token_budget: generated tokens after which an exploration ends; 0: none.
        train_agents: False: decisions alone are trained, as in the paper. True: what the puppets say, too.
        orchestration: learned, or who acts next without learning: random, fixed (`order`), oracle (`extra_info.path`).
        order: of `fixed`.
        max_result_chars: what a step shows of a tool's result.
        judge: an agent `judge` rates the texts of open tasks (CommonGen-Hard); their reward is coverage times rating.

    Raises:
        ValueError: an argument out of range.
    """

    headline = "accuracy"
    details = ("tokens", "agents", "steps", "terminated", "answered", "agreement", "tool_failures")
    no_trained_agents_hint = (
        "Of mas.workflow.orchestration only `learned` learns; the others can be measured: verl_ext evaluate "
        "with the same overrides"
    )

    def __init__(
        self,
        prompts: str = "faithful",
        pool: Sequence[str] = ("planning", "reasoning", "critique", "reflect", "conclude", "run_python"),
        depth: int = 4,
        width: int = 1,
        token_budget: int = 0,
        train_agents: bool = False,
        orchestration: str = LEARNED,
        order: Sequence[str] = (),
        max_result_chars: int = 2000,
        judge: bool = False,
    ):
        _check_pool(pool)
        at_least(1, depth=depth, width=width, max_result_chars=max_result_chars)
        at_least(0, token_budget=token_budget)
        _check_order(pool, depth, orchestration, order)
        self.prompts = prompts_of(prompts, PROMPTS)
        self.pool, self.depth, self.width = tuple(pool), depth, width
        self.token_budget, self.max_result_chars, self.rated = token_budget, max_result_chars, judge
        self.order: orders.Order | None = {
            LEARNED: None,
            "random": orders.at_random,
            "fixed": orders.fixed(list(order)),
            "oracle": orders.oracle,
        }[orchestration]
        self.agents = {}
        if self.order is None:
            self.agents[ORCHESTRATOR] = Agent(self.prompts.orchestrator, choices=lambda state, names, left: names)
        for name in self.pool:
            self.agents[name] = Agent(partial(self.prompts.puppet, name), trained=train_agents)
        if judge:
            self.agents[JUDGE] = Agent(self.prompts.judge, trained=False)
        self.needs = [name for name in self.pool if name in TOOLS]
        self.left_out = [name for name in (ORCHESTRATOR, JUDGE, *POOL) if name not in self.agents]

    async def run(self, task: Task, ctx: Any) -> Outcome:
        """Explore, and vote."""
        if self.width == 1:
            states = [await self.explore(ctx, task)]
        else:
            branches = [ctx.branch(f"path{i}", self.explore, task) for i in range(self.width)]
            states = list(await asyncio.gather(*branches))
        answer = scoring.majority(task.data_source, [state.answer for state in states])
        quality = await self._judge(ctx, task, answer) if self.rated and answer else None
        return Outcome(answer, tuple(states), quality)

    async def explore(self, ctx: Any, task: Task) -> State:
        """One exploration: a_t ~ π(S_t, τ), o_t = f(S_t), S_{t+1} = Φ(S_t, o_t)."""
        state = State(task.question)
        names = [*self.pool, TERMINATE]
        for taken in range(self.depth):
            name = await self._next(ctx, task, state, names, self.depth - taken)
            if name == TERMINATE:
                state.ended = True
                break
            state.steps.append(await self._act(ctx, name, state))
            if self.token_budget and state.tokens >= self.token_budget:
                break
        return state

    async def _next(self, ctx: Any, task: Task, state: State, names: list[str], left: int) -> str:
        """Who acts next. The choice is made on a copy: a prompt is kept, the state goes on."""
        if self.order is not None:
            return self.order(state, names, ctx, task)
        try:
            name = await ctx.call(ORCHESTRATOR, state=state.copy(), names=names, left=left)
        except CallFailed as error:
            return _ending(error, TERMINATE)
        state.count(ctx.last)
        return name

    async def _act(self, ctx: Any, name: str, state: State) -> Step:
        try:
            text = await ctx.call(name, state=state.copy())
        except CallFailed as error:
            return _ending(error, Step(name, "error: too much has been said to go on", failed=True))
        state.count(ctx.last, puppet=True)
        if name in TOOLS:
            return await use_tool(ctx, name, text, self.max_result_chars)
        result, answer = read_result(text)
        return Step(name, result, answer)

    async def _judge(self, ctx: Any, task: Task, answer: str) -> float | None:
        try:
            said = scoring.number_of(await ctx.call(JUDGE, task=task.question, answer=neutral(answer)))
        except CallFailed:
            return None
        return None if said is None else min(max(said, 1.0), 10.0) / 10.0

    def reward(self, task: Task, result: Outcome) -> tuple[float, dict[str, float]]:
        """r, and what the paper measures: accuracy, generated tokens and puppets' calls of the task.

        A text that its judge has not rated is worth its coverage.
        """
        right = scoring.score(task.data_source, result.answer, task.ground_truth)
        reward = right * (1.0 if result.quality is None else result.quality)
        states = result.states
        keys = [scoring.key_of(task.data_source, state.answer) for state in states]
        return reward, {
            "accuracy": right,
            "tokens": float(sum(state.tokens for state in states)),
            "agents": float(sum(state.calls for state in states)),
            "steps": sum(len(state.steps) for state in states) / len(states),
            "terminated": sum(state.ended for state in states) / len(states),
            "answered": float(bool(result.answer)),
            "agreement": max(map(keys.count, keys)) / len(keys),
            "tool_failures": float(sum(step.failed for state in states for step in state.steps)),
            **({} if result.quality is None else {"quality": result.quality}),
        }


def _ending(error: CallFailed, instead: Any) -> Any:
    """What takes the place of a call that the state made impossible; other failures are the engine's, and raised."""
    if error.status in (Status.PROMPT_TOO_LONG, Status.UNPARSABLE):
        return instead
    raise error


def _check_pool(pool: Sequence[str]) -> None:
    unknown = [name for name in pool if name not in POOL]
    if unknown or not pool or len(set(pool)) < len(pool):
        raise ValueError(f"mas.workflow.pool={list(pool)} must be different ones of {', '.join(POOL)}")


def _check_order(pool: Sequence[str], depth: int, orchestration: str, order: Sequence[str]) -> None:
    one_of("orchestration", orchestration, ORCHESTRATIONS)
    if orchestration != "fixed" and order:
        raise ValueError(
            f"mas.workflow.order={list(order)} is for orchestration=fixed, given {orchestration}. Remedy: order=[]"
        )
    if orchestration == "fixed" and not (0 < len(order) <= depth and all(name in pool for name in order)):
        raise ValueError(
            f"mas.workflow.order={list(order)} must be from 1 to {depth} (mas.workflow.depth) agents of the pool: "
            f"{', '.join(pool)}"
        )
