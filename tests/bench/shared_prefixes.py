"""(f) The trainer's forward and backward pass over one step's rows: shared prefixes over verl's padded pass."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_ext.engine.fsdp.batching import batches, share
from verl_ext.engine.fsdp.layout import lay_out, scored_logits
from verl_ext.plugin import package_path
from verl_ext.recipe.cold_start.evaluate import run_workflow
from verl_ext.recipe.cold_start.registry import COLD_STARTS

MODEL = package_path("recipe/mhgpo/assets/tiny_model")


def rows(questions: int = 32, group: int = 4) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and responses of one step of the tiny run: three agents, sampled from the cold start."""
    torch.manual_seed(0)
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL).eval()
    exam = COLD_STARTS["search"].examinations(questions)["easy"]
    calls = [
        call
        for seed in range(group)
        for forest in run_workflow(model, tokenizer, exam.workflow, exam.tasks, exam.tools, greedy=False, seed=seed)
        for call in forest.trajectories[0].calls
    ]
    return [call.prompt_ids for call in calls], [call.generation.token_ids for call in calls]


def padded(model: torch.nn.Module, prompts: list[list[int]], responses: list[list[int]]) -> tuple[torch.Tensor, int]:
    """Sum of the responses' log-probs as verl computes it without packing: every row to the longest, all logits."""
    width = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True))
    ids, mask, scored = (torch.zeros(len(prompts), width, dtype=torch.int64) for _ in range(3))
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        end = len(prompt) + len(response)
        ids[row, :end], mask[row, :end] = torch.tensor(prompt + response), 1
        scored[row, len(prompt) : end] = 1
    positions = torch.arange(width).expand_as(ids)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    log_probs = -F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return (log_probs * scored[:, 1:]).sum(), ids.numel()


def shared(model: torch.nn.Module, prompts: list[list[int]], responses: list[list[int]]) -> tuple[torch.Tensor, int]:
    """The same sum over shared prefixes."""
    total, tokens = torch.zeros(()), 0
    for batch in batches(share(prompts, responses)):
        layout = lay_out(batch, pad=0)
        total = total - F.cross_entropy(scored_logits(model, layout), layout.labels, reduction="sum")
        tokens += layout.input_ids.numel()
    return total, tokens


def run() -> list[str]:
    """Lines: tokens through the model, seconds of the second of two passes, and their ratio."""
    prompts, responses = rows()
    model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="sdpa").train()
    (one, slow, many), (other, fast, few) = (_timed(way, model, prompts, responses) for way in (padded, shared))
    assert abs(one - other) < 1e-3 * abs(one), (one, other)
    real = sum(map(len, prompts)) + sum(map(len, responses))
    return [
        f"  {len(prompts)} rows, {real:,} tokens: padded {many:,}, shared {few:,}",
        f"  padded {slow:.2f} s, shared {fast:.2f} s: {slow / fast:.1f} x",
    ]


def _timed(way: Callable, model: torch.nn.Module, prompts: list, responses: list) -> tuple[float, float, int]:
    seconds = 0.0
    for _ in range(2):
        model.zero_grad()
        start = time.perf_counter()
        total, tokens = way(model, prompts, responses)
        total.backward()
        seconds = time.perf_counter() - start
    return total.item(), seconds, tokens
