"""Algorithms: pure tensor functions from a batch of agent calls to token-level advantages.

    mhgpo      heterogeneous-group advantages                  algorithms/mhgpo.py        docs/mhgpo.md
    toolpo     success on all tokens, tool calls on theirs     algorithms/toolpo.py       docs/toolpo.md
    joyagents  GRPO at the nodes of largest reward variance    algorithms/joyagents.py    docs/joyagents.md
    puppeteer  REINFORCE for decisions, by cost-shaped returns algorithms/puppeteer.py    docs/puppeteer.md

verl's own estimators gae, grpo and reinforce_plus_plus work on the same rollouts by their names.

To add one: a file with `advantages(rows: Rows, config) -> (N, T)`, a line here; outside of this package,
`ALGORITHMS["mine"] = advantages` in the module of your workflow. An algorithm may also choose, by
`SELECTIONS["mine"] = select(reward, group, question) -> (N,) bool`, which rows train at all: the others cost no
forward or backward pass. Keyword-only arguments of both are options that `mas.advantage` may set; one called `state` is
a dictionary (of what JSON can hold) that lives as long as the training does, through checkpoints.
"""

from collections.abc import Callable

import torch

from verl_ext.algorithms import joyagents, mhgpo, puppeteer, toolpo
from verl_ext.algorithms.rows import Rows

ALGORITHMS: dict[str, Callable[..., torch.Tensor]] = {
    "mhgpo": mhgpo.advantages,
    "toolpo": toolpo.advantages,
    "joyagents": joyagents.advantages,
    "puppeteer": puppeteer.advantages,
}
SELECTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "joyagents": joyagents.select,
}

__all__ = ["ALGORITHMS", "SELECTIONS", "Rows"]
