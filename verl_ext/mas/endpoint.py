"""EndpointLLM: an OpenAI-compatible server as an `LLM` for agents."""

from __future__ import annotations

from typing import Any

from verl_ext.mas.llm import LLM
from verl_ext.mas.types import Completion, Generation, PromptTooLong
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed, TooLong
from verl_ext.tools.chat.wire import until_stop


class EndpointLLM(LLM):
    """Lets a server answer the agents' chats. Token ids and log-probabilities are unknown.

    Args:
        chat: the server; closed with this object.
    """

    def __init__(self, chat: ChatEndpoint):
        self.chat, self.name = chat, str(chat.url)

    async def connect(self) -> None:
        """Open the connections now instead of at the first call."""
        await self.chat.connect()

    async def close(self) -> None:
        """Close the connections."""
        await self.chat.close()

    async def complete(
        self, messages: list[dict[str, str]], prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]
    ) -> Completion:
        """See `verl_ext.mas.llm.LLM`.

        Raises:
            PromptTooLong: the server says that the prompt does not fit the model.
            EndpointFailed: it refused the call, no attempt succeeded (see `verl_ext.tools.chat`), or the output
                consists only of a closing stop tag.
        """
        try:
            answer = await self.chat.complete(messages, sampling)
        except TooLong as error:
            raise PromptTooLong(str(error)) from error
        stops = tuple(sampling.get("stop") or ())
        text = until_stop(answer, stops)
        if text in stops and text.startswith("</"):
            raise EndpointFailed(
                f"{self.chat.url}: an output consists only of {text}. The server may hide the model's reasoning. "
                "Remedy: serve the model without a reasoning parser, or let the server return the reasoning"
            )
        stopped = bool(stops) and text.endswith(stops)  # perhaps long before the server ended it
        generation = Generation([], [], stop_reason="completed" if stopped else answer.stop_reason)
        counts = (answer.prompt_tokens, answer.generated_tokens)
        reasoning = "" if stops else answer.reasoning
        called = answer.tool_calls if "tools" in sampling else None
        return Completion(text, generation, *counts, reasoning=reasoning, sent=answer.sent, tool_calls=called)
