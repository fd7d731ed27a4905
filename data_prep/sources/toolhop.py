"""ToolHop: multi-hop questions, each with tools of its own (https://huggingface.co/datasets/bytedance-research/ToolHop,
CC BY 4.0).

    python data_prep/tools.py toolhop --output_dir data/toolhop

One row, shortened:
    {"id": 202, "question": "What is the sum of all the digits in … the date of death of Raoul I Of Brienne … father?",
     "answer": "15", "sub_task": {"Who is the father of Raoul I Of Brienne …?": "John II of Brienne, Count of Eu", …},
     "tools": {"Who is the father of Raoul I Of Brienne …?": {"name": "genealogy_query", "description": "…",
     "parameters": {…}}, …}, "functions": ["def genealogy_query(…)", …]}
Its quirks: several questions use the same tool name with other parameters, so that each name gets a checksum
(verl_ext/tools/catalogue/formats/toolhop.py). The code in `functions` runs in the sandbox (docs/sandbox.md), as in the
benchmark; --simulated leaves it out, and then, or in copies without it, a simulator plays the tools, whose
documentation has the answer of their sub-question. The path names them without arguments, and in some copies its order
is lost. A question shows its own tools, all of which it needs, as in the benchmark.

Writes test.parquet and tools.jsonl, the questions as the catalogue reads them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from verl_ext.data_prep.rows import Row, decoded, fetch_json, local_file, numbered, read_rows
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask
from verl_ext.tools.catalogue.formats.toolhop import tools_of

NAME = "toolhop"
HUB = "https://huggingface.co/datasets/bytedance-research/ToolHop/resolve/main/data/ToolHop.json"
FILES = ("toolhop_100.jsonl", "toolhop.jsonl", "ToolHop.json", "data/ToolHop.json")
KEPT = ("id", "question", "answer", "sub_task", "tools", "functions")


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Read the questions. Raises ValueError."""
    prepared, simulated = Prepared(files={"tools.jsonl": []}), arguments.simulated
    for where, row in _source(arguments.local_dataset_path):
        prepared.read += 1
        row = {key: decoded(row[key]) for key in KEPT if key in row and not (key == "functions" and simulated)}
        question, answer = row.get("question"), row.get("answer")
        if not isinstance(question, str) or not question.strip():
            prepared.reject("no question", where)
        elif answer is None or not str(answer).strip():
            prepared.reject("no answer", where)
        elif not row.get("tools"):
            prepared.reject("no tools", where)
        else:
            names = [tool.name for tool in tools_of(row, where)]
            prepared.tasks.append(ToolTask(str(row["id"]), question.strip(), names, [str(answer)], NAME))
            prepared.files["tools.jsonl"].append(row)
    coded = sum(bool(row.get("functions")) for row in prepared.files["tools.jsonl"])
    prepared.notes.append(f"questions whose tools have code, which runs in the sandbox: {coded}")
    return prepared


def _source(path: Path | None) -> Iterator[Row]:
    return numbered(fetch_json(HUB), "ToolHop.json") if path is None else read_rows(local_file(path, FILES))


def options(parser: argparse.ArgumentParser) -> None:
    """ToolHop's own options."""
    parser.add_argument("--simulated", action="store_true", help="leave the tools' code out: a simulator plays them")
