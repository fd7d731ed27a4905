"""The sections of `mas`, typed: ranges at the fields. `config.MasConfig` holds them all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from verl_ext.algorithms import credit_keys, credit_rules
from verl_ext.memory import Rules
from verl_ext.sampling import STRATEGIES
from verl_ext.settings import Settings, check_keys

# The key of a tool's section that is no argument of the tool: whether the rollout workers of a node share it.
ONCE_PER_NODE = "once_per_node"


def arguments_of(section: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the section of a tool: without Hydra's keys and ours."""
    return {key: value for key, value in section.items() if not key.startswith("_") and key != ONCE_PER_NODE}


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
    oversample: float = Field(1.0, ge=1, description="questions begun, in multiples of data.train_batch_size; 1: off")
    max_cuts: int | None = Field(3, ge=1, description="how often a question may be cut; null: no limit")

    @model_validator(mode="after")
    def _check_strategies(self) -> SamplingSection:
        check_keys(self.plugged, [*type(self).model_fields, *STRATEGIES], "mas.sampling")
        for name, given in self.plugged.items():
            if given is not None and not isinstance(given, dict):
                raise ValueError(f"mas.sampling.{name}={given!r} must be a section with keys: options of the strategy")
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

    call_limit: float | None = None
    truncated: float | None = None
    prompt_too_long: float | None = None
    timeout: float | None = None
    tool_error: float | None = None
    unparsable: float | None = None
    no_tool_call: float | None = None
    judge_error: float | None = None
    max_left_out: float = Field(0.5, ge=0, le=1, description="share of a step's trajectories")

    @property
    def rewards(self) -> dict[str, float]:
        """The rewards that are set, by status."""
        return {name: value for name, value in self if name in REWARDED and value is not None}


# Statuses that `mas.failure` can give a reward; the others are defects of the workflow or the engine.
REWARDED = FailureSection.model_fields.keys() - {"max_left_out"}


class BudgetSection(Settings):
    """`mas.budget`: when a run ends before `total_training_steps`."""

    generated_tokens: int | None = Field(None, ge=1, description="null: no budget")
    questions: int | None = Field(None, ge=1, description="null: no budget")
    operations: int | None = Field(None, ge=1, description="null: no budget")


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

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and (not url.startswith(("http://", "https://")) or not urlsplit(url).netloc):
            raise ValueError("must be the base URL of a server, e.g. http://127.0.0.1:8100/v1; null: none")
        return url

    @model_validator(mode="after")
    def _check_model(self) -> EndpointSection:
        if self.model is not None and self.url is None:
            raise ValueError(f"model={self.model!r} is given, but no url, e.g. http://127.0.0.1:8100/v1")
        return self


class JudgeSection(EndpointSection):
    """`mas.judge`: the model that scores what rules cannot, for workflows whose reward asks it.

    Without a url and a checkpoint there is none.
    """

    checkpoint: str | None = None
    cache: str | None = "data/judge.db"
    templates: str | None = None
    temperature: float = Field(0.2, ge=0, description="of its outputs")
    max_tokens: int = Field(2048, ge=1, description="of an output, its reasoning included")
    chat_template: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_one(self) -> JudgeSection:
        if self.url is not None and self.checkpoint is not None:
            raise ValueError(f"url={self.url!r} and checkpoint={self.checkpoint!r} are given, but only one can judge")
        return self

    @property
    def given(self) -> bool:
        """Whether there is a judge."""
        return self.url is not None or self.checkpoint is not None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings on which verdicts depend."""
        names = ("model", "checkpoint", "temperature", "max_tokens", "chat_template")
        own = Path(self.templates).read_text("utf-8") if self.templates is not None else None
        return {name: getattr(self, name) for name in names} | {"templates": own}


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
    tool_parser: str | None = Field(None, description="verl's, for ctx.chat; null: rollout.multi_turn.format")
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


class TracingSection(Settings):
    """`mas.tracing`: sampled questions as OpenTelemetry spans."""

    otel: bool = False
    content: bool = False


class MemorySection(Rules):
    """`mas.memory`: memories of the agents, which evolve with training (JoyAgents-R1, Algorithm 1)."""

    recall: int = Field(3, ge=1, description="memories in a prompt")
    encoder: str = "hashing"
