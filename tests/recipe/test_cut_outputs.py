"""What was cut off at max_tokens is not carried out: no call, no plan, no program, no choice of documents."""

from __future__ import annotations

import pytest

from tests.helpers import FakeLLM, forest_of, run, walk
from tests.recipe.test_puppeteer import played as directed
from tests.recipe.test_smurfs import of, played
from tests.recipe.test_smurfs_baselines import call
from verl_ext.mas import Status, Task
from verl_ext.mas.types import Generation
from verl_ext.recipe.baselines import CodeAct, ReWOO
from verl_ext.recipe.mhgpo import SearchQA
from verl_ext.recipe.smurfs import DFSDT, ReAct

ONE = '{"Tasks": ["one"]}'
# SmolLM2-135M under the Smurfs' prompt for arguments: the id goes on behind max_tokens.
ARGUMENTS = '{"movie_id": 59'


def cut(text: str) -> Generation:
    """An output that reached max_tokens."""
    return Generation(list(text.encode()), [-0.5] * len(text.encode()), "length")


@pytest.mark.parametrize("text", [ARGUMENTS, '{"q": "x"}', '{"q": "x"}\nThe user asked for'])
def test_arguments_that_were_cut_off_are_not_used(text):
    trajectory, llm = played({"planner": ONE, "arguments": [cut(text)] * 3}, ["find", "film", "person"])
    assert trajectory.ok and llm.calls == [] and trajectory.metrics["failed_calls"] == 3
    made = of(trajectory, "arguments")[0]
    assert made.status is Status.UNPARSABLE and made.value is None and "reached max_tokens" in made.error


def test_a_plan_that_was_cut_off_is_none():
    trajectory, _ = played({"planner": [cut('{"Tasks": ["a", "b"]} {"Tasks')]}, ["film"])
    assert of(trajectory, "planner")[0].value == ["who?"] and trajectory.metrics["tasks"] == 1


@pytest.mark.parametrize("system", [ReAct, DFSDT])
def test_an_action_that_was_cut_off_is_not_made(system):
    trajectory, llm = played({"agent": [cut(call("film"))] * 9}, (), system=system, budget=2)
    assert trajectory.ok and llm.calls == [] and trajectory.metrics["broken"] == 2
    assert "was cut off" in llm.log[1].prompt, "the agent is told"


def test_a_program_that_was_cut_off_does_not_run():
    programs = []

    async def python(program):
        programs.append(program)
        return "42"

    said = [cut("<execute>\nfor name in ('a', 'b'):\n    print(name)")]
    trajectory, _ = played({"agent": said}, (), system=CodeAct, more={"run_python": python})
    assert trajectory.ok and programs == [] and trajectory.result.answer == ""
    said = {"run_python": cut("```python\nprint(7*6)"), "reasoning": "FINAL ANSWER: 41"}
    trajectory, _ = directed(["run_python", "terminate"], said, tools={"run_python": python})
    assert trajectory.ok and programs == [] and "no program" in trajectory.result.states[0].steps[0].text


@pytest.mark.parametrize(("said", "answer"), [("FINAL ANSWER: 4", ""), ("FINAL ANSWER: 42\nLet me", "42")])
def test_an_answer_at_the_end_of_a_cut_output_is_none(said, answer):
    trajectory, _ = directed(["reasoning", "terminate"], {"reasoning": cut(said)})
    assert trajectory.ok and trajectory.result.answer == answer, "the rest of a whole line may be missing"


def test_planned_calls_that_were_cut_off_are_not_made():
    said = {"planner": [cut('#E1 = film {"q": "x"}\n#E2 = per')], "agent": "FINAL ANSWER: ?"}
    trajectory, llm = played(said, (), system=ReWOO)
    assert trajectory.ok and llm.calls == []


DOCS = [{"pid": str(i), "title": f"t{i}", "text": "x"} for i in range(12)]


def searched(**said):
    """A trajectory of MHGPO's agents, and the queries of its searches."""
    searches = []

    async def search(queries):
        searches.append(queries)
        return DOCS

    async def scene():
        outputs = {"rewriter": "### who ###", "reranker": "0", "answerer": "x"} | said
        forest = forest_of(SearchQA(), FakeLLM(lambda request: outputs[request.agent]), tools={"search": search})
        forest.task = Task("who?", {"target": ["x"]}, extra={})
        return await walk(forest)

    return run(scene()), searches


def test_a_choice_of_documents_that_was_cut_off_is_none():
    trajectory, _ = searched(reranker=cut("3, 1"))  # perhaps 3, 11
    assert trajectory.ok and of(trajectory, "reranker")[0].value == DOCS[:1]


@pytest.mark.parametrize("text", ["### a; ### ### ### ###", "### Annie Morton; Terry", "### who ### and then"])
def test_queries_of_an_output_that_was_cut_off_are_not_asked(text):
    """SmolLM2-135M learned the first by RL: any closed block, and then on to the limit."""
    trajectory, searches = searched(rewriter=cut(text))
    assert trajectory.ok and searches == [["who?"]], "the question is the query"
    assert of(trajectory, "rewriter")[0].status is Status.UNPARSABLE
