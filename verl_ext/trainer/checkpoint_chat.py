"""A checkpoint that answers chats in this process, e.g. as the judge of rewards."""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_ext.tools.chat import EndpointFailed, TooLong
from verl_ext.tools.chat.wire import Answer
from verl_ext.trainer.rollout.llm import ServedLLM


class CheckpointChat:
    """A Hugging Face folder under our engine on the CPU, with the interface of `verl_ext.tools.chat.ChatEndpoint`.

    It is loaded at the first chat, once in every rollout worker: for small models. Serve a large one.

    Args:
        folder: with weights, configuration and tokenizer; its path is the model's name.
        max_tokens: of an output, for the engine's memory.
        template: arguments of the chat template.

    Raises:
        ValueError: there is no such folder.
    """

    def __init__(self, folder: str, max_tokens: int, template: dict[str, Any]):
        if not (Path(folder) / "config.json").is_file():
            raise ValueError(f"mas.judge.checkpoint={folder!r} is no Hugging Face folder: it has no config.json")
        self.model: str | None = folder
        self.max_tokens, self.template = max_tokens, template
        self._number = itertools.count()

    async def find_model(self) -> str:
        """The folder."""
        return str(self.model)

    @cached_property
    def _llm(self) -> ServedLLM:
        from verl.workers.config import HFModelConfig, RolloutConfig

        from verl_ext.engine.hf.server import HFServer

        model = HFModelConfig(path=str(self.model))
        context = model.hf_config.get_text_config(decoder=True).max_position_embeddings
        output = min(self.max_tokens, context // 2)
        lengths = {"prompt_length": context - output, "response_length": output}
        server = HFServer(RolloutConfig(name="hf", load_format="auto", **lengths), model, device="cpu")
        return ServedLLM(model.tokenizer, server, self.template)

    async def complete(self, messages: list[dict[str, str]], sampling: dict[str, Any]) -> Answer:
        """Answer a chat; `sampling` as in `ChatEndpoint.complete`.

        Raises:
            TooLong: the prompt leaves no room for an output. EndpointFailed: the engine refused or failed.
        """
        llm = self._llm
        prompt, (config, key) = llm.encode(messages), (llm.client.config, ("judge", str(next(self._number))))
        if len(prompt) > config.prompt_length:
            raise TooLong(f"the prompt has {len(prompt)} tokens, the checkpoint takes {config.prompt_length}")
        allowed = {"top_p": 1.0, "top_k": -1, **sampling, "max_tokens": min(self.max_tokens, config.response_length)}
        try:
            said = await llm.complete(messages, prompt, allowed, key)
        except Exception as error:
            raise EndpointFailed(f"the checkpoint {self.model} failed: {type(error).__name__}: {error}") from error
        return Answer(said.text, "", said.generation.stop_reason, said.prompt_tokens, said.generated_tokens)

    async def close(self) -> None:
        """Nothing to release before the process ends."""
