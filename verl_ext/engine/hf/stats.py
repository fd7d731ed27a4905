"""The counters of an engine."""

from dataclasses import dataclass


@dataclass
class Stats:
    """Counters since the start; `busy_seconds` is the time spent in `step`, idle time not included."""

    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    prefill_tokens: int = 0
    prefill_tokens_saved: int = 0
    aborted: int = 0
    weight_updates: int = 0
    peak_slots: int = 0
    busy_seconds: float = 0.0
