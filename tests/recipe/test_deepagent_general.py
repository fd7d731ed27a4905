"""GeneralAgent: tools of `mas.tools` under their own names."""

from __future__ import annotations

import json

import pytest

from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import Task
from verl_ext.recipe.deepagent import GeneralAgent
from verl_ext.tools.base import ToolRefused


class Strict:
    """A judge that accepts one response."""

    async def ask(self, template, sample=0, **fields):
        assert template == "exact_answer" and fields["target"] == "forty-two"
        return {"correct": "yes" if fields["response"] == "42, I think" else "no"}


def scenario(said, target="forty-two", **options):
    """(trajectory, prompts) of the agent on given outputs; the sandbox echoes, the folder holds one file."""
    spoken = iter(said)

    async def run_python(program):
        return program.upper()

    async def read_file(path):
        if path != "a.txt":
            raise ToolRefused(f"read_file: there is no file {path!r}")
        return "forty-two"

    async def scene():
        llm = FakeLLM(lambda request: next(spoken))
        tools = {"run_python": run_python, "read_file": read_file}
        agent = GeneralAgent(use=["run_python", "read_file"], **options)
        agent.judge = Strict() if agent.needs_judge else None
        forest = forest_of(agent, llm, tools=tools, limits={"max_prompt_tokens": 100_000, "tool_retries": 0})
        forest.sampling, forest.task = {"max_tokens": 10_000}, Task("What is in a.txt?", {"target": [target]})
        return await walk(forest), [request.prompt for request in llm.log]

    return run(scene(), quiet=False)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_it_sees_its_tools_and_calls_them():
    said = [call("run_python", program="x"), call("read_file", path="a.txt"), "\\boxed{forty-two}"]
    trajectory, prompts = scenario(said)
    assert trajectory.ok and trajectory.reward == 1.0, trajectory.error
    assert '"name": "run_python"' in prompts[0] and "<tool_search>" not in prompts[0] and "web_search" not in prompts[0]
    assert "X\n</tool_call_result>" in prompts[1] and "forty-two" in prompts[2]


@pytest.mark.parametrize(("options", "earned"), [({}, 2 / 30), ({"call_share": False}, 2.0)])
def test_calls_that_are_only_executed_never_earn_more_than_success(options, earned):
    said = [call("run_python", program="x"), call("read_file", path="a.txt"), "5"]
    assert scenario(said, **options)[0].metrics["correct_calls"] == earned


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (call("web_search", queries=["x"]), "there is no tool 'web_search'; there are run_python, read_file"),
        (call("run_python", code="x"), "'program' is a required property"),
        (call("read_file", path="b.txt"), "there is no file 'b.txt'"),
        ("<tool_search>files</tool_search>", "there is no search"),
    ],
)
def test_what_cannot_be_done_is_told(said, told):
    trajectory, prompts = scenario([said, "5"])
    assert trajectory.ok and trajectory.metrics["correct_calls"] == 0.0 and told in prompts[1]


def test_tools_that_are_not_documented_are_refused():
    with pytest.raises(ValueError, match="use='look' is unknown; allowed: web_search, access_website"):
        GeneralAgent(use=["look"])


@pytest.mark.parametrize(
    ("said", "success", "target", "reward"),
    [
        ("$1,042", "gaia", "1042", 1.0), ("1 042 m", "answer", "1042", 0.0), ("1043", "gaia", "1042", 0.0),
        ("42, I think", "hle", "forty-two", 1.0), ("43", "hle", "forty-two", 0.0),
    ],
)  # fmt: skip
def test_answers_are_scored_as_their_benchmark_does(said, success, target, reward):
    trajectory, _ = scenario([said], target, success=success)
    assert trajectory.ok and trajectory.reward == trajectory.metrics["success"] == reward, trajectory.error
