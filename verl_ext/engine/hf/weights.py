"""Weights on their way to the engine: they fit before anything is copied, and are the sender's afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def _listed(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")


def matched_tensors(
    model: torch.nn.Module, state: Mapping[str, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs (tensor of the model, new value) for a state dict of Hugging Face names and full tensors.

    A missing name is fine only when it shares its storage with one that was given (a tied lm_head).

    Raises:
        ValueError: names that the model does not have, names that it has and that were not given, wrong shapes.
    """
    target = model.state_dict(keep_vars=True)
    unexpected = sorted(set(state) - set(target))
    given = {target[name].data_ptr() for name in state if name in target}
    missing = sorted(name for name in target if name not in state and target[name].data_ptr() not in given)
    shapes = [
        f"{name}: model {tuple(target[name].shape)}, given {tuple(tensor.shape)}"
        for name, tensor in state.items()
        if name in target and target[name].shape != tensor.shape
    ]
    problems = []
    if unexpected:
        hint = " (LoRA names: set actor_rollout_ref.model.lora.merge=True)" if "lora_" in "".join(unexpected) else ""
        problems.append(f"names the model does not have: {_listed(unexpected)}{hint}")
    if missing:
        problems.append(f"names that were not given: {_listed(missing)}")
    if shapes:
        problems.append(f"wrong shapes: {_listed(shapes)}")
    if problems:
        raise ValueError(f"weights do not fit {type(model).__name__}; " + "; ".join(problems))
    return [(target[name], tensor) for name, tensor in state.items()]
