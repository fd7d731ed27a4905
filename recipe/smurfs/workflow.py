"""Smurfs: a planner cuts the question into sub-tasks; each is solved by a depth-first search over tools.

Source: "Smurfs: Leveraging Multiple Proficiency Agents with Context-Efficiency for Tool Planning", Section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from verl_ext.mas import Agent, Task
from verl_ext.mas.options import at_least, one_of
from verl_ext.recipe.smurfs import base, grammar, prompts, prompts_tiny, scoring
from verl_ext.recipe.smurfs.search import Element, Search

PROMPTS = {"faithful": prompts, "tiny": prompts_tiny}
TOOL_CHOICES = ("id", "name")
AT_MAX_DEPTH = ("end", "back")


@dataclass
class Work(base.Work):
    """What has been done for a question. solved: (sub-task, its answer); verified: how many the verifier accepted."""

    solved: list[tuple[str, str]] = field(default_factory=list)
    verified: int = 0


class Smurfs(base.ToolSystem):
    """Planner, executor (thought, tool, arguments), answer agent, verifier; optionally a tool check.

    Args:
        prompts: faithful, for instruction-tuned models; tiny, for the embedded one; or a YAML file (`mas/prompts.py`).
        planner, answerer, verifier: False: without that agent (Table 5). Without a planner the question is the one
            sub-task; without an answer agent the tool's response is the answer, cut; without a verifier the search goes
            on until its calls are used up, and the answer comes from the global memory.
        tool_check: an agent says of each sub-task, with reasons, whether it needs a tool (Figure 8). One that needs
            none is answered without a search.
        tool_choice: id: the executor writes the tool's number and a reason (Figure 10); an output that cannot be read
            counts as the first open tool. name: it decides among the open tools' names, which alone can be sampled.
        max_tasks: sub-tasks of a question; what the planner names beyond is left out.
        max_calls: tool calls of a sub-task: its retry budget.
        max_depth: steps of a path.
        at_max_depth: end: after the last step the answer comes from the global memory (Section 3.2); back: the search
            goes back and tries other paths.
        budget: tool calls of the whole question, as its baselines have it (baselines.py); sub-tasks that are not
            reached are left out. 0: none.
        others: see `ToolSystem`; with tools=search, `tool_search` is asked for each sub-task.

    Raises:
        ValueError: an argument out of range.
    """

    details = (*base.ToolSystem.details, "tasks", "verified")

    def __init__(
        self,
        prompts: str = "faithful",
        planner: bool = True,
        answerer: bool = True,
        verifier: bool = True,
        tool_check: bool = False,
        tool_choice: str = "name",
        tools: str = "given",
        catalogue: list[str] | None = None,
        max_tasks: int = 6,
        max_calls: int = 8,
        max_depth: int = 4,
        at_max_depth: str = "back",
        budget: int = 0,
        max_result_chars: int = 2000,
        success: str = "answer",
        ordered: bool = True,
        call_price: float = 0.1,
    ):
        super().__init__(PROMPTS, prompts, tools, catalogue, max_result_chars, success, ordered, call_price)
        self.limits = {"max_tasks": max_tasks, "max_calls": max_calls, "max_depth": max_depth}
        at_least(1, **self.limits)
        at_least(0, budget=budget)
        one_of("tool_choice", tool_choice, TOOL_CHOICES)
        one_of("at_max_depth", at_max_depth, AT_MAX_DEPTH)
        self.ends_deepest = at_max_depth == "end"
        self.budget, self.tool_choice = budget, tool_choice
        optional = {"planner": planner, "answer": answerer, "verifier": verifier, "tool_check": tool_check}
        self.left_out = [name for name, used in optional.items() if not used]
        self.agents = {name: agent for name, agent in self._agents().items() if name not in self.left_out}

    def _agents(self) -> dict[str, Agent]:
        shown, examples = self.prompts, getattr(self.prompts, "EXAMPLES", {})

        def reading(parse: Any, agent: str) -> Any:
            return partial(parse, examples=examples.get(agent, ()))

        checked, verdict = grammar.well_formed(grammar.CHECK), grammar.well_formed(grammar.VERDICT)
        tasks, filled = grammar.well_formed(grammar.TASKS), grammar.well_formed(grammar.ARGUMENTS)
        # All of the output is an action.
        acting: dict[str, Any] = {"actions": lambda text: [(0, len(text))], "whole": True}
        return {
            "planner": Agent(shown.planner, reading(grammar.read_tasks, "planner"), tasks, whole=True),
            "tool_check": Agent(shown.tool_check, reading(grammar.read_check, "tool_check"), checked, whole=True),
            "thought": Agent(shown.thought),
            "action": self._chooser(acting),
            "arguments": Agent(shown.arguments, reading(grammar.read_arguments, "arguments"), filled, **acting),
            "answer": Agent(shown.answer),
            "verifier": Agent(shown.verifier, reading(grammar.read_verdict, "verifier"), verdict, whole=True),
            "final": Agent(partial(shown.final, **self.form), partial(scoring.read_final, **self.form)),
        }

    def _chooser(self, acting: dict[str, Any]) -> Agent:
        if self.tool_choice == "name":
            return Agent(self.prompts.action, choices=lambda names, **_: names, **acting)
        if not hasattr(self.prompts, "action_by_id"):
            raise ValueError("tool_choice=id needs prompts that ask for a number. Remedy: prompts=faithful, or name")
        return Agent(self.prompts.action_by_id, grammar.read_choice, grammar.well_formed(grammar.CHOICE), **acting)

    async def run(self, task: Task, ctx: Any) -> Work:
        """Plan; solve each sub-task, which sees the answers before it (least-to-most); answer."""
        work = Work(task)
        for number, subtask in enumerate(await self._plan(ctx, work)):
            if not self._calls_left(work):
                break
            await ctx.branch(f"task{number}", self._solve, work, subtask)
        work.answer = await self._said(ctx, work, "final", question=task.question, solved=list(work.solved))
        return work

    async def _plan(self, ctx: Any, work: Work) -> list[str]:
        question = work.task.question
        if "planner" not in self.agents:
            return [question]
        return (await self._said(ctx, work, "planner", question=question))[: self.limits["max_tasks"]]

    async def _solve(self, ctx: Any, work: Work, subtask: str) -> None:
        """One sub-task: search until the verifier is content, or no tool is open; then its answer is noted."""
        if "tool_check" in self.agents and not await self._said(ctx, work, "tool_check", task=subtask):
            work.solved.append((subtask, await self._digest(ctx, work, subtask, "", [])))
            return
        documents = {tool["name"]: tool for tool in await self.documents(ctx, work.task, subtask)}
        search = Search(list(documents), self._calls_left(work), self.limits["max_depth"], self.ends_deepest)
        hint, answer = "", None
        while answer is None and search.open:
            open_tools = [documents[name] for name in search.open]
            shared = {"task": subtask, "memory": list(search.local), "solved": list(work.solved)}
            thought = await self._said(ctx, work, "thought", tools=open_tools, hint=hint, **shared)
            chosen = {"task": subtask, "thought": thought, "tools": open_tools, "names": search.open}
            name = await self._said(ctx, work, "action", **chosen)
            said = await self._said(ctx, work, "arguments", tool=documents[name], **shared)
            response = await self.call_tool(ctx, work, name, said)
            if not response["ok"]:
                search.fail(name)
                continue
            result = self.prompts.documents(response["result"], self.max_result_chars)
            found = await self._digest(ctx, work, subtask, result, search.local)
            solved, hint = await self._verify(ctx, work, subtask, found)
            if solved:
                answer = found
                work.verified += 1
            else:
                search.go_on(Element(name, thought, found))
        if answer is None:  # from all that was ever found
            answer = await self._digest(ctx, work, subtask, "", search.everything)
        work.rollbacks += search.rollbacks
        work.solved.append((subtask, answer))

    def _calls_left(self, work: Work) -> int:
        """Tool calls that the next sub-task may make."""
        most = self.limits["max_calls"]
        return min(most, self.budget - len(work.calls)) if self.budget else most

    async def _digest(self, ctx: Any, work: Work, subtask: str, result: str, memory: list[Element]) -> str:
        """a = AA(q, r, M); without the answer agent the response itself, or what was remembered last."""
        if "answer" in self.agents:
            return await self._said(ctx, work, "answer", task=subtask, result=result, memory=list(memory))
        return result or (memory[-1].answer if memory else "")

    async def _verify(self, ctx: Any, work: Work, subtask: str, answer: str) -> tuple[bool, str]:
        if "verifier" not in self.agents:
            return False, ""
        return await self._said(ctx, work, "verifier", task=subtask, answer=answer)

    async def _said(self, ctx: Any, work: Work, agent: str, /, **inputs: Any) -> Any:
        """What an agent says, counted. A prompt that no longer fits is answered by nothing, and the search goes on."""
        return await self.heard(ctx, work, ctx.call(agent, **inputs), scoring.NOTHING[agent](inputs))

    def measured(self, result: Work, success: float, scores: dict[str, float]) -> dict[str, float]:
        """As the base's, with the sub-tasks."""
        done = super().measured(result, success, scores)
        solved = len(result.solved)
        return done | {"tasks": float(solved), "verified": result.verified / solved if solved else 0.0}
