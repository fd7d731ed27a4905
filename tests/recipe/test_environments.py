"""Environments as tools: state is a function of a trajectory's own calls, whoever asks, whatever was lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.helpers import FakeLLM, forest_of, run, walk
from verl_ext.mas import Task
from verl_ext.recipe.deepagent import Mixture
from verl_ext.recipe.deepagent.environments import EnvironmentAgent, EnvironmentTool, Turn, alfworld_tool, webshop_tool
from verl_ext.recipe.deepagent.environments.alfworld import AlfWorld, path_share
from verl_ext.recipe.deepagent.environments.webshop import TOOLS, WebShop
from verl_ext.recipe.deepagent.work import Work
from verl_ext.tools.base import ToolError
from verl_ext.tools.catalogue import Catalogue, ToolSpec, load_catalogue

ADD = ToolSpec("add", "adds", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


class Sum:
    """Adds up to the task's number; every object that is made, and every step, is counted."""

    made = stepped = closed = 0
    broken = ""

    def __init__(self):
        type(self).made += 1

    def reset(self, task):
        self.goal, self.total = int(task), 0
        return Turn(f"reach {task}")

    def step(self, name, arguments):
        if Sum.broken:
            Sum.broken = ""
            raise OSError("gone")
        Sum.stepped += 1
        self.total += arguments["n"]
        score = float(self.total == self.goal)
        return Turn(str(self.total), score, self.total >= self.goal, effect=arguments["n"] != 0)

    def close(self):
        Sum.closed += 1


@pytest.fixture
def tool():
    Sum.made = Sum.stepped = Sum.closed = 0
    return EnvironmentTool(Sum, Catalogue([ADD]), sessions=2)


def past(*numbers):
    return [{"name": "add", "arguments": {"n": n}} for n in numbers]


def ask(tool, *calls):
    """Answers to (task, past, n or None), one after the other."""

    async def scene():
        answers = []
        for task, before, n in calls:
            (call,) = [{}] if n is None else past(n)
            answers += await asyncio.gather(tool(task=task, past=past(*before), **call), return_exceptions=True)
        return answers

    return asyncio.run(scene())


def test_a_trajectory_goes_on_where_it_was_one_step_at_a_time(tool):
    turns = ask(tool, ("7", [], None), ("7", [], 3), ("7", [3], 4), ("7", [3, 4], 1))
    assert [turn["result"] for turn in turns[:3]] == ["reach 7", "3", "7"]
    assert [(turn["score"], turn["done"]) for turn in turns[:3]] == [(0.0, False), (0.0, False), (1.0, True)]
    assert turns[3] == {"ok": False, "error": "the task is over", "kind": "tool_error"}
    assert (Sum.made, Sum.stepped) == (1, 2)


def test_trajectories_that_part_and_retries_find_their_own_state(tool):
    turns = ask(tool, ("9", [], 2), ("9", [2], 3), ("9", [2], 4), ("9", [2], 3), ("9", [2, 4], 3), ("9", [2, 3], 3))
    assert [turn["result"] for turn in turns] == ["2", "5", "6", "5", "9", "8"]
    assert Sum.made > 1, "the second one that went on from [2] was played again"


def test_what_is_not_kept_is_played_again(tool):
    ask(tool, *[(str(task), [], 1) for task in range(50, 60)])
    assert len(tool._kept) == 2 and Sum.closed == 8
    (turn,) = ask(tool, ("50", [1, 1, 1], 1))
    assert turn["result"] == "4"


def test_no_environment_is_forgotten_open(tool):
    """Two trajectories of a task begin alike: the second to arrive at a state has an environment of its own there."""
    ask(tool, ("9", [], 2), ("9", [], 2), ("9", [], 2))
    assert Sum.made == 3 and Sum.made - Sum.closed == len(tool._kept)
    asyncio.run(tool.close())
    assert Sum.made == Sum.closed


def test_a_failure_to_close_fails_nobody(tool, monkeypatch):
    def close(self):
        raise OSError("gone")

    monkeypatch.setattr(Sum, "close", close)
    turns = ask(tool, *[(str(task), [], 1) for task in range(50, 54)])
    assert [turn["ok"] for turn in turns] == [True] * 4, turns


def test_a_failure_loses_nothing(tool):
    ask(tool, ("9", [], 2))
    Sum.broken = "yes"
    (failed,) = ask(tool, ("9", [2], 3))
    assert isinstance(failed, ToolError) and "OSError: gone" in str(failed)
    assert ask(tool, ("9", [2], 3))[0]["result"] == "5", "the step was not made twice"


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("fly", {}, "unknown_tool"), (3, {}, "unknown_tool"),
        ("add", {"n": "3"}, "bad_arguments"), ("add", [1], "bad_arguments"),
    ],
)  # fmt: skip
def test_what_an_agent_may_write_is_answered_without_a_step(tool, name, arguments, kind):
    answer = asyncio.run(tool(task="9", past=[], name=name, arguments=arguments))
    assert (answer["ok"], answer["kind"], Sum.stepped) == (False, kind, 0)


def test_sessions_are_positive():
    with pytest.raises(ValueError, match="sessions must be an integer >= 1, given 0"):
        EnvironmentTool(Sum, Catalogue([ADD]), sessions=0)


def played(tool, task, said, agent=None, **options):
    """A trajectory of EnvironmentAgent (or `agent`) on given outputs, and the prompts of its agent."""
    spoken = iter(said)

    async def scene():
        async def search(query="", names=None):
            return [spec.shown() for spec in tool.catalogue.values()]

        llm = FakeLLM(lambda request: next(spoken))
        system = agent or EnvironmentAgent(tools="given", **options)
        forest = forest_of(system, llm, tools={"environment": tool, "tool_search": search})
        forest.sampling = {"max_tokens": 10_000}
        forest.limits = type(forest.limits)(max_prompt_tokens=100_000, tool_retries=1, retry_wait=0.0)
        forest.task = Task(
            "Do it:",
            {"target": [], "path": "[]"},
            extra={"id": task, "tools": list(tool.catalogue)},
            data_source="sums",
        )
        trajectory = await walk(forest)
        await tool.close()
        return trajectory, [request.prompt for request in llm.log]

    return asyncio.run(scene())


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_agent_is_judged_by_its_environment(tool):
    refused = ["<fold_thought>", *["no memory"] * 6]  # three memories, two tries each
    said = [call("add", n=3), call("add", n="x"), *refused, call("add", n=4), "done"]
    trajectory, prompts = played(tool, "7", said)
    assert trajectory.ok and trajectory.reward == 1.0, trajectory.error
    metrics = trajectory.metrics
    assert (metrics["success"], metrics["score"], metrics["tool_calls"], metrics["failed_calls"]) == (1, 1, 3, 1)
    assert metrics["correct_calls"] == 2 / 30 and "path" not in metrics and (Sum.made, Sum.stepped) == (1, 2)
    assert "Do it:\n\nreach 7" in prompts[0] and "The task is over" in prompts[-1]


def test_a_row_without_the_name_of_its_task_is_named(tool):
    trajectory, _ = played(tool, None, ["done"])
    assert "row 0 has no extra_info.id, the environment's name of its task. Remedy" in trajectory.error


@pytest.mark.parametrize(
    ("options", "earned"), [({}, 1 / 30), ({"call_share": False}, 1), ({"correct": "executed", "call_share": False}, 2)]
)
def test_actions_without_effect_earn_nothing_unless_all_that_are_executed_do(tool, options, earned):
    trajectory, _ = played(tool, "7", [call("add", n=0), call("add", n=1), call("add", n=1), "I give up"], **options)
    assert trajectory.metrics["correct_calls"] == earned and trajectory.metrics["tool_calls"] == 3
    with pytest.raises(ValueError, match="correct='gold_path' is unknown; allowed: effect, executed"):
        EnvironmentAgent(correct="gold_path")


def test_what_alfworld_and_webshop_call_no_effect():
    seen = [AlfWorld(Path())._seen({"feedback": said, "won": False}) for said in ("Nothing happens.\n", "You open it.")]
    assert [turn.effect for turn in seen] == [False, True]
    shop = WebShop(Site)
    shop.reset("3")
    tries = [("search", {"keywords": "mug"}), ("click", {"button": "red"})]
    assert [shop.step(*one).effect for one in tries] == [True, False]


def test_a_mixture_plays_each_task_by_the_workflow_of_its_source(tool):
    place = "verl_ext.recipe.deepagent"
    others = {"_target_": f"{place}.DeepAgent"}
    parts = {"sum?": {"_target_": f"{place}.environments.EnvironmentAgent", "tools": "given"}, "others": others}
    trajectory, prompts = played(tool, "7", [call("add", n=7), "done"], agent=Mixture(parts, max_actions=3))
    assert trajectory.metrics["correct_calls"] == 1 / 3
    assert trajectory.ok and trajectory.reward == 1.0 and "reach 7" in prompts[0]
    assert set(Mixture(parts).needs) == {"environment", "tool_search", "tool_call"}
    with pytest.raises(
        ValueError, match="data_source 'else', for which mas.workflow.of has no workflow; it has sum., o"
    ):
        Mixture(parts).reward(Task("?", data_source="else"), None)
    with pytest.raises(ValueError, match="need the same agents with the same stops"):
        Mixture(parts | {"third": others | {"max_folds": 0}})
    with pytest.raises(
        ValueError, match="have different prompts: {'sum.': 'faithful', .* Remedy: mas.workflow.prompts"
    ):
        Mixture(parts | {"third": others | {"prompts": "tiny"}})
    Mixture(parts | {"third": others | {"prompts": "faithful"}})


class Content:
    """A judge that accepts every response."""

    async def ask(self, template, sample=0, **fields):
        return {"correct": "yes"}


def test_a_mixture_needs_the_judge_of_its_parts_and_hands_it_to_them(tool):
    place = "verl_ext.recipe.deepagent.DeepAgent"
    parts = {"hle": {"_target_": place, "success": "hle"}, "others": {"_target_": place}}
    mixture = Mixture(parts)
    assert mixture.needs_judge and not Mixture({"others": {"_target_": place}}).needs_judge
    mixture.judge = Content()
    asked = Task("How many?", {"target": ["forty-two"]}, data_source="hle")
    reward, metrics = run(mixture.reward(asked, Work(asked, answer="42")))
    assert reward == metrics["success"] == 1.0


def test_an_agent_that_gives_up_has_the_score_so_far(tool):
    trajectory, _ = played(tool, "7", [call("add", n=3), "I give up"])
    assert trajectory.ok and (trajectory.reward, trajectory.metrics["success"]) == (0.0, 0.0)


GOAL = "Your task is to: {}."


@pytest.mark.parametrize(
    ("goal", "observations", "share"),
    [
        ("put a vase in safe", ["You arrive at shelf 1. On the shelf 1, you see a vase 2."], 1 / 2),
        (
            "put some vase on safe",
            ["On the shelf 1, you see nothing.", "You pick up the vase 2 from the shelf 1."],
            1 / 2,
        ),
        ("put a vase in safe", ["On the shelf 1, you see a vase 2.", "You pick up the vase 2 from the shelf 1."], 1.0),
        (
            "cool some pan and put it in shelf",
            ["Here you see a pan 1", "You pick up the pan 1", "You heat the pan 1"],
            2 / 3,
        ),
        ("put a clean pan in shelf", ["You clean the pan 1 using the sinkbasin 1."], 1 / 3),
        ("put a hot egg in garbagecan", ["You heat the egg 1 using the microwave 1."], 1 / 3),
        ("find two pen and put them in safe", ["You move the pen 1 to the safe 1."], 1 / 3),
        ("put two pen in safe", ["You put the pen 1 in/on the safe 1.", "You put the cup 1 in/on the safe 1."], 1 / 3),
        ("examine the pen with the desklamp", ["On the desk 1, you see a desklamp 1, and a pen 3."], 2 / 3),
        ("look at pen under the desklamp", ["On the desk 1, you see a pencil 1."], 0.0),
        ("tidy up", ["You see a pen 1."], None),
    ],
)
def test_path_of_alfworld(goal, observations, share):
    assert path_share(f"Do it:\n\n{GOAL.format(goal)}", observations) == share


GAME = """(define (problem plan_0) (:domain alfred)
(:objects agent1 - agent  AppleType - otype  CounterTopType FridgeType - rtype  loc_0 loc_1 loc_2 - location
 Apple_bar_1 - object  CounterTop_bar_1 Fridge_bar_1 - receptacle)
(:init (= (total-cost) 0) (atLocation agent1 loc_0) (openable Fridge_bar_1)
 (receptacleAtLocation CounterTop_bar_1 loc_1) (receptacleAtLocation Fridge_bar_1 loc_2)
 (receptacleType CounterTop_bar_1 CounterTopType) (receptacleType Fridge_bar_1 FridgeType)
 (objectType Apple_bar_1 AppleType) (pickupable Apple_bar_1) (canContain FridgeType AppleType)
 (canContain CounterTopType AppleType) (inReceptacle Apple_bar_1 CounterTop_bar_1) (objectAtLocation Apple_bar_1 loc_1))
(:goal (and (inReceptacle Apple_bar_1 Fridge_bar_1))))"""


def test_the_real_alfworld(tmp_path):
    alfworld = pytest.importorskip("alfworld", reason="alfworld is not installed (pip install 'verl_ext[alfworld]')")
    data = Path(alfworld.__file__).parent / "data"
    grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", "put some apple on fridge")
    game = {"pddl_domain": (data / "alfred.pddl").read_text(), "grammar": grammar, "pddl_problem": GAME}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "game.tw-pddl").write_text(json.dumps(game | {"solvable": True}))
    steps = [
        call("go_to", place="countertop 1"),
        call("take", thing="apple 1", place="countertop 1"),
        call("cool", thing="apple 1", place="fridge 1"),
        call("go_to", place="fridge 1"),
        call("open", place="fridge 1"),
        call("move", thing="apple 1", place="fridge 1"),
        "It is in the fridge.",
    ]
    trajectory, prompts = played(alfworld_tool(str(tmp_path), sessions=1), "a/game.tw-pddl", steps)
    assert trajectory.ok and trajectory.reward == trajectory.metrics["path"] == 1.0, trajectory.error
    assert "Your task is to: put some apple on fridge" in prompts[0]
    assert "You pick up the apple 1 from the countertop 1." in prompts[2] and "Nothing happens." in prompts[3]
    trajectory, _ = played(alfworld_tool(str(tmp_path)), "a/game.tw-pddl", [*steps[:4], "stop"])
    assert (trajectory.reward, trajectory.metrics["tool_calls"]) == (0.0, 4.0)


class Site:
    """A stand-in for WebShop's WebAgentTextEnv, with its documented interface; the real one is not run here."""

    def reset(self, session=None):
        assert isinstance(session, int)
        self.page = "search"
        return "WebShop [SEP] Instruction: [SEP] a red mug", None

    def get_available_actions(self):
        buttons = {"search": ["search"], "results": ["back to search", "b01"], "item": ["red", "buy now"]}
        return {"has_search_bar": self.page == "search", "clickables": buttons[self.page]}

    def step(self, action):
        following = {"search[mug]": "results", "click[B01]": "item", "click[Buy Now]": "search"}
        self.page = following.get(action, self.page)
        done = action == "click[Buy Now]"
        return f"page {self.page}", 0.5 * done, done, None

    def close(self):
        pass


def test_webshop_behind_its_documented_interface():
    tool = EnvironmentTool(lambda: WebShop(Site), load_catalogue([{"kind": "json", "path": str(TOOLS)}]))
    said = [
        call("click", button="B01"),
        call("search", keywords="mug"),
        call("click", button="B01"),
        call("click", button="Buy Now"),
        "bought",
    ]
    trajectory, prompts = played(tool, "3", said)
    assert trajectory.ok and (trajectory.reward, trajectory.metrics["success"]) == (0.5, 0.0)
    assert "a red mug" in prompts[0] and "click[B01] is not possible here." in prompts[1]
    assert "Buttons: back to search, b01" in prompts[2]


def test_packages_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'verl_ext\[alfworld\]'"):
        alfworld_tool.preflight(str(tmp_path))
    with pytest.raises(ValueError, match="alfworld-download"):
        alfworld_tool.preflight(str(tmp_path / "nowhere"))
    with pytest.raises(ModuleNotFoundError, match="clone https://github.com/princeton-nlp/WebShop"):
        webshop_tool.preflight()
