"""DeepAgent's stream: actions, results, limits. Hostile tools and outputs: test_deepagent_fuzz.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import Status, Task
from verl_ext.mas.types import Generation
from verl_ext.recipe.deepagent import DeepAgent
from verl_ext.recipe.deepagent.workflow import Work
from verl_ext.rewards.calls import Invocation
from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue.toolbox import Toolbox
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec

NUMBERS = {"type": "object", "properties": {name: {"type": "integer"} for name in "ab"}, "required": ["a", "b"]}
CATALOGUE = Catalogue([ToolSpec("add", "adds", NUMBERS), ToolSpec("odd", "does what it likes")])
TASK = Task(
    "2 + 3?",
    {"target": ["5"], "path": '[{"name": "add", "arguments": {"a": 2, "b": 3}}]'},
    extra={"tools": ["add"]},
)


def scenario(answers, result="fine", limits=None, task=None, **options):
    """Run the agent on given outputs; `auxiliary` outputs come from a second list. Returns (trajectory, prompts)."""
    spoken = {name: iter(said) for name, said in answers.items()}

    async def backend(spec, arguments):
        if spec.name == "add":
            return arguments["a"] + arguments["b"]
        if isinstance(result, BaseException):
            raise result
        return result

    async def search(query="", names=None):
        if query == "down":
            raise ToolError("no search today")
        return [tool.shown() for tool in CATALOGUE.values()]

    async def scene():
        llm = FakeLLM(lambda request: next(spoken[request.agent]))
        tools = {"tool_call": Toolbox(CATALOGUE, backend), "tool_search": search}
        given_limits = {"max_prompt_tokens": 100_000, "tool_retries": 0, **(limits or {})}
        forest = forest_of(DeepAgent(**options), llm, tools=tools, limits=given_limits)
        forest.sampling, forest.task = {"max_tokens": 10_000}, task or TASK
        trajectory = await walk(forest)
        await tools["tool_call"].close()
        return trajectory, [request.prompt for request in llm.log]

    return run(scene(), quiet=False)


ADD = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


def test_search_call_answer():
    trajectory, prompts = scenario({"agent": ["I look. <tool_search>sums</tool_search>", f"So: {ADD}", "\\boxed{5}"]})
    assert trajectory.ok and trajectory.reward == 1.0
    metrics = trajectory.metrics
    assert metrics["path"] == metrics["correct_calls"] == metrics["searches"] == 1.0 and metrics["actions"] == 2.0
    assert prompts[1].startswith(prompts[0] + "I look. <tool_search>sums</tool_search>\n<tool_search_result>\n")
    assert prompts[2].endswith(f"So: {ADD}\n<tool_call_result>\n5\n</tool_call_result>\n")
    assert [call.continues is None for call in trajectory.calls] == [True, False, False]
    call = trajectory.calls[1]
    assert bytes(call.generation.token_ids[slice(*call.actions[0])]).decode() == ADD and not trajectory.calls[0].actions


@pytest.mark.parametrize(
    "said,kind,shown",
    [
        ('<tool_call>{"name": "none"}</tool_call>', "failed_calls", "error: there is no tool 'none'"),
        (ADD.replace("2", '"x"'), "failed_calls", "error: a: 'x' is not of type 'integer'"),
        ("<tool_call>oops</tool_call>", "broken_actions", "error: the call is no JSON"),
        ("<tool_search>down</tool_search>", "tool_failures", "error: the tool is not available"),
    ],
)
def test_errors_are_told_and_the_agent_goes_on(said, kind, shown):
    trajectory, prompts = scenario({"agent": [said, "5"]})
    assert trajectory.ok and trajectory.reward == 1.0 and trajectory.metrics[kind] == 1.0 and shown in prompts[1]


def test_limits_end_the_trajectory_cleanly():
    trajectory, _ = scenario({"agent": [ADD] * 9}, max_actions=3)
    assert trajectory.ok and trajectory.reward == 0.0 and trajectory.metrics["limit_actions"] == 1.0
    assert trajectory.metrics["actions"] == 3.0 and len(trajectory.calls) == 4
    trajectory, _ = scenario({"agent": [ADD] * 9}, limits={"max_sequence_tokens": 200})
    assert trajectory.ok and trajectory.metrics["limit_tokens"] == trajectory.metrics["correct_calls"] == 1.0


@pytest.mark.parametrize("tools", ["given", "retrieved"])
def test_given_and_retrieved_tools_are_shown_at_once(tools):
    search = "<tool_search>sums</tool_search>"
    trajectory, prompts = scenario({"agent": [search, "5"]}, tools=tools)
    assert "Tools that you have been shown:" in prompts[0] and '"name": "add"' in prompts[0]
    assert trajectory.metrics["searches"] == (tools == "given")
    assert ("there is no search" in prompts[1]) == (tools == "retrieved")


@pytest.mark.parametrize("extra", [{}, {"tools": []}])
def test_a_row_without_tools_of_its_own_is_refused(extra):
    """API-Bank's levels 2 and 3 name none: an agent with an empty list would only learn to answer without tools."""
    trajectory, _ = scenario({"agent": ["5"]}, tools="given", task=replace(TASK, extra=extra))
    assert trajectory.status is Status.WORKFLOW_ERROR
    assert "has no extra_info.tools. Remedy: mas.workflow.tools=search" in trajectory.error


@pytest.mark.parametrize("tools", ["search", "retrieved"])
def test_an_agent_that_cannot_search_is_not_told_of_it(tools):
    trajectory, _ = scenario({"agent": ["5"]}, tools=tools)
    assert ("<tool_search>" in trajectory.calls[0].messages[0]["content"]) == (tools == "search")


ODD = '<tool_call>{"name": "odd"}</tool_call>'


def cut_off(text):
    """An output that reached max_tokens."""
    return Generation(list(text.encode()), [-0.5] * len(text), "length")


def test_an_answer_that_was_cut_off_is_none():
    trajectory, _ = scenario({"agent": [cut_off("So it is 5")]})
    assert trajectory.ok and (trajectory.reward, trajectory.metrics["limit_tokens"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("in short", "in short"),
        ("<think>what to keep</think>\n in short ", "in short"),
        ("what to keep</think>in short", "in short"),
        ("<think>what to keep</think>  ", "y" * 100),  # it only thinks
        ("<think>what to keep, and", "y" * 100),  # it never comes to an end
        ("  ", "y" * 100),
        (f"in short{'!' * 200}", f"in short{'!' * 92}"),  # too long itself
        (cut_off("<think>so</think>in sho"), "y" * 100),
        (RuntimeError("down"), "y" * 100),
    ],
)
def test_only_what_a_whole_summary_says_takes_the_place_of_a_long_result(said, shown):
    trajectory, prompts = scenario({"agent": [ODD, "5"], "auxiliary": [said]}, result="y" * 2000, max_result_chars=100)
    assert trajectory.ok and prompts[2].endswith(f"<tool_call_result>\n{shown}\n</tool_call_result>\n")
    assert trajectory.calls[2].continues is trajectory.calls[0] and "y" * 2000 in prompts[1]
    assert (trajectory.calls[1].status is Status.TRUNCATED) == isinstance(said, Generation)


def test_documentation_that_a_search_finds_may_be_longer_than_a_result():
    said = {"agent": ["<tool_search>sums</tool_search>", ODD, "5"], "auxiliary": ["in short"] * 2}
    for allowed, summaries in ((100, 2), (5000, 1)):
        trajectory, _ = scenario(dict(said), result="y" * 2000, max_result_chars=100, max_document_chars=allowed)
        assert sum(call.agent == "auxiliary" for call in trajectory.calls) == summaries


def test_without_summaries_long_results_are_cut():
    _, prompts = scenario({"agent": [ODD, "5"]}, result="y" * 2000, max_result_chars=100, summarise=False)
    assert 0 < prompts[1].count("y") <= 100


@pytest.mark.parametrize(
    ("success", "truth", "message"),
    [
        ("path", {"target": ["5"]}, r"row 7 has no gold path .*given are \['target'\].*success=answer"),
        ("path", {"target": [], "path": "[]"}, r"row 7 has no gold path .*given are \['path', 'target'\]"),
        ("answer", {"path": '["add"]'}, r"row 7 has no answer .*given are \['path'\].*success=path"),
    ],
)
def test_a_row_that_cannot_be_scored_stops_the_run(success, truth, message):
    task = Task("q", truth, index=7)
    with pytest.raises(ValueError, match=message):
        DeepAgent(success=success).reward(task, Work(task, answer="5"))


def test_a_row_needs_only_what_its_success_is():
    answered, gone = Task("q", {"target": ["5", "five"]}), Task("q", {"path": '["add"]'})
    assert DeepAgent().reward(answered, Work(answered, answer="five"))[0] == 1.0
    assert DeepAgent(success="path").reward(gone, Work(gone, calls=[Invocation("add", {})]))[0] == 1.0
    assert DeepAgent(success="path").reward(gone, Work(gone))[0] == 0.0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"prompts": "x"}, "prompts='x' is unknown; allowed: faithful, tiny"),
        ({"max_folds": -1}, "must be at least 0"),
        ({"call_price": float("nan")}, "call_price=nan must be at least 0, and finite"),
        ({"call_price": float("inf")}, "call_price=inf must be at least 0, and finite"),  # ∞ · 0 is NaN
    ],
)
def test_wrong_arguments_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        DeepAgent(**option)
