"""From the configuration to objects: the workflow and its tools."""

from __future__ import annotations

import inspect
from typing import Any

from hydra.utils import get_class, get_object, instantiate
from omegaconf import OmegaConf

from verl_ext.heads import PolicyHead
from verl_ext.mas.agent import Agent
from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.mas.workflow import Workflow
from verl_ext.memory import EncoderSimilarity, HashingSimilarity, Similarity
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.tools.retrieval.dense import check_encoder_name
from verl_ext.trainer.config import EndpointSection, MasConfig
from verl_ext.trainer.preflight.typed import check_keys

# Annotations of arguments that are checked, as they may be written.
SCALARS = {"bool": bool, "int": int}


def build(section: dict[str, Any], path: str) -> Any:
    """Instantiate a `_target_` section; whatever is wrong with it is a `ValueError` that names the section."""
    _check_arguments(section, path)
    try:
        return instantiate(OmegaConf.create(section), _convert_="all")
    except Exception as error:
        cause = error.__cause__ or error
        raise ValueError(f"cannot build {path} from {section}: {type(cause).__name__}: {cause}") from error


def _check_arguments(section: dict[str, Any], path: str) -> None:
    """Refuse keys that the target does not take, and what is no bool or int where it wants one (`no` is a true text).

    Silent where that cannot be told, or the target not be found.
    """
    try:
        parameters = inspect.signature(get_object(section["_target_"])).parameters.values()
    except Exception:
        return  # the instantiation says why
    for parameter in parameters:
        kind = SCALARS.get(getattr(parameter.annotation, "__name__", parameter.annotation))
        if kind and parameter.name in section and type(section[parameter.name]) is not kind:
            value = section[parameter.name]
            raise ValueError(f"{path}.{parameter.name} must be of type {kind.__name__}, but is {value!r}")
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        given = [key for key in section if not key.startswith("_")]
        check_keys(given, [parameter.name for parameter in parameters], path)


def workflow_class(mas: MasConfig) -> type[Workflow]:
    """The class that `mas.workflow._target_` names. Its module may add strategies and algorithms when it is imported.

    Raises:
        ValueError: it cannot be imported, or is none.
    """
    try:
        cls = get_class(mas.workflow["_target_"])
    except Exception as error:
        raise ValueError(f"mas.workflow._target_={mas.workflow['_target_']!r} cannot be imported: {error}") from error
    if not issubclass(cls, Workflow):
        raise ValueError(f"mas.workflow._target_={mas.workflow['_target_']!r} is not a verl_ext.mas.Workflow")
    return cls


def build_workflow(mas: MasConfig) -> Workflow:
    """The workflow with `mas.agents` applied: sampling parameters, whether an agent trains, and who answers for it.

    Raises:
        ValueError: the class cannot be imported or built, has no agents, or needs a tool that is not there; or
            `mas.agents` names an agent it does not have, or asks of one what it cannot be.
    """
    cls = workflow_class(mas)
    workflow = build(mas.workflow, "mas.workflow")
    if not getattr(workflow, "agents", None):
        raise ValueError(f"{cls.__name__} has no agents. Remedy: agents = {{name: Agent(prompt), …}} in the class")
    if lacking := [name for name in workflow.needs if name not in mas.tools]:
        raise ValueError(
            f"{cls.__name__} calls the tool {lacking[0]}, which mas.tools does not have (it has: "
            f"{', '.join(mas.tools) or 'none'}). Remedy: +mas.tools.{lacking[0]}._target_=… (docs/extending.md)"
        )
    for name, section in mas.agents.items():
        if name in workflow.left_out:
            continue
        if name not in workflow.agents:
            raise ValueError(f"mas.agents.{name}: unknown agent; this workflow has {', '.join(workflow.agents)}")
        given = {key: value for key, value in vars(section).items() if value is not None}
        agent, endpoint, head = workflow.agents[name], given.pop("endpoint", None), given.pop("head", None)
        fields = {"trained": given.pop("trained", agent.trained and endpoint is None)}
        fields["cost"] = given.pop("cost", agent.cost)
        if endpoint is not None:
            if fields["trained"]:
                raise ValueError(
                    f"mas.agents.{name}: a served model (endpoint) cannot be trained. "
                    f"Remedy: ++mas.agents.{name}.trained=false"
                )
            path = f"mas.agents.{name}.endpoint"
            fields["llm"] = EndpointLLM(ChatEndpoint(**vars(endpoint), setting=(f"{path}.url", f"{path}.model")))
        if head is not None:
            _check_head(name, agent, endpoint)
            fields["llm"] = PolicyHead(similarity_of(head.encoder, f"mas.agents.{name}.head.encoder"))
        # In a dictionary of the instance: the class's may serve another configuration of this process.
        workflow.agents = {**workflow.agents, name: agent.changed(sampling=given, **fields)}
    return workflow


def _check_head(name: str, agent: Agent, endpoint: EndpointSection | None) -> None:
    if agent.choices is None:
        raise ValueError(
            f"mas.agents.{name}.head: a policy head chooses among given texts, but {name} says what it likes. Remedy: "
            "no head here; it is for agents with `choices` (docs/extending.md)"
        )
    if endpoint is not None:
        raise ValueError(
            f"mas.agents.{name} has an endpoint and a head; one can answer. Remedy: mas.agents.{name}.head=null "
            f"or mas.agents.{name}.endpoint=null"
        )


def similarity_of(encoder: str, setting: str = "mas.memory.encoder") -> Similarity:
    """What embeds texts: "hashing", or a sentence encoder's name or folder, which is loaded for its first text.

    Raises:
        ValueError: `encoder` can be neither; `setting` names it.
    """
    check_encoder_name(encoder, setting, "hashing")
    return HashingSimilarity() if encoder == "hashing" else EncoderSimilarity(encoder)
