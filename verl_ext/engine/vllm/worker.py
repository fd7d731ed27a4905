"""vLLM's worker with adapters per agent: loads one update as several LoRAs. Not run: no GPU."""

from __future__ import annotations

from typing import Any

import torch
from verl.utils.vllm import TensorLoRARequest
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

# vLLM numbers its LoRAs; verl's has the number 123.
FIRST_ID = 1001


class AdapterWorker(vLLMColocateWorkerExtension):
    """verl's extension of vLLM's worker (`worker_extension_cls`)."""

    def _update_weights(
        self, weights: list[tuple[str, torch.Tensor]], peft_config: dict[str, Any] | None, base_sync_done: bool
    ) -> None:
        """As verl's method, once verl has gathered all buckets; wire names assign tensors to adapters."""
        names = (peft_config or {}).get("adapters")
        if not names or not base_sync_done:
            super()._update_weights(weights, peft_config, base_sync_done)
            return
        for number, name in enumerate(names, FIRST_ID):
            own = {key.removeprefix(f"{name}/"): tensor for key, tensor in weights if key.startswith(f"{name}/")}
            assert own, f"no tensors of adapter {name}"
            request = TensorLoRARequest(
                lora_name=name,
                lora_int_id=number,
                lora_path=name,
                peft_config=peft_config,
                lora_tensors={f"base_model.model.{key}": tensor for key, tensor in own.items()},
            )
            self.remove_lora(number)
            self.add_lora(request)
