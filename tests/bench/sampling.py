"""(a) What sampling costs against its formulas; (c) barrier-free rollouts against lock-step turns."""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any

from verl_ext.mas import Agent, Task, Workflow
from verl_ext.mas.forest import Forest
from verl_ext.mas.llm import TokenLLM
from verl_ext.mas.types import Generation
from verl_ext.sampling import make_strategy
from verl_ext.trainer.rollout.waves import WaveLLM

AGENTS = ["rewriter", "reranker", "answerer"]
TOKENS = 8


class Chain(Workflow):
    """Three agents in a row, each reading the one before; more turns go round again."""

    agents = {name: Agent(lambda text: [{"role": "user", "content": text}]) for name in AGENTS}

    def __init__(self, turns: int = 3):
        self.turns = turns

    async def run(self, task: Task, ctx: Any) -> str:
        text = task.question
        for turn in range(self.turns):
            text = await ctx.call(AGENTS[turn % 3], text=text)
        return text

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        return 1.0, {}


def latency(seed: int) -> float:
    """Seconds of one call: log-normal, median 20 ms, a long tail up to 2 s. Depends on the call's seed alone."""
    return min(2.0, random.Random(seed).lognormvariate(-3.9, 1.2))


class Simulated(TokenLLM):
    """An engine whose calls take `latency`; the seam of these two measurements: they are about scheduling alone."""

    tokenizer = None

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return [1] * 16

    def encode_text(self, text: str) -> list[int]:
        return [1]

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        await asyncio.sleep(latency(sampling["seed"]))
        return Generation([sampling["seed"] % 97] * TOKENS, [-1.0] * TOKENS)


class LockStep(Simulated, WaveLLM):
    """The same engine behind a barrier: no call of the next turn starts before all of this turn have ended."""

    def __init__(self) -> None:
        server = SimpleNamespace(generate_wave=SimpleNamespace(remote=self._wave))
        WaveLLM.__init__(self, None, None, servers=[server], busy=lambda: 0)

    generate = WaveLLM.generate

    async def _wave(self, requests: list[dict[str, Any]]) -> list[Any]:
        async def one(request: dict[str, Any]) -> Any:
            seed = request["sampling_params"]["seed"]
            await asyncio.sleep(latency(seed))
            return SimpleNamespace(
                token_ids=[seed % 97] * TOKENS, log_probs=[-1.0] * TOKENS, stop_reason="completed", extra_fields={}
            )

        return await asyncio.gather(*[one(request) for request in requests])


async def _sample(
    strategy: str, llm: Any, questions: int, group_size: int = 4, draw: int = 0, turns: int = 3
) -> tuple[list[Forest], int, float]:
    seeds = range(draw * questions, (draw + 1) * questions)
    forests = [Forest(Task("q", index=seed), Chain(turns), llm, seed=seed, name=f"{seed:06d}") for seed in seeds]
    sampler = make_strategy(strategy, group_size, AGENTS)
    start = time.perf_counter()
    results = await asyncio.gather(*[sampler.sample(forest) for forest in forests])
    return forests, sum(formula.calls for _, formula in results), time.perf_counter() - start


def cost() -> list[str]:
    """Lines: measured calls and tokens over the formula's, per strategy; 1.000 means that no prefix was regenerated."""
    lines = []
    for strategy in ("fof", "rr", "is", "nmc"):
        forests, formula, _ = asyncio.run(_sample(strategy, Simulated(), 64))
        calls = sum(forest.cost.agent_calls for forest in forests)
        tokens = sum(forest.cost.generated_tokens for forest in forests)
        lines.append(
            f"  {strategy:<4} {calls:>6} calls, {calls / formula:.3f} x formula; "
            f"{tokens:>7} tokens, {tokens / (formula * TOKENS):.3f} x formula"
        )
    return lines


def barriers(turns: int, questions: int = 128, draws: int = 8) -> str:
    """A line: wall time of lock-step turns over barrier-free rollouts: same calls, same latencies, fork on first.

    Lock-step takes the sum over turns of the slowest call; barrier-free the slowest trajectory, which is its floor.
    Both hang on a few extreme latencies, hence several draws: of three turns, one draw's ratio spreads by 0.3 around an
    expectation of 2.1.
    """
    totals, ratios, calls = [0.0, 0.0, 0.0], [], [0, 0]
    for draw in range(draws):
        free, _, free_seconds = asyncio.run(_sample("fof", Simulated(), questions, draw=draw, turns=turns))
        step, _, step_seconds = asyncio.run(_sample("fof", LockStep(), questions, draw=draw, turns=turns))
        floor = max(sum(call.seconds for call in t.calls) for forest in free for t in forest.trajectories)
        totals = [total + new for total, new in zip(totals, (step_seconds, free_seconds, floor), strict=True)]
        ratios.append(step_seconds / free_seconds)
        calls = [n + sum(f.cost.agent_calls for f in forests) for n, forests in zip(calls, (free, step), strict=True)]
    return (
        f"  {turns} turns, {calls[0]} and {calls[1]} calls in {draws} draws: {totals[0] / totals[1]:.2f} x, "
        f"{min(ratios):.2f} to {max(ratios):.2f} "
        f"(in all {totals[0]:.1f} s lock-step, {totals[1]:.1f} s barrier-free, floor {totals[2]:.1f} s)"
    )
