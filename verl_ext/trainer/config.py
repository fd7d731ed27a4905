"""The `mas` section of the configuration: typed, validated, with errors that name the remedy."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from verl_ext.algorithms import credit_keys, credit_rules, row_weights
from verl_ext.sampling import STRATEGIES, Strategy, make_strategy
from verl_ext.settings import check_keys
from verl_ext.trainer.preflight.typed import typed_section

GROUP_BY = ("position", "question")
SHARED, PER_AGENT_LORA = POLICIES = ("shared", "per_agent_lora")


@dataclass
class SamplingSection:
    """`mas.sampling`: which calls are forked and how groups are formed.

    options: the sections named after strategies, e.g. `mas.sampling.rr`, with each strategy's own options.
    """

    strategy: str = "fof"
    group_size: int = 4
    group_by: str = "position"
    seeded: bool = True
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class CreditSection:
    """`mas.credit`: Eq. 4's aggregation.

    rules: all other keys, which are credit rules that algorithms bring, e.g. `mas.credit.efficiency`.
    """

    aggregate: str = "mean"
    propagate: bool = True
    rules: dict[str, Any] = field(default_factory=dict)


@dataclass
class LimitsSection:
    """`mas.limits`: bounds of one trajectory."""

    max_calls: int = 64
    call_timeout: float | None = 600.0
    tool_timeout: float | None = 60.0
    tool_retries: int = 2


@dataclass
class BudgetSection:
    """`mas.budget`: when a run ends before `total_training_steps`."""

    generated_tokens: int | None = None
    questions: int | None = None


@dataclass
class LossSection:
    """`mas.loss`: weights of rows, MHGPO's Eq. 6 or one weight per trajectory."""

    agent_weights: str = "batch"


@dataclass
class EndpointSection:
    """`mas.agents.<name>.endpoint`: a served model that answers for an agent, which then does not train.

    url: null: there is none, and the policy answers.
    """

    url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 64
    timeout: float = 120.0
    retries: int = 5


@dataclass
class HeadSection:
    """`mas.agents.<name>.head`: a policy head that decides in the place of the policy."""

    encoder: str = "hashing"
    lr: float = 0.1
    entropy: float = 0.0


@dataclass
class AgentSection:
    """`mas.agents.<name>`: one agent's sampling parameters (null: the rollout's), a token's cost, whether it trains,
    and who answers for it if the policy does not.

    There is no temperature per agent: verl's trainer recomputes log-probabilities at the rollout's temperature, so an
    agent sampled at another one would be trained off-policy.
    """

    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    cost: float | None = None
    trained: bool | None = None
    endpoint: EndpointSection | None = None
    head: HeadSection | None = None


@dataclass
class TrajectoryLogSection:
    """`mas.trajectory_log`: how much of what the agents say is kept, for `python -m verl_ext.observe.viewer`."""

    train_questions: int = 8
    val_questions: int = 16
    every: int = 10
    file_mb: float = 16.0
    files: int = 8


@dataclass
class MemorySection:
    """`mas.memory`: memories of the agents, which evolve with training (JoyAgents-R1, Algorithm 1)."""

    recall: int = 3
    alpha: float = 1.0
    beta: float = 1.0
    threshold: float = 0.0
    capacity: int = 10_000
    encoder: str = "hashing"


@dataclass
class MasConfig:
    """The whole section; `configs/base/multi_agent.yaml` documents each field where it is set."""

    workflow: dict[str, Any]
    plugins: list[str] = field(default_factory=list)
    policy: str = SHARED
    sampling: SamplingSection = field(default_factory=SamplingSection)
    credit: CreditSection = field(default_factory=CreditSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    budget: BudgetSection = field(default_factory=BudgetSection)
    advantage: dict[str, Any] = field(default_factory=dict)
    loss: LossSection = field(default_factory=LossSection)
    agents: dict[str, AgentSection] = field(default_factory=dict)
    tools: dict[str, Any] = field(default_factory=dict)
    memory: MemorySection | None = None
    deterministic: bool = False
    seed: int = 1
    poll_interval: float = 0.05
    prepare: dict[str, Any] | None = None
    trajectory_log: TrajectoryLogSection = field(default_factory=TrajectoryLogSection)


def strategy_from(sampling: SamplingSection, agents: list[str]) -> Strategy:
    """The configured sampling strategy for a workflow with these agents.

    Raises:
        ValueError: unknown strategy, or an option out of range.
    """
    options = sampling.options.get(sampling.strategy) or {}
    return make_strategy(sampling.strategy, sampling.group_size, agents, **options)


def read_mas_config(config: DictConfig) -> MasConfig:
    """The `mas` section as a typed record.

    Raises:
        ValueError: missing section, unknown or misspelt key (with the allowed ones), value of the wrong type or range.
    """
    if OmegaConf.select(config, "mas") is None:
        raise ValueError("this trainer mode needs the section `mas`: start from one of our recipes, e.g. +recipe=mhgpo")
    section = OmegaConf.to_container(config.mas, resolve=True)
    import_plugins(section)
    for name in ("agents", "tools"):  # null takes away what the recipe that this one is made of has set
        if isinstance(section.get(name), dict):
            section[name] = {key: value for key, value in section[name].items() if value is not None}
    if section.get("advantage", ...) is None:  # null: of the recipe's options none, as another algorithm needs it
        del section["advantage"]
    _gather(section, "sampling", ["strategy", "group_size", "group_by", "seeded"], "options", STRATEGIES)
    _gather(section, "credit", ["aggregate", "propagate"], "rules", credit_keys())
    mas = typed_section(MasConfig, section, "mas")
    _drop_unused_endpoints(mas)
    if "_target_" not in mas.workflow:
        raise ValueError(
            "mas.workflow._target_ is missing: name the workflow class, e.g. verl_ext.recipe.mhgpo.SearchQA"
        )
    for name, given, allowed in (
        ("policy", mas.policy, POLICIES),
        ("loss.agent_weights", mas.loss.agent_weights, ("none", *row_weights())),
        ("sampling.group_by", mas.sampling.group_by, GROUP_BY),
    ):
        if given not in allowed:
            raise ValueError(f"mas.{name}={given!r} is unknown; allowed: {', '.join(allowed)}")
    credit_rules(mas.credit.rules)
    _check_weights(mas, config.actor_rollout_ref.actor.loss_agg_mode)
    _check_determinism(mas, config)
    return mas


def _drop_unused_endpoints(mas: MasConfig) -> None:
    """Recipes name a helper's endpoint without a url, so that a url alone gives it one."""
    for name, agent in mas.agents.items():
        if agent.endpoint is not None and agent.endpoint.url is None:
            if agent.endpoint.model is not None:
                raise ValueError(
                    f"mas.agents.{name}.endpoint.model={agent.endpoint.model!r} is given, but no mas.agents.{name}."
                    "endpoint.url: set it to the server's base URL, e.g. http://127.0.0.1:8100/v1"
                )
            agent.endpoint = None


def import_plugins(section: dict[str, Any]) -> None:
    """Import the modules of `mas.plugins` and that of the workflow: they may register algorithms and strategies.

    Raises:
        ValueError: a module of `mas.plugins` cannot be imported. (A wrong workflow is told when it is built.)
    """
    for name in section.get("plugins") or ():
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ValueError(
                f"mas.plugins: the module {name!r} cannot be imported: {type(error).__name__}: {error}. Remedy: start "
                "from its folder with PYTHONPATH=., or install it"
            ) from error
    target = (section.get("workflow") or {}).get("_target_")
    with suppress(Exception):
        get_class(target)


def _gather(section: dict[str, Any], name: str, own: list[str], into: str, brought: Iterable[str]) -> None:
    """Move the keys of `section[name]` that plug-ins have brought into one dictionary, `section[name][into]`."""
    part = section.get(name)
    if isinstance(part, dict):
        check_keys(part, [*own, *brought], f"mas.{name}")
        section[name] = {key: part[key] for key in part if key in own}
        section[name][into] = {key: part[key] for key in part if key not in own}


def _check_weights(mas: MasConfig, mode: str) -> None:
    weights = row_weights().get(mas.loss.agent_weights)
    if weights is not None and mode not in weights.loss_agg_modes:
        raise ValueError(
            f"mas.loss.agent_weights={mas.loss.agent_weights} reproduces {weights.source} only under "
            f"actor_rollout_ref.actor.loss_agg_mode={' or '.join(weights.loss_agg_modes)}, but that is {mode!r}: "
            "change it, or set mas.loss.agent_weights=none"
        )


def _check_determinism(mas: MasConfig, config: DictConfig) -> None:
    engine = OmegaConf.select(config, "actor_rollout_ref.rollout.name")
    if mas.deterministic and engine != "hf":
        raise ValueError(
            f"mas.deterministic=true needs actor_rollout_ref.rollout.name=hf (given: {engine}); other engines schedule "
            "by arrival"
        )
    if mas.deterministic and OmegaConf.select(config, "trainer.v1.trainer_mode") == "mas_colocate_async":
        raise ValueError(
            "mas.deterministic=true needs trainer.v1.trainer_mode=mas_sync: under mas_colocate_async it depends on "
            "timing which trajectories are unfinished when the weights change"
        )
    if mas.deterministic and not mas.sampling.seeded:
        raise ValueError("mas.deterministic=true needs the calls' own seeds. Remedy: mas.sampling.seeded=true")
    if OmegaConf.select(config, "actor_rollout_ref.rollout.full_determinism") and not mas.sampling.seeded:
        raise ValueError(
            "actor_rollout_ref.rollout.full_determinism=true with mas.sampling.seeded=false would give all samples of "
            "a question the same noise. Remedy: mas.sampling.seeded=true"
        )


def context_length(config: DictConfig) -> int:
    """Tokens of prompt and output together that the engine takes; a model may take more where nothing is set."""
    rollout = config.actor_rollout_ref.rollout
    given = OmegaConf.select(rollout, f"engine_kwargs.{rollout.name}.max_model_len") or rollout.max_model_len
    return int(given or config.data.max_prompt_length + config.data.max_response_length)


def optimiser_steps(config: DictConfig, section: DictConfig) -> int:
    """Mini-batches into which one training batch is cut: train_batch_size / ppo_mini_batch_size, both in questions.

    Raises:
        ValueError: they do not divide.
    """
    questions, mini = config.data.train_batch_size, section.ppo_mini_batch_size
    if mini <= 0 or questions % mini:
        raise ValueError(
            f"data.train_batch_size={questions} must be a multiple of ppo_mini_batch_size={mini} (both count "
            "questions): their ratio is the number of optimiser steps of one training step"
        )
    return questions // mini
