"""Plans an admission: which requests go into which slots, which prompts are prefilled, which copied. No tensors."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from verl_ext.engine.hf.params import Request

PREFILL_TOKENS = 8192  # padded tokens of one prefill forward, at most (bounds its memory)


@dataclass(eq=False)
class Job:
    """A request inside the engine.

    stop    tokens that end it
    limit   new tokens, at most (max_tokens cut to the context limit)
    start   the engine's step counter when it was admitted
    completed  its output has reached a stop string
    """

    request: Request
    stop: tuple[int, ...]
    limit: int
    start: int = 0
    completed: bool = False

    def __post_init__(self) -> None:
        self.key = array("q", self.request.prompt_ids).tobytes()  # bytes keep their hash, tuples do not
        self.prefill = len(self.request.prompt_ids) - 1  # tokens; the last one is fed by the first decode step

    def position(self, step: int) -> int:
        """Absolute position of the token that the engine's step number `step` feeds for this request."""
        return self.prefill + step - self.start

    def generated(self, step: int) -> int:
        """Tokens generated before the engine's step number `step`."""
        return step - self.start


@dataclass
class Admission:
    """jobs     in slot order, from the first free slot on
    prefills    (first slot, jobs) of one forward pass each: consecutive slots, similar length
    copies      (source slot, first, last + 1, tokens): the keys and values of a prompt that is there already
    """

    jobs: list[Job]
    prefills: list[tuple[int, list[Job]]]
    copies: list[tuple[int, int, int, int]]


def plan(batch: list[Job], running: Mapping[bytes, int], first: int) -> Admission:
    """Prefill every distinct prompt once and copy it to the other requests that start from it.

    Args:
        batch: the requests to be admitted.
        running: prompt key -> slot, for the running requests (a slot keeps its prompt while it generates).
        first: the first free slot.
    """
    same: dict[bytes, list[Job]] = {}
    for job in batch:
        same.setdefault(job.key, []).append(job)
    new = sorted((jobs[0] for key, jobs in same.items() if jobs[0].prefill and key not in running), key=_length)
    where = dict(running) | {job.key: first + index for index, job in enumerate(new)}
    ordered = list(new)
    copies = []
    for key, jobs in same.items():
        rest = [job for job in jobs if not job.prefill or where[key] < first or job is not jobs[0]]
        if rest and rest[0].prefill:
            start = first + len(ordered)
            copies.append((where[key], start, start + len(rest), rest[0].prefill))
        ordered += rest
    return Admission(ordered, _grouped(new, first), copies)


def _length(job: Job) -> int:
    return job.prefill


def _grouped(jobs: list[Job], first: int) -> list[tuple[int, list[Job]]]:
    """Cut jobs (sorted by length) into forward passes with at most a quarter, or 16 tokens per row, of padding."""
    groups: list[tuple[int, list[Job]]] = []
    for index, job in enumerate(jobs):
        if groups:
            group = groups[-1][1]
            similar = job.prefill - group[0].prefill <= max(16, job.prefill // 4)
            if similar and (len(group) + 1) * job.prefill <= PREFILL_TOKENS:
                group.append(job)
                continue
        groups.append((first + index, [job]))
    return groups
