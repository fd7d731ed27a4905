"""Algorithms: pure tensor functions from a batch of agent calls to token-level advantages.

    mhgpo     heterogeneous-group advantages               algorithms/mhgpo.py      docs/mhgpo.md
    toolpo    success on all tokens, tool calls on theirs  algorithms/toolpo.py     docs/toolpo.md

verl's own estimators gae, grpo and reinforce_plus_plus work on the same rollouts by their names.

To add one: a file with `advantages(rows: Rows, config) -> (N, T)`, a line here; outside of this package,
`ALGORITHMS["mine"] = advantages` in the module of your workflow. Its keyword-only arguments are options that
`mas.advantage` may set. The trainer does not know it.
"""

from collections.abc import Callable

import torch

from verl_ext.algorithms import mhgpo, toolpo
from verl_ext.algorithms.rows import Rows

ALGORITHMS: dict[str, Callable[..., torch.Tensor]] = {
    "mhgpo": mhgpo.advantages,
    "toolpo": toolpo.advantages,
}

__all__ = ["ALGORITHMS", "Rows"]
