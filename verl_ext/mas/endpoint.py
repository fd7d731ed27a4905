"""An OpenAI-compatible server as the core's `LLM`."""

from __future__ import annotations

from typing import Any

from verl_ext.mas.llm import TokenlessLLM
from verl_ext.mas.types import Completion, Generation, PromptTooLong
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed, TooLong
from verl_ext.tools.chat.wire import until_stop


class EndpointLLM(TokenlessLLM):
    """Chats of agents, answered by a server. Token ids and log-probabilities are unknown.

    Args:
        chat: the server; closed with this object.
    """

    def __init__(self, chat: ChatEndpoint):
        self.chat = chat

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
            EndpointFailed: it refused the call, none of the attempts succeeded (see `verl_ext.tools.chat`), or the
                closing tag of nothing has ended its output.
        """
        try:
            answer = await self.chat.complete(messages, sampling)
        except TooLong as error:
            raise PromptTooLong(str(error)) from error
        stops = tuple(sampling.get("stop") or ())
        text = until_stop(answer, stops)
        if text in stops and text.startswith("</"):
            raise EndpointFailed(
                f"{self.chat.url}: {text} has ended an output without any text. Does the server keep reasoning to "
                "itself? Remedy: serve the model without a reasoning parser, or so that reasoning is told"
            )
        stopped = bool(stops) and text.endswith(stops)  # maybe long before the server's end of it
        generation = Generation([], [], stop_reason="completed" if stopped else answer.stop_reason)
        counts = (answer.prompt_tokens, answer.generated_tokens)
        return Completion(text, generation, *counts, reasoning="" if stops else answer.reasoning, sent=answer.sent)
