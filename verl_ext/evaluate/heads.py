"""Policy heads in an evaluation: loads the weights of a checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.mas.workflow import Workflow
from verl_ext.trainer.state.decision_heads import FOLDER, heads_of, set_weights, weights_from


def load_heads(section: EvaluateConfig, workflow: Workflow) -> str | None:
    """Give the workflow's heads the weights of `evaluate.heads`, or of the checkpoint that `evaluate.model` names.

    Returns:
        A hash of the weights; None: the workflow has no heads.

    Raises:
        ValueError: a head has no weights, or weights of another encoder; or weights are named and there are no heads.
    """
    heads = heads_of(workflow)
    if not heads:
        if section.heads is not None:
            raise ValueError(f"evaluate.heads={section.heads} needs an agent with a head, mas.agents.<name>.head={{}}")
        return None
    beside = section.model if section.endpoint is None else None
    if section.heads is None and beside is None:
        raise ValueError(
            f"the policy head of {', '.join(heads)} has no weights here. Remedy: evaluate.model=…/global_step_N of the "
            f"run that trained it, or evaluate.heads=…/global_step_N/{FOLDER}"
        )
    folder = Path(section.heads) if section.heads is not None else Path(beside) / FOLDER
    weights = weights_from(folder.expanduser(), workflow)
    set_weights(workflow, weights)
    content = b"".join(name.encode() + weights[name].matrix.tobytes() for name in sorted(weights))
    return hashlib.sha256(content).hexdigest()[:16]
