"""Run by top_k.py in a process of its own.

verl's own actor worker with our engine and loss on the tiny model: generated questions with 8 nodes of 4 samples each,
prompts of 60 to 120 tokens, responses of 8 to 24, random rewards. K is 8 (all), 4, 2 and 1 of a question's nodes,
chosen by `algorithms/joyagents.py: select` before any forward pass; one optimiser step each. CPU time of the process,
one thread, the best of several, taken in turns. The cost of a row should stay what it is: aim within 10 %.
"""

# ruff: noqa: E402, I001  the environment and our platform come before verl's imports
from __future__ import annotations

import os
import sys
import time
from functools import partial

os.environ.update(
    RANK="0",
    WORLD_SIZE="1",
    LOCAL_RANK="0",
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT="0",
    WG_BACKEND="ray",
    VERL_PLATFORM="cpu",
)
import torch
import verl  # noqa: F401

from verl_ext.engine.platform_cpu import register_platform

register_platform()
import verl.workers.engine.fsdp.transformer_impl  # noqa: F401
from tensordict import TensorDict
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from verl_ext.algorithms import JoyAgents, Rows
from verl_ext.engine.fsdp import cpu as fsdp_cpu
from verl_ext.plugin import package_path
from verl_ext.trainer.loss import WEIGHT, weighted_ppo_loss

# As the tiny recipes have it.
TOKENS = 1 << 15
NODES, SAMPLES = 8, 4
TOP = (8, 4, 2, 1)  # K
Row = tuple[torch.Tensor, torch.Tensor]  # prompt, response


def worker() -> TrainingWorker:
    """The actor of a training run."""
    model = HFModelConfig(
        path=package_path("recipe/mhgpo/assets/tiny_model"),
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        model_dtype="fp32",
        dtype="float32",
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=TOKENS,
        infer_max_token_len_per_gpu=TOKENS,
    )
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(lr=1e-6, total_training_steps=1000),
            checkpoint_config=CheckpointConfig(),
        )
    )
    made.reset()
    assert type(made.engine) is fsdp_cpu.CPUEngineWithLMHead
    loss = ActorConfig(strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, loss_agg_mode="seq-mean-token-mean")
    made.set_loss_fn(partial(weighted_ppo_loss, config=loss))
    return made


def rows(questions: int) -> list[Row]:
    """SAMPLES rows of each of NODES nodes of each question; those of a node have the same prompt."""

    def tokens(low: int, high: int) -> torch.Tensor:
        return torch.randint(6, 400, (int(torch.randint(low, high + 1, ())),))

    prompts = [tokens(60, 120) for _ in range(questions * NODES)]
    return [(prompt, tokens(8, 24)) for prompt in prompts for _ in range(SAMPLES)]


def batch(chosen: list[Row]) -> TensorDict:
    """Rows as verl's trainer sends them to the actor, one mini-batch."""

    def jagged(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    ids, said = [torch.cat(row) for row in chosen], [response for _, response in chosen]
    data = TensorDict(
        {
            "input_ids": jagged(ids),
            "position_ids": jagged([torch.arange(len(row)) for row in ids]),
            "prompts": jagged([prompt for prompt, _ in chosen]),
            "responses": jagged(said),
            "response_mask": jagged([torch.ones(len(row), dtype=torch.int64) for row in said]),
            "loss_mask": jagged([torch.ones(len(row), dtype=torch.int64) for row in said]),
            "old_log_probs": jagged([-torch.rand(len(row)) for row in said]),
            "advantages": jagged([torch.randn(()).expand(len(row)).clone() for row in said]),
            "temperature": torch.ones(len(chosen)),
            WEIGHT: torch.ones(len(chosen)),
        },
        batch_size=len(chosen),
    )
    tu.assign_non_tensor(
        data,
        pad_mode=DatasetPadMode.NO_PADDING,
        calculate_entropy=False,
        global_batch_size=len(chosen),
        mini_batch_size=len(chosen),
        dataloader_kwargs={"shuffle": False},
        sp_size=1,
    )
    return data


def main() -> None:
    """Measure and print a line per K."""
    questions, repeats = map(int, sys.argv[1:])
    torch.manual_seed(0)
    actor, made = worker(), rows(questions)
    torch.set_num_threads(1)  # the engine has taken all cores
    node = torch.arange(len(made)) // SAMPLES
    reward = torch.rand(len(made), dtype=torch.float64)
    numbers = (node, node, node // NODES, node, node < 0)
    facts = Rows(reward, *numbers, outcome=reward, length=node, failed=node < 0, position=node)
    kept = {k: JoyAgents(top_k=k).select(facts).nonzero()[:, 0].tolist() for k in TOP}
    seconds: dict[int, list[float]] = {k: [] for k in TOP}
    for _ in range(repeats + 1):
        for k in TOP:
            data = batch([made[i] for i in kept[k]])
            start = time.process_time()
            actor.train_mini_batch(data)
            seconds[k].append(time.process_time() - start)
    best = {k: min(times[1:]) for k, times in seconds.items()}  # the first round warms up
    full = best[TOP[0]]
    for k in TOP:
        share, spent = len(kept[k]) / len(made), best[k] / full
        print(
            f"  K = {k}: {len(kept[k]):>5,} rows, {share:.3f} of all  {best[k]:6.2f} s, {spent:.3f} of the full update"
            f"  a row {spent / share:.2f} x"
        )


if __name__ == "__main__":
    main()
