"""The records of a multi-agent rollout: calls, trajectories, tasks.

A *call* is one generation of one agent, a *trajectory* one run of a workflow from the question to its result.
Trajectories of one question share the calls before their fork: the calls of a question form a forest.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_ext.mas.chat import ChatRequest, Written
from verl_ext.mas.messages import checked, continued

if TYPE_CHECKING:
    from verl_ext.mas.agent import Agent, Unparsable
    from verl_ext.memory import Use


class Status(str, enum.Enum):
    """How a call, a tool call or a trajectory ended. Everything but OK is counted by name in the metrics."""

    OK = "ok"
    # Calls that did produce text: they train, with whatever penalty their agent gives.
    UNPARSABLE = "unparsable"
    NO_TOOL_CALL = "no_tool_call"  # `ctx.chat` asked for a tool call, and the output has none
    TRUNCATED = "truncated"
    # Calls that produced nothing to train on: the workflow may catch `CallFailed` and go on.
    PROMPT_TOO_LONG = "prompt_too_long"
    TIMEOUT = "timeout"
    ENGINE_ERROR = "engine_error"
    # Tools and trajectories.
    TOOL_ERROR = "tool_error"
    CALL_LIMIT = "call_limit"
    DIVERGED = "diverged"  # a replayed workflow asked something else: it is not deterministic given its calls
    WORKFLOW_ERROR = "workflow_error"
    JUDGE_ERROR = "judge_error"  # the result is there, but the judge of its reward gave no verdict

    @property
    def trainable(self) -> bool:
        """True if a call of this status has tokens that the policy generated."""
        return self in (Status.OK, Status.UNPARSABLE, Status.NO_TOOL_CALL, Status.TRUNCATED)


@dataclass(frozen=True, order=True)
class CallId:
    """Structural identity of a call: where in the workflow it stands, never when it arrived.

    `scope` is the path of named branches, `turn` counts this agent's calls inside that scope from 0. Two runs of a
    deterministic workflow give the same call the same identity however its concurrent branches interleave.

    A call of a program that is not written as a workflow (`verl_ext.gateway`) has no place that is known when it is
    made. Its identity is `content`, a hash of what it asks, and `turn` counts the calls that ask the same.
    """

    scope: tuple[str, ...]
    agent: str
    turn: int
    content: str = ""

    def __str__(self) -> str:
        asked = f"~{self.content}" if self.content else ""
        return "/".join((*self.scope, f"{self.agent}{asked}.{self.turn}"))


@dataclass(frozen=True)
class Stream:
    """The source of sampling noise of a trajectory: a root, or a fork of another stream at one call.

    A call belongs to the deepest stream of its trajectory's lineage that it depends on, so calls before a fork belong
    to the parent's stream and are shared, and calls from the fork on are new.

    A stream with a parent and no fork is a sibling of its parent: all its calls are new. It shares what comes before
    any call, the tools' results, and the randomness of the workflow.
    """

    name: str
    parent: Stream | None = None
    fork: CallId | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """Names from the root to this stream; with the call's identity it determines the sampling seed."""
        return (*(self.parent.path if self.parent else ()), self.name)

    @property
    def depth(self) -> int:
        return len(self.path)

    def lineage(self) -> tuple[Stream, ...]:
        """All streams from the root to this one."""
        return (*(self.parent.lineage() if self.parent else ()), self)


@dataclass
class Generation:
    """What an engine returned for one prompt (token-in, token-out).

    Attributes:
        token_ids: generated tokens, the stop token included; empty if the engine keeps them to itself (an endpoint).
        log_probs: temperature-scaled log-probability of each of them under the policy that sampled it.
        stop_reason: "completed", "length" or "aborted".
        min_version, max_version: policy versions (training steps) at the first and last token; -1 if unknown.
        adapter: the one that the engine says it used ("": the base alone); None: it does not say.
        policy: the one of several (`mas.policies`) that the engine says it serves; None: it does not say.
        allowed: for each token of a decision, the tokens that were allowed in its place; empty: all were, everywhere.
        decided: of a decision made without tokens (by a policy head), its log-probability.
    """

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str = "completed"
    min_version: int = -1
    max_version: int = -1
    adapter: str | None = None
    policy: str | None = None
    allowed: list[tuple[int, ...]] = field(default_factory=list)
    decided: float | None = None


@dataclass
class Completion:
    """One answer of an engine to a chat.

    `text` is without special tokens; token counts are 0 if the engine does not tell. `reasoning` is what the model
    thought before it answered, where the engine keeps the two apart. `sent` is the chat that a server was sent, which
    for a stream depends on what it can; empty: as it was asked. `tool_calls` are those that a server has read; None:
    they are in the text, if there are any.
    """

    text: str
    generation: Generation
    prompt_tokens: int = 0
    generated_tokens: int = 0
    reasoning: str = ""
    sent: Sequence[dict[str, Any]] = ()
    tool_calls: Sequence[Written] | None = None


@dataclass(eq=False)
class Call:
    """One generation of one agent, with everything needed to train on it and to look at it.

    A call may continue another one (`Context.resume`): its prompt is then that call's prompt and output, token by
    token, and the `observation` that was put behind them. Calls that continue each other train as one sequence.
    `chat` is what `Context.chat` asked; its call may continue one, too, and has its observation in `messages`.
    `value` is what the agent's parser made of the text (or its fallback, where `unparsable` holds the parser's error).
    `actions` are the ranges of tokens [start, stop) of the output that the agent's `actions` has marked; `trained` is
    False for calls of helpers (`Agent.trained`). `decides`: the output was one of given texts, `options`
    (`Agent.choices`). `cost` is what the output cost (`Agent.cost`). `place` is the turn of a call whose identity is
    its content, known when its trajectory has ended.

    `seconds` are those of the generation without pauses; `began` and `ended` are in seconds since 1970.

    `reward_shared` (Eq. 4) and `reward` (R = R_shared + R_spe) are NaN until credit has been assigned, and stay NaN for
    calls that led to no trajectory's end.
    """

    id: CallId
    stream: Stream
    messages: list[dict[str, Any]]
    continues: Call | None = None
    observation: str = ""
    chat: ChatRequest | None = None
    tool_calls: Sequence[Written] | None = None
    prompt_ids: list[int] = field(default_factory=list)
    generation: Generation = field(default_factory=lambda: Generation([], []))
    text: str = ""
    reasoning: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    status: Status = Status.OK
    error: str = ""
    actions: list[tuple[int, int]] = field(default_factory=list)
    value: Any = None
    unparsable: Unparsable | None = None
    trained: bool = True
    decides: bool = False
    options: tuple[str, ...] = ()
    cost: float = 0.0
    place: int | None = None
    parents: tuple[Call, ...] = ()
    depth: int = 0
    reward_specific: float = 0.0
    reward_shared: float = float("nan")
    reward: float = float("nan")
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    began: float = 0.0
    ended: float = 0.0

    @property
    def agent(self) -> str:
        return self.id.agent

    @property
    def turn(self) -> int:
        """Of its agent's calls in its scope, which one it is, from 0."""
        return self.id.turn if self.place is None else self.place

    @property
    def observed(self) -> int:
        """Tokens that the observation before this call has; 0 unless it continues another one."""
        if self.continues is None:
            return 0
        return len(self.prompt_ids) - len(self.continues.prompt_ids) - len(self.continues.generation.token_ids)

    @property
    def chosen(self) -> bool:
        """True if it is a decision among several texts whose probability is known."""
        if self.generation.decided is not None:
            return len(self.options) > 1
        return any(len(allowed) > 1 for allowed in self.generation.allowed)

    @property
    def credited(self) -> bool:
        """True if credit reached this call; others do not train."""
        return not math.isnan(self.reward)


def ancestors(calls: Iterable[Call]) -> set[Call]:
    """These calls and all that they depend on."""
    found: set[Call] = set()
    left = list(calls)
    while left:
        if (call := left.pop()) not in found:
            found.add(call)
            left += call.parents
    return found


@dataclass(frozen=True)
class Invocation:
    """A call as a workflow makes it, before anything is generated or replayed.

    `inputs` go to the agent's prompt, parser and penalty. `before` are the ends of what came before in this scope: all
    of it may have had an effect, whatever `parents` says. `parents` are the calls whose output the prompt uses, the
    edges for credit. `continues` is the call that this one goes on from, with `observation` between them. `chat` is
    what `Context.chat` was given, in place of inputs for the agent's prompt.
    """

    id: CallId
    agent: Agent
    inputs: dict[str, Any]
    before: list[Call]
    parents: list[Call]
    continues: Call | None = None
    observation: str = ""
    chat: ChatRequest | None = None

    def asked(self) -> list[dict[str, Any]] | ChatRequest:
        """What the agent is asked: messages, or a chat with its tools and options. A replay must ask the same.

        Raises:
            TypeError: the agent's prompt function returned something else.
        """
        if self.chat is not None:
            return self.chat
        if self.continues is None:
            return checked(self.agent.prompt(**self.inputs), self.agent.prompt)
        return continued(self.continues, self.observation)


@dataclass(eq=False)
class ToolRecord:
    """A tool call: its arguments and what it gave, or how its last attempt failed (`trace`: the tool's own lines).

    `after` are the calls that came before it in its scope; several trajectories share a tool call as they share calls.
    `began` and `ended` are in seconds since 1970, retries included.
    """

    id: CallId
    stream: Stream
    name: str
    arguments: dict[str, Any]
    after: tuple[Call, ...] = ()
    result: Any = None
    failure: str | None = None
    trace: str = ""
    began: float = 0.0
    ended: float = 0.0


@dataclass
class Trajectory:
    """One run of a workflow. Of one that failed, `trace` has the lines of the user's code that failed, if it did.

    `calls` are in topological order (by depth in the call graph, then identity), so the order does not depend on
    timing; calls shared with other trajectories are the same objects. `sinks` are the calls its result came from.
    `tools` are its tool calls in the order in which they were answered, `notes` what `ctx.note` wrote down, `uses` what
    `ctx.remember` did, by place in the workflow. `agent_rewards` are rewards of agents by name, which their calls get
    beside the shared one.
    """

    stream: Stream
    calls: list[Call] = field(default_factory=list)
    sinks: tuple[Call, ...] = ()
    result: Any = None
    status: Status = Status.OK
    error: str = ""
    trace: str = ""
    reward: float = float("nan")
    metrics: dict[str, float] = field(default_factory=dict)
    tools: list[ToolRecord] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    uses: dict[tuple[str, ...], Use] = field(default_factory=dict)
    tool_failures: int = 0
    agent_rewards: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def scored(self) -> bool:
        """True if it has a reward: it came to its end, or its failure has one (`mas.failure`). Others do not train."""
        return not math.isnan(self.reward)


@dataclass(frozen=True)
class Task:
    """One row of the data set, as a workflow sees it.

    `question` is the content of the last message of the row's prompt, `ground_truth` that of its `reward_model`,
    `extra` its `extra_info`. `index` is the position in the data set; with the step it determines the sampling noise.
    """

    question: str
    ground_truth: Any = None
    data_source: str = ""
    index: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class PromptTooLong(Exception):
    """The engine refused a prompt for its length."""


class CallFailed(Exception):
    """A call gave nothing to go on with. A workflow may catch it; uncaught, it ends the trajectory as failed."""

    def __init__(self, status: Status, message: str, trace: str = ""):
        super().__init__(f"{status.value}: {message}")
        self.status, self.trace = status, trace


class ToolFailed(CallFailed):
    """A tool failed after its bounded retries, or took too long."""
