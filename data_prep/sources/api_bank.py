"""API-Bank: dialogues and requirements with the API calls that they need, and what those calls returned
(https://github.com/AlibabaResearch/DAMO-ConvAI/tree/main/api-bank).

    python data_prep/tools.py api_bank --output_dir data/api_bank --local_dataset_path DAMO-ConvAI/api-bank

A dialogue (levels 1 and 2; a folder of the repository has one file per dialogue, a turn per line):
    {"file": "…-level-2-1.jsonl", "level": 2, "turns": [{"role": "User", "text": "Can you add a schedule …"}, …,
     {"role": "API", "api_name": "GetUserToken", "param_dict": {"username": "JaneSmith", "password": "password"},
      "result": {"input": {…}, "output": {"token": "o8i7u6y5t4r3e2w1q0"}, "exception": null}}, …]}
A requirement (level 3):
    {"requirement": "Query meeting of John and send email reminder to john@example.com.", "response": "…",
     "apis": [{"api_name": "ToolSearcher", "input": {"keywords": "QueryMeeting"}, "output": {…}},
              {"api_name": "QueryMeeting", …}]}

--unit dialogue (default): a task is a dialogue; the agent reads what user and assistant say up to its last call,
without the calls, and makes all of them. So Success and Path of DeepAgent's Table 1 are counted. --unit turn: a task is
one API call, after the dialogue before it with its earlier calls and their results: API-Bank's own accuracy at levels 1
and 2.

Its quirks: calls are Python expressions, in which some numbers are quoted; the gold arguments are those that the API
received (`result.input`). ToolSearcher is API-Bank's own tool search: `tool_search` replaces it, and its calls are not
in the path. Some arguments are not in the dialogue (a date "tomorrow", a password that nobody mentions).

Writes test.parquet, tools.jsonl (the catalogue) and recorded.jsonl (what all calls returned; tool_call's `recorded`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_ext.data_prep.rows import Row, decoded, list_field, local_file, read_rows, text_field
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask
from verl_ext.tools.catalogue.formats import api_bank

SEARCHER = "ToolSearcher"
UNITS = ("dialogue", "turn")
DIALOGUES, REQUIREMENTS = "lv1_lv2_dialogues.jsonl", "test_level-3.jsonl"
SAMPLES = "lv1-lv2-samples"  # of the repository: a folder per set, a file per dialogue
LEVEL_3 = (REQUIREMENTS, "test-data/level-3.json")
CATALOGUES = ("tool_catalogue.jsonl", "all_apis_101.jsonl")
INSTRUCTIONS = {
    "dialogue": "Do what the user of this dialogue asks for, by calling the APIs that it takes:",
    "turn": "Make the one API call that comes next in this dialogue:",
}


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Read all levels. Raises ValueError."""
    path = arguments.local_dataset_path
    if path is None:
        raise ValueError(
            "API-Bank's dialogues lie in its repository, a file each. Remedy: git clone --depth 1 "
            "https://github.com/AlibabaResearch/DAMO-ConvAI, then --local_dataset_path DAMO-ConvAI/api-bank"
        )
    prepared = Prepared()
    catalogue = arguments.catalogue or local_file(path, CATALOGUES)
    known = {tool.name for tool in api_bank.load(catalogue)}
    prepared.files["tools.jsonl"] = [
        row for _, row in read_rows(catalogue) if row.get("name", row.get("类名")) in known
    ]
    prepared.files["recorded.jsonl"] = recorded = []
    for where, row in dialogues(path):
        _take(prepared, where, row, from_dialogue(row, where, arguments.unit), known)
        recorded.append({"turns": row["turns"]})
    for number, (where, row) in enumerate(_requirements(path)):
        name = f"level-3-{number}"
        _take(prepared, where, {"file": name}, [from_requirement(row, where, name)], known)
        recorded.append({"apis": row["apis"]})
    calls = [call for row in recorded for call in row.get("turns") or row.get("apis") or []]
    out = sum(call.get("api_name") == SEARCHER for call in calls)
    prepared.notes.append(f"left out of the paths: {out} calls of {SEARCHER}, which tool_search takes the place of")
    return prepared


def dialogues(path: Path) -> Iterator[Row]:
    """Dialogues of levels 1 and 2: of one file, or of the repository's folders. Raises ValueError."""
    if path.is_file() or (path / DIALOGUES).is_file():
        yield from ((where, row) for where, row in read_rows(local_file(path, [DIALOGUES])) if "turns" in row)
        return
    files = sorted((path / SAMPLES).rglob("*.jsonl"))
    if not files:
        raise ValueError(f"--local_dataset_path {path} holds neither {DIALOGUES} nor {SAMPLES}/*/*.jsonl.")
    for file in files:
        level = next((level for level in (1, 2, 3) if f"level-{level}" in file.stem), 0)
        yield str(file), {"file": file.name, "level": level, "turns": [turn for _, turn in read_rows(file)]}


def from_dialogue(row: dict[str, Any], where: str, unit: str) -> list[ToolTask]:
    """The tasks of a dialogue: one, or one per call. Without calls there is none. Raises ValueError."""
    turns = list_field(row, "turns", where)
    for number, turn in enumerate(turns, 1):
        _check_turn(turn, f"{where}: turn {number}")
    name, level = Path(text_field(row, "file", where)).stem, row.get("level")
    calls = [number for number, turn in enumerate(turns) if turn.get("role") == "API" and turn["api_name"] != SEARCHER]
    if not calls:
        return []
    whole = unit == "dialogue"
    tasks = []
    for asked in [calls] if whole else [[number] for number in calls]:
        question = "\n".join([INSTRUCTIONS[unit], *_lines(turns[: asked[-1]], calls=not whole)])
        path = [gold_call(turns[number], "param_dict", "result") for number in asked]
        task_id = name if whole else f"{name}-turn{asked[-1]}"
        tasks.append(ToolTask(task_id, question, path, data_source=f"api_bank_level{level}"))
    return tasks


def from_requirement(row: dict[str, Any], where: str, task_id: str) -> ToolTask:
    """A task of level 3. Raises ValueError."""
    apis = list_field(row, "apis", where)
    for number, call in enumerate(apis, 1):
        _check_call(call, "input", "output", f"{where}: API call {number}")
    calls = [call for call in apis if call["api_name"] != SEARCHER]
    path = [gold_call(call, "input", "output") for call in calls]
    return ToolTask(task_id, text_field(row, "requirement", where), path, data_source="api_bank_level3")


def gold_call(call: dict[str, Any], arguments: str, result: str) -> dict[str, Any]:
    """A call with the arguments that the API received, or with the written ones if the result does not show them."""
    taken = (decoded(call.get(result)) or {}).get("input")
    return {"name": call["api_name"], "arguments": taken if isinstance(taken, dict) else decoded(call[arguments])}


def _check_turn(turn: Any, where: str) -> None:
    """Raises ValueError: a turn of a dialogue has neither a text nor a call."""
    if not isinstance(turn, dict):
        raise ValueError(f"{where}: given {turn!r:.80}, expected an object with a role.")
    if text_field(turn, "role", where) == "API":
        _check_call(turn, "param_dict", "result", where)
    else:
        text_field(turn, "text", where)


def _check_call(call: Any, arguments: str, result: str, where: str) -> None:
    """Raises ValueError: a call has no name, or its arguments or its result cannot be read."""
    if not isinstance(call, dict):
        raise ValueError(f"{where}: given {call!r:.80}, expected an object with api_name.")
    text_field(call, "api_name", where)
    if not isinstance(decoded(call.get(arguments)), dict):
        raise ValueError(f"{where}: field '{arguments}': given {call.get(arguments)!r:.80}, expected an object.")
    if not isinstance(decoded(call.get(result)), dict | None):
        raise ValueError(f"{where}: field '{result}': given {call[result]!r:.80}, expected an object or null.")


def _take(prepared: Prepared, where: str, row: dict[str, Any], tasks: list[ToolTask], known: set[str]) -> None:
    prepared.read += 1
    if not any(task.path for task in tasks):
        prepared.reject("no call", str(row.get("file", where)))
        return
    for task in tasks:
        unknown = [name for name in task.tools if name not in known]
        if unknown:
            prepared.reject(f"APIs that the catalogue does not have, e.g. {unknown[0]}", task.id)
        else:
            prepared.tasks.append(task)


def _lines(turns: list[dict[str, Any]], calls: bool) -> Iterator[str]:
    """The dialogue in words, with its calls and their results or without."""
    for turn in turns:
        if turn["role"] != "API":
            yield f"{'User' if turn['role'] == 'User' else 'Assistant'}: {turn['text'].strip()}"
        elif calls and turn["api_name"] != SEARCHER:
            gold = gold_call(turn, "param_dict", "result")
            output = json.dumps((turn.get("result") or {}).get("output"), ensure_ascii=False)
            yield f"API call: {json.dumps(gold, ensure_ascii=False)} -> {output}"


def _requirements(path: Path) -> Iterator[Row]:
    if path.is_file():
        yield from ((where, row) for where, row in read_rows(path) if "requirement" in row)
    elif any((path / name).is_file() for name in LEVEL_3):
        yield from read_rows(local_file(path, LEVEL_3))


def options(parser: argparse.ArgumentParser) -> None:
    """API-Bank's own options."""
    parser.add_argument("--unit", choices=UNITS, default="dialogue", help="what a task is at levels 1 and 2")
    parser.add_argument("--catalogue", type=Path, help="jsonl of the tools, if it does not lie in the folder")
