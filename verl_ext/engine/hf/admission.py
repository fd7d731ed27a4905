"""Plans an admission: which requests go into which slots, what is prefilled, what copied. No tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from verl_ext.engine.hf.params import Request
from verl_ext.engine.hf.prefixes import Held, as_bytes, common_prefix

PREFILL_TOKENS = 8192  # padded tokens of one prefill forward, at most (bounds its memory)
ATTENDED_TOKENS = 4 * PREFILL_TOKENS  # the same of keys, where a prefill continues shared prefixes


@dataclass(eq=False)
class Job:
    """A request inside the engine.

    stop    tokens that end it
    limit   new tokens, at most (max_tokens cut to the context limit)
    start   the engine's step counter when it was admitted
    completed  its output has reached a stop string
    owner   whose keys and values these are: an adapter, or "" for the model
    """

    request: Request
    stop: tuple[int, ...]
    limit: int
    start: int = 0
    completed: bool = False
    owner: str = ""

    def __post_init__(self) -> None:
        self.key = as_bytes(self.request.prompt_ids)  # bytes keep their hash, tuples do not
        self.prefill = len(self.request.prompt_ids) - 1  # tokens; the last one is fed by the first decode step
        self.shared = 0  # of these, tokens whose keys and values are copied from another slot

    @property
    def rest(self) -> int:
        """Tokens that go through the model before the first decode step."""
        return self.prefill - self.shared

    def position(self, step: int) -> int:
        """Absolute position of the token that the engine's step number `step` feeds for this request."""
        return self.prefill + step - self.start

    def generated(self, step: int) -> int:
        """Tokens generated before the engine's step number `step`."""
        return step - self.start


@dataclass
class Round:
    """What can be computed at once.

    prefixes    source slot, target slot and tokens: copied together, before any of these slots is written
    prefills    (first slot, jobs) of one forward pass each: consecutive slots, similar length
    """

    prefixes: list[tuple[int, int, int]] = field(default_factory=list)
    prefills: list[tuple[int, list[Job]]] = field(default_factory=list)


@dataclass
class Admission:
    """jobs     in slot order, from the first free slot on
    rounds      in this order: a later one copies prefixes that an earlier one has computed
    copies      (source slot, first, last + 1, tokens): the keys and values of a prompt that is there by then
    """

    jobs: list[Job]
    rounds: list[Round]
    copies: list[tuple[int, int, int, int]]


def plan(batch: list[Job], active: Sequence[Job], left: Iterable[Held] = (), least: int | None = None) -> Admission:
    """Prefill every distinct prompt once and copy it to the other requests that start from it.

    With `least`, common prefixes of different prompts are computed once, too.

    Args:
        batch: the requests to be admitted.
        active: the running requests in slot order (a slot keeps its prompt while it generates).
        left: what ended requests have left in the slots after those; the new requests overwrite it.
        least: tokens that a prefix must have to be shared; None shares whole prompts only.
    """
    first, running = len(active), {job.key: slot for slot, job in enumerate(active)}
    same: dict[bytes, list[Job]] = {}
    for job in batch:
        same.setdefault(job.key, []).append(job)
    new = sorted((jobs[0] for key, jobs in same.items() if jobs[0].prefill and key not in running), key=_length)
    donors: dict[bytes, Held | Job] = {}
    if least is not None:
        prompts = [Held(slot, job.owner, as_bytes(job.request.prompt_ids[:-1])) for slot, job in enumerate(active)]
        donors = _donors(new, [*prompts, *left], least)
    new = [job for jobs in _levels(new, donors) for job in jobs]
    where = dict(running) | {job.key: first + index for index, job in enumerate(new)}
    ordered = list(new)
    copies = []
    for key, jobs in same.items():
        rest = [job for job in jobs if not job.prefill or where[key] < first or job is not jobs[0]]
        if rest and rest[0].prefill:
            start = first + len(ordered)
            copies.append((where[key], start, start + len(rest), rest[0].prefill))
        ordered += rest
    return Admission(ordered, _rounds(new, donors, where), copies)


def _donors(new: list[Job], held: Sequence[Held], least: int) -> dict[bytes, Held | Job]:
    """Where each prompt gets its longest prefix of at least `least` tokens, by key; sets `Job.shared`.

    Of equal prefixes the first is taken: what is held before what is to be computed, so that few rounds are needed.
    """
    found: dict[bytes, Held | Job] = {}
    known: list[tuple[Held | Job, str, bytes]] = [(one, one.owner, one.key) for one in held]
    for job in new:
        tokens = as_bytes(job.request.prompt_ids[:-1])
        for donor, owner, key in known:
            start = 8 * max(least, job.shared + 1)
            if owner == job.owner and len(tokens) >= start and key[:start] == tokens[:start]:
                job.shared, found[job.key] = common_prefix(tokens, key), donor
        known.append((job, job.owner, tokens))
    return found


def _levels(new: list[Job], donors: Mapping[bytes, Held | Job]) -> list[list[Job]]:
    """The jobs of each round: a prompt comes after the new prompt that it copies from. In order of their rest."""
    levels: list[list[Job]] = []
    level: dict[bytes, int] = {}
    for job in new:  # donors come first
        donor = donors.get(job.key)
        level[job.key] = level[donor.key] + 1 if isinstance(donor, Job) else 0
        levels += [[] for _ in range(level[job.key] + 1 - len(levels))]
        levels[level[job.key]].append(job)
    return [sorted(jobs, key=lambda job: job.rest) for jobs in levels]


def _rounds(new: list[Job], donors: Mapping[bytes, Held | Job], where: Mapping[bytes, int]) -> list[Round]:
    rounds = []
    for jobs in _levels(new, donors):
        one = Round()
        for job in jobs:
            donor = donors.get(job.key)
            if donor is not None:
                source = donor.slot if isinstance(donor, Held) else where[donor.key]
                one.prefixes.append((source, where[job.key], job.shared))
        rest = [job for job in jobs if job.rest]
        one.prefills = _grouped(rest, where[rest[0].key]) if rest else []
        rounds.append(one)
    return rounds


def _length(job: Job) -> int:
    return job.prefill


def _grouped(jobs: list[Job], first: int) -> list[tuple[int, list[Job]]]:
    """Cut jobs (sorted by their rest) into forward passes with at most a quarter, or 16 tokens per row, of padding."""
    groups: list[tuple[int, list[Job]]] = []
    for index, job in enumerate(jobs):
        if groups:
            group = groups[-1][1]
            similar = job.rest - group[0].rest <= max(16, job.rest // 4)
            longest = max(one.prefill if one.shared else 0 for one in (*group, job))
            fits = (len(group) + 1) * max(job.rest, longest * PREFILL_TOKENS // ATTENDED_TOKENS) <= PREFILL_TOKENS
            if similar and fits:
                group.append(job)
                continue
        groups.append((first + index, [job]))
    return groups
