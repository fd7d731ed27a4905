"""Where the baselines' tools are: found by the agent itself, an environment's actions, or tools of `mas.tools`."""

from __future__ import annotations

import pytest

from tests.recipe.test_baselines import ANSWER, of, program, run_python
from tests.recipe.test_environments import Sum
from tests.recipe.test_smurfs import TASK, played
from tests.recipe.test_smurfs_baselines import FINISH, call
from verl_ext.mas import Task
from verl_ext.recipe.baselines import CodeAct, PlanAndSolve, ReAct, Reflexion, ReWOO
from verl_ext.recipe.deepagent.environments import EnvironmentTool
from verl_ext.tools.catalogue import Catalogue, ToolSpec

SEARCH = 'Thought: hm\nAction: tool_search\nAction Input: {"intention": "films"}\nObservation:'
ADD = ToolSpec("add", "adds", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@pytest.mark.parametrize("system", [ReAct, PlanAndSolve])
def test_an_agent_searches_for_its_tools_itself(system):
    """Table 4 of DeepAgent, "Auto. Tool Retrieval"; `retrieved` is its "Input Retrieved Tool"."""
    said = {"planner": "1. search", "agent": [call("film"), SEARCH, call("film"), FINISH]}
    trajectory, llm = played(said, system=system, tools="search")
    assert llm.calls == ["film"] and trajectory.result.searches == 1
    first, second, third, _ = of(trajectory, "agent")
    assert '"name": "tool_search"' in first.messages[-1]["content"] and '"name": "film"' not in str(first.messages)
    assert "no tool film" in second.observation and '"name": "film"' in third.observation
    trajectory, llm = played(said | {"agent": [SEARCH, call("film"), FINISH]}, system=system, tools="retrieved")
    assert llm.calls == ["film"] and '"name": "film"' in of(trajectory, "agent")[0].messages[-1]["content"]
    assert "no tool tool_search" in of(trajectory, "agent")[1].observation


def test_a_program_searches_for_its_tools():
    said = [program('print(call_tool("tool_search", intention="films"))\nprint(call_tool("film", q="x"))'), ANSWER]
    trajectory, llm = played({"agent": said}, system=CodeAct, more={"run_python": run_python}, tools="search")
    assert llm.calls == ["film"] and trajectory.result.searches == 1 and trajectory.reward == 1.0


def test_who_plans_before_any_result_cannot_search():
    with pytest.raises(ValueError, match="tools='search' is unknown; allowed: given, retrieved"):
        ReWOO(tools="search")


def environment(said, system, **options):
    tool = EnvironmentTool(Sum, Catalogue([ADD]))

    async def search(query="", names=None):
        return [ADD.shown()]

    task = Task("Do it:", {"target": [], "path": "[]"}, extra={"id": "7", "tools": ["add"]})
    more = {"environment": tool, "tool_search": search, "run_python": run_python}
    return played(said, task=task, system=system, more=more, environment="environment", **options)[0]


def test_a_row_without_the_name_of_its_task_is_named():
    task, more = Task("Do it:", {"target": [], "path": "[]"}), {"environment": EnvironmentTool(Sum, Catalogue([ADD]))}
    trajectory, _ = played({}, task=task, system=ReAct, more=more, environment="environment")
    assert "row 0 has no extra_info.id, the environment's name of its task. Remedy" in trajectory.error


def add(n):
    return f'Action: add\nAction Input: {{"n": {n}}}\nObservation:'


def test_the_baselines_play_in_an_environment():
    """Table 2 of DeepAgent: ALFWorld and WebShop."""
    trajectory = environment({"agent": [add(3), add(4), FINISH]}, ReAct)
    assert trajectory.ok and trajectory.reward == 1.0, trajectory.error
    assert (trajectory.metrics["success"], trajectory.metrics["score"], trajectory.metrics["tool_calls"]) == (1, 1, 2)
    first, _, last = of(trajectory, "agent")
    assert "Do it:\n\nreach 7" in first.messages[-1]["content"] and "The task is over" in last.observation
    both = program('call_tool("add", n=3)\nprint(call_tool("add", n=4))')
    trajectory = environment({"agent": [both, ANSWER]}, CodeAct)
    assert trajectory.reward == 1.0
    assert environment({"agent": [add(3), FINISH]}, ReAct).metrics["success"] == 0.0


def test_reflexion_begins_its_environment_anew():
    said = {"agent": [add(3), FINISH, add(7), FINISH], "evaluator": ["no", "yes"], "reflector": "all at once"}
    trajectory = environment(said, Reflexion)
    assert trajectory.reward == 1.0, "3 + 7 is not 7"


def test_the_baselines_use_the_tools_of_general_tasks():
    """Table 2 of DeepAgent: GAIA and HLE."""
    said = ['Action: run_python\nAction Input: {"program": "print(42)"}\nObservation:', "FINAL ANSWER: 42"]
    task = Task("six times seven?", {"target": ["42"]})
    options = {"use": ["run_python"], "more": {"run_python": run_python}, "success": "gaia"}
    trajectory, _ = played({"agent": said}, task=task, system=ReAct, **options)
    assert trajectory.ok and trajectory.reward == 1.0 and "42" in of(trajectory, "agent")[1].observation
    assert '"name": "run_python"' in of(trajectory, "agent")[0].messages[-1]["content"]
    with pytest.raises(ValueError, match="use='look' is unknown"):
        ReAct(use=["look"])
    with pytest.raises(ValueError, match="environment and use"):
        ReAct(use=["run_python"], environment="environment")


def test_the_catalogue_is_still_the_default():
    assert played({"agent": [call("film"), FINISH]}, task=TASK, system=ReAct)[1].calls == ["film"]
