"""What one request may ask of the engine: sampling parameters as verl's agent loops send them, validated."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

# Accepted because agent loops send them, but only with the value that changes nothing.
NEUTRAL = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
    "n": 1,
}
ALLOWED = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_new_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "include_stop_str_in_output",
    "allowed_token_ids",
    *NEUTRAL,
)

# Dividing by less overflows.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """One request's sampling parameters.

    temperature     0 = greedy; otherwise the logits are divided by it. Below 1e-5 counts as 0, as in vLLM
    top_p, top_k    nucleus and top-k filter; 1.0 and -1 switch them off. Log-probs are NOT renormalised over the
                    kept tokens: verl's trainer recomputes them over the full vocabulary
    max_tokens      upper limit on new tokens (the context limit may lower it)
    stop            texts that end the request as soon as its output contains one; the text is part of the output
    seed            64-bit; with the absolute position it fixes all noise of the request; None = fresh noise
    stop_token_ids  tokens that end the request, besides the model's own end tokens
    ignore_eos      do not stop at the model's own end tokens (`stop_token_ids` still stop)
    allowed_token_ids  nothing else may be sampled, and log-probs are over these tokens alone; empty = all may
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be finite and >= 0 (0 = greedy), got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1] (1 = off), got {self.top_p}")
        if self.top_k < -1:
            raise ValueError(f"top_k must be >= 1, or -1 or 0 for off, got {self.top_k}")
        if not all(isinstance(string, str) and string for string in self.stop):
            raise ValueError(f"stop must be a text or a list of texts, none of them empty, got {list(self.stop)}")

    @classmethod
    def from_mapping(
        cls, given: Mapping[str, Any], default_max_tokens: int, ignore_eos: bool = False
    ) -> SamplingParams:
        """Read verl's (vLLM-style) sampling parameters.

        Args:
            given: keys of `ALLOWED`; a value None counts as not given. `logprobs` and `include_stop_str_in_output` are
                accepted and have no effect: log-probs are always returned, stop strings always part of the output.
            default_max_tokens: used when neither max_tokens nor max_new_tokens is given.
            ignore_eos: default of that key (verl: `rollout.ignore_eos`).

        Raises:
            ValueError: an unknown key, or a parameter of `NEUTRAL` with another value than the neutral one.
        """
        unknown = sorted(set(given) - set(ALLOWED))
        if unknown:
            raise ValueError(f"unknown sampling parameters {unknown} for rollout.name=hf; allowed: {sorted(ALLOWED)}")
        for key, neutral in NEUTRAL.items():
            if given.get(key) not in (None, neutral, [], ""):
                raise ValueError(
                    f"sampling parameter {key}={given[key]!r} is not supported by rollout.name=hf; only {neutral!r} "
                    "(off). Leave it out, or use rollout.name=vllm on a GPU"
                )
        known = {key: value for key, value in given.items() if value is not None}
        stop = known.get("stop", ())
        limit = known.get("max_tokens", known.get("max_new_tokens", default_max_tokens))
        temperature = float(known.get("temperature", 1.0))
        return cls(
            max_tokens=int(limit),
            temperature=temperature if not 0 <= temperature < GREEDY_BELOW else 0.0,
            top_p=float(known.get("top_p", 1.0)),
            top_k=int(known.get("top_k", -1)) or -1,
            seed=None if known.get("seed") is None else int(known["seed"]),
            stop_token_ids=tuple(int(token) for token in known.get("stop_token_ids", ())),
            ignore_eos=bool(known.get("ignore_eos", ignore_eos)),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            allowed_token_ids=tuple(int(token) for token in known.get("allowed_token_ids", ())),
        )


@dataclass(frozen=True)
class Request:
    """One prompt to be continued. `request_id` only names it (abort, logs); it does not have to be unique."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Finished:
    """The end of a request.

    token_ids    the new tokens, a final stop token included
    log_probs    of each of them: log_softmax(logits / temperature) over the full vocabulary, or over what the request
                 allows (temperature 0: unscaled)
    stop_reason  "completed" (a stop token), "length" (max_tokens or the context limit), "aborted" (partial), or "nan":
                 the last token's logits were not numbers
    version      of the weights that gave all of them (verl's global_steps), None = never told
    """

    request: Request
    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str
    version: int | None = None


def derived_seed(*parts: object) -> int:
    """A 63-bit seed that depends on `parts` only: the same in every process and on every machine."""
    return int.from_bytes(sha256("/".join(map(str, parts)).encode()).digest()[:8], "little") >> 1


def fresh_seed() -> int:
    """A 63-bit seed from the operating system, for requests that do not ask for a reproducible one."""
    return int.from_bytes(os.urandom(8), "little") >> 1
