"""The `evaluate` section, typed; composition of the whole configuration; checks before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import hydra
from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer.config import MasConfig, read_mas_config
from verl_ext.trainer.preflight import checks
from verl_ext.trainer.preflight.composing import composed
from verl_ext.trainer.preflight.typed import typed_section


@dataclass
class EvaluateConfig:
    """The whole section; `configs/evaluate.yaml` documents each field where it is set.

    Raises:
        ValueError: a value out of range, or several samples without a temperature.
    """

    output: str
    model: str | None = None
    memory: str | None = None
    heads: str | None = None
    endpoint: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    request_timeout: float = 120.0
    retries: int = 5
    device: str | None = None
    concurrency: int = 32
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    max_questions: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("samples", 1), ("retries", 0), ("temperature", 0.0)):
            if getattr(self, name) < least:
                raise ValueError(f"evaluate.{name}={getattr(self, name)} must be at least {least}")
        if self.request_timeout <= 0:
            raise ValueError(f"evaluate.request_timeout={self.request_timeout} must be above 0 (seconds)")
        if self.max_questions is not None and self.max_questions < 1:
            raise ValueError(f"evaluate.max_questions={self.max_questions} must be at least 1, or null for all")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"evaluate.samples={self.samples} at evaluate.temperature=0 would be {self.samples} times the same "
                "answer. Remedy: evaluate.temperature=1.0, or evaluate.samples=1"
            )
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"evaluate.endpoint={self.endpoint!r} must be a base URL, e.g. http://127.0.0.1:8100/v1, or null for a "
                "model in this process"
            )

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
        rest = OmegaConf.masked_copy(config, [key for key in config if key != "evaluate"])
        checks.check_keys_known(rest, overrides)
    return config


def read_config(config: DictConfig) -> tuple[EvaluateConfig, MasConfig]:
    """The typed sections `evaluate` and `mas`.

    Raises:
        ValueError: a missing section, an unknown key, or a value of the wrong type or range.
    """
    section = typed_section(EvaluateConfig, OmegaConf.to_container(config.evaluate, resolve=True), "evaluate")
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
