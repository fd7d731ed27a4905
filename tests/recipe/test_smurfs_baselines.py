"""The Smurfs' baselines: ReAct and DFSDT by hand, under the same budget, and that no output and no tool breaks them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, forest_of, fork, run, walk
from tests.recipe.test_smurfs import TASK, of, played, world
from verl_ext.mas import Status, Task
from verl_ext.recipe.smurfs import DFSDT, ReAct, Smurfs
from verl_ext.tools.base import ToolError

BOTH = pytest.mark.parametrize("system", [ReAct, DFSDT])
GIVE_UP = "Thought: stuck\nAction: give_up_and_restart\nAction Input: {}"
FINISH = 'Thought: so\nAction: Finish\nAction Input: {"answer": "Tova"}'


def call(name, value="x", thought="hm"):
    return f"Thought: {thought}\nAction: {name}\nAction Input: {json.dumps({'q': value})}\nObservation:"


def playing(system, said, outcomes=None, **options):
    return played({"agent": said}, (), outcomes, system=system, **options)


def prompts_of(llm):
    return [request.prompt for request in llm.log]


def test_react_by_hand():
    said = [call("film"), call("person"), FINISH]
    trajectory, llm = playing(ReAct, said, {"film": {"ok": False, "error": "closed"}, "person": "Tova Brandt"})
    assert trajectory.ok and trajectory.reward == 1.0 and llm.calls == ["film", "person"]
    first, second, third = prompts_of(llm)
    assert "Question: who?" in first and '"name": "film"' in first and "16 times" in first
    assert second == f"{first}{said[0]} error: closed\nThought:"
    assert third == f"{second}{said[1]} Tova Brandt\nThought:", "one stream"
    calls = trajectory.calls
    assert [c.continues for c in calls] == [None, *calls[:2]]
    metrics = trajectory.metrics
    assert (metrics["tool_calls"], metrics["failed_calls"], metrics["correct_calls"]) == (2, 1, 1)
    assert (metrics["answer"], metrics["path"], metrics["path_share"], metrics["finished"]) == (1, 0, 0.5, 1)
    spent = sum(len(c.prompt_ids) + c.generated_tokens for c in calls)
    assert metrics["tokens"] == spent and metrics["tokens_per_call"] == spent / 3


@BOTH
def test_only_tool_calls_are_marked_as_actions(system):
    trajectory, _ = playing(system, [call("film"), FINISH])
    made, answered = trajectory.calls
    ((start, end),) = made.actions
    assert bytes(made.generation.token_ids[start:end]).decode() == 'Action: film\nAction Input: {"q": "x"}'
    assert answered.actions == [] and set(ReAct().trained_agents) == {"agent"}


def test_react_is_told_what_cannot_be_done():
    said = ["no idea", "Action: film\nAction Input: x", call("car"), GIVE_UP, "FINAL ANSWER: Tova"]
    trajectory, llm = playing(ReAct, said)
    assert trajectory.ok and trajectory.reward == 1.0 and llm.calls == []
    told = prompts_of(llm)[-1]
    assert "Observation: error: there is neither an action nor an answer\n" in told
    assert "Observation: error: there is no tool car" in told and "no tool give_up_and_restart" in told
    metrics = trajectory.metrics
    assert (metrics["broken"], metrics["tool_calls"], metrics["failed_calls"]) == (2, 2, 2)


def test_where_the_budget_is_used_up_react_is_asked_once_more():
    trajectory, llm = playing(ReAct, [call("film"), call("person"), "FINAL ANSWER: Tova"], budget=2)
    assert trajectory.reward == 1.0 and trajectory.metrics["finished"] == 0
    assert ["cannot call any more tools" in prompt for prompt in prompts_of(llm)] == [False, False, True]
    trajectory, llm = playing(ReAct, [call("film")] * 3, budget=2)
    assert trajectory.ok and trajectory.result.answer == "" and llm.calls == ["film"] * 2


@BOTH
def test_without_a_last_answer_a_baseline_that_never_finishes_has_none(system):
    """The authors' baselines, which is why Mistral-7B has 0.0 in Table 3."""
    trajectory, llm = playing(system, [call("film"), call("person", 2)], budget=2, last_answer=False)
    assert trajectory.ok and (trajectory.result.answer, trajectory.metrics["finished"]) == ("", 0)
    assert llm.calls == ["film", "person"] and len(trajectory.calls) == 2


@BOTH
def test_the_whole_answer_where_it_is_read(system):
    said = 'Thought: so\nAction: Finish\nAction Input: {"answer": "Tova.\\nBorn in Karsa."}'
    trajectory, llm = playing(system, [said], success="path")
    assert trajectory.result.answer == "Tova.\nBorn in Karsa." and "as short as" not in prompts_of(llm)[0]


def test_dfsdt_by_hand():
    """film, below it person and find, both given up, which closes film's node (width 2); then person at the root."""
    below = [call("film", 1), call("person", 2), GIVE_UP, call("find", 3), GIVE_UP]
    trajectory, llm = playing(DFSDT, [*below, call("person", 4), FINISH], {"person": "Tova"}, width=2)
    assert trajectory.ok and trajectory.reward == 1.0 and llm.calls == ["film", "person", "find", "person"]
    prompts = prompts_of(llm)
    paths = [[n for n in (1, 2, 3, 4) if f'Action Input: {{"q": {n}}}' in prompt] for prompt in prompts]
    assert paths == [[], [1], [1, 2], [1], [1, 3], [], [4]], "the whole path, and nothing else"
    again = ["not the first time" in prompt for prompt in prompts]
    assert again == [False, False, False, True, False, True, False]
    assert '- person {"q": 2}\nNow choose' in prompts[3] and '- film {"q": 1}\nNow choose' in prompts[5]
    assert "Observation: Tova\n" in prompts[6]
    assert (trajectory.metrics["rollbacks"], trajectory.metrics["tool_calls"]) == (3, 4)


def test_dfsdt_refuses_what_was_tried_there():
    said = [call("film"), GIVE_UP, call("film"), "no idea", call("film", "y"), FINISH]
    trajectory, llm = playing(DFSDT, said)
    assert trajectory.ok and llm.calls == ["film", "film"] and trajectory.metrics["broken"] == 2
    prompts = prompts_of(llm)
    assert "refused: this very call was made here before" in prompts[3]
    assert "refused: there is neither an action" in prompts[4] and "refused" not in prompts[5]


def test_dfsdt_goes_back_from_the_deepest_node():
    said = [call("film"), call("person"), call("person"), FINISH]
    trajectory, llm = playing(DFSDT, said, max_depth=1)
    assert llm.calls == ["film", "person"] and trajectory.metrics["rollbacks"] == 1, "the second is not made"
    assert ["No call leads on from here" in prompt for prompt in prompts_of(llm)] == [False, True, False, True]


@pytest.mark.parametrize("options", [{"budget": 2}, {"width": 1}])
def test_where_dfsdt_has_not_finished_it_is_asked_once_more_with_all_that_was_found(options):
    said = [call("film"), call("person"), "FINAL ANSWER: Tova"]
    if options.get("width"):
        said[2:2] = [GIVE_UP]
    trajectory, llm = playing(DFSDT, said, {"film": "a film", "person": "a person"}, **options)
    assert trajectory.ok and trajectory.reward == 1.0 and trajectory.metrics["finished"] == 0
    last = prompts_of(llm)[-1]
    assert "Observation: a film" in last and "Observation: a person" in last and "cannot call any more" in last


@BOTH
def test_tools_whose_infrastructure_fails(system):
    trajectory, llm = playing(system, [call("film"), FINISH], {"film": ToolError("down")})
    assert trajectory.ok and (trajectory.metrics["tool_failures"], trajectory.metrics["failed_calls"]) == (1, 1)
    assert "error: film is not available" in prompts_of(llm)[1]


@BOTH
def test_tools_are_found(system):
    bare = Task("who?", {"target": ["Tova"]})
    assert playing(system, [call("film"), FINISH], task=bare, tools="retrieved")[1].calls == ["film"]


@BOTH
def test_any_call_can_be_forked(system):
    async def then(forest, base):
        forest.llm.said["agent"] = iter([call("person"), FINISH])
        return await fork(forest, base, of(base, "agent")[1].id)

    base, forked, llm = playing(system, [call("film"), call("find"), FINISH], then=then)
    assert forked.ok and [c.name for c in forked.result.calls] == ["film", "person"]
    assert llm.calls == ["film", "find", "person"] and of(base, "agent")[0] is of(forked, "agent")[0]


@BOTH
def test_prompts_that_do_not_fit(system):
    trajectory, llm = playing(system, [], limits={"max_prompt_tokens": 5})
    assert trajectory.ok and trajectory.result.answer == "" and llm.log == []


def test_a_path_that_does_not_fit_is_given_up():
    long = {"film": "z" * 3000}
    said = [call("film"), call("find"), FINISH]
    trajectory, llm = playing(DFSDT, said, long, limits={"max_prompt_tokens": 3000}, max_result_chars=3000)
    assert trajectory.ok and trajectory.reward == 1.0 and llm.calls == ["film", "find"]
    assert trajectory.metrics["rollbacks"] == 1 and "- film" in prompts_of(llm)[1]


@pytest.mark.parametrize("system", [ReAct, DFSDT, Smurfs])
def test_an_engines_failure_is_no_wrong_answer(system):
    trajectory, _ = played({"agent": RuntimeError("down"), "thought": RuntimeError("down")}, system=system)
    assert trajectory.status is Status.ENGINE_ERROR


def test_the_same_quantities_as_the_smurfs():
    """All three can be put into one table."""
    theirs, _ = played({}, ["film", "film"], budget=4)
    for system in (ReAct, DFSDT):
        trajectory, _ = playing(system, [FINISH], budget=4)
        assert set(theirs.metrics) - set(trajectory.metrics) == {"tasks", "verified"}
        assert set(trajectory.metrics) - set(theirs.metrics) == {"broken", "finished"}
        assert set(system.details) < set(trajectory.metrics) and set(Smurfs.details) < set(theirs.metrics)


CALLS = st.builds(call, st.sampled_from(["film", "person", "car"]), st.integers(0, 1))
ODD = st.sampled_from([FINISH, "Action: film", "Action: film\nAction Input: {", "</think>"]) | st.text(min_size=1)
OUTPUTS = st.one_of(CALLS, CALLS, st.just(GIVE_UP), st.just(GIVE_UP), ODD)


@settings(max_examples=100)
@given(
    st.sampled_from([ReAct, DFSDT]),
    st.integers(1, 9),
    st.lists(OUTPUTS, min_size=1, max_size=12),
    st.lists(
        st.sampled_from(["fine", None, ToolError("down"), "Action: film\nFINAL ANSWER: no", "z" * 9000]), min_size=1
    ),
    st.integers(1, 3),
)
def test_no_output_and_no_tool_breaks_them(system, budget, said, results, width):
    """They come to their end, and call no more tools than they may; DFSDT never the same twice at a node."""
    made = []

    async def scene():
        tools, _ = world()

        async def tool_call(name, arguments):
            result = results[len(made) % len(results)]
            made.append(name)
            if isinstance(result, Exception):
                raise result
            return {"ok": True, "result": result} if result else {"ok": False, "error": "e"}

        llm = FakeLLM(lambda request: said[len(llm.log) % len(said)])
        options = {"width": width, "max_depth": 3} if system is DFSDT else {}
        forest = forest_of(
            system(budget=budget, **options), llm, tools={**tools, "tool_call": tool_call}, limits={"tool_retries": 0}
        )
        forest.sampling, forest.task = {"temperature": 1.0, "max_tokens": 500}, TASK
        return await walk(forest), llm

    trajectory, llm = run(scene(), quiet=False)
    assert trajectory.ok, trajectory.error
    assert len(made) <= trajectory.metrics["tool_calls"] <= budget and 0.0 <= trajectory.reward <= 1.0
    assert trajectory.metrics["tool_calls"] + trajectory.metrics["broken"] <= budget
    assert len(llm.log) <= (budget + 1 if system is ReAct else 2 * budget)
    if system is DFSDT:
        called = [tool for tool in trajectory.tools if tool.name == "tool_call"]
        moves = [(path_of(tool.after[-1]), str(tool.arguments)) for tool in called]
        assert len(set(moves)) == len(moves)


def path_of(asked):
    """The path in a prompt, which tells a node."""
    path = asked.messages[-1]["content"].partition("Question: who?")[2]
    for end in ("This is not the first time", "Your last output", "Go on with", "No call leads"):
        path = path.partition(end)[0]
    return path


@pytest.mark.parametrize(
    ("system", "options", "message"),
    [
        (ReAct, {"prompts": "tiny"}, "prompts='tiny' is unknown; allowed: faithful"),
        (DFSDT, {"width": 0}, "width=0 must be at least 1"),
    ],
)
def test_bad_settings(system, options, message):
    with pytest.raises(ValueError, match=message):
        system(**options)
