"""verl's FSDP2 engine with one LoRA adapter per agent: each row trains only the adapter of its agent.

This module must not import verl's engines, because importing them imports this module (see plugin.py).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import fsdp2_clip_grad_norm_, normalize_peft_param_name

from verl_ext.engine.lora.adapter_files import check_same_adapters, load_start, write_adapters
from verl_ext.engine.lora.adapters import AGENT_ID, AdapterOptions, check_settings, numbers_of, wire_name
from verl_ext.engine.lora.routed_lora import add_adapters

if TYPE_CHECKING:  # the engine of verl that the mixin goes in front of
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine as Engine
else:
    Engine = object

logger = logging.getLogger(__name__)


class PerAgentAdapters(Engine):
    """Mixin of verl's engine for actor and reference model: adapters per agent, if the model has `lora.adapters`.

    Rows carry their agent's place in that list in the field `agent_id`. Of a mini-batch on all ranks together, an
    adapter with rows (of tokens that train) takes an optimiser step of its own: its gradient is clipped by itself. An
    adapter without any takes none: no weight decay, no momentum, no count of steps; only the learning rate's schedule
    goes on. So K adapters learn as K models would that leave out the mini-batches in which they have nothing.

    The reference model is the base without adapters, as verl's is under LoRA.

    Raises:
        ValueError: settings that adapters do not go with, rows without an agent, a checkpoint of other adapters.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adapters = AdapterOptions.from_config(self.model_config)
        if self.adapters is None:
            return
        self._check_settings()
        # The base never changes, and is not saved. What verl saves are adapters and optimiser, sharded.
        self.checkpoint_config = dataclasses.replace(self.checkpoint_config, save_lora_only=True)
        # Rows that train, per adapter, since the last optimiser step; and its gradient norms.
        self._rows = torch.zeros(len(self.adapters.names), dtype=torch.int64)
        self._norms: dict[str, float] = {}
        # To replicas on ranks of their own.
        self._base_sent = False

    def _check_settings(self) -> None:
        config = self.engine_config
        precision = (config.mixed_precision or {}).get("param_dtype", "bf16")
        parallel, contents = config.ulysses_sequence_parallel_size, self.checkpoint_config.save_contents
        check_settings("", config.strategy, parallel, precision, self._qat_enabled, contents)

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        if self.adapters is None:
            return super()._build_lora_module(module)
        model, self.route = add_adapters(module, self.adapters, self.engine_config.seed)
        load_start(dict(self._adapter_tensors(model.named_parameters())), self.adapters)
        return model

    # --- forward and backward ---------------------------------------------------------------------------------------

    def agents_of(self, data: TensorDict) -> torch.Tensor:
        """(rows,) int64: the adapter of each row.

        Raises:
            ValueError: no such field, or a number out of range.
        """
        agents = numbers_of(data)
        if agents is None and len(self.adapters.names) == 1:  # fine-tuning of one agent
            return torch.zeros(len(data), dtype=torch.int64)
        if agents is None:
            raise ValueError(
                f"adapters per agent need the field {AGENT_ID!r} in every row; fields: {sorted(data.keys())}"
            )
        if ((agents < 0) | (agents >= len(self.adapters.names))).any():
            raise ValueError(
                f"{AGENT_ID} must be in 0..{len(self.adapters.names) - 1} ({', '.join(self.adapters.names)}), got "
                f"{sorted(set(agents.tolist()))}"
            )
        return agents

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """As verl's method, with the rows in the order of their adapters."""
        if self.adapters is None:
            return super().forward_step(micro_batch, loss_function, forward_only)
        agents = self.agents_of(micro_batch)
        order = agents.argsort(stable=True)
        packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
        lengths = micro_batch["input_ids"].offsets().diff().cpu() if packed else torch.ones_like(agents)
        sizes = torch.zeros_like(self._rows).index_add(0, agents, lengths)
        if packed:  # verl pads at the end; the outputs there are never read
            sizes[-1] += self._get_packed_pad_size(int(lengths.sum()))
        with self.route.using(sizes.tolist(), dim=int(packed)):
            sorted_batch = tu.index_select_tensor_dict(micro_batch, order.to(micro_batch["input_ids"].device))
            loss, output = super().forward_step(sorted_batch, loss_function, forward_only)
        back = order.argsort().tolist()
        output["model_output"] = {name: _rows_of(value, back) for name, value in output["model_output"].items()}
        return loss, output

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> dict[str, Any]:
        """As verl's method; also records which adapters the batch trains."""
        if self.adapters is not None and not forward_only:
            mask = data["response_mask" if "response_mask" in data.keys() else "loss_mask"]
            live = torch.stack([row.any() for row in mask.unbind()]).cpu()  # padding rows train nothing
            rows = torch.bincount(self.agents_of(data)[live], minlength=len(self._rows)).to(get_device_id())
            torch.distributed.all_reduce(rows, group=self.get_data_parallel_group())
            self._rows += rows.cpu()
        return super().forward_backward_batch(data, loss_function, forward_only)

    # --- optimiser --------------------------------------------------------------------------------------------------

    def train_batch(self, data: TensorDict, loss_function: Callable[..., Any]) -> dict[str, Any]:
        """As verl's method; adds the gradient norm of each adapter to the metrics."""
        outputs = super().train_batch(data, loss_function)
        if self.adapters is not None and self.is_mp_src_rank_with_outputs():
            outputs["metrics"] |= {f"adapters/{name}/grad_norm": [norm] for name, norm in self._norms.items()}
        return outputs

    def optimizer_step(self) -> float:
        """Clip the gradient of each adapter separately, and step the adapters that have rows.

        Returns:
            The norm of all of their gradients together, before clipping.
        """
        if self.adapters is None:
            return super().optimizer_step()
        rows, self._norms = self._rows.tolist(), {}
        self._rows.zero_()
        for name, count in zip(self.adapters.names, rows, strict=True):
            own = [p for key, p in self._adapter_tensors(self.module.named_parameters()) if key.startswith(f"{name}/")]
            finite = False
            if count:
                norm = _whole(fsdp2_clip_grad_norm_(own, max_norm=self.optimizer_config.clip_grad)).item()
                self._norms[name], finite = norm, math.isfinite(norm)
                if not finite:
                    logger.warning("the gradient of adapter %s is %s: it takes no step", name, norm)
            if not finite:
                for parameter in own:  # no gradient: to the optimiser the parameter is not there
                    parameter.grad = None
        self.optimizer.step()
        return math.hypot(*self._norms.values())

    # --- weights and checkpoints ------------------------------------------------------------------------------------

    def _adapter_tensors(self, named: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return ((key, tensor) for name, tensor in named if (key := wire_name(name)))

    def get_per_tensor_param(
        self, layered_summon: bool = False, base_sync_done: bool | None = None, **kwargs: Any
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """Weights for the rollout engine: first the base, once, by Hugging Face names; then adapters only.

        Args:
            base_sync_done: whether the engine has the base. None: a checkpoint engine other than naive asks, which
                keeps no count and passes on names and tensors alone. The first time it gets the base and the adapters.

        Returns:
            (name, whole tensor) pairs, whose iteration is collective; and a description of the adapters.
        """
        if self.adapters is None:
            return super().get_per_tensor_param(layered_summon, bool(base_sync_done), **kwargs)
        state = self.module.state_dict()
        adapters, base = self._adapter_tensors(state.items()), normalize_peft_param_name(state).items()
        tensors = adapters if base_sync_done else base
        if base_sync_done is None:
            tensors, self._base_sent = adapters if self._base_sent else chain(base, adapters), True
        return ((name, _whole(tensor)) for name, tensor in tensors), self._about()

    def _about(self) -> dict[str, Any]:
        """The names of the adapters, and the part of each peft configuration that vLLM reads."""
        config = self.module.peft_config[self.adapters.names[0]]
        targets = config.target_modules if isinstance(config.target_modules, str) else sorted(config.target_modules)
        about = {"r": config.r, "lora_alpha": config.lora_alpha, "target_modules": targets}
        return {"adapters": list(self.adapters.names), **about}

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """As verl's method, without the base; also writes a peft folder per adapter."""
        if self.adapters is not None and local_path is not None:
            # Before verl's: that deletes the checkpoint before this one.
            tensors = {key: _whole(t).cpu() for key, t in self._adapter_tensors(self.module.state_dict().items())}
            if self.rank == 0:
                write_adapters(Path(local_path), self.adapters, tensors, self.module.peft_config)
        super().save_checkpoint(local_path, *args, **kwargs)

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """verl's.

        Raises:
            ValueError: the checkpoint is of other adapters, or of the same in another order.
        """
        if self.adapters is not None and local_path is not None:
            check_same_adapters(Path(local_path), self.adapters)
        super().load_checkpoint(local_path, *args, **kwargs)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor, on the device. Collective."""
    tensor = tensor.detach().to(get_device_id(), non_blocking=True)
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _rows_of(jagged: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The rows of a jagged tensor in another order."""
    rows = jagged.unbind()
    return torch.nested.as_nested_tensor([rows[row] for row in order], layout=torch.jagged)
