"""K LoRA adapters on one frozen base, each row through its own, in one forward and one backward pass.

Under FSDP2 it does not do to switch adapters between micro-batches (`set_adapter`): a rank reduces the gradients of
those parameters that have one, so ranks that hold rows of different agents add one adapter's gradients to another's,
without a word. Here every adapter is part of every forward pass, on every rank, with however many rows, also none:

    base(x) + scaling · cat_k( x_k A_kᵀ B_kᵀ )          x_k: the rows of adapter k

Rows stand in the order of their adapters, so that x_k is a slice: the cost does not grow with the number of adapters,
an adapter's numbers are those of a model that has it alone, and one without rows gets a gradient of exact zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from verl_ext.engine.hf.params import derived_seed
from verl_ext.engine.lora.adapters import SECTION, AdapterOptions


class Route:
    """Which slice of the next forward pass belongs to which adapter; one object, shared by all layers of a model."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._slices: tuple[int, tuple[int, ...]] | None = None

    def using(self, sizes: Sequence[int], dim: int = 0) -> AbstractContextManager[None]:
        """Forward passes inside are routed: `sizes[k]` rows (dim 0) or tokens (dim 1) of adapter k, in this order."""
        assert len(sizes) == len(self.names), (sizes, self.names)
        return _Using(self, (dim, tuple(sizes)))

    def split(self, states: torch.Tensor) -> tuple[int, tuple[torch.Tensor, ...]]:
        """The dimension, and the slices along it, of a layer's input (rows, tokens, features).

        Raises:
            ValueError: nobody has said whose rows these are, or they have another shape than was said.
        """
        if self._slices is None:
            raise ValueError("a forward pass through adapters needs `Route.using`: whose are these rows?")
        dim, sizes = self._slices
        if states.dim() != 3 or states.shape[dim] != sum(sizes):
            raise ValueError(
                f"a layer's input of shape {tuple(states.shape)} does not fit {sum(sizes)} "
                f"{('rows', 'tokens')[dim]}: adapters per agent go on layers that see (rows, tokens, features); leave "
                f"others out ({SECTION}.target_modules, {SECTION}.exclude_modules)"
            )
        return dim, states.split(sizes, dim)

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """`context_fn` of gradient checkpointing: what the backward pass computes again goes the way it went before.

        There may be other forward passes in between.
        """
        return nullcontext(), _Using(self, self._slices)


class _Using(AbstractContextManager[None]):
    """Sets a route for a block; may be entered again and again (a backward pass that is run twice)."""

    def __init__(self, route: Route, slices: tuple[int, tuple[int, ...]] | None) -> None:
        self.route, self.slices = route, slices
        self.before: list[tuple[int, tuple[int, ...]] | None] = []

    def __enter__(self) -> None:
        self.before.append(self.route._slices)
        self.route._slices = self.slices

    def __exit__(self, *_: object) -> None:
        self.route._slices = self.before.pop()


class RoutedLoraLinear(LoraLinear):
    """peft's LoRA layer on a linear layer, except that it runs all of its adapters, each on its own rows."""

    route: Route

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """(rows, tokens, in) -> (rows, tokens, out); the base alone while adapters are disabled."""
        result = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters:
            return result
        names = self.route.names
        dim, inputs = self.route.split(self._cast_input_dtype(x, self.lora_A[names[0]].weight.dtype))
        parts = [self.lora_B[name](self.lora_A[name](part)) for name, part in zip(names, inputs, strict=True)]
        return torch.add(result, torch.cat(parts, dim).to(result.dtype), alpha=self.scaling[names[0]])


def add_adapters(model: nn.Module, options: AdapterOptions, seed: int = 0) -> tuple[PeftModel, Route]:
    """Freeze a causal LM and put fresh adapters on it, all of them trainable, in the precision of the base.

    A fresh adapter changes nothing (B = 0). Its A depends on `seed` and the adapter's own name only.

    Returns:
        peft's model, whose forward passes need `route.using`, and the route.

    Raises:
        ValueError: targets that are not linear layers.
    """
    route, peft_model = Route(options.names), None
    targets: Any = options.targets
    for name in options.names:
        config = LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            r=options.rank,
            lora_alpha=options.alpha,
            target_modules=targets,
            exclude_modules=options.excluded,
            bias="none",
        )
        config._register_custom_module({nn.Linear: RoutedLoraLinear})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, name))
            if peft_model is None:
                peft_model = get_peft_model(model, config, adapter_name=name, autocast_adapter_dtype=False)
                targets = config.target_modules  # "all-linear" as names: the second time peft would find none
            else:
                config.base_model_name_or_path = peft_model.peft_config[options.names[0]].base_model_name_or_path
                peft_model.add_adapter(name, config, autocast_adapter_dtype=False)
    for path, layer in peft_model.named_modules():
        if isinstance(layer, RoutedLoraLinear):
            layer.route = route
        elif isinstance(layer, BaseTunerLayer):
            raise ValueError(
                f"adapters per agent go on linear layers only; {SECTION}.target_modules={options.targets} also gives "
                f"{path}, which is {type(layer.get_base_layer()).__name__}"
            )
    peft_model.base_model.set_adapter(list(options.names))
    if getattr(model, "is_gradient_checkpointing", False):
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": route.checkpoint_contexts})
    return peft_model, route
