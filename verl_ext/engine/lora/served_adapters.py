"""Several adapters in the rollout engine: each request names one; requests to different adapters share forward passes.

The adapters of a layer are concatenated in two matrices, A (adapters · rank, in) and B (out, adapters · rank). A row
uses only the part of its own adapter:

    layer(x) + ((x Aᵀ) * gate) Bᵀ          gate (rows, 1, adapters · rank): the scaling at the row's own part, else 0

A row of an agent that does not train uses the base alone: its gate is zero.

Rows join and leave at every token, so they are not sorted by adapter as in training (routed_lora.py). The cost is low:
reading the weights dominates a decoding step, and adapters are small. They are hooks on the linear layers, so the model
and the names of its weights do not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from verl_ext.engine.hf.admission import Job
from verl_ext.engine.hf.params import Finished, Request
from verl_ext.engine.hf.slots import SlotEngine
from verl_ext.engine.lora.adapters import BASE, SECTION, AdapterOptions


class ServedAdapters:
    """Adapters on a model; `rows` sets the adapter of each row for the forward passes of a block.

    Args:
        model: whose linear layers they are for.
        options: their names and scaling; the layers are those that the first `load` brings.
    """

    def __init__(self, model: nn.Module, options: AdapterOptions) -> None:
        self.model, self.options = model, options
        self.numbers = {name: number for number, name in enumerate((*options.names, BASE))}
        self.loaded = False
        self._gate: torch.Tensor | None = None
        # (adapters + 1, adapters · rank): the gate of a row by its adapter; of the base's rows, the last, all zeros.
        parts = torch.eye(len(options.names)).repeat_interleave(options.rank, dim=1) * options.scaling
        parts = torch.cat([parts, torch.zeros(1, parts.shape[1])])
        reference = next(model.parameters())
        self._gates = parts.to(reference.device, reference.dtype)
        self._stacks: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """New weights of all adapters, by wire name (see adapters.py).

        Raises:
            ValueError: layers or adapters that are missing or unknown, wrong shapes, values that are not numbers (they
                would reach the other adapters' rows); nothing has been changed then.
        """
        layers = dict(self.model.named_modules())
        paths = list(dict.fromkeys(key.split("/", 1)[-1].rsplit(".lora_", 1)[0] for key in state))
        expected = {
            f"{name}/{path}.lora_{side}.weight": shape
            for path in paths
            for name in self.options.names
            for side, shape in _shapes(layers.get(path), self.options.rank)
        }
        problems = [f"{key} is not expected" for key in state if key not in expected]
        problems += [f"{key} is missing" for key in expected if key not in state]
        problems += [
            f"{key} is {tuple(tensor.shape)}, not {expected[key]}"
            for key, tensor in state.items()
            if key in expected and tuple(tensor.shape) != expected[key]
        ]
        problems += [f"{key} is not finite" for key, tensor in state.items() if not tensor.isfinite().all()]
        if not paths:
            problems = ["none were given"]
        if self.loaded and paths and set(paths) != set(self._stacks):
            problems.append(f"layers have changed: {sorted(set(paths) ^ set(self._stacks))[:4]}")
        if problems:
            more = f", … ({len(problems)} in all)" if len(problems) > 4 else ""
            raise ValueError(
                f"adapters do not fit {type(self.model).__name__} and {list(self.options.names)} of rank "
                f"{self.options.rank}: {'; '.join(problems[:4])}{more}"
            )
        for path in paths:
            self._put(path, layers[path], state)
        self.loaded = True

    def held(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The tensors of these wire names, as rows use them."""
        found = {}
        for key in names:
            name, tensor = key.split("/", 1)
            path, side = tensor.removesuffix(".weight").rsplit(".lora_", 1)
            stack, dim = self._stacks[path]["AB".index(side)], "AB".index(side)
            found[key] = stack.chunk(len(self.options.names), dim)[self.options.names.index(name)]
        return found

    def _put(self, path: str, layer: nn.Linear, state: Mapping[str, torch.Tensor]) -> None:
        sides = ([state[f"{name}/{path}.lora_{side}.weight"] for name in self.options.names] for side in "AB")
        stacks = (torch.cat(next(sides)), torch.cat(next(sides), 1))
        if path not in self._stacks:
            layer.register_forward_hook(lambda _, inputs, output: self._add(path, inputs[0], output))
        like = layer.weight
        self._stacks[path] = tuple(stack.to(like.device, like.dtype).contiguous() for stack in stacks)

    @contextmanager
    def rows(self, adapters: torch.Tensor) -> Iterator[None]:
        """A context in which row i uses adapter number `adapters[i]`; outside of it, the base answers alone."""
        self._gate = self._gates.index_select(0, adapters)[:, None]
        try:
            yield
        finally:
            self._gate = None

    def _add(self, path: str, states: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        if self._gate is None:
            return output
        a, b = self._stacks[path]
        return output + F.linear(F.linear(states, a) * self._gate, b)


def _shapes(layer: nn.Module | None, rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The shapes of the A and B of an adapter on this layer; empty if it is no linear layer."""
    if isinstance(layer, nn.Linear):
        yield "A", (rank, layer.in_features)
        yield "B", (layer.out_features, rank)


@dataclasses.dataclass(frozen=True)
class AdapterRequest(Request):
    """A request to one adapter, or to the base (BASE)."""

    adapter: str | None = None

    @classmethod
    def of(cls, request: Request, adapter: str | None) -> AdapterRequest:
        """The same request, for this adapter."""
        fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(Request)}
        return cls(**fields, adapter=adapter)


class AdapterEngine(SlotEngine):
    """A `SlotEngine` whose requests are `AdapterRequest`s.

    Args:
        options: the adapters.
        args, kwargs: as for `SlotEngine`.
    """

    # Not there yet while the constructor compares the model, as it is, with itself.
    adapters: ServedAdapters | None = None

    def __init__(self, options: AdapterOptions, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows: torch.Tensor | None = None
        self.adapters = ServedAdapters(self.model, options)

    def add(self, request: Request) -> None:
        """As `SlotEngine.add`.

        Raises:
            ValueError: also an unknown adapter, none, or one whose weights have not been sent.
        """
        if self.adapters is None:
            super().add(request)
            return
        name = getattr(request, "adapter", None)
        if name not in self.adapters.numbers:
            allowed = f"{', '.join(self.adapters.options.names)} ({SECTION}.lora.adapters), or {BASE!r} for the base"
            raise ValueError(f"request {request.request_id}: adapter {name!r} is unknown; allowed: {allowed}")
        if not self.adapters.loaded:
            raise ValueError(f"request {request.request_id}: the adapters' weights have not been sent yet")
        super().add(request)
        job = self.waiting[-1]
        job.owner, job.key = (
            name,
            name.encode() + b"/" + job.key,
        )  # keys and values of a prompt are those of one adapter

    def load_adapters(self, state: Mapping[str, torch.Tensor], version: int | None = None) -> list[Finished]:
        """New adapters, all of them, under an unchanged base; otherwise as `load_weights`.

        Raises:
            ValueError: they do not fit; nothing has been touched.
        """
        self.adapters.load(state)
        ended = self.drop_kv()
        self.stats.weight_updates += 1
        self.version = self.version if version is None else version
        return ended

    def _prefill(self, first: int, group: list[Job]) -> None:
        if self.adapters is None:
            super()._prefill(first, group)
            return
        with self.adapters.rows(self._numbers(group)):
            super()._prefill(first, group)

    def _decode(self) -> list[Finished]:
        if self.adapters is None:
            return super()._decode()
        if self._view is None or self._rows is None:  # others run since the last step
            self._rows = self._numbers(self.active)
        with self.adapters.rows(self._rows):
            return super()._decode()

    def _numbers(self, jobs: Sequence[Job]) -> torch.Tensor:
        return torch.tensor([self.adapters.numbers[job.request.adapter] for job in jobs], device=self.device)
