"""ToolHop: every question brings its own tools, one per sub-question, with their parameters as JSON Schema.

    {"id": "toolhop-001", "question": "...", "sub_task": {"Who is the father of ...?": "John II", ...},
     "tools": {"Who is the father of ...?": {"name": "genealogy_query", "description": "...", "parameters": {...}}}}

Several questions use the same name with different parameters (genealogy_query has a dozen forms), so the question's id
is appended: genealogy_query_toolhop-001. The name does not depend on which other rows are loaded. A question's tools
have its id as `extra["question_id"]`. If two sub-questions of a question use the same name, the second one ends in _2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_ext.tools.catalogue.formats.files import Paths, field, read_rows
from verl_ext.tools.catalogue.types import ToolSpec

EXPECTED = '{"id", "tools": {sub-question: {"name", "description", "parameters"}}, "sub_task": {sub-question: answer}}'


def load(path: Paths) -> list[ToolSpec]:
    """The tools of all questions of jsonl files, in order.

    `extra` has the question's id, the tool's own name, its sub-question and the answer to it, so that a simulator can
    answer a correct call.

    Raises:
        ValueError: a file is missing, or a row is malformed.
    """
    return [tool for where, row in read_rows(path, EXPECTED) for tool in tools_of(row, where)]


def tools_of(row: Mapping[str, Any], where: str) -> list[ToolSpec]:
    """The tools of one question, in its order; see `load`. Raises ValueError for a malformed row."""
    if not isinstance(row.get("id"), str | int) or isinstance(row.get("id"), bool):
        raise ValueError(f"{where}: field 'id' must be a text or a number, given {row.get('id')!r:.80}")
    answers = row.get("sub_task")
    answers = answers if isinstance(answers, Mapping) else {}
    found: dict[str, ToolSpec] = {}
    for question, tool in field(row, "tools", dict, where).items():
        place = f"{where}: tool of {question!r:.80}"
        if not isinstance(tool, Mapping):
            raise ValueError(f"{place}: given {type(tool).__name__}, expected {EXPECTED}")
        own, parameters = field(tool, "name", str, place), field(tool, "parameters", dict, place)
        name, number = f"{own}_{row['id']}", 2
        while name in found:
            name, number = f"{own}_{row['id']}_{number}", number + 1
        extra = {"question_id": row["id"], "tool": own, "sub_question": question, "answer": answers.get(question)}
        description = field(tool, "description", str, place).strip()
        found[name] = ToolSpec(name, description, parameters, None, "toolhop", extra)
    return list(found.values())
