"""`mas.policies`: which settings may differ between policies, and the configuration of one."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict
from pydantic import Field, model_validator

from verl_ext.arguments import did_you_mean
from verl_ext.engine.policy_names import ARGUMENTS, NUMBER, POLICY
from verl_ext.settings import Settings
from verl_ext.trainer import modes

if TYPE_CHECKING:
    from verl_ext.mas.workflow import Workflow
    from verl_ext.trainer.config import MasConfig

# Settings of verl's optimisers that people look for elsewhere.
OF_AN_OPTIMISER = ("lr", "weight_decay", "betas", "lr_scheduler_type", "lr_warmup_steps", "lr_warmup_steps_ratio")
# Where verl has the sections of a policy.
PLACES = {name: f"actor_rollout_ref.{name}" for name in ("model", "actor", "ref", "rollout")} | {"critic": "critic"}
# The settings that may differ between policies. What is not here is one for the run: sampling (the trainer divides by
# one temperature), the KL terms (a column of the batch that only some rows had would be lost without an error), the
# algorithm, the data, the machines.
OF_A_MODEL = (
    *(f"model.{key}" for key in ("path", "tokenizer_path", "hf_config_path", "custom_chat_template", "external_lib")),
    *(f"model.{key}" for key in ("override_config.*", "trust_remote_code", "use_remove_padding", "use_liger")),
    *(f"model.{key}" for key in ("lora_rank", "lora_alpha", "lora_adapter_path", "target_modules", "exclude_modules")),
    *(f"model.{key}" for key in ("enable_gradient_checkpointing", "enable_activation_offload")),
    *(f"actor.{key}" for key in ("optim.*", "fsdp_config.*", "ppo_mini_batch_size", "ppo_epochs", "grad_clip")),
    *(f"actor.{key}" for key in ("clip_ratio*", "entropy_coeff", "kl_loss_coef", "kl_loss_type", "shuffle")),
    *(f"actor.{key}" for key in ("ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")),
    *(f"ref.{key}" for key in ("fsdp_config.*", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu")),
    *(f"rollout.{key}" for key in ("gpu_memory_utilization", "tensor_model_parallel_size", "max_num_*")),
    *(f"rollout.{key}" for key in ("engine_kwargs.*", "log_prob_max_token_len_per_gpu", "enforce_eager")),
    *(f"rollout.{key}" for key in ("log_prob_micro_batch_size_per_gpu", "enable_prefix_caching", "load_format")),
    *(f"rollout.{key}" for key in modes.POOL),
    *(f"critic.{key}" for key in ("model.*", "optim.*", "fsdp.*", "ppo_mini_batch_size", "ppo_epochs", "cliprange*")),
    *(f"critic.{key}" for key in ("ppo_max_token_len_per_gpu", "ppo_infer_max_token_len_per_gpu", "grad_clip")),
)


def places_of(key: str) -> list[str]:
    """Where a policy has a setting, or a section of settings, of this name."""
    named = [f"{part}.optim.{key}" for part in ("actor", "critic") if key in OF_AN_OPTIMISER]
    return named + [place.removesuffix(".*") for place in OF_A_MODEL if key in place.split(".")[1:]]


class PolicySection(Settings):
    """`mas.policies.<name>`: the agents that a policy answers for, and what it has of its own."""

    agents: list[str] = Field(min_length=1)
    frozen: bool = False
    per_agent_lora: bool = False
    every: int = Field(1, ge=1, description="steps")
    from_step: int = Field(1, ge=1, description="the first step in which it trains")
    chat_template: dict[str, Any] | None = None
    model: dict[str, Any] = {}
    actor: dict[str, Any] = {}
    ref: dict[str, Any] = {}
    rollout: dict[str, Any] = {}
    critic: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_places(cls, given: Any) -> Any:
        for key in given if isinstance(given, dict) else ():
            if key not in cls.model_fields and (places := places_of(key)):
                raise ValueError(f"{key} stands in another section; did you mean {' or '.join(places)}?")
        return given

    @model_validator(mode="after")
    def _check_keys(self) -> PolicySection:
        if self.frozen and (self.every != 1 or self.from_step != 1):
            raise ValueError("every and from_step are for policies that train, and this one is frozen: true")
        if self.frozen and self.per_agent_lora:
            raise ValueError("per_agent_lora: true trains an adapter for each agent, and this policy is frozen: true")
        for place in (place for name in PLACES for place in leaves(getattr(self, name), name)):
            if not any(fnmatchcase(place, pattern) for pattern in OF_A_MODEL):
                whole = place.partition(".")
                own = [one for one in places_of(place.rpartition(".")[2]) if one.startswith(f"{whole[0]}.")]
                near = f"; did you mean {own[0]!r}?" if own else did_you_mean(place, OF_A_MODEL)
                raise ValueError(
                    f"{place} cannot differ between policies{near}; if it is a setting of "
                    f"the run: {PLACES[whole[0]]}.{whole[2]}. Allowed: {', '.join(OF_A_MODEL)}"
                )
        return self

    def trains(self, step: int) -> bool:
        """Whether it trains in this step."""
        return not self.frozen and step >= self.from_step and (step - self.from_step) % self.every == 0

    def updates(self, steps: int) -> int:
        """In how many of the first `steps` steps it trains."""
        return 0 if self.frozen else max(0, -(-(steps - self.from_step + 1) // self.every))


def leaves(section: dict[str, Any], path: str) -> list[str]:
    """Dotted names of the values in a section; an empty mapping is a value."""
    found = []
    for key, value in section.items():
        place = f"{path}.{key}"
        found += leaves(value, place) if isinstance(value, dict) and value else [place]
    return found


def in_verl(key: str) -> str:
    """Where verl has a setting of a policy: actor_rollout_ref.actor.grad_clip for actor.grad_clip."""
    part, _, rest = key.partition(".")
    return f"{PLACES[part]}.{rest}"


def given_at(name: str, section: PolicySection | None, key: str) -> str:
    """The setting that gives a policy its value of `key`: one of its own section, or else the run's."""
    own = section is not None and any(key == one for part in PLACES for one in leaves(getattr(section, part), part))
    return f"mas.policies.{name}.{key}" if own else in_verl(key)


def policies_of_agents(mas: MasConfig) -> dict[str, str]:
    """The policy of each agent; empty in a run without `mas.policies`."""
    return {agent: name for name, section in mas.policies.items() for agent in section.agents}


def read_policies(config: DictConfig) -> dict[str, PolicySection]:
    """The sections of `mas.policies` by name.

    Raises:
        ValueError: see `PolicySection`.
    """
    given: Any = OmegaConf.to_container(config.mas.get("policies") or OmegaConf.create(), resolve=True)
    return {name: PolicySection.read(section, f"mas.policies.{name}") for name, section in given.items() if section}


def policy_config(config: DictConfig, name: str, total_steps: int | None = None) -> DictConfig:
    """The whole configuration as the policy `name` has it.

    A critic that starts from the run's model starts from the policy's, unless its section names one.

    Args:
        total_steps: of the run; None: not known yet. Learning-rate schedules end after the policy's last update.
    """
    sections = read_policies(config)
    section = sections[name]
    plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    whole: Any = OmegaConf.create(OmegaConf.to_container(plain, resolve=True))
    before = whole.actor_rollout_ref.model.path
    with open_dict(whole):
        _restrict(whole, section)
        for part, place in PLACES.items():
            OmegaConf.update(whole, place, getattr(section, part), merge=True, force_add=True)
        model, rollout, critic = whole.actor_rollout_ref.model, whole.actor_rollout_ref.rollout, whole.critic
        rollout.custom = {**(rollout.get("custom") or {}), POLICY: name, NUMBER: len(sections)}
        if argument := ARGUMENTS.get(rollout.checkpoint_engine.backend):
            given = rollout.checkpoint_engine.engine_kwargs
            given[rollout.checkpoint_engine.backend] = {
                **(given.get(rollout.checkpoint_engine.backend) or {}),
                argument: name,
            }
        if section.chat_template is not None:
            whole.data.apply_chat_template_kwargs = section.chat_template
        for key in ("path", "tokenizer_path"):
            if key not in section.critic.get("model", {}) and critic.model.get(key) == before:
                critic.model[key] = model.path
        if section.frozen:
            model.lora_rank, model.lora_adapter_path = 0, None
            whole.actor_rollout_ref.actor.use_kl_loss = whole.algorithm.use_kl_in_reward = False
        if total_steps is not None:
            for part in (whole.actor_rollout_ref.actor, whole.critic):
                part.optim.total_training_steps = max(1, section.updates(total_steps)) * modes.parts_of_step(whole)
    OmegaConf.set_struct(whole, True)
    return whole


def _restrict(config: DictConfig, section: PolicySection) -> None:
    """Leave what is said of the adapters of this policy's agents: of a policy with some, as in a run of its own."""
    mas, own = config.mas, section.agents
    mas.policy_init = {agent: place for agent, place in (mas.get("policy_init") or {}).items() if agent in own}
    if section.per_agent_lora:
        from verl_ext.trainer.lora_setup import set_adapters  # which imports this module

        others = [agent for one in read_policies(config).values() for agent in one.agents if agent not in own]
        mas.policy, mas.policies = "per_agent_lora", {}
        for agent in others:
            mas.agents[agent] = {**(mas.agents.get(agent) or {}), "trained": False}
        set_adapters(config)


def policy_configs(config: DictConfig) -> dict[str, DictConfig]:
    """The configuration of each policy by name; of a run without `mas.policies`: {"": the configuration}."""
    return {name: policy_config(config, name) for name in read_policies(config)} or {"": config}


def apply_policies(workflow: Workflow, mas: MasConfig) -> None:
    """Check that every agent that a policy answers for has exactly one; agents of frozen policies do not train.

    Raises:
        ValueError: an agent has none, or two; there is no such agent; or another model answers for it.
    """
    if not mas.policies:
        return
    named: dict[str, str] = {}
    own = [name for name, agent in workflow.agents.items() if agent.llm is None]
    for policy, section in mas.policies.items():
        place = f"mas.policies.{policy}.agents"
        for agent in section.agents:
            if agent not in workflow.agents and agent not in workflow.left_out:
                raise ValueError(
                    f"{place}: there is no agent {agent!r}{did_you_mean(agent, own)} (allowed: {', '.join(own)})"
                )
            if named.get(agent) == policy:
                raise ValueError(f"{place} names {agent!r} twice. Remedy: once")
            if agent in named:
                raise ValueError(
                    f"agent {agent!r} is in mas.policies.{named[agent]} and in {place}, but has one policy"
                )
            if agent in workflow.agents and agent not in own:
                raise ValueError(
                    f"{place}: an endpoint or a policy head answers for {agent!r} (mas.agents.{agent}), so no policy "
                    f"does. Remedy: leave it out of {place}"
                )
            named[agent] = policy
    if without := [agent for agent in own if agent not in named]:
        raise ValueError(
            f"mas.policies names no policy for {', '.join(without)}. Remedy: add each to the agents of one of "
            f"{', '.join(mas.policies)}"
        )
    for agent, policy in named.items():
        if mas.policies[policy].frozen and agent in workflow.agents:
            if (settings := mas.agents.get(agent)) is not None and settings.trained:
                raise ValueError(
                    f"mas.agents.{agent}.trained=true, but its policy is frozen. Remedy: "
                    f"mas.policies.{policy}.frozen=false"
                )
            workflow.agents = {**workflow.agents, agent: workflow.agents[agent].changed(trained=False)}
