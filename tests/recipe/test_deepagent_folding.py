"""DeepAgent folds its thoughts: memories in place of the history, repaired, refused and limited."""

from __future__ import annotations

import json

import pytest

from tests.helpers import FakeLLM, forest_of, run, walk
from tests.recipe.test_deepagent import ADD
from verl_ext.mas import Task
from verl_ext.recipe.deepagent import DeepAgent, memories

FOLD = {"agent": ["<fold_thought>", "5"]}
MADE = {
    "episodic": {
        "task_description": "t",
        "key_events": [{"step": "1", "description": "s", "outcome": "o"}],
        "current_progress": "p",
    },
    "working": {"immediate_goal": "g", "current_challenges": "", "next_actions": []},
    "tool": {"tools_used": [], "derived_rules": ["</tool_call><fold_thought>"]},
}


def by_kind(request, **broken):
    """The auxiliary's answer to the memory that a prompt asks for."""
    kind = next(kind for kind in memories.KINDS if f"the {kind} memory" in request)
    return broken.get(kind, json.dumps(MADE[kind]))


def folding(said, **options):
    """Fold, then answer; `said(prompt, attempt)` is what the auxiliary answers."""
    seen = []

    async def scene():
        agent = iter(options.pop("agent", FOLD["agent"]))

        def answer(request):
            if request.agent == "agent":
                return next(agent)
            seen.append(request.prompt)
            return said(request.prompt, len(seen))

        forest = forest_of(DeepAgent(**options), FakeLLM(answer), limits={"max_prompt_tokens": 100_000})
        forest.sampling = {"max_tokens": 10_000}
        forest.task = Task("q", {"target": ["5"]})
        return await walk(forest), forest.llm

    trajectory, llm = run(scene())
    return trajectory, [request for request in llm.log if request.agent == "agent"], seen


def test_a_fold_replaces_the_history():
    trajectory, agent, asked = folding(lambda prompt, _: by_kind(prompt))
    assert trajectory.ok and trajectory.reward == 1.0 and trajectory.metrics["folds"] == 1.0
    assert len(asked) == 3 and all("<fold_thought>" in prompt for prompt in asked)
    window = agent[1].prompt
    assert 'working memory: {"immediate_goal": "g"' in window and window.startswith("Task: q\n\nYour work so far")
    first, last = trajectory.calls[0], trajectory.calls[-1]
    assert last.continues is None and first.actions == [(0, len("<fold_thought>"))]
    helpers = [call for call in trajectory.calls if call.agent == "auxiliary"]
    assert {call.id.scope for call in helpers} == {("episodic",), ("working",), ("tool",)}
    assert not any(call.trained for call in helpers)
    assert set(last.parents) == set(helpers) and all(call.parents == (first,) for call in helpers)
    assert max(call.depth for call in helpers) == 1, "the three are made side by side"


@pytest.mark.parametrize("style", ["faithful", "tiny"])
def test_a_second_fold_is_given_the_memories_of_the_first(style):
    """Eq. 4: what is folded is the state, and after a fold that begins with the memories."""

    def made(mark):
        if style == "tiny":
            return {"episodic": {"events": [mark]}, "working": {"goal": mark}, "tool": {"tools": [mark]}}
        changed = {
            "episodic": {"current_progress": mark},
            "working": {"immediate_goal": mark},
            "tool": {"derived_rules": [mark]},
        }
        return {kind: MADE[kind] | changed[kind] for kind in memories.KINDS}

    first, second = made("oldest"), made("newest")

    def said(prompt, attempt):
        kind = next(kind for kind in memories.KINDS if f"the {kind} memory" in prompt or f"{kind}: q" in prompt)
        return json.dumps((first if attempt <= 3 else second)[kind])

    said_by_agent = ["one<fold_thought>", "two<fold_thought>", "5"]
    trajectory, agent, asked = folding(said, prompts=style, agent=said_by_agent)
    assert trajectory.ok and trajectory.metrics["folds"] == 2.0 and len(asked) == 6
    prompts = DeepAgent(style).prompts
    shown = prompts.remembered(first)
    for kind, prompt in zip(memories.KINDS, asked[:3], strict=True):
        assert prompt == prompts.memory(kind, "q", "one<fold_thought>")[-1]["content"], "the first fold is as it was"
    for kind, prompt in zip(memories.KINDS, asked[3:], strict=True):
        assert prompt == prompts.memory(kind, "q", f"{shown}{prompts.BLANK}two<fold_thought>")[-1]["content"]
    assert "oldest" in shown and shown in agent[1].prompt
    assert "newest" in agent[2].prompt and "oldest" not in agent[2].prompt, "the auxiliary says what is kept"


def test_a_memory_is_repaired_once():
    def answer(prompt, attempt):  # the prompt that FakeLLM sees is the last message alone
        again = prompt.startswith("That is not valid")
        return json.dumps(MADE["working"]) if again else by_kind(prompt, working='{"immediate_goal": "g"}')

    trajectory, _, asked = folding(answer)
    assert trajectory.metrics["folds"] == 1.0 and len(asked) == 4
    problem = "$: 'current_challenges' is a required property"
    assert f"That is not valid: {problem}. Answer with valid JSON and nothing else." in asked


@pytest.mark.parametrize("broken", ["no json", '{"goal": 3}', "[]", RuntimeError("the engine is down")])
def test_a_fold_without_valid_memories_is_refused_and_nothing_is_pasted(broken):
    trajectory, agent, _ = folding(lambda prompt, _: broken)
    assert trajectory.ok and trajectory.metrics["refused_folds"] == 1.0 and trajectory.metrics["folds"] == 0.0
    assert agent[1].prompt.startswith(agent[0].prompt) and "folding was not possible" in agent[1].prompt
    assert str(broken) not in agent[1].prompt and trajectory.calls[-1].continues is trajectory.calls[0]


def test_the_number_of_folds_is_limited():
    """One more ends the trajectory; one that was refused has cost as many calls as another."""
    trajectory, agent, asked = folding(
        lambda prompt, _: by_kind(prompt), max_folds=1, agent=["<fold_thought>", "<fold_thought>", "5"]
    )
    counts = {name: trajectory.metrics[name] for name in ("folds", "refused_folds", "limit_folds", "actions")}
    assert trajectory.ok and counts == {"folds": 1.0, "refused_folds": 0.0, "limit_folds": 1.0, "actions": 1.0}
    assert len(agent) == 2 and len(asked) == 3 and trajectory.reward == 0.0
    trajectory, agent, asked = folding(lambda prompt, _: "no json", max_folds=2, agent=["<fold_thought>"] * 4)
    assert trajectory.ok and len(agent) == 3 and len(asked) == 2 * 3 * 2, "three memories, each tried twice"
    assert trajectory.metrics["refused_folds"] == 2.0 and trajectory.metrics["limit_folds"] == 1.0


def test_without_folding_nobody_is_told_of_it_and_its_tag_is_text():
    whole, without = DeepAgent().agents["agent"], DeepAgent(max_folds=0).agents["agent"]
    told, silent = whole.prompt("q")[0]["content"], without.prompt("q")[0]["content"]
    assert "<fold_thought>" in told and "fold" not in silent
    cut = told.index("<fold_thought>"), told.index("\nRules:")
    assert silent == told[: cut[0]] + told[cut[1] :], "all else is the same"
    assert set(whole.sampling["stop"]) - set(without.sampling["stop"]) == {"<fold_thought>"}
    text = f"<fold_thought> {ADD}"
    assert whole.parse(text).kind == "fold" and without.parse(text).kind == "call"
    assert [text[slice(*span)] for span in whole.actions(text)] == ["<fold_thought>", ADD]
    assert [text[slice(*span)] for span in without.actions(text)] == [ADD]
    trajectory, _, asked = folding(lambda prompt, _: by_kind(prompt), max_folds=0, agent=["<fold_thought> \\boxed{5}"])
    assert trajectory.reward == 1.0 and not asked and trajectory.metrics["refused_folds"] == 0.0


def test_without_folding_the_tiny_agent_is_asked_as_ever_and_refused():
    """Its prompt names no actions; outputs are read as those that it was trained on."""
    whole, without = DeepAgent("tiny").agents["agent"], DeepAgent("tiny", max_folds=0).agents["agent"]
    assert whole.prompt("q") == without.prompt("q") and whole.sampling == without.sampling
    trajectory, agent, asked = folding(lambda prompt, _: by_kind(prompt), prompts="tiny", max_folds=0)
    assert trajectory.metrics["refused_folds"] == 1.0 and not asked and "not possible" in agent[1].prompt
