"""QuestionStats: what a rollout worker keeps of a sampled question for metrics, in plain numbers that it can send."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean

from verl_ext.mas.forest import Forest
from verl_ext.mas.types import Call, Status, Trajectory
from verl_ext.memory import Episode
from verl_ext.observe.decisions import Path, paths_of
from verl_ext.sampling.base import BATCH, Sample, formula_calls
from verl_ext.tracebacks import frames_of


@dataclass
class CallStats:
    """One call, as far as the metrics of its agent need it. Rewards are NaN if credit did not reach it."""

    agent: str
    status: str
    tokens: int
    truncated: bool
    reward: float
    reward_shared: float
    penalty: float
    seconds: float
    prompt_tokens: int = 0
    quantities: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadDecision:
    """A decision of a policy head, from which the head learns.

    Attributes:
        state: content of the last message of its prompt.
        options: the texts to choose from.
        chosen: index of the chosen one.
        group: the decisions with which it is compared; unique over a step's questions.
        reward: R of the call.
    """

    agent: str
    state: str
    options: tuple[str, ...]
    chosen: int
    group: str
    reward: float


# In place of a status: what the user should be told, see `Forest.remarks`.
REMARK = "remark"


@dataclass(frozen=True)
class Failure:
    """Why trajectories of a question failed; one for all that failed alike: with the same status, in the same place.

    Those that went on are not like those that did not.

    Attributes:
        status: of the trajectories; "tool_error" also for a tool without whose result they went on; `REMARK` for what
            is no failure.
        error: the first one's message.
        trace: the lines of the user's code that raised it; "" if none did.
        trajectories: how many.
        finished: they went on, or others in their place, and have a reward.
    """

    status: str
    error: str
    trace: str
    trajectories: int = 1
    finished: bool = False

    @property
    def place(self) -> tuple[str, ...]:
        """Equal for failures that are alike."""
        end = "finished" if self.finished else "failed"
        return (self.status, self.error) if self.status == REMARK else (self.status, end, *frames_of(self.trace))


@dataclass
class QuestionStats:
    """One question: its calls, trajectories, cost, decisions, similarity of groups, what memories and heads learn."""

    index: int
    calls: list[CallStats] = field(default_factory=list)
    trajectories: int = 0
    rewards: list[float] = field(default_factory=list)
    quantities: list[dict[str, float]] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    errors: list[Failure] = field(default_factory=list)
    tool_failures: int = 0
    cost: dict[str, int] = field(default_factory=dict)
    formula_calls: int = 0
    similarity: dict[str, list[float]] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    head_decisions: list[HeadDecision] = field(default_factory=list)
    seconds: float = 0.0  # of all trajectories together


def question_stats(forest: Forest, samples: list[Sample]) -> QuestionStats:
    """Summarise a sampled forest (credit assigned)."""
    finished = [trajectory for trajectory in forest.trajectories if trajectory.ok]
    scored = [trajectory for trajectory in forest.trajectories if trajectory.scored]
    calls = dict.fromkeys(call for trajectory in forest.trajectories for call in trajectory.calls)
    return QuestionStats(
        index=forest.task.index,
        calls=[_call_stats(call) for call in calls],
        trajectories=len(forest.trajectories),
        rewards=[trajectory.reward for trajectory in scored],
        quantities=[trajectory.metrics for trajectory in scored],
        failures=dict(Counter(t.status.value for t in forest.trajectories if not t.ok)),
        errors=alike([*_failures(forest.trajectories), *_replaced(forest), *_remarks(forest)]),
        tool_failures=sum(trajectory.tool_failures for trajectory in forest.trajectories),
        cost=dict(vars(forest.cost)),
        formula_calls=formula_calls(forest.trajectories),
        similarity=_similarities(samples),
        paths=[path for trajectory in finished for path in paths_of(trajectory)],
        episodes=[_episode(forest, trajectory) for trajectory in finished if forest.memory is not None],
        head_decisions=_head_decisions(forest, samples),
        seconds=forest.seconds,
    )


def _failures(trajectories: Iterable[Trajectory]) -> Iterator[Failure]:
    for trajectory in trajectories:
        found = [] if trajectory.ok else [Failure(trajectory.status.value, trajectory.error, trajectory.trace)]
        for tool in trajectory.tools:
            if tool.trace and tool.failure is not None:
                found.append(Failure(Status.TOOL_ERROR.value, tool.failure, tool.trace, finished=trajectory.ok))
        yield from (replace(one, trajectories=1) for one in alike(found))


def _remarks(forest: Forest) -> Iterator[Failure]:
    for text in dict.fromkeys(forest.remarks):
        yield Failure(REMARK, text, "", finished=True)


def _replaced(forest: Forest) -> Iterator[Failure]:
    """The forks in whose place independent trajectories were sampled."""
    for trajectory in forest.replaced:
        yield Failure(Status.DIVERGED.value, trajectory.error, "", finished=True)


def alike(failures: Iterable[Failure]) -> list[Failure]:
    """One failure for all of the same place, with the number of their trajectories."""
    found: dict[tuple[str, ...], Failure] = {}
    for failure in failures:
        first = found.get(failure.place)
        total = failure.trajectories + (first.trajectories if first else 0)
        found[failure.place] = replace(first or failure, trajectories=total)
    return list(found.values())


def _head_decisions(forest: Forest, samples: list[Sample]) -> list[HeadDecision]:
    kept: dict[tuple[str, ...], tuple[str, ...]] = {}  # one tuple for equal ones: pickled once
    made = []
    for call, group in ((sample.call, sample.group) for sample in samples):
        if call.generation.decided is None or not call.credited:
            continue
        key = group if group[0] == BATCH else (forest.task.data_source, str(forest.task.index), forest.name, *group)
        options = kept.setdefault(call.options, call.options)
        state, chosen = call.messages[-1]["content"], options.index(call.text)
        made.append(HeadDecision(call.agent, state, options, chosen, "/".join(key), call.reward))
    return made


def _episode(forest: Forest, trajectory: Trajectory) -> Episode:
    """R_A is the trajectory's reward, R_F the mean of the agent-specific rewards of the calls that train."""
    own = [call.reward_specific for call in trajectory.calls if call.trained]
    return Episode(
        question=f"{forest.task.data_source}/{forest.task.index:012d}/{forest.name}",
        name="/".join(trajectory.stream.path),
        accuracy=trajectory.reward,
        format=fmean(own) if own else 0.0,
        uses=tuple(trajectory.uses[place] for place in sorted(trajectory.uses)),
    )


def _call_stats(call: Call) -> CallStats:
    return CallStats(
        agent=call.agent,
        status=call.status.value,
        tokens=len(call.generation.token_ids),
        truncated=call.generation.stop_reason == "length",
        reward=call.reward,
        reward_shared=call.reward_shared,
        penalty=call.reward_specific if call.status.trainable else float("nan"),
        seconds=call.seconds,
        prompt_tokens=call.prompt_tokens,
        quantities=dict(call.metrics),
    )


def _similarities(samples: list[Sample]) -> dict[str, list[float]]:
    groups: dict[tuple[str, ...], list[Call]] = defaultdict(list)
    for sample in samples:
        if sample.group[0] != BATCH and sample.call.credited:
            groups[sample.group].append(sample.call)
    found: dict[str, list[float]] = defaultdict(list)
    for calls in groups.values():
        if len(calls) > 1:
            found[calls[0].agent].append(mean_pairwise_f1([call.text for call in calls]))
    return dict(found)


def mean_pairwise_f1(texts: list[str]) -> float:
    """Mean F1 between the word multisets of all pairs (MHGPO, Figure 9), in [0, 1]. Two empty texts agree (1)."""
    bags = [Counter(text.lower().split()) for text in texts]
    scores = []
    for a, b in combinations(bags, 2):
        total = sum(a.values()) + sum(b.values())
        scores.append(2 * sum((a & b).values()) / total if total else 1.0)
    return sum(scores) / len(scores)
