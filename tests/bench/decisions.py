"""(p) A decision among given names over one generated token, and over scoring every name, on the tiny pool's model.

Load: the orchestrator's prompts of the tiny pool (about 40 tokens), all at once. CPU time of this process, one thread:

    one token     an ordinary call of one token, the floor: a decision needs at least the pass over its prompt
    a decision    of 9 names whose first tokens differ: a sampled token, the rest is forced
    … of 100      names that begin alike (agent_000 …): a token for each place where they part
    by scoring    a pass over prompt and name for each of the 9, as systems do that compare likelihoods
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_ext.plugin import package_path
from verl_ext.recipe.cold_start.evaluate import ModelLLM
from verl_ext.recipe.puppeteer import prompts_tiny
from verl_ext.recipe.puppeteer.puppets import TERMINATE, State, Step
from verl_ext.worlds import prices_and_sums

POOL = ("planning", "reasoning", "critique", "reflect", "summarize", "conclude", "run_python", "web_search", TERMINATE)
ALIKE = tuple(f"agent_{number:03d}" for number in range(100))
PROMPTS, REPEATS = 256, 3
Ask = Callable[[int], Awaitable[Any]]


def prompts(count: int) -> list[list[dict[str, str]]]:
    """States after one step, of different questions."""
    rng = random.Random(0)
    rows = prices_and_sums.data_set(1, count, 0)["val.parquet"]
    states = [State(row["prompt"][0]["content"], [Step(rng.choice(POOL[:-1]), "3")]) for row in rows]
    return [prompts_tiny.orchestrator(state, POOL, 3) for state in states]


def seconds(ask: Ask, count: int, repeats: int) -> float:
    """CPU seconds of `count` calls made at once, best of `repeats`."""

    async def all_at_once() -> None:
        await asyncio.gather(*(ask(number) for number in range(count)))

    spent = []
    for _ in range(repeats):
        start = time.process_time()
        asyncio.run(all_at_once())
        spent.append(time.process_time() - start)
    return min(spent)


def run(count: int = PROMPTS, repeats: int = REPEATS) -> list[str]:
    """Lines, one per way to decide."""
    torch.set_num_threads(1)
    folder = package_path("recipe/puppeteer/assets/tiny_model")
    llm = ModelLLM(AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder))
    asked = prompts(count)
    encoded = [llm.encode(messages) for messages in asked]
    names = [llm.encode_text(name) for name in POOL]
    sampled: dict[str, int] = {}

    async def call(number: int, ids: list[int], **sampling: Any) -> int:
        settings = {"temperature": 1.0, "max_tokens": 1, "seed": number} | sampling
        done = await llm.complete(asked[number % count], ids, settings, (str(number), "0", "0"))
        return done.generated_tokens

    async def one_token(number: int) -> None:
        await call(number, encoded[number])

    async def decision(number: int) -> None:
        sampled["9"] = await call(number, encoded[number], choices=POOL, max_tokens=16)

    async def alike(number: int) -> None:
        sampled["100"] = await call(number, encoded[number], choices=ALIKE, max_tokens=16)

    async def scoring(number: int) -> None:
        await asyncio.gather(*(call(number, [*encoded[number], *name]) for name in names))

    try:
        one_token_s, *others = (seconds(ask, count, repeats) for ask in (one_token, decision, alike, scoring))
    finally:
        llm.loop.close()
    tokens = sum(map(len, encoded)) / count
    labels = (
        f"a decision among {len(POOL)} ({sampled['9']} sampled)",
        f"among {len(ALIKE)} that begin alike ({sampled['100']} sampled)",
        f"by scoring each of {len(POOL)} names",
    )
    return [
        f"  {'one token':<42} {1000 * one_token_s / count:6.2f} ms  1.00 x  (the floor; {tokens:.0f} tokens of prompt)",
        *(
            f"  {label:<42} {1000 * spent / count:6.2f} ms  {spent / one_token_s:.2f} x"
            for label, spent in zip(labels, others, strict=True)
        ),
    ]


if __name__ == "__main__":
    print("\n".join(run()))
