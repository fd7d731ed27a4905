"""A real model in rollout engine and trainer: against transformers.generate(), and this machine's own floors.

    python -m tests.bench.real_size FOLDER

FOLDER is a Hugging Face folder, for example SmolLM2-135M (`verl_ext models smollm2-135m --output_dir FOLDER`).
Load: questions x 4 samples, three agents in a row. An agent's prompt is its system prompt, passages that the samples of
a question share, and a question; the answers' lengths are fixed. `generate()` gets static batches, as in
engine_vs_generate.py. CPU seconds of one thread: other programs do not change them much.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.bench import engine_vs_generate
from tests.bench.engine_vs_generate import Call
from verl_ext.check import compose
from verl_ext.engine.hf.params import Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine
from verl_ext.engine.precision import choose
from verl_ext.trainer.preflight.gpu_memory import estimate, read_model

ROOT = Path(__file__).parents[2]
RATIO, SHARE = 3.0, 0.6  # wanted: over generate(), and of the peak of matrix products
QUESTIONS, SAMPLES = 4, 4
SHAPES = (
    (120, 0, 20, 16),
    (150, 300, 20, 8),
    (80, 150, 20, 16),
)  # system, passages, question, answer: tokens per agent
PROMPT, ROWS, STEPS = 128, 16, 8  # of the measurements of prefill and decode alone


def load(vocab_size: int) -> list[list[Call]]:
    """Per trajectory its calls, in order."""
    rng = random.Random(0)

    def text(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(20, vocab_size) for _ in range(length))

    systems = [text(system) for system, *_ in SHAPES]
    trajectories = []
    for _ in range(QUESTIONS):
        passages = [text(length) for _, length, *_ in SHAPES]
        first = text(SHAPES[0][2])
        for _ in range(SAMPLES):
            number = len(trajectories)
            parts = [first, *(text(shape[2]) for shape in SHAPES[1:])]
            calls = zip(systems, passages, parts, SHAPES, strict=True)
            trajectories.append([Call(number, i, s + p + q, shape[3]) for i, (s, p, q, shape) in enumerate(calls)])
    return trajectories


def cpu_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the best of some repeats."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def peak(dtype: torch.dtype) -> float:
    """Floating point operations per second of a large matrix product."""
    one, other = (torch.ones(1024, 1024, dtype=dtype) for _ in range(2))
    return 2 * 1024**3 / cpu_seconds(lambda: F.linear(one, other), 8)


def bandwidth() -> float:
    """Bytes per second of reading memory that no cache holds."""
    block = torch.ones(2**26)  # 256 MiB
    return block.nbytes / cpu_seconds(lambda: block.sum(), 5)


def engine_shares(model: PreTrainedModel) -> list[str]:
    """Prefill over the peak of matrix products; a decode step over the floor of reading weights and keys and values."""
    engine = SlotEngine(model, ROWS, PROMPT + STEPS + 2)
    engine.share_from = None
    inner, whole = model.num_parameters(exclude_embeddings=True), model.num_parameters()
    rng = random.Random(1)

    def ready(new_tokens: int) -> None:
        engine.reset()
        params = SamplingParams(new_tokens, seed=0, ignore_eos=True)
        for number in range(ROWS):
            prompt = tuple(rng.randrange(20, engine.vocab_size) for _ in range(PROMPT))
            engine.add(Request(str(number), prompt, params))

    first = step = float("inf")
    for _ in range(3):
        ready(1 + STEPS)
        first = min(first, cpu_seconds(engine.step, 1))  # the prompts, and a token of each
        step = min(step, cpu_seconds(engine.step, STEPS))
    flops = peak(model.dtype)
    prefill = 2 * inner * ROWS * (PROMPT - 1) / (first - step)
    least = max(whole * model.dtype.itemsize / bandwidth(), 2 * whole * ROWS / flops)
    return [
        f"    prefill, {ROWS} x {PROMPT} tokens: {prefill / 1e9:.0f} GFLOP/s of {flops / 1e9:.0f} measured: "
        f"{prefill / flops:.0%} (wanted {SHARE:.0%})",
        f"    decode, {ROWS} rows: {step * 1e3:.0f} ms a step; reading the weights, or their products, takes at least "
        f"{least * 1e3:.0f} ms: {least / step:.0%} (wanted {SHARE:.0%})",
    ]


def versus_generate(folder: str, dtype: str) -> Iterator[str]:
    """Tokens per CPU second of the same load: the engine, as it chooses, and `generate()` in float32 and its type."""
    load_model = AutoModelForCausalLM.from_pretrained
    ours = load_model(folder, dtype=getattr(torch, dtype)).eval()
    trajectories = load(ours.config.vocab_size)
    calls = [call for trajectory in trajectories for call in trajectory]
    run, engine = engine_vs_generate.ours_with_engine(ours, trajectories, 1024)
    speed = sum(call.new_tokens for call in calls) / cpu_seconds(run, 1)
    prompts, through = sum(len(call.prompt) for call in calls), engine.stats.prefill_tokens
    yield from (
        f"    {len(calls)} calls, {prompts:,} prompt tokens: {through:,} ({through / prompts:.0%}) are computed",
        f"    engine, {dtype}: {speed:.1f} tokens per CPU second",
    )
    for kind in dict.fromkeys((dtype, "float32")):
        plain = load_model(folder, dtype=getattr(torch, kind)).eval()
        theirs = engine_vs_generate.theirs(plain, trajectories, len(trajectories))
        other = sum(call.new_tokens for call in calls) / cpu_seconds(theirs, 1)
        yield f"    generate(), {kind}: {other:.1f}; engine over it {speed / other:.1f} x (wanted {RATIO:.0f} x)"


def results(folder: str, *arguments: str) -> list[Any]:
    """What training_size.py prints, from a process of its own."""
    command = [sys.executable, "-m", "tests.bench.training_size", folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = [json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if "RESULT" in line]
    if not found:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return found


def training_shares(folder: str, dtype: str) -> Iterator[str]:
    """Reference, update and fine-tuning over the peak of matrix products."""
    yield (
        "    operations: 2 per parameter and computed token, 2 per number of the output layer and scored token, "
        "attention to what a token sees; three times that in training"
    )
    flops = peak(getattr(torch, dtype))
    for name, (operations, seconds, tokens) in results(folder, "shares", dtype)[0].items():
        speed = operations / seconds
        yield (
            f"    {name}, {tokens:,} tokens: {speed / 1e9:.0f} GFLOP/s of {flops / 1e9:.0f} measured: "
            f"{speed / flops:.0%} (wanted {SHARE:.0%})"
        )


def estimates(folder: str) -> Iterator[str]:
    """What `verl_ext check` estimates of an update under verl's own pass, against its measured peak."""
    model = read_model(folder)
    for tokens, checkpointing, rank, measured in results(folder, "memory"):
        settings = {
            "model.path": folder,
            "model.lora_rank": rank,
            "model.enable_gradient_checkpointing": checkpointing,
            "actor.ppo_max_token_len_per_gpu": tokens,
            "actor.fsdp_config.mixed_precision.param_dtype": "fp32",
        }
        config = compose(["+recipe=mhgpo_real", *(f"actor_rollout_ref.{key}={one}" for key, one in settings.items())])
        found = estimate(config, model, critic=False).training
        weights = f"LoRA of rank {rank}" if rank else "all weights"
        yield (
            f"    {weights}, a micro-batch of {tokens:,} tokens{', checkpointing' * checkpointing}: estimated "
            f"{found / 1e9:.2f} GB, measured {measured / 1e9:.2f}: {found / measured - 1:+.0%}"
        )


def run(folder: str | None) -> Iterator[str]:
    """Lines; one sentence where the model is absent."""
    if not folder or not (Path(folder) / "config.json").is_file():
        yield f"  skipped: no model in {folder!r} (python -m verl_ext models smollm2-135m --output_dir FOLDER makes it)"
        return
    torch.set_num_threads(1)
    choice = choose("cpu")
    dtype = choice.dtype
    yield f"  {folder}; chosen type {choice}"
    yield from engine_shares(AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)))
    yield from versus_generate(folder, dtype)
    yield from training_shares(folder, dtype)
    yield from estimates(folder)


if __name__ == "__main__":
    for line in run(sys.argv[1] if len(sys.argv) > 1 else None):
        print(line, flush=True)
