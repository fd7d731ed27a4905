"""(o) K adapters per agent over one ordinary LoRA adapter: forward and backward pass, and decoding."""

from __future__ import annotations

import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_ext.engine.hf.params import Request, SamplingParams
from verl_ext.engine.hf.slots import SlotEngine
from verl_ext.engine.lora.adapters import AdapterOptions, wire_name
from verl_ext.engine.lora.routed_lora import add_adapters
from verl_ext.engine.lora.served_adapters import AdapterEngine, AdapterRequest

NUMBERS = (1, 2, 4, 8)
RANK, ROWS, TOKENS, SLOTS, VOCABULARY = 16, 16, 64, 32, 4096
REPEATS = 4


def base() -> Qwen2ForCausalLM:
    """49M parameters."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=9,
        num_attention_heads=10,
        num_key_value_heads=5,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM._from_config(config, attn_implementation="sdpa")


def options(number: int) -> AdapterOptions:
    return AdapterOptions(tuple(f"agent{i}" for i in range(number)), RANK, RANK)


def training() -> list[str]:
    """Seconds of a forward and backward pass over ROWS x TOKENS tokens, the best of several, taken in turns."""
    stock = get_peft_model(
        base(), LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=RANK, target_modules="all-linear")
    )
    routed = {number: add_adapters(base(), options(number)) for number in NUMBERS}
    ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS))
    best = dict.fromkeys((0, *NUMBERS), float("inf"))
    for _ in range(REPEATS):
        best[0] = min(best[0], _passes(stock, ids))
        for number, (model, route) in routed.items():
            with route.using([ROWS // number] * number):
                best[number] = min(best[number], _passes(model, ids))
    parts = [f"{number}: {best[number]:.2f} s ({best[number] / best[0]:.2f} x)" for number in NUMBERS]
    return [f"  training, {ROWS} x {TOKENS} tokens: one ordinary adapter {best[0]:.2f} s; routed {', '.join(parts)}"]


def _passes(model: torch.nn.Module, ids: torch.Tensor) -> float:
    start = time.process_time()  # of one thread: other processes do not count
    model(input_ids=ids, use_cache=False, logits_to_keep=32).logits.logsumexp(-1).sum().backward()
    return time.process_time() - start


def decoding() -> list[str]:
    """Tokens per second of SLOTS requests at a time, adapters over a model without any."""
    engines: dict[int, SlotEngine] = {0: SlotEngine(base(), SLOTS, 256)}
    for number in NUMBERS:
        state = {
            key: p.detach()
            for n, p in add_adapters(base(), options(number))[0].named_parameters()
            if (key := wire_name(n))
        }
        engines[number] = AdapterEngine(options(number), base(), SLOTS, 256)
        engines[number].load_adapters(state)
    best = dict.fromkeys(engines, 0.0)
    for _ in range(REPEATS):
        for number, engine in engines.items():
            best[number] = max(best[number], _speed(engine, number))
    parts = [f"{number}: {best[number]:,.0f} ({best[0] / best[number]:.2f} x the time)" for number in NUMBERS]
    return [f"  decoding, {SLOTS} requests, tokens/s: without adapters {best[0]:,.0f}; with {', '.join(parts)}"]


def _speed(engine: SlotEngine, number: int) -> float:
    params = SamplingParams(max_tokens=16, ignore_eos=True, seed=1)
    prompts = [tuple(range(2 + i, 40 + i)) for i in range(SLOTS)]
    requests = [Request(str(i), prompt, params) for i, prompt in enumerate(prompts)]
    if number:
        requests = [AdapterRequest.of(one, f"agent{i % number}") for i, one in enumerate(requests)]
    start, before = time.process_time(), engine.stats.generated_tokens
    engine.generate(requests)
    return (engine.stats.generated_tokens - before) / (time.process_time() - start)


def run() -> list[str]:
    """Lines of both."""
    return training() + decoding()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("\n".join(run()))
