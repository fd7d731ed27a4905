"""Forest: all calls and trajectories of one question. Each call is generated once and recorded for replays."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verl_ext.mas.agent import Agent, Unparsable
from verl_ext.mas.chat import ChatRequest
from verl_ext.mas.chat_answers import NoToolCall, read_answer
from verl_ext.mas.limits import Limits
from verl_ext.mas.llm import LLM, TokenLLM
from verl_ext.mas.noise import call_seed
from verl_ext.mas.options import as_number
from verl_ext.mas.prompt_tokens import enter_prompt
from verl_ext.mas.stopwatch import Stopwatch
from verl_ext.mas.tool_calls import Cost, attempt
from verl_ext.mas.turns import Turns, size_of
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
        turns: in which prompts are made, and answers are read; shared likewise.
        memory: (agent, query) -> the memories that the agent recalls; always the same answer, from any thread. None:
            there is no memory.
        adapters: name of each agent's adapter ("" is the base alone; None: its policy has none); None: there are none.
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
    turns: Turns = field(default_factory=Turns)
    memory: Callable[[str, str], list[Memory]] | None = None
    adapters: Mapping[str, str | None] | None = None
    models: Mapping[str, LLM] = field(default_factory=dict)
    failure_rewards: Mapping[str, float] = field(default_factory=dict)
    trajectories: list[Trajectory] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    # Trajectories that diverged and were replaced by independent ones.
    replaced: list[Trajectory] = field(default_factory=list)
    # What a workflow keeps for all trajectories of the question, by a name of its own.
    kept: dict[str, Any] = field(default_factory=dict)
    # What the user should be told once, beside failures.
    remarks: list[str] = field(default_factory=list)
    # Programs that run and have not yet asked all that they ask next.
    programs: int = 0
    # Trajectories that were begun, and the seconds that they have taken together, pauses not included.
    begun: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._calls: dict[tuple[CallId, Stream], asyncio.Task[Call]] = {}
        # Messages of agent calls and arguments of tool calls, as they were made.
        self._records: dict[tuple[CallId, Stream], Any] = {}
        self._tools: dict[tuple[CallId, Stream], asyncio.Task[ToolRecord]] = {}
        self._recalled: dict[tuple[str, str], asyncio.Task[list[Memory]]] = {}
        self._waiting: Counter[asyncio.Task[Any]] = Counter()
        self._forgotten: list[asyncio.Task[Any]] = []
        self._reading = 0
        self._ends: dict[Stream, asyncio.Event] = {}
        self.closed = False

    def model_of(self, agent: str) -> LLM:
        """The model of the policy that answers for an agent, and that trains on its calls."""
        return self.models[agent] if self.models else self.llm

    def end_of(self, stream: Stream) -> asyncio.Event:
        """Set when the trajectory in this stream has ended."""
        return self._ends.setdefault(stream, asyncio.Event())

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

    async def call(self, invocation: Invocation, stream: Stream, asked: list[dict[str, Any]] | ChatRequest) -> Call:
        """The recorded call, or a new one. Failures are recorded too: a replay meets the same failed call."""
        self._admit()
        key = (invocation.id, stream)
        if key in self._calls:
            self.cost.replayed_calls += 1
            await asyncio.sleep(0)  # a turn of the event loop, like a new call: concurrent siblings all start first
        else:
            record = copy.deepcopy(asked)  # a prompt function may hand out a chat history that grows later
            chat = record if isinstance(record, ChatRequest) else None
            messages = record.messages if isinstance(record, ChatRequest) else record
            call = Call(invocation.id, stream, messages, invocation.continues, invocation.observation, chat)
            call.trained, call.parents = invocation.agent.trained, tuple(invocation.parents)
            call.depth = 1 + max((parent.depth for parent in call.parents), default=-1)
            self._records[key] = record
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

    def forget(self, call: CallId, stream: Stream) -> None:
        """A workflow has given up this agent call or tool call itself, and goes on: unless others wait, it is undone.

        A replay asks anew, and may give it up again. The record of a call that failed would be an answer in time.
        """
        made: dict[Any, Any]
        for made in (self._calls, self._tools):
            work = made.get((call, stream))
            if work is not None and not work.done() and not self._waiting[work]:
                self._forgotten.append(made.pop((call, stream)))

    async def _generate(self, call: Call, agent: Agent, inputs: dict[str, Any]) -> Call:
        await self.turns.take(size_of(call.messages))
        call.began = call.ended = time.time()
        sampling = {**self.sampling, **agent.sampling, "seed": call_seed(self.seed, call.stream, call.id)}
        llm = agent.llm or self.model_of(call.agent)
        if self.adapters is not None and agent.llm is None and (adapter := self.adapters[call.agent]) is not None:
            sampling["adapter"] = adapter
        if agent.choices is not None:
            call.decides, call.options = True, agent.options(**inputs)
            sampling["choices"] = list(call.options)
        self._apply_chat(call, sampling)
        call.error = enter_prompt(llm, call, sampling, self.limits)
        if call.error:
            call.status = Status.PROMPT_TOO_LONG
            return call
        if call.chat is not None and call.chat.tools:
            sampling.update(_tool_options(llm, call.chat))
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
            await self.turns.take()
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
            call.seconds, call.ended = self.clock.now() - start, time.time()
        self._take(call, completion)
        call.cost = agent.cost * call.generated_tokens
        if call.decides and not call.chosen:
            call.trained = False  # there was only one option, or another model than the policy chose
        return call if call.status is Status.ENGINE_ERROR else await self._finish(call, agent, llm, inputs)

    def _apply_chat(self, call: Call, sampling: dict[str, Any]) -> None:
        """Apply the chat's own sampling parameters. It cannot have more tokens than its agent."""
        if call.chat is not None:
            longest = sampling.get("max_tokens", math.inf)
            sampling.update(call.chat.sampling)
            if "max_tokens" in call.chat.sampling:
                sampling["max_tokens"] = min(longest, call.chat.sampling["max_tokens"])

    def _take(self, call: Call, completion: Completion) -> None:
        """Enter what the engine answered into the call's record, and its cost into the question's."""
        self.cost.prompt_tokens += completion.prompt_tokens - len(call.prompt_ids)
        self.cost.generated_tokens += completion.generated_tokens
        call.generation = completion.generation
        call.prompt_tokens, call.generated_tokens = completion.prompt_tokens, completion.generated_tokens
        call.tool_calls = completion.tool_calls
        if not completion.generated_tokens and not completion.text and not completion.tool_calls:
            call.status, call.error = Status.ENGINE_ERROR, f"no token generated ({call.generation.stop_reason})"
        elif call.generation.stop_reason in ABORTED:
            call.status = Status.ENGINE_ERROR
            call.error = f"the engine aborted the output after {call.generated_tokens} tokens"
        else:
            call.text, call.reasoning = completion.text, completion.reasoning
            call.messages = list(completion.sent) or call.messages

    async def _finish(self, call: Call, agent: Agent, llm: LLM, inputs: dict[str, Any]) -> Call:
        cut = call.generation.stop_reason == "length"
        try:
            call.value = await self._read(call, llm) if call.chat is not None else agent.read(call.text, cut, **inputs)
        except Unparsable as problem:
            call.unparsable, call.error = problem, str(problem)
            call.status = Status.NO_TOOL_CALL if isinstance(problem, NoToolCall) else Status.UNPARSABLE
            call.value = problem.fallback if problem.has_fallback else None
        if call.unparsable is None and cut:
            call.status, call.error = Status.TRUNCATED, "the output reached max_tokens"
        if agent.actions is not None and agent.trained and call.generation.token_ids:
            locate = self.model_of(call.agent).locate
            call.actions = locate(call.generation.token_ids, call.text, agent.actions(call.text))
        if agent.penalty is not None:
            try:
                reward, metrics = agent.penalty(call.text, call.value, call.unparsable is None, **inputs)
                call.reward_specific = as_number(reward, "the agent-specific reward")
                call.metrics = {k: as_number(v, f"the quantity {k!r}") for k, v in metrics.items()}
                if not math.isfinite(call.reward_specific):
                    raise ValueError(f"the agent-specific reward {call.reward_specific} is not finite")
            except Exception as error:
                raise BrokenReward(
                    f"the penalty of agent {call.agent!r}, {place_of(agent.penalty)}, raised {error!r} on output "
                    f"{call.text!r:.500}"
                ) from error
        return call

    async def _read(self, call: Call, llm: LLM) -> Any:
        self._reading += 1  # verl's tool parsers decode in a thread
        try:
            return await read_answer(call, llm)
        finally:
            self._reading -= 1

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
        """Number of tool calls (waits between attempts included), recalls, readings and programs under way."""
        running = sum(not task.done() for task in (*self._tools.values(), *self._recalled.values()))
        return running + self._reading + self.programs

    def _admit(self) -> None:
        if self.closed:
            raise asyncio.CancelledError

    async def close(self) -> None:
        """Cancel everything that still runs, after an abort or in branches that a failed sibling left behind.

        Sessions that still run, or start after this, end with `CancelledError`.
        """
        self.closed = True
        started = (*self._calls.values(), *self._tools.values(), *self._recalled.values(), *self._forgotten)
        running = [task for task in started if not task.done()]
        for task in running:
            task.cancel()
        if running:  # a tool that ignores its cancellation must not hold up the training
            await asyncio.wait(running, timeout=CLOSE_TIMEOUT)


def _tool_options(llm: LLM, chat: ChatRequest) -> dict[str, Any]:
    """Sampling parameters of a chat with tools: stop tokens, or for an engine without tokens the tools themselves."""
    if not isinstance(llm, TokenLLM):
        return {"tools": chat.tools, "tool_choice": chat.wire_choice}
    stops = llm.stop_tokens(chat) if chat.calls_tools else []
    return {"stop_token_ids": stops} if stops else {}
