"""The section `mas` of a configuration, typed and checked. `configs/base/multi_agent.yaml` explains every field."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict
from pydantic import Field, field_validator

from verl_ext.algorithms import row_weights
from verl_ext.gateway.settings import GatewaySection
from verl_ext.sampling import Strategy, make_strategy
from verl_ext.settings import Settings, unknown_name
from verl_ext.trainer import modes
from verl_ext.trainer.policies.refusals import refusals
from verl_ext.trainer.policies.settings import PolicySection, policy_configs
from verl_ext.trainer.sections import (
    ONCE_PER_NODE,
    AgentSection,
    BudgetSection,
    CreditSection,
    FailureSection,
    JudgeSection,
    LimitsSection,
    LossSection,
    MemorySection,
    SamplingSection,
    TracingSection,
    TrajectoryLogSection,
)

Policy = Literal["shared", "per_agent_lora"]
SHARED, PER_AGENT_LORA = typing.get_args(Policy)


class MasConfig(Settings):
    """The whole section."""

    workflow: dict[str, Any]
    plugins: list[str] = []
    policy: Policy = "shared"
    policies: dict[str, PolicySection] = {}
    policy_init: dict[str, str] = Field({}, description="agent -> peft folder that its adapter starts from")
    sampling: SamplingSection = SamplingSection()
    credit: CreditSection = CreditSection()
    limits: LimitsSection = LimitsSection()
    gateway: GatewaySection = GatewaySection()
    failure: FailureSection = FailureSection()
    budget: BudgetSection = BudgetSection()
    advantage: dict[str, Any] = {}
    loss: LossSection = LossSection()
    agents: dict[str, AgentSection] = {}
    tools: dict[str, dict[str, Any]] = {}
    memory: MemorySection | None = None
    judge: JudgeSection = JudgeSection()
    deterministic: bool = False
    seed: int = 1
    poll_interval: float = Field(0.5, gt=0, description="seconds")
    prepare: dict[str, Any] | None = None
    trajectory_log: TrajectoryLogSection = TrajectoryLogSection()
    tracing: TracingSection = TracingSection()

    @field_validator("workflow", "agents", "tools", "policies", mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """Drop keys that are null: so a recipe removes settings of the recipe that it extends."""
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, section in tools.items():
            if not isinstance(value := section.get(ONCE_PER_NODE, False), bool):
                raise ValueError(f"mas.tools.{name}.{ONCE_PER_NODE}={value!r} must be of type bool")
            if not isinstance(value := section.get("_target_"), str):
                raise ValueError(
                    f"mas.tools.{name}._target_={value!r} must name what makes the tool, e.g. "
                    "verl_ext.tools.retrieval.search_tool; a tool that is not wanted: mas.tools.<name>=null"
                )
        return tools

    @field_validator("advantage", "policy_init", mode="before")
    @classmethod
    def _default_options(cls, given: Any) -> Any:
        """Read null as none: so a command line removes the recipe's options, which another algorithm lacks."""
        return {} if given is None else given


def read_mas_config(config: DictConfig) -> MasConfig:
    """The section `mas` as a typed record.

    Raises:
        ValueError: missing section, unknown or misspelt key (with the allowed ones), value of the wrong type or range,
            or values that do not go together.
    """
    if OmegaConf.select(config, "mas") is None:
        raise ValueError(
            "there is no section `mas`: no recipe was given. Remedy: start from one of our recipes, e.g. "
            "+recipe=mhgpo_tiny, which runs on any machine"
        )
    section: Any = OmegaConf.to_container(config.mas, resolve=True)
    import_plugins(section)
    mas = MasConfig.read(section, "mas")
    _check_together(mas, config)
    return mas


def _check_together(mas: MasConfig, config: DictConfig) -> None:
    """Refuse values that are valid alone but not together: a table of (condition, reason and remedy)."""

    def verl(key: str) -> Any:
        return OmegaConf.select(config, key)

    name, mode = mas.loss.agent_weights, verl("actor_rollout_ref.actor.loss_agg_mode")
    engine, workers = verl("actor_rollout_ref.rollout.name"), verl("actor_rollout_ref.rollout.agent.num_workers")
    fixed, unseeded = mas.deterministic, not mas.sampling.seeded
    weights, needs = row_weights(), "mas.deterministic=true needs"
    fitting, source = (weights[name].loss_agg_modes, weights[name].source) if name in weights else ((mode,), "")
    wrong = {
        "mas.workflow._target_ is missing: name the workflow class, e.g. verl_ext.recipe.mhgpo.SearchQA": (
            "_target_" not in mas.workflow
        ),
        unknown_name("mas.loss.agent_weights", name, ["none", *weights]): name not in ("none", *weights),
        f"mas.loss.agent_weights={name} reproduces {source} only under actor_rollout_ref.actor.loss_agg_mode="
        f"{' or '.join(map(str, fitting))}, but that is {mode!r}: change it, or set mas.loss.agent_weights=none": (
            mode not in fitting
        ),
        f"{needs} actor_rollout_ref.rollout.name=hf (given: {engine}); other engines schedule by arrival": (
            fixed and engine != "hf"
        ),
        f"{needs} actor_rollout_ref.rollout.agent.num_workers=0 or 1 (given: {workers}): one process orders the calls "
        "of a whole batch": fixed and workers not in (0, 1, None),
        f"{needs} a seed for every call. Remedy: mas.sampling.seeded=true": fixed and unseeded,
        "actor_rollout_ref.rollout.full_determinism=true with mas.sampling.seeded=false would give all samples of a "
        "question the same noise. Remedy: mas.sampling.seeded=true": (
            unseeded and verl("actor_rollout_ref.rollout.full_determinism")
        ),
    }
    for message, refused in {**wrong, **refusals(mas, config), **modes.refusals(mas, config)}.items():
        if refused:
            raise ValueError(message)


def import_plugins(section: dict[str, Any]) -> None:
    """Import the modules of `mas.plugins` and that of the workflow: they may register algorithms and strategies.

    Raises:
        ValueError: a module of `mas.plugins` cannot be imported. (`build_workflow` refuses a wrong workflow.)
    """
    given = section.get("plugins")
    for name in given if isinstance(given, list) else ():  # `MasConfig` refuses what is no list of names
        if not isinstance(name, str):
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ValueError(
                f"mas.plugins: the module {name!r} cannot be imported: {type(error).__name__}: {error}. Remedy: start "
                "from its folder with PYTHONPATH=., or install it"
            ) from error
    with suppress(Exception):
        get_class(section["workflow"]["_target_"])


def strategy_from(sampling: SamplingSection, agents: list[str]) -> Strategy:
    """The configured sampling strategy for a workflow with these agents.

    Raises:
        ValueError: unknown strategy; an option that it does not have, of the wrong type or out of range.
    """
    options = sampling.plugged.get(sampling.strategy) or {}
    return make_strategy(sampling.strategy, sampling.group_size, agents, **options)


def context_length(config: DictConfig) -> int:
    """Tokens of prompt and output together that the engine takes; a model may take more where nothing is set.

    Of several policies, the most that one takes: the engine of another refuses what is too long for it.
    """
    lengths = []
    for own in policy_configs(config).values():
        rollout = own.actor_rollout_ref.rollout
        given = OmegaConf.select(rollout, f"engine_kwargs.{rollout.name}.max_model_len") or rollout.max_model_len
        lengths.append(int(given or own.data.max_prompt_length + own.data.max_response_length))
    return max(lengths)


def optimiser_steps(config: DictConfig, section: DictConfig) -> int:
    """Mini-batches into which one update is cut: train_batch_size / ppo_mini_batch_size, both in questions.

    Under `mas_separate_async` a step may have several updates, each with its part of the questions.

    Raises:
        ValueError: one is below 1, or they do not divide.
    """
    questions, mini, parts = config.data.train_batch_size, section.ppo_mini_batch_size, modes.parts_of_step(config)
    for name, given in (("data.train_batch_size", questions), ("ppo_mini_batch_size", mini)):
        if given < 1:
            raise ValueError(f"{name}={given} must be at least 1 (questions)")
    if questions % mini:
        raise ValueError(
            f"data.train_batch_size={questions} must be a multiple of ppo_mini_batch_size={mini} (both count "
            "questions): their ratio is the number of optimiser steps of one training step"
        )
    if questions // mini % parts:
        raise ValueError(
            f"trainer.v1.separate_async.parameter_sync_step={parts} must divide the {questions // mini} optimiser "
            f"step(s) of a training step (data.train_batch_size={questions} / ppo_mini_batch_size={mini}). Remedy: "
            "parameter_sync_step=1, or a smaller ppo_mini_batch_size"
        )
    return int(questions // mini // parts)


@contextmanager
def mini_batch_rows(config: DictConfig, section: DictConfig, rows: int) -> Iterator[None]:
    """For the time of an update, let verl's ppo_mini_batch_size · rollout.n be this step's rows / mini-batches.

    Rows are sorted by question. Several mini-batches are drawn from them at random: otherwise the first optimiser step
    would see the first data set only.
    """
    rollout, count = config.actor_rollout_ref.rollout, optimiser_steps(config, section)
    before = section.ppo_mini_batch_size, section.shuffle, rollout.n
    with open_dict(config):
        section.ppo_mini_batch_size, section.shuffle, rollout.n = rows // count, section.shuffle or count > 1, 1
    try:
        yield
    finally:
        with open_dict(config):
            section.ppo_mini_batch_size, section.shuffle, rollout.n = before
