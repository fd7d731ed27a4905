"""Asks all questions, a bounded number of trajectories at a time."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_ext.evaluate.answers import Answers, Outcome
from verl_ext.evaluate.checkpoint import Model
from verl_ext.evaluate.checkpoint_parts import adapters_to_play, asked_of, open_memory
from verl_ext.evaluate.config import EvaluateConfig
from verl_ext.evaluate.llms import LocalLLM, open_llm, open_policies
from verl_ext.evaluate.recall import recall_scores
from verl_ext.mas.credit import assign_credit
from verl_ext.mas.forest import Forest
from verl_ext.mas.limits import Limits
from verl_ext.mas.noise import derive_seed
from verl_ext.mas.types import Status, Task
from verl_ext.mas.workflow import Workflow
from verl_ext.observe.error_log import ErrorLog
from verl_ext.observe.progress import duration
from verl_ext.observe.question_stats import question_stats
from verl_ext.observe.spans import Model as Asked
from verl_ext.observe.trajectories import evaluation_record, trace_question
from verl_ext.reports import in_words
from verl_ext.sampling import run_once
from verl_ext.tools.threads import Threads, interruptible
from verl_ext.trainer.build import build_tools, workflow_class
from verl_ext.trainer.config import SHARED, MasConfig, context_length
from verl_ext.trainer.rollout.llm import template_of
from verl_ext.trainer.rollout.tracing import Tracing
from verl_ext.trainer.state.contents import own_files
from verl_ext.trainer.state.run_settings import identity_of

# After so many trajectories in a row that failed without an answer, the evaluation stops.
STREAK = 32
HOPELESS = (Status.ENGINE_ERROR, Status.TIMEOUT, Status.TOOL_ERROR, Status.WORKFLOW_ERROR, Status.JUDGE_ERROR)
INTERRUPTED = "\nInterrupted. The same command goes on from here.\n"
# Seconds between two lines of progress.
INTERVAL = 5.0


def settings_of(
    config: DictConfig, section: EvaluateConfig, mas: MasConfig, model: Model | None, heads: str | None = None
) -> dict[str, Any]:
    """The settings on which answers depend; an output folder has answers under one set of them. `heads`: weights' hash.

    They leave out which questions and how many samples are asked, concurrency, time limits, and the addresses of
    endpoints and retrieval servers. They cannot detect that a server has changed its model or its index.
    """
    local, memory = model is not None, open_memory(section, mas)
    optional: dict[str, Any] = {"heads": heads} if heads else {}
    if code := own_files(workflow_class(mas)):
        optional["files of the workflow"] = code
    if mas.judge.given:
        optional["judge"] = mas.judge.identity
    if mas.failure.truncated is not None:  # then a call whose output is cut off fails
        optional["failure"] = {"truncated": mas.failure.truncated}
    if not local and mas.policy != SHARED:  # it decides which of an endpoint's models answer
        optional["policy"] = mas.policy
    if not local and (own := {n: one.agents for n, one in mas.policies.items() if one.per_agent_lora}):
        optional["per_agent_lora"] = own
    return optional | {
        "model": model.source if local else section.model,
        "engine": "verl_ext" if local else "endpoint",
        "weights": model.fingerprint if local else None,
        "dtype": config.actor_rollout_ref.rollout.dtype if local else None,
        "temperature": section.temperature,
        "top_p": section.top_p,
        "top_k": section.top_k,
        "response_length": response_length(config),
        "max_prompt_length": config.data.max_prompt_length if local else None,
        "chat_template": template_of(config),
        "max_calls": mas.limits.max_calls,
        "seed": mas.seed,
        "seeded": mas.sampling.seeded if section.temperature > 0 else None,
        "workflow": mas.workflow,
        "agents": _agents_of(config),
        "memory": memory and {"recall": mas.memory.recall, "content": memory.content_hash()},
        "tools": {name: identity_of(section) for name, section in mas.tools.items()},
    }


def _agents_of(config: DictConfig) -> dict[str, Any]:
    """`mas.agents`; for an agent with an endpoint only the name of its model counts, as with `evaluate.endpoint`."""
    agents: Any = OmegaConf.to_container(config.mas.agents, resolve=True)
    for section in agents.values():
        if section and section.get("endpoint"):
            section["endpoint"] = {"model": section["endpoint"].get("model")}
    return agents


def response_length(config: DictConfig) -> int:
    """The token limit of calls of agents without a limit of their own, and of calls that continue one sequence."""
    return int(config.actor_rollout_ref.rollout.response_length)


class Runner:
    """Runs the workflow on questions and records the trajectories.

    Args:
        config: the whole configuration.
        section, mas: its typed parts.
        model: for this process, or None for the endpoint.
        workflow: built from `mas`.
        answers: of the output folder.
    """

    def __init__(
        self,
        config: DictConfig,
        section: EvaluateConfig,
        mas: MasConfig,
        model: Model | None,
        workflow: Workflow,
        answers: Answers,
    ):
        self.config, self.section, self.mas, self.model = config, section, mas, model
        self.workflow, self.answers = workflow, answers
        self.limits = Limits(
            max_prompt_tokens=config.data.max_prompt_length,
            max_context_tokens=context_length(config),
            max_sequence_tokens=response_length(config),
            **vars(mas.limits),
        )
        self.sampling = {**section.sampling, "max_tokens": response_length(config)}
        memory = open_memory(section, mas)
        self.recall = partial(memory.recall, k=mas.memory.recall) if memory is not None else None
        self.adapters = adapters_to_play(model, mas, workflow)
        self.models: dict[str, LocalLLM] = {}
        self.threads = Threads()
        policy = Asked("verl_ext", model.source) if model else Asked("openai", str(section.model or section.endpoint))
        self.tracing = Tracing(config, mas.tracing, workflow, policy, asked_of(model))
        self._ended: list[Outcome] = []
        self._hopeless = 0
        self.errors = ErrorLog(answers.path.parent)

    async def run(self, wanted: list[tuple[Task, int]]) -> None:
        """Answer these (question, sample) pairs.

        Raises:
            ValueError: no engine, model or tool as configured.
            RuntimeError: `STREAK` trajectories in a row failed without an answer (or as many as run at a time, if
                that is more).
            BrokenReward: the workflow's reward or a penalty raised.
        """
        with interruptible(INTERRUPTED):
            await self._run(wanted)

    async def _run(self, wanted: list[tuple[Task, int]]) -> None:
        llms = self._open()
        llm = next(iter(llms.values()))
        tools = build_tools(self.mas.tools)
        ticker = None
        try:
            for one in llms.values():
                await one.connect()
            ticker = asyncio.ensure_future(self._show_progress(len(wanted)))
            rest = iter(wanted)
            await _all(self._work(rest, llm, tools) for _ in range(min(self.section.concurrency, len(wanted))))
        finally:
            if ticker is not None:
                ticker.cancel()  # which prints its last line
                await asyncio.wait([ticker])
            served = [agent.llm for agent in self.workflow.agents.values() if agent.llm is not None]
            judge = [self.workflow.judge] if self.workflow.judge is not None else []
            for owner in (*llms.values(), *served, *tools.values(), *judge):
                closed = owner.close() if hasattr(owner, "close") else None  # a tool may have none, or a plain one
                if inspect.isawaitable(closed):
                    await closed
            await asyncio.to_thread(self.tracing.close)

    def _open(self) -> dict[str, Any]:
        """The LLMs by policy; of a model without several, one."""
        seeded = self.mas.sampling.seeded
        if self.model is None or not self.model.policies:
            return {"": open_llm(self.config, self.section, self.model, seeded)}
        llms = open_policies(self.config, self.section, self.model, seeded)
        self.models = {agent: llms[name] for name, agents in self.model.agents.items() for agent in agents}
        own = [name for name, agent in self.workflow.agents.items() if agent.llm is None]
        if lacking := [name for name in own if name not in self.models]:
            raise ValueError(f"{self.model.source} has no policy for {', '.join(lacking)}: it is of another system")
        return llms

    async def _show_progress(self, total: int) -> None:
        """Print a line every `INTERVAL` seconds, and one at the end."""
        start = time.monotonic()
        try:
            while True:
                await asyncio.sleep(INTERVAL)
                print(progress_line(self._ended, total, time.monotonic() - start, self.workflow.headline), flush=True)
        finally:
            print(progress_line(self._ended, total, time.monotonic() - start, self.workflow.headline), flush=True)

    async def _work(self, rest: Iterator[tuple[Task, int]], llm: Any, tools: dict[str, Any]) -> None:
        """One of the concurrent workers: takes the next pair until there is none."""
        for task, sample in rest:
            outcome = await self._answer(task, sample, llm, tools)
            self._ended.append(outcome)
            self._hopeless = self._hopeless + 1 if outcome.status in HOPELESS else 0
            if self._hopeless >= max(STREAK, self.section.concurrency):
                raise RuntimeError(
                    f"the last {self._hopeless} trajectories all failed, the last by: {outcome.error}\n"
                    "Once that is mended, the same command asks these questions again and goes on"
                )

    async def _answer(self, task: Task, sample: int, llm: Any, tools: dict[str, Any]) -> Outcome:
        forest = Forest(
            task,
            self.workflow,
            llm,
            tools,
            seed=derive_seed(self.mas.seed, "validate", task.data_source, task.index),
            sampling=self.sampling,
            greedy=True,
            limits=self.limits,
            threads=self.threads,
            name=f"{task.data_source}-{task.index}-{sample}",
            memory=self.recall,
            adapters=self.adapters,
            models=self.models,
            failure_rewards=self.mas.failure.rewards,
        )
        start = time.monotonic()
        try:
            trajectory = await run_once(forest, str(sample))
        finally:
            await forest.close()
        about = {"result": trajectory.result, "recall": recall_scores(task, trajectory)}
        about |= {"seconds": time.monotonic() - start, "finished": time.time()}
        if news := self.errors.news([question_stats(forest, [])], f"question {task.index}"):
            print(news, flush=True)
        assign_credit([trajectory])
        trace = trace_question(forest, f"{task.data_source}-{task.index}", first_number=sample)
        if self.tracing.wanted:
            self.tracing.emit(trace, "eval", self.model.step if self.model is not None else None)
        return self.answers.add(evaluation_record(trace, self.model and self.model.step, about))


async def _all(work: Iterator[Any]) -> None:
    """All of `work`, or the first error of it; the others are then cancelled."""
    running = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*running)
    finally:
        for part in running:
            part.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def progress_line(ended: Sequence[Outcome], total: int, seconds: float, headline: str) -> str:
    """How far the evaluation is, how good (mean of the headline where it is a number), how fast, and how long still."""
    parts = [f"{len(ended):>{len(str(total))}}/{total}"]
    values = [value for one in ended if math.isfinite(value := one.metrics.get(headline, math.nan))]
    if values:
        parts.append(f"{in_words(headline)} {fmean(values):.3f}")
    if ended:
        parts.append(f"{len(ended) / seconds:.1f}/s")
    if 0 < len(ended) < total:
        parts.append(f"{duration(seconds / len(ended) * (total - len(ended)))} left")
    if failed := sum(not one.ok for one in ended):
        parts.append(f"{failed} failed")
    return "  ".join(parts)


def output_folder(config: DictConfig, section: EvaluateConfig) -> Path:
    """`evaluate.output`; null: a folder that depends on the recipe and on the model or endpoint that answers.

    Args:
        section: of an endpoint, with the name of the model that it serves.
    """
    if section.output is not None:
        return Path(section.output).expanduser()
    experiment = config.trainer.experiment_name
    parts = [part for part in Path(section.model or "").parts if part not in ("actor", "huggingface")]
    # …/RUN/global_step_N: a step alone would not tell runs apart.
    name = parts[-2:] if parts and parts[-1].startswith("global_step_") else parts[-1:]
    served = ["endpoint"] if section.endpoint is not None else []
    return Path("runs/evaluate") / "-".join([experiment, *served, *(part for part in name if part != experiment)])
