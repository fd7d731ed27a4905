"""Builds the objects that the section `mas` names: the workflow, its tools, and the encoders of memories and heads."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from hydra.utils import get_class, get_object, instantiate
from omegaconf import OmegaConf

from verl_ext.gateway import GatewayWorkflow
from verl_ext.heads import PolicyHead
from verl_ext.mas.agent import Agent
from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.mas.workflow import Workflow
from verl_ext.memory import EncoderSimilarity, HashingSimilarity, HiddenStateSimilarity, Similarity
from verl_ext.memory.states import PREFIX
from verl_ext.rewards.judge import Chat, Judge, read_templates
from verl_ext.settings import check_keys, unknown_key
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.tools.retrieval.dense import check_encoder_name
from verl_ext.tracebacks import place_of
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.policies.settings import apply_policies
from verl_ext.trainer.rollout.chat_tokens import check_parser
from verl_ext.trainer.sections import ONCE_PER_NODE, AgentSection, JudgeSection

# Hydra prints there what it raises.
logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)
# Annotations of the arguments whose types are checked.
SCALARS = {"bool": bool, "int": int}


def build(section: dict[str, Any], path: str) -> Any:
    """Instantiate a section with a `_target_`; `path` names it in messages.

    Raises:
        ValueError: it cannot be instantiated.
    """
    check_arguments(section, path)
    try:
        return instantiate(OmegaConf.create(section), _convert_="all")
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, ValueError) and str(cause).startswith(f"{path}."):  # it names the setting
            raise ValueError(str(cause)) from None
        hint = ""
        if path.startswith("mas.tools.") and isinstance(cause, TypeError) and "_partial_" not in section:
            hint = f". If the function is the tool itself: +{path}._partial_=true"
        raise ValueError(f"cannot build {path} from {section}: {type(cause).__name__}: {cause}{hint}") from error


def build_tools(sections: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The tools of `mas.tools` by name: what each factory returns, or under `_partial_` the function itself.

    An asynchronous function needs no `_partial_`: it cannot be a factory.

    Raises:
        ValueError: one cannot be built, or is nothing that can be called.
    """
    tools = {}
    for name, section in sections.items():
        target, path = get_object(section["_target_"]), f"mas.tools.{name}"
        section = {key: value for key, value in section.items() if key != ONCE_PER_NODE}
        tools[name] = build(section | ({"_partial_": True} if inspect.iscoroutinefunction(target) else {}), path)
        if not callable(tools[name]):
            raise ValueError(
                f"{path}: {place_of(target)} returned {tools[name]!r:.100}, which cannot be called. It must be a "
                "factory: its arguments are the settings of the section, and it returns the tool. Remedy: return a "
                f"function from it; or, if it is the tool itself: +{path}._partial_=true"
            )
    return tools


def check_arguments(section: dict[str, Any], path: str) -> None:
    """Refuse keys that the target does not take, and values that are no bool or int where it wants one.

    YAML reads `no` in quotes, or on the command line, as a text, which Python takes for true. A target that cannot be
    found or inspected is left to the instantiation.

    Raises:
        ValueError: names the key; `path` names the section.
    """
    try:
        parameters = inspect.signature(get_object(section["_target_"])).parameters.values()
    except Exception:
        return
    for parameter in parameters:
        kind = SCALARS.get(getattr(parameter.annotation, "__name__", parameter.annotation))
        if kind and parameter.name in section and type(section[parameter.name]) is not kind:
            value = section[parameter.name]
            raise ValueError(f"{path}.{parameter.name}={value!r} must be of type {kind.__name__}")
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        given = [key for key in section if not key.startswith("_")]
        known = [parameter.name for parameter in parameters]
        check_keys(given, known, path, "A key of a recipe that is extended is taken away by null, e.g. {name: null}.")


def workflow_class(mas: MasConfig) -> type[Workflow]:
    """The class that `mas.workflow._target_` names. Its module may add strategies and algorithms when it is imported.

    Raises:
        ValueError: it cannot be imported, or is no workflow.
    """
    target = mas.workflow["_target_"]
    try:
        cls = get_class(target)
    except Exception as error:
        cause = error.__cause__ or error
        absent = isinstance(cause, ModuleNotFoundError)
        remedy = ". Remedy: start in the folder of its module, put that folder on PYTHONPATH, or install it"
        raise ValueError(
            f"mas.workflow._target_={target!r} cannot be imported: {type(cause).__name__}: {cause}{remedy * absent}"
        ) from error
    if not issubclass(cls, Workflow):
        raise ValueError(f"mas.workflow._target_={target!r} is not a verl_ext.mas.Workflow")
    return cls


def build_workflow(mas: MasConfig) -> Workflow:
    """The workflow with `mas.agents` applied: sampling parameters, whether an agent trains, and who answers for it.

    Raises:
        ValueError: the class cannot be imported or built, has no agents, or needs a tool that is not configured; or
            `mas.agents` names an unknown agent, or settings that do not fit it.
    """
    cls = workflow_class(mas)
    workflow = build(mas.workflow, "mas.workflow")
    if not getattr(workflow, "agents", None):
        raise ValueError(f"{cls.__name__} has no agents. Remedy: agents = {{name: Agent(prompt), …}} in the class")
    for name in workflow.agents:
        if not name or set(name) & set("/#*"):
            raise ValueError(
                f"{cls.__name__} has an agent {name!r}: a name must not be empty nor contain /, # or *, which separate "
                "the parts of a call's identity. Remedy: another name"
            )
    for name in workflow.needs:
        if name not in mas.tools:
            raise ValueError(
                f"{cls.__name__} calls the tool {name}, which mas.tools does not have (it has: "
                f"{', '.join(mas.tools) or 'none'}). Remedy: +mas.tools.{name}._target_=… (docs/extending.md)"
            )
    if workflow.needs_judge and not mas.judge.given:
        raise ValueError(
            f"the reward of this {cls.__name__} asks a judge, and mas.judge names none. Remedy: "
            "mas.judge.url=http://HOST:8100/v1, or mas.judge.checkpoint=FOLDER (docs/judge.md)"
        )
    workflow.judge = build_judge(mas) if workflow.needs_judge else None
    if isinstance(workflow, GatewayWorkflow):
        workflow.gateway = mas.gateway
    for name, section in mas.agents.items():
        if name in workflow.agents:
            # A new dictionary: the one of the class may serve another configuration in this process.
            workflow.agents = {**workflow.agents, name: _changed(workflow.agents[name], section, f"mas.agents.{name}")}
        elif name not in workflow.left_out:
            raise ValueError(unknown_key(name, [*workflow.agents, *workflow.left_out], "mas.agents"))
    apply_policies(workflow, mas)
    return workflow


def build_judge(mas: MasConfig) -> Judge:
    """The judge of `mas.judge`. Its cache is opened when it is first asked.

    Raises:
        ValueError: the file of templates is wrong, or there is no such checkpoint.
    """
    given = mas.judge
    templates = read_templates(given.templates)
    return Judge(_judges_chat(given), given.cache, templates, mas.seed, given.temperature, given.max_tokens)


def _judges_chat(given: JudgeSection) -> Chat:
    if given.checkpoint is not None:
        from verl_ext.trainer.checkpoint_chat import CheckpointChat

        return CheckpointChat(given.checkpoint, given.max_tokens, given.chat_template)
    return ChatEndpoint(
        str(given.url),
        given.model,
        template=given.chat_template,
        setting=("mas.judge.url", "mas.judge.model"),
        **{name: getattr(given, name) for name in ("api_key_env", "concurrency", "timeout", "retries")},
    )


def _changed(agent: Agent, section: AgentSection, path: str) -> Agent:
    given = {key: value for key, value in vars(section).items() if value is not None}
    endpoint, head, cost = (given.pop(key, None) for key in ("endpoint", "head", "cost"))
    fields: dict[str, Any] = {"trained": given.pop("trained", agent.trained and endpoint is None)}
    if (parser := given.pop("tool_parser", None)) is not None:
        check_parser(parser, f"{path}.tool_parser")
        fields["tool_parser"] = parser
    if cost is not None:
        fields["cost"] = cost
    if endpoint is not None and head is not None:
        raise ValueError(f"{path} has an endpoint and a head, but only one can answer. Remedy: set one of them to null")
    if endpoint is not None and fields["trained"]:
        raise ValueError(f"{path}: a served model (endpoint) cannot be trained. Remedy: ++{path}.trained=false")
    if head is not None and agent.choices is None:
        raise ValueError(
            f"{path}.head: a policy head chooses among given texts, and this agent has no `choices`: it writes free "
            "text. Remedy: no head here (docs/extending.md)"
        )
    if endpoint is not None:
        place = f"{path}.endpoint"
        fields["llm"] = EndpointLLM(ChatEndpoint(**vars(endpoint), setting=(f"{place}.url", f"{place}.model")))
    if head is not None:
        fields["llm"] = PolicyHead(similarity_of(head.encoder, f"{path}.head.encoder"))
    return agent.changed(sampling=given, **fields)


def similarity_of(encoder: str, setting: str = "mas.memory.encoder") -> Similarity:
    """The similarity that `encoder` names; a model is loaded when it is first used.

    "hashing", a sentence encoder (name or folder), or "states:MODEL": the hidden states of a language model.

    Raises:
        ValueError: `encoder` is neither; the message names `setting`.
    """
    if encoder.startswith(PREFIX):
        if not encoder.removeprefix(PREFIX):
            raise ValueError(f"{setting}={encoder!r} names no model. Remedy: {PREFIX}FOLDER, or {PREFIX}owner/name")
        return HiddenStateSimilarity(encoder.removeprefix(PREFIX))
    check_encoder_name(encoder, setting, "hashing", f"{PREFIX}MODEL")
    return HashingSimilarity() if encoder == "hashing" else EncoderSimilarity(encoder)
