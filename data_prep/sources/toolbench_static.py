"""ToolBench-Static: single steps of ToolBench's dialogues, each with the right next one (Table 5 of JoyAgents-R1;
https://modelscope.cn/datasets/AI-ModelScope/ToolBench-Static, Apache-2.0).

    python data_prep/tools.py toolbench_static --sets in_domain --output_dir data/toolbench_in_domain \\
        --local_dataset_path FOLDER

The folder has in_domain.jsonl (1,588 rows) and out_of_domain.jsonl (781). One row, shortened:
    {"tools": [{"name": "get_place_by_ip_for_spott", "description": …, "parameters": "{'type': 'object', …}"}, …,
               {"name": "Finish", …}],
     "messages": [{"role": "system", "content": "You are AutoGPT, …"}, {"role": "user", "content": "I'm planning …"}],
     "target": "Thought: \\nAction: spott\\nAction Input: {\\n  \\"is_id\\": \\"city center\\"\\n}"}
Its quirks: parameters are Python literals as texts; some targets call what is not offered, as this one. Those rows are
left out, as in the published evaluation. The system message repeats the tools, and is not used.

A task is one step: `path` has the call that comes next; it is empty where the answer does, and calls Finish where the
step gives up. Writes test.parquet and tools.jsonl, the catalogue (kind json).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path
from typing import Any

from verl_ext.data_prep.rows import list_field, read_rows, text_field
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask

SETS = ("in_domain", "out_of_domain")
PLACE = "https://modelscope.cn/datasets/AI-ModelScope/ToolBench-Static"
FINISH, ANSWERS = "Finish", "give_answer"
STEP = re.compile(r"(?:Thought:)?(?P<thought>.*?)Action:(?P<name>.*?)Action Input:(?P<arguments>.*)", re.S)
INSTRUCTION = "Take the one step that comes next in this dialogue:"


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Read the rows of the sets. Raises ValueError."""
    path: Path | None = arguments.local_dataset_path
    if path is None or not path.is_dir():
        raise ValueError(f"ToolBench-Static is read from a folder. Download it from {PLACE}, and pass its folder")
    prepared = Prepared()
    tools: dict[str, dict[str, Any]] = {}
    for name in arguments.sets or SETS:
        file = path / f"{name}.jsonl"
        if not file.is_file():
            raise ValueError(f"{file} does not exist; allowed --sets: {', '.join(SETS)}")
        for number, (where, row) in enumerate(read_rows(file)):
            prepared.read += 1
            offered = {tool["name"]: tool for tool in (_tool(one, where) for one in list_field(row, "tools", where))}
            tools |= {name: tool for name, tool in offered.items() if name not in tools}
            try:
                path_of = _path(text_field(row, "target", where), offered)
            except ValueError as error:
                prepared.reject(str(error), f"{name}-{number}")
                continue
            question = "\n".join([INSTRUCTION, *_lines(list_field(row, "messages", where), where)])
            source = f"toolbench_static_{name}"
            prepared.tasks.append(ToolTask(f"{name}-{number}", question, path_of, (), source, list(offered)))
    prepared.files["tools.jsonl"] = list(tools.values())
    return prepared


def step_of(text: str) -> tuple[str, str, dict[str, Any]]:
    """(thought, name, arguments) of a step in ToolBench's words.

    Raises:
        ValueError: it calls nothing, or its arguments are no JSON object.
    """
    found = STEP.fullmatch(text.strip())
    if not found:
        raise ValueError("no call in the step")
    try:
        arguments = json.loads(found["arguments"] or "{}", strict=False)
    except ValueError:
        raise ValueError("arguments that are no JSON") from None
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are no JSON")
    return found["thought"].strip(), found["name"].strip(), arguments


def _path(target: str, offered: dict[str, Any]) -> list[dict[str, Any]]:
    _, name, arguments = step_of(target)
    if name not in offered:
        raise ValueError("a call of what is not offered")
    if name == FINISH and arguments.get("return_type") == ANSWERS:
        return []
    return [{"name": name, "arguments": {} if name == FINISH else arguments}]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    """Raises ValueError: it is no object with a name, or its parameters cannot be read."""
    try:
        parameters = tool.get("parameters") or {}
        if isinstance(parameters, str):
            parameters = ast.literal_eval(parameters)
        return {"name": tool["name"], "description": tool.get("description") or "", "parameters": parameters}
    except (AttributeError, KeyError, TypeError, SyntaxError, ValueError) as error:
        expected = "an object with a name, and parameters as an object or its Python literal"
        raise ValueError(f"{where}: field 'tools': given {tool!r:.120}, expected {expected} ({error}).") from error


def _lines(messages: list[Any], where: str) -> list[str]:
    """Raises ValueError: a message has no role or no text."""
    for number, one in enumerate(messages, 1):
        if not isinstance(one, dict):
            raise ValueError(f"{where}: message {number}: given {one!r:.80}, expected an object with role and content.")
    said = [(text_field(one, "role", where), text_field(one, "content", where)) for one in messages]
    return [f"{role}: {content}" for role, content in said if role != "system"]


def options(parser: argparse.ArgumentParser) -> None:
    """ToolBench-Static's own options."""
    parser.add_argument("--sets", nargs="+", default=[], choices=SETS, help="both without it")
