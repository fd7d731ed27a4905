"""What a checkpoint holds beside the model: an adapter per agent, policy heads, the agents' memories."""

from __future__ import annotations

import hashlib
from pathlib import Path

from verl_ext.evaluate.checkpoint import Model
from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.mas.workflow import Workflow
from verl_ext.memory import View, read_snapshot
from verl_ext.observe.spans import Model as Asked
from verl_ext.trainer.build import similarity_of
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.lora_setup import BASE, Adapters, adapters_of
from verl_ext.trainer.state import agent_memory, decision_heads


def adapters_to_play(model: Model | None, mas: MasConfig, workflow: Workflow) -> Adapters | None:
    """The adapters of a workflow's agents; None: there are none.

    A checkpoint with adapters is evaluated with them, for every value of `mas.policy`. For an endpoint, `mas.policy`
    tells whether it serves adapters under the names of the agents.

    Raises:
        ValueError: an agent that trains has no adapter in the checkpoint.
    """
    if model is None:
        return adapters_of(mas, workflow)
    if model.policies:
        return _of_policies(model, workflow)
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


def _of_policies(model: Model, workflow: Workflow) -> Adapters | None:
    """The same for a checkpoint of several policies, some of which have adapters."""
    have = {name: own.lora["names"] for name, own in model.policies.items() if own.adapters}
    found = {a: a if a in names else BASE for name, names in have.items() for a in model.agents[name]}
    if without := [agent for agent in workflow.policy_agents if found.get(agent) == BASE]:
        raise ValueError(
            f"{model.source} has no adapter of {', '.join(without)}, which did not train there. Remedy: "
            "++mas.agents.<name>.trained=false for roles that the base alone is to answer"
        )
    return Adapters({agent: found.get(agent) for agent in workflow.agents}) if found else None


def asked_of(model: Model | None) -> dict[str, Asked]:
    """Who answers for each agent of a checkpoint of several policies, as spans name it; empty for other models."""
    if model is None:
        return {}
    return {
        agent: Asked("verl_ext", model.policies[name].source, name)
        for name, agents in model.agents.items()
        for agent in agents
    }


def load_heads(section: EvaluateConfig, workflow: Workflow) -> str | None:
    """Give the workflow's heads the weights of `evaluate.heads`, or of the checkpoint that `evaluate.model` names.

    Returns:
        A hash of the weights; None: the workflow has no heads.

    Raises:
        ValueError: a head has no weights, or weights of another encoder; or weights are named and there are no heads.
    """
    heads = decision_heads.heads_of(workflow)
    if not heads:
        if section.heads is not None:
            raise ValueError(f"evaluate.heads={section.heads} needs an agent with a head, mas.agents.<name>.head={{}}")
        return None
    beside = section.model if section.endpoint is None else None
    if section.heads is None and beside is None:
        raise ValueError(
            f"the policy head of {', '.join(heads)} has no weights here. Remedy: evaluate.model=…/global_step_N of the "
            f"run that trained it, or evaluate.heads=…/global_step_N/{decision_heads.FOLDER}"
        )
    folder = Path(section.heads) if section.heads is not None else Path(beside) / decision_heads.FOLDER
    weights = decision_heads.weights_from(folder.expanduser(), workflow)
    decision_heads.set_weights(workflow, weights)
    content = b"".join(name.encode() + weights[name].matrix.tobytes() for name in sorted(weights))
    return hashlib.sha256(content).hexdigest()[:16]


def open_memory(section: EvaluateConfig, mas: MasConfig) -> View | None:
    """Open `evaluate.memory`, or the memory in the checkpoint that `evaluate.model` names; None: no memory.

    Raises:
        ValueError: the named folder holds no memory, it is damaged or of another encoder, or `mas.memory` is not set.
    """
    if mas.memory is None:
        if section.memory is not None:
            raise ValueError(f"evaluate.memory={section.memory} needs the section mas.memory, e.g. mas.memory={{}}")
        return None
    beside = Path(section.model).expanduser() / agent_memory.FOLDER if section.model and not section.endpoint else None
    folder = section.memory or (beside if beside is not None and beside.is_dir() else None)
    return None if folder is None else read_snapshot(Path(folder).expanduser(), similarity_of(mas.memory.encoder))
