"""The pool: agents that reason by a pattern (Puppeteer, Appendix B) and agents that use a tool (Table 2).

A puppet is an agent of the pool. It sees the task and the steps so far. Its output adds a step to the state: a result
of its reasoning, an answer to the task, or the result of its tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from verl_ext.mas import Call, ToolFailed
from verl_ext.tools.catalogue.render import neutral, render

TERMINATE = "terminate"
PATTERNS = ("planning", "reasoning", "critique", "reflect", "question", "summarize", "conclude", "modify")
REASONING, FINAL = "REASONING RESULT:", "FINAL ANSWER:"
# Of a tool's result, before it is cut to what a step shows: its last line may be the answer.
MAX_RESULT = 100_000

# A result that ends in a tool's own words (the sandbox's, a cut page's) or in a traceback: the last line is no answer,
# though there may be a number in it ("… after 2 s of CPU time").
NO_ANSWER = re.compile(
    r"\[(?:cut: |The program |Nothing was run)[^\n]*\]\Z"
    r"|^Traceback \(most recent call last\):$"
    r"|^\w+Error(?::[^\n]*)?\Z",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Step:
    """A puppet's step. `answer`: its answer to the task, or ""; `found`: the answer is a tool's result."""

    puppet: str
    text: str
    answer: str = ""
    found: bool = False
    failed: bool = False

    @property
    def shown(self) -> str:
        """The text for prompts. Special tokens in it, e.g. of a page or a program, are neutralised."""
        given = f" {FINAL} {self.answer}" if self.answer and not self.found else ""
        return f"[{self.puppet}] {neutral(self.text + given)}"


@dataclass
class State:
    """S_t: the task and the steps so far.

    Attributes:
        tokens: generated so far, decisions included.
        calls: of puppets so far.
        ended: the orchestrator has chosen to terminate.
    """

    task: str
    steps: list[Step] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    ended: bool = False

    def copy(self) -> State:
        """A copy for a prompt: the arguments of a recorded call must not change afterwards."""
        return replace(self, steps=list(self.steps))

    def count(self, call: Call, puppet: bool = False) -> None:
        """Count a call of this exploration."""
        self.tokens += call.generated_tokens
        self.calls += puppet

    @property
    def answer(self) -> str:
        """The last answer that a puppet gave; without one, the last result of a tool."""
        given = [step.answer for step in self.steps if step.answer and not step.found]
        found = [step.answer for step in self.steps if step.answer]
        return (given or found or [""])[-1]


def read_result(text: str) -> tuple[str, str]:
    """(reasoning result, final answer) of an output in the paper's template; without its marks: (all, "")."""
    body, _, answer = text.partition(FINAL)
    body = body.rpartition(REASONING)[2].strip()
    return body or answer.strip(), _bare(answer)


def _bare(answer: str) -> str:
    """The first line of an answer, without brackets or marks around it."""
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    first = lines[0].strip("*` ") if lines else ""
    return first[1:-1].strip() if first.startswith("[") and first.endswith("]") else first


FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.S)
URL = re.compile(r"https?://[^\s<>\"')\]]+")


def read_code(text: str) -> dict[str, Any]:
    """The program in an output: its fenced block, else all of it."""
    fenced = FENCE.search(text)
    return {"program": (fenced[1] if fenced else text).strip()}


def read_line(name: str) -> Callable[[str], dict[str, Any]]:
    """Reads an argument from the output's last line that is not empty, whatever stands before a colon in capitals."""

    def read(text: str) -> dict[str, Any]:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = re.sub(r"^[A-Z][A-Z ]*:\s*", "", lines[-1]) if lines else ""
        return {name: last.strip("`\"' ")}

    return read


def read_queries(text: str) -> dict[str, Any]:
    """One query, from the output's last line."""
    return {"queries": list(read_line("query")(text).values())}


def read_url(text: str) -> dict[str, Any]:
    """The first address in an output."""
    found = URL.search(text)
    return {"url": found[0].rstrip(".,;") if found else ""}


@dataclass(frozen=True)
class Tool:
    """How a puppet's output becomes a call of `mas.tools.<name>`, and how its result is read."""

    arguments: Callable[[str], dict[str, Any]]
    shown: Callable[[Any], str]


def _text(result: Any) -> str:
    return render(result, MAX_RESULT)


def _documents(result: Any) -> str:
    """Passages of a search, as text; of one query."""
    if isinstance(result, list) and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in result):
        return "\n".join(f"{one.get('title', '')}: {one['text']}" for one in result)
    return _text(result)


TOOLS: dict[str, Tool] = {
    "read_file": Tool(read_line("path"), _text),
    "run_python": Tool(read_code, _text),
    "web_search": Tool(read_queries, _documents),
    "access_website": Tool(read_url, _text),
    "search_arxiv": Tool(read_line("query"), _documents),
}
POOL = (*PATTERNS, *TOOLS)


async def use_tool(ctx: Any, name: str, text: str, limit: int) -> Step:
    """The step of a tool agent: calls the tool; the step's text is the result, or the reason of the failure."""
    tool = TOOLS[name]
    arguments = tool.arguments(text)
    empty = [key for key, value in arguments.items() if not (value[0] if isinstance(value, list) else value)]
    if empty:
        return Step(name, f"error: no {empty[0]} was given", failed=True)
    try:
        said = tool.shown(await ctx.tool(name, **arguments)).strip()
    except ToolFailed as error:
        return Step(name, f"error: {str(error).removeprefix(f'{error.status.value}: ')[:200]}", failed=True)
    shown = said if len(said) <= limit else f"{said[:limit]} …"
    answer = "" if NO_ANSWER.search(said) else _bare(said.rpartition("\n")[2])
    return Step(name, shown, answer, found=True)
