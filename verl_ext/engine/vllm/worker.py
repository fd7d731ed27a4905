"""vLLM's worker: loads one update as several LoRAs, and says what it got and what it serves."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from verl.utils.vllm import TensorLoRARequest
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_ext.engine.fingerprints import fingerprint, owner_of
from verl_ext.engine.policy_names import VARIABLE, address_of
from verl_ext.engine.vllm.served import ARRIVED, DIFFERS, SERVED, ServedAdapter, ServedBase, Shape

# vLLM numbers its LoRAs; verl's has the number 123.
FIRST_ID = 1001


class Arrived(NamedTuple):
    """A weight as it came.

    sent      its fingerprint
    expected  its fingerprint in the type, and with the factor, in which it is to serve; None: unknown
    """

    shape: Shape
    sent: int
    expected: int | None


class WeightWorker(vLLMColocateWorkerExtension):
    """verl's extension of vLLM's worker (`worker_extension_cls`)."""

    # Of vLLM's worker.
    model_runner: Any
    add_lora: Any
    remove_lora: Any

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> None:
        """As verl's method.

        Raises:
            RuntimeError: vLLM cannot load the weights. (In verl's, an error of the transport would hide that one.)
        """
        self.arrived: dict[str, Arrived] = {}
        self.adapter_numbers: dict[str, int] = {}
        self.failure: Exception | None = None
        try:
            super().update_weights_from_ipc(*args, **kwargs)
        except Exception as error:
            raise RuntimeError(f"vLLM's worker could not load new weights: {self.failure or error!r}") from error

    def _update_weights(self, weights: list[tuple[str, torch.Tensor]], peft_config: Any, base_sync_done: bool) -> None:
        """As verl's method; adapters come once verl has gathered all buckets, and wire names assign their tensors."""
        names = (peft_config or {}).get("adapters") if base_sync_done else None
        try:
            if names:
                self._update_adapters(weights, dict(peft_config or {}), names)
                return
            base = ServedBase(self.model_runner.model)
            single = bool(peft_config) and base_sync_done  # verl's one LoRA: only its arrival is compared
            for name, tensor in weights:
                dtype = None if single else base.dtype(name)
                expected = None if dtype is None else fingerprint(name, tensor.to(dtype))
                self.arrived[name] = Arrived(tuple(tensor.shape), fingerprint(name, tensor), expected)
            super()._update_weights(weights, peft_config, base_sync_done)
        except Exception as error:
            self.failure = error
            raise

    def _update_adapters(self, weights: list[tuple[str, torch.Tensor]], about: dict[str, Any], names: Any) -> None:
        dtype, scaling = self._lora_manager.lora_config.lora_dtype, about["lora_alpha"] / about["r"]
        for name, tensor in weights:
            # vLLM multiplies B by the factor of the LoRA, and adds the product.
            held = tensor.to(dtype) * scaling if ".lora_B." in name and scaling != 1 else tensor.to(dtype)
            self.arrived[name] = Arrived(tuple(tensor.shape), fingerprint(name, tensor), fingerprint(name, held))
        for number, adapter in enumerate(names, FIRST_ID):
            self.adapter_numbers[adapter] = number
            own = {key.removeprefix(f"{adapter}/"): tensor for key, tensor in weights if owner_of(key) == adapter}
            assert own, f"no tensors of adapter {adapter}"
            request = TensorLoRARequest(
                lora_name=adapter,
                lora_int_id=number,
                lora_path=adapter,
                peft_config=about,
                lora_tensors={f"base_model.model.{key}": tensor for key, tensor in own.items()},
            )
            self.remove_lora(number)
            self.add_lora(request)

    def _get_zmq_handle(self) -> str:
        return address_of(super()._get_zmq_handle(), os.environ.get(VARIABLE, ""))

    @property
    def _lora_manager(self) -> Any:
        """vLLM's LoRAModelManager."""
        return self.model_runner.lora_manager._adapter_manager

    def weights_held(self) -> dict[str, tuple[int, str]]:
        """Of each weight of the last update: the fingerprint of what came, and SERVED, ARRIVED or DIFFERS."""
        shapes = {name: arrived.shape for name, arrived in self.arrived.items()}
        adapters = {name: ServedAdapter(self._lora_manager, number) for name, number in self.adapter_numbers.items()}
        base = ServedBase(self.model_runner.model)
        found = {}
        for name, arrived in self.arrived.items():
            if adapter := adapters.get(owner_of(name)):
                own = name.partition("/")[2]
                tensor = adapter.find(own, arrived.shape)
                lost = adapter.slot is None or adapter.stack(own) is None  # vLLM drops what it has no place for
            else:
                tensor, lost = base.find(name, shapes), False
            if lost:
                state = DIFFERS
            elif tensor is None or arrived.expected is None:
                state = ARRIVED
            else:
                state = SERVED if fingerprint(name, tensor) == arrived.expected else DIFFERS
            found[name] = (arrived.sent, state)
        return found
