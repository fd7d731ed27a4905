"""Run by test_programs.py in a process of its own, because verl makes a process group. Prints `RESULT <kind> ok`.

Per kind of engine: it is ours, it is sharded on the CPU, its forward passes over shared prefixes give what verl's own
padded pass gives (outputs and gradients), and an optimiser step changes it. "deciding": some tokens had few
alternatives, and log-probs and entropies are among these. "fine-tuning": conversations with a mask. "half": bf16.
"""

# ruff: noqa: E402, I001  the environment and our platform come before verl's imports
from __future__ import annotations

import sys
import traceback
from typing import Any

import torch
import verl  # noqa: F401

from verl_ext.engine.platform_cpu import register_platform

register_platform()
from verl.utils.distributed import initialize_global_process_group_ray

initialize_global_process_group_ray()
import verl.workers.engine.fsdp.transformer_impl  # noqa: F401
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.base import EngineRegistry

from verl_ext.engine.fsdp import batching, cpu as fsdp_cpu, layout, tree_attention
from verl_ext.engine.fsdp.masked_logits import ALLOWED, packed
from verl_ext.engine.fsdp.shared_prefixes import SharedPrefixes
from verl_ext.engine.fsdp.batching import batches, share
from verl_ext.engine.fsdp.tree_attention import block_mask
from verl_ext.engine.replaced import replaced

LONG = list(range(5, 25))
PROMPTS = [[2, 3, 4], LONG, [2, 3, 4], [2, 3, 4], LONG]
RESPONSES = [[5, 6, 7, 8], [12, 13], [9, 6], [5, 6, 1], [12, 20, 1, 9]]
# Of some tokens what else was allowed: (place in the response, tokens), per row.
CHOICES = [[(0, (5, 9)), (2, (7, 8, 30))], [], [(0, (9, 10))], [(0, (5, 9))], [(0, (12, 13, 14)), (3, (9, 2))]]
ROWS = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]


def build(kind: str, folder: str) -> Any:
    """verl's engine of a kind: actor; deciding, fine-tuning, half (actors); reference, value, or fsdp1 (refused)."""
    model_type = "value_model" if kind == "value" else "language_model"
    model = HFModelConfig(
        path=folder,
        model_type=model_type,
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    config = FSDPEngineConfig(
        strategy="fsdp" if kind == "fsdp1" else "fsdp2",
        forward_only=kind == "reference",
        model_dtype="fp32",
        dtype="float32",
        mixed_precision={
            "param_dtype": "bf16" if kind == "half" else "fp32",
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        },
        use_torch_compile=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=4096,
        infer_max_token_len_per_gpu=4096,
    )
    engine = EngineRegistry.new(
        model_type,
        "fsdp2",
        model_config=model,
        engine_config=config,
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    expected = fsdp_cpu.CPUEngineWithValueHead if kind == "value" else fsdp_cpu.CPUEngineWithLMHead
    assert type(engine) is expected
    engine.initialize()
    assert all(isinstance(p, DTensor) and p.device.type == "cpu" for p in engine.module.parameters())
    assert engine.module.config._attn_implementation == tree_attention.NAME
    assert engine.engine_config.forward_only == (kind == "reference") and engine.model_config.model_type == model_type
    return engine


def micro_batch(kind: str) -> TensorDict:
    """The rows as verl's workers get them; every row has a temperature of its own."""
    data = TensorDict(
        {
            "input_ids": jagged(ROWS),
            "position_ids": jagged([list(range(len(row))) for row in ROWS]),
            "prompts": jagged(PROMPTS),
            "responses": jagged(RESPONSES),
            "loss_mask": jagged([[1] * len(response) for response in RESPONSES]),
            "temperature": torch.tensor([1.0, 1.0, 0.7, 1.3, 1.0]),
        },
        batch_size=len(ROWS),
    )
    if kind == "fine-tuning":
        masks = [[0] * len(row) for row in PROMPTS]
        data["loss_mask"] = jagged([mask + [1] * len(row) for mask, row in zip(masks, RESPONSES, strict=True)])
        del data["prompts"], data["responses"]
    if kind == "deciding":
        data[ALLOWED] = torch.nested.as_nested_tensor([packed(row) for row in CHOICES], layout=torch.jagged)
    tu.assign_non_tensor(
        data,
        use_remove_padding=False,
        pad_mode=DatasetPadMode.NO_PADDING,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=4096,
        use_fused_kernels=False,
        calculate_entropy=kind != "value",
        sp_size=1,
    )
    return data


def jagged(rows: list[list[int]]) -> torch.Tensor:
    """verl's layout of unpadded rows."""
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def scored(output: torch.Tensor) -> torch.Tensor:
    """What belongs to response tokens, of all rows: verl's losses read nothing else."""
    parts = zip(output.unbind(), PROMPTS, RESPONSES, strict=True)
    return torch.cat([row[len(p) - 1 : len(p) + len(r) - 1] for row, p, r in parts])


def among_the_allowed(engine: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of all response tokens, token by token."""
    found = []
    temperatures = [1.0, 1.0, 0.7, 1.3, 1.0]
    for prompt, response, choices, heat in zip(PROMPTS, RESPONSES, CHOICES, temperatures, strict=True):
        logits = engine.module(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0] / heat
        for place, token in enumerate(response):
            open_to = dict(choices).get(place, range(logits.shape[-1]))
            chances = logits[len(prompt) - 1 + place][list(open_to)].softmax(-1)
            entropy = -(chances * chances.log()).sum()
            found.append((chances[list(open_to).index(token)].log(), entropy))
    return tuple(torch.stack(part) for part in zip(*found, strict=True))


def check(kind: str, folder: str) -> None:
    """All assertions about one kind of engine."""
    engine, data = build(kind, folder), micro_batch(kind)
    names = ["values"] if kind == "value" else ["log_probs", "entropy"]

    def loss(model_output: dict, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        return sum(scored(model_output[name]).pow(2).sum() for name in names), {}

    def loss_of_some(model_output: dict, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        return sum(model_output[name].values().pow(2).sum() for name in names), {}  # 0 where nothing is scored

    def run(step: Any) -> tuple[dict, list[torch.Tensor]]:
        if kind == "reference":
            with engine.eval_mode(), torch.no_grad():
                return step(data, None, True)[1]["model_output"], []
        with engine.train_mode():
            total, output = step(data, loss, False)
            total.backward()
            return output["model_output"], gradients()

    def gradients() -> list[torch.Tensor]:
        found = [p.grad.to_local().clone() for p in engine.module.parameters() if p.grad is not None]
        engine.optimizer_zero_grad()
        return found

    def same(ours: list[torch.Tensor], verls: list[torch.Tensor]) -> None:
        assert len(ours) == len(verls) and (ours or kind == "reference")
        for one, other in zip(ours, verls, strict=True):
            assert one.dtype == torch.float32
            if kind == "half":
                assert (one - other).norm() < 0.05 * other.norm(), (one - other).norm() / other.norm()
            else:
                assert torch.allclose(one, other, atol=1e-4, rtol=1e-4), (one - other).abs().max()

    assert engine._can_share(data)
    assert len(batches(share(PROMPTS, RESPONSES))) > 1  # several forward passes for one backward pass
    ours, our_gradients = run(engine.forward_step)
    verls, verl_gradients = run(super(SharedPrefixes, engine).forward_step)
    masks = []
    with replaced(batching, BLOCK=0), replaced(layout, block_mask=lambda *a: masks.append(block_mask(*a)) or masks[-1]):
        by_blocks, block_gradients = run(engine.forward_step)
    assert masks, "attention block by block"
    near = {"atol": 2e-2, "rtol": 2e-2} if kind == "half" else {"atol": 1e-5}
    for name in names:
        for found in (ours, by_blocks):
            assert torch.allclose(scored(found[name]), scored(verls[name]).float(), **near), name
        assert scored(ours[name]).unique().numel() > 6  # not a constant
    if kind == "deciding":
        with engine.eval_mode(), torch.no_grad():
            for name, expected in zip(names, among_the_allowed(engine), strict=True):
                assert torch.allclose(scored(ours[name]), expected, atol=1e-5), name
    same(our_gradients, verl_gradients)
    same(block_gradients, verl_gradients)
    if kind != "reference":
        with engine.train_mode(), replaced(engine, _budget=1.0):  # a micro-batch for each row
            parts = engine.forward_backward_batch(data, loss_of_some)
            same(gradients(), verl_gradients)
        assert len(parts["loss"]) == len(ROWS)

    with engine.eval_mode():
        output = engine.infer_batch(data)["model_output"]
    assert [len(row) for row in output[names[0]].unbind()] == [len(row) for row in ROWS]
    if kind == "value":
        assert output["values"].values().abs().max() < 100
        assert engine.module.config.architectures == ["Qwen2ForTokenClassification"]
        again = build(kind, folder).module.score.weight.to_local()
        assert torch.equal(again, engine.module.score.weight.to_local()), "a run with a critic can be repeated"
    if kind != "reference":
        before = [p.to_local().clone() for p in engine.module.parameters()]
        with engine.train_mode():
            engine.train_batch(data, loss)
        after = [p.to_local() for p in engine.module.parameters()]
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert all(torch.isfinite(p).all() for p in after)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in ("actor", "deciding", "fine-tuning", "half", "reference", "value", "fsdp1"):
        try:
            check(kind, sys.argv[1])
            print("RESULT", kind, "ok")
        except Exception as error:
            traceback.print_exc()
            print("RESULT", kind, type(error).__name__, error)
