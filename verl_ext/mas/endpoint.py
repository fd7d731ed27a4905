"""An OpenAI-compatible server as the core's `LLM`."""

from __future__ import annotations

from typing import Any

from verl_ext.mas.llm import TokenlessLLM
from verl_ext.mas.types import Completion, Generation, PromptTooLong
from verl_ext.tools.chat import ChatEndpoint, TooLong
from verl_ext.tools.chat_forms import until_stop


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
            EndpointFailed: it refused the call, or none of the attempts succeeded (see `verl_ext.tools.chat`).
        """
        try:
            answer = await self.chat.complete(messages, sampling)
        except TooLong as error:
            raise PromptTooLong(str(error)) from error
        generation = Generation([], [], stop_reason=answer.stop_reason)
        counts = (answer.prompt_tokens, answer.generated_tokens)
        text = until_stop(answer, sampling.get("stop") or ())
        return Completion(text, generation, *counts, reasoning=answer.reasoning)
