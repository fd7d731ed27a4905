"""The baselines of docs/baselines.md by hand: what each asks its agents for, in which order, and what comes of it."""

from __future__ import annotations

import asyncio
import json
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.helpers import fork
from tests.recipe.test_smurfs import of, played
from tests.recipe.test_smurfs_baselines import FINISH, call
from verl_ext.mas import Status, Unparsable
from verl_ext.recipe import baselines
from verl_ext.recipe.baselines import (
    CodeAct,
    CoT,
    Debate,
    PlanAndSolve,
    Reflexion,
    ReWOO,
    SelfRefine,
    SingleAgent,
)
from verl_ext.recipe.baselines.codeact import MARK, PREAMBLE
from verl_ext.recipe.baselines.debate import vote
from verl_ext.recipe.baselines.rewoo import filled, read_plan
from verl_ext.tools.sandbox import RunPython

ANSWER = "So.\nFINAL ANSWER: Tova"
PLAN = 'Plan: the film\n#E1 = film {"q": "x"}\nPlan: its person\n#E2 = person {"q": "by #E1"}'
SAID = {
    CoT: {"agent": ANSWER},
    PlanAndSolve: {"planner": "1. film", "agent": [call("film"), FINISH]},
    Reflexion: {
        "agent": [FINISH.replace("Tova", "Ola"), FINISH],
        "evaluator": ["No.", "Yes.", "Yes."],
        "reflector": "search",
    },
    ReWOO: {"planner": PLAN, "agent": ANSWER},
    SelfRefine: {"agent": FINISH.replace("Tova", "Ola"), "critic": ["Not Ola", "It is good."], "refiner": ANSWER},
    SingleAgent: {"agent": [call("tool_search").replace('"q"', '"intention"'), call("film"), FINISH]},
    Debate: {"agent": [FINISH, FINISH.replace("Tova", "Ola"), FINISH], "debater": ANSWER},
}


def saying(system):
    """What the agents say; the last text of each is said for ever."""
    said = SAID[system].items()
    return {agent: chain(texts, repeat(texts[-1])) if isinstance(texts, list) else texts for agent, texts in said}


def prompts_of(trajectory, agent):
    return [one.messages[-1]["content"] for one in of(trajectory, agent)]


@pytest.mark.parametrize("system", SAID, ids=lambda system: system.__name__)
def test_every_baseline_answers_trains_and_forks(system):
    """Untrained and in training: each agent's calls train, and a fork at any of them replays what came before."""

    async def then(forest, base):
        return await fork(forest, base, base.calls[-1].id)

    trajectory, forked, _ = played(saying(system), then=then, system=system)
    assert forked.ok and forked.calls[:-1] == trajectory.calls[:-1]
    assert trajectory.status is Status.OK and trajectory.result.answer == "Tova" and trajectory.reward == 1.0
    assert {one.agent for one in trajectory.calls} == set(SAID[system]) == set(system().trained_agents)
    assert all(one.trained for one in trajectory.calls) and trajectory.metrics["success"] == 1.0
    assert set(system.details) <= set(trajectory.metrics)


def test_no_output_breaks_a_baseline():
    for system, said in SAID.items():
        nonsense = dict.fromkeys(said, "no idea")
        trajectory, _ = played(nonsense, system=system, budget=3)
        assert trajectory.status is Status.OK and trajectory.metrics["success"] == 0.0, system


def test_the_plan_stands_in_the_agents_prompt():
    trajectory, llm = played(SAID[PlanAndSolve], system=PlanAndSolve)
    assert llm.calls == ["film"] and '"name": "film"' in prompts_of(trajectory, "planner")[0]
    assert "1. film" in of(trajectory, "agent")[0].messages[-1]["content"]


def test_reflexion_tries_again_with_what_it_noted():
    trajectory, _ = played(SAID[Reflexion], system=Reflexion)
    first, second = (one.messages[-1]["content"] for one in of(trajectory, "agent"))
    assert "Attempt 1 failed" not in first and "Attempt 1 failed. What you noted about it: search" in second
    assert "Its answer: Ola" in prompts_of(trajectory, "evaluator")[0]
    trajectory, _ = played(SAID[Reflexion], system=Reflexion, trials=1)
    assert trajectory.result.answer == "Ola" and not of(trajectory, "evaluator")


def test_rewoo_puts_results_into_later_calls():
    trajectory, llm = played(SAID[ReWOO], outcomes={"film": "Harbor"}, system=ReWOO)
    assert llm.calls == ["film", "person"]
    assert [one.arguments for one in trajectory.result.calls] == [{"q": "x"}, {"q": "by Harbor"}]
    assert "Result: Harbor" in prompts_of(trajectory, "agent")[0]
    assert filled(["#E1 and #E10"], {"#E1": "a"}) == ["a and #E10"]
    named = read_plan('#E1 = GET /search/movie {"query": "x"}\n#E2 = broken {"query"')
    assert [(step.name, step.arguments) for step in named] == [("GET /search/movie", {"query": "x"}), ("broken", None)]
    _, llm = played(SAID[ReWOO], system=ReWOO, budget=1)
    assert llm.calls == ["film"]


@pytest.mark.parametrize("line", ["#E1 = a" + " " * 200_000, "#E1 = " + "a " * 100_000, "#E1 = " + " " * 200_000])
def test_hostile_plans_take_linear_time(line):
    """Quadratic matching of 200,000 blanks takes longer than the time limit of a test."""
    with pytest.raises(Unparsable):
        read_plan(line)
    (step,) = read_plan(f'{line}\n#E2 = `film` {{"q": "x"}}')
    assert (step.label, step.name, step.arguments) == ("#E2", "film", {"q": "x"})


def test_self_refine_stops_where_the_critic_is_content():
    trajectory, _ = played(SAID[SelfRefine], system=SelfRefine)
    assert len(of(trajectory, "critic")) == 2 and len(of(trajectory, "refiner")) == 1
    assert "Draft of the answer: Ola" in prompts_of(trajectory, "refiner")[0]


def test_self_refine_shows_all_drafts_and_their_criticism():
    """The paper's refinement reads the history of drafts and feedback."""
    said = {"agent": FINISH.replace("Tova", "Ola"), "critic": iter(["Not Ola", "Not Ada", "It is good."])}
    trajectory, _ = played(said | {"refiner": iter(["FINAL ANSWER: Ada", ANSWER])}, system=SelfRefine)
    both = "Ola\nCriticism: Not Ola\nDraft of the answer: Ada\nCriticism: Not Ada"
    assert both in prompts_of(trajectory, "refiner")[1]


def test_a_single_agent_has_the_tools_that_it_has_found():
    trajectory, llm = played(SAID[SingleAgent], system=SingleAgent)
    assert llm.calls == ["film"] and '"name": "film"' not in of(trajectory, "agent")[0].messages[-1]["content"]
    assert trajectory.metrics["tool_calls"] == 1, "a search is no call of the gold path"
    _, llm = played({"agent": [call("film"), FINISH]}, system=SingleAgent)
    assert llm.calls == [], "a tool that it has not found cannot be called"


def test_debaters_read_the_others_and_vote():
    trajectory, _ = played(SAID[Debate], system=Debate)
    asked = prompts_of(trajectory, "debater")
    assert len(of(trajectory, "agent")) == len(asked) == 3 and "What you said:\nso\nAnswer: Ola\n" in asked[1]
    assert [prompt.count("- so\nAnswer: Ola") for prompt in asked] == [1, 0, 1], "the reasoning with the answer"
    assert vote(["", "The b", "a", "B."]) == "The b" and vote(["", ""]) == ""


async def run_python(program):
    """What the sandbox prints. The programs are this file's own."""
    with redirect_stdout(StringIO()) as out:
        try:
            exec(program.replace("_os._exit(0)", "raise SystemExit"), {})
        except SystemExit:
            pass
        except RuntimeError as error:
            print(f"RuntimeError: {error}")
    return out.getvalue()


def coded(said, **options):
    outcomes = {"person": "Tova", "find": {"ok": False, "error": "closed"}}
    return played({"agent": said}, outcomes=outcomes, system=CodeAct, more={"run_python": run_python}, **options)


def program(text):
    return f"Let me see.\n<execute>\n{text}\n</execute>"


def test_a_program_calls_the_tools():
    looped = 'for tool in ("film", "person"):\n    print(tool, call_tool(tool, q="x"))'
    trajectory, llm = coded([program(looped), ANSWER])
    assert trajectory.reward == 1.0 and llm.calls == ["film", "person"]
    assert "film fine\nperson Tova" in of(trajectory, "agent")[1].observation
    assert trajectory.metrics["path"] == 1.0
    trajectory, llm = coded([program('call_tool("find")'), program('call_tool("car")'), ANSWER])
    told = [one.observation for one in of(trajectory, "agent")[1:]]
    assert "closed" in told[0] and "no tool car" in told[1] and llm.calls == ["find"]
    trajectory, llm = coded([program('while True: call_tool("film")'), ANSWER], budget=4)
    assert llm.calls == ["film"] * 3 and "no tool can be called any more" in of(trajectory, "agent")[1].observation
    trajectory, _ = coded([program(f"print({MARK!r} + 'x')"), ANSWER])
    assert trajectory.ok, "a program may print what it likes"


def test_the_sandbox_stops_at_a_call_whose_result_is_not_known():
    async def outputs():
        tool, asked = RunPython(), 'print("so", call_tool("film", q="é"))'
        try:
            catching = 'try:\n    call_tool("a")\nexcept:\n    pass\nprint("went on")\ncall_tool("b")'
            programs = [([], asked), ([KNOWN], asked), ([], catching)]
            return [await tool(program=PREAMBLE % repr(json.dumps(known)) + text) for known, text in programs]
        finally:
            await tool.close()

    unknown, known, caught = asyncio.run(outputs())
    assert caught.count(MARK) == 1 and "went on" not in caught, "a program cannot catch the end at an unknown call"
    assert json.loads(unknown.rpartition(MARK)[2].splitlines()[0]) == ["film", {"q": "é"}]
    assert known.strip() == "so it's" and MARK not in known


KNOWN = {"ok": True, "result": "it's"}


def test_each_is_one_short_file():
    for path in Path(baselines.__file__).parent.glob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) <= (300 if path.stem == "prompts" else 100), path
