"""ctx.chat: exact tokens over turns, tool calls, replays."""

from __future__ import annotations

import json

import pytest

from tests.chatting import ADD, Scripted, calling, qwen, smollm2, tiny
from tests.helpers import Script, forest_of, fork, run, walk
from verl_ext.mas import Agent, Status
from verl_ext.mas.agent import Unparsable
from verl_ext.mas.chat import ChatRequest, request_of
from verl_ext.mas.chat_context import _earlier
from verl_ext.mas.tool_texts import OPEN, read_calls
from verl_ext.mas.types import Call, CallId, Stream
from verl_ext.observe.metrics import reduce_stats
from verl_ext.observe.question_stats import question_stats
from verl_ext.trainer.rollout.forest_to_rows import sequences

HELLO = [{"role": "user", "content": "hello"}]
AGENTS = {"writer": Agent()}


async def add(a: float, b: float) -> str:
    return f"{a + b}"


async def ten_turns(task, ctx) -> list[dict]:
    messages = [{"role": "system", "content": "Calculate."}, {"role": "user", "content": "1 + 2?"}]
    while True:
        reply = await ctx.chat("writer", messages, tools=[ADD])
        messages.append(reply.message)
        if reply.tool_calls:
            messages += await ctx.run_tools(reply)
        elif len(ctx.frontier[0].chat.messages) > 25:
            return messages
        else:
            messages.append({"role": "user", "content": "and more, é🙂?"})


TEXTS = [
    calling(1, 2),
    calling(3, 4, "Let me see: é🙂\n"),
    "It is 3.",
    calling(5, 6) + "\n" + calling(7, 8),
    "", "It  is \n26.", calling(1, 1), "2", calling(2, 2), "4", "4!", calling(0, 1), "1", "1.", "The end.", "Over.",
]  # fmt: skip


@pytest.mark.parametrize(("tokenizer", "kind"), [(qwen, "qwen2"), (tiny, "qwen2"), (smollm2, "llama")])
def test_no_token_differs_over_ten_turns_with_tools(tokenizer, kind):
    llm = Scripted(TEXTS, tokenizer(), model_type=kind)
    forest = forest_of(Script(ten_turns, AGENTS), llm, tools={"add": add}, limits={"max_prompt_tokens": 10**5})
    trajectory = run(walk(forest))
    assert trajectory.ok, trajectory.error
    calls = trajectory.calls
    assert len(calls) >= 10 and sum(len(call.value.get("tool_calls", ())) for call in calls) >= 5
    for before, call in zip(calls, calls[1:], strict=False):
        assert call.continues is before
        had = before.prompt_ids + before.generation.token_ids
        assert call.prompt_ids[: len(had)] == had
        assert call.observed == len(call.prompt_ids) - len(had) > 0
    last, decode = calls[-1], llm.tokenizer.decode
    joined, whole = decode(last.prompt_ids), decode(llm.chats.encode(last.chat))
    if tokenizer is not tiny:  # a template writes other blanks around a tool call than the model, and 1 for 1.0
        joined, whole = joined.replace("\n", "").replace('": 1.0', '": 1'), whole.replace("\n", "")
        assert joined == whole
    forest.trajectories.append(trajectory)
    trajectory.reward = 1.0
    assert [len(sequence) for _, sequence in sequences(forest, calls)] == [len(calls)]  # one row


def answered(program, texts, agents=AGENTS, tokenizer=None, **options):
    """(trajectory, engine, forest) of a program whose outputs are these texts."""
    llm = Scripted(texts, tokenizer)
    forest = forest_of(Script(program, agents), llm, **{"tools": {"add": add}, **options})
    return run(walk(forest)), llm, forest


@pytest.mark.parametrize(
    "output",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1,}}\n</tool_call>',  # no JSON
        '<tool_call>\n{"name": "add", "arguments": "1 and 2"}\n</tool_call>',  # no object
        '<tool_call>\n{"name": "add"}\n</tool_call>',
        calling(1, 2) + '<tool_call>\n{"name": "add", "argu',  # the second has no end
    ],
)
def test_a_tool_call_that_cannot_be_read_is_counted_and_its_text_is_the_answer(output):
    async def program(task, ctx):
        return await ctx.chat("writer", HELLO, tools=[ADD])

    trajectory, _, _ = answered(program, [output])
    reply = trajectory.result
    assert trajectory.ok and reply.status is Status.UNPARSABLE and reply.finish_reason == "stop"
    assert reply.content == output and reply.tool_calls == []


@pytest.mark.parametrize(
    ("choice", "output", "status"),
    [
        ("required", "I would rather not.", Status.NO_TOOL_CALL),
        ({"type": "function", "function": {"name": "mul"}}, calling(1, 2), Status.NO_TOOL_CALL),
        ({"type": "function", "function": {"name": "add"}}, calling(1, 2), Status.OK),
        ("none", calling(1, 2), Status.OK),
    ],
)
def test_what_tool_choice_asks_for_is_a_status(choice, output, status):
    mul = {"type": "function", "function": {"name": "mul"}}

    async def program(task, ctx):
        return await ctx.chat("writer", HELLO, tools=[ADD, mul], tool_choice=choice)

    trajectory, _, forest = answered(program, [output], failure_rewards={"no_tool_call": -1.0})
    assert trajectory.calls[0].status is status
    if status is Status.OK:
        assert bool(trajectory.result.tool_calls) == (choice != "none")
        assert trajectory.result.content == (output if choice == "none" else None)
    else:
        assert trajectory.status is status and trajectory.reward == -1.0 and "tool_choice=" in trajectory.error
    forest.trajectories.append(trajectory)
    metrics = reduce_stats([question_stats(forest, [])])
    assert metrics["agents/writer/no_tool_call"] == float(status is Status.NO_TOOL_CALL)


def test_a_fork_replays_chats_and_a_replay_that_asks_otherwise_is_noticed():
    tools = [[ADD]]

    async def program(task, ctx):
        first = await ctx.chat("writer", HELLO, tools=tools[0])
        messages = [*HELLO, first.message, *await ctx.run_tools(first)]
        second = await ctx.chat("writer", messages, tools=[ADD])
        return json.dumps([first.message, second.message, first.logprobs[0].token])

    texts = [calling(1, 2), calling(3, 4), calling(5, 6), "7"]
    trajectory, llm, forest = answered(program, texts)
    second = run(fork(forest, trajectory, CallId((), "writer", 1)))
    assert second.ok and len(llm.asked) == 3 and second.calls[0] is trajectory.calls[0]
    assert second.calls[1].continues is trajectory.calls[0] and llm.asked[1][0] == llm.asked[2][0]
    assert json.loads(second.result)[0] == json.loads(trajectory.result)[0]
    ids = [json.loads(t.result)[1]["tool_calls"][0]["id"] for t in (trajectory, second)]
    assert ids[0] != ids[1]  # another sample is another call
    tools[0] = [ADD, {"type": "function", "function": {"name": "mul"}}]
    third = run(fork(forest, trajectory, CallId((), "writer", 1), "again"))
    assert third.status is Status.DIVERGED and "call writer.0 on replay: recorded" in third.error


def test_an_output_that_repeats_the_beginning_of_a_tool_call_is_read_in_linear_time():
    """Each beginning was followed to the end of the text: a model that repeats itself held up the event loop."""
    with pytest.raises(Unparsable, match="has no end"):
        read_calls(calling(1, 2) + OPEN * 1_000_000)


def test_a_long_history_that_was_answered_many_times_is_compared_in_linear_time():
    """Each answer was compared with the whole history, message by message."""
    history = [{"role": "user", "content": str(number)} for number in range(30_000)]
    chat = ChatRequest(history)
    answers = [Call(CallId((), "writer", turn), Stream("0"), history, chat=chat) for turn in range(30_000)]
    for turn, call in enumerate(answers):
        call.value = {"role": "assistant", "content": str(turn)}
    now = ChatRequest([*history, {"role": "assistant", "content": "7"}, {"role": "user", "content": "more"}])
    assert _earlier("writer", now, answers) is answers[7]


def test_a_rewritten_history_starts_afresh_and_the_longest_unchanged_one_goes_on():
    async def program(task, ctx):
        first = await ctx.chat("writer", HELLO)
        await ctx.chat("writer", [*HELLO, first.message, {"role": "user", "content": "more"}])
        again = {"role": "user", "content": "again"}
        await ctx.chat("writer", [*HELLO, {"role": "assistant", "content": "one, edited"}, again])
        await ctx.chat("writer", [*HELLO, first.message, again])
        await ctx.chat("other", [*HELLO, first.message, again])

    trajectory, llm, _ = answered(program, ["one", "two", "3", "4", "5"], {"writer": Agent(), "other": Agent()})
    calls = trajectory.calls
    assert [call.continues for call in calls] == [None, calls[0], None, calls[0], None], trajectory.error
    fresh, on = llm.asked[4][0], llm.asked[3][0]
    assert fresh == on  # the same text; here its tokens happen to be the same


def test_an_output_that_was_cut_off_is_closed_before_the_chat_goes_on():
    async def program(task, ctx):
        first = await ctx.chat("writer", HELLO)
        second = await ctx.chat("writer", [*HELLO, first.message, {"role": "user", "content": "go on"}])
        return first.finish_reason, second.finish_reason

    trajectory, llm, _ = answered(program, [("It is a long", "length"), "story"])
    assert trajectory.result == ("length", "stop"), trajectory.error
    text = llm.tokenizer.decode(llm.asked[1][0])
    assert "It is a long<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n" in text.replace(
        "> ", ">"
    )


def test_a_sequence_without_room_begins_a_new_row_with_the_same_tokens():
    async def program(task, ctx):
        messages = list(HELLO)
        for _ in range(4):
            reply = await ctx.chat("writer", messages, sampling={"max_tokens": 50})
            messages += [reply.message, {"role": "user", "content": "more"}]

    limits = {"max_sequence_tokens": 60, "max_prompt_tokens": 10**4}
    trajectory, llm, forest = answered(program, ["a b c d e"] * 4, limits=limits, sampling={"max_tokens": 60})
    calls = trajectory.calls
    assert trajectory.ok, trajectory.error
    for before, call in zip(calls, calls[1:], strict=False):
        had = before.prompt_ids + before.generation.token_ids
        assert call.prompt_ids[: len(had)] == had
    trajectory.reward = 1.0
    forest.trajectories.append(trajectory)
    rows = [row for _, row in sequences(forest, calls)]
    assert 1 < len(rows) < 4 and sum(map(len, rows)) == 4
    longest = [sampling["max_tokens"] for _, sampling in llm.asked]
    assert longest[0] == 50 and min(longest) >= 15 and len(set(longest)) > 1  # shortened, but not below a quarter


def test_an_identity_of_ones_own_and_its_parents_do_not_depend_on_what_came_before():
    async def program(task, ctx):
        first = await ctx.chat("writer", HELLO, id=CallId(("x",), "writer", 7))
        await ctx.chat("writer", HELLO, id=CallId(("y",), "writer", 0), parents=[])
        assert {str(call.id) for call in ctx.frontier} == {"x/writer.7", "y/writer.0"}
        await ctx.chat("writer", HELLO, id=CallId(("z",), "writer", 0), parents=[first.call])
        return [str(call.id) for call in ctx.frontier]

    trajectory, _, _ = answered(program, ["1", "2", "3"])
    assert sorted(trajectory.result) == ["y/writer.0", "z/writer.0"], trajectory.error
    assert [(str(call.id)[0], call.depth) for call in trajectory.calls] == [("x", 0), ("y", 0), ("z", 1)]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "robot", "content": ""}]}, "role 'robot'; allowed: system, developer"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be text"),
        ({"tools": ["add"]}, "ctx.tool_schemas"),
        ({"tool_choice": "required"}, "without tools"),
        ({"tools": [ADD], "tool_choice": "add"}, "allowed: auto, none, required"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens=0; allowed: a whole number above 0"),
        ({"sampling": {"max_tokens": True}}, "max_tokens=True; allowed"),
        ({"sampling": {"top_p": "1"}}, r"top_p='1'; allowed: a number within \(0, 1\]"),
        ({"sampling": {"top_k": "5"}}, "top_k='5'; allowed: a whole number above 0, or -1"),
        ({"sampling": {"stop": 5}}, "stop=5; allowed: a text, or a list of texts"),
        ({"sampling": {"stop": [5]}}, r"stop=\[5\]; allowed"),
        ({"sampling": {"stop": ""}}, "stop=''; allowed"),
        ({"sampling": {"temperature": 0}}, "sampling has temperature; allowed: top_p"),
    ],
)
def test_a_chat_of_another_form_is_refused_with_the_remedy(asked, message):
    with pytest.raises(ValueError, match=message):
        request_of(**{"messages": HELLO, **asked})


def test_a_penalty_sees_the_chat_and_the_message():
    seen = []

    def penalty(text, value, parsable, /, messages, tools):
        seen.append((value["tool_calls"][0]["function"]["name"], parsable, messages, len(tools)))
        return -0.5, {"calls": 1.0}

    async def program(task, ctx):
        await ctx.chat("writer", HELLO, tools=[ADD])

    trajectory, _, _ = answered(program, [calling(1, 2)], {"writer": Agent(penalty=penalty)})
    assert trajectory.calls[0].reward_specific == -0.5, trajectory.error
    assert seen == [("add", True, HELLO, 1)]


def test_a_tool_that_fails_or_is_unknown_answers_the_agent():
    mul = {"type": "function", "function": {"name": "mul"}}
    output = calling(1, 2) + calling(1, 2).replace("add", "mul") + calling(1, 2).replace('"b"', '"c"')

    async def program(task, ctx):
        return await ctx.run_tools(await ctx.chat("writer", HELLO, tools=[ADD, mul]))

    async def add(a: int, b: int) -> str:
        return f"{a + b}<|im_end|>"

    trajectory, _, _ = answered(program, [output], tools={"add": add})
    assert trajectory.ok, trajectory.error
    texts = [message["content"] for message in trajectory.result]
    assert texts[0] == "3&lt;|im_end|>" and "unknown tool 'mul'" in texts[1] and "cannot be called" in texts[2]
