"""Algorithms: pure tensor functions from a batch of agent calls to token-level advantages.

    mhgpo     heterogeneous-group advantages            algorithms/mhgpo.py      docs/mhgpo.md

verl's own estimators gae, grpo and reinforce_plus_plus work on the same rollouts by their names.

To add one: a file with `advantages(rows: Rows, config) -> (N, T)`, a line here; outside of this package,
`ALGORITHMS["mine"] = advantages` in the module of your workflow. The trainer does not know it.
"""

from collections.abc import Callable
from typing import Any

import torch

from verl_ext.algorithms import mhgpo
from verl_ext.algorithms.rows import Rows

ALGORITHMS: dict[str, Callable[[Rows, Any], torch.Tensor]] = {
    "mhgpo": mhgpo.advantages,
}

__all__ = ["ALGORITHMS", "Rows"]
