"""(n) What JoyAgents-R1's top K saves: the actor's update over the rows that it keeps.

verl's own actor worker with our engine and loss on the tiny model: generated questions with 8 nodes of 4 samples each,
prompts of 60 to 120 tokens, responses of 8 to 24, random rewards. K is 8 (all), 4, 2 and 1 of a question's nodes,
chosen by `algorithms/joyagents.py: select` before any forward pass; one optimiser step each. CPU time of the process,
one thread, the best of several, taken in turns. The cost of a row should stay what it is: aim within 10 %.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

QUESTIONS, REPEATS = 48, 3
NODES, SAMPLES = 8, 4
TOP = (8, 4, 2, 1)  # K


def run(questions: int = QUESTIONS, repeats: int = REPEATS) -> list[str]:
    """Lines, from a process of its own, which verl's process group wants.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-m", "tests.bench.top_k", str(questions), str(repeats)]
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=settings, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the update failed:\n{done.stderr[-3000:]}")
    return [line for line in done.stdout.splitlines() if line.startswith("  K = ")]


def rows(questions: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, response) of SAMPLES rows of each of NODES nodes of each question; those of a node share a prompt."""

    def tokens(low: int, high: int) -> list[int]:
        return torch.randint(6, 400, (int(torch.randint(low, high + 1, ())),)).tolist()

    prompts = [tokens(60, 120) for _ in range(questions * NODES)]
    return [(prompt, tokens(8, 24)) for prompt in prompts for _ in range(SAMPLES)]


def measure(questions: int, repeats: int) -> None:
    """Measure and print a line per K."""
    from tests.bench.training_size import actor_loss, batch, worker  # on our platform, which it registers
    from verl_ext.algorithms import JoyAgents, Rows
    from verl_ext.plugin import package_path

    torch.manual_seed(0)
    actor, made = worker(package_path("recipe/mhgpo/assets/tiny_model"), "fp32"), rows(questions)
    actor.set_loss_fn(actor_loss())
    node = torch.arange(len(made)) // SAMPLES
    reward = torch.rand(len(made), dtype=torch.float64)
    numbers = (node, node, node // NODES, node, node < 0)
    facts = Rows(reward, *numbers, outcome=reward, length=node, failed=node < 0, position=node)
    kept = {k: JoyAgents(top_k=k).select(facts).nonzero()[:, 0].tolist() for k in TOP}
    seconds: dict[int, list[float]] = {k: [] for k in TOP}
    for _ in range(repeats + 1):
        for k in TOP:
            data = batch([made[i] for i in kept[k]], fine_tuning=False)
            start = time.process_time()
            actor.train_batch(data)
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
    measure(*map(int, sys.argv[1:] or (QUESTIONS, REPEATS)))
