"""verl's agent-loop manager for workflows (`rollout.agent.agent_loop_manager_class`)."""

from __future__ import annotations

import logging
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
from verl_ext.trainer.config import read_mas_config
from verl_ext.trainer.rollout.cutting import Waste, together
from verl_ext.trainer.rollout.remote_workers import RemoteWorkers
from verl_ext.trainer.rollout.watchdog import Look, Watchdog
from verl_ext.trainer.rollout.worker import RolloutWorker
from verl_ext.trainer.state.waiting import Waiting

logger = logging.getLogger(__name__)
# Seconds between two looks at the workers.
WATCH = 3.0
# Seconds in which a server must answer.
BRIEF = 2.0


class MultiAgentLoopManager:
    """Deals questions out to rollout workers and collects their statistics.

    `rollout.agent.num_workers=0` samples in the trainer's own process (one process fewer: right for small machines);
    n > 0 starts n Ray actors on any nodes, which get the questions round robin (`RemoteWorkers`).
    """

    def __init__(self, config: DictConfig, client: Any):
        n, limits = config.actor_rollout_ref.rollout.agent.num_workers, read_mas_config(config).limits
        self._local = RolloutWorker(config, client) if n == 0 else None
        self._remote: Any = RemoteWorkers(config, client, n) if n else None
        self._given: set[str] = set()
        self._dead: str | None = None
        self._most_empty = 2 * config.data.train_batch_size
        self._hf = config.actor_rollout_ref.rollout.name == "hf"
        self._policies = list(config.mas.get("policies") or [""])
        folder = config.trainer.default_local_dir
        self.watchdog = Watchdog(folder, limits.warn_after, limits.stop_after, self._servers)
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
        self._given |= {str(question["uid"]) for question in questions}
        if self._local is not None:
            self._local.submit(questions, validate)
            return
        self._remote.submit(questions, validate)

    def replace_dead(self) -> None:
        """Replace rollout workers that have died, and let the new ones sample their questions (`RemoteWorkers`)."""
        if self._remote is not None and self._dead is None:
            self._tell()
            self._remote.replace()

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
        return self._remote.ask(method, *arguments)

    def take_stats(self, uids: list[str] | None) -> list[QuestionStats]:
        """Statistics of these training questions, or (None) of all of the validation since the last call, in a fixed
        order."""
        found = list(chain.from_iterable(self._ask("take_stats", uids)))
        if self._remote:
            self._remote.taken(uids)
        return sorted(found, key=lambda stats: stats.index)

    def take_traces(self, uids: list[str] | None, count: int) -> list[QuestionTrace]:
        """The first `count` traces for the log of these training questions and of those that gave no rows, or (None) of
        the validation. The others are dropped."""
        return first(chain.from_iterable(self._ask("take_traces", uids, count)), count)

    def waiting(self) -> dict[str, Waiting]:
        """The training questions that were sampled and taken by no step yet, by uid. They stay with the workers."""
        return dict(chain.from_iterable(held.items() for held in self._ask("waiting")))

    def restore(self, questions: dict[str, Waiting]) -> None:
        """Give a worker the questions of a checkpoint, as if it had sampled them.

        A question that ended after the queue was saved is sampled again: the restored queue has it as unfinished.
        """
        tags = tq.kv_list("train").get("train", {}) if questions else {}
        ended = {uid for uid, tag in tags.items() if tag.get("status") in ("finished", "failure")}
        kept = {uid: question for uid, question in questions.items() if uid in ended}
        if self._local is not None:
            self._local.restore(kept)
        elif kept:
            self._remote.restore(kept)

    def dropped(self, uids: list[str]) -> list[str]:
        """Questions that were sampled and are neither among `uids` nor in the queue: verl has evicted them as too old.

        Nobody else takes their statistics and traces.
        """
        left = set().union(*self._ask("sampled")) - set(uids)
        return sorted(left - tq.kv_list("train").get("train", {}).keys()) if left else []

    def cut(self, uids: list[str]) -> Waste:
        """End the sampling of these training questions, and remove them and their rows from the queue.

        Returns what they have cost; of a worker that has died, nothing is known.
        """
        found, cut = self._ask("cut", uids), set(uids)
        keys = [key for key in tq.kv_list("train").get("train", {}) if key.partition("_")[0] in cut]
        if keys:
            tq.kv_clear(keys=keys, partition_id="train")
        return together(found)

    def take_tool_counts(self) -> dict[str, int]:
        """Metrics `tools/<tool>/<quantity>`: the counts of the tools of all workers since the last call."""
        found = self._ask("take_tool_counts")
        keys = dict.fromkeys(key for counts in found for key in counts)  # a kind of answer that one worker has met
        return {f"tools/{key}": sum(counts.get(key, 0) for counts in found) for key in keys}

    def raise_if_broken(self, seconds: float = 0.0) -> None:
        """Raise the error with which a worker has stopped.

        Args:
            seconds: in which it shows whether a process that the run needs has died.

        Raises:
            RuntimeError: a reward or penalty function raised, an internal error occurred, a process that the run
                needs died, nothing happened for long, or no question has given a row for two batches.
        """
        if reason := self._dead or self.watchdog.lost(seconds) or self._reason(self._ask("look")):
            raise RuntimeError(reason)

    def _reason(self, looks: list[Look]) -> str | None:
        """Why the workers cannot go on. An asynchronous trainer would replace failed questions for ever."""
        empty = sum(look.empty for look in looks)
        if empty >= self._most_empty and all(look.empty for look in looks):
            reasons = next((look.reasons for look in looks if look.reasons), "none")
            return f"the last {empty} questions gave nothing to train on; trajectories that could not finish: {reasons}"
        return next((look.broken for look in looks if look.broken), None)

    def _watch(self) -> None:
        """Look at the workers; if they cannot go on, fail their questions, for which verl would wait for ever."""
        while self._dead is None:
            time.sleep(WATCH)
            try:
                looks = self._look()
                self._dead = self._dead or self._reason(looks) or self.watchdog.check(looks)
            except Exception as error:  # the watch goes on: without it a run could hang in silence
                logger.warning("the watch over the rollout workers failed: %s: %s", type(error).__name__, error)
        if (phases := self.watchdog.phases) is not None and phases.must_end:
            phases.interrupt()
            return
        if self._local is not None:
            self._local.stop(self._dead)
        if self._remote:
            self._remote.stop(self._dead)
        for partition, tags in tq.kv_list().items():
            for uid, tag in tags.items():
                if uid in self._given and tag.get("status") in ("pending", "running"):
                    tq.kv_put(key=uid, partition_id=partition, tag={"status": "failure"})

    def _look(self) -> list[Look]:
        if self._local is not None:
            return [self._local.look()]
        looks = self._remote.looks()
        self._tell()
        return looks

    def _tell(self) -> None:
        for words in self._remote.news():
            self.watchdog.write(words)

    def _servers(self) -> str:
        """What the servers of our engine do, in words; of other engines nothing is known."""
        from verl_ext.engine.hf.replica import server_handles

        parts = []
        servers = (
            [(name, *one) for name in self._policies for one in enumerate(server_handles(name))] if self._hf else []
        )
        for name, number, server in servers:
            rank = f"{number} of {name}" if name else str(number)
            try:
                state: Any = ray.get(server.stats.remote(), timeout=BRIEF)
                parts.append(f"server {rank} runs {state['active']} requests, {state['waiting']} wait there")
            except ray.exceptions.RayError as error:
                parts.append(f"server {rank} does not answer ({type(error).__name__})")
        return "; ".join(parts)


def _row(batch: TensorDict, i: int) -> dict[str, Any]:
    """Row i of a TensorDict as plain values; without a data source it is of "unknown", as in verl's validation."""

    def value(column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            return column[i]
        if isinstance(column, NonTensorStack):
            return column[i].data
        if isinstance(column, NonTensorData):
            return column.data
        return column

    return {"data_source": "unknown"} | {name: value(column) for name, column in batch.items()}
