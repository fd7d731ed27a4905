"""Decisions: every text with its exact probability, whatever its tokens; and nothing but the choices."""

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import FakeLLM, Script, choice, forest_of, run, speaker, walk
from verl_ext.mas import Agent, CallFailed, Status, Unparsable
from verl_ext.mas.choices import choose, named
from verl_ext.mas.types import Completion, Generation


def distribution(options, logits):
    """Exact probabilities by walking through all outcomes; `logits(tokens so far, token)`."""
    found = {}

    async def walk_all(path):
        """Answers `sample` by the places in `path`; returns the widths met, the outcome and its log-probability."""
        widths, log_prob, at = [], 0.0, iter(path)

        async def sample(before, allowed):
            nonlocal log_prob
            pick = next(at, 0)
            widths.append(len(allowed))
            weights = [math.exp(logits(before, token)) for token in allowed]
            log_prob += math.log(weights[pick] / sum(weights))
            return Generation([allowed[pick]], [math.log(weights[pick] / sum(weights))])

        text, generation = await choose(options, sample)
        return widths, text, generation, log_prob

    path = []
    while path is not None:
        widths, text, generation, log_prob = asyncio.run(walk_all(path))
        assert text not in found, "each text in one way only"
        assert sum(generation.log_probs) == pytest.approx(log_prob) and generation.token_ids == list(options[text])
        assert [len(a) for a in generation.allowed if len(a) > 1] == widths
        found[text] = math.exp(log_prob)
        path = path + [0] * (len(widths) - len(path))
        while path and path[-1] + 1 == widths[len(path) - 1]:
            path.pop()
        path = [*path[:-1], path[-1] + 1] if path else None
    return found


def test_probabilities_by_hand():
    """plan 1 2, plant 1 3, go 4: the first token decides between 1 and 4, then 1's second between 2 and 3."""
    odds = {((), 1): 3.0, ((), 4): 1.0, ((1,), 2): 1.0, ((1,), 3): 4.0}
    found = distribution(
        {"plan": (1, 2, 0), "plant": (1, 3, 0), "go": (4, 0)}, lambda before, token: math.log(odds[before, token])
    )
    assert found == pytest.approx({"plan": 0.75 * 0.2, "plant": 0.75 * 0.8, "go": 0.25})


texts = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=6, unique=True)


@settings(max_examples=60)
@given(texts, st.integers(0, 10**6))
def test_all_texts_can_be_chosen_and_their_probabilities_sum_to_one(names, seed):
    options = {name: (*name.encode(), 0) for name in names}
    found = distribution(options, lambda before, token: hash((seed, before, token)) % 7 / 3)
    assert set(found) == set(names) and sum(found.values()) == pytest.approx(1.0)


def test_one_choice_asks_nobody():
    async def sample(before, allowed):
        raise AssertionError("nothing to choose")

    text, generation = asyncio.run(choose({"only": (5, 6, 0)}, sample))
    assert text == "only" and generation.token_ids == [5, 6, 0] and generation.log_probs == [0.0] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to choose from"),
        ({"a": (1, 0), "b": (1, 0)}, "'a' and 'b' cannot be distinguished"),
        ({"plan": (1,), "plant": (1, 2)}, "'plan' and 'plant' cannot be distinguished"),
    ],
)
def test_choices_that_tokens_cannot_tell_apart(options, message):
    with pytest.raises(ValueError, match=message):
        asyncio.run(choose(options, None))


def test_an_engine_that_breaks_off():
    async def sample(before, allowed):
        return Generation([], [], "aborted")

    text, generation = asyncio.run(choose({"a": (9, 1, 0), "b": (9, 2, 0)}, sample))
    assert (text, generation.token_ids, generation.stop_reason) == ("", [9], "aborted")


NAMES = ("plan", "plant", "go")


def chooser(**options):
    return Agent(lambda names: [{"role": "user", "content": "who?"}], choices=lambda names: names, **options)


async def decide(task, ctx):
    return await ctx.call("a", names=NAMES)


def deciding(agent=None, system=decide, **sampling):
    """A trajectory in which the last of the allowed tokens is taken, and the sampling parameters of each token."""
    llm = FakeLLM(choice)
    given = {"temperature": 1.0, "top_p": 0.5, "top_k": 3, "max_tokens": 24, "stop": ["x"], **sampling}
    trajectory = run(walk(forest_of(Script(system, {"a": agent or chooser()}), llm, sampling=given)))
    return trajectory, [request.sampling for request in llm.log]


def test_the_policy_is_asked_only_where_there_is_a_choice():
    trajectory, asked = deciding()
    assert trajectory.ok and trajectory.result == "plant"
    # p or g; then plan is forced; then t or the end.
    assert [bytes(s["allowed_token_ids"]) for s in asked] == [b"gp", b"\0t"]
    assert all((s["max_tokens"], s["top_p"], s["top_k"]) == (1, 1.0, -1) and "stop" not in s for s in asked)
    (call,) = trajectory.calls
    assert call.decides and call.trained and call.text == "plant" and call.generated_tokens == 2
    assert call.generation.token_ids == [*b"plant", 0] and call.generation.log_probs == [-0.25, 0, 0, 0, -0.25, 0]
    assert (call.generation.min_version, call.generation.max_version) == (3, 4)


def test_one_choice_does_not_train_and_none_ends_the_trajectory():
    trajectory, asked = deciding(system=lambda task, ctx: ctx.call("a", names=["go"]))
    assert trajectory.result == "go" and not asked and not trajectory.calls[0].trained
    trajectory, _ = deciding(system=lambda task, ctx: ctx.call("a", names=[]))
    assert trajectory.status is Status.WORKFLOW_ERROR and "`choices` are empty" in trajectory.error


@pytest.mark.parametrize("names", ["xy", ["x", 1], [["x"]]])
def test_choices_are_texts(names):
    trajectory, asked = deciding(system=lambda task, ctx: ctx.call("a", names=names))
    assert trajectory.status is Status.WORKFLOW_ERROR and not asked
    assert f"`choices` are {names!r}; they must be a list of texts" in trajectory.error


def test_a_parser_that_cannot_read_the_empty_text_has_no_value_for_an_output_that_was_cut_off():
    agent = Agent(parse=lambda text: text.split()[0], whole=True)
    assert agent.read("x y") == "x"
    with pytest.raises(Unparsable, match=r"was not read; nor does .* take an empty text: IndexError"):
        agent.read("x y", True)
    with pytest.raises(Unparsable) as raised:
        Agent(whole=True).read("x y", True)
    assert raised.value.fallback == ""


def test_a_choice_that_does_not_fit():
    trajectory, _ = deciding(max_tokens=5)
    assert trajectory.status is Status.ENGINE_ERROR and "'plant' has 6 tokens with its end" in trajectory.error


def test_cost_weighs_what_was_generated():
    trajectory, _ = deciding(chooser(cost=2.5))
    assert trajectory.calls[0].cost == 5.0


class Served:
    """An endpoint that says what it likes."""

    def __init__(self, text):
        self.text, self.asked = text, []

    def encode(self, messages):
        return []

    async def complete(self, messages, prompt_ids, sampling, key):
        self.asked.append(sampling["choices"])
        return Completion(self.text, Generation([], []), 5, 7)


@pytest.mark.parametrize(
    ("said", "chosen"), [("plan", "plan"), (' "Plant".\n', "plant"), ("I say go", None), ("", None)]
)
async def test_a_served_model_may_say_anything(said, chosen):
    async def decide(task, ctx):
        try:
            return await ctx.call("a", names=NAMES)
        except CallFailed as error:
            return error.status

    llm = Served(said)
    trajectory = await walk(forest_of(Script(decide, {"a": chooser(llm=llm, trained=False)})))
    assert llm.asked == [list(NAMES)] and trajectory.calls[0].decides and not trajectory.calls[0].trained
    assert trajectory.result == (chosen or Status.UNPARSABLE)


def test_names_are_told_apart():
    assert named("Go", ["go", "GO"]) is None and named("GO", ["go", "GO"]) == "GO" and named("", ["go"]) is None
    assert speaker("a").read("anything ") == "anything"
