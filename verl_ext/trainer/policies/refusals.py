"""What does not go with `mas.policies`."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from verl_ext.engine.policy_names import ARGUMENTS
from verl_ext.trainer import modes
from verl_ext.trainer.policies.settings import PLACES, PolicySection

if TYPE_CHECKING:
    from verl_ext.trainer.config import MasConfig

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# Names of folders and files that a checkpoint of one policy has in the place of the policies' folders.
RESERVED = ("huggingface", "adapters", "model", "optimizer")
# Of a GPU's memory, by all engines together: all are awake while a trajectory calls them in turn, and the trainer's
# own context stays beside them.
MOST_MEMORY = 0.9


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
    equal = math.floor(100 * MOST_MEMORY / len(names)) / 100
    each = ", ".join(f"mas.policies.{name}.rollout.gpu_memory_utilization={equal:g}" for name in names)
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
        f"{MOST_MEMORY:g}. Remedy: {each}": (
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
