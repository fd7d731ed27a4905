"""`mas.policies`: which settings may differ between policies, the configuration of one, and what is refused."""

from __future__ import annotations

import re
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
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# Names of folders and files that a checkpoint of one policy has in the place of the policies' folders.
RESERVED = ("huggingface", "adapters", "model", "optimizer")
# Of a GPU's memory, by all engines together: all are awake while a trajectory calls them in turn, and the trainer's
# own context stays beside them.
MOST_MEMORY = 0.9


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

    @model_validator(mode="after")
    def _check_keys(self) -> PolicySection:
        if self.frozen and (self.every != 1 or self.from_step != 1):
            raise ValueError("every and from_step are for policies that train, and this one is frozen: true")
        if self.frozen and self.per_agent_lora:
            raise ValueError("per_agent_lora: true trains an adapter for each agent, and this policy is frozen: true")
        for place in (place for name in PLACES for place in leaves(getattr(self, name), name)):
            if not any(fnmatchcase(place, pattern) for pattern in OF_A_MODEL):
                whole = place.partition(".")
                raise ValueError(
                    f"{place} cannot differ between policies{did_you_mean(place, OF_A_MODEL)}; if it is a setting of "
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
                raise ValueError(f"mas.agents.{agent}.trained=true, but its policy {policy} is frozen")
            workflow.agents = {**workflow.agents, agent: workflow.agents[agent].changed(trained=False)}


def refusals(mas: MasConfig, config: DictConfig) -> dict[str, bool]:
    """What does not go with `mas.policies`: reason and remedy -> whether it is so."""
    if not mas.policies:
        return {}
    if mas.policy != "shared":  # verl's LoRA settings then follow from the workflow, which is read from here
        return {
            "mas.policies does not go with mas.policy=per_agent_lora, which is for a run with one policy. Remedy: "
            "mas.policy=shared, and mas.policies.<name>.per_agent_lora=true where agents have adapters": True
        }

    def verl(key: str) -> Any:
        return OmegaConf.select(config, key)

    names = list(mas.policies)
    badly_named = [name for name in names if not NAME.fullmatch(name) or name in RESERVED]
    separate, engine = modes.mode_of(config) == modes.SEPARATE, verl("actor_rollout_ref.rollout.name")
    backend, sent = verl(f"{modes.ROLLOUT}.checkpoint_engine.backend"), tuple(ARGUMENTS) if separate else ("naive",)
    pooled = [name for name, section in mas.policies.items() if section.rollout.keys() & set(modes.POOL)]
    decoded = [
        key for key in ("log_val_generations", "validation_data_dir", "rollout_data_dir") if verl(f"trainer.{key}")
    ]
    ranked = [name for name, section in mas.policies.items() if section.model.get("lora_rank", lora_rank(config)) > 0]
    single = [name for name in ranked if not (mas.policies[name].frozen or mas.policies[name].per_agent_lora)]
    unmerged = [] if verl(f"{PLACES['model']}.lora.merge") else single
    routed = {name: section.agents for name, section in mas.policies.items() if section.per_agent_lora}
    started = sorted(set(mas.policy_init) - {agent for agents in routed.values() for agent in agents})
    adapted = [name for name, one in mas.policies.items() if one.frozen and one.model.get("lora_adapter_path")]
    shares = {name: memory_share(section, config) for name, section in mas.policies.items()}
    return {
        f"mas.policies: {', '.join(badly_named)} cannot name a policy: a letter, then letters, digits, - and _; and "
        f"not {', '.join(RESERVED)}, which are names of files in a checkpoint": bool(badly_named),
        f"mas.policies: {', '.join(pooled)} sets rollout.{' or rollout.'.join(modes.POOL)}, ranks of its rollouts, "
        f"which needs trainer.v1.trainer_mode={modes.SEPARATE}: in other modes they are the trainer's": (
            bool(pooled) and not separate
        ),
        f"mas.policies does not go with actor_rollout_ref.hybrid_engine=true under trainer.v1.trainer_mode="
        f"{modes.SEPARATE}: each policy has rollout ranks of its own. Remedy: actor_rollout_ref.hybrid_engine=false": (
            separate and bool(verl("actor_rollout_ref.hybrid_engine"))
        ),
        f"mas.policies needs actor_rollout_ref.rollout.name=hf or vllm (given: {engine}): the servers of other engines "
        "would share their names and sockets, and weights would arrive in the wrong one": engine not in ("hf", "vllm"),
        f"mas.policies does not go with trainer.{', trainer.'.join(decoded)}: verl would decode the outputs of all "
        "policies with one tokenizer. Remedy: leave it out; mas.trajectory_log decodes each by its own": (
            bool(decoded) and len(names) > 1
        ),
        f"mas.policies: the LoRA of {', '.join(unmerged)} is not merged into the weights that the engine gets. Remedy: "
        "actor_rollout_ref.model.lora.merge=true (+base=lora sets it)": bool(unmerged),
        f"mas.policies: {', '.join(adapted)} is frozen and has model.lora_adapter_path: no adapter is trained there, "
        "and none is merged. Remedy: merge it into a model (peft's merge_and_unload), and name that in model.path": (
            len(adapted) > 0
        ),
        f"mas.policy_init names {', '.join(started)}, and the policy of that agent has no adapter per agent. Remedy: "
        "mas.policies.<name>.per_agent_lora=true": bool(started),
        "mas.policies does not go with actor_rollout_ref.model.lora.adapters. Remedy: "
        "mas.policies.<name>.per_agent_lora=true, which sets it": bool(verl(f"{PLACES['model']}.lora.adapters")),
        "mas.policies does not go with verl's reward workers (reward.num_workers, reward.reward_model.enable): each "
        "policy would start them again, under the same names. Remedy: reward.num_workers=0; workflows score "
        "themselves, or ask mas.judge": bool(verl("reward.num_workers") or verl("reward.reward_model.enable")),
        "mas.policies does not go with actor_rollout_ref.rollout.disaggregation.enabled=true: prefill and decode "
        "servers are named by replica alone": bool(verl("actor_rollout_ref.rollout.disaggregation.enabled")),
        "mas.policies does not go with actor_rollout_ref.actor.checkpoint.async_save=true: a checkpoint is complete "
        "when all its policies are": bool(verl("actor_rollout_ref.actor.checkpoint.async_save")),
        f"mas.policies needs {modes.ROLLOUT}.checkpoint_engine.backend={' or '.join(sent)} (given: {backend}): "
        "the weights of each policy go from its ranks to its own servers": backend not in sent,
        f"mas.policies: the engines together take {sum(shares.values()):.2f} of a GPU's memory "
        f"({', '.join(f'{name} {share:g}' for name, share in shares.items())}); all are awake at once, so at most "
        f"{MOST_MEMORY:g}. Remedy: mas.policies.<name>.rollout.gpu_memory_utilization for each": (
            engine == "vllm" and not separate and len(names) > 1 and sum(shares.values()) > MOST_MEMORY + 1e-9
        ),
    }


def lora_rank(config: DictConfig) -> int:
    """The run's own rank, which policies have that give none."""
    given = OmegaConf.select(config, f"{PLACES['model']}.lora_rank")
    return int(given or 0)


def memory_share(section: PolicySection, config: DictConfig) -> float:
    """The share of a GPU's memory that the engine of a policy takes."""
    given = OmegaConf.select(config, f"{PLACES['rollout']}.gpu_memory_utilization")
    return float(section.rollout.get("gpu_memory_utilization", given) or 0.0)
