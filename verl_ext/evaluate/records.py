"""trajectories.jsonl: one JSON line per trajectory, over kills and resumes; settings.json: what they are answers to."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_ext.mas.types import Task, Trajectory
from verl_ext.storage.files import lock_folder
from verl_ext.trainer.state.checkpoint import differences, plain, write_atomically

TRAJECTORIES, SETTINGS = "trajectories.jsonl", "settings.json"

# (data source, index, sample)
Key = tuple[str, int, int]


@dataclass
class Outcome:
    """What the report needs of a trajectory.

    metrics: of one that is ok, its reward and what the workflow reports beside it; NaN where that was no finite number.
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


def record_of(task: Task, sample: int, trajectory: Trajectory, recall: dict[str, float], seconds: float) -> dict:
    """A trajectory as its line in the file; docs/evaluate.md explains each field."""
    return {
        "data_source": task.data_source,
        "index": task.index,
        "sample": sample,
        "question": task.question,
        "ground_truth": task.ground_truth,
        "status": trajectory.status.value,
        "error": trajectory.error,
        "result": trajectory.result,
        "reward": trajectory.reward,
        "metrics": trajectory.metrics,
        "recall": recall,
        "notes": trajectory.notes,
        "seconds": seconds,
        "finished": time.time(),
        "calls": [_call(call) for call in trajectory.calls],
        "tools": [
            {"id": str(tool.id), "arguments": tool.arguments, "result": tool.result, "failure": tool.failure}
            for tool in trajectory.tools
        ],
    }


def _call(call: Any) -> dict[str, Any]:
    return {
        "id": str(call.id),
        "agent": call.agent,
        "parents": [str(parent.id) for parent in call.parents],
        "status": call.status.value,
        "error": call.error,
        "messages": call.messages,
        "text": call.text,
        "reasoning": call.reasoning,
        "prompt_tokens": call.prompt_tokens,
        "generated_tokens": call.generated_tokens,
        "penalty": call.reward_specific,
        "quantities": call.metrics,
        "seconds": call.seconds,
    }


class Records:
    """The trajectories of an output folder. Only one process at a time may hold it.

    Args:
        folder: made if it does not exist.
        settings: of this evaluation; they decide what an answer would be.

    Raises:
        ValueError: the folder holds answers under other settings (names those that differ), or another process
            evaluates into it.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.path = folder / TRAJECTORIES
        self.outcomes: dict[Key, Outcome] = {}
        self._asked: dict[Key, tuple[Any, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(folder)
        if self._lock is None:
            raise ValueError(f"another process evaluates into {folder}. Remedy: wait for it, or evaluate.output=…")
        self._check_settings(folder / SETTINGS, plain(settings))
        self._read()
        self._file = open(self.path, "a", encoding="ascii")

    def _check_settings(self, path: Path, settings: dict[str, Any]) -> None:
        before = json.loads(path.read_text()) if path.exists() else None
        if before is not None and before != settings and self.path.exists() and self.path.stat().st_size:
            changed = "\n".join(differences("", before, settings)).replace("  .", "  ")
            raise ValueError(
                f"{path.parent} holds answers under other settings:\n{changed}\n"
                f"Remedy: another folder (evaluate.output=…), or remove this one (rm -r {path.parent})"
            )
        write_atomically(path, json.dumps(settings, indent=1))

    def _read(self) -> None:
        """Read what is there; a line cut short by a kill is dropped, and the file cut back to its last whole line."""
        if not self.path.exists():
            return
        whole = 0
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                try:
                    self._remember(json.loads(line))
                except (ValueError, KeyError, TypeError):  # damaged on the disk: its question is asked again
                    continue
        os.truncate(self.path, whole)

    def _remember(self, record: dict[str, Any]) -> None:
        key = (str(record["data_source"]), int(record["index"]), int(record["sample"]))
        numbers = [
            {name: call[name] for name in ("agent", "status", "prompt_tokens", "generated_tokens", "seconds")}
            for call in record["calls"]
        ]
        reported = {"reward": record["reward"], **record["metrics"]} if record["status"] == "ok" else {}
        self._asked[key] = (record["question"], record["ground_truth"])
        self.outcomes[key] = Outcome(
            key,
            str(record["status"]),
            str(record["error"]),
            {name: math.nan if value is None else float(value) for name, value in reported.items()},
            dict(record["recall"]),
            float(record["seconds"]),
            numbers,
            len(record["tools"]),
            sum(tool["failure"] is not None for tool in record["tools"]),
            record["result"],
        )

    def missing(self, tasks: Iterable[Task], samples: int) -> list[tuple[Task, int]]:
        """(question, sample) pairs that have no answer yet. Those that failed are asked again.

        Raises:
            ValueError: an answer that is there was given to another question of the same number.
        """
        wanted = []
        for task in tasks:
            for sample in range(samples):
                key = (task.data_source, task.index, sample)
                if key in self._asked and self._asked[key] != (task.question, plain(finite(task.ground_truth))):
                    raise ValueError(
                        f"{self.path} holds an answer to another question with index {task.index} of data source "
                        f"{task.data_source!r}: {self._asked[key][0]!r:.200}, now it is {task.question!r:.200}.\n"
                        "Remedy: another folder (evaluate.output=…)"
                    )
                if key not in self.outcomes or not self.outcomes[key].ok:
                    wanted.append((task, sample))
        return wanted

    def add(self, record: dict[str, Any]) -> Outcome:
        """Append a record of `record_of`; it is with the operating system when this returns."""
        line = json.dumps(finite(record), default=str, allow_nan=False)  # ASCII: hostile text cannot break a line
        self._file.write(line + "\n")
        self._file.flush()
        self._remember(json.loads(line))
        return self.outcomes[(record["data_source"], record["index"], record["sample"])]

    def close(self) -> None:
        """Close the file and let others have the folder."""
        self._file.close()
        self._lock.close()


def finite(value: Any) -> Any:
    """Numbers that JSON does not know (NaN, infinity) become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
