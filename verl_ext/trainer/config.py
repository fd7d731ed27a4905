"""The section `mas` of a configuration, typed and checked. `configs/base/multi_agent.yaml` explains every field."""

from __future__ import annotations

import importlib
import typing
from contextlib import suppress
from typing import Annotated, Any, Literal

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from verl_ext.algorithms import credit_keys, credit_rules, row_weights
from verl_ext.memory import Rules
from verl_ext.sampling import STRATEGIES, Strategy, make_strategy
from verl_ext.settings import Settings, check_keys, unknown_name

Policy = Literal["shared", "per_agent_lora"]
SHARED, PER_AGENT_LORA = typing.get_args(Policy)


class OpenSettings(Settings):
    """A section that also takes keys of plug-ins, whose values the plug-ins check."""

    model_config = ConfigDict(extra="allow")

    @property
    def plugged(self) -> dict[str, Any]:
        """Values of the keys of plug-ins."""
        return self.model_extra or {}


class SamplingSection(OpenSettings):
    """`mas.sampling`: which calls are forked, how groups are formed. Plug-ins: options in `mas.sampling.<strategy>`."""

    strategy: str = "fof"
    group_size: int = Field(4, ge=1, description="samples of a fork")
    group_by: Literal["position", "question"] = "position"
    seeded: bool = True

    @model_validator(mode="after")
    def _check_strategies(self) -> SamplingSection:
        check_keys(self.plugged, [*type(self).model_fields, *STRATEGIES], "mas.sampling")
        return self


class CreditSection(OpenSettings):
    """`mas.credit`: Eq. 4's aggregation. Plug-ins: credit rules of algorithms, e.g. `mas.credit.efficiency`."""

    aggregate: str = "mean"
    propagate: bool = True

    @model_validator(mode="after")
    def _check_rules(self) -> CreditSection:
        check_keys(self.plugged, [*type(self).model_fields, *credit_keys()], "mas.credit")
        credit_rules(self.plugged)
        return self


class LimitsSection(Settings):
    """`mas.limits`: bounds of one trajectory, and of the time in which nothing happens."""

    max_calls: int = Field(64, ge=1, description="agent calls")
    call_timeout: float | None = Field(600.0, gt=0, description="seconds; null: no limit")
    tool_timeout: float | None = Field(60.0, gt=0, description="seconds; null: no limit")
    trajectory_timeout: float | None = Field(3600.0, gt=0, description="seconds; null: no limit")
    tool_retries: int = Field(2, ge=0)
    warn_after: float | None = Field(30.0, gt=0, description="seconds without progress; null: never")
    stop_after: float | None = Field(1800.0, gt=0, description="seconds without progress; null: never")

    @model_validator(mode="after")
    def _check_order(self) -> LimitsSection:
        for name in ("warn_after", "call_timeout", "tool_timeout"):
            value = getattr(self, name)
            if self.stop_after is not None and value is not None and value >= self.stop_after:
                raise ValueError(
                    f"stop_after={self.stop_after:g} must be above {name}={value:g}, or a run that still waits within "
                    "its limits would be ended. Remedy: raise stop_after, or set it to null"
                )
        return self


class FailureSection(Settings):
    """`mas.failure`: the reward of a training trajectory that could not finish, by status; null: it is left out."""

    call_limit: float | None = Field(None, allow_inf_nan=False)
    truncated: float | None = Field(None, allow_inf_nan=False)
    prompt_too_long: float | None = Field(None, allow_inf_nan=False)
    timeout: float | None = Field(None, allow_inf_nan=False)
    tool_error: float | None = Field(None, allow_inf_nan=False)
    unparsable: float | None = Field(None, allow_inf_nan=False)
    max_left_out: float = Field(0.5, ge=0, le=1, description="share of a step's trajectories")

    @property
    def rewards(self) -> dict[str, float]:
        """The rewards that are set, by status."""
        return {name: value for name, value in self if name != "max_left_out" and value is not None}


class BudgetSection(Settings):
    """`mas.budget`: when a run ends before `total_training_steps`."""

    generated_tokens: int | None = Field(None, ge=1, description="null: no budget")
    questions: int | None = Field(None, ge=1, description="null: no budget")


class LossSection(Settings):
    """`mas.loss`: weights of rows, by a name that an algorithm brings (`row_weights`)."""

    agent_weights: str = "batch"


class EndpointSection(Settings):
    """`mas.agents.<name>.endpoint`: a served model that answers for an agent, which then does not train."""

    url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = Field(64, ge=1, description="requests at a time")
    timeout: float = Field(120.0, gt=0, description="seconds")
    retries: int = Field(5, ge=0)

    @model_validator(mode="after")
    def _check_model(self) -> EndpointSection:
        if self.model is not None and self.url is None:
            raise ValueError(f"model={self.model!r} is given, but no url, e.g. http://127.0.0.1:8100/v1")
        return self


class HeadSection(Settings):
    """`mas.agents.<name>.head`: a policy head that decides instead of the language model."""

    encoder: str = "hashing"
    lr: float = Field(0.1, gt=0)
    entropy: float = Field(0.0, ge=0, description="weight of the bonus; 0: off")


def _check_top_k(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("must be at least 1, or -1 for all")
    return value


TopK = Annotated[int, AfterValidator(_check_top_k)]


class AgentSection(Settings):
    """`mas.agents.<name>`: settings of one agent (null: those of the rollout, or of the workflow's class).

    There is no temperature per agent: verl's trainer recomputes log-probabilities at the rollout's temperature, so an
    agent sampled at another one would be trained off-policy.
    """

    top_p: float | None = Field(None, gt=0, le=1)
    top_k: TopK | None = None
    max_tokens: int | None = Field(None, ge=1)
    cost: float | None = Field(None, ge=0, description="of one token; 0: free")
    trained: bool | None = None
    endpoint: EndpointSection | None = None
    head: HeadSection | None = None

    @field_validator("endpoint")
    @classmethod
    def _drop_without_url(cls, endpoint: EndpointSection | None) -> EndpointSection | None:
        """Recipes configure a helper's endpoint without a url, so that the url alone switches it on."""
        return endpoint if endpoint is not None and endpoint.url is not None else None


class TrajectoryLogSection(Settings):
    """`mas.trajectory_log`: how many questions are logged in full, for `verl_ext view`."""

    train_questions: int = Field(8, ge=0, description="0: none")
    val_questions: int = Field(16, ge=0, description="0: none")
    every: int = Field(10, ge=1, description="steps")
    file_mb: float = Field(16.0, gt=0)
    files: int = Field(8, ge=1)


class MemorySection(Rules):
    """`mas.memory`: memories of the agents, which evolve with training (JoyAgents-R1, Algorithm 1)."""

    recall: int = Field(3, ge=1, description="memories in a prompt")
    encoder: str = "hashing"


class MasConfig(Settings):
    """The whole section."""

    workflow: dict[str, Any]
    plugins: list[str] = []
    policy: Policy = "shared"
    sampling: SamplingSection = SamplingSection()
    credit: CreditSection = CreditSection()
    limits: LimitsSection = LimitsSection()
    failure: FailureSection = FailureSection()
    budget: BudgetSection = BudgetSection()
    advantage: dict[str, Any] = {}
    loss: LossSection = LossSection()
    agents: dict[str, AgentSection] = {}
    tools: dict[str, Any] = {}
    memory: MemorySection | None = None
    deterministic: bool = False
    seed: int = 1
    poll_interval: float = Field(0.05, gt=0, description="seconds")
    prepare: dict[str, Any] | None = None
    trajectory_log: TrajectoryLogSection = TrajectoryLogSection()

    @field_validator("agents", "tools", mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """Drop keys that are null: so a recipe removes settings of the recipe that it extends."""
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given

    @field_validator("advantage", mode="before")
    @classmethod
    def _default_options(cls, given: Any) -> Any:
        """Read null as no options: so a command line removes the recipe's options, which another algorithm lacks."""
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
    modes, source = (weights[name].loss_agg_modes, weights[name].source) if name in weights else ((mode,), "")
    refusals = {
        "mas.workflow._target_ is missing: name the workflow class, e.g. verl_ext.recipe.mhgpo.SearchQA": (
            "_target_" not in mas.workflow
        ),
        unknown_name("mas.loss.agent_weights", name, ["none", *weights]): name not in ("none", *weights),
        f"mas.loss.agent_weights={name} reproduces {source} only under actor_rollout_ref.actor.loss_agg_mode="
        f"{' or '.join(map(str, modes))}, but that is {mode!r}: change it, or set mas.loss.agent_weights=none": (
            mode not in modes
        ),
        f"{needs} actor_rollout_ref.rollout.name=hf (given: {engine}); other engines schedule by arrival": (
            fixed and engine != "hf"
        ),
        f"{needs} trainer.v1.trainer_mode=mas_sync: under mas_colocate_async it depends on timing which trajectories "
        "are unfinished when the weights change": fixed and verl("trainer.v1.trainer_mode") == "mas_colocate_async",
        f"{needs} actor_rollout_ref.rollout.agent.num_workers=0 (given: {workers}): one process orders the calls of a "
        "whole batch": fixed and workers not in (0, None),
        f"{needs} a seed for every call. Remedy: mas.sampling.seeded=true": fixed and unseeded,
        "actor_rollout_ref.rollout.full_determinism=true with mas.sampling.seeded=false would give all samples of a "
        "question the same noise. Remedy: mas.sampling.seeded=true": (
            unseeded and verl("actor_rollout_ref.rollout.full_determinism")
        ),
    }
    for message, refused in refusals.items():
        if refused:
            raise ValueError(message)


def import_plugins(section: dict[str, Any]) -> None:
    """Import the modules of `mas.plugins` and that of the workflow: they may register algorithms and strategies.

    Raises:
        ValueError: a module of `mas.plugins` cannot be imported. (`build_workflow` refuses a wrong workflow.)
    """
    for name in section.get("plugins") or ():
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
    """Tokens of prompt and output together that the engine takes; a model may take more where nothing is set."""
    rollout = config.actor_rollout_ref.rollout
    given = OmegaConf.select(rollout, f"engine_kwargs.{rollout.name}.max_model_len") or rollout.max_model_len
    return int(given or config.data.max_prompt_length + config.data.max_response_length)


def optimiser_steps(config: DictConfig, section: DictConfig) -> int:
    """Mini-batches into which one training batch is cut: train_batch_size / ppo_mini_batch_size, both in questions.

    Raises:
        ValueError: one is below 1, or they do not divide.
    """
    questions, mini = config.data.train_batch_size, section.ppo_mini_batch_size
    for name, given in (("data.train_batch_size", questions), ("ppo_mini_batch_size", mini)):
        if given < 1:
            raise ValueError(f"{name}={given} must be at least 1 (questions)")
    if questions % mini:
        raise ValueError(
            f"data.train_batch_size={questions} must be a multiple of ppo_mini_batch_size={mini} (both count "
            "questions): their ratio is the number of optimiser steps of one training step"
        )
    return int(questions // mini)
