"""The section `evaluate`, typed and checked; composes the whole configuration."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig, OmegaConf
from pydantic import Field, field_validator, model_validator

from verl_ext.settings import Settings
from verl_ext.trainer.config import MasConfig, read_mas_config
from verl_ext.trainer.preflight import values
from verl_ext.trainer.preflight.composing import composed
from verl_ext.trainer.sections import TopK


class EvaluateConfig(Settings):
    """The whole section; `configs/evaluate.yaml` documents each field where it is set."""

    output: str | None = None
    model: str | None = None
    memory: str | None = None
    heads: str | None = None
    endpoint: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    request_timeout: float = Field(120.0, gt=0, description="seconds")
    retries: int = Field(5, ge=0)
    device: str | None = None
    concurrency: int = Field(32, ge=1, description="questions at a time")
    samples: int = Field(1, ge=1, description="answers to a question")
    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: TopK = -1
    max_questions: int | None = Field(None, ge=1, description="null: all")
    against: str | None = None
    keep_between: list[float] | None = Field(None, min_length=2, max_length=2, description="bounds of a mean reward")

    @model_validator(mode="after")
    def _check_together(self) -> EvaluateConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"evaluate.samples={self.samples} at evaluate.temperature=0 would be {self.samples} times the same "
                "answer. Remedy: evaluate.temperature=1.0, or evaluate.samples=1"
            )
        if self.keep_between is not None and self.samples < 2:
            raise ValueError(
                "evaluate.keep_between needs samples whose rewards can differ. Remedy: evaluate.samples=4 "
                "evaluate.temperature=1.0"
            )
        if self.keep_between is not None and not self.keep_between[0] <= self.keep_between[1]:
            raise ValueError(
                f"evaluate.keep_between={self.keep_between} must be a lower and an upper bound of a question's "
                "mean reward. Remedy: evaluate.keep_between=[0.05,0.95]"
            )
        return self

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must be a base URL, e.g. http://127.0.0.1:8100/v1, or null for a model in this process")
        return value

    @property
    def sampling(self) -> dict[str, float]:
        """Sampling parameters that all agents share."""
        return {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}


def compose(overrides: list[str], config_dir: str | None = None) -> DictConfig:
    """The configuration of a command line, checked for misspelt keys.

    Args:
        overrides: Hydra's, as in training: `+recipe=mhgpo_tiny`, `data.val_files=[…]`, `evaluate.concurrency=8`.
        config_dir: folder with further recipes.

    Raises:
        ValueError: an unknown key, in a recipe file or on the command line.
    """
    import verl  # noqa: F401  (loads the plugin that puts the recipes on Hydra's search path)

    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = composed("evaluate", overrides, config_dir)
        rest = OmegaConf.masked_copy(config, [str(key) for key in config if key != "evaluate"])
        values.check_keys_known(rest, overrides)
    return config


def read_config(config: DictConfig) -> tuple[EvaluateConfig, MasConfig]:
    """The typed sections `evaluate` and `mas`.

    Raises:
        ValueError: a missing section, an unknown key, or a value of the wrong type or range.
    """
    section = EvaluateConfig.read(OmegaConf.to_container(config.evaluate, resolve=True), "evaluate")
    mas = read_mas_config(config)
    if mas.deterministic and section.concurrency > 1:
        raise ValueError(
            f"mas.deterministic=true needs evaluate.concurrency=1 (given: {section.concurrency}): which calls share a "
            "forward pass changes the last bits of its logits"
        )
    if config.data.get("val_max_samples", -1) > 0:
        raise ValueError(
            f"data.val_max_samples={config.data.val_max_samples} is training's and may draw at random. "
            "Remedy: evaluate.max_questions, the first ones of each data source"
        )
    return section, mas
