"""The answers of an evaluation, which survive kills: trajectories.jsonl, and settings.json with what they depend on.

trajectories.jsonl has a record of `verl_ext.observe.record` per trajectory, in the order in which they ended. If
several have the same question and sample, the last one counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_ext.mas.types import Status, Task
from verl_ext.observe.record import Record, as_json
from verl_ext.observe.trajectory_files import EVALUATION_FILE
from verl_ext.storage.files import lock_folder, write_file
from verl_ext.storage.jsonl import append, read_log
from verl_ext.trainer.state.run_settings import differences, leaves, plain

SETTINGS = "settings.json"

# Statuses of outputs that their agent's parser could read.
READ = (Status.OK.value, Status.TRUNCATED.value)
# (data source, index, sample)
Key = tuple[str, int, int]


@dataclass
class Outcome:
    """A trajectory, as far as the report needs it.

    Attributes:
        metrics: reward and reported quantities of a trajectory that is ok; NaN where one was not finite.
        calls: of each call the agent, status, truncated, prompt_tokens, generated_tokens and seconds; executed: its
            output could be read, and a tool was called right after it; score: the reward of its trajectory, or None.
        result: what the workflow returned, as JSON has it.
    """

    key: Key
    status: str
    error: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    recall: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: int = 0
    tool_failures: int = 0
    result: Any = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def outcome_of(record: Record) -> Outcome:
    """The outcome of an evaluation's record.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    question, (trajectory,) = record["question"], record["trajectories"]
    reported = {"reward": trajectory["reward"], **trajectory["metrics"]} if trajectory["status"] == "ok" else {}
    return Outcome(
        key=(str(question["source"]), int(question["index"]), int(trajectory["number"])),
        status=str(trajectory["status"]),
        error=str(trajectory["error"]),
        metrics={name: math.nan if value is None else float(value) for name, value in reported.items()},
        recall={name: float(value) for name, value in trajectory["recall"].items()},
        seconds=float(trajectory["seconds"]),
        calls=_calls(record),
        tool_calls=len(record["tools"]),
        tool_failures=sum(tool["failure"] is not None for tool in record["tools"]),
        result=trajectory["result"],
    )


def another_question(asked: tuple[Any, Any], task: Task) -> str:
    """How text and gold answer that were `asked` differ from the question now; "": they do not."""
    pairs = zip(("question", "gold answer"), asked, (task.question, as_json(task.ground_truth)), strict=True)
    return "; ".join(f"its {name} was {old!r:.200}, now it is {new!r:.200}" for name, old, new in pairs if old != new)


def _calls(record: Record) -> list[dict[str, Any]]:
    acted = {before for tool in record["tools"] for before in tool["after"]}
    calls = []
    for call in record["calls"]:
        made: dict[str, Any] = {"agent": call["agent"], "status": Status(call["status"]).value}
        made |= {name: int(call[name]) for name in ("prompt_tokens", "generated_tokens")}
        made["seconds"] = float(call["seconds"])
        made["truncated"] = call.get("truncated", call["status"] == "truncated")  # older records have no such field
        made["executed"] = call["status"] in READ and call["id"] in acted
        calls.append(made | {"score": call["rewards"]["shared"]})
    return calls


class Answers:
    """The trajectories of an output folder. Only one process at a time may hold it.

    Args:
        folder: made if it does not exist.
        settings: of this evaluation, as far as answers depend on them.

    Raises:
        ValueError: the folder holds answers under other settings (names those that differ), or another process
            evaluates into it.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.path = folder / EVALUATION_FILE
        self.outcomes: dict[Key, Outcome] = {}
        self._asked: dict[Key, tuple[Any, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
        if lock is None:
            raise ValueError(f"another process evaluates into {folder}. Remedy: wait for it, or evaluate.output=…")
        self._lock = lock
        self._check_settings(folder / SETTINGS, plain(settings))
        for record in read_log(self.path):
            try:
                self._remember(record)
            except (ValueError, KeyError, TypeError):  # damaged on the disk: its question is asked again
                continue

    def _check_settings(self, path: Path, settings: dict[str, Any]) -> None:
        try:
            before = json.loads(path.read_text()) if path.exists() else None
        except ValueError as error:
            remedy = f"Remedy: another folder (evaluate.output=…), or remove this one (rm -r {path.parent})"
            raise ValueError(f"{path}, the settings of the answers there, is damaged: {error}. {remedy}") from error
        if before is not None and before != settings and self.path.exists() and self.path.stat().st_size:
            changed = "\n".join(differences(leaves(before), leaves(settings)))
            raise ValueError(
                f"{path.parent} holds answers under other settings:\n{changed}\n"
                f"Remedy: another folder (evaluate.output=…), or remove this one (rm -r {path.parent})"
            )
        write_file(path, json.dumps(settings, indent=1))

    def _remember(self, record: Record) -> Outcome:
        outcome = outcome_of(record)
        self._asked[outcome.key] = (record["question"]["text"], record["question"]["gold"])
        self.outcomes[outcome.key] = outcome
        return outcome

    def missing(self, tasks: Iterable[Task], samples: int) -> list[tuple[Task, int]]:
        """(question, sample) pairs that have no answer yet. Those that failed are asked again.

        Raises:
            ValueError: the file has an answer to another question with the same number.
        """
        wanted = []
        for task in tasks:
            for sample in range(samples):
                key = (task.data_source, task.index, sample)
                if key in self._asked and (change := another_question(self._asked[key], task)):
                    raise ValueError(
                        f"{self.path} holds an answer to another question with index {task.index} of data source "
                        f"{task.data_source!r}: {change}.\nRemedy: another folder (evaluate.output=…)"
                    )
                if key not in self.outcomes or not self.outcomes[key].ok:
                    wanted.append((task, sample))
        return wanted

    def of(self, tasks: Iterable[Task], samples: int) -> dict[Key, Outcome]:
        """The answers to these questions, at most so many samples of each."""
        keys = ((task.data_source, task.index, sample) for task in tasks for sample in range(samples))
        return {key: self.outcomes[key] for key in keys if key in self.outcomes}

    def add(self, record: Record) -> Outcome:
        """Append a record; it is with the operating system when this returns."""
        append(self.path, [record])
        return self._remember(record)

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()
