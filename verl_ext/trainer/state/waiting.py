"""Statistics and traces of the questions that wait in TransferQueue: sampled, and of no step yet.

Under an asynchronous trainer a checkpoint of verl has the rows of such questions. What the workers know of them beside
the rows (for metrics, budget, memories, policy heads and the trajectory log) is saved with it.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import transfer_queue as tq
from pydantic import TypeAdapter

from verl_ext.observe.question_stats import QuestionStats
from verl_ext.observe.record import as_json
from verl_ext.observe.trajectories import QuestionTrace
from verl_ext.storage.files import write_file

FILE = "waiting.json.gz"


@dataclass
class Waiting:
    """A sampled question that no step has taken.

    Attributes:
        trace: for the trajectory log, if there is one.
        empty: it gave no rows.
    """

    stats: QuestionStats
    trace: QuestionTrace | None
    empty: bool


def save(place: Path, questions: dict[str, Waiting]) -> None:
    """Write these questions, by uid, into a checkpoint; no file for none."""
    if not questions:
        return
    held = {
        uid: {
            "stats": asdict(one.stats),
            "trace": one.trace and {name: as_json(value) for name, value in vars(one.trace).items()},
            "empty": one.empty,
        }
        for uid, one in questions.items()
    }
    write_file(place / FILE, gzip.compress(json.dumps(held, default=float).encode(), mtime=0))


def load(place: Path) -> dict[str, Waiting]:
    """The questions of a checkpoint, by uid; none if it has no such file."""
    file = place / FILE
    held = json.loads(gzip.decompress(file.read_bytes())) if file.exists() else {}
    return TypeAdapter(dict[str, Waiting]).validate_python(held)


def clear_trained(partition: str = "train") -> int:
    """Remove the rows of no question from the queue of a checkpoint; returns how many.

    verl saves the queue while it still has the rows of the step that has just trained. Nobody would take them.
    """
    tags = (tq.kv_list(partition) or {}).get(partition, {})
    questions = {key for key, tag in tags.items() if tag.get("is_prompt")}
    left = [key for key in tags if key.partition("_")[0] not in questions]
    if left:
        tq.kv_clear(keys=left, partition_id=partition)
    return len(left)
