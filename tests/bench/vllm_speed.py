"""A real model in our rollout engine and in vLLM's build for CPUs, both in this process.

    make rehearse ARGS=--collect-only        # makes the environment, once
    .venv-vllm/bin/python -m tests.bench.vllm_speed FOLDER

The load is that of real_size.py. A trajectory's next call joins as soon as the last one has ended; both engines compute
a common prefix of prompts once, in float32. CPU seconds of one thread: other programs do not change them much.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.bench import engine_vs_generate
from tests.bench.engine_vs_generate import AGENTS, Call
from tests.bench.real_size import load

CONTEXT, REPEATS = 1024, 3
WANTED = 1.0


def vllm_engine(folder: str) -> Any:
    """vLLM's engine in this process, on one thread."""
    from vllm import EngineArgs, LLMEngine

    settings = {"max_model_len": CONTEXT, "kv_cache_memory_bytes": 2**30, "max_num_seqs": 64}
    return LLMEngine.from_engine_args(
        EngineArgs(model=folder, dtype="float32", disable_log_stats=True, seed=0, **settings)
    )


def theirs(engine: Any, trajectories: list[list[Call]]) -> Callable[[], int]:
    """The load through vLLM, from an empty cache."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    def add(call: Call) -> None:
        number = call.trajectory * len(AGENTS) + call.agent
        wanted = {"max_tokens": call.new_tokens, "ignore_eos": True, "logprobs": 0, "detokenize": False}
        sampling = SamplingParams(seed=number, **wanted)
        engine.add_request(str(number), TokensPrompt(prompt_token_ids=list(call.prompt)), sampling)

    def run() -> int:
        engine.reset_prefix_cache()
        tokens = 0
        for calls in trajectories:
            add(calls[0])
        while engine.has_unfinished_requests():
            for done in engine.step():
                if done.finished:
                    tokens += len(done.outputs[0].token_ids)
                    trajectory, agent = divmod(int(done.request_id), len(AGENTS))
                    if agent + 1 < len(AGENTS):
                        add(trajectories[trajectory][agent + 1])
        return tokens

    return run


def run(folder: str | None) -> Iterator[str]:
    """Lines; one sentence where the model or vLLM is absent."""
    if not folder or importlib.util.find_spec("vllm_cpu_build") is None:
        yield f"  skipped: no model in {folder!r}, or no vLLM here (tests/bench/vllm_speed.py says how to run this)"
        return
    # Read when vLLM is imported.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    engine = vllm_engine(folder)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    trajectories = load(model.config.vocab_size)
    ours, slots = engine_vs_generate.ours_with_engine(model, trajectories, CONTEXT)
    served = theirs(engine, trajectories)
    start = time.process_time()
    assert served() == sum(call.new_tokens for calls in trajectories for call in calls)  # compiles, too
    yield f"  vLLM's first run: {time.process_time() - start:.0f} CPU seconds"
    us, them = engine_vs_generate.speeds([ours, served], REPEATS)
    yield (
        f"  {folder}, float32, one thread, tokens per CPU second: hf engine {us:.1f}, vLLM {them:.1f}; "
        f"hf over vLLM {us / them:.2f} x (wanted {WANTED:.0f} x)"
    )


if __name__ == "__main__":
    for line in run(sys.argv[1] if len(sys.argv) > 1 else None):
        print(line, flush=True)
