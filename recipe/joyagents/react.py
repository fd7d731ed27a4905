"""An agent in the ReAct style: it thinks, calls tools one after the other, answers, and remembers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from verl_ext.mas import Agent, CallFailed, Status, Task, ToolFailed, Workflow
from verl_ext.mas.agent import unless_broken
from verl_ext.mas.options import at_least, one_of
from verl_ext.memory import Memory
from verl_ext.recipe.joyagents import grammar
from verl_ext.recipe.joyagents.accuracy import functions_called
from verl_ext.tools.catalogue.render import clean, render

# Of a function's result, and of anything that an agent is shown: several functions' documentation is longer.
RESULT_CHARS, SHOWN_CHARS = 2_000, 8_000
# What a memory keeps of an agent's last output, and how much of its thought.
REMEMBERED = OUTPUT, ANSWER = ("output", "answer")
THOUGHT_CHARS = 1_000
# What an agent is shown of its earlier outputs: all of them, or their calls without the thoughts (Tables 8 to 10).
HISTORIES = OUTPUTS, CALLS = ("outputs", "calls")


@dataclass
class Work:
    """What an agent has done for a query.

    answer, thought: the last output's. turns: its calls and their results, as the chat has them. plan: names of what it
    called. tools: documents of functions that it is shown from the start. done: functions that it may report as called:
    they returned, or a memory of the same query reports them. found: passages that wait to be summed up. below: the
    work of the agents that it called. limit: what ended it, if it did not answer.
    """

    query: str
    answer: str = ""
    thought: str = ""
    turns: list[tuple[str, str]] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    found: list[dict[str, str]] | None = None
    below: list[Work] = field(default_factory=list)
    outputs: int = 0
    broken: int = 0
    tool_failures: int = 0
    limit: str = ""

    def total(self, quantity: str) -> float:
        """A count, of it and of all work below it."""
        return float(getattr(self, quantity) + sum(work.total(quantity) for work in self.below))

    def claimed(self) -> list[str]:
        """Functions that the answer reports as called and that nobody has called, neither now nor in a memory."""
        return sorted(set(functions_called(self.answer)) - self.all_done())

    def all_done(self) -> set[str]:
        """`done`, of it and of all work below it."""
        return self.done.union(*(work.all_done() for work in self.below))


class ReActAgent(Workflow):
    """One agent with tools and a memory of its own. A workflow of one agent, which others run inside theirs.

    Args:
        name: of the agent, and of its memory.
        prompts: the module of prompts; `prompts.<name>(query, work, memories)` gives the messages before its turns.
        max_rounds: outputs of this agent for a query, at least 1.
        remember: what its memories keep of the last output: "output", thought and answer; or the "answer" alone.
        history: what it is shown of its earlier outputs: "outputs", or "calls" without thoughts.
    """

    def __init__(self, name: str, prompts: Any, max_rounds: int, remember: str = OUTPUT, history: str = OUTPUTS):
        at_least(1, max_rounds=max_rounds)
        one_of("remember", remember, REMEMBERED)
        one_of("history", history, HISTORIES)
        self.history = history
        self.name, self.prompts, self.max_rounds, self.remember = name, prompts, max_rounds, remember
        stops = {"stop": list(grammar.STOPS)}
        read = partial(unless_broken, grammar.read_step)
        self.agents = {name: Agent(self._prompt, read, grammar.format_reward, sampling=stops)}

    def _prompt(self, query: str, turns: list[tuple[str, str]], **inputs: Any) -> list[dict[str, str]]:
        messages = list(getattr(self.prompts, self.name)(query, **inputs))
        for said, result in turns:
            said = grammar.without_thought(said) if self.history == CALLS else said
            messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": result}]
        return messages

    async def run(self, task: Task, ctx: Any) -> Work:
        """Work on `task.question` until there is an answer or a limit is reached."""
        memories = await ctx.recall(self.name, task.question)
        work = Work(task.question, done=reported(task.question, memories))
        await self.begin(ctx, work)
        for _ in range(self.max_rounds):
            try:
                step = await ctx.call(
                    self.name, query=work.query, turns=list(work.turns), memories=memories, **self.shown(work)
                )
            except CallFailed as failure:
                if failure.status is not Status.PROMPT_TOO_LONG:
                    raise
                work.limit = "tokens"
                break
            work.outputs += 1
            said, cut = ctx.last.text.strip(), ctx.last.generation.stop_reason == "length"  # stripped as templates do
            if cut and step.kind != "call":  # half an answer is none
                work.limit = "tokens"
                break
            if step.kind == "answer":
                work.answer, work.thought = step.answer, render(step.thought, THOUGHT_CHARS)
                break
            work.turns.append((said, safe(await self._result(ctx, work, step))))
        else:
            work.limit = "rounds"
        ctx.remember(self.name, work.query, self.kept(work), work.plan, memories)
        return work

    async def begin(self, ctx: Any, work: Work) -> None:
        """What it does before its first output."""

    def kept(self, work: Work) -> str:
        """The output of Algorithm 1, as a memory keeps it; "" without an answer."""
        if self.remember == ANSWER or not work.answer or not work.thought:
            return work.answer
        return grammar.output(work.thought, work.answer)

    def handed_over(self, work: Work) -> str:
        """What the agent that called this one is given."""
        return work.answer

    async def _result(self, ctx: Any, work: Work, step: grammar.Step) -> str:
        if step.kind == "broken":
            work.broken += 1
            return f"error: {step.problem}"
        work.plan.append(step.name)
        try:
            return await self.act(ctx, work, step.name, step.arguments or {})
        except ToolFailed as failure:  # the infrastructure, not the agent
            work.tool_failures += 1
            return f"error: {step.name} is not available ({str(failure)[:200]})"

    def shown(self, work: Work) -> dict[str, Any]:
        """What the next prompt shows beside query, turns and memories."""
        return {}

    @abstractmethod
    async def act(self, ctx: Any, work: Work, name: str, arguments: dict[str, Any]) -> str:
        """Do what the agent has called, and say what came of it."""

    def unknown(self, name: str) -> str:
        """What an agent is told that calls something it does not have."""
        return f"error: there is no tool {render(name, 80)!r}"

    async def reward(self, task: Task, result: Any) -> tuple[float, dict[str, float]]:
        """The master's answer is what counts."""
        raise NotImplementedError(f"{type(self).__name__} runs inside JoyAgents, which is rewarded as a whole")


def safe(content: Any, limit: int = SHOWN_CHARS) -> str:
    """What a tool says as an agent is shown it: at most `limit` characters, of which none acts (`<` becomes `&lt;`)."""
    return grammar.neutral(render(content, limit))


def reported(query: str, memories: Sequence[Memory]) -> set[str]:
    """Functions that the memories of the same query report as called."""
    return {
        name
        for memory in memories
        if memory.query == query
        for name in functions_called(grammar.answer_of(memory.output))
    }


def intention_of(arguments: dict[str, Any]) -> str:
    """The argument `intention` as text; the paper's agents write a text or a list of texts."""
    said = arguments.get("intention")
    texts = said if isinstance(said, list) else [said]
    return clean("; ".join(str(text) for text in texts if text is not None))
