"""ctx.chat: exact tokens over turns, tool calls, replays."""

from __future__ import annotations

import pytest

from tests.chatting import ADD, Scripted, calling, qwen, tiny
from tests.helpers import Script, forest_of, run, walk
from verl_ext.mas import Agent
from verl_ext.trainer.rollout.forest_to_rows import sequences

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


@pytest.mark.parametrize("tokenizer", [qwen, tiny])
def test_no_token_differs_over_ten_turns_with_tools(tokenizer):
    llm = Scripted(TEXTS, tokenizer(), model_type="qwen2")
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
    whole = decode(llm.chats.encode(last.chat))
    if tokenizer is qwen:  # what a template writes of a tool call has other blanks in places
        whole, joined = (text.replace("\n", "") for text in (whole, decode(last.prompt_ids)))
        assert joined.replace('": 1.0', '": 1') == whole
    else:
        assert decode(last.prompt_ids).count("<|end|>") == whole.count("<|end|>")
    forest.trajectories.append(trajectory)
    trajectory.reward = 1.0
    assert [len(sequence) for _, sequence in sequences(forest, calls)] == [len(calls)]  # one row
