"""GatewayWorkflow: an existing program, written for OpenAI's or Anthropic's API, as a workflow.

class Mine(GatewayWorkflow):
    agents = {"planner": Agent(), "solver": Agent()}      # a request's `model` names the agent

    async def program(self, task, endpoint):              # or a plain function, which runs in a thread
        client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        plan = await client.chat.completions.create(model="planner", messages=[…])
        docs = await endpoint.tool("search", queries=[task.question])     # recorded, as ctx.tool
        …
        endpoint.reward("planner", 0.5)                   # beside the shared reward; optional
        return answer

    def reward(self, task, result):                       # as of any workflow
        return float(result == task.ground_truth), {}
"""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from typing import Any

from verl_ext.gateway.endpoint import BlockingEndpoint, Endpoint
from verl_ext.gateway.pace import Pace
from verl_ext.gateway.running import PROGRAMS
from verl_ext.gateway.server import gateway_here
from verl_ext.gateway.session import NOTHING, GatewaySession
from verl_ext.gateway.settings import GatewaySection
from verl_ext.mas.context import Context
from verl_ext.mas.types import Task
from verl_ext.mas.workflow import Workflow
from verl_ext.tools.threads import in_thread


class GatewayWorkflow(Workflow):
    """A system whose agents are asked over HTTP by a program that knows nothing of verl_ext.

    The program runs once for each trajectory: a plain function in a thread of its own, where it may block; a coroutine
    function on an event loop that it shares with the other programs of the process, which it must not block. Its
    requests are recorded, and a fork runs it again with the earlier ones answered from the record. A program that asks
    something else then (a clock or a random id in a prompt) is from there on sampled without forks.

    Attributes:
        gateway: `mas.gateway`, which the trainer sets.
        quiet: seconds that stand for `mas.gateway.quiet: null`.
    """

    forks_after_end = True
    quiet = 0.02
    gateway: GatewaySection = GatewaySection()

    @abstractmethod
    def program(self, task: Task, endpoint: Endpoint) -> Any:
        """Work on one task, and return its result. A coroutine function, or a plain function.

        Args:
            endpoint: the address and the key under which the program asks the agents (`Endpoint`).
        """

    async def run(self, task: Task, ctx: Context) -> Any:
        """See `Workflow`.

        Raises:
            ValueError: another workflow runs it.
        """
        if ctx.session.forest.workflow is not self:
            raise ValueError(
                f"{type(self).__name__} is run by another workflow, but a program is recorded and forked as a whole "
                "trajectory. Remedy: ctx.call, ctx.chat or ctx.openai there, or one program that does all of it"
            )
        server = await gateway_here(self.gateway)
        session = GatewaySession(ctx, self, self.gateway, self.pace())
        try:
            await session.begin()
            with server.open(session) as key:
                return await self._run(task, session, server.url, key)
        finally:
            await session.close()

    async def _run(self, task: Task, session: GatewaySession, url: str, key: str) -> Any:
        program = self.program
        work: asyncio.Future[Any]
        if inspect.iscoroutinefunction(program):
            work = asyncio.ensure_future(PROGRAMS.run(program(task, Endpoint(session, url, key))))
        else:
            endpoint = BlockingEndpoint(session, url, key)
            work = asyncio.ensure_future(in_thread(lambda: program(task, endpoint)))
        try:
            await asyncio.wait([work, session.failed], return_when=asyncio.FIRST_COMPLETED)
            if session.failed.done():
                await session.failed
            return self._result(work, session)
        finally:
            work.cancel()
            await asyncio.wait([work])

    def _result(self, work: asyncio.Future[Any], session: GatewaySession) -> Any:
        """What the program returned. If it fails after a call of its has failed, that failure is the reason."""
        error = work.exception()
        if error is None:
            result = work.result()
            return session.posted if result is None and session.posted is not NOTHING else result
        if session.last_failure is not None:
            raise session.last_failure from error
        raise error

    def pace(self) -> Pace:
        """What tells when a program has asked all that it asks at once."""
        return Pace(self.quiet if self.gateway.quiet is None else self.gateway.quiet)

    def diverged(self, found: str) -> None:
        """From now on, sample independent trajectories; see `Workflow`."""
        self.forkable = False
