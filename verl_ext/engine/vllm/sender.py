"""Sends weights from the trainer to vLLM with adapters per agent: the base once, then all adapters. Not run: no GPU."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout import ServerAdapter

from verl_ext.engine.lora.adapters import NO_ADAPTERS, AdapterOptions


class AdapterSender(ServerAdapter):
    """verl's sender in every trainer rank, which also checks that it sends the adapters of the configuration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters = AdapterOptions.from_config(self.model_config)

    async def update_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], *args: Any, **kwargs: Any
    ) -> None:
        """As verl's method.

        Raises:
            ValueError: the trainer's engine has other adapters, or none.
        """
        about = kwargs.get("peft_config") or {}
        if self.adapters is not None and about.get("adapters") != list(self.adapters.names):
            raise ValueError(NO_ADAPTERS)
        await super().update_weights(weights, *args, **kwargs)
