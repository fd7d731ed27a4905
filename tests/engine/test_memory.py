"""Micro-batches follow the memory: its parts, and rows that are too long for it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from verl_ext.engine.fsdp import memory
from verl_ext.engine.fsdp.batching import share
from verl_ext.engine.fsdp.layout import lay_out, scored_logits

GIB = 2**30


def test_the_budget_follows_free_memory_only_where_it_is_short():
    assert memory.budget(32 * GIB, 1, 20 * GIB) == memory.budget(32 * GIB, 1, 5 * GIB) == memory.SHARE * 32 * GIB
    assert memory.budget(32 * GIB, 2, GIB / 2) == memory.FREE_SHARE * GIB / 2 / 2
    assert memory.budget(32 * GIB, 1, 0) == memory.LEAST


def test_available_memory_is_that_of_the_container(tmp_path):
    for name, text in (("max", "1000\n"), ("current", "900\n"), ("stat", "anon 5\ninactive_file 300\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.available_memory(str(tmp_path)) == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory(str(tmp_path)) > 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other ways")
@pytest.mark.parametrize(("first", "kept"), [("", True), ("freed_memory.keep_little(4 * 2**20)", False)])
def test_where_memory_is_short_little_of_what_was_freed_is_kept(first, kept):
    """Large tensors are freed between small ones that live on."""
    program = f"""
import psutil, torch
from verl_ext.engine import freed_memory
{first}
torch.ones(2**22)  # 16 MiB, freed: from now on glibc, on its own, takes such sizes from its heap
before = psutil.Process().memory_info().rss
pairs = [(torch.ones(2**20), torch.ones(2**10)) for _ in range(100)]  # 400 MiB
stay = [small for _, small in pairs]
del pairs
print(psutil.Process().memory_info().rss - before)
"""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "LD_"))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert (int(done.stdout) > 2 * 10**8) == kept, done.stdout


def test_gradients_and_moments_that_do_not_exist_yet_are_counted():
    layer = torch.nn.Linear(10, 10, bias=False)
    frozen = torch.nn.Parameter(torch.zeros(7), requires_grad=False)
    optimiser = torch.optim.AdamW(layer.parameters())
    assert memory.still_to_come([layer.weight, frozen], optimiser) == 3 * 100 * 4
    layer(torch.ones(1, 10)).sum().backward()
    assert memory.still_to_come([layer.weight, frozen], optimiser) == 2 * 100 * 4
    optimiser.step()
    assert memory.still_to_come([layer.weight, frozen], optimiser) == 0


@pytest.mark.parametrize("needed", [True, False])
def test_layers_that_are_computed_twice_keep_less_and_have_the_same_gradients(model_dir, needed):
    model = AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="sdpa").train()
    layout = lay_out(share([[3] * 60], [[8, 9]]), pad=0)

    def run(needed: bool) -> tuple[int, list[torch.Tensor]]:
        def forward() -> torch.Tensor:
            with memory.recomputing(model, needed, {"use_reentrant": False}):
                return scored_logits(model, layout).log_softmax(-1).sum()

        kept = memory.kept_bytes(forward)
        model.zero_grad()
        forward().backward()
        return kept, [one.grad.clone() for one in model.parameters()]

    plain, gradients = run(False)
    kept, again = run(needed)
    assert (kept < 0.7 * plain) == needed
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(gradients, again, strict=True))
    assert not model.is_gradient_checkpointing
