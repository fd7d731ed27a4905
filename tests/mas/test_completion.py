"""Engines that take chats and keep their token ids to themselves, beside those over token ids; notes."""

import asyncio

import pytest

from tests.helpers import FakeLLM, Script, chain, forest_of, fork, run, walk
from verl_ext.mas import CallFailed, Status
from verl_ext.mas.types import CallId, Completion, Generation, PromptTooLong


class Chat:
    """An engine without token ids; `answer(messages)` gives a completion or raises."""

    def __init__(self, answer):
        self.answer = answer

    def encode(self, messages):
        return []

    async def complete(self, messages, prompt_ids, sampling, key):
        assert prompt_ids == []
        return self.answer(messages)


def asked(answer, run_workflow=None, **options):
    async def once(task, ctx):
        return await ctx.call("a")

    forest = forest_of(Script(run_workflow or once), Chat(answer), **options)
    return forest, run(walk(forest))


def test_a_chat_engine_answers_with_text_and_its_own_counts():
    said = Completion("Paris", Generation([], []), prompt_tokens=11, generated_tokens=3, reasoning="France, so")
    forest, trajectory = asked(lambda messages: said, limits={"max_prompt_tokens": 1})
    (call,) = trajectory.calls
    assert trajectory.ok and trajectory.result == "Paris" and call.status is Status.OK
    assert (call.prompt_tokens, call.generated_tokens, call.reasoning) == (11, 3, "France, so")
    assert (forest.cost.prompt_tokens, forest.cost.generated_tokens, forest.cost.agent_calls) == (11, 3, 1)


@pytest.mark.parametrize(
    ("text", "tokens", "reason", "status", "words"),
    [
        ("", 0, "stop", Status.ENGINE_ERROR, "no token generated"),
        ("", 4, "completed", Status.OK, ""),  # the model ended at once: an answer, if an empty one
        ("Par", 0, "completed", Status.OK, ""),  # an endpoint without usage
        ("Par", 1, "length", Status.TRUNCATED, "max_tokens"),
        ("Par", 7, "abort", Status.ENGINE_ERROR, "aborted the output after 7 tokens"),
    ],
)
def test_how_an_answer_ended_becomes_the_calls_status(text, tokens, reason, status, words):
    completion = Completion(text, Generation([], [], stop_reason=reason), 5, tokens)
    _, trajectory = asked(lambda messages: completion)
    (call,) = trajectory.calls
    assert call.status is status and words in call.error
    assert call.text == ("" if status is Status.ENGINE_ERROR else text)


def test_a_prompt_that_the_engine_refuses_for_its_length_is_not_an_engine_error():
    def refuse(messages):
        raise PromptTooLong("the model has room for 4096 tokens")

    async def catching(task, ctx):
        try:
            await ctx.call("a")
        except CallFailed as failure:
            return failure.status.value

    _, trajectory = asked(refuse, catching)
    assert trajectory.ok and trajectory.result == "prompt_too_long"
    assert trajectory.calls[0].error == "the model has room for 4096 tokens"


def test_engines_over_tokens_count_what_they_encode_and_generate():
    forest = forest_of(chain, FakeLLM(lambda request: "abc"))
    trajectory = run(walk(forest))
    assert [call.generated_tokens for call in trajectory.calls] == [3, 3, 3]
    assert [call.prompt_tokens for call in trajectory.calls] == [len(call.prompt_ids) for call in trajectory.calls]
    assert forest.cost.prompt_tokens == sum(call.prompt_tokens for call in trajectory.calls)


async def test_notes_belong_to_a_trajectory_and_its_scope():
    async def system(task, ctx):
        said = await ctx.call("a")
        documents = [{"title": said}]
        ctx.note("chosen", documents)
        documents.clear()  # a note is a copy

        async def inner(child):
            child.note("chosen", 1)
            child.note("chosen", 2)

        await asyncio.gather(ctx.branch("x", inner), ctx.branch("y", inner))
        return said

    forest = forest_of(system)
    base = await walk(forest)
    base, other = base, await fork(forest, base, CallId((), "a", 0))
    assert base.notes == {"chosen": [{"title": base.result}], "x/chosen": 2, "y/chosen": 2}
    assert other.notes["chosen"] == [{"title": other.result}] != base.notes["chosen"]
