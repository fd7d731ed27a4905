"""The LLM of an evaluation: a model in this process, run by our engine, or an endpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import DictConfig, open_dict
from safetensors import SafetensorError

from verl_ext.engine.lora.adapter_files import read_adapters
from verl_ext.engine.lora.adapters import AdapterOptions
from verl_ext.evaluate.checkpoint import Model, find_model, full_weights, of_policies
from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.mas.endpoint import EndpointLLM
from verl_ext.mas.workflow import Workflow
from verl_ext.tools.chat import ChatEndpoint
from verl_ext.trainer.config import MasConfig
from verl_ext.trainer.lora_setup import adapters_of
from verl_ext.trainer.policies.checkpoints import described
from verl_ext.trainer.policies.settings import policies_of_agents, read_policies
from verl_ext.trainer.rollout.llm import ServedLLM, chat_options, template_of


def allowed_threads() -> int | None:
    """Threads that the environment allows this process (OMP_NUM_THREADS); None: it does not say.

    In training the engine does not ask: Ray sets that variable in every worker.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(given) if given.isdecimal() and int(given) > 0 else None


class LocalLLM(ServedLLM):
    """The model in this process, run by our engine instead of verl's rollout servers.

    Args:
        config: the whole configuration.
        model: what to load.
        device: cpu, cuda, cuda:1, …
        seeded: as in `ServedLLM`.

    Raises:
        ValueError: no such device, an architecture that the engine cannot run, or weights that do not fit.
    """

    def __init__(self, config: DictConfig, model: Model, device: str, seeded: bool = True):
        from transformers.utils.logging import disable_progress_bar
        from verl.utils.config import omega_conf_to_dataclass

        from verl_ext.engine.hf.server import HFServer
        from verl_ext.engine.lora.hf_server import HFAdapterServer

        disable_progress_bar()
        section = config.copy().actor_rollout_ref  # a copy of the whole: the section refers to others
        with open_dict(section):
            section.model.update(path=model.path, hf_config_path=None, tokenizer_path=None, **_lora_settings(model))
            section.rollout.load_format = "dummy" if model.shards else "auto"
        rollout, itself = omega_conf_to_dataclass(section.rollout), omega_conf_to_dataclass(section.model)
        server = (HFAdapterServer if model.adapters else HFServer)(
            rollout, itself, device=device, most_threads=allowed_threads()
        )
        options = chat_options(config, server.model_config.hf_config)
        super().__init__(server.model_config.tokenizer, server, seeded=seeded, **options)
        self.model = model

    async def connect(self) -> None:
        """Load the weights of a run's checkpoint (those of a Hugging Face folder are loaded already)."""
        if self.model.shards:
            await self.client.update_weights(full_weights(self.model))
        if self.model.adapters:
            options = AdapterOptions.from_config(self.client.model_config)
            await self.client.update_adapters(read_adapters(self.model.adapters, options))

    async def close(self) -> None:
        """Nothing to release before the process ends."""


def _lora_settings(model: Model) -> dict[str, Any]:
    """verl's settings for a model with the adapters of a checkpoint, or without any."""
    names, rank, alpha = (model.lora.get(key) for key in ("names", "rank", "alpha"))
    return {"lora_rank": rank or 0, "lora_alpha": alpha or 1, "lora": {"adapters": names}, "lora_adapter_path": None}


def open_policies(config: DictConfig, section: EvaluateConfig, model: Model, seeded: bool) -> dict[str, Any]:
    """The model of each agent of a checkpoint of several policies, for `connect` and `close` by policy.

    Raises:
        ValueError: see `open_llm`.
    """
    opened = {}
    for name, own in model.policies.items():
        settings = config.copy()
        if (template := model.chat_templates[name]) is not None:
            with open_dict(settings):
                settings.data.apply_chat_template_kwargs = template
        one = open_llm(settings, section, own, seeded)
        assert isinstance(one, LocalLLM)  # a server answers for no checkpoint
        opened[name] = one
    return opened


def open_llm(config: DictConfig, section: EvaluateConfig, model: Model | None, seeded: bool) -> LocalLLM | EndpointLLM:
    """The LLM that the configuration names; `connect` it before its first call.

    Args:
        model: for this process (`model_of`); None: the endpoint.
        seeded: send each call's own seed.

    Raises:
        ValueError: see `LocalLLM`, `device_of`; or there is no such model.
    """
    if model is None:
        return EndpointLLM(endpoint_of(config, section, seeded))
    device = device_of(config, section)
    print(f"Loading {model.source} on {device} …", flush=True)
    start = time.time()
    try:
        llm = LocalLLM(config, model, device, seeded)
    except (OSError, SafetensorError, InstantiationException) as error:
        cause = error.__cause__ if isinstance(error, InstantiationException) else error  # Hydra builds verl's sections
        if not isinstance(cause, (OSError, SafetensorError)):  # an absent model, or weights that were copied in part
            raise
        named = "evaluate.model" if section.model else "actor_rollout_ref.model.path"
        raise ValueError(
            f"{named}={section.model or model.path} cannot be loaded: {cause}\n"
            "Remedy: a Hugging Face folder, a hub name that is reachable, or a checkpoint of a run (…/global_step_N)"
        ) from error
    print(f"… loaded in {time.time() - start:.0f} s", flush=True)
    return llm


def endpoint_of(config: DictConfig, section: EvaluateConfig, seeded: bool = True) -> ChatEndpoint:
    """The configured endpoint."""
    return ChatEndpoint(
        section.endpoint,
        section.model,
        api_key_env=section.api_key_env,
        concurrency=section.concurrency,
        timeout=section.request_timeout,
        retries=section.retries,
        template=template_of(config),
        seeded=seeded,
        setting=("evaluate.endpoint", "evaluate.model"),
    )


def check_served(section: EvaluateConfig, mas: MasConfig, workflow: Workflow) -> None:
    """Check that the endpoint can tell the policies apart by the names of the models that requests carry.

    An agent with an adapter of its own asks for it by its name; all others ask for `evaluate.model`.

    Raises:
        ValueError: agents of several policies would ask for `evaluate.model`.
    """
    adapters: Mapping[str, str | None] = adapters_of(mas, workflow) or {}
    policies = policies_of_agents(mas)
    asking: dict[str, list[str]] = {}
    for agent in workflow.agents:
        if agent in policies and not adapters.get(agent):
            asking.setdefault(policies[agent], []).append(agent)
    if section.endpoint is None or len(asking) < 2:
        return
    served = " ".join(f"+mas.agents.{agent}.endpoint={{url: …, model: …}}" for agent in [*asking.values()][-1])
    shown = ", ".join(f"{name} ({', '.join(agents)})" for name, agents in asking.items())
    raise ValueError(
        f"evaluate.endpoint={section.endpoint} is asked for one model, evaluate.model, and mas.policies has {shown}, "
        "each with a model of its own: one would answer for all. Allowed: one policy, or further ones whose agents all "
        "have adapters (per_agent_lora). Remedy: evaluate.model=…/global_step_N without an endpoint, which runs each "
        "policy in this process; or no mas.policies (~mas.policies) and an endpoint for each agent of another policy: "
        f"{served}"
    )


async def served_model(config: DictConfig, section: EvaluateConfig, adapters: Collection[str] = ()) -> str:
    """The name of the model that requests to the endpoint will carry.

    Args:
        adapters: names of models that some agents' requests carry instead. Prints those that the server does not list:
            not every server lists all that it answers for.

    Raises:
        ValueError: see `ChatEndpoint.find_model`.
    """
    chat = endpoint_of(config, section)
    try:
        model = await chat.find_model()
    finally:
        await chat.close()
    lacking = [name for name in adapters if name not in chat.listed]
    if chat.listed and lacking:
        print(
            f"Note: {chat.url} does not list {', '.join(lacking)} (it lists {', '.join(chat.listed)}). Under "
            "mas.policy=per_agent_lora each agent that trains is answered by the adapter of its name. Remedy: serve "
            "them (docs/per_agent_lora.md), or mas.policy=shared, under which the model answers for all agents",
            flush=True,
        )
    return model


def model_of(config: DictConfig, section: EvaluateConfig) -> Model | None:
    """The model to be run in this process, or None if an endpoint answers.

    Raises:
        ValueError: see `find_model`, `device_of`.
    """
    if section.endpoint is not None:
        return None
    device_of(config, section)
    base = config.actor_rollout_ref.model.path
    sections = read_policies(config)
    if section.model is None and sections:
        return of_policies(described(config))
    model = find_model(section.model or base, base)
    if sections and model.policies and set(sections) != set(model.policies):
        raise ValueError(
            f"{model.source} has the policies {', '.join(model.policies)}, and mas.policies names "
            f"{', '.join(sections)}. Remedy: the names of the run, or no mas.policies: the checkpoint has the agents "
            "of each"
        )
    return model


def device_of(config: DictConfig, section: EvaluateConfig) -> str:
    """Where a model in this process runs.

    Raises:
        ValueError: the recipe is for GPUs (or evaluate.device names one) and there is none.
    """
    import torch

    device = section.device or ("cuda" if config.trainer.device == "cuda" else "cpu")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"evaluate.device={device} is no device of torch. Allowed: cpu, cuda, cuda:0, …") from error
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"the model was to run on {device}, but this machine has no GPU that torch can use.\nRemedy: serve it "
            "elsewhere (vllm serve MODEL --port 8100 --generation-config vllm) and give "
            "evaluate.endpoint=http://HOST:8100/v1, or run it here, slowly, with evaluate.device=cpu; "
            "+recipe=mhgpo_tiny and the others in …_tiny run on any machine"
        )
    return device
