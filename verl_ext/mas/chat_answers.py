"""Reads the output of a chat: its text, its tool calls, and whether it is what `tool_choice` asks for."""

from __future__ import annotations

from verl_ext.mas.agent import Unparsable
from verl_ext.mas.chat import Message, Reply, assistant, tool_calls_of
from verl_ext.mas.llm import LLM
from verl_ext.mas.tool_texts import checked_calls
from verl_ext.mas.types import Call


class NoToolCall(Unparsable):
    """The output has no tool call, or not the one that `tool_choice` names."""


async def read_answer(call: Call, llm: LLM) -> Message:
    """The assistant's message in an output.

    Raises:
        NoToolCall: the chat asked for a tool call.
        Unparsable: a tool call cannot be read; its fallback is the whole text as a message without tool calls.
    """
    chat = call.chat
    assert chat is not None
    if not chat.calls_tools:
        return assistant(call.text)
    try:
        if call.tool_calls is not None:  # a server has read them
            content, written = call.text, checked_calls(call.tool_calls)
        else:
            content, written = await llm.read_tool_calls(call.text, call.generation.token_ids, chat)
    except Unparsable as problem:
        raise Unparsable(str(problem), assistant(call.text)) from problem
    if chat.must_call and not written:
        raise NoToolCall(f"tool_choice={chat.tool_choice}, but no tool was called: {call.text!r:.200}")
    wrong = [name for name, _ in written if name != chat.tool_choice]
    if chat.must_call and chat.tool_choice != "required" and wrong:
        raise NoToolCall(f"tool_choice={chat.tool_choice}, but {', '.join(wrong)} was called")
    return assistant(content.strip() if written else content, tool_calls_of(written, call.id, call.stream))


def reply_of(call: Call, message: Message, llm: LLM) -> Reply:
    """The answer of an answered call to whom asked."""
    tool_calls = message.get("tool_calls") or []
    cut = call.generation.stop_reason == "length"
    reason = "tool_calls" if tool_calls else "length" if cut else "stop"
    counts = (call.prompt_tokens, call.generated_tokens)
    return Reply(message["content"], tool_calls, reason, *counts, call, llm.token_texts)
