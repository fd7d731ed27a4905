"""Reflexion: ReAct is tried again with reflections on the attempts before, until an evaluator is content.

"Reflexion: Language Agents with Verbal Reinforcement Learning", Shinn et al. (2023), arXiv 2303.11366. Deviation: on
HotpotQA the paper's evaluator compares with the gold answer, which would tell the agent its reward; here an agent
judges the attempt without it. All attempts together have one budget.
"""

from __future__ import annotations

from typing import Any

from verl_ext.mas import Agent, Task, Unparsable
from verl_ext.mas.options import at_least
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work


def read_yes(text: str, /, **_: Any) -> bool:
    """Whether the first word is yes. Anything but yes or no breaks the form, and counts as no."""
    first = text.strip().lower().split(maxsplit=1)[:1]
    word = first[0].strip(".,:;!*'\"") if first else ""
    if word not in ("yes", "no"):
        raise Unparsable("the answer is neither yes nor no", False)
    return word == "yes"


class Reflexion(Baseline):
    """`agent` acts, `evaluator` says whether that will do, `reflector` what to do better.

    Args:
        trials: attempts, at most (the paper's HotpotQA: until three in a row bring nothing).
        others: see `Baseline`.
    """

    modules = {"faithful": prompts}
    prompt = "agent"

    def __init__(self, trials: int = 3, **others: Any):
        at_least(1, trials=trials)
        super().__init__(**others)
        self.trials = trials

    def others(self) -> dict[str, Agent]:
        """The evaluator and the reflector."""
        return {"evaluator": Agent(self.prompts.evaluator, read_yes), "reflector": Agent(self.prompts.reflector)}

    async def play(self, task: Task, ctx: Any) -> Work:
        """Try, judge, reflect, and try again."""
        work, notes = Work(task), ""
        tools = await self.documents(ctx, task, task.question)
        for trial in range(self.trials):
            work.begun = len(work.calls)  # an environment begins anew
            turn = await self.sequence(ctx, work, tools, question=task.question, notes=notes)
            self.end(work, turn, finished=work.spent < self.budget)
            if trial == self.trials - 1 or work.spent >= self.budget:
                break
            seen = {"question": task.question, "log": work.log, "answer": work.answer}
            if work.answer and await self.heard(ctx, work, ctx.call("evaluator", **seen), True):
                break
            said = await self.heard(ctx, work, ctx.call("reflector", **seen), "")
            notes += f"Attempt {trial + 1} failed. What you noted about it: {said}\n"
        return work
