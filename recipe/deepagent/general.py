"""GeneralAgent: DeepAgent with the tools of `mas.tools` themselves, for general tasks (Section 4.1: GAIA, HLE)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_ext.mas import Task
from verl_ext.mas.options import one_of
from verl_ext.recipe.deepagent import grammar
from verl_ext.recipe.deepagent.workflow import DeepAgent, Work
from verl_ext.tools.catalogue import load_catalogue
from verl_ext.tools.catalogue.types import BAD_ARGUMENTS, UNKNOWN_TOOL
from verl_ext.tools.web.tools import TOOLS as WEB

DOCUMENTED = load_catalogue(
    [{"kind": "json", "path": str(path)} for path in (WEB, Path(__file__).parent / "assets" / "general.jsonl")]
)


class GeneralAgent(DeepAgent):
    """DeepAgent that sees a few tools from the beginning, and calls them directly. R_succ: the answer is right.

    Args:
        use: which tools: web_search, access_website, search_arxiv, run_python, read_file. Each must be in `mas.tools`.
        options: those of DeepAgent but for `tools`. Questions have no gold path, so `correct` is `executed`.
    """

    def __init__(
        self, use: Sequence[str] = ("web_search", "access_website", "run_python", "read_file"), **options: Any
    ):
        for name in use:
            one_of("use", name, list(DOCUMENTED))
        super().__init__(**{"correct": "executed", **options, "tools": "retrieved"})
        self.use = self.needs = tuple(use)

    async def _shown(self, ctx: Any, task: Task) -> list[dict[str, Any]]:
        return [DOCUMENTED[name].shown() for name in self.use]

    async def _ask(self, ctx: Any, work: Work, step: grammar.Step) -> dict[str, Any]:
        if step.name not in self.use:
            allowed = ", ".join(self.use)
            return _refused(UNKNOWN_TOOL, f"there is no tool {step.name!r}; there are {allowed}")
        if problems := DOCUMENTED.problems(step.name, step.arguments):
            return _refused(BAD_ARGUMENTS, "; ".join(problems))
        return {"ok": True, "result": await ctx.tool(step.name, **(step.arguments or {}))}


def _refused(kind: str, error: str) -> dict[str, Any]:
    return {"ok": False, "error": error, "kind": kind}
