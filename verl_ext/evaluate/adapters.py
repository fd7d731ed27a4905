"""The adapter of each agent in an evaluation: from a checkpoint, or served by an endpoint."""

from __future__ import annotations

from verl_ext.evaluate.checkpoint import Model
from verl_ext.mas.workflow import Workflow
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.lora_setup import BASE, Adapters, adapters_of


def adapters_to_play(model: Model | None, mas: MasConfig, workflow: Workflow) -> Adapters | None:
    """The adapters of a workflow's agents; None: there are none.

    A checkpoint with adapters is evaluated with them, for every value of `mas.policy`. For an endpoint, `mas.policy`
    tells whether it serves adapters under the names of the agents.

    Raises:
        ValueError: an agent that trains has no adapter in the checkpoint.
    """
    if model is None:
        return adapters_of(mas, workflow)
    if not model.adapters:
        return None
    names = model.lora["names"]
    without = [name for name in workflow.policy_agents if name not in names]
    if without:
        raise ValueError(
            f"{model.adapters} has adapters of {', '.join(names)}, and none of {', '.join(without)}: it is of another "
            "system. Remedy: the recipe it was trained with, or ++mas.agents.<name>.trained=false for roles that the "
            "base alone is to answer"
        )
    return Adapters({name: name if name in names else BASE for name in workflow.agents})
