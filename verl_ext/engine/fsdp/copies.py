"""Copies of the weights from before a training step, for one that trains in parts (`mas_separate_async`)."""

from __future__ import annotations

from typing import Any

from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, register

modes: Any = Dispatch  # it gets its members at run time


class CopyingActor(DetachActorWorker):
    """verl's worker that computes π_old by weights that it has kept.

    On the CPU verl keeps the weights themselves (`.cpu()` of a CPU tensor is no copy), so π_old would change with π.
    """

    @register(dispatch_mode=modes.ONE_TO_ALL)
    def save_model_to_cpu(self, n: int) -> None:
        """Keep the present weights as number `n`."""
        super().save_model_to_cpu(n)
        actor: Any = self.actor
        if next(actor.engine.module.parameters()).device.type == "cpu":
            state, spec = self.cpu_saved_models[n]
            copied = {name: (tensor.clone(), own) for name, (tensor, own) in state.items()}
            self.cpu_saved_models[n] = (copied, spec)
