"""Context, the `ctx` of a workflow: calls, tools, branches, sub-workflows, memory, reproducible randomness."""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from verl_ext.mas import chat_context
from verl_ext.mas.chat_context import ChatContext
from verl_ext.mas.noise import derive_seed
from verl_ext.mas.tool_calls import check_tool
from verl_ext.mas.types import Call, CallFailed, CallId, Invocation, Status, Task
from verl_ext.mas.workflow import Workflow
from verl_ext.mas.works import Work
from verl_ext.memory import Memory, Use
from verl_ext.tracebacks import place_of

if TYPE_CHECKING:
    from verl_ext.mas.agent import Agent
    from verl_ext.mas.session import Session

T = TypeVar("T")
OWN_FILES = (__file__, chat_context.__file__)  # a line of the workflow is the first outside of these


class Context(ChatContext):
    """The interface of a workflow: `call`, `tool`, `branch`, `run`, `recall`, `remember`, `note` and `rng`.

    The first four, `chat` and `resume` are ordinary functions that return coroutines: a call's identity and
    dependencies are fixed when the workflow makes it, not when the event loop starts it. Otherwise, under
    `asyncio.gather`, a recorded answer could arrive before the next sibling starts, which would seem to depend on it.
    """

    def __init__(self, session: Session, workflow: Workflow, scope: tuple[str, ...] = (), frontier: Any = ()):
        self._session = session
        self._workflow = workflow
        self._scope = scope
        self._turns: Counter[str] = Counter()
        self._rng: random.Random | None = None
        # Calls whose results the next call depends on: the last one, or the ends of the branches since.
        self.frontier: list[Call] = list(frontier)
        self._entry = list(frontier)
        self._work = Work()  # to which this scope belongs: the run, a branch or a sub-workflow

    @property
    def session(self) -> Session:
        """The run of the workflow."""
        return self._session

    @property
    def agents(self) -> dict[str, Any]:
        """The agents of the workflow that runs in this scope."""
        return self._workflow.agents

    @property
    def rng(self) -> random.Random:
        """Randomness that a replay reproduces: seeded by question, trajectory root and scope."""
        if self._rng is None:
            root = self._session.trajectory.stream.lineage()[0].name
            self._rng = random.Random(derive_seed(self._session.forest.seed, "rng", root, *self._scope))
        return self._rng

    def _next_id(self, name: str) -> CallId:
        call_id = CallId(self._scope, name, self._turns[name])
        self._turns[name] += 1
        return call_id

    def call(self, agent: str, /, *, parents: list[Call] | None = None, **inputs: Any) -> Coroutine[Any, Any, Any]:
        """Let `agent` answer and return its parsed value.

        Args:
            agent: a key of the workflow's `agents`.
            parents: calls whose output this prompt uses, where that is not simply "the calls before it".
            inputs: handed to the agent's prompt, parser and penalty.

        Raises:
            CallFailed: time-out, prompt too long, engine failure, unparsable output without a fallback, or output that
                was cut off where `mas.failure.truncated` is set.
            ValueError: unknown agent.
            TypeError: an input is a coroutine that was not awaited.
        """
        role, before = self._known(agent), list(self.frontier)
        edges = before if parents is None else list(parents)
        invocation = Invocation(self._next_id(agent), role, inputs, before, edges)
        return self._made(invocation, self._call(invocation))

    def _known(self, agent: str) -> Agent:
        if agent not in self.agents:
            allowed = ", ".join(sorted(self.agents))
            raise ValueError(f"unknown agent {agent!r}; this workflow's agents are: {allowed}")
        return self.agents[agent]

    def resume(self, call: Call, observation: str, /, **inputs: Any) -> Coroutine[Any, Any, Any]:
        """Let the agent of `call` go on after its output and `observation`, token by token in the same sequence.

        For example after a tool's result, in one sequence of reasoning. Generated text is not encoded again, and the
        observation does not train. The new output counts as the agent's next turn; all of them train as one sequence.

        Args:
            call: a call of this workflow that produced text, e.g. `ctx.last` after `ctx.call`.
            observation: appended to the output as it is. Text that looks like a special token is encoded as text.
            inputs: handed to the agent's parser and penalty, which see the new output alone.

        Raises:
            CallFailed: as `call`; `prompt_too_long` if the sequence has no room left.
            ValueError: `call` has produced nothing.
        """
        if not call.status.trainable:
            raise ValueError(f"call {call.id} has produced nothing to go on from: {call.status.value}")
        before = list(self.frontier)
        parents = before if call in before else [*before, call]
        agent = self.agents[call.agent]
        invocation = Invocation(self._next_id(call.agent), agent, inputs, before, parents, call, observation)
        return self._made(invocation, self._call(invocation))

    def _made(self, invocation: Invocation, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        try:
            self._check_awaited(f"agent {invocation.id.agent!r}", invocation.inputs)
        except TypeError:
            work.close()
            raise
        return self._watched(work, f"call {invocation.id}", Work())

    def _watched(self, task: Coroutine[Any, Any, Any], what: str, work: Work) -> Coroutine[Any, Any, Any]:
        """`task`, which the session remembers, to name the line of the workflow that forgot to await it."""
        caller = sys._getframe(2)
        while caller.f_back is not None and caller.f_code.co_filename in OWN_FILES:
            caller = caller.f_back
        work.number = len(self._session.made)
        settled = self._session.works.settled(task, work, self._work)
        self._session.made.append((settled, what, f"{caller.f_code.co_filename}:{caller.f_lineno}"))
        return settled

    def _check_awaited(self, whose: str, inputs: dict[str, Any]) -> None:
        """Refuse a coroutine as an input: its prompt would contain "<coroutine object …>"."""
        for name, value in inputs.items():
            if inspect.iscoroutine(value):
                made = [f"{what}, made at {place}" for one, what, place in self._session.made if one is value]
                raise TypeError(f"the input {name!r} of {whose} was never awaited: {(made or [repr(value)])[0]}")

    async def _answered(self, invocation: Invocation) -> Call:
        """The answered call.

        Raises:
            CallFailed: it gave nothing to go on with.
        """
        call = await self._session.call(invocation)
        self.advance(invocation.parents, [call])
        if not call.status.trainable:
            raise CallFailed(call.status, f"agent {call.agent!r}: {call.error}")
        cut_off = call.generation.stop_reason == "length"
        if cut_off and Status.TRUNCATED.value in self._session.forest.failure_rewards:
            raise CallFailed(Status.TRUNCATED, f"agent {call.agent!r}: the output reached max_tokens")
        if call.unparsable is not None and not call.unparsable.has_fallback:
            raise CallFailed(call.status, f"agent {call.agent!r}: {call.unparsable}") from call.unparsable
        return call

    async def _call(self, invocation: Invocation) -> Any:
        call = await self._answered(invocation)
        try:
            return copy.deepcopy(call.value)  # trajectories that share the call must not share what they may change
        except Exception as error:
            raise TypeError(
                f"the parser {place_of(self.agents[call.agent].parse)} of agent {call.agent!r} returned "
                f"{type(call.value).__name__}, which cannot be copied ({error}): let it return plain data"
            ) from error

    @property
    def last(self) -> Call:
        """The call that was answered last in this scope, e.g. for `parents=[...]` of a later one.

        Raises:
            ValueError: there is none yet, or several concurrent ones: which came last would depend on timing.
        """
        if len(self.frontier) != 1:
            several = ", ".join(sorted(str(call.id) for call in self.frontier)) or "no call has been answered yet"
            raise ValueError(f"ctx.last is one call, but here the last are: {several}. Remedy: ask inside each branch")
        return self.frontier[0]

    def tool(self, tool: str, /, **arguments: Any) -> Coroutine[Any, Any, Any]:
        """Call a tool and return its result (a copy of one's own).

        Raises:
            ToolFailed: it failed after its bounded retries; catch it to go on without the result.
            ValueError: unknown tool, or arguments that it does not have.
        """
        check_tool(tool, self._session.forest.tools, arguments)
        self._check_awaited(f"tool {tool!r}", arguments)
        call_id = self._next_id(f"tool:{tool}")
        work = self._session.tool(call_id, tool, arguments, list(self.frontier))
        return self._watched(work, f"call {call_id}", Work())

    def note(self, name: str, value: Any) -> None:
        """Attach a value to this trajectory (`Trajectory.notes`), for logs and evaluation.

        A second note of the same name replaces the first. Notes do not change the run.

        A list of documents (mappings with a "title") is scored by `verl_ext evaluate` against the question's
        gold titles, e.g. `ctx.note("chosen", chosen)`.
        """
        self._session.trajectory.notes["/".join((*self._scope, name))] = copy.deepcopy(value)

    async def recall(self, agent: str, query: str) -> list[Memory]:
        """The memories of `agent` that are most similar to `query`, best first; none where `mas.memory` is not set.

        They are those of the end of the previous training step: nothing that trajectories of this step have handed
        over is among them.
        """
        with self._session.works.under_way():
            return await self._session.forest.recall(agent, query)

    def remember(
        self, agent: str, query: str, output: str, plan: Sequence[str] = (), recalled: Sequence[Memory] = ()
    ) -> None:
        """Record an agent's part in this trajectory, from which its memory evolves if `mas.memory` is set.

        Args:
            agent: whose memory; `recall` finds it under the same name.
            query: what the agent was asked.
            output: its answer.
            plan: names of the tools or agents it called, in order; empty if it answered by itself.
            recalled: the memories that stood in its prompt.
        """
        place = (*self._scope, agent)
        use = Use(agent, query, tuple(plan), output, tuple(memory.id for memory in recalled))
        uses = self._session.trajectory.uses
        uses[(*place, f"{sum(other[:-1] == place for other in uses):06d}")] = use

    def branch(self, name: str, run: Callable[..., Awaitable[T]], /, *args: Any) -> Coroutine[Any, Any, T]:
        """Run `run(context, *args)` as a named branch, e.g. several under `asyncio.gather`.

        Its calls depend on what came before the branch; the next call after the branches depends on all their ends.
        """
        child = Context(self._session, self._workflow, self._branch_scope(name), self.frontier)
        return self._watched(self._join(child, run(child, *args)), f"branch {name!r}", child._work)

    def run(self, workflow: Workflow, task: Task, name: str | None = None) -> Coroutine[Any, Any, Any]:
        """Run another workflow as a sub-system in its own scope; forks work inside it, too."""
        scope = self._branch_scope(name or type(workflow).__name__)
        child = Context(self._session, workflow, scope, self.frontier)
        what = f"workflow {name or type(workflow).__name__!r}"
        return self._watched(self._join(child, workflow.run(task, child)), what, child._work)

    def _branch_scope(self, name: str) -> tuple[str, ...]:
        if not name or set(name) & set("/#*"):
            raise ValueError(f"the branch name {name!r} must not be empty nor contain /, # or *, which have a meaning")
        again = self._next_id(f"branch:{name}").turn
        return (*self._scope, f"{name}#{again}" if again else name)

    async def _join(self, child: Context, work: Awaitable[T]) -> T:
        try:
            return await work
        finally:
            if child.frontier != child._entry:
                self.advance(child._entry, child.frontier)

    def advance(self, consumed: list[Call], produced: list[Call]) -> None:
        """Calls have been answered: the next one depends on them, and no longer on what they have used."""
        kept = [call for call in self.frontier if call not in consumed and call not in produced]
        self.frontier = kept + produced
