"""Writes rows into TransferQueue; questions that end at nearly the same time share a request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_ext.trainer.row import Row, pack

# Seconds in which questions that end are gathered. A request costs milliseconds of the event loop whatever its size:
# for the tiny model, one per question was two fifths of what that loop did.
GATHER = 0.02


@dataclass
class Ended:
    """A question whose sampling has ended; `stored` is resolved when TransferQueue has it."""

    uid: str
    partition: str
    rows: list[Row]
    stored: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RowWriter:
    """All methods are for one event loop."""

    def __init__(self) -> None:
        self._ended: list[Ended] = []
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, uids: list[str], partition: str) -> None:
        """Let verl know that these questions are being sampled."""
        await _set_status(uids, partition, "running")

    async def end(self, uid: str, partition: str, rows: list[Row]) -> None:
        """Store a question's rows and then its status: "finished", or "failure" if there are none.

        Raises:
            Exception: TransferQueue raised it; no question of the request has a status then.
        """
        ended = Ended(uid, partition, rows)
        self._ended.append(ended)
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        await asyncio.shield(ended.stored)  # a cancellation of one must not fail those that share its request

    async def settled(self) -> None:
        """Wait until the rows of all questions that have ended are stored, or could not be."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._ended:
            await asyncio.sleep(GATHER)
            taken, self._ended = self._ended, []
            for partition in dict.fromkeys(ended.partition for ended in taken):
                await _store([ended for ended in taken if ended.partition == partition], partition)
        self._writing = None


async def _store(group: list[Ended], partition: str) -> None:
    try:
        rows = [row for ended in group for row in ended.rows]
        if rows:
            await tq.async_kv_batch_put(
                keys=[row.key for row in rows],
                fields=list_of_dict_to_tensordict([row.fields for row in rows]),
                tags=[pack(row.tag) for row in rows],
                partition_id=partition,
            )
        for status, with_rows in (("finished", True), ("failure", False)):
            await _set_status([ended.uid for ended in group if bool(ended.rows) is with_rows], partition, status)
    except Exception as error:  # raised again where the rows are waited for
        for ended in group:
            ended.stored.set_exception(error)
    else:
        for ended in group:
            ended.stored.set_result(None)


async def _set_status(uids: list[str], partition: str, status: str) -> None:
    if uids:
        tags = [{"status": status} for _ in uids]
        await tq.async_kv_batch_put(keys=uids, tags=tags, partition_id=partition)
