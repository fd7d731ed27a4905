"""Deterministic scheduling: calls go to the engine in waves whose content and order do not depend on timing.

Sampling noise depends on the identity of a call, not on its time. But the requests that share a forward pass change the
last bits of its logits. So a call waits here until every trajectory waits for a generation, no tool runs and no memory
is recalled. Then all waiting calls go to the engine together, ordered by their keys: a wave. Each wave is a barrier,
which makes this slower than the default scheduling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from verl_ext.mas.types import Generation
from verl_ext.trainer.rollout.llm import ServedLLM, to_generation

# Turns of the event loop without news after which nothing is about to happen: coroutines between two calls of a
# workflow (futures, gather, branches) need a handful each.
QUIET_TURNS = 64


class Waiting(NamedTuple):
    """A call that waits for the next wave: what it asks of which servers, and the future of its result."""

    request: dict[str, Any]
    servers: list[Any]
    future: asyncio.Future[Generation]


class WaveLLM(ServedLLM):
    """`ServedLLM` with fixed scheduling. Needs servers with `generate_wave` (rollout.name=hf).

    Args:
        servers: handles of the replicas, in rank order; a wave is divided among them in key order.
        busy: number of tool calls, recalls and waits for a turn under way; a wave waits for them.
        conductor: sends the waves, those of all policies of a run; None: one of its own.
    """

    def __init__(
        self,
        *args: Any,
        servers: list[Any],
        busy: Callable[[], int],
        conductor: Conductor | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.servers = servers
        self.conductor = conductor or Conductor(busy)

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        """Wait for the next wave and its result. If this is cancelled, the call is not sent, or aborted in the engine.

        That changes what shares forward passes with the others. But time limits depend on time anyway.
        """
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        request = {"prompt_ids": prompt_ids, "sampling_params": self.request(sampling), "request_id": "/".join(key)}
        self.conductor.add(key, Waiting(request, self.servers, future))
        try:
            return await future
        except asyncio.CancelledError:
            if not self.conductor.remove(key):  # it is in a wave; other servers than its own do not know it
                for server in self.servers:
                    server.abort_request.remote(request["request_id"])
            raise


class Conductor:
    """Gathers the calls of a wave, and sends it. With a conductor per policy, the content of a wave would depend on
    when the other policy's ends.

    Args:
        busy: number of tool calls, recalls and waits for a turn under way; a wave waits for them.
    """

    def __init__(self, busy: Callable[[], int]):
        self.busy = busy
        self._waiting: dict[tuple[str, ...], Waiting] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, key: tuple[str, ...], call: Waiting) -> None:
        """Let a call wait for the next wave."""
        self._waiting[key] = call
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._conduct())

    def remove(self, key: tuple[str, ...]) -> bool:
        """Take a call out of the next wave; False: it is in none that has not been sent."""
        return self._waiting.pop(key, None) is not None

    async def _conduct(self) -> None:
        while self._waiting:
            await self._quiet()
            wave, self._waiting = self._waiting, {}
            await self._send(wave)

    async def _quiet(self) -> None:
        """Return once no new call has arrived for a while of the loop's own time and nothing else is under way."""
        turns, seen = 0, len(self._waiting)
        while turns < QUIET_TURNS:
            await asyncio.sleep(0.001 if self.busy() else 0)
            changed = len(self._waiting) != seen or self.busy() > 0
            turns, seen = (0 if changed else turns + 1), len(self._waiting)

    async def _send(self, wave: dict[tuple[str, ...], Waiting]) -> None:
        """Send the wave to the servers. Once all have answered, the calls go on in the order of their keys."""
        ordered = [wave[key] for key in sorted(wave)]
        of_policy: dict[int, list[Waiting]] = {}
        for call in ordered:
            of_policy.setdefault(id(call.servers), []).append(call)
        answers = await asyncio.gather(*map(_divide, of_policy.values()))
        results = dict(zip(of_policy, map(iter, answers), strict=True))
        for call in ordered:
            result = next(results[id(call.servers)])
            if call.future.done():
                continue
            if isinstance(result, Exception):
                call.future.set_exception(result)
            else:
                call.future.set_result(result)


async def _divide(calls: list[Waiting]) -> list[Generation | Exception]:
    """Divide calls of one policy among its servers; returns their results, in the order of the calls."""
    servers, n = calls[0].servers, len(calls[0].servers)
    shares = [[call.request for call in calls[rank::n]] for rank in range(min(n, len(calls)))]
    answers = await asyncio.gather(*[_serve(s, share) for s, share in zip(servers, shares, strict=False)])
    return [answers[position % n][position // n] for position in range(len(calls))]


async def _serve(server: Any, share: list[dict[str, Any]]) -> list[Generation | Exception]:
    try:
        outputs = await server.generate_wave.remote(share)
        if len(outputs) != len(share):
            raise RuntimeError(f"the server answered {len(outputs)} of {len(share)} requests")
        return [output if isinstance(output, Exception) else to_generation(output) for output in outputs]
    except Exception as error:  # every call of the share learns why; none hangs
        return [error] * len(share)
