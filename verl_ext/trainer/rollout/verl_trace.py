"""Plays the record of a sampled question to the backends of verl's rollout trace (weave, mlflow, trackio)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

from verl_ext.observe.record import as_json
from verl_ext.observe.trajectories import QuestionTrace

OUTCOME = ("status", "error", "prompt_tokens", "generated_tokens", "rewards", "seconds")


class Recorded:
    """Methods that verl traces, and that return what was recorded."""

    def __init__(self, said: Any) -> None:
        self._said = as_json(said)

    @rollout_trace_op
    def generate(self, messages: Any, agent: str, call: str, parents: list[str]) -> Any:
        """A call of an agent."""
        return self._said

    @rollout_trace_op
    def execute(self, name: str, arguments: Any) -> Any:
        """A tool call."""
        return self._said

    @rollout_trace_op
    def reward(self, status: str, stream: list[str]) -> Any:
        """The end of a trajectory."""
        return self._said


class VerlTrace:
    """Plays records to `rollout_trace_op`, as if they happened now: its backends take no times.

    Per trajectory (`sample_index`, `rollout_n`): each call as `Recorded.generate`, each tool call as
    `Recorded.execute`, then `Recorded.reward`.

    Args:
        section: actor_rollout_ref.rollout.trace; None, or without a backend: nothing is traced.
        name: of the workflow.
    """

    def __init__(self, section: Any, name: str) -> None:
        self.backend = section.backend if section is not None else None
        self._name, self._most = name, None
        self._seen: tuple[Any, set[Any]] = (None, set())
        if self.backend is not None:
            self._most = section.get("max_samples_per_step_per_worker")
            names = section.project_name, section.experiment_name
            RolloutTraceConfig.init(*names, self.backend, section.get("token2text", False), self._most)

    def write(self, trace: QuestionTrace, phase: str, step: int | None) -> None:
        """Trace one question, unless this step has its `max_samples_per_step_per_worker` already."""
        if self.backend is None or not self._has_room(trace, phase, step):
            return
        for one in trace.trajectories:
            number = one["number"]
            about = {"sample_index": trace.question["index"], "step": step, "rollout_n": number}
            with rollout_trace_attr(**about, name=self._name, validate=phase != "train"):
                parts = [part for part in (*trace.calls, *trace.tools) if number in part["trajectories"]]
                for part in sorted(parts, key=lambda part: part["times"][0]):
                    _play(part)
                scores = {name: one[name] for name in ("reward", "metrics", "error")}
                Recorded(scores).reward(status=one["status"], stream=one["stream"])

    def _has_room(self, trace: QuestionTrace, phase: str, step: int | None) -> bool:
        if self._seen[0] != (phase, step):
            self._seen = ((phase, step), set())
        seen = self._seen[1]
        if self._most is None or len(seen) < self._most:
            seen.add(trace.question["index"])
        return trace.question["index"] in seen


def _play(part: Mapping[str, Any]) -> None:
    if "agent" in part:
        said = {"response_text": part["output"], **{name: part[name] for name in OUTCOME}}
        about = {"messages": part["prompt"], "agent": part["agent"], "call": part["id"], "parents": part["parents"]}
        Recorded(said).generate(**about)
    else:
        said = {"result": part["result"], "failure": part["failure"]}
        Recorded(said).execute(name=part["name"], arguments=as_json(part["arguments"]))
