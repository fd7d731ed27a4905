"""LLM: the interface of an inference engine to sessions; TokenLLM: those that work on token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from verl_ext.mas.chat import ChatRequest, Written
from verl_ext.mas.choices import choose
from verl_ext.mas.offsets import Span, locate_by_decoding
from verl_ext.mas.tool_texts import read_calls, written_out
from verl_ext.mas.types import Call, Completion, Generation

# Choices whose tokens are cached.
OPTIONS_KEPT = 65_536


class LLM(ABC):
    """What a session needs of an inference engine. An engine that keeps its token ids to itself (a server), or has none
    (a policy head), implements `complete` alone; the others are `TokenLLM`s."""

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Chat messages to prompt token ids, generation prompt included; empty if only the engine knows them."""
        return []

    def encode_text(self, text: str) -> list[int]:
        """Token ids of text in the middle of a sequence; empty if only the engine knows them."""
        return []

    def locate(self, token_ids: list[int], text: str, spans: list[Span]) -> list[Span]:
        """Ranges of tokens that hold these ranges of characters of `text`, which they decode to."""
        return [(0, 0) for _ in spans]

    def encode_chat(self, chat: ChatRequest) -> list[int]:
        """Prompt token ids of a chat with tools, as `encode`. By default the tools are written out as text."""
        return self.encode(written_out(chat.messages, chat.tools))

    def extend_chat(self, before: Call, chat: ChatRequest) -> list[int] | None:
        """Prompt token ids of a chat that goes on from `before`: its prompt and its output, token by token, then what
        the new messages add. None: the engine or its chat template cannot do that."""
        return None

    async def read_tool_calls(self, text: str, token_ids: list[int], chat: ChatRequest) -> tuple[str, list[Written]]:
        """(text beside the tool calls, tool calls) of an output. By default the form of Hermes is read.

        Raises:
            Unparsable: there is a tool call that cannot be read.
        """
        return read_calls(text)

    def token_texts(self, token_ids: list[int]) -> list[str]:
        """The text of each token by itself, for people."""
        return [""] * len(token_ids)

    @abstractmethod
    async def complete(
        self, messages: list[dict[str, Any]], prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]
    ) -> Completion:
        """Answer a chat; `prompt_ids` is its encoding by `encode`.

        `sampling` holds temperature, top_p, top_k, max_tokens, seed, `adapter` if the policy has adapters (the name of
        the agent's; "" is the base alone), `choices` if the answer is to be one of these texts, and for an engine
        without tokens `continue_from`: the place of the message with which a continued sequence begins, and `tools` and
        `tool_choice` in OpenAI's form. `key` names the call within the batch (question, stream, call) for ordered
        scheduling and sticky routing.

        Raises:
            PromptTooLong: the engine refuses the prompt for its length. Any other exception counts as its failure.
        """


class TokenLLM(LLM):
    """An `LLM` over token ids. What is generated is what is trained: no text is ever encoded again.

    `encode_text` must encode text that looks like a special token as text.

    Attributes:
        end_token: the token with which the model ends an output.
    """

    end_token: int

    @abstractmethod
    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """See `LLM`."""

    @abstractmethod
    def encode_text(self, text: str) -> list[int]:
        """See `LLM`."""

    @abstractmethod
    def decode(self, token_ids: list[int]) -> str:
        """Generated token ids to text without special tokens."""

    def locate(self, token_ids: list[int], text: str, spans: list[Span]) -> list[Span]:
        """See `LLM`."""
        return locate_by_decoding(token_ids, text, spans, self.decode)

    def token_texts(self, token_ids: list[int]) -> list[str]:
        """See `LLM`."""
        return [self.decode([token]) for token in token_ids]

    def stop_tokens(self, chat: ChatRequest) -> list[int]:
        """Tokens that end an output besides the model's own, because a tool call ends with them."""
        return []

    @abstractmethod
    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        """Generate from `prompt_ids`; `sampling` and `key` as in `LLM.complete`, without choices.

        With `allowed_token_ids` in `sampling`, only these may be sampled, and log-probabilities are taken among them.
        """

    async def complete(
        self, messages: list[dict[str, str]], prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]
    ) -> Completion:
        """See `LLM`."""
        if "choices" in sampling:
            return await self._choose(prompt_ids, sampling, key)
        generation = await self.generate(prompt_ids, sampling, key)
        text = self.decode(generation.token_ids)
        return Completion(text, generation, len(prompt_ids), len(generation.token_ids))

    def _option(self, text: str) -> tuple[int, ...]:
        """A choice's tokens with its end token. Each text is encoded once."""
        if text not in self._options:
            if len(self._options) >= OPTIONS_KEPT:
                self._options.clear()
            self._options[text] = (*self.encode_text(text), self.end_token)
        return self._options[text]

    @cached_property
    def _options(self) -> dict[str, tuple[int, ...]]:
        return {}

    async def _choose(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Completion:
        """Sample one of `choices`. Top-p and top-k do not apply to the few tokens that the choices allow."""
        options = {text: self._option(text) for text in sampling["choices"]}
        sampled, longest = 0, max(options, key=lambda text: len(options[text]))
        if len(options[longest]) > sampling["max_tokens"]:
            raise ValueError(
                f"the choice {longest!r} has {len(options[longest])} tokens with its end, more than max_tokens="
                f"{sampling['max_tokens']}"
            )
        shared = {name: value for name, value in sampling.items() if name not in ("choices", "stop")}
        shared |= {"max_tokens": 1, "top_p": 1.0, "top_k": -1}

        async def sample(before: tuple[int, ...], allowed: tuple[int, ...]) -> Generation:
            nonlocal sampled
            sampled += 1
            return await self.generate([*prompt_ids, *before], {**shared, "allowed_token_ids": list(allowed)}, key)

        text, generation = await choose(options, sample)
        return Completion(text, generation, len(prompt_ids), sampled)
