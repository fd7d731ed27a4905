"""The server behind `rollout.name=hf` with adapters per agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch
from transformers import PreTrainedModel
from verl.workers.rollout.replica import TokenOutput

from verl_ext.engine.hf.params import Finished, Request
from verl_ext.engine.hf.server import HFServer
from verl_ext.engine.hf.slots import SlotEngine
from verl_ext.engine.lora.adapters import ADAPTER, AdapterOptions
from verl_ext.engine.lora.served_adapters import AdapterEngine, AdapterRequest


class HFAdapterServer(HFServer):
    """An `HFServer` for a model with `lora.adapters`.

    The sampling parameter `adapter` of a request names one of them; "" is the base alone.
    """

    def make_engine(self, model: PreTrainedModel, **kwargs: Any) -> AdapterEngine:
        """An engine with adapters; their weights arrive later."""
        return AdapterEngine(AdapterOptions.from_config(self.model_config), model, **kwargs)

    def _request(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str, **kwargs: Any
    ) -> Request:
        given = dict(sampling_params)
        name = given.pop(ADAPTER, None)
        return AdapterRequest.of(super()._request(prompt_ids, given, request_id, **kwargs), name)

    def _output(self, finished: Finished) -> TokenOutput:
        output = super()._output(finished)
        assert isinstance(finished.request, AdapterRequest)
        output.extra_fields[ADAPTER] = finished.request.adapter
        return output

    def held(self, engine: SlotEngine, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """As the method of `HFServer`, also for adapters by wire name."""
        assert isinstance(engine, AdapterEngine) and engine.adapters is not None
        return engine.adapters.held(names) if any("/" in name for name in names) else super().held(engine, names)

    @ray.method(concurrency_group="control")
    async def update_adapters(self, state_dict: Mapping[str, torch.Tensor], global_steps: int | None = None) -> None:
        """New weights of all adapters, by wire name (see adapters.py); otherwise as `update_weights`.

        Raises:
            ValueError: the weights do not fit; nothing has been changed then.
        """
        await self._call(lambda engine: engine.load_adapters(state_dict, global_steps))
