"""`actor_rollout_ref.rollout.engine_kwargs.hf`, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

MOST_SLOTS = 256  # beyond this a CPU gains nothing; the default of rollout.max_num_seqs is 1024
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EngineOptions:
    """What one server needs to know besides the model.

    slots          requests that run at the same time (default: rollout.max_num_seqs, at most 256)
    threads        torch threads of the decode loop, at most (default: the machine's cores, shared among its servers,
                   as the trainer waits during a rollout; 1 for a model under 30M parameters)
    max_model_len  context limit, prompt and answer together (default: rollout.max_model_len, else
                   prompt_length + response_length)
    device         torch device of the model (default: the platform's)
    dtype          rollout.dtype; float32 makes the log-probs those of a float32 trainer; auto is bfloat16 where this
                   machine is measured to be faster with it
    kv_cache_gb    GiB of keys and values, at most; there are fewer slots where that many do not fit (default: a
                   quarter of the memory, shared among the machine's servers)
    """

    slots: int
    threads: int | None
    max_model_len: int
    device: str
    dtype: str
    kv_cache_gb: float | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "threads", "max_model_len"):
            if (getattr(self, name) or 0) < 1 and (name != "threads" or self.threads is not None):
                raise ValueError(f"rollout.engine_kwargs.hf.{name} must be at least 1, got {getattr(self, name)}")
        if self.max_model_len < 2:
            raise ValueError("rollout.max_model_len must be at least 2: one token of prompt and one of answer")
        if self.kv_cache_gb is not None and self.kv_cache_gb <= 0:
            raise ValueError(f"rollout.engine_kwargs.hf.kv_cache_gb must be above 0, got {self.kv_cache_gb}")
        if self.dtype not in DTYPES:
            raise ValueError(f"rollout.dtype={self.dtype!r} is not supported by rollout.name=hf; allowed: {DTYPES}")

    @classmethod
    def from_config(cls, rollout: Any, positions: int | None, device: str = "cpu") -> EngineOptions:
        """Read verl's rollout config.

        Args:
            rollout: verl's RolloutConfig (attributes are read).
            positions: the model's `max_position_embeddings`; None = unlimited.
            device: default of the option `device`.

        Raises:
            ValueError: unknown keys, values out of range, or a context longer than the model's positions.
        """
        given: Mapping[str, Any] = dict((rollout.engine_kwargs or {}).get("hf") or {})
        allowed = [field.name for field in fields(cls) if field.name != "dtype"]
        unknown = sorted(set(given) - set(allowed))
        if unknown:
            raise ValueError(f"unknown keys {unknown} in rollout.engine_kwargs.hf; allowed: {allowed}")
        given = {key: value for key, value in given.items() if value is not None}
        length = given.get("max_model_len", rollout.max_model_len or rollout.prompt_length + rollout.response_length)
        if positions is not None and length > positions:
            raise ValueError(
                f"rollout.max_model_len={length} (default: prompt_length + response_length) exceeds the model's "
                f"max_position_embeddings={positions}; lower data.max_prompt_length, data.max_response_length or "
                "rollout.max_model_len"
            )
        return cls(
            slots=int(given.get("slots", min(rollout.max_num_seqs, MOST_SLOTS))),
            threads=int(given["threads"]) if "threads" in given else None,
            max_model_len=int(length),
            device=str(given.get("device", device)),
            dtype=_long_name(str(rollout.dtype)),
            kv_cache_gb=float(given["kv_cache_gb"]) if "kv_cache_gb" in given else None,
        )


def _long_name(dtype: str) -> str:
    return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}.get(dtype, dtype)
