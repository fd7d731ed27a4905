"""Results that were recorded of real calls, by (tool, arguments).

Read from the folder of StableToolBench's cache, see toolbench.py, or from API-Bank's files (jsonl), in either
of two forms:

    {"turns": [..., {"role": "API", "api_name": "GetUserToken", "param_dict": {"username": "JaneSmith", ...},
                     "result": {"input": {...}, "output": {"token": "o8i7u6"}, "exception": null}}]}       dialogues
    {"apis": [{"api_name": "QueryMeeting", "input": {"user_name": "John"},
               "output": {"input": {...}, "output": {...}, "exception": null}}]}                           level 3

API-Bank's calls are texts of Python, so that numbers and lists came in quotes ("room_count": "1"); `result.input` has
them as the API took them. A result is found by either. Where the same call was recorded twice with different results
(its database had changed), the first one counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.tools.catalogue.formats.files import Paths, as_paths, field, read_rows
from verl_ext.tools.catalogue.recorded import toolbench
from verl_ext.tools.catalogue.types import CallError, ToolSpec, as_json, canonical
from verl_ext.tools.retrieval.index import file_sha256

EXPECTED = (
    '{"turns": [{"role": "API", "api_name", "param_dict", "result"}]} or {"apis": [{"api_name", "input", "output"}]}'
)


class Recorded:
    """Recorded results by tool and arguments."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], tuple[Any, str | None]] = {}
        self.conflicts = 0  # calls recorded again with another result

    @classmethod
    def load(cls, path: Paths, tools: Iterable[ToolSpec] = ()) -> Recorded:
        """Results of API-Bank's files and of StableToolBench's folders.

        Args:
            tools: the catalogue's; of a folder only their results are read, under their names.

        Raises:
            ValueError: a file is missing, or malformed.
        """
        recorded, tools = cls(), list(tools)
        for one in as_paths(path):
            for call in toolbench.calls(one, tools) if one.is_dir() else _api_bank(one):
                recorded.add(*call)
        return recorded

    def add(self, name: str, arguments: Mapping[str, Any], result: Any, error: str | None = None) -> None:
        """Record a result, or the error that the tool answered with. The first one of a call is kept."""
        entry = (result, error)
        self.conflicts += self._results.setdefault((name, canonical(arguments)), entry) != entry

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, call: tuple[str, Any]) -> bool:
        """Whether a call (name, arguments) is recorded; arguments may be anything an agent wrote."""
        name, arguments = call
        try:
            return isinstance(arguments, Mapping) and (name, canonical(as_json(arguments))) in self._results
        except (ValueError, RecursionError):  # no JSON
            return False

    def tools(self) -> set[str]:
        """Names of the tools of which something is recorded."""
        return {name for name, _ in self._results}

    def get(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The recorded result of a call.

        Raises:
            KeyError: nothing is recorded of this call.
            CallError: the tool had answered with an error.
        """
        result, error = self._results[name, canonical(arguments)]
        if error is not None:
            raise CallError(error)
        return result


def content_of(path: Paths) -> list[str]:
    """Hashes of recordings' files and folders: what answers depend on, wherever they lie."""
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
