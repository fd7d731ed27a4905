"""Memory folding: the JSON schemas of the three memories that replace the history.

Source: DeepAgent, Section 3.4: episodic M_E (events, decisions, sub-tasks done), working M_W (goal, obstacles, plans),
tool M_T (which tools, how, how well). The fields' names are those of the authors' code (github.com/RUC-NLPIR/DeepAgent,
src/prompts/prompts_deepagent.py); Appendix D, which prints them, was not seen. Their descriptions are ours.
"""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

KINDS = ("episodic", "working", "tool")
MAX_CHARS = 20_000  # of one memory


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS = {
    "episodic": _object(
        task_description=_text("what is to be done"),
        key_events={
            "type": "array",
            "items": _object(
                step=_text("its number"),
                description=_text("what was done or decided"),
                outcome=_text("what came of it"),
            ),
            "description": "key events, decisions and finished sub-tasks, in order",
        },
        current_progress=_text("how far the task is, and what is left"),
    ),
    "working": _object(
        immediate_goal=_text("the current sub-goal"),
        current_challenges=_text("what stands in the way"),
        next_actions={
            "type": "array",
            "items": _object(type=_text("tool_call, planning or decision"), description=_text("what is to be done")),
            "description": "the next steps, in order",
        },
    ),
    "tool": _object(
        tools_used={
            "type": "array",
            "items": _object(
                tool_name=_text("as it is called"),
                success_rate={"type": ["number", "string"], "description": "share of its calls that worked"},
                effective_parameters=_texts("arguments that worked"),
                common_errors=_texts("how it failed"),
                response_pattern=_text("what its results look like"),
                experience=_text("how well it worked, and how to use it"),
            ),
            "description": "the tools tried so far",
        },
        derived_rules=_texts("what was learned about choosing and calling tools"),
    ),
}
# For the tiny model: the same memories in few words.
COMPACT = {
    "episodic": _object(events=_texts("what was found, in order")),
    "working": _object(goal=_text("what is left to be found")),
    "tool": _object(tools=_texts("names of the tools that worked")),
}


def read_memory(text: str, schema: dict[str, Any]) -> tuple[Any, str]:
    """(memory, "") if the text is JSON of that form, else (None, what is wrong). Never raises."""
    content = text.strip()
    if not content.startswith("{"):  # behind the reasoning; a memory may quote `</think>`
        content = (content.partition("</think>")[2] or content).strip()
    if content.startswith("```"):
        content = content.strip("`").removeprefix("json").strip()
    if len(content) > MAX_CHARS:
        return None, f"it has {len(content)} characters, allowed are {MAX_CHARS}"
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        return None, f"it is no JSON: {str(error)[:200] or type(error).__name__}"
    problem = next(Draft202012Validator(schema).iter_errors(said), None)
    if problem is not None:
        return None, f"{problem.json_path}: {problem.message[:200]}"
    return said, ""
