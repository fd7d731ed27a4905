"""The prompt of a call in tokens, and whether there is room for it."""

from __future__ import annotations

from typing import Any

from verl_ext.mas.limits import Limits
from verl_ext.mas.llm import LLM
from verl_ext.mas.types import Call

# Share of a row's response that an output of a chat may be shortened to before it gets a row of its own.
LEAST = 0.25


def enter_prompt(llm: LLM, call: Call, sampling: dict[str, Any], limits: Limits) -> str:
    """Enter the call's prompt tokens; returns why there is no room for them, or nothing.

    A call that continues another one gets what the sequence has left of its tokens as `max_tokens`.
    """
    if call.chat is not None:
        return _enter_chat(llm, call, sampling, limits)
    before = call.continues
    if before is None:
        call.prompt_ids = llm.encode(call.messages)
        return _too_long(call, sampling, limits)
    if before.prompt_ids:
        call.prompt_ids = [*before.prompt_ids, *before.generation.token_ids, *llm.encode_text(call.observation)]
        return _fit_sequence(call, sampling, limits)
    sampling["continue_from"] = len(_beginning(call).messages)  # a server has the tokens: it is told where it begins
    return ""


def _enter_chat(llm: LLM, call: Call, sampling: dict[str, Any], limits: Limits) -> str:
    """A chat that goes on where an earlier one ended has the tokens of that one, and the new messages' behind them.

    It is a row of its own where the response of the earlier one's row has no room for a whole output, or for one of
    LEAST of the response, as long as all of it may be a prompt. It is one with new tokens where the chat template
    cannot go on (see `LLM.extend_chat`).
    """
    chat, before = call.chat, call.continues
    assert chat is not None
    extended = llm.extend_chat(before, chat) if before is not None and before.prompt_ids else None
    if extended is None:
        call.continues = None
        call.prompt_ids = llm.encode_chat(chat)
        return _too_long(call, sampling, limits)
    call.prompt_ids = extended
    if limits.max_sequence_tokens is not None:
        room = limits.max_sequence_tokens - (len(extended) - len(_beginning(call).prompt_ids))
        if room < min(sampling["max_tokens"], LEAST * limits.max_sequence_tokens) and not _too_long(
            call, sampling, limits
        ):
            call.continues = None
            return ""
    return _fit_sequence(call, sampling, limits)


def _too_long(call: Call, sampling: dict[str, Any], limits: Limits) -> str:
    longest = limits.max_prompt_tokens
    if not call.trained and limits.max_context_tokens is not None:
        longest = max(longest, limits.max_context_tokens - sampling["max_tokens"])
    if len(call.prompt_ids) > longest:
        return f"the prompt has {len(call.prompt_ids)} tokens, allowed are {longest}"
    return ""


def _fit_sequence(call: Call, sampling: dict[str, Any], limits: Limits) -> str:
    if limits.max_sequence_tokens is not None:
        used = len(call.prompt_ids) - len(_beginning(call).prompt_ids)
        if used >= limits.max_sequence_tokens:
            return f"the sequence has {used} tokens, allowed are {limits.max_sequence_tokens}"
        sampling["max_tokens"] = min(sampling["max_tokens"], limits.max_sequence_tokens - used)
    return ""


def _beginning(call: Call) -> Call:
    """The call with which a sequence of calls that continue each other begins."""
    while call.continues is not None:
        call = call.continues
    return call
