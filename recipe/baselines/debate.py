"""Debate: several agents answer by themselves, read each other's answers for some rounds, and vote.

"Improving Factuality and Reasoning in Language Models through Multiagent Debate", Du et al. (2023), arXiv 2305.14325.
Deviation: the first answers come from ReAct sequences, which share the question's budget, so that they have the tools.
As in the paper, a debater reads what the others have said, reasoning and answer, not the answer alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from verl_ext.mas import Agent, Task
from verl_ext.mas.options import at_least
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work
from verl_ext.recipe.smurfs.scoring import read_final
from verl_ext.rewards.qa import normalize_answer


def vote(answers: Sequence[str]) -> str:
    """The most frequent answer after SQuAD's normalisation, the first one of a tie; empty ones do not count."""
    keys = [normalize_answer(answer) for answer in answers]
    best = Counter(key for key in keys if key).most_common(1)
    return next(answer for answer, key in zip(answers, keys, strict=True) if key == best[0][0]) if best else ""


class Debate(Baseline):
    """`agent` in several branches, then `debater` in each.

    Args:
        debaters, rounds: the paper's 3 and 2; the first answers are a round.
        others: see `Baseline`; each debater has its share of the budget, and at least one call.
    """

    modules = {"faithful": prompts}
    prompt = "agent"

    def __init__(self, debaters: int = 3, rounds: int = 2, **others: Any):
        at_least(1, debaters=debaters, rounds=rounds)
        super().__init__(**others)
        self.debaters, self.rounds = debaters, rounds
        self.budget: int = max(1, self.budget // debaters)

    @property
    def form(self) -> dict[str, Any]:
        """Short answers, which alone can be voted on."""
        return {}

    def others(self) -> dict[str, Agent]:
        """The agent of later rounds."""
        return {"debater": Agent(self.prompts.debater, read_final)}

    async def play(self, task: Task, ctx: Any) -> Work:
        """Answer, debate, vote."""
        tools = await self.documents(ctx, task, task.question)
        works = [Work(task) for _ in range(self.debaters)]
        branches = [ctx.branch(f"debater{i}", self._first, work, list(tools)) for i, work in enumerate(works)]
        said: list[str] = await asyncio.gather(*branches)
        for _ in range(self.rounds - 1):
            again = [(work, said[i], [*said[:i], *said[i + 1 :]]) for i, work in enumerate(works)]
            branches = [ctx.branch(f"debater{i}", self._again, *one) for i, one in enumerate(again)]
            said = await asyncio.gather(*branches)
        whole = Work(task, answer=vote([work.answer for work in works]), finished=all(work.finished for work in works))
        for work in works:
            whole.add(work)
        return whole

    async def _first(self, ctx: Any, work: Work, tools: list[dict[str, Any]]) -> str:
        """Answer by oneself; what was thought, done and answered."""
        turn = await self.sequence(ctx, work, tools, question=work.task.question)
        self.end(work, turn, finished=work.spent < self.budget)
        return f"{work.log}{turn.thought}\nAnswer: {work.answer or 'none'}".strip()

    async def _again(self, ctx: Any, work: Work, own: str, others: list[str]) -> str:
        asked = ctx.call("debater", question=work.task.question, own=own, others=others)
        answer = await self.heard(ctx, work, asked, None)
        if answer is None:  # the prompt does not fit: what was said stands
            return own
        work.answer = answer or work.answer
        return str(ctx.last.text)
