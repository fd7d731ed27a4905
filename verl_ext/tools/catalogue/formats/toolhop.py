"""ToolHop: every question brings its own tools, one per sub-question, with their parameters as JSON Schema.

    {"id": "toolhop-001", "question": "...", "sub_task": {"Who is the father of ...?": "John II", ...},
     "tools": {"Who is the father of ...?": {"name": "genealogy_query", "description": "...", "parameters": {...}}},
     "functions": ["def genealogy_query(name, ...): ...", ...]}

Several questions use the same name with different parameters (genealogy_query has a dozen forms), so a checksum of the
tool is appended: genealogy_query_3f9a1c. It does not tell the tool's question: an agent that has found one tool of a
question must not know the others by their names. Nor does it depend on which other rows are loaded.

Rows with `functions` bring the tools' code, which runs in the sandbox of tools/sandbox. The documentation of the others
has the answer of their sub-question, for a simulator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from verl_ext.tools.catalogue.formats.files import Paths, field, read_rows
from verl_ext.tools.catalogue.types import CallError, ToolSpec, canonical

EXPECTED = '{"id", "tools": {sub-question: {"name", "description", "parameters"}}, "sub_task": {sub-question: answer}}'
# The data set's own functions call only the standard library. What they return comes after this line.
MARK = "--- returned ---"
PROGRAM = """
import json as _json
try:
    _said = {{"result": {name}(**_json.loads({arguments!r}))}}
except Exception as _error:
    _said = {{"error": f"{{type(_error).__name__}}: {{_error}}"}}
print()
print({mark!r})
print(_json.dumps(_said, default=str))
"""
MAX_OUTPUT = 200_000


class Sandboxed:
    """A back end that runs the functions of ToolHop in a sandbox, one program a call.

    Attributes:
        code: tool -> (the code of its question, the name of its function).
    """

    def __init__(self) -> None:
        from verl_ext.tools.sandbox import run_python

        self.code: dict[str, tuple[str, str]] = {}
        self._python = run_python(max_output=MAX_OUTPUT)

    async def __call__(self, spec: ToolSpec, arguments: dict[str, Any]) -> Any:
        """What the function returns, as JSON. Raises CallError where it raises, or reaches a limit of the sandbox."""
        code, name = self.code[spec.extra["code"]]
        end = PROGRAM.format(name=name, arguments=json.dumps(arguments), mark=MARK)
        printed, marked, said = (await self._python(program=f"{code}\n{end}")).rpartition(f"{MARK}\n")
        try:
            answer = json.JSONDecoder().raw_decode(said)[0] if marked else {"error": printed or said}
        except ValueError:  # the output was cut
            answer = {"error": said}
        if "error" in answer:
            raise CallError(f"{answer['error']}"[-1000:])
        return answer["result"]

    def preflight(self) -> None:
        """Start a sandbox. Raises ValueError: this machine has none."""
        self._python.preflight()

    async def close(self) -> None:
        """End the sandbox."""
        await self._python.close()


def load(path: Paths) -> list[ToolSpec]:
    """The tools of all questions of jsonl files, in order, each once.

    Raises:
        ValueError: a file is missing, or a row is malformed.
    """
    backend = Sandboxed()
    rows = read_rows(path, EXPECTED)
    return list({tool.name: tool for where, row in rows for tool in tools_of(row, where, backend)}.values())


def tools_of(row: Mapping[str, Any], where: str, backend: Sandboxed | None = None) -> list[ToolSpec]:
    """The tools of one question, in its order; `extra` has a tool's own name, its sub-question and the answer to it.

    Args:
        backend: runs the row's functions, if it has any; then `extra` has no answer.

    Raises:
        ValueError: the row is malformed.
    """
    if not isinstance(row.get("id"), str | int) or isinstance(row.get("id"), bool):
        raise ValueError(f"{where}: field 'id' must be a text or a number, given {row.get('id')!r:.80}")
    answers = row.get("sub_task")
    answers = answers if isinstance(answers, Mapping) else {}
    functions = row.get("functions") or []
    if not isinstance(functions, list) or not all(isinstance(one, str) for one in functions):
        raise ValueError(f"{where}: field 'functions' must be a list of texts, given {functions!r:.80}")
    code = "\n\n".join(functions)
    found = []
    for question, tool in field(row, "tools", dict, where).items():
        place = f"{where}: tool of {question!r:.80}"
        if not isinstance(tool, Mapping):
            raise ValueError(f"{place}: given {type(tool).__name__}, expected {EXPECTED}")
        own, parameters = field(tool, "name", str, place), field(tool, "parameters", dict, place)
        description = field(tool, "description", str, place).strip()
        name = f"{own}_{_checksum([own, description, parameters, question, code])[:6]}"
        extra = {"tool": own, "sub_question": question, "answer": answers.get(question)}
        runs = backend if code else None
        if runs is not None:
            extra = {"tool": own, "sub_question": question, "code": _checksum([code, own])}
            runs.code[extra["code"]] = (code, own)
        found.append(ToolSpec(name, description, parameters, None, "toolhop", extra, runs))
    return found


def _checksum(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
