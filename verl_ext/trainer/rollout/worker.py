"""Runs workflows: questions in, rows in TransferQueue out. All trajectories of all questions run concurrently."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig

from verl_ext.algorithms import credit_rules
from verl_ext.heads import Weights
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.forest import BrokenReward, Forest
from verl_ext.mas.limits import Limits
from verl_ext.mas.noise import derive_seed
from verl_ext.mas.stopwatch import Stopwatch
from verl_ext.mas.turns import Turns
from verl_ext.mas.types import Status
from verl_ext.memory import View
from verl_ext.observe.metrics import failure_report
from verl_ext.observe.question_stats import QuestionStats, question_stats
from verl_ext.observe.trajectories import QuestionTrace, TraceStore, resolve, trace_question
from verl_ext.sampling import Sample, run_once
from verl_ext.sampling.base import one_group
from verl_ext.tools.threads import Threads
from verl_ext.tracebacks import users_traceback
from verl_ext.trainer.build import build_tools, build_workflow
from verl_ext.trainer.config import context_length, read_mas_config, strategy_from
from verl_ext.trainer.lora_setup import adapters_of, add_agent_ids
from verl_ext.trainer.policies.settings import policies_of_agents
from verl_ext.trainer.rollout.cutting import Cuts, Waste
from verl_ext.trainer.rollout.forest_to_rows import training_rows, validation_rows
from verl_ext.trainer.rollout.garbage import collect_between_steps
from verl_ext.trainer.rollout.llm import sampling_of
from verl_ext.trainer.rollout.models import add_policies, make_models, models_of_agents
from verl_ext.trainer.rollout.question_forest import make_forest
from verl_ext.trainer.rollout.row_writer import RowWriter
from verl_ext.trainer.rollout.tracing import Tracing
from verl_ext.trainer.rollout.watchdog import Look, Watch
from verl_ext.trainer.row import Row
from verl_ext.trainer.state.decision_heads import set_weights
from verl_ext.trainer.state.waiting import Waiting

logger = logging.getLogger(__name__)


class RolloutWorker:
    """Samples questions on an event loop in a thread of its own, in this process or as a Ray actor.

    Args:
        config: verl's whole configuration with our section `mas`.
        client: verl's client of the rollout servers.
        rank: of this worker, for request names.
        tools: makes the tools from `mas.tools`.
    """

    def __init__(
        self, config: DictConfig, client: Any, rank: int = 0, tools: Callable[..., dict[str, Any]] = build_tools
    ):
        self.config, self.rank = config, rank
        self.mas = read_mas_config(config)
        self.rollout = config.actor_rollout_ref.rollout
        # Of a call, by whether it validates. Not read for each question: OmegaConf takes a millisecond.
        self.sampling = {validate: sampling_of(self.rollout, validate) for validate in (False, True)}
        self.workflow = build_workflow(self.mas)
        self.adapters = adapters_of(self.mas, self.workflow)
        self.credit_rules = credit_rules(self.mas.credit.plugged)
        self.tool_objects = tools(self.mas.tools)
        # Of the questions that are being sampled, by name.
        self._forests: dict[str, Forest] = {}
        self.policies = make_models(config, self.mas, client, self._busy)
        self.models = models_of_agents(self.mas, self.policies, list(self.workflow.agents))
        self.llm = next(iter(self.policies.values()))
        self.strategy = strategy_from(self.mas.sampling, self.workflow.trained_agents)
        self.limits = Limits(
            max_prompt_tokens=config.data.max_prompt_length,
            max_context_tokens=context_length(config),
            max_sequence_tokens=config.data.max_response_length,
            **vars(self.mas.limits),
        )
        self.clock, self.threads, self.turns = Stopwatch(), Threads(), Turns()
        self._writer = RowWriter()
        self._stats: dict[str, QuestionStats] = {}
        self._empty: list[str] = []
        # Training questions since the last one that gave rows.
        self._streak = 0
        self._validation_stats: list[QuestionStats] = []
        self._traces, self._validation_traces = TraceStore(), TraceStore()
        self._tracing = Tracing(config, self.mas.tracing, self.workflow)
        # The agents' memories as of the last step, if they have any.
        self.memory: View | None = None
        self._broken: str | None = None
        self._counter = itertools.count()
        self._tool_counts: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cuts = Cuts()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="rollouts")
        thread.start()
        self._watch = Watch(self.clock, self._loop, thread)
        collect_between_steps(self._loop)

    def _busy(self) -> int:
        return self.turns.waiting + sum(forest.busy for forest in self._forests.values())

    # Called from the trainer's thread (or through Ray).

    def submit(self, questions: list[dict[str, Any]], validate: bool) -> None:
        """Start sampling these data-set rows; returns at once."""
        self._watch.run(self._start(questions, validate), self.broken)

    def pause(self) -> None:
        """Stop the time limits of calls, because the engine pauses, until `resume`."""
        self._loop.call_soon_threadsafe(self.clock.stop)

    def resume(self) -> None:
        """Let the time limits of calls run again."""
        self._loop.call_soon_threadsafe(self.clock.start)

    def set_memory(self, view: View) -> None:
        """Set the memory from which questions that begin from now on recall."""
        self.memory = view

    def set_heads(self, weights: dict[str, Weights]) -> None:
        """Set the weights of the policy heads."""
        set_weights(self.workflow, weights)

    def take_stats(self, uids: list[str] | None) -> list[QuestionStats]:
        """Statistics of these questions, and of all questions that gave no rows; each can be taken once.

        None: of all validation questions since the last call.
        """
        if uids is None:
            taken, self._validation_stats = self._validation_stats, []
            return taken
        empty, self._empty = self._empty, []  # the rollouts may add to it meanwhile
        taken = [self._stats.pop(uid) for uid in (*uids, *empty) if uid in self._stats]
        gc.collect()  # see garbage.py
        return taken

    def take_traces(self, uids: list[str] | None, count: int) -> list[QuestionTrace]:
        """The first `count` traces for the log, of the same questions as in `take_stats`. Drops the others."""
        store = self._validation_traces if uids is None else self._traces

        async def take() -> list[QuestionTrace]:  # on the loop, which has the tokenizer
            own = {agent: model.decode for agent, model in self.models.items()}
            return [resolve(trace, self.llm.decode, own) for trace in store.take(uids, count)]

        return self._watch.run(take(), self.broken)

    def take_tool_counts(self) -> dict[str, int]:
        """`<tool>/<quantity>` -> its increase since the last call; the tools themselves count from their start."""
        counting = {name: tool.counts() for name, tool in self.tool_objects.items() if hasattr(tool, "counts")}
        now = {f"{name}/{key}": count for name, counts in counting.items() for key, count in counts.items()}
        taken, self._tool_counts = {key: n - self._tool_counts.get(key, 0) for key, n in now.items()}, now
        return taken

    def waiting(self) -> dict[str, Waiting]:
        """The training questions that nobody has taken yet, by uid. They stay."""
        traces = self._traces.held()
        return {uid: Waiting(stats, traces.get(uid), uid in self._empty) for uid, stats in list(self._stats.items())}

    def restore(self, questions: dict[str, Waiting]) -> None:
        """Hold these questions, which a checkpoint has, as if they had been sampled here."""
        for uid, question in questions.items():
            self._stats[uid] = question.stats
            self._empty += [uid] if question.empty else []
            if question.trace is not None:
                self._traces.add(question.trace, question.empty)

    def cut(self, uids: list[str]) -> Waste:
        """End the sampling of these training questions, and forget them; returns what they have cost."""
        return self._watch.run(self._cut(set(uids)), self.broken)

    def sampled(self) -> set[str]:
        """The training questions whose statistics nobody has taken yet, but for those without rows."""
        return set(self._stats) - set(self._empty)

    def look(self) -> Look:
        """What the worker waits for, and whether training must stop."""
        look = self._watch.look()
        look.broken, look.empty = self.broken(), self._streak
        if self._streak:
            known = [self._stats.get(uid) for uid in list(self._empty)]  # another thread takes them away
            look.reasons = failure_report([stats for stats in known if stats is not None])
        return look

    def broken(self) -> str:
        """Why training must stop (a reward raised, an internal error), or nothing."""
        return self._broken or ""

    def stop(self, reason: str) -> None:
        """End the sampling of all questions: training must stop. They get the status "failure"."""
        self._broken = self._broken or reason
        self._loop.call_soon_threadsafe(self._close_all)

    # On the event loop.

    async def _start(self, questions: list[dict[str, Any]], validate: bool) -> None:
        await self._writer.begin([question["uid"] for question in questions], _partition(validate))
        for question in questions:  # all at once and in this order, which the names of their calls follow
            self._begin(self._answer(question, validate), question["uid"])

    def _begin(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: dict[str, Any], validate: bool) -> None:
        """Sample a question and store its rows. After any error verl must get a status, or it would wait for ever."""
        uid, name, rows = question["uid"], f"{self.rank}-{next(self._counter):012d}", []
        try:
            if self._broken is None:
                rows = await self._rows(name, question, validate)
        except BrokenReward as error:
            logger.exception("a reward or penalty raised")
            self.stop(f"{error}\n\n{users_traceback(error.__cause__ or error)}")
        except asyncio.CancelledError:
            if self._broken is None and uid not in self._cuts:
                raise
        except Exception as error:  # ours: never a silent loss
            trace = users_traceback(error) or traceback.format_exc()
            self.stop(f"internal error while sampling a question: {error!r}\n\n{trace}")
        finally:
            if name in self._forests:
                forest = self._forests.pop(name)
                await forest.close()
                if uid in self._cuts:
                    self._cuts.waste[uid] = Waste(forest.begun, forest.seconds, forest.cost.generated_tokens)
        if uid in self._cuts:
            return
        try:
            with self.clock.waiting("question waiting for TransferQueue to store its rows"):
                await self._writer.end(uid, _partition(validate), rows)
        except Exception as error:
            self._broken = f"the rows of a question could not be stored: {error!r}\n\n{traceback.format_exc()}"
            await tq.async_kv_put(key=uid, partition_id=_partition(validate), tag={"status": "failure"})

    async def _rows(self, name: str, question: dict[str, Any], validate: bool) -> list[Row]:
        await self.turns.take()  # a thousand questions may begin at once
        forest = self._forests[name] = make_forest(self, name, question, validate)
        samples = await self._sample(forest, validate)
        forest.trajectories.sort(key=lambda trajectory: trajectory.stream.path)
        assign_credit(forest.trajectories, self.mas.credit.aggregate, self.mas.credit.propagate, self.credit_rules)
        stats = question_stats(forest, samples)
        if validate:
            self._validation_stats.append(stats)
        else:
            self._stats[question["uid"]] = stats
        for trajectory in forest.trajectories:
            if trajectory.status in (Status.WORKFLOW_ERROR, Status.DIVERGED):
                logger.error("question %s: trajectory failed: %s", forest.task.index, trajectory.error)
        if self.mas.sampling.group_by == "question":
            samples = one_group(samples)
        rows = validation_rows(forest, question) if validate else training_rows(forest, samples, question)
        rows = add_agent_ids(rows, self.adapters, policies_of_agents(self.mas))
        rows = add_policies(rows, self.mas, self.policies)
        self._trace(forest, question, validate, empty=not rows)
        if not validate:
            self._streak = 0 if rows else self._streak + 1
            self._empty += [] if rows else [question["uid"]]
        return rows

    async def _cut(self, uids: set[str]) -> Waste:
        await self._cuts.end(uids, [task for task in self._tasks if task.get_name() in uids])
        await self._writer.settled()
        for uid in uids:  # those that have ended, but too late
            if (stats := self._stats.pop(uid, None)) is not None:
                self._cuts.waste[uid] = Waste(stats.trajectories, stats.seconds, stats.cost["generated_tokens"])
        self._empty = [uid for uid in self._empty if uid not in uids]
        self._traces.drop(uids)
        return self._cuts.take()

    def _close_all(self) -> None:
        for forest in self._forests.values():
            self._begin(forest.close())

    async def _sample(self, forest: Forest, validate: bool) -> list[Sample]:
        if not validate:
            return await self.strategy.sample(forest)
        await asyncio.gather(*[run_once(forest, str(i)) for i in range(self.rollout.val_kwargs.n)])
        return []

    def _trace(self, forest: Forest, question: dict[str, Any], validate: bool, empty: bool) -> None:
        options = self.mas.trajectory_log
        logged = options.val_questions if validate else options.train_questions
        if not logged and not self._tracing.wanted:
            return
        # The same order in every step: a question that comes again is logged again.
        rank = derive_seed(self.mas.seed, "trajectory_log", forest.task.data_source, forest.task.index)
        trace = trace_question(forest, question["uid"], rank)
        self._tracing.emit(trace, _partition(validate), question.get("global_steps"))
        if logged:
            (self._validation_traces if validate else self._traces).add(trace, empty and not validate)


def _partition(validate: bool) -> str:
    return "val" if validate else "train"
