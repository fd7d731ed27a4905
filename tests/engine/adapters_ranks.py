"""One rank of a group of processes: verl's engine with adapters per agent on it, and helpers of its checks.

Import it first: it registers our platform before verl's engines are imported.
"""

# ruff: noqa: E402, I001  the environment and our platform come before verl's imports
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import verl  # noqa: F401

from verl_ext.engine.platform_cpu import register_platform

register_platform()
from verl.utils.distributed import initialize_global_process_group_ray

initialize_global_process_group_ray()
assert torch.distributed.get_backend() == "gloo", "chosen by our platform"
import verl.workers.engine.fsdp.transformer_impl  # noqa: F401
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.base import EngineRegistry

from tests.engine.lora_models import NAMES, OPTIONS, TOKENS, adapter_parameters, randomise
from verl_ext.engine.fsdp import cpu as fsdp_cpu  # noqa: F401
from verl_ext.engine.lora.adapters import wire_name

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CLIP, RATE, DECAY = 0.05, 1e-2, 0.1
EPSILON = 1e-4  # of Adam; with a smaller one the rounding of tiny gradients decides on their sign
PROMPT = 7  # of the 12 tokens of a row; the rest is its response


def own_rows(items: Any) -> Any:
    """This rank's part."""
    return items[RANK * len(items) // WORLD : (RANK + 1) * len(items) // WORLD]


def shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor, or of a whole one; to gather them would take most of the time here."""
    if isinstance(tensor, DTensor):
        return tensor.to_local().detach().clone()
    parts = tensor.detach().chunk(WORLD) if tensor.dim() else (tensor,) * WORLD
    return parts[RANK] if RANK < len(parts) else tensor[:0]


def error(gradients: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], name: str) -> float:
    """Of this rank's part of one adapter, relative to the adapter's largest gradient."""
    own = [key for key in expected if key.startswith(f"{name}/")]
    scale = max(expected[key].abs().max().item() for key in own) or 1.0
    return max((gradients[key] - shard(expected[key])).abs().max().item() for key in own) / scale


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        key: shard(p.grad if p.grad is not None else torch.zeros(p.shape, dtype=p.dtype))
        for key, p in adapter_parameters(model).items()
    }


def build(
    folder: Path,
    names: tuple[str, ...] = NAMES,
    checkpointing: bool = False,
    bucket: int = 0,
    precision: str = "fp32",
    start: dict[str, str] | None = None,
    **checkpoint: Any,
) -> Any:
    """verl's engine on a model folder.

    Args:
        names: of the adapters.
        bucket: packed rows are padded to a multiple of this; 0: they are not.
        precision: of the parameters in a forward pass.
        start: name -> peft folder that it starts from.
        checkpoint: of verl's CheckpointConfig.
    """
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=HFModelConfig(
            path=str(folder),
            use_remove_padding=True,
            enable_gradient_checkpointing=checkpointing,
            override_config={"attn_implementation": "sdpa"},
            lora_rank=OPTIONS.rank,
            lora_alpha=OPTIONS.alpha,
            lora={"adapters": list(names), "start": start},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype="fp32",
            dtype="float32",
            mixed_precision={"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            use_torch_compile=False,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=40,  # several micro-batches
            infer_max_token_len_per_gpu=40,
            pad_to_length=bucket > 0,
            pad_to_length_bucket=bucket,
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=RATE,
            weight_decay=DECAY,
            clip_grad=CLIP,
            total_training_steps=10,
            override_optimizer_config={"eps": EPSILON},
        ),
        checkpoint_config=CheckpointConfig(**checkpoint),
    )
    engine.initialize()
    torch.set_num_threads(1)  # several wait for each other where tests share the cores
    return engine


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    return {key: shard(p) for key, p in adapter_parameters(engine.module).items()}


def base_of(engine: Any) -> dict[str, torch.Tensor]:
    return {name: shard(p) for name, p in engine.module.named_parameters() if not wire_name(name)}


def set_weights(engine: Any, seed: int = 3) -> dict[str, torch.Tensor]:
    """Random adapters, the same on any number of ranks."""
    values = {key: torch.zeros(p.shape) for key, p in adapter_parameters(engine.module).items()}
    randomise(values, seed)
    with torch.no_grad():
        for key, parameter in adapter_parameters(engine.module).items():
            parameter.to_local().copy_(shard(values[key]))
    return values


def jagged(rows: list[list[int]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def batch_of(
    tokens: torch.Tensor, agents: list[int], packed: bool = False, padding: tuple[int, ...] = ()
) -> TensorDict:
    """Rows as verl's workers get them; those in `padding` train nothing."""
    length = tokens.shape[1]
    rows = tokens.tolist()
    masks = [[int(row not in padding)] * (length - PROMPT) for row in range(len(rows))]
    data = TensorDict(
        {
            "input_ids": jagged(rows),
            "position_ids": jagged([list(range(length))] * len(rows)),
            "prompts": jagged([row[:PROMPT] for row in rows]),
            "responses": jagged([row[PROMPT:] for row in rows]),
            "loss_mask": jagged([[1] * (length - PROMPT)] * len(rows)),
            "response_mask": jagged(masks),
            "temperature": torch.linspace(0.8, 1.2, len(rows)),
            "agent_id": torch.tensor(agents),
        },
        batch_size=len(rows),
    )
    tu.assign_non_tensor(
        data,
        use_remove_padding=packed,
        pad_mode=DatasetPadMode.NO_PADDING,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=40,
        use_fused_kernels=False,
        calculate_entropy=True,
        sp_size=1,
        rows=len(rows),
    )
    return data


def scored(output: torch.Tensor) -> torch.Tensor:
    """(rows, response tokens) of jagged model outputs."""
    return torch.stack([row[PROMPT - 1 : -1] for row in output.unbind()])


def mean_loss(model_output: dict, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
    """Mean over this rank's rows of their summed log-probs; padding rows count, and add nothing."""
    mask = torch.stack([row for row in data["response_mask"].unbind()])
    return -(scored(model_output["log_probs"]) * mask).sum() / data["rows"], {}


def optimiser_state(engine: Any) -> dict[str, dict[str, torch.Tensor]]:
    state = engine.optimizer.state
    return {
        key: {part: shard(value) for part, value in state[p].items()}
        for key, p in adapter_parameters(engine.module).items()
        if p in state
    }


# Of three steps: agents of the rows, and rows that are padding. In the second step "answerer" has a padding row only.
STEPS = (
    ([0, 1, 1, 2, 1, 0, 2, 0], ()),
    ([0, 0, 0, 0, 1, 1, 1, 2], (7,)),
    ([2, 2, 2, 2, 0, 0, 2, 2], ()),
)


def train(engine: Any, agents: list[int], padding: tuple[int, ...] = ()) -> dict[str, Any]:
    rows = own_rows(list(range(len(agents))))
    data = batch_of(own_rows(TOKENS), own_rows(agents), padding=tuple(row - rows[0] for row in padding if row in rows))
    with engine.train_mode():
        return engine.train_batch(data, mean_loss)


def refusal(action: Callable[[], Any]) -> str:
    try:
        action()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")
