"""Rollout workers in processes of their own, on any node. One that dies is replaced: no question is lost or doubled.

A question is with its worker from the deal until its statistics are taken. If the worker dies before, what it has
stored of the question is removed from TransferQueue, and a new worker samples the question anew. What a checkpoint has
of a question that waits in the queue goes to the new worker as it is.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any, NamedTuple

import ray
import transfer_queue as tq
from omegaconf import DictConfig
from ray.exceptions import GetTimeoutError, RayActorError

from verl_ext.trainer import nodes
from verl_ext.trainer.rollout.node_tools import tools_of_node
from verl_ext.trainer.rollout.watchdog import Look
from verl_ext.trainer.rollout.worker import RolloutWorker
from verl_ext.trainer.state.waiting import Waiting

# Seconds in which a worker must answer.
ANSWER = 20.0
# Deaths a worker between two steps. More: something is wrong with the questions, or with the machines.
MOST_LOST = 3
# What a new worker is told of the state of the run.
STATE = ("set_memory", "set_heads")


@ray.remote
class RemoteRolloutWorker(RolloutWorker):
    """A `RolloutWorker` in a process of its own."""

    def __init__(self, config: DictConfig, client: Any, rank: int = 0):
        tq.init()
        super().__init__(config, client, rank, tools_of_node)


class Dealt(NamedTuple):
    """A question, and the worker that samples it, or holds what a checkpoint has of it."""

    question: dict[str, Any]
    validate: bool
    worker: Any
    held: Waiting | None = None


class RemoteWorkers:
    """The rollout workers of a run as Ray actors, which get the questions round robin.

    Args:
        config: verl's whole configuration.
        client: verl's client of the rollout servers.
        number: of workers.
    """

    def __init__(self, config: DictConfig, client: Any, number: int):
        self._config, self._client, self._names = config, client, count()
        place = nodes.place_of_rollout_workers()
        self._workers = [self._start(place) for _ in range(number)]
        self._next = 0
        self._dealt: dict[str, Dealt] = {}
        self._state: dict[str, tuple[Any, ...]] = {}
        self._lost: dict[Any, str] = {}  # dead worker -> why, in words
        self._news: list[str] = []
        self._replaced = 0

    def _start(self, place: dict[str, Any]) -> Any:
        """Start a worker. Its number names its requests: those of a dead one may still be under way."""
        number = next(self._names)
        # Two calls at a time: `look` while another method waits for the event loop.
        options = {"name": f"rollout_worker_{number}", "max_concurrency": 2, **place}
        actor: Any = RemoteRolloutWorker
        return actor.options(**options).remote(self._config, self._client, number)

    def submit(self, questions: list[dict[str, Any]], validate: bool) -> None:
        """Deal questions out. Those of a dead worker wait for `replace`."""
        shares = deal(questions, len(self._workers), self._next)
        self._next += len(questions)
        calls = [
            (worker, self._give(worker, share, validate))
            for worker, share in zip(self._workers, shares, strict=True)
            if share
        ]
        self._answers(calls)

    def _give(self, worker: Any, questions: list[dict[str, Any]], validate: bool) -> Any:
        self._dealt |= {str(question["uid"]): Dealt(question, validate, worker) for question in questions}
        return worker.submit.remote(questions, validate)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker; returns the answers of those that live."""
        if method in STATE:
            self._state[method] = arguments
        return self._answers([(worker, getattr(worker, method).remote(*arguments)) for worker in self._workers])

    def _answers(self, calls: list[tuple[Any, Any]]) -> list[Any]:
        answers = []
        for worker, call in calls:
            try:
                answers.append(ray.get(call))
            except RayActorError as error:
                self._lose(worker, error)
        return answers

    def _lose(self, worker: Any, error: RayActorError) -> None:
        if worker not in self._lost:
            self._lost[worker] = nodes.first_line(error)
            rank = self._workers.index(worker)
            self._news.append(f"rollout worker {rank} died, and a new one takes its place: {self._lost[worker]}")

    def news(self) -> list[str]:
        """Which workers have died since the last call, in words."""
        told, self._news = self._news, []
        return told

    def restore(self, questions: dict[str, Waiting], worker: Any = None) -> None:
        """Let a worker, the first one if none is given, hold these questions, which a checkpoint has."""
        holder = worker or self._workers[0]
        self._dealt |= {uid: Dealt({}, False, holder, held) for uid, held in questions.items()}
        ray.get(holder.restore.remote(questions))

    def stop(self, reason: str) -> None:
        """End the sampling of all questions; does not wait."""
        for worker in self._workers:
            worker.stop.remote(reason)

    def looks(self) -> list[Look]:
        """The state of the workers that live. Called from another thread than the trainer's."""
        found = []
        for worker, look in [(worker, worker.look.remote()) for worker in list(self._workers)]:
            try:
                found.append(ray.get(look, timeout=ANSWER))
            except GetTimeoutError:
                found.append(Look(ANSWER, blocked="  unknown: the worker's process does not answer\n"))
            except RayActorError as error:
                self._lose(worker, error)
        return found

    def replace(self) -> None:
        """Start a new worker on this node for each that has died, and let it sample the dead one's questions.

        Called while verl waits for rows, in its thread: what the queue holds of these questions is not taken meanwhile.

        Raises:
            RuntimeError: more than MOST_LOST deaths a worker since the last step, or one with what it had counted of
                questions that are taken from the queue already.
        """
        dead = [(position, worker) for position, worker in enumerate(self._workers) if worker in self._lost]
        self._replaced += len(dead)
        if self._replaced > MOST_LOST * len(self._workers):
            raise RuntimeError(
                f"{self._replaced} rollout workers died within one step; the last: {self._lost[dead[-1][1]]}. Remedy: "
                "see the workers' logs; a worker that outgrows the memory of its node dies in this way"
            )
        for position, worker in dead:  # they start at the same time
            ray.kill(worker)  # should it live after all, behind a broken connection: it must store nothing more
            self._workers[position] = self._start(nodes.this_node())
        for position, worker in dead:
            fresh = self._workers[position]
            for method, arguments in self._state.items():
                ray.get(getattr(fresh, method).remote(*arguments))
            ray.get(fresh.look.remote())
            self._deal_again(worker, fresh)

    def _deal_again(self, worker: Any, fresh: Any) -> None:
        lost = {uid: one for uid, one in self._dealt.items() if one.worker == worker}
        if held := {uid: one.held for uid, one in lost.items() if one.held is not None}:
            self.restore(held, fresh)
        for validate in (False, True):
            theirs = {uid: one for uid, one in lost.items() if one.held is None and one.validate is validate}
            if theirs:
                self._check_there(theirs, remove("val" if validate else "train", set(theirs)))
                ray.get(self._give(fresh, [one.question for one in theirs.values()], validate))

    def _check_there(self, dealt: dict[str, Dealt], gone: set[str]) -> None:
        """Refuse to go on without the statistics of questions that are gone from the queue.

        Raises:
            RuntimeError: there are such.
        """
        if gone:
            why = Counter(self._lost.get(dealt[uid].worker, "") for uid in gone)
            raise RuntimeError(
                f"a rollout worker died with what it had counted of {len(gone)} question(s), whose rows were taken "
                f"already: {', '.join(why)}. Metrics, memories and logs would lack them. Remedy: start again"
            )

    def taken(self, uids: list[str] | None) -> None:
        """The statistics of these questions are taken (None: of all of the validation); they need no worker any more.

        Raises:
            RuntimeError: some were with a worker that is dead.
        """
        self._replaced = 0
        if uids is None:
            theirs = {uid: one for uid, one in self._dealt.items() if one.validate}
        else:
            theirs = {uid: self._dealt[uid] for uid in uids if uid in self._dealt}
        self._check_there(theirs, {uid for uid, one in theirs.items() if one.worker in self._lost})
        for uid in theirs:
            del self._dealt[uid]
        if uids is not None:  # questions that gave no rows are taken with the others, and verl has removed them
            left = tq.kv_list("train").get("train", {}) if self._dealt else {}
            self._dealt = {uid: one for uid, one in self._dealt.items() if one.validate or uid in left}


def remove(partition: str, uids: set[str]) -> set[str]:
    """Remove the rows of these questions from the queue, and mark them as not begun; returns those it does not hold."""
    tags = tq.kv_list(partition).get(partition, {})
    rows = [key for key in tags if key not in uids and key.split("_")[0] in uids]
    if rows:
        tq.kv_clear(keys=rows, partition_id=partition)
    there = [uid for uid in uids if uid in tags]
    if there:
        tq.kv_batch_put(keys=there, tags=[{"status": "pending"} for _ in there], partition_id=partition)
    return uids - set(there)


def deal(questions: list[Any], workers: int, dealt: int) -> list[list[Any]]:
    """Each worker's share, round robin from where the last deal ended (`dealt` questions so far).

    An asynchronous trainer refills its batch question by question: always starting over would give all to one worker.
    """
    return [questions[(rank - dealt) % workers :: workers] for rank in range(workers)]
