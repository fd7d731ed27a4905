"""`mas.policy`: all agents share one set of weights, or each has a LoRA adapter of its own on a shared frozen base.

The workflow does not depend on it. Under per_agent_lora every agent that trains has an adapter of its name; the base,
or an endpoint, answers for the other agents. If the policy trains for no agent (policy heads, a system without
learning), there are no adapters, and nothing moves the base.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_ext.engine.lora.adapter_files import check_same_adapters, check_start, read_record
from verl_ext.engine.lora.adapters import BASE, VENDOR, AdapterOptions, check_settings
from verl_ext.engine.policy_names import policy_of
from verl_ext.mas.workflow import Workflow
from verl_ext.trainer.build import build_workflow
from verl_ext.trainer.config import PER_AGENT_LORA, MasConfig, read_mas_config
from verl_ext.trainer.modes import OBJECT_STORE, SEPARATE, mode_of
from verl_ext.trainer.policies.settings import policies_of_agents, policy_configs

if TYPE_CHECKING:
    from verl_ext.trainer.row import Row

# verl's settings under (shared, per_agent_lora), for recipes that do not give them: `${verl_ext.policy:…}` in
# configs/base.
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "lora_rank": (0, 16),
    "lora_alpha": (16, 32),
    # For configs/base/lora: one adapter for all agents, merged into the weights before the rollout engine gets them.
    "merge": (True, False),
    "strategy": ("fsdp", "fsdp2"),
}
# vLLM's LoRA kernels for GPUs take 16 bits only: they end the engine at the first call.
FULL_PRECISION = ("float32", "float")
VENDOR_KEY = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_ENGINE_VENDOR"
# Settings that adapters per agent need: the key, and the values that go with them (the first is the remedy).
NEEDED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("actor_rollout_ref.rollout.name", ("hf", "vllm")),
    ("actor_rollout_ref.rollout.disaggregation.enabled", (False,)),
    ("trainer.device", ("cpu", "cuda")),
)


class Adapters(dict[str, str | None]):
    """The adapter of each agent, BASE for agents that do not train; None: its policy (`mas.policies`) has none.

    Raises:
        ValueError: for an agent that is not in it.
    """

    def __missing__(self, agent: str) -> str:
        raise ValueError(
            f"agent {agent!r} has no adapter. Remedy: name it among the workflow's own agents ({', '.join(self)}), "
            "where those of sub-workflows must be, too, under mas.policy=per_agent_lora"
        )


def setting(name: str, root: DictConfig) -> Any:
    """The value of `${verl_ext.policy:name}` in a configuration: `adapters`, `fused`, or one of DEFAULTS.

    An interpolation, because it holds wherever a configuration is composed: in a run, in the jobs of a multirun, which
    Hydra composes itself, in checks and evaluations.
    """
    if name == "fused":  # verl's fused head, which has no whole logits
        return not decides(root)
    agents = _agents_with_adapters(root)
    if name == "adapters":
        return OmegaConf.create(agents) if agents else None
    return DEFAULTS[name][bool(agents)]


def set_adapters(config: DictConfig) -> None:
    """Set what `setting` gives under per_agent_lora, in the configuration of a policy, which has no interpolations.

    Rank and alpha are those of the run if that has LoRA; the adapters of other policies may be merged.
    """
    if not (agents := _agents_with_adapters(config)):
        return
    parts = config.actor_rollout_ref
    if not parts.model.lora_rank:
        parts.model.lora_rank, parts.model.lora_alpha = (DEFAULTS[key][True] for key in ("lora_rank", "lora_alpha"))
    parts.model.lora.update(adapters=agents, start=config.mas.policy_init, merge=False)
    parts.actor.strategy = parts.actor.fsdp_config.strategy = parts.ref.strategy = DEFAULTS["strategy"][True]


def _agents_with_adapters(root: DictConfig) -> list[str]:
    """The agents that have an adapter of their own; none for a workflow that other checks refuse."""
    if OmegaConf.select(root, "mas.policy") != PER_AGENT_LORA:
        return []
    try:
        return build_workflow(read_mas_config(root)).policy_agents
    except ValueError:
        return []


def adapters_of(mas: MasConfig, workflow: Workflow) -> Adapters | None:
    """The adapters of a workflow's agents; None if no policy has adapters, or none of its agents train."""
    policies, whole = policies_of_agents(mas), mas.policy == PER_AGENT_LORA
    have = {name for name, section in mas.policies.items() if section.per_agent_lora} or ({None} if whole else set())
    trained = [name for name in workflow.policy_agents if policies.get(name) in have]
    have &= {policies.get(name) for name in trained}
    if not trained:
        return None
    below = {name: BASE if policies.get(name) in have else None for name in workflow.agents}
    return Adapters(below | {name: name for name in trained})


def add_agent_ids(rows: list[Row], adapters: Adapters | None, policies: Mapping[str, str] | None = None) -> list[Row]:
    """Add to each row the number of its agent's adapter, for the training engine.

    All rows have one, since a column that some lack would be lost: -1 for the base, in validation, and for a policy
    without adapters. An idle row has the first: it may be given to a policy that takes no other number.

    Args:
        policies: of the agents; each counts from 0.
    """
    if adapters is None:
        return rows
    numbers, counts = dict[str | None, int](), Counter[str]()
    for name in filter(None, adapters.values()):
        policy = (policies or {}).get(name, "")
        numbers[name] = counts[policy]
        counts[policy] += 1
    return [replace(row, adapter=0 if row.status == "idle" else numbers.get(adapters[row.agent], -1)) for row in rows]


def check_policy(config: DictConfig, mas: MasConfig, agents: list[str]) -> None:
    """Check that the other settings can be combined with `mas.policy`.

    Args:
        agents: those that train, first to last.

    Raises:
        ValueError: a setting cannot be combined with it; names the remedy.
    """
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    named, what = model.lora.get("adapters"), f"mas.policy={PER_AGENT_LORA}"
    if policy := policy_of(config.actor_rollout_ref.rollout):
        what = f"mas.policies.{policy}.per_agent_lora=true"
    _check_served_type(config)
    _check_whole_logits(config)
    if mas.policy != PER_AGENT_LORA or not agents:
        if mas.policy_init:
            raise ValueError(f"mas.policy_init={mas.policy_init} needs {what}, and agents that the policy trains")
        if named:
            raise ValueError(
                f"actor_rollout_ref.model.lora.adapters={list(named)} needs {what}, which sets it (given: {mas.policy})"
                f", and agents that the policy trains for: {', '.join(agents) or 'there are none'}"
            )
        backend = config.actor_rollout_ref.rollout.checkpoint_engine.backend
        if model.lora_rank > 0 and not model.lora.get("merge") and backend != "naive":
            raise ValueError(
                f"actor_rollout_ref.rollout.checkpoint_engine.backend={backend} sends the frozen base and never the "
                "LoRA adapter (actor_rollout_ref.model.lora_rank > 0). Remedy: actor_rollout_ref.model.lora.merge=true"
            )
        return
    if list(named or ()) != agents:
        raise ValueError(
            f"actor_rollout_ref.model.lora.adapters={named} must be the agents that train, first to last: {agents}. "
            "Remedy: leave it to mas.policy"
        )
    options = AdapterOptions.from_config(model)
    assert options is not None
    check_start(options)
    if options.start and (actor.use_kl_loss or config.algorithm.use_kl_in_reward):
        raise ValueError(
            "mas.policy_init does not go with a KL term: the reference model is the base without adapters, not the "
            "models that the agents start from. Remedy: actor_rollout_ref.actor.use_kl_loss=false "
            "algorithm.use_kl_in_reward=false"
        )
    backends = (OBJECT_STORE, "nccl") if mode_of(config) == SEPARATE else ("naive", OBJECT_STORE)
    for key, allowed in (*NEEDED, ("actor_rollout_ref.rollout.checkpoint_engine.backend", backends)):
        if (given := OmegaConf.select(config, key)) not in allowed:
            raise ValueError(f"{what} does not go with {key}={given}. Remedy: {key}={allowed[0]}")
    fsdp, prefix = actor.fsdp_config, "actor_rollout_ref.actor."
    precision = OmegaConf.select(fsdp, "mixed_precision.param_dtype") or "bf16"
    parallel = max(actor.ulysses_sequence_parallel_size, fsdp.ulysses_sequence_parallel_size)
    quantised = bool(OmegaConf.select(fsdp, "qat.enable"))
    check_settings(prefix, actor.strategy, parallel, precision, quantised, actor.checkpoint.save_contents)
    if fsdp.strategy != actor.strategy:
        raise ValueError(
            f"{prefix}fsdp_config.strategy={fsdp.strategy} differs from {prefix}strategy={actor.strategy}. "
            f"Remedy: {prefix}fsdp_config.strategy={actor.strategy}"
        )


def _check_served_type(config: DictConfig) -> None:
    """Refuse adapters in float32 under vLLM on GPUs, whether one per agent or a shared one that is not merged."""
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    served = model.lora.get("adapters") or (model.lora_rank > 0 and not model.lora.get("merge"))
    on_gpu = rollout.name == "vllm" and config.trainer.device == "cuda"
    if served and on_gpu and str(rollout.dtype) in FULL_PRECISION:
        raise ValueError(
            f"vLLM's LoRA kernels for GPUs do not take actor_rollout_ref.rollout.dtype={rollout.dtype}: the engine "
            "would end at its first call. Remedy: actor_rollout_ref.rollout.dtype=bfloat16"
        )


def _check_whole_logits(config: DictConfig) -> None:
    """Refuse verl's fused head, which never has a token's whole logits, where agents choose among given texts."""
    if config.actor_rollout_ref.model.use_fused_kernels and decides(config):
        raise ValueError(
            "agents that choose among given texts need a token's whole logits, which verl's fused head does not have. "
            "Remedy: actor_rollout_ref.model.use_fused_kernels=false"
        )


def check_resumed(config: DictConfig) -> None:
    """Check that the checkpoint that `resume_path` names has the adapters that are configured, in each policy.

    For resume_mode=auto, `check_same_run` already compares the settings.

    Raises:
        ValueError: it has other adapters, or has some and none are configured, or the reverse.
    """
    trainer = config.trainer
    if trainer.resume_mode != "resume_path" or not trainer.resume_from_path:
        return
    for policy, own in policy_configs(config).items():
        actor = Path(trainer.resume_from_path) / "actor" / policy
        options = AdapterOptions.from_config(own.actor_rollout_ref.model)
        if not actor.is_dir():
            continue  # absent, or on another machine: verl reports it
        if options is not None:
            check_same_adapters(actor, options)
        elif (found := read_record(actor)) is not None:
            setting = f"mas.policies.{policy}.per_agent_lora=true" if policy else f"mas.policy={PER_AGENT_LORA}"
            raise ValueError(
                f"{actor} holds adapters {found[0]}, the configuration has none. Remedy: {setting}, or a "
                "run of its own (trainer.resume_mode=disable, another trainer.default_local_dir)"
            )


def choose_engine(config: DictConfig) -> None:
    """Select our training engine where verl would take its own. Called before Hydra starts the job."""
    if _needs_vendor(config):
        with open_dict(config):
            OmegaConf.update(config, VENDOR_KEY, VENDOR, force_add=True)


def check_engine(config: DictConfig) -> None:
    """Check that all Ray workers will use our training engine, if adapters or decisions need it.

    Raises:
        ValueError: no engine is selected (`choose_engine` cannot do so for a job of a multirun), or another one.
    """
    if _needs_vendor(config) and OmegaConf.select(config, VENDOR_KEY) != VENDOR:
        what, risk = "an agent that decides among given choices", "decisions as free text"
        if _has_adapters(config):
            what, risk = PER_AGENT_LORA, "one adapter for all agents"
        raise ValueError(
            f"{what} needs VERL_ENGINE_VENDOR={VENDOR} in the environment of all workers, or verl would train {risk}. "
            f"Remedy: ++{VENDOR_KEY}={VENDOR}"
        )


def _needs_vendor(config: DictConfig) -> bool:
    if OmegaConf.select(config, "mas") is None or OmegaConf.select(config, "trainer.device") == "cpu":
        return False
    return _has_adapters(config) or decides(config)


def _has_adapters(config: DictConfig) -> bool:
    """True if agents have adapters of their own; False for policies that other checks refuse."""
    try:
        return any(map(_agents_with_adapters, policy_configs(config).values()))
    except ValueError:
        return False


def decides(config: DictConfig) -> bool:
    """True if the policy decides for an agent (`Agent.choices`); False for a workflow that other checks refuse."""
    try:
        return build_workflow(read_mas_config(config)).policy_decides
    except ValueError:
        return False
