"""CodeAct: the agent acts by Python programs, which run in the sandbox and may call the tools.

"Executable Code Actions Elicit Better LLM Agents", Wang et al. (2024), arXiv 2402.01030. Deviation: the paper's
interpreter keeps its variables between programs; here each program starts anew.

The sandbox cannot reach the tools. So a program stops at a call whose result is not known; the call is made, and the
program runs again with the results so far, until it ends. Its calls must not depend on chance.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from verl_ext.mas import Agent, Call, Task
from verl_ext.recipe.baselines import prompts
from verl_ext.recipe.smurfs.baselines import Baseline, Work
from verl_ext.recipe.smurfs.scoring import read_final
from verl_ext.tools.catalogue.written_calls import load_strictly

OPEN, CLOSE = "<execute>", "</execute>"
MARK = "@@call_tool "
# Runs before the agent's program.
PREAMBLE = f"""\
import json as _json
import os as _os
_results = iter(_json.loads(%s))
def call_tool(name, **arguments):
    for answer in _results:
        if not answer["ok"]:
            raise RuntimeError(answer["error"])
        return answer["result"]
    print("\\n" + {MARK!r} + _json.dumps([name, arguments]), flush=True)
    _os._exit(0)  # a program may catch an exception
"""


def read_program(text: str, /, *, whole: bool = False, **_: Any) -> tuple[str, str]:
    """(program, "") or ("", answer) of an output; the first program counts."""
    if OPEN not in text:
        return "", read_final(text, whole=whole)
    return text.split(OPEN, 1)[1].partition(CLOSE)[0], ""


class CodeAct(Baseline):
    """`agent`, whose actions are programs. Each program and each call counts against the budget."""

    modules = {"faithful": prompts}
    prompt = "programmer"
    needs = ("tool_search", "tool_call", "run_python")

    def others(self) -> dict[str, Agent]:
        """In place of the acting agent, one that writes programs."""
        prompt, read = (partial(one, **self.form) for one in (self.prompts.programmer, read_program))
        return {"agent": Agent(prompt, read, sampling={"stop": [CLOSE]}, whole=True)}

    async def play(self, task: Task, ctx: Any) -> Work:
        """Write programs until there is an answer, the budget is used up, or the sequence is full."""
        work = Work(task)
        tools = await self.documents(ctx, task, task.question)
        asked = ctx.call("agent", question=task.question, tools=tools, budget=self.budget)
        while True:
            program, answer = await self.heard(ctx, work, asked, ("", ""))
            if not program or work.spent >= self.budget:
                work.answer, work.finished = answer, bool(answer) and work.spent < self.budget
                return work
            call: Call = ctx.last
            work.programs += 1
            printed = await self._execute(ctx, work, tools, program)
            observation = self.prompts.documents({"ok": True, "result": printed}, self.max_result_chars)
            if work.spent >= self.budget and not self.last_answer:
                return work
            spent = f"\n{self.prompts.SPENT}" if work.spent >= self.budget else ""
            asked = ctx.resume(call, f"\nObservation: {observation}{spent}\n")

    async def _execute(self, ctx: Any, work: Work, tools: list[dict[str, Any]], program: str) -> str:
        """What a program prints, with the results of the tools that it calls."""
        results: list[dict[str, Any]] = []
        while True:
            source = PREAMBLE % repr(json.dumps(results)) + program
            printed, found, wanted = str(await ctx.tool("run_python", program=source)).rpartition(MARK)
            try:
                name, arguments = load_strictly(wanted.splitlines()[0]) if found else ("", None)
            except (ValueError, IndexError, TypeError):
                found = ""
            if not found:
                return f"{printed}{wanted}"
            if work.spent >= self.budget:
                results.append({"ok": False, "error": "no tool can be called any more"})
            elif name not in {tool["name"] for tool in tools} or not isinstance(arguments, dict):
                work.broken += 1
                results.append({"ok": False, "error": f"there is no tool {name}"})
            else:
                said = await self.called(ctx, work, tools, name, arguments)
                results.append(said if said["ok"] else {"ok": False, "error": str(said["error"])})
