"""`make bench`: every figure is a ratio of two things measured in this run, or stands beside its floor or aim."""

from __future__ import annotations

import sys

import torch

from tests.bench import (
    adapters,
    doctor,
    engine_vs_generate,
    gateway,
    heads,
    many,
    masks,
    memory,
    real_size,
    retrieval,
    shared_prefixes,
    simulator,
    tool_search,
    top_k,
    training,
    trajectory_log,
)
from verl_ext.reports import machine


def main() -> None:
    """Run all measurements and print them."""
    torch.set_num_threads(1)
    print(f"{machine()}, torch {torch.__version__}\n")
    print("(b) our engine over transformers.generate(), same mixed-length multi-agent load (target >= 1.5 x):")
    for row in engine_vs_generate.run():
        cells = [f"{name} {cell:,.1f}" if isinstance(cell, float) else f"{name} {cell}" for name, cell in row.items()]
        print("  " + "  ".join(cells), flush=True)
    print("\n(e) the tiny training run:", flush=True)
    lines, per_step = training.run()
    print("\n".join(lines), flush=True)
    print("\n(f) forward and backward pass of a step, verl's padded rows over shared prefixes, one thread:")
    print("\n".join(shared_prefixes.run()), flush=True)
    print("\n(g) the trajectory log of the tiny run (limit 3 % of a step):")
    print("\n".join(trajectory_log.run(per_step)), flush=True)
    print("\n(i) searches per second over plain numpy scans of everything, one thread:", flush=True)
    print("\n".join(retrieval.run()), flush=True)
    print(
        "\n(j) the memory at 100,000 memories, over plain numpy scans of their vectors, one thread (aim <= 5 ms):",
        flush=True,
    )
    print("\n".join(memory.run()), flush=True)
    print(
        "\n(k) tool searches per second over 16,000 tools, 32 clients, over plain numpy scans, one thread:", flush=True
    )
    print("\n".join(tool_search.run()), flush=True)
    print("\n(l) hits per second of the tool simulator's cache over a plain sqlite3 look-up:", flush=True)
    print("\n".join(simulator.run()), flush=True)
    print("\n(m) finding the tokens of tool calls and folds, ToolPO's M, over one look at each token, one thread:")
    print("\n".join(masks.run(per_step)), flush=True)
    print("\n(n) the actor's update over the rows of the top K nodes, over that of all (a row: aim within 10 %):")
    print("\n".join(top_k.run()), flush=True)
    print("\n(o) adapters per agent over a single ordinary one, and decoding over a model without any, one thread:")
    print("\n".join(adapters.run()), flush=True)
    print("\n(r) a policy head's decision over the bare matrix product, one thread:")
    print("\n".join(heads.run()), flush=True)
    print("\n(s) the checks of a training step of the tiny run:")
    print("\n".join(doctor.run(per_step)), flush=True)
    print(
        "\n(t) a real model in rollout engine and trainer, over this machine's floors and generate(), one thread:",
        flush=True,
    )
    for line in real_size.run(sys.argv[1] if len(sys.argv) > 1 else None):
        print(line, flush=True)
    print(
        "\n(u) a request to the gateway over ctx.chat, with an engine that answers at once (aim < 2 ms at 32 sessions):"
    )
    print("\n".join(gateway.run()), flush=True)
    print("\n(v) a rollout worker with 2,000 trajectories at once (aim: lags of its loop <= 50 ms):", flush=True)
    print("\n".join(many.run()), flush=True)


if __name__ == "__main__":
    main()
