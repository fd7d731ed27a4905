"""DeepAgent: one sequence of reasoning that searches tools, calls them, and folds its own history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from verl_ext.mas import Agent, Call, CallFailed, Status, Task, ToolFailed, Workflow
from verl_ext.mas.agent import unless_broken
from verl_ext.mas.options import at_least, one_of
from verl_ext.mas.prompts import prompts_of
from verl_ext.mas.workflow import Score
from verl_ext.recipe.deepagent import grammar, memories, prompts, prompts_tiny
from verl_ext.recipe.deepagent.work import Work, lacking
from verl_ext.rewards.calls import Invocation, gold_path
from verl_ext.rewards.correctness import RULES, charged, correct_calls, path_share, unneeded_calls
from verl_ext.rewards.gaia import gaia_match
from verl_ext.rewards.judged import JUDGED, judged
from verl_ext.rewards.mathematics import math_match
from verl_ext.rewards.qa import exact_match
from verl_ext.rewards.truth import targets_of
from verl_ext.tools.catalogue import names_of

PROMPTS = {"faithful": prompts, "tiny": prompts_tiny}
# How an answer is compared with a target, by the name of `success`.
MATCHES = {"answer": exact_match, "gaia": gaia_match, "math": math_match}
SUCCESSES = (*MATCHES, "path", *JUDGED)
SOURCES = ("search", "given", "retrieved")


class DeepAgent(Workflow):
    """One agent and its auxiliary role, which folds the history and shortens what is too long.

    Args:
        prompts: faithful, for instruction-tuned models; tiny, for the embedded one; or a YAML file (`mas/prompts.py`).
        max_actions: searches, calls and folds of a trajectory.
        max_folds: of them folds, refused ones included; the next one ends the trajectory. 0: no folding (the paper's
            ablation "w/o Memory Folding"): the full prompt does not tell of it, and its tag is text like any other.
        max_result_chars, summarise: longer results are shortened by the auxiliary role, else cut.
        max_document_chars: the same for documentation that a search finds; None: max_result_chars.
        tools: search: the agent has to find its tools (the paper's scenario 2). given: it begins with the documentation
            of the task's own (`extra_info.tools`), and need not search (scenario 1). retrieved: it begins with those
            that `tool_search` finds for the question, and cannot search (Table 4, "Input Retrieved Tool").
        correct: which calls earn ToolPO's C: gold_path, name, arguments, executed (verl_ext/rewards/correctness.py).
        success: R_succ: answer (exact match); gaia (GAIA's quasi exact match); math (the same value or expression);
            path (the gold path was gone); or, by the judge of `mas.judge`, pass (ToolEval's pass rate), win (against
            `extra_info.reference`), hle (the answer is equivalent to the target).
        ordered: the calls of the gold path have to come in its order; false: in any, where a data set tells none.
        call_price: under success=path, what a call costs that the path does not need; 0: calling everything is best.
        call_share: where `correct` needs no gold path (executed, effect), C is divided by `max_actions`, so that all
            calls together earn at most as much as success. False: ΣC as printed; then doing much pays more than
            doing it right.

    Raises:
        ValueError: an argument out of range.
    """

    headline = "success"
    needs: Sequence[str] = ("tool_search", "tool_call")
    details = (
        *("correct_calls", "unneeded_calls", "tool_calls", "failed_calls", "actions", "searches"),
        *("folds", "refused_folds", "broken_actions", "tool_failures", "limit_actions", "limit_folds", "limit_tokens"),
    )

    def __init__(
        self,
        prompts: str = "faithful",
        max_actions: int = 30,
        max_folds: int = 3,
        max_result_chars: int = 4000,
        max_document_chars: int | None = None,
        summarise: bool = True,
        tools: str = "search",
        correct: str = "gold_path",
        success: str = "answer",
        ordered: bool = True,
        call_price: float = 0.1,
        call_share: bool = True,
    ):
        one_of("tools", tools, SOURCES)
        one_of("correct", correct, RULES)
        one_of("success", success, SUCCESSES)
        at_least(1, max_actions=max_actions)
        at_least(0, max_folds=max_folds, call_price=call_price)
        at_least(80, max_result_chars=max_result_chars, max_document_chars=max_document_chars or max_result_chars)
        self.prompts = prompts_of(prompts, PROMPTS)
        self.max_actions, self.max_folds, self.max_result_chars = max_actions, max_folds, max_result_chars
        self.longest = {grammar.SEARCH: max_document_chars or max_result_chars, grammar.CALL: max_result_chars}
        self.summarise, self.tools, self.correct, self.success = summarise, tools, correct, success
        self.ordered, self.call_price, self.needs_judge = ordered, call_price, success in JUDGED
        self.most_calls = max_actions if call_share and correct in ("executed", "effect") else 1
        # The tiny prompt names no actions: its model folds as it has learned to, and is refused.
        folding = max_folds > 0 or self.prompts is PROMPTS["tiny"]
        self.agents = {
            "agent": Agent(
                self.prompts.agent if folding else partial(self.prompts.agent, folding=False),
                partial(unless_broken, partial(grammar.read_step, folding=folding)),
                sampling={"stop": list(grammar.STOPS if folding else grammar.STOPS_WITHOUT_FOLD)},
                actions=partial(grammar.action_spans, folding=folding),
            ),
            "auxiliary": Agent(lambda prompt, **inputs: getattr(self.prompts, prompt)(**inputs), trained=False),
        }

    async def run(self, task: Task, ctx: Any) -> Work:
        """Think and act until there is an answer or a limit is reached."""
        work, tools = Work(task), await self._shown(ctx, task)
        step = await self._begin(ctx, task, tools)
        while True:
            call = ctx.last
            work.history.append(call.text)
            if call.generation.stop_reason == "length" and step.kind in ("answer", "broken"):
                work.limit = "tokens"
                return work
            if step.kind == "answer":
                work.answer = step.answer
                return work
            if work.actions == self.max_actions:
                work.limit = "actions"
                return work
            if step.kind == "fold" and self.max_folds and work.folds + work.refused_folds == self.max_folds:
                work.limit = "folds"
                return work
            work.actions += 1
            try:
                step = await self._act(ctx, work, call, step, tools)
            except CallFailed as failure:
                if failure.status is not Status.PROMPT_TOO_LONG:
                    raise
                work.limit = "tokens"  # the window is full
                return work

    async def _shown(self, ctx: Any, task: Task) -> list[dict[str, Any]] | None:
        """The documentation of the tools with which the agent begins."""
        if self.tools == "given":
            return await ctx.tool("tool_search", names=names_of(task.extra, task.index, "mas.workflow.tools=search"))
        return await ctx.tool("tool_search", query=task.question) if self.tools == "retrieved" else None

    def _begin(self, ctx: Any, task: Task, tools: Any, **folded: Any) -> Awaitable[grammar.Step]:
        """The first step of a window."""
        unsearchable = {"searching": False} if self.tools == "retrieved" else {}
        return ctx.call("agent", question=task.question, tools=tools, **folded, **unsearchable)

    async def _act(self, ctx: Any, work: Work, call: Call, step: grammar.Step, tools: Any) -> grammar.Step:
        """Carry out an action and let the agent go on: behind its result, or in a new window after a fold."""
        if step.kind == "fold":
            folded = await self._fold(ctx, work)
            if folded is not None:
                # Eq. 4 folds the state, which from here on begins with the memories: a later fold must not forget them.
                work.history = [f"{self.prompts.remembered(folded)}{self.prompts.BLANK}"]
                return await self._begin(ctx, work.task, tools, folded=folded)
            kind, content = grammar.FOLD, "folding was not possible; go on"
        elif step.kind == "search" and self.tools == "retrieved":
            kind, content = grammar.SEARCH, "error: there is no search; use the tools that you have been shown"
        elif step.kind == "search":
            work.searches += 1
            kind, content = grammar.SEARCH, await self._search(ctx, work, step.query)
        elif step.kind == "call":
            kind, content = grammar.CALL, await self._call(ctx, work, step)
        else:
            work.broken += 1
            kind, content = grammar.CALL, f"error: {step.problem}"
        observation = grammar.observed(kind, content, self.prompts.BLANK)
        work.history.append(observation)
        return await ctx.resume(call, observation)

    async def _search(self, ctx: Any, work: Work, query: str) -> str:
        try:
            found = await ctx.tool("tool_search", query=query)
        except ToolFailed as failure:
            return self._failed(work, failure)
        return await self._short(ctx, work, grammar.SEARCH, self.prompts.documents(found))

    async def _call(self, ctx: Any, work: Work, step: grammar.Step) -> str:
        try:
            answer = await self._ask(ctx, work, step)
        except ToolFailed as failure:
            work.calls.append(Invocation(step.name, step.arguments, ok=False))
            return self._failed(work, failure)
        work.calls.append(Invocation(step.name, step.arguments, answer["ok"], answer.get("effect", True)))
        said = {"result": answer["result"]} if answer["ok"] else {"error": answer["error"]}
        work.shown.append({"name": step.name, "arguments": step.arguments, **said})
        return await self._short(ctx, work, grammar.CALL, self._outcome(work, answer))

    def _ask(self, ctx: Any, work: Work, step: grammar.Step) -> Awaitable[dict[str, Any]]:
        """The answer to a tool call; an environment answers in another way."""
        return ctx.tool("tool_call", name=step.name, arguments=step.arguments)

    def _outcome(self, work: Work, answer: dict[str, Any]) -> str:
        longest = 25 * self.max_result_chars if self.summarise else self.max_result_chars
        return self.prompts.outcome(answer, longest)

    def _failed(self, work: Work, failure: ToolFailed) -> str:
        """The infrastructure failed, not the agent: it is told so, and the failure is counted."""
        work.tool_failures += 1
        return f"error: the tool is not available ({str(failure)[:200]})"

    async def _short(self, ctx: Any, work: Work, kind: str, content: str) -> str:
        """What is too long, shortened by the auxiliary role; cut where that fails, is unfinished or says nothing."""
        if len(content) <= self.longest[kind]:
            return content
        if self.summarise:
            try:
                question = work.task.question
                said = await ctx.call("auxiliary", prompt="summary", kind=kind, question=question, content=content)
                if ctx.last.status is Status.OK:  # of one that was cut off it is not known where its thoughts end
                    content = grammar.after_thoughts(said) or content
            except CallFailed:
                pass  # cut below
        return content[: self.longest[kind]]

    async def _fold(self, ctx: Any, work: Work) -> dict[str, Any] | None:
        """The three memories by three parallel calls (Eq. 4), or None: the fold is refused."""
        if not self.max_folds:  # nobody told the agent of folds, but the tiny one was trained with them
            work.refused_folds += 1
            return None
        history = "".join(work.history)
        made = await asyncio.gather(
            *[ctx.branch(kind, self._memory, kind, work.task.question, history) for kind in memories.KINDS]
        )
        if any(memory is None for memory in made):
            work.refused_folds += 1
            return None
        work.folds += 1
        return dict(zip(memories.KINDS, made, strict=True))

    async def _memory(self, ctx: Any, kind: str, question: str, history: str) -> Any:
        """One memory: valid JSON at the first or second try, or None."""
        asked, said, problem = {"kind": kind, "question": question, "history": history}, "", ""
        for _ in range(2):
            try:
                said = await ctx.call("auxiliary", prompt="memory", **asked, said=said, problem=problem)
            except CallFailed:
                return None
            memory, problem = memories.read_memory(said, self.prompts.SCHEMAS[kind])
            if not problem:
                return memory
        return None

    def reward(self, task: Task, result: Work) -> Score | Awaitable[Score]:
        """R_succ, and what was done.

        Raises:
            ValueError: the row lacks what `mas.workflow.success` needs; any number in its place would train.
        """
        done = self.measured(task, result)
        if self.needs_judge:
            return self._judged(task, result, done)
        if self.success == "path":
            if not gold_path(task):
                raise lacking(task, "path", "no gold path (ground_truth.path)", "answer, for rows with targets")
            reward = charged(done["path_complete"], result.calls, gold_path(task), self.call_price)
            return reward, {"success": done["path_complete"], **done}
        targets = targets_of(task.ground_truth, f"row {task.index}")
        if not targets:
            raise lacking(task, self.success, "no answer (ground_truth.target)", "path, for rows with gold paths")
        success = max(MATCHES[self.success](result.answer, target) for target in targets)
        return success, {"success": success, **done}

    async def _judged(self, task: Task, result: Work, done: dict[str, float]) -> Score:
        scores = await judged(self.success, self.judge, task, result.answer, result.shown)
        return scores[self.success], {"success": scores[self.success], **scores, **done}

    def measured(self, task: Task, result: Work) -> dict[str, float]:
        """Counts and shares of a trajectory, whatever success is."""
        gold = gold_path(task)
        path = path_share(result.calls, gold, self.ordered)
        return {
            "path": path,
            "path_complete": float(path == 1.0),
            "correct_calls": correct_calls(self.correct, result.calls, gold) / self.most_calls,
            "unneeded_calls": float(unneeded_calls(result.calls, gold)),
            "tool_calls": float(len(result.calls)),
            "failed_calls": float(sum(not call.ok for call in result.calls)),
            **{name: float(getattr(result, name)) for name in ("actions", "searches", "folds", "refused_folds")},
            "broken_actions": float(result.broken),
            "tool_failures": float(result.tool_failures),
            **{f"limit_{name}": float(result.limit == name) for name in ("actions", "folds", "tokens")},
        }
