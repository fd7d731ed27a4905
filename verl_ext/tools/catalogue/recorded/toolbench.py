"""StableToolBench's cache of calls of ToolBench's APIs: a folder with one file per API.

    tool_response_cache/Data/theclique_for_Data/transfermarkt_search.json
    {"{'name': 'messi'}": {"error": "", "response": {"players": [...]}}, ...}

Folders and files have ToolBench's names of category, tool and API. Keys are the arguments as `str` writes a dict (or as
JSON), with ToolBench's names of the parameters. A non-empty `error` is the API's answer. server/main.py of
THUNLP-MT/StableToolBench writes these files (prepare_tool_name_and_url, save_cache).

A language model wrote a part of that cache, unchecked: malformed entries are left out with a warning.
"""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_ext.tools.catalogue.formats.files import read_document
from verl_ext.tools.catalogue.formats.toolbench import address, identifier, standard_name
from verl_ext.tools.catalogue.types import ToolSpec, as_json

logger = logging.getLogger(__name__)

EXPECTED = """{"{'name': 'messi'}": {"error": "", "response": ...}}"""
Call = tuple[str, dict[str, Any], Any, str | None]


def calls(folder: Path, tools: Iterable[ToolSpec] = ()) -> Iterator[Call]:
    """(tool's name, arguments, result, error or None) of every recorded call.

    Args:
        folder: tool_response_cache.
        tools: read only the files of these tools, and use their names and those of their parameters; without any
            tools, read all files, under `standard_name`.

    Raises:
        ValueError: the folder has no such files, one of them holds no JSON object, or all entries are malformed.
    """
    by_name = {tool.name: tool for tool in tools}
    files, left_out, good = _files(folder, by_name), [], 0
    for name, path in files:
        parameters = by_name[name].parameters.get("properties", {}) if by_name else {}
        own = {identifier(parameter): parameter for parameter in parameters}
        for key, answer in read_document(path).items():
            given = _arguments(key)
            if given is None or not isinstance(answer, Mapping) or not ("response" in answer or answer.get("error")):
                left_out.append(f"{path}: {key:.80}: {answer!r:.80}")
                continue
            good += 1
            arguments = {word if word in parameters else own.get(word, word): value for word, value in given.items()}
            yield name, arguments, answer.get("response"), str(answer["error"]) if answer.get("error") else None
    if left_out and not good:
        raise ValueError(f"{left_out[0]}: expected {EXPECTED}, as in StableToolBench's cache")
    if left_out:
        total = good + len(left_out)
        logger.warning("%s: %d of %d entries are left out, e.g. %s", folder, len(left_out), total, left_out[0])


def _files(folder: Path, by_name: Mapping[str, ToolSpec]) -> list[tuple[str, Path]]:
    """(tool's name, file). Files in the category of the tool come first: RapidAPI lists some tools under several."""
    paths = sorted(folder.glob("*/*/*.json"))
    if not paths:
        raise ValueError(
            f"{folder} has no files CATEGORY/TOOL/API.json; expected StableToolBench's tool_response_cache, or files "
            "of API-Bank"
        )
    names: dict[tuple[str, ...], list[str]] = {}
    for tool in by_name.values():
        if tool.source == "toolbench":
            place = address(*(tool.extra[key] for key in ("category_name", "tool_name", "api_name")))
            names.setdefault(place, []).append(tool.name)
    exact, others = [], []
    for path in paths:
        category, tool_name = path.parts[-3:-1]
        place = address(category, tool_name.removesuffix(f"_for_{category}"), path.stem)
        exact += [(name, path) for name in names.get(place, ())]
        others += [] if place in names else [(standard_name(place[2], place[1]), path)]
    found = [(name, path) for name, path in exact + others if not by_name or name in by_name]
    if not found:
        logger.warning("%s: none of its %d files belongs to a tool of the catalogue", folder, len(paths))
    return found


def _arguments(text: str) -> dict[str, Any] | None:
    """The arguments that a key encodes; None if it encodes none."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = as_json(read(text))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, dict) else None
    return None
