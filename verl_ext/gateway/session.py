"""GatewaySession: the requests of one program, in one trajectory, as calls of the workflow's session.

The identity of a request is the agent and what it asks (`CallId.content`), not the order of arrival: of a program that
asks several things at once nothing else is known. A fork runs the program again. A request that the trajectory it forks
from has made, and that depends on nothing sampled anew, is answered from the record.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from verl_ext.gateway.errors import ApiError, ClientLeft, ended, of_failure
from verl_ext.gateway.ledger import Entry, Ledger
from verl_ext.gateway.pace import Pace
from verl_ext.gateway.quoting import Answer, Asked, named_calls, quoted_calls
from verl_ext.gateway.replay import Replay
from verl_ext.gateway.requests import ChatRequest, digest, histories
from verl_ext.gateway.responses import Given
from verl_ext.gateway.running import result_of, run_process
from verl_ext.gateway.settings import GatewaySection
from verl_ext.mas.chat import Reply, assistant
from verl_ext.mas.context import Context, check_tool
from verl_ext.mas.types import Call, CallFailed, CallId, Task, ToolFailed, ancestors
from verl_ext.mas.workflow import Workflow

# In place of a result that was not posted.
NOTHING = object()


class GatewaySession:
    """One run of a program.

    Args:
        ctx: the workflow's context, in which nothing else is asked.
        workflow: whose agents answer.
        settings: of `mas.gateway`.
        pace: tells when the program has asked all that it asks at once.
    """

    def __init__(self, ctx: Context, workflow: Workflow, settings: GatewaySection, pace: Pace):
        self.ctx, self.workflow, self.settings, self.pace = ctx, workflow, settings, pace
        self.session, self.forest = ctx.session, ctx.session.forest
        self.ledger = Ledger.of(self.forest)
        self.replay = Replay(self.session.trajectory.stream, self.ledger)
        self.log = self.replay.log
        # By identity: the calls that are made, what has been given to the program, and what was answered, failures too.
        self.made: dict[CallId, asyncio.Task[Reply]] = {}
        self.given: dict[CallId, Answer] = {}
        self.answered: set[CallId] = set()
        self._found: list[Answer] = []
        self._asked: Counter[tuple[str, str]] = Counter()
        # What was sampled, by the history that ends with it.
        self._sampled: dict[str, str] = {}
        self._outstanding = 0
        self.over = False
        # What a program in another process has posted as its result.
        self.posted: Any = NOTHING
        self.processes: list[asyncio.Task[str]] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The failure with which the last request, or call of a tool, was answered, if it was.
        self.last_failure: CallFailed | None = None

    # The program's requests.

    async def begin(self) -> None:
        """Wait until it is known what this run shares with the one that it forks from."""
        await self.replay.ready()
        self.pace.begin(lambda: self._outstanding > 0, self.log.begun.set, self._count)

    async def chat(self, request: ChatRequest, left: Callable[[], Awaitable[bool]]) -> Given:
        """The answer to a request.

        Args:
            left: whether the client has gone away. An answer that the program has never seen is recorded, but nothing
                depends on it: it gets no reward and does not train.

        Raises:
            ApiError: the call failed, or the trajectory has ended.
            ClientLeft: nobody waits for the answer.
        """
        self._check_open()
        entry = self._enter(request.agent, request.digest, request.content)
        entry.frontier = list(self.ctx.frontier)
        asked = Asked(request.messages)
        answers = self.given.values()
        entry.used = list(dict.fromkeys([*quoted_calls(answers, asked), *named_calls(answers, asked)]))
        self._outstanding += 1
        self.pace.asked()
        work = asyncio.ensure_future(self._make(entry, request, asked))
        self.made[entry.id] = work
        try:
            reply = await asyncio.shield(work)
            await self._settle(entry)
            gone = await left()
        except CallFailed as failure:
            self.last_failure = failure
            self.answered.add(entry.id)
            if (call := self.session.call_of(entry.id)) is not None:
                self.ctx.advance(list(call.parents), [call])
            if self.session.ending is not None:
                self.fail(self.session.ending)
            raise of_failure(failure) from failure
        except asyncio.CancelledError:
            if self.session.ending is not None:
                self.fail(self.session.ending)
            raise ended() from None
        except Exception as error:
            self.fail(error)
            raise ApiError(500, f"{type(error).__name__}: {error}", "internal") from error
        finally:
            self._outstanding -= 1
            self.pace.news()
        self._check_open()
        if gone:
            self.answered.add(entry.id)
            self.remark("a client left before its answer was there, e.g. after a timeout: that answer does not train")
            raise ClientLeft
        return self._give(entry, request, reply)

    def _check_open(self) -> None:
        if self.over:
            raise ended()

    def _enter(self, agent: str, content: str, asked: str) -> Entry:
        """Give a request its identity and write it down."""
        call_id = CallId((), agent, self._asked[agent, content], content)
        self._asked[agent, content] += 1
        entry = self.log.entries[call_id] = Entry(call_id, asked, len(self.log.given))
        return entry

    async def _make(self, entry: Entry, request: ChatRequest, asked: Asked) -> Reply:
        parents, before = await self._dependencies(entry, asked)
        entry.parents = tuple(parent.id for parent in parents)
        return await Context(self.session, self.workflow, (), before).chat(
            request.agent,
            self._as_sampled(request),
            tools=request.tools,
            tool_choice=request.tool_choice,
            sampling=request.sampling,
            id=entry.id,
            parents=parents,
        )

    # What a request depends on.

    async def _dependencies(self, entry: Entry, asked: Asked) -> tuple[list[Call], list[Call]]:
        """The calls that a request uses, and those on which it may depend.

        Raises:
            CallFailed: the program asks what it did not ask in the run that it forks from.
        """
        known, same = self.replay.known(entry.id), self.replay.same_so_far(self.answered)
        if known is not None and known.parents is not None:
            recorded = await self._calls(known.parents)
            if recorded is not None:
                return recorded, recorded
        if known is None and same:
            raise self.session.diverge(self.replay.difference(entry))
        told = self.replay.fork if self.replay.fork in self.answered else None
        forked = None if told is None else self.session.call_of(told)
        found = quoted_calls(self._found, asked)
        parents = await self._used(entry)
        before = ancestors(parents)
        parents = [*parents, *(call for call in found if call not in before)]
        return parents, list(dict.fromkeys([*parents, *entry.frontier, *([] if forked is None else [forked])]))

    async def _used(self, entry: Entry) -> list[Call]:
        """The calls that a request quotes or names, and in doubt those answered before it that nothing else quotes.

        An edge too many costs a sample; without a true one a fork would share what has to be sampled anew.
        """
        parents = entry.used or entry.frontier
        before = ancestors(parents)
        if doubtful := [call for call in entry.frontier if call not in before]:
            await self.pace.all_asked()
            used = self.log.used_beside(entry)
            parents = [*parents, *(call for call in doubtful if call not in used)]
        return parents

    async def _calls(self, ids: tuple[CallId, ...]) -> list[Call] | None:
        """The calls of this run with these identities, failed ones too; None if it has not made one of them."""
        if not all(call_id in self.made for call_id in ids):
            return None
        works = [self.made[call_id] for call_id in ids]
        await asyncio.wait(works) if works else None
        calls = [call for call_id in ids if (call := self.session.call_of(call_id)) is not None]
        return calls if len(calls) == len(ids) else None

    # When an answer is given.

    async def _settle(self, entry: Entry) -> None:
        """Wait until the program has asked all that it asks without this answer, and been given what comes first."""
        held = False
        while not self.over:
            missing, early = self.replay.missing(), self.replay.early(entry.id, self.answered)
            if held and not early:
                self.pace.restart()  # what it has just been given may lead it to ask
            held = early
            if not early and not missing:
                if self.pace.quiet:
                    return
                if self.replay.same_so_far(self.answered) and self.replay.known(entry.id) is not None:
                    return  # the base says what is asked at once
            if missing and self.pace.patient_no_more:
                self.replay.give_up()
                continue
            await self.pace.change()

    def _give(self, entry: Entry, request: ChatRequest, reply: Reply) -> Given:
        """Write down that the program is given an answer."""
        call = reply.call
        self.last_failure = None
        stop = next((stop for stop in request.sampling.get("stop", ()) if (reply.content or "").endswith(stop)), "")
        content = (reply.content or "").removesuffix(stop)
        self.answered.add(entry.id)
        self.given[entry.id] = Answer.of(call, content, reply.tool_calls)
        *_, history = histories(request.agent, [*request.messages, assistant(content, reply.tool_calls)])
        self._sampled[history] = reply.content or ""
        self.log.given.append(call)
        self.ctx.advance(list(call.parents), [call])
        self.replay.follow(self.given)
        created = self.ledger.created.setdefault(call, int(time.time()))
        name = digest("/".join((str(self.forest.seed), *call.stream.path, str(call.id))))
        self.pace.news()
        return Given(reply, content, stop, name, created)

    def _as_sampled(self, request: ChatRequest) -> list[dict[str, Any]]:
        """The messages with earlier answers as they were sampled, where the program has them without blanks or stops.

        So that they go on token by token.
        """
        places = zip(request.messages, histories(request.agent, request.messages), strict=True)
        return [{**one, "content": self._sampled.get(history, one["content"])} for one, history in places]

    # Tools, rewards, the end.

    async def tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool of `mas.tools`, recorded and replayed as `Context.tool`."""
        self._check_open()
        check_tool(name, self.forest.tools, arguments)
        asked = json.dumps(arguments, ensure_ascii=False, sort_keys=True, default=repr)
        entry = self._enter(f"tool:{name}", digest(asked), asked)
        known = self.replay.known(entry.id)
        after = await self._calls(known.parents) if known is not None and known.parents is not None else None
        if after is None:
            after = list(self.ctx.frontier)
        entry.parents = tuple(call.id for call in after)
        try:
            result = await self._work(self.session.tool(entry.id, name, copy.deepcopy(arguments), after))
        except ToolFailed as failure:
            self.last_failure = failure
            raise
        self.last_failure = None
        self._found += [Answer.found(call, result) for call in after]
        return result

    async def _work(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except asyncio.CancelledError:
            if self.session.ending is not None:
                self.fail(self.session.ending)
            raise

    async def run_process(self, command: list[str], task: Task, environment: dict[str, str], folder: str | None) -> Any:
        """The result of a program in a process of its own, which ends with the session at the latest."""
        self._check_open()
        given = {name: getattr(task, name) for name in ("question", "data_source", "index", "extra")}
        text = json.dumps(given, ensure_ascii=False, default=str)
        most = self.settings.max_body
        work = asyncio.ensure_future(run_process(command, text, environment, folder, most))
        self.processes.append(work)
        output = await work
        return result_of(output) if self.posted is NOTHING else self.posted

    def reward(self, agent: str, value: float) -> None:
        """Give an agent a reward of its own in this trajectory; the last one counts.

        Raises:
            ValueError: unknown agent, or a value that is no finite number.
        """
        if agent not in self.workflow.agents:
            allowed = ", ".join(sorted(self.workflow.agents))
            raise ValueError(f"unknown agent {agent!r}; this workflow's agents are: {allowed}")
        number = float(value)
        if number - number != 0:
            raise ValueError(f"the reward {value!r} of agent {agent!r} is not finite")
        self.session.trajectory.agent_rewards[agent] = number

    def remark(self, text: str) -> None:
        """Tell the user something about the program; once in a run."""
        if (said := f"gateway: {text}") not in self.forest.remarks:
            self.forest.remarks.append(said)

    def fail(self, error: BaseException) -> None:
        """End the program with this error."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # retrieved

    async def close(self) -> None:
        """End the session: what is still asked is refused."""
        self.over = True
        self.pace.end()
        self.log.begun.set()
        left: list[asyncio.Task[Any]] = [*self.made.values(), *self.processes]
        left = [work for work in left if not work.done()]
        for work in left:
            work.cancel()
        if left:
            await asyncio.wait(left, timeout=5.0)
        self.pace.news()

    def _count(self, change: int) -> None:
        self.forest.programs += change
