"""ToolHop: multi-hop questions, each with tools of its own (https://huggingface.co/datasets/bytedance-research/ToolHop,
CC BY 4.0).

One row, shortened:
    {"id": 202, "question": "What is the sum of all the digits in … the date of death of Raoul I Of Brienne … father?",
     "answer": "15", "sub_task": {"Who is the father of Raoul I Of Brienne …?": "John II of Brienne, Count of Eu", …},
     "tools": {"Who is the father of Raoul I Of Brienne …?": {"name": "genealogy_query", "description": "…",
     "parameters": {…}}, …}, "functions": ["def genealogy_query(…)", …]}
Its quirks: names of tools come back in other questions with other parameters, so that each gets its question's id
(verl_ext/tools/catalogue/formats/toolhop.py). The code in `functions` is left out, and never run: a simulator plays
the tools, whose documentation has the answer of their sub-question. The path names them without arguments, and some
copies have lost its order.

    python data_prep/toolhop.py --output_dir data/toolhop

Writes test.parquet and tools.jsonl, the questions as the catalogue reads them.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from verl_ext.data_prep.common import Row, checked_row, decoded, read_rows
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask, fetch_json, local_file, main
from verl_ext.tools.catalogue.formats.toolhop import tools_of

NAME = "toolhop"
HUB = "https://huggingface.co/datasets/bytedance-research/ToolHop/resolve/main/data/ToolHop.json"
FILES = ("toolhop_100.jsonl", "toolhop.jsonl", "ToolHop.json", "data/ToolHop.json")
KEPT = ("id", "question", "answer", "sub_task", "tools")


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Read the questions. Raises ValueError."""
    prepared = Prepared(files={"tools.jsonl": []})
    for where, row in _source(arguments.local_dataset_path):
        prepared.read += 1
        row = {key: decoded(row[key]) for key in KEPT if key in row}
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
    return prepared


def _source(path: Path | None) -> Iterator[Row]:
    if path is None:
        yield from (checked_row(f"ToolHop.json row {number}", row) for number, row in enumerate(fetch_json(HUB), 1))
        return
    yield from read_rows(local_file(path, FILES))


if __name__ == "__main__":
    sys.exit(main(prepare, __doc__))
