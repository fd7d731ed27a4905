"""The pool: agents that reason by a pattern (Puppeteer, Appendix B) and agents that use a tool (Table 2).

A puppet is an agent of the pool, a = (m, r, t). Its name says what it does, and which model answers for it where the
pool has several: `planning`, `planning-qwen7b`. It sees the task and the steps so far. Its output adds a step to the
state: a result of its reasoning, an answer to the task, or the result of its tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from verl_ext.mas import Call, ToolFailed
from verl_ext.tools.catalogue.render import neutral, render

# What the orchestrator can choose besides puppets: to end the work; to choose no further puppet for this step.
TERMINATE, ACT = "terminate", "act"
PATTERNS = ("planning", "reasoning", "critique", "reflect", "question", "summarize", "conclude", "modify")
REASONING, FINAL = "REASONING RESULT:", "FINAL ANSWER:"
# Of a tool's result, before it is cut to what a step shows: its last line may be the answer.
MAX_RESULT = 100_000

# A result that has a traceback, or that ends in a tool's own words (the sandbox's, a cut page's) or an error: the last
# line is no answer, though there may be a number in it ("… after 2 s of CPU time").
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):$", re.MULTILINE)
OWN_WORDS = re.compile(r"\[(?:cut: |The program |Nothing was run)")
ERROR = re.compile(r"\w+Error(?::.*)?")


@dataclass(frozen=True)
class Step:
    """What a puppet did.

    Attributes:
        answer: its answer to the task, or "".
        found: the answer is a tool's result.
        at: number of the step, from 1; puppets that acted side by side have the same.
    """

    puppet: str
    text: str
    answer: str = ""
    found: bool = False
    failed: bool = False
    at: int = 1

    @property
    def shown(self) -> str:
        """The text for prompts. Special tokens in it, e.g. of a page or a program, are neutralised."""
        given = f" {FINAL} {self.answer}" if self.answer and not self.found else ""
        return f"[{self.puppet}] {neutral(self.text + given)}"


@dataclass
class State:
    """S_t: the task and the steps so far.

    Attributes:
        chosen: puppets that are to act in this step, while more may be chosen.
        tokens: generated so far, decisions included.
        calls: of puppets so far.
        ended: the orchestrator has chosen to terminate.
    """

    task: str
    steps: list[Step] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    ended: bool = False

    def copy(self) -> State:
        """A copy for a prompt: the arguments of a recorded call must not change afterwards."""
        return replace(self, steps=list(self.steps), chosen=list(self.chosen))

    def count(self, call: Call, puppet: bool = False) -> None:
        """Count a call of this exploration."""
        self.tokens += call.generated_tokens
        self.calls += puppet

    @property
    def length(self) -> int:
        """How many steps were taken; several puppets may have acted in one."""
        return self.steps[-1].at if self.steps else 0

    @property
    def answers(self) -> list[str]:
        """The answers of the last step in which puppets gave one; without one, of the last in which tools found one.

        [""]: nobody has answered.
        """
        given = [step for step in self.steps if step.answer and not step.found]
        found = given or [step for step in self.steps if step.answer]
        return [step.answer for step in found if step.at == found[-1].at] or [""]


def pattern_of(name: str) -> str:
    """What a puppet does: its name without that of its model."""
    return name.partition("-")[0]


def read_result(text: str, whole: bool = False, cut: bool = False) -> tuple[str, str]:
    """(reasoning result, final answer) of an output in the paper's template; without its marks: (all, "").

    Args:
        whole: the answer is everything after its mark, e.g. a text or a program; otherwise its first line.
        cut: the output reached max_tokens: an answer with which it ends is none, as it may be half of one.
    """
    body, _, answer = text.partition(FINAL)
    body = body.rpartition(REASONING)[2].strip()
    if cut and (whole or "\n" not in answer.strip()):
        return body or answer.strip(), ""
    return body or answer.strip(), answer.strip() if whole else _bare(answer)


def _bare(answer: str) -> str:
    """The first line of an answer, without brackets or marks around it."""
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    first = lines[0].strip("*` ") if lines else ""
    return first[1:-1].strip() if first.startswith("[") and first.endswith("]") else first


# A fenced block: what stands behind the opening mark, and the block.
FENCE = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.S)
PYTHON = ("", "python", "python3", "py")
# Brackets and apostrophes around an address do not belong to it; those within do: …/wiki/Hayden_(singer), …/O'Hara.
URL = re.compile(r"https?://(?:\([^\s<>\"()\]]*\)|'(?=\w)|[^\s<>\"'()\]])+")


def parameter_of(text: str) -> str:
    """The parameter in an output `{"action": …, "parameter": …}`; an output without such an object as it is."""
    for start in (found.start() for found in re.finditer(r"\{", text)):
        try:
            given, _ = json.JSONDecoder().raw_decode(text[start:])
        except (ValueError, RecursionError):
            continue
        if isinstance(given.get("parameter"), str):
            return str(given["parameter"])
    return text


def read_code(text: str) -> dict[str, Any]:
    """The program in an output: its first fenced block of Python or of no language, else all of it."""
    programs = (block for language, block in FENCE.findall(text) if language.strip().lower() in PYTHON)
    return {"program": next(programs, text).strip()}


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
    pattern = pattern_of(name)
    tool = TOOLS[pattern]
    arguments = tool.arguments(parameter_of(text))
    empty = [key for key, value in arguments.items() if not (value[0] if isinstance(value, list) else value)]
    if empty:
        return Step(name, f"error: no {empty[0]} was given", failed=True)
    try:
        said = tool.shown(await ctx.tool(pattern, **arguments)).strip()
    except ToolFailed as error:
        return Step(name, f"error: {str(error).removeprefix(f'{error.status.value}: ')[:200]}", failed=True)
    shown = said if len(said) <= limit else f"{said[:limit]} …"
    return Step(name, shown, found_answer(said), found=True)


def found_answer(said: str) -> str:
    """The answer that a tool's result may be: its last line; "" for an error, or the tool's own words."""
    last = said.rpartition("\n")[2]
    own_words = last.endswith("]") and OWN_WORDS.search(last)
    return "" if own_words or ERROR.fullmatch(last) or TRACEBACK.search(said) else _bare(last)
