"""Training passes of a real model on this CPU: shares of the machine's matrix products, and memory.

Run by real_size.py in a process of its own, as verl makes a process group; top_k.py uses its worker:

    python -m tests.bench.training_size FOLDER shares TYPE
    python -m tests.bench.training_size FOLDER memory

Operations: 2 per parameter outside the embeddings and computed token, 2 per number of the output layer and scored
token, 4 per layer, number of the hidden size and pair of a token and one that it sees. An update has three times those
of its forward pass. A token that several rows share is computed and counted once. Padding is not counted.
"""

# ruff: noqa: E402, I001  the environment and our platform come before verl's imports
from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", WG_BACKEND="ray")
os.environ["VERL_PLATFORM"] = "cpu"
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
from verl.workers.utils.losses import sft_loss

from tests.bench.real_size import load
from verl_ext.engine.fsdp.batching import share
from verl_ext.trainer.loss import WEIGHT, weighted_ppo_loss

TOKENS = 1 << 15
CASES = ((256, False, 0), (1024, False, 0), (1024, True, 0), (1024, False, 16))  # tokens, checkpointing, rank of LoRA
Rows = list[tuple[list[int], list[int]]]  # prompt, response


def worker(folder: str, dtype: str, checkpointing: bool = False, rank: int = 0) -> TrainingWorker:
    """verl's training worker with our engine, on one thread."""
    model = HFModelConfig(
        path=folder,
        use_remove_padding=False,
        enable_gradient_checkpointing=checkpointing,
        override_config={"attn_implementation": "sdpa"},
        lora_rank=rank,
        lora_alpha=2 * rank or 16,
        target_modules="all-linear",
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        model_dtype="fp32",
        dtype="float32",
        mixed_precision={"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=TOKENS,
        infer_max_token_len_per_gpu=TOKENS,
    )
    optimiser = FSDPOptimizerConfig(lr=1e-6, total_training_steps=1000)
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model,
        engine_config=engine,
        optimizer_config=optimiser,
        checkpoint_config=CheckpointConfig(),
    )
    made = TrainingWorker(config)
    made.reset()
    torch.set_num_threads(1)  # the engine has taken all cores
    return made


def actor_loss() -> Any:
    """Our loss, as `TrainingWorker.set_loss_fn` takes it."""
    config = ActorConfig(strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, loss_agg_mode="seq-mean-token-mean")
    return partial(weighted_ppo_loss, config=config)


def batch(rows: Rows, fine_tuning: bool) -> TensorDict:
    """Rows as verl sends them to a worker: an actor's, or conversations of which the answer trains."""
    ids, said = [torch.tensor(prompt + response) for prompt, response in rows], [response for _, response in rows]
    columns = {
        "input_ids": ids,
        "position_ids": [torch.arange(len(row)) for row in ids],
        "loss_mask": [torch.ones(len(row), dtype=torch.int64) for row in said],
    }
    if fine_tuning:
        columns["loss_mask"] = [torch.tensor([0] * len(prompt) + [1] * len(response)) for prompt, response in rows]
    else:
        columns |= {
            "prompts": [torch.tensor(prompt) for prompt, _ in rows],
            "responses": [torch.tensor(response) for response in said],
            "response_mask": columns["loss_mask"],
            "old_log_probs": [torch.full((len(row),), -1.0) for row in said],
            "advantages": [torch.full((len(row),), 1.0 - 2.0 * (number % 2)) for number, row in enumerate(said)],
        }
    data = TensorDict(batch_size=len(rows))
    for name, values in columns.items():
        data[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
    data["temperature"], data[WEIGHT] = torch.ones(len(rows)), torch.ones(len(rows))
    tu.assign_non_tensor(
        data,
        pad_mode=DatasetPadMode.NO_PADDING,
        calculate_entropy=False,
        compute_loss=False,
        global_batch_size=len(rows),
        global_token_num=[len(row) for row in ids],
        sp_size=1,
    )
    return data


def operations(made: TrainingWorker, rows: Rows) -> tuple[float, int]:
    """Floating point operations of a forward pass, and its computed tokens; see above."""
    module, config = made.engine.module, made.engine.module.config
    trees = share([prompt for prompt, _ in rows], [response for _, response in rows], reach=made.engine._reach)
    tokens = sum(map(len, trees))
    scored = len({(number, column) for number, tree in enumerate(trees) for _, at, _ in tree.rows for column in at})
    seen = sum(position + 1 for tree in trees for position in tree.positions)
    head = config.vocab_size * config.hidden_size
    inner = sum(one.numel() for one in module.parameters()) - head * (1 if config.tie_word_embeddings else 2)
    return 2 * inner * tokens + 2 * head * scored + 4 * config.num_hidden_layers * config.hidden_size * seen, tokens


def shares(folder: str, dtype: str) -> None:
    """Print as JSON: name -> [operations, CPU seconds, computed tokens]; each pass once, after a short one."""
    trajectories = load(40000)[:8]  # two questions: rows of a question share passages
    rows = [(list(call.prompt), [7] * call.new_tokens) for trajectory in trajectories for call in trajectory]
    single = [row for number, row in enumerate(rows) if number % 12 < 3]  # as demonstrations: one sample of each call
    made, found = worker(folder, dtype), {}
    losses = {"update": actor_loss(), "SFT": partial(sft_loss, config=None)}

    def timed(name: str, chosen: Rows) -> list[float]:
        data, start = batch(chosen, name == "SFT"), time.process_time()
        made.infer_batch(data) if name == "reference" else made.train_batch(data)
        seconds, (flops, tokens) = time.process_time() - start, operations(made, chosen)
        return [flops * (1 if name == "reference" else 3), seconds, tokens]

    for name, chosen in (("reference", rows), ("update", rows), ("SFT", single)):
        made.set_loss_fn(losses.get(name, losses["update"]))
        timed(name, rows[:1])  # memory, Adam's moments, the measurement of the footprint
        found[name] = timed(name, chosen)
    print("RESULT " + json.dumps(found))


def peak(action: Any) -> int:
    """Bytes of this process at most during `action` that are not files."""
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], _anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    action()
    done.set()
    thread.join()
    return most[0]


def _anonymous() -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split("RssAnon:")[1].split()[0])


def memory(folder: str, tokens: int, checkpointing: bool, rank: int) -> int:
    """Bytes of a second update of one row by verl's own pass, above those of the process before it had a model."""
    before = _anonymous()
    made = worker(folder, "fp32", checkpointing, rank)
    made.engine._can_share = lambda data: False
    made.set_loss_fn(partial(sft_loss, config=None))
    made.train_batch(batch([([5] * 40, [7] * 8)], True))  # the optimiser has its moments
    rows: Rows = [([5] * (tokens - tokens // 8), [7] * (tokens // 8))]
    return peak(lambda: made.train_batch(batch(rows, True))) - before


def memories(folder: str) -> None:
    """A line of JSON per case: tokens, checkpointing, rank of LoRA, bytes. Each in a fork of this process."""
    for case in CASES:
        child = os.fork()
        if not child:
            try:
                print("RESULT " + json.dumps([*case, memory(folder, *case)]), flush=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _, place, what, *rest = sys.argv
    shares(place, *rest) if what == "shares" else memories(place)
