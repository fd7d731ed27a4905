"""The programs of examples/langgraph and the folders beside it, over the gateway and an engine that is a function.

Each runs once and is forked at every call: what came before is answered from the record, without a generation.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway.programs import run
from tests.helpers import FakeLLM, Request, fork, walk
from verl_ext import check
from verl_ext.gateway import ProgramWorkflow
from verl_ext.gateway.server import KEEP_ALIVE
from verl_ext.mas import Status, Task, Trajectory
from verl_ext.mas.forest import Forest

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGES = {"langgraph": "langgraph langchain_openai", "openai_agents": "agents", "smolagents": "smolagents openai"}
PAGES |= {"anthropic_client": "anthropic", "plain_script": ""}


@pytest.fixture(params=sorted(PAGES))
def example(request) -> str:
    """The folder of an example; skipped where its framework is missing."""
    for package in PAGES[request.param].split():
        pytest.importorskip(package, reason="the framework of this example: pip install 'verl_ext[agents]'")
    return request.param


def sums(asked: str, number: int) -> str:
    """A solver whose first total is never right, and a verifier who says so."""
    if asked.startswith("solve:"):
        return f" {number} 12" if "wrong" in asked else f" {number} 11"
    return " ok" if asked.endswith("12") else " wrong 1"


def search(asked: str, number: int) -> str:
    """The first answer is in no passage, so there is a second round."""
    answers = {"rewrite:": "### film ; director ###", "rank:": "1", "answer:": " Nobody" if number < 4 else " Ann Bell"}
    return next(text for start, text in answers.items() if start in asked)


def shop(asked: str, number: int) -> str:
    """A handoff, and the call of an API."""
    name, arguments = ("shop_agent", {}) if asked.startswith("user:") else ("check_stock", {"shop": "Amber Harbor"})
    return f'<think>it</think><tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


def pool(asked: str, number: int) -> str:
    """A program, whose output ends the work."""
    if asked.startswith("run_python:"):
        return " print( 5 + 7 )"
    return "terminate" if "[run_python]" in asked else "run_python"


class Tools:
    """The tools of the examples; `used` counts them."""

    def __init__(self) -> None:
        self.used = 0

    async def search(self, queries: list[str]) -> list[dict[str, str]]:
        """Two passages."""
        self.used += 1
        assert queries == ["film", "director"]
        return [{"title": "A", "text": "no"}, {"title": "B", "text": "Ann Bell"}]

    async def run_python(self, program: Any = None) -> str:
        """What a program prints."""
        self.used += 1
        assert program == "print( 5 + 7 )"
        return "12\n"

    async def web_search(self, queries: list[str]) -> str:
        """Nothing."""
        raise AssertionError(queries)

    async def shop_call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The shop's stock."""
        self.used += 1
        assert (name, arguments) == ("check_stock", {"shop": "Amber Harbor"})
        return {"ok": True, "result": "8"}

    def all(self) -> dict[str, Callable[..., Any]]:
        """Name -> tool."""
        return {name: getattr(self, name) for name in ("search", "run_python", "web_search", "shop_call")}


SUM = Task("5 + 7", {"target": ["12"]})
# Example -> its class ("": it is configured), a task, the engine's answers, and the agents in the order of their calls.
RUNS: dict[str, tuple[str, Task, Callable[[str, int], str], str]] = {
    "plain_script": ("", SUM, sums, "solver verifier solver verifier"),
    "anthropic_client": ("MessagesClient", SUM, sums, "solver verifier solver verifier"),
    "langgraph": ("GraphQA", Task("who?", {"target": ["Ann Bell"]}), search, "rewriter reranker answerer " * 2),
    "smolagents": ("Orchestrated", SUM, pool, "orchestrator run_python orchestrator"),
    "openai_agents": (
        *("CustomerService", Task("shop:Amber Harbor:stock", {"kind": "function", "functions": ["check_stock"]})),
        *(shop, "master shop_agent"),
    ),
}


def made(example: str) -> tuple[Forest, FakeLLM, Tools, list[str]]:
    """A forest of an example, its engine and tools, and the agents that it will ask."""
    name, task, answer, agents = RUNS[example]
    llm, tools = FakeLLM(), Tools()
    if name:
        workflow = getattr(importlib.import_module(f"examples.{example}.system"), name)()
    else:  # a process: the recipe alone makes the workflow
        given = yaml.safe_load((EXAMPLES / example / "recipe" / f"{example}.yaml").read_text())["mas"]["workflow"]
        given = {key: value for key, value in given.items() if value is not None and key != "_target_"}
        given["command"] = [sys.executable, *given["command"][1:]]
        workflow = ProgramWorkflow(**given, folder=str(EXAMPLES.parent))

    def answered(request: Request) -> str:
        return answer(request.prompt, len(llm.log))

    llm.answer = answered
    needed = {tool: tools.all()[tool] for tool in workflow.needs}
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 256}
    return Forest(task, workflow, llm, tools=needed, sampling=sampling, name="f"), llm, tools, agents.split()


def agents_of(trajectory: Trajectory) -> list[str]:
    return [call.agent for call in sorted(trajectory.calls, key=lambda call: call.depth)]


def test_every_call_of_the_program_can_be_forked_without_generating_what_came_before(example):
    async def scenario() -> None:
        forest, llm, tools, agents = made(example)
        base = await walk(forest)
        assert base.status is Status.OK, f"{base.error}\n{base.trace}"
        assert base.reward == 1.0 and len(base.calls) == len(llm.log) == len(agents)
        order = [request.agent.partition("~")[0] for request in llm.log]
        assert order == agents, "the program asked others"
        generated = [next(call for call in base.calls if str(call.id) in request.key[-1]) for request in llm.log]
        for number, call in enumerate(generated):
            before, used = len(llm.log), tools.used
            forked = await fork(forest, base, call.id, f"fork {number}")
            assert forked.status is Status.OK, f"{forked.error}\n{forked.trace}"
            shared = [one for one in forked.calls if one in base.calls]
            assert set(shared) >= set(generated[:number]), "a call before the fork is not the recorded one"
            assert call not in shared, "the call was not sampled again"
            assert len(llm.log) - before == len(forked.calls) - len(shared), "something was generated on replay"
            if number == len(generated) - 1:
                after = int(example == "openai_agents")  # its API is called after the last agent
                assert len(llm.log) == before + 1 and tools.used == used + after, "a replay used a tool again"

    run(scenario())


def test_its_recipe_is_right(example, capsys, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert check.main(["--config-dir", f"examples/{example}", f"+recipe={example}"]) == 0, capsys.readouterr()
    assert f"--config-dir examples/{example} +recipe={example}" in capsys.readouterr().out


def test_the_programs_are_short(example):
    lines = (EXAMPLES / example / ("solve.py" if example == "plain_script" else "program.py")).read_text().splitlines()
    code = "\n".join(lines).split('"""', 2)[2].splitlines()
    counted = [one for one in code if one.strip() and not one.lstrip().startswith(("import ", "from ", '"""', "#"))]
    assert len(counted) <= 40, f"{example}: {len(counted)} lines"


def test_the_script_needs_nothing_but_python(tmp_path):
    """It imports modules of the standard library alone, so it starts without site-packages."""
    text = (EXAMPLES / "plain_script" / "solve.py").read_text()
    modules = {line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert modules <= set(sys.stdlib_module_names)


def test_idle_connections_to_the_gateway_outlive_those_of_the_clients():
    """A client that keeps one for longer sends a request now and then while the server closes it."""
    openai = pytest.importorskip("openai", reason="pip install 'verl_ext[agents]'")
    anthropic = pytest.importorskip("anthropic", reason="pip install 'verl_ext[agents]'")
    kept = [package.DEFAULT_CONNECTION_LIMITS.keepalive_expiry for package in (openai, anthropic)]
    assert all(seconds is not None and seconds < KEEP_ALIVE for seconds in kept)
