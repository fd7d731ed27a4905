"""verl's agent-loop manager for workflows (`rollout.agent.agent_loop_manager_class`)."""

from __future__ import annotations

import threading
import time
from itertools import chain
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import NonTensorData, NonTensorStack, TensorDict

from verl_ext.heads import Weights
from verl_ext.memory import View
from verl_ext.observe.question_stats import QuestionStats
from verl_ext.observe.trajectories import QuestionTrace, first
from verl_ext.trainer.rollout.worker import RolloutWorker

# Seconds between two checks that the remote workers are alive.
WATCH = 5.0


@ray.remote
class RemoteRolloutWorker(RolloutWorker):
    """A `RolloutWorker` in a process of its own."""

    def __init__(self, *args: Any, **kwargs: Any):
        tq.init()
        super().__init__(*args, **kwargs)


class MultiAgentLoopManager:
    """Deals questions out to rollout workers and collects their statistics.

    `rollout.agent.num_workers=0` samples in the trainer's own process (one process fewer: right for small machines);
    n > 0 starts n Ray actors, which get the questions round robin.
    """

    def __init__(self, config: DictConfig, client: Any):
        n = config.actor_rollout_ref.rollout.agent.num_workers
        self._local = RolloutWorker(config, client) if n == 0 else None
        self._remote = [
            RemoteRolloutWorker.options(name=f"rollout_worker_{rank}", scheduling_strategy="SPREAD").remote(
                config, client, rank
            )
            for rank in range(n)
        ]
        self._dealt = 0
        self._given: list[set[str]] = [set() for _ in self._remote]
        self._dead: str | None = None
        if self._remote:
            threading.Thread(target=self._watch, daemon=True, name="watch").start()

    @classmethod
    def create(
        cls, config: DictConfig, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> MultiAgentLoopManager:
        """verl's constructor. Workflows score themselves, so verl's reward workers are not used."""
        if teacher_client is not None:
            raise ValueError("workflows cannot be distilled from a teacher: set distillation.enabled=false")
        return cls(config, llm_client)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start sampling a batch of data-set rows; returns at once, rows appear in TransferQueue.

        Raises:
            RuntimeError: see `raise_if_broken`. An asynchronous trainer calls this method only while it waits for rows.
        """
        self.raise_if_broken()
        validate = bool(_row(prompts, 0).get("validate", False))
        questions = [_row(prompts, i) for i in range(len(prompts))]
        if self._local is not None:
            self._local.submit(questions, validate)
            return
        shares = deal(questions, len(self._remote), self._dealt)
        self._dealt += len(questions)
        for given, share in zip(self._given, shares, strict=True):
            given |= {str(question["uid"]) for question in share}
        ray.get([w.submit.remote(s, validate) for w, s in zip(self._remote, shares, strict=True) if s])

    def pause(self) -> None:
        """Stop the time limits of calls while the weights are being updated."""
        self._ask("pause")

    def resume(self) -> None:
        """Let the time limits of calls run again."""
        self._ask("resume")

    def set_memory(self, view: View) -> None:
        """Questions that begin from now on recall from this state of the agents' memory."""
        self._ask("set_memory", view if self._local else ray.put(view))

    def set_heads(self, weights: dict[str, Weights]) -> None:
        """Policy heads decide with these weights from now on."""
        self._ask("set_heads", weights if self._local else ray.put(weights))

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker; returns their answers."""
        if self._local is not None:
            return [getattr(self._local, method)(*arguments)]
        return ray.get([getattr(worker, method).remote(*arguments) for worker in self._remote])

    def take_stats(self, uids: list[str] | None) -> list[QuestionStats]:
        """Statistics of these training questions, or (None) of all of the validation since the last call, in a fixed
        order."""
        return sorted(chain.from_iterable(self._ask("take_stats", uids)), key=lambda stats: stats.index)

    def take_traces(self, uids: list[str] | None, count: int) -> list[QuestionTrace]:
        """The first `count` traces for the log of these training questions and of those that gave no rows, or (None) of
        the validation. The others are dropped."""
        return first(chain.from_iterable(self._ask("take_traces", uids, count)), count)

    def take_tool_counts(self) -> dict[str, int]:
        """Metrics `tools/<tool>/<quantity>`: the counts of the tools of all workers since the last call."""
        found = self._ask("take_tool_counts")
        keys = dict.fromkeys(key for counts in found for key in counts)  # a kind of answer that one worker has met
        return {f"tools/{key}": sum(counts.get(key, 0) for counts in found) for key in keys}

    def raise_if_broken(self) -> None:
        """Raise the error with which a worker has stopped.

        Raises:
            RuntimeError: a reward or penalty function raised, an internal error occurred, or a worker died.
        """
        if reason := self._dead or next(filter(None, self._ask("broken")), None):
            raise RuntimeError(reason)

    def _watch(self) -> None:
        """Fail the questions of a worker that dies: verl would wait for them for ever."""
        while self._dead is None:
            time.sleep(WATCH)
            for rank, worker in enumerate(self._remote):
                try:
                    ray.get(worker.broken.remote())
                except ray.exceptions.RayActorError as error:
                    self._dead = f"rollout worker {rank} died: {str(error).strip().splitlines()[0]}"
                    self._fail(self._given[rank])

    def _fail(self, uids: set[str]) -> None:
        for partition, tags in tq.kv_list().items():
            for uid, tag in tags.items():
                if uid in uids and tag.get("status") == "running":
                    tq.kv_put(key=uid, partition_id=partition, tag={"status": "failure"})


def deal(questions: list[Any], workers: int, dealt: int) -> list[list[Any]]:
    """Each worker's share, round robin from where the last deal ended (`dealt` questions so far).

    An asynchronous trainer refills its batch question by question: always starting over would give all to one worker.
    """
    return [questions[(rank - dealt) % workers :: workers] for rank in range(workers)]


def _row(batch: TensorDict, i: int) -> dict[str, Any]:
    """Row i of a TensorDict as plain values."""

    def value(column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            return column[i]
        if isinstance(column, NonTensorStack):
            return column[i].data
        if isinstance(column, NonTensorData):
            return column.data
        return column

    return {name: value(column) for name, column in batch.items()}
