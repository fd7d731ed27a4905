"""Deterministic scheduling: calls go to the engine in waves whose content and order do not depend on timing.

Sampling noise depends on what a call is, not on when it runs; but which requests share a forward pass changes the last
bits of its logits. Here a call waits until nothing else can happen without the engine (every trajectory waits for a
generation, no tool runs, nothing is recalled), then all waiting calls go out together, ordered by their keys. The price
is a barrier per wave; the default scheduling has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from verl_ext.mas.types import Generation
from verl_ext.trainer.rollout.llm import ServedLLM, to_generation

# Turns of the event loop without news after which nothing is about to happen: coroutines between two calls of a
# workflow (futures, gather, branches) need a handful each.
QUIET_TURNS = 64


class WaveLLM(ServedLLM):
    """`ServedLLM` with fixed scheduling. Needs servers with `generate_wave` (rollout.name=hf).

    Args:
        servers: handles of the replicas, in rank order; a wave is dealt out to them in key order.
        busy: number of tool calls and recalls in flight; a wave waits for them.
    """

    def __init__(self, *args: Any, servers: list[Any], busy: Callable[[], int], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.servers = servers
        self.busy = busy
        self._waiting: dict[tuple[str, ...], tuple[dict[str, Any], asyncio.Future[Generation]]] = {}
        self._conductor: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        """Wait for the next wave and its result."""
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        request = {"prompt_ids": prompt_ids, "sampling_params": self.request(sampling), "request_id": "/".join(key)}
        self._waiting[key] = (request, future)
        if self._conductor is None or self._conductor.done():
            self._conductor = asyncio.ensure_future(self._conduct())
        return await future

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

    async def _send(self, wave: dict[tuple[str, ...], tuple[dict[str, Any], asyncio.Future[Generation]]]) -> None:
        """Deal the wave out. Nobody goes on before all servers have answered, and then in key order."""
        ordered, n = [wave[key] for key in sorted(wave)], len(self.servers)
        shares = [[request for request, _ in ordered[rank::n]] for rank in range(min(n, len(ordered)))]
        answers = await asyncio.gather(*[_serve(s, share) for s, share in zip(self.servers, shares, strict=False)])
        for position, (_, future) in enumerate(ordered):
            result = answers[position % n][position // n]
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


async def _serve(server: Any, share: list[dict[str, Any]]) -> list[Generation | Exception]:
    try:
        outputs = await server.generate_wave.remote(share)
        if len(outputs) != len(share):
            raise RuntimeError(f"the server answered {len(outputs)} of {len(share)} requests")
        return [output if isinstance(output, Exception) else to_generation(output) for output in outputs]
    except Exception as error:  # every call of the share learns why; none hangs
        return [error] * len(share)
