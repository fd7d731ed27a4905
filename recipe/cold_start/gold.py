"""Demonstrations by rule from a benchmark's gold: a system runs as always, and a rule answers for its agents.

    python -m verl_ext.recipe.smurfs.cold_start.gold --questions data/api_bank/train.parquet --tools data/api_bank \\
           --output data/cold_start/smurfs.parquet

A rule is made for each question. It gets an agent's name, the number of its output, from 0, and the inputs of its
prompt, and returns what the agent should write, or raises `Unsolved`. Prompts, parsers and tools are the system's own.
Only questions that the rule solves are kept: the workflow's headline must be 1.

One row, on which +sft=gold trains:

    {"agent": "planner", "messages": [..., {"role": "assistant", "content": "{\\"Tasks\\": [...]}"}]}

An agent that goes on in one sequence (DeepAgent) has a row per sequence, with the tools' results inside its text.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet

from verl_ext.arguments import Parser, exit_status
from verl_ext.mas import Call, Task, Workflow
from verl_ext.mas.types import CallId, Stream
from verl_ext.memory import Memory
from verl_ext.storage.parquet import write_parquet
from verl_ext.tools.catalogue import tool_call, tool_search

Rule = Callable[[str, int, Mapping[str, Any]], str]
Rows = list[dict[str, Any]]


class Unsolved(Exception):
    """The rule has nothing to say any more: this question is not demonstrated."""


@dataclass
class RuleContext:
    """The context of a workflow whose agents' outputs come from `rule`.

    calls: those that begin a sequence, with everything that was written into it.
    """

    workflow: Workflow
    tools: Mapping[str, Any]
    rule: Rule
    calls: list[Call] = field(default_factory=list)
    turns: Counter[str] = field(default_factory=Counter)
    last: Call | None = None

    async def call(self, agent: str, /, *, parents: Any = None, **inputs: Any) -> Any:
        """As `Context.call`."""
        messages = self.workflow.agents[agent].prompt(**inputs)
        return self._say(Call(CallId((), agent, self.turns[agent]), Stream("0"), messages), inputs)

    async def resume(self, call: Call, observation: str, /, **inputs: Any) -> Any:
        """As `Context.resume`."""
        following = CallId((), call.agent, self.turns[call.agent])
        return self._say(Call(following, Stream("0"), call.messages, call, observation), inputs)

    def _say(self, call: Call, inputs: Mapping[str, Any]) -> Any:
        call.text = self.rule(call.agent, call.id.turn, inputs)
        call.value = self.workflow.agents[call.agent].read(call.text, False, **inputs)
        self.turns[call.agent] += 1
        self.calls.append(call)
        self.last = call
        return call.value

    async def tool(self, tool: str, /, **arguments: Any) -> Any:
        """As `Context.tool`."""
        return await self.tools[tool](**arguments)

    async def branch(self, name: str, run: Callable[..., Awaitable[Any]], /, *args: Any) -> Any:
        """As `Context.branch`, without concurrency."""
        return await run(self, *args)

    async def run(self, workflow: Workflow, task: Task, name: str | None = None) -> Any:
        """As `Context.run`."""
        child: Any = replace(self, workflow=workflow, turns=Counter())
        return await workflow.run(task, child)

    async def recall(self, agent: str, query: str) -> list[Memory]:
        """As `Context.recall` at the start of training: nothing is remembered yet."""
        return []

    def remember(self, agent: str, query: str, output: str, *others: Any) -> None:
        """As `Context.remember`, without effect."""

    def rows(self) -> Rows:
        """A row per sequence."""
        texts: dict[Call, list[str]] = {}
        first: dict[Call, Call] = {}
        for call in self.calls:
            first[call] = call if call.continues is None else first[call.continues]
            texts.setdefault(first[call], []).append(f"{call.observation}{call.text}")
        return [
            {"agent": call.agent, "messages": [*call.messages, {"role": "assistant", "content": "".join(said)}]}
            for call, said in texts.items()
        ]


async def demonstrate(workflow: Workflow, task: Task, tools: Mapping[str, Any], rule: Rule) -> tuple[Rows, bool]:
    """The demonstrations of a question, and whether the rule solves it."""
    context: Any = RuleContext(workflow, tools, rule)
    try:
        scored = workflow.reward(task, await workflow.run(task, context))
    except Unsolved:
        return [], False
    _, metrics = await scored if inspect.isawaitable(scored) else scored
    return context.rows(), metrics[workflow.headline] == 1.0


def options(doc: str | None) -> Parser:
    """The options that all systems share."""
    parser = Parser(description=doc)
    parser.add_argument("--questions", type=Path, required=True, help="train.parquet of data_prep/")
    parser.add_argument("--output", type=Path, required=True, help="a .parquet file")
    parser.add_argument("--first", type=int, default=200, help="so many questions are demonstrated (200)")
    parser.add_argument("--max_chars", type=int, default=5000, help="longer conversations are left out (5000)")
    return parser


def api_bank(folder: Path, top_k: int = 3) -> dict[str, Any]:
    """The tools of API-Bank with their recorded results, of a folder that data_prep/tools.py has written."""
    sources = [{"kind": "api_bank", "path": str(folder / "tools.jsonl")}]
    return {
        "tool_search": tool_search(sources=sources, method="bm25", top_k=top_k),
        "tool_call": tool_call(sources=sources, recorded=str(folder / "recorded.jsonl")),
    }


def read_tasks(path: Path, first: int) -> list[Task]:
    """The first questions of a file."""
    return [
        Task(
            row["prompt"][-1]["content"],
            row["reward_model"]["ground_truth"],
            row["data_source"],
            number,
            row["extra_info"],
        )
        for number, row in enumerate(pyarrow.parquet.read_table(path).slice(0, first).to_pylist())
    ]


def write(
    given: argparse.Namespace, workflow: Workflow, tools: Mapping[str, Any], rule_of: Callable[[Task], Rule]
) -> str:
    """Write the demonstrations; what was written, in words.

    Raises:
        ValueError: the rule solves no question.
    """

    async def played() -> list[tuple[Rows, bool]]:
        return [await demonstrate(workflow, task, tools, rule_of(task)) for task in tasks]

    tasks = read_tasks(given.questions, given.first)
    solved = [rows for rows, right in asyncio.run(played()) if right]
    every = [row for rows in solved for row in rows]
    kept = [row for row in every if sum(len(message["content"]) for message in row["messages"]) <= given.max_chars]
    if not kept:
        raise ValueError(
            f"{given.questions}: of {len(tasks)} questions the rule solves {len(solved)}, none short enough"
        )
    given.output.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(kept, given.output)
    counts = ", ".join(f"{agent} {count}" for agent, count in Counter(row["agent"] for row in kept).items())
    left_out = f"{len(tasks) - len(solved)} questions that the rule does not solve, {len(every) - len(kept)} long rows"
    return f"{given.output}: {len(kept)} conversations of {len(solved)} questions ({counts}); left out: {left_out}"


def run(parser: Parser, argv: Sequence[str] | None, made: Callable[[argparse.Namespace], Any]) -> int:
    """The command of a system. made: options -> (workflow, tools, rule of a task). Returns the exit status."""
    given = parser.parse_args(argv)
    return exit_status(lambda: print(write(given, *made(given))))
