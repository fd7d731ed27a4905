"""What the engine keeps per slot besides keys and values: tensors of one row per slot, updated for all rows at once."""

from __future__ import annotations

import torch

from verl_ext.engine.hf.admission import Job
from verl_ext.engine.hf.params import fresh_seed
from verl_ext.engine.hf.sampler import mix_seeds, sample, uniform_noise

# name -> (dtype, value of an unused entry)
_ROW_FIELDS = {
    "current": (torch.int64, 0),  # the token to be fed next
    "position": (torch.int64, 0),  # its absolute position
    "count": (torch.int64, 0),  # tokens generated so far
    "limit": (torch.int64, 1),  # tokens after which the request ends
    "stream": (torch.int64, 0),  # mixed seed
    "temperature": (torch.float32, 1.0),  # divisor of the logits (1 for greedy rows)
    "greedy": (torch.bool, False),
    "top_k": (torch.int64, -1),
    "top_p": (torch.float32, 1.0),
}
_MATRIX_FIELDS = {
    "stop": (torch.int64, -1),  # (slots, stop tokens), padded with -1
    "tokens": (torch.int64, 0),  # (slots, new tokens)
    "log_probs": (torch.float32, 0.0),
}


class SlotTable:
    """Tensors (slots,) and (slots, width), grown on demand; row i belongs to slot i."""

    # (slots,)
    current: torch.Tensor
    position: torch.Tensor
    count: torch.Tensor
    limit: torch.Tensor
    stream: torch.Tensor
    temperature: torch.Tensor
    greedy: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    # (slots, width)
    stop: torch.Tensor
    tokens: torch.Tensor
    log_probs: torch.Tensor

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.slots = 0
        for name, (dtype, fill) in _ROW_FIELDS.items():
            setattr(self, name, torch.full((0,), fill, dtype=dtype, device=device))
        for name, (dtype, fill) in _MATRIX_FIELDS.items():
            setattr(self, name, torch.full((0, 1), fill, dtype=dtype, device=device))

    def reserve(self, slots: int, new_tokens: int, stops: int = 1) -> bool:
        """Make room for this many rows, generated tokens and stop tokens per row; True if the tensors are new."""
        widths = {"stop": stops, "tokens": new_tokens, "log_probs": new_tokens}
        if slots <= self.slots and new_tokens <= self.tokens.shape[1] and stops <= self.stop.shape[1]:
            return False
        self.slots = self.slots if slots <= self.slots else max(slots, 2 * self.slots)
        for name, (dtype, fill) in (_ROW_FIELDS | _MATRIX_FIELDS).items():
            old = getattr(self, name)
            shape = [self.slots]
            if name in widths:
                wanted, width = widths[name], old.shape[1]
                shape.append(width if wanted <= width else max(wanted, 2 * width))
            new = torch.full(shape, fill, dtype=dtype, device=self.device)
            new[tuple(slice(size) for size in old.shape)] = old
            setattr(self, name, new)
        return True

    def fill(self, first: int, jobs: list[Job]) -> None:
        """Start requests in the slots first, first + 1, ..."""
        params = [job.request.params for job in jobs]
        width = self.stop.shape[1]
        values = {
            "current": [job.request.prompt_ids[-1] for job in jobs],
            "position": [job.prefill for job in jobs],
            "count": [0] * len(jobs),
            "limit": [job.limit for job in jobs],
            "temperature": [p.temperature or 1.0 for p in params],
            "greedy": [p.temperature == 0 for p in params],
            "top_k": [p.top_k for p in params],
            "top_p": [p.top_p for p in params],
            "stop": [list(job.stop) + [-1] * (width - len(job.stop)) for job in jobs],
            "stream": mix_seeds([fresh_seed() if p.seed is None else p.seed for p in params]),
        }
        for name, value in values.items():
            target = getattr(self, name)
            target[first : first + len(jobs)] = torch.as_tensor(value, dtype=target.dtype, device=self.device)

    def move(self, source: list[int], target: list[int]) -> None:
        """Copy rows onto others: source[i] -> target[i]."""
        for name in (*_ROW_FIELDS, *_MATRIX_FIELDS):
            tensor = getattr(self, name)
            tensor[target] = tensor[source]


class View:
    """The table's rows in use, and what the running requests' parameters allow to skip; valid until they change."""

    def __init__(self, table: SlotTable, active: list[Job], positions: torch.Tensor) -> None:
        size = len(active)
        self.rows = positions[:size]
        self.current, self.position, self.stream = table.current[:size], table.position[:size], table.stream[:size]
        self.count, self.limit, self.stop = table.count[:size], table.limit[:size], table.stop[:size]
        self.tokens, self.log_probs = table.tokens[:size], table.log_probs[:size]
        self.top_k, self.top_p = table.top_k[:size], table.top_p[:size]
        params = [job.request.params for job in active]
        self.stop_strings = any(p.stop for p in params)
        greedy = sum(p.temperature == 0 for p in params)
        self.all_greedy = greedy == size
        self.greedy = table.greedy[:size] if greedy else None
        self.temperature = table.temperature[:size] if any(p.temperature not in (0, 1) for p in params) else None
        filtered = [i for i, p in enumerate(params) if p.temperature and (p.top_p < 1 or p.top_k > 0)]
        self.filtered = torch.tensor(filtered, device=positions.device) if filtered else None
        self._limits = [(i, p.allowed_token_ids) for i, p in enumerate(params) if p.allowed_token_ids]
        self._allowed: tuple[torch.Tensor, torch.Tensor] | None = None

    def sample(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token of each row, at absolute position `position` + 1, and its log-prob; both (B,)."""
        noise = None if self.all_greedy else uniform_noise(self.stream, self.position + 1)
        if self._limits and self._allowed is None:
            self._allowed = _open_tokens(self._limits, logits)
        filters = (self.temperature, self.greedy, self.filtered, self.top_k, self.top_p)
        return sample(logits, noise, *filters, self._allowed)


def _open_tokens(limits: list[tuple[int, tuple[int, ...]]], logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with limits (A,), and what is open to each (A, V) bool, for logits (B, V)."""
    open_to = torch.zeros(len(limits), logits.shape[-1], dtype=torch.bool)
    for place, (_, tokens) in enumerate(limits):
        open_to[place, list(tokens)] = True
    return torch.tensor([row for row, _ in limits], device=logits.device), open_to.to(logits.device)
