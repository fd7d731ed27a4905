"""Forest: all calls and trajectories of one question. Each call is generated once and recorded for replays."""

from __future__ import annotations

import asyncio
import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verl_ext.mas.agent import Agent, Unparsable
from verl_ext.mas.limits import Limits
from verl_ext.mas.llm import LLM
from verl_ext.mas.noise import call_seed
from verl_ext.mas.stopwatch import Stopwatch
from verl_ext.mas.tool_calls import Cost, attempt
from verl_ext.mas.types import (
    Call,
    CallId,
    Completion,
    Invocation,
    PromptTooLong,
    Status,
    Stream,
    Task,
    ToolRecord,
    Trajectory,
)
from verl_ext.mas.workflow import Workflow
from verl_ext.memory import Memory
from verl_ext.tools.threads import Threads
from verl_ext.tracebacks import place_of

T = TypeVar("T")
Tools = Mapping[str, Callable[..., Any]]

# Sampling parameters that validation sets for every agent, whatever the agent's own training values are.
TRUNCATION = ("temperature", "top_p", "top_k")
# Stop reasons of an output that the engine aborted and did not resume.
ABORTED = ("aborted", "abort")
# Seconds that cancelled calls and tools have to clean up.
CLOSE_TIMEOUT = 5.0
ABANDONED = "no trajectory waits for it any longer: they have reached a time limit, or were cancelled"


class BrokenReward(RuntimeError):
    """A reward or penalty function raised. It stops the training: zeros in its place would flatten every group."""


@dataclass
class Forest:
    """The calls of one question, memoised by (call identity, stream).

    A fork reruns the workflow; wherever a call belongs to a stream that already has it, the recorded (or still
    running) call answers, with no generation and no tool traffic. It does not matter which trajectory gets there first.

    Args:
        task, workflow, llm, tools: the question and what works on it.
        seed: covers (run seed, training step, data-set index); every call's noise derives from it.
        sampling: sampling parameters, overridden per agent by `Agent.sampling` unless `greedy`.
        greedy: validation; temperature and truncation are taken from `sampling` for every agent.
        clock: measures calls and their timeouts; paused while the weights are updated.
        threads: for tools that are plain functions; shared by the questions of a process.
        memory: (agent, query) -> the memories that the agent recalls; always the same answer, from any thread. None:
            there is no memory.
        adapters: name of each agent's adapter ("" is the base alone); None: the policy has no adapters.
        models: where agents have models of their own (`mas.policies`), each agent's; empty: `llm` answers for all.
        failure_rewards: reward of a trajectory that ends with this status. Others have none and do not train; in
            validation no failed trajectory has one. With "truncated", a call whose output was cut off fails.
    """

    task: Task
    workflow: Workflow
    llm: LLM
    tools: Tools = field(default_factory=dict)
    seed: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)
    greedy: bool = False
    limits: Limits = field(default_factory=Limits)
    name: str = ""
    clock: Stopwatch = field(default_factory=Stopwatch)
    threads: Threads = field(default_factory=Threads)
    memory: Callable[[str, str], list[Memory]] | None = None
    adapters: Mapping[str, str] | None = None
    models: Mapping[str, LLM] = field(default_factory=dict)
    failure_rewards: Mapping[str, float] = field(default_factory=dict)
    trajectories: list[Trajectory] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        self._calls: dict[tuple[CallId, Stream], asyncio.Task[Call]] = {}
        # Messages of agent calls and arguments of tool calls, as they were made.
        self._records: dict[tuple[CallId, Stream], Any] = {}
        self._tools: dict[tuple[CallId, Stream], asyncio.Task[ToolRecord]] = {}
        self._recalled: dict[tuple[str, str], asyncio.Task[list[Memory]]] = {}
        self._waiting: Counter[asyncio.Task[Any]] = Counter()
        self.closed = False

    def model_of(self, agent: str) -> LLM:
        """The model of the policy that answers for an agent, and that trains on its calls."""
        return self.models[agent] if self.models else self.llm

    async def recall(self, agent: str, query: str) -> list[Memory]:
        """The memories of an agent that are most similar to a query; the same for all trajectories of the question."""
        if self.memory is None:
            return []
        if (agent, query) not in self._recalled:  # in a thread: a sentence encoder would block the event loop
            self._recalled[agent, query] = asyncio.ensure_future(asyncio.to_thread(self.memory, agent, query))
        with self.clock.waiting(f'recall of agent "{agent}"'):
            return list(await asyncio.shield(self._recalled[agent, query]))

    def recorded(self, call: CallId, stream: Stream) -> Any:
        """Messages or arguments with which this agent call or tool call was made before, or None if it was not."""
        return self._records.get((call, stream))

    async def call(self, invocation: Invocation, stream: Stream, messages: list[dict[str, str]]) -> Call:
        """The recorded call, or a new one. Failures are recorded too: a replay meets the same failed call."""
        self._admit()
        key = (invocation.id, stream)
        if key in self._calls:
            self.cost.replayed_calls += 1
            await asyncio.sleep(0)  # a turn of the event loop, like a new call: concurrent siblings all start first
        else:
            # A copy: a prompt function may hand out a chat history that grows later.
            call = Call(invocation.id, stream, copy.deepcopy(messages), invocation.continues, invocation.observation)
            call.trained, call.parents = invocation.agent.trained, tuple(invocation.parents)
            call.depth = 1 + max((parent.depth for parent in call.parents), default=-1)
            self._records[key] = call.messages
            self._calls[key] = asyncio.ensure_future(self._generate(call, invocation.agent, invocation.inputs))
        return await self._share(self._calls[key])

    async def _share(self, work: asyncio.Task[T]) -> T:
        """Wait for work that several trajectories may wait for. It is cancelled once the last of them gives up."""
        self._waiting[work] += 1
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if self._waiting[work] == 1:
                work.cancel()
            raise
        finally:
            self._waiting[work] -= 1

    async def _generate(self, call: Call, agent: Agent, inputs: dict[str, Any]) -> Call:
        sampling = {**self.sampling, **agent.sampling, "seed": call_seed(self.seed, call.stream, call.id)}
        llm = agent.llm or self.model_of(call.agent)
        if self.adapters is not None and agent.llm is None:
            sampling["adapter"] = self.adapters[call.agent]
        if agent.choices is not None:
            call.decides, call.options = True, agent.options(**inputs)
            sampling["choices"] = list(call.options)
        call.error = self._enter_prompt(llm, call, sampling)
        if call.error:
            call.status = Status.PROMPT_TOO_LONG
            return call
        if self.greedy:
            sampling.update({name: self.sampling[name] for name in TRUNCATION if name in self.sampling})
        self.cost.agent_calls += 1
        self.cost.prompt_tokens += len(call.prompt_ids)
        start = self.clock.now()
        key = (self.name, *call.stream.path, str(call.id))
        try:
            with self.clock.waiting(f'call of agent "{call.agent}" waiting for {getattr(llm, "name", "the model")}'):
                completion = await self.clock.wait_for(
                    llm.complete(call.messages, call.prompt_ids, sampling, key), self.limits.call_timeout
                )
        except asyncio.CancelledError:
            if self.closed:
                raise
            call.status, call.error = Status.TIMEOUT, ABANDONED
            return call
        except asyncio.TimeoutError:
            call.status, call.error = Status.TIMEOUT, f"no answer within {self.limits.call_timeout} s"
            return call
        except PromptTooLong as error:
            call.status, call.error = Status.PROMPT_TOO_LONG, str(error)
            return call
        except Exception as error:  # the engine's failure is this call's status, not the batch's end
            call.status, call.error = Status.ENGINE_ERROR, f"{type(error).__name__}: {error}"
            return call
        finally:
            call.seconds = self.clock.now() - start
        self._take(call, completion)
        call.cost = agent.cost * call.generated_tokens
        if call.decides and not call.chosen:
            call.trained = False  # there was only one option, or another model than the policy chose
        return call if call.status is Status.ENGINE_ERROR else self._finish(call, agent, inputs)

    def _enter_prompt(self, llm: LLM, call: Call, sampling: dict[str, Any]) -> str:
        """Enter the call's prompt tokens; returns why there is no room for them, or nothing.

        A call that continues another one gets what the sequence has left of its tokens as `max_tokens`.
        """
        before, limits = call.continues, self.limits
        if before is None:
            call.prompt_ids = llm.encode(call.messages)
            longest = limits.max_prompt_tokens
            if not call.trained and limits.max_context_tokens is not None:
                longest = max(longest, limits.max_context_tokens - sampling["max_tokens"])
            if len(call.prompt_ids) > longest:
                return f"the prompt has {len(call.prompt_ids)} tokens, allowed are {longest}"
        elif before.prompt_ids:
            observation = llm.encode_text(call.observation)
            call.prompt_ids = [*before.prompt_ids, *before.generation.token_ids, *observation]
            if limits.max_sequence_tokens is not None:
                used = len(call.prompt_ids) - len(_beginning(call).prompt_ids)
                if used >= limits.max_sequence_tokens:
                    return f"the sequence has {used} tokens, allowed are {limits.max_sequence_tokens}"
                sampling["max_tokens"] = min(sampling["max_tokens"], limits.max_sequence_tokens - used)
        else:  # a server has the tokens: tell it where the sequence begins
            sampling["continue_from"] = len(_beginning(call).messages)
        return ""

    def _take(self, call: Call, completion: Completion) -> None:
        """Enter what the engine answered into the call's record, and its cost into the question's."""
        self.cost.prompt_tokens += completion.prompt_tokens - len(call.prompt_ids)
        self.cost.generated_tokens += completion.generated_tokens
        call.generation = completion.generation
        call.prompt_tokens, call.generated_tokens = completion.prompt_tokens, completion.generated_tokens
        if not completion.generated_tokens and not completion.text:
            call.status, call.error = Status.ENGINE_ERROR, f"no token generated ({call.generation.stop_reason})"
        elif call.generation.stop_reason in ABORTED:
            call.status = Status.ENGINE_ERROR
            call.error = f"the engine aborted the output after {call.generated_tokens} tokens"
        else:
            call.text, call.reasoning = completion.text, completion.reasoning
            call.messages = list(completion.sent) or call.messages

    def _finish(self, call: Call, agent: Agent, inputs: dict[str, Any]) -> Call:
        cut = call.generation.stop_reason == "length"
        try:
            call.value = agent.read(call.text, cut, **inputs)
        except Unparsable as problem:
            call.unparsable, call.status, call.error = problem, Status.UNPARSABLE, str(problem)
            call.value = problem.fallback if problem.has_fallback else None
        if call.unparsable is None and cut:
            call.status, call.error = Status.TRUNCATED, "the output reached max_tokens"
        if agent.actions is not None and agent.trained and call.generation.token_ids:
            locate = self.model_of(call.agent).locate
            call.actions = locate(call.generation.token_ids, call.text, agent.actions(call.text))
        if agent.penalty is not None:
            try:
                reward, metrics = agent.penalty(call.text, call.value, call.unparsable is None, **inputs)
                call.reward_specific, call.metrics = float(reward), {k: float(v) for k, v in metrics.items()}
                if not math.isfinite(call.reward_specific):
                    raise ValueError(f"the agent-specific reward {call.reward_specific} is not finite")
            except Exception as error:
                raise BrokenReward(
                    f"the penalty of agent {call.agent!r}, {place_of(agent.penalty)}, raised {error!r} on output "
                    f"{call.text!r:.500}"
                ) from error
        return call

    async def tool(
        self, call_id: CallId, stream: Stream, name: str, arguments: dict[str, Any], after: tuple[Call, ...] = ()
    ) -> ToolRecord:
        """The recorded tool call, or a new one with a timeout per attempt and bounded retries."""
        self._admit()
        key = (call_id, stream)
        if key not in self._tools:
            self._records[key] = copy.deepcopy(arguments)
            record = ToolRecord(call_id, stream, name, self._records[key], after)
            self._tools[key] = asyncio.ensure_future(self._run_tool(record))
        else:
            await asyncio.sleep(0)
        return await self._share(self._tools[key])

    async def _run_tool(self, record: ToolRecord) -> ToolRecord:
        with self.clock.waiting(f'call of tool "{record.name}"'):
            try:
                return await attempt(record, self.tools[record.name], self.limits, self.cost, self.threads)
            except asyncio.CancelledError:
                if self.closed:
                    raise
                record.failure = f"tool {record.name!r}: {ABANDONED}"
                return record

    @property
    def busy(self) -> int:
        """Number of tool calls (waits between attempts included) and recalls under way."""
        return sum(not task.done() for task in (*self._tools.values(), *self._recalled.values()))

    def _admit(self) -> None:
        if self.closed:
            raise asyncio.CancelledError

    async def close(self) -> None:
        """Cancel everything that still runs, after an abort or in branches that a failed sibling left behind.

        Sessions that still run, or start after this, end with `CancelledError`.
        """
        self.closed = True
        started = (*self._calls.values(), *self._tools.values(), *self._recalled.values())
        running = [task for task in started if not task.done()]
        for task in running:
            task.cancel()
        if running:  # a tool that ignores its cancellation must not hold up the training
            await asyncio.wait(running, timeout=CLOSE_TIMEOUT)


def _beginning(call: Call) -> Call:
    """The call with which a sequence of calls that continue each other begins."""
    while call.continues is not None:
        call = call.continues
    return call
