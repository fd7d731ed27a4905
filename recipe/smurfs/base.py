"""What the Smurfs and their baselines share: settings, tools and their calls, counting, and the reward."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_ext.mas import Call, CallFailed, Status, Task, ToolFailed, Workflow
from verl_ext.mas.options import at_least, one_of
from verl_ext.mas.prompts import prompts_of
from verl_ext.mas.workflow import Score
from verl_ext.recipe.smurfs import scoring
from verl_ext.rewards.calls import Invocation, gold_path
from verl_ext.rewards.correctness import charged
from verl_ext.rewards.judged import JUDGED, judged
from verl_ext.tools.catalogue import names_of, render


@dataclass
class Work:
    """What has been done for a question. calls: also those that could not be read, and were not made.

    shown: of the others what a judge reads: name, arguments, and the result or error.
    """

    task: Task
    calls: list[Invocation] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    rollbacks: int = 0
    tool_failures: int = 0
    tokens: int = 0
    outputs: int = 0
    answer: str = ""

    def count(self, call: Call) -> None:
        """Tokens of the prompt and of the output, as the paper's Table 1 counts them."""
        self.tokens += max(call.prompt_tokens, len(call.prompt_ids)) + call.generated_tokens
        self.outputs += 1


class ToolSystem(Workflow):
    """A system that answers questions by tools of a catalogue.

    Args:
        modules: the prompts there are, by name.
        prompts: which of them, or a YAML file (`mas/prompts.py`).
        tools: given: the task's own (`extra_info.tools`), or all of `catalogue`; search: what `tool_search` finds.
        catalogue: names of tools that every question has, in place of `extra_info.tools`.
        max_result_chars: what an agent reads of a tool's response.
        success: what the reward is: answer (exact match), f1, gaia (its quasi exact match), or path (the gold path was
            gone); or, by the judge of `mas.judge`, pass (ToolEval's pass rate), win (against `extra_info.reference`) or
            hle (the answer is equivalent to the target).
        ordered: the calls of the gold path have to come in its order.
        call_price: under success=path, the reward of a call that the path does not need is less by this; 0: calls are
            free, and calling everything is best.

    Raises:
        ValueError: an argument out of range.
    """

    headline = "success"
    sources: Sequence[str] = ("given", "search")
    needs: Sequence[str] = ("tool_search", "tool_call")
    details = (
        *("tokens", "tokens_per_call", "tool_calls", "failed_calls", "correct_calls"),
        *("unneeded_calls", "rollbacks", "tool_failures"),
    )

    def __init__(
        self,
        modules: Mapping[str, Any],
        prompts: str,
        tools: str,
        catalogue: list[str] | None,
        max_result_chars: int,
        success: str,
        ordered: bool,
        call_price: float,
    ):
        one_of("tools", tools, self.sources)
        one_of("success", success, scoring.SUCCESSES)
        at_least(1, max_result_chars=max_result_chars)
        self.prompts = prompts_of(prompts, modules)
        self.tools, self.catalogue = tools, list(catalogue or ())
        self.max_result_chars, self.success, self.ordered = max_result_chars, success, ordered
        at_least(0, call_price=call_price)
        self.call_price, self.needs_judge = call_price, success in JUDGED

    @property
    def form(self) -> dict[str, Any]:
        """What prompts and parsers of answers are given: a target is compared with a short one, a reader wants all."""
        return {} if self.success in scoring.COMPARED else {"whole": True}

    async def documents(self, ctx: Any, task: Task, query: str) -> list[dict[str, Any]]:
        """The tools for a query: name, description and parameters of each.

        Raises:
            ValueError: the row names none, and the configuration neither; or it has no list of names.
        """
        if self.tools == "search":
            return await ctx.tool("tool_search", query=query)
        remedy = "mas.workflow.tools=search, or catalogue=[…]"
        names = self.catalogue or names_of(task.extra, task.index, remedy)
        return await ctx.tool("tool_search", names=names)

    async def ask(self, ctx: Any, work: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer of a tool, as `Toolbox` gives it."""
        answer: dict[str, Any] = await ctx.tool("tool_call", name=name, arguments=arguments)
        return answer

    async def call_tool(self, ctx: Any, work: Work, name: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
        """{"ok": True, "result": …} or {"ok": False, "error": …}; counted. arguments: None: they could not be read."""
        if arguments is None:
            said: dict[str, Any] = {"ok": False, "error": "the arguments cannot be read as a JSON object"}
        else:
            try:
                said = await self.ask(ctx, work, name, arguments)
            except ToolFailed:
                work.tool_failures += 1
                said = {"ok": False, "error": f"{name} is not available"}
        work.calls.append(Invocation(name, arguments, ok=bool(said["ok"])))
        result = said["result"] if said["ok"] else f"error: {said['error']}"
        work.shown.append({"name": name, "arguments": arguments, "result": render(result, self.max_result_chars)})
        return said

    async def heard(self, ctx: Any, work: Work, asked: Awaitable[Any], nothing: Any) -> Any:
        """What an agent says, counted; `nothing` for a prompt that no longer fits or a choice that is none."""
        try:
            value = await asked
        except CallFailed as error:
            if error.status is Status.PROMPT_TOO_LONG:
                return nothing
            if error.status is not Status.UNPARSABLE:
                raise
            value = nothing
        work.count(ctx.last)
        return value

    def reward(self, task: Task, result: Any) -> Score | Awaitable[Score]:
        """The success, and the quantities of the paper's Tables 1 and 3 to 5. `result`: a `Work`."""
        found = scoring.scores(task, result.answer, result.calls, self.ordered, self.success)
        if self.needs_judge:
            return self._judged(task, result, found)
        reward = success = found[self.success]
        if self.success == "path":
            reward = charged(success, result.calls, gold_path(task), self.call_price)
        return reward, self.measured(result, success, found)

    async def _judged(self, task: Task, result: Any, found: dict[str, float]) -> Score:
        found |= await judged(self.success, self.judge, task, result.answer, result.shown)
        return found[self.success], self.measured(result, found[self.success], found)

    def measured(self, result: Any, success: float, scores: dict[str, float]) -> dict[str, float]:
        """The quantities of a trajectory, with its scores."""
        return {
            "success": success,
            **scores,
            "tokens": float(result.tokens),
            "tokens_per_call": result.tokens / max(1, result.outputs),
            "tool_calls": float(len(result.calls)),
            "failed_calls": float(sum(not call.ok for call in result.calls)),
            "rollbacks": float(result.rollbacks),
            "tool_failures": float(result.tool_failures),
        }
