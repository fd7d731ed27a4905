"""Recorded results of real calls, by (tool, arguments).

They come from the folder of StableToolBench's cache, see toolbench.py, or from API-Bank's files (jsonl), in either of
two forms:

    {"turns": [..., {"role": "API", "api_name": "GetUserToken", "param_dict": {"username": "JaneSmith", ...},
                     "result": {"input": {...}, "output": {"token": "o8i7u6"}, "exception": null}}]}       dialogues
    {"apis": [{"api_name": "QueryMeeting", "input": {"user_name": "John"},
               "output": {"input": {...}, "output": {...}, "exception": null}}]}                           level 3

API-Bank's calls are Python source in which numbers and lists are quoted ("room_count": "1"); `result.input` has them as
the API read them. Both forms find the result. If the same call was recorded twice with different results, because its
database had changed, the first one counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.storage.files import file_sha256
from verl_ext.tools.catalogue.formats.files import Paths, as_paths, field, read_rows
from verl_ext.tools.catalogue.recorded import toolbench
from verl_ext.tools.catalogue.types import CallError, ToolSpec, as_json, canonical

EXPECTED = (
    '{"turns": [{"role": "API", "api_name", "param_dict", "result"}]} or {"apis": [{"api_name", "input", "output"}]}'
)


class Recorded:
    """Recorded results by tool and arguments."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], tuple[Any, str | None]] = {}

    @classmethod
    def load(cls, path: Paths, tools: Iterable[ToolSpec] = ()) -> Recorded:
        """Results of API-Bank's files and of StableToolBench's folders.

        Args:
            tools: of the catalogue; only their results are read from a folder, under their names.

        Raises:
            ValueError: a file is missing, or malformed.
        """
        recorded, tools = cls(), list(tools)
        for one in as_paths(path):
            for call in toolbench.calls(one, tools) if one.is_dir() else _api_bank(one):
                recorded.add(*call)
        return recorded

    def add(self, name: str, arguments: Mapping[str, Any], result: Any, error: str | None = None) -> None:
        """Record a result, or the error with which the tool answered. The first record of a call is kept."""
        self._results.setdefault((name, canonical(arguments)), (result, error))

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, call: tuple[str, Any]) -> bool:
        """Whether a call (name, arguments) is recorded; the arguments may be any value that an agent wrote."""
        name, arguments = call
        try:
            return isinstance(arguments, Mapping) and (name, canonical(as_json(arguments))) in self._results
        except (ValueError, RecursionError):  # no JSON
            return False

    def tools(self) -> set[str]:
        """Names of the tools that have recorded results."""
        return {name for name, _ in self._results}

    def get(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The recorded result of a call.

        Raises:
            KeyError: the call is not recorded.
            CallError: the recorded answer is an error.
        """
        result, error = self._results[name, canonical(arguments)]
        if error is not None:
            raise CallError(error)
        return result


def content_of(path: Paths) -> list[str]:
    """Hashes of the contents of recordings' files and folders, independent of their paths."""
    return [_folder_sha256(one) if one.is_dir() else file_sha256(one) for one in as_paths(path)]


def _folder_sha256(folder: Path) -> str:
    files = sorted(folder.glob("*/*/*.json"))
    return hashlib.sha256(
        "\n".join(f"{'/'.join(one.parts[-3:])} {file_sha256(one)}" for one in files).encode()
    ).hexdigest()


def _api_bank(path: Path) -> Iterator[toolbench.Call]:
    for where, row in read_rows(path, EXPECTED):
        for name, inputs, answer in _calls(row, where):
            error = answer.get("exception")
            for arguments in inputs:
                yield name, arguments, answer.get("output"), None if error is None else str(error)


def _calls(row: Mapping[str, Any], where: str) -> Iterator[tuple[str, list[Any], Mapping[str, Any]]]:
    """(tool's name, the forms of its arguments, its answer) of each recorded call of a row."""
    if "turns" in row:
        turns = [turn for turn in field(row, "turns", list, where) if turn.get("role") == "API"]
        calls = [(turn, "param_dict", "result") for turn in turns]
    else:
        calls = [(call, "input", "output") for call in field(row, "apis", list, where)]
    for call, inputs, output in calls:
        answer = field(call, output, dict, where)
        taken = [answer["input"]] if isinstance(answer.get("input"), Mapping) else []
        yield field(call, "api_name", str, where), [field(call, inputs, dict, where), *taken], answer
