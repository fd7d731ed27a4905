"""API-Bank: dialogues and requirements with the API calls that they need, and what those calls returned
(https://github.com/AlibabaResearch/DAMO-ConvAI/tree/main/api-bank).

    python data_prep/tools.py api_bank --output_dir data/api_bank --local_dataset_path DAMO-ConvAI/api-bank
    python data_prep/tools.py api_bank --output_dir data/api_bank_3 --local_dataset_path API-Bank --levels 3

A dialogue (levels 1 and 2; a folder of the repository has one file per dialogue, a turn per line):
    {"file": "…-level-2-1.jsonl", "level": 2, "turns": [{"role": "User", "text": "Can you add a schedule …"}, …,
     {"role": "API", "api_name": "GetUserToken", "param_dict": {"username": "JaneSmith", "password": "password"},
      "result": {"input": {…}, "output": {"token": "o8i7u6y5t4r3e2w1q0"}, "exception": null}}, …]}
A requirement (level 3):
    {"requirement": "Query meeting of John and send email reminder to john@example.com.", "response": "…",
     "apis": [{"api_name": "ToolSearcher", "input": {"keywords": "QueryMeeting"}, "output": {…}},
              {"api_name": "QueryMeeting", …}]}

The level is that of the folder, level-1-given-desc or level-2-toolsearcher; the number in a file's name is another one.
Level 1 shows the APIs of its dialogue. Levels 2 and 3 show none but the search. DeepAgent's two scenarios are level 1
with the APIs shown (--unit end_to_end: 112 of its 114 dialogues have calls) and level 3 (50 requirements;
test-data/level-3.json is on the hub, liminghao1630/API-Bank, and not in the repository). Level 3 has an AddMeeting and
a QueryMeeting of its own, hence a folder of its own.

--unit dialogue (default): a task is a dialogue; the agent reads what user and assistant say up to its last call,
without the calls, and makes all of them. --unit end_to_end: only dialogues in which the user has said everything before
the first call, up to the user's last words, as DeepAgent's Table 1 counts. --unit turn: a task is one API call, after
the dialogue before it with its earlier calls and their results: API-Bank's own accuracy at levels 1 and 2.

Its quirks: calls are Python expressions, in which some numbers are quoted; the gold arguments are those that the API
received (`result.input`). ToolSearcher is API-Bank's own tool search: `tool_search` replaces it, and its calls are not
in the path. Some arguments are not in the dialogue (a date "tomorrow", a password that nobody mentions). The
tools are described in the code of apis/ and lv3_apis/, which is parsed and not run; data/all_apis.csv has further ones.

Writes test.parquet, tools.jsonl (the catalogue) and recorded.jsonl (what all calls returned; tool_call's `recorded`).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_ext.data_prep.rows import Row, decoded, list_field, local_file, read_rows, text_field
from verl_ext.data_prep.tool_tasks import Prepared, ToolTask
from verl_ext.tools.catalogue.formats import api_bank

SEARCHER = "ToolSearcher"
LEVELS = (1, 2, 3)
UNITS = ("dialogue", "end_to_end", "turn")
DIALOGUES, REQUIREMENTS = "lv1_lv2_dialogues.jsonl", "test_level-3.jsonl"
SAMPLES = "lv1-lv2-samples"  # of the repository: a folder per set, a file per dialogue
END_TO_END = "-e2e"  # of DeepAgent's copy: dialogues of level 1 once more, see --unit end_to_end
LEVEL_3 = (REQUIREMENTS, "test-data/level-3.json")
CATALOGUES = ("tool_catalogue.jsonl", "all_apis_101.jsonl", "data/all_apis.csv")
CODE = {"apis": (1, 2), "lv3_apis": (3,)}  # of the repository: a class per API, in which its description stands
INSTRUCTION = "Do what the user of this dialogue asks for, by calling the APIs that it takes:"
INSTRUCTIONS = dict.fromkeys(UNITS, INSTRUCTION) | {"turn": "Make the one API call that comes next in this dialogue:"}


def prepare(arguments: argparse.Namespace) -> Prepared:
    """Read the levels. Raises ValueError."""
    path, levels = arguments.local_dataset_path, arguments.levels
    if path is None:
        raise ValueError(
            "API-Bank's dialogues lie in its repository, a file each. Remedy: git clone --depth 1 "
            "https://github.com/AlibabaResearch/DAMO-ConvAI, then --local_dataset_path DAMO-ConvAI/api-bank"
        )
    prepared = Prepared()
    catalogue = _catalogue(path, arguments.catalogue, levels)
    known = {tool.name for tool in api_bank.tools_of(catalogue)}
    prepared.files["tools.jsonl"] = [row for _, row in catalogue if row.get("name", row.get("类名")) in known]
    prepared.files["recorded.jsonl"] = recorded = []
    for where, row in dialogues(path) if {1, 2} & set(levels) else ():
        if row["level"] in levels:
            row = _read(row, "turns", ("param_dict", "result"), where)
            _take(prepared, where, row, from_dialogue(row, where, arguments.unit), known)
            recorded.append({"turns": row["turns"]})
    for number, (where, row) in enumerate(_requirements(path) if 3 in levels else ()):
        name, row = f"level-3-{number}", _read(row, "apis", ("input", "output"), where)
        _take(prepared, where, {"file": name}, [from_requirement(row, where, name)], known)
        recorded.append({"apis": row["apis"]})
    calls = [call for row in recorded for call in row.get("turns") or row.get("apis") or []]
    out = sum(call.get("api_name") == SEARCHER for call in calls)
    prepared.notes.append(f"left out of the paths: {out} calls of {SEARCHER}, which tool_search takes the place of")
    return prepared


def _read(row: dict[str, Any], calls: str, fields: Sequence[str], where: str) -> dict[str, Any]:
    """The row with its list of calls, and their fields, which are JSON texts in some copies. Raises ValueError."""
    given = list_field(row, calls, where)
    read = [{key: decoded(one[key]) for key in fields if key in one} if isinstance(one, dict) else {} for one in given]
    return {**row, calls: [{**one, **own} if own else one for one, own in zip(given, read, strict=True)]}


def dialogues(path: Path) -> Iterator[Row]:
    """Dialogues of levels 1 and 2: of one file, or of the repository's folders. Raises ValueError."""
    if path.is_file() or (path / DIALOGUES).is_file():
        for where, row in read_rows(local_file(path, [DIALOGUES])):
            if "turns" in row:
                yield where, {**row, "level": _level(row.get("set", row.get("level")), where)}
        return
    files = [file for level in (1, 2) for file in sorted((path / SAMPLES).glob(f"level-{level}-*/*.jsonl"))]
    files = [file for file in files if not file.parent.name.endswith(END_TO_END)]
    if not files:
        raise ValueError(f"--local_dataset_path {path} holds neither {DIALOGUES} nor {SAMPLES}/level-*/*.jsonl.")
    for file in files:
        level = _level(file.parent.name, str(file))
        yield str(file), {"file": file.name, "level": level, "turns": [turn for _, turn in read_rows(file)]}


def _level(name: Any, where: str) -> int:
    """1 or 2, of a level or of the name of its folder. Raises ValueError."""
    found = re.fullmatch(r"(?:level-)?([12])(?:-.*)?", str(name))
    if not found:
        raise ValueError(
            f"{where}: given level {name!r:.80}, expected 1, 2, level-1-given-desc or level-2-toolsearcher."
        )
    return int(found[1])


def from_dialogue(row: dict[str, Any], where: str, unit: str) -> list[ToolTask]:
    """The tasks of a dialogue: one, or one per call. None without calls, or where the unit leaves it out.

    Raises:
        ValueError: a turn is malformed.
    """
    turns = list_field(row, "turns", where)
    for number, turn in enumerate(turns, 1):
        _check_turn(turn, f"{where}: turn {number}")
    name, level = Path(text_field(row, "file", where)).stem, row.get("level")
    calls = [number for number, turn in enumerate(turns) if turn.get("role") == "API" and turn["api_name"] != SEARCHER]
    if not calls:
        return []
    whole = unit != "turn"
    shown = [turns[number]["api_name"] for number in calls] if level == 1 else []
    tasks = []
    for asked in [calls] if whole else [[number] for number in calls]:
        end = asked[-1]
        if unit == "end_to_end":
            end = 1 + max((number for number, turn in enumerate(turns) if turn["role"] == "User"), default=-1)
            if asked[0] < end:
                return []
        question = "\n".join([INSTRUCTIONS[unit], *_lines(turns[:end], calls=not whole)])
        path = [gold_call(turns[number], "param_dict", "result") for number in asked]
        task_id = name if whole else f"{name}-turn{asked[-1]}"
        tasks.append(ToolTask(task_id, question, path, data_source=f"api_bank_level{level}", shown=shown))
    return tasks


def from_requirement(row: dict[str, Any], where: str, task_id: str) -> ToolTask:
    """A task of level 3. Raises ValueError."""
    apis = list_field(row, "apis", where)
    for number, call in enumerate(apis, 1):
        _check_call(call, "input", "output", f"{where}: API call {number}")
    calls = [call for call in apis if call["api_name"] != SEARCHER]
    path = [gold_call(call, "input", "output") for call in calls]
    return ToolTask(task_id, text_field(row, "requirement", where), path, data_source="api_bank_level3", shown=[])


def gold_call(call: dict[str, Any], arguments: str, result: str) -> dict[str, Any]:
    """A call with the arguments that the API received, or with the written ones if the result does not show them."""
    taken = (call.get(result) or {}).get("input")
    return {"name": call["api_name"], "arguments": taken if isinstance(taken, dict) else call[arguments]}


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
    if not isinstance(call.get(arguments), dict):
        raise ValueError(f"{where}: field '{arguments}': given {call.get(arguments)!r:.80}, expected an object.")
    if not isinstance(call.get(result), dict | None):
        raise ValueError(f"{where}: field '{result}': given {call[result]!r:.80}, expected an object or null.")


def _take(prepared: Prepared, where: str, row: dict[str, Any], tasks: list[ToolTask], known: set[str]) -> None:
    prepared.read += 1
    if not any(task.path for task in tasks):
        prepared.reject("no call, or none that fits --unit", str(row.get("file", where)))
        return
    for task in tasks:
        unknown = [name for name in task.gold if name not in known]
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
    """Requirements of level 3. Raises ValueError."""
    for where, row in read_rows(local_file(path, LEVEL_3)):
        if "requirement" in row:
            yield where, row


def _catalogue(path: Path, given: Path | None, levels: Sequence[int]) -> list[Row]:
    """Descriptions of the tools: of a file, or of the code of the levels. Raises ValueError."""
    folders = [path / name for name, of in CODE.items() if set(of) & set(levels)]
    if given is None and all(folder.is_dir() for folder in folders):
        rows = [row for folder in folders for file in sorted(folder.glob("*.py")) for row in _described(file)]
    else:
        file = given or local_file(path, CATALOGUES)
        rows = [(where, row) for where, row in read_rows(file) if row.get("api_info") != ""]
    first: dict[str, Row] = {}
    for where, row in rows:
        other = first.setdefault(str(row.get("name", row.get("类名"))), (where, row))
        if other[1] != row:
            raise ValueError(
                f"{where}: {row.get('name')} is another tool at {other[0]}: levels 1 and 2 do not share a catalogue "
                "with level 3. Remedy: prepare --levels 3 into a folder of its own."
            )
    return list(first.values())


def _described(file: Path) -> Iterator[Row]:
    """The tools of a file of the repository's code: literals of its classes. The code is not run."""
    try:
        yield from ((f"{file}:{line}", row) for line, row in _classes(ast.parse(file.read_text(encoding="utf-8"))))
    except (ValueError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{file}: its classes must describe themselves in literals ({error}).") from error


def _classes(code: ast.Module) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, description) of the classes of parsed code that describe a tool."""
    for item in code.body:
        if not isinstance(item, ast.ClassDef) or item.name == SEARCHER:
            continue
        said: dict[str, Any] = {"name": item.name}
        for line in item.body:
            if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
                continue
            if line.targets[0].id in ("description", "input_parameters", "output_parameters"):
                said[line.targets[0].id] = ast.literal_eval(line.value)
        if "description" in said:
            yield item.lineno, said


def options(parser: argparse.ArgumentParser) -> None:
    """API-Bank's own options."""
    parser.add_argument("--levels", nargs="+", type=int, choices=LEVELS, default=[1], help="1 without it")
    parser.add_argument("--unit", choices=UNITS, default="dialogue", help="what a task is at levels 1 and 2")
    parser.add_argument("--catalogue", type=Path, help="jsonl or csv of the tools, if it does not lie in the folder")
