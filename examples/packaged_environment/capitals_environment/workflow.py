"""The system: two agents, the atlas, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from capitals_environment.data import ATLAS
from verl_ext.mas import Agent, Task, Unparsable, Workflow


def atlas() -> Callable[..., Awaitable[str]]:
    """The tool: `look_up(country)`."""

    async def look_up(country: str) -> str:
        return ATLAS.get(country, "not in the atlas")

    return look_up


def ask(question: str, entry: str, draft: str = "") -> list[dict[str, str]]:
    """The prompt of both agents."""
    return [{"role": "user", "content": f"{entry} {draft} answer: {question}"}]


def first_word(text: str, /, **inputs: Any) -> str:
    """The answer. Raises Unparsable: there is none."""
    if not text.split():
        raise Unparsable("nothing was said", fallback="")
    return text.split()[0]


class Capitals(Workflow):
    """Args: rounds: how often the checker reads the answer."""

    headline = "accuracy"
    needs = ("atlas",)

    def __init__(self, rounds: int = 1):
        self.rounds = rounds
        self.agents = {"reader": Agent(ask, first_word), "checker": Agent(ask, first_word)}

    async def run(self, task: Task, ctx: Any) -> str:
        """The capital, looked up and confirmed."""
        entry = await ctx.tool("atlas", country=task.extra["country"])
        answer = await ctx.call("reader", question=task.question, entry=entry)
        for _ in range(self.rounds):
            answer = await ctx.call("checker", question=task.question, entry=entry, draft=answer)
        return answer

    def reward(self, task: Task, result: str) -> tuple[float, dict[str, float]]:
        """1 for the capital, else 0."""
        right = float(result == task.ground_truth)
        return right, {"accuracy": right}
