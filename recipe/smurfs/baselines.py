"""The Smurfs' baselines: one agent with the same tools, the same reward, and as many tool calls for a question.

ReAct   "ReAct: Synergizing Reasoning and Acting in Language Models": one sequence of thoughts, actions and observations
DFSDT   ToolLLM's depth-first search-based decision tree (tree.py)

An output without an action that can be read counts against the budget like a call, so that both come to their end
whatever the model writes: ReAct after at most budget + 1 outputs, DFSDT after at most 2 budget (mas.limits.max_calls).

The authors' systems end without an answer where their calls are used up (`last_answer: false`). By default they are
asked for it once more, as the Smurfs are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from verl_ext.mas import Agent, Call, Task
from verl_ext.mas.agent import unless_broken
from verl_ext.mas.options import at_least
from verl_ext.recipe.smurfs import base, prompts_baselines
from verl_ext.recipe.smurfs.reach import SEARCH, Reach
from verl_ext.recipe.smurfs.tree import Step, Tree
from verl_ext.recipe.smurfs.turns import GIVE_UP, STOPS, Turn, action_spans, observed, read_turn
from verl_ext.rewards.calls import Invocation

# The tiny model has learned none of this.
PROMPTS = {"faithful": prompts_baselines}
NOTHING = Turn("give_up")


@dataclass
class Work(base.Work):
    """What has been done.

    broken: outputs that asked for nothing that could be done. finished: it answered before its budget was used up.
    log: the last sequence of thoughts, actions and observations. searches, programs: those of agents that search for
    tools or write programs, which count against the budget, too. begun: number of the calls before this attempt.
    score: an environment's, of the task so far.
    """

    log: str = ""
    searches: int = 0
    programs: int = 0
    broken: int = 0
    finished: bool = False
    begun: int = 0
    score: float = 0.0

    @property
    def spent(self) -> int:
        """What counts against the budget."""
        return len(self.calls) + self.broken + self.searches + self.programs

    def add(self, other: Work) -> None:
        """Count what another agent has done for the question, too."""
        self.calls += other.calls
        self.shown += other.shown
        for name in ("rollbacks", "tool_failures", "tokens", "outputs", "broken", "searches", "programs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Baseline(Reach):
    """One agent, called `agent`, that calls tools until it answers or its budget is used up.

    Args:
        budget: tool calls of a question, as the Smurfs' `budget`.
        environment, use: see `Reach`.
        last_answer: where the budget is used up, the agent is asked for its answer once more; False: there is none.
        others: see `ToolSystem`. prompts: faithful; the tiny model was not trained on these systems.

    Raises:
        ValueError: an argument out of range.
    """

    details = (*base.ToolSystem.details, "broken", "finished")
    modules: Mapping[str, Any] = PROMPTS
    prompt: str
    budget: int

    def __init__(
        self,
        prompts: str = "faithful",
        tools: str = "given",
        catalogue: list[str] | None = None,
        budget: int = 16,
        last_answer: bool = True,
        max_result_chars: int = 2000,
        success: str = "answer",
        ordered: bool = True,
        call_price: float = 0.1,
        environment: str = "",
        use: Sequence[str] = (),
    ):
        options = (self.modules, prompts, tools, catalogue, max_result_chars, success, ordered, call_price)
        super().__init__(*options, environment=environment, use=use)
        at_least(1, budget=budget)
        self.budget, self.last_answer = budget, last_answer
        prompt, read = (partial(one, **self.form) for one in (getattr(self.prompts, self.prompt), read_turn))
        acting = Agent(
            prompt, partial(unless_broken, read), sampling={"stop": list(STOPS)}, actions=action_spans, whole=True
        )
        self.agents = {"agent": acting, **self.others()}

    def others(self) -> dict[str, Agent]:
        """The agents beside `agent`, which may also take its place."""
        return {}

    async def sequence(self, ctx: Any, work: Work, tools: list[dict[str, Any]], **inputs: Any) -> Turn:
        """The end of one sequence of `agent`, which acts until it answers, the budget is used up, or there is no room.

        Args:
            inputs: of the agent's prompt.
        """
        asked = ctx.call("agent", tools=tools, budget=self.budget - work.spent, **inputs)
        work.log = ""
        while True:
            turn = await self.heard(ctx, work, asked, NOTHING)
            if turn is NOTHING or turn.kind == "answer" or work.spent >= self.budget:
                return turn
            call: Call = ctx.last
            if turn.kind == "call":
                content = await self.act(ctx, work, tools, turn)
            else:
                work.broken += 1
                content = f"error: {turn.problem or f'there is no tool {GIVE_UP}'}"
            if work.spent >= self.budget:
                if not self.last_answer:
                    return NOTHING
                content = f"{content}\n{self.prompts.SPENT}"
            observation = observed(call.text, content)
            work.log += f"{call.text}{observation}"
            asked = ctx.resume(call, observation)

    async def act(self, ctx: Any, work: Work, tools: list[dict[str, Any]], turn: Turn) -> str:
        """Make the call or the search that an output asks for, and say what came of it."""
        if turn.arguments is not None and turn.name in {tool["name"] for tool in tools}:
            said = await self.called(ctx, work, tools, turn.name, turn.arguments)
            return self.prompts.documents(said, self.max_result_chars)
        work.calls.append(Invocation(turn.name, turn.arguments, ok=False))
        problem = turn.problem or f"there is no tool {turn.name}"
        return self.prompts.documents({"ok": False, "error": problem}, self.max_result_chars)

    async def called(
        self, ctx: Any, work: Work, tools: list[dict[str, Any]], name: str, arguments: Any
    ) -> dict[str, Any]:
        """The answer to a call of one of `tools`, which may be the search for further ones."""
        if name == SEARCH and self.tools == "search":
            return await self.search(ctx, work, tools, str(arguments.get("intention") or ""))
        return await self.call_tool(ctx, work, name, arguments)

    def end(self, work: Work, turn: Turn, finished: bool) -> Work:
        """Take the answer of the last output, if it is one."""
        work.answer, work.finished = turn.answer, finished and turn.kind == "answer"
        return work

    def measured(self, result: Work, success: float, scores: dict[str, float]) -> dict[str, float]:
        """As the Smurfs', with what the agent could not say, and whether it found an end by itself."""
        done = {"broken": float(result.broken), "finished": float(result.finished)}
        return super().measured(result, success, scores) | done


class ReAct(Baseline):
    """Thought, action, observation, … in one sequence, which trains as one."""

    prompt = "react"

    async def play(self, task: Task, ctx: Any) -> Work:
        """Think and act until there is an answer, the budget is used up, or the sequence is full."""
        work = Work(task)
        tools = await self.documents(ctx, task, task.question)
        turn = await self.sequence(ctx, work, tools, question=task.question)
        return self.end(work, turn, finished=work.spent < self.budget)


class DFSDT(Baseline):
    """A depth-first search: the agent calls a tool, goes back, or finishes; each prompt has the whole path.

    Args:
        width: calls tried at a node before the search goes back (ToolLLM: 2).
        max_depth: calls on a path (ToolLLM: 12); at its end the agent may finish, or the search goes back.
        others: see `Baseline`.

    A call that was made at the node before is refused. A path whose prompt no longer fits is given up.
    """

    prompt = "dfsdt"

    def __init__(self, width: int = 2, max_depth: int = 12, **others: Any):
        super().__init__(**others)
        at_least(1, width=width, max_depth=max_depth)
        self.width, self.max_depth = width, max_depth

    async def play(self, task: Task, ctx: Any) -> Work:
        """Search until there is an answer, the root is closed or the budget is used up."""
        work, tree, problem = Work(task), Tree(self.width, self.max_depth), ""
        shared: dict[str, Any] = {"question": task.question, "budget": self.budget}
        shared["tools"] = await self.documents(ctx, task, task.question)
        while tree.open and work.spent < self.budget:
            closing = self.prompts.DEEPEST if tree.deepest else ""
            node = {"path": tree.path, "tried": tree.tried, "problem": problem, "closing": closing}
            turn = await self.heard(ctx, work, ctx.call("agent", **shared, **node), NOTHING)
            if turn.kind == "answer":
                return self.end(work, turn, finished=True)
            problem = await self._move(ctx, work, tree, shared["tools"], turn)
            work.rollbacks = tree.rollbacks
        if not self.last_answer:
            return self.end(work, NOTHING, finished=False)
        last = {"path": tree.everything, "closing": self.prompts.SPENT}
        turn = await self.heard(ctx, work, ctx.call("agent", **shared, **last), NOTHING)
        return self.end(work, turn, finished=False)

    async def _move(self, ctx: Any, work: Work, tree: Tree, tools: list[dict[str, Any]], turn: Turn) -> str:
        """Carry out what an output asks for; the problem, if the agent has to say something else at this node."""
        if turn.kind == "give_up" or tree.deepest:
            tree.give_up()
            return ""
        if turn.kind == "broken":
            work.broken += 1
            return turn.problem
        if turn.arguments is None:
            return await self.act(ctx, work, tools, turn)
        if tree.has_tried(turn.name, turn.arguments):
            work.broken += 1
            return "this very call was made here before"
        tree.go_on(Step(turn.thought, turn.name, turn.arguments, await self.act(ctx, work, tools, turn)))
        return ""
