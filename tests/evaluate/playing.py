"""Chat servers that play a system's roles by rule: the tools of the simulator, and DeepAgent's agent and auxiliary.

They check the path of an evaluation, not a model: the competent agent is told the gold calls. The Smurfs and their
baselines: playing_smurfs.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.serving import answer, question_of
from verl_ext.recipe.deepagent.grammar import STOPS, STOPS_WITHOUT_FOLD
from verl_ext.tools.catalogue import Catalogue

DONE = re.compile(r"(\d+) calls are done")


def fill(schema: Any, root: Any = None) -> Any:
    """The smallest value of a JSON Schema, by rule."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        return fill(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    for key in ("const", "default", "example"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return fill(schema[key][0], root)
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: fill(properties.get(name, {}), root) for name in schema.get("required", [])}
    if kind == "array":
        return [fill(schema.get("items", {}), root)] * max(1, schema.get("minItems", 1))
    least = max(1, schema.get("minimum", 1))
    return {"integer": int(least), "number": least, "boolean": True, "null": None}.get(kind, "x")


def calls_of(path: list[Any], catalogue: Catalogue) -> list[dict[str, Any]]:
    """Gold calls with arguments: their own, or some that fit the tool's schema."""
    calls = []
    for one in path:
        named = {"name": one, "arguments": fill(catalogue[one].parameters)} if isinstance(one, str) else one
        calls.append({key: named[key] for key in ("name", "arguments")})
    return calls


class ToolPlayer:
    """What `tests.serving.ChatServer` does: it plays the tools; who plays the agents says so in `role`.

    Args:
        rows: of the parquet file. catalogue: of the run.
        competent: False: the agents do nothing right.

    Attributes:
        plans: question -> (gold calls, answer).
        asked: requests per role. bodies: all of them. said: what the tools answer instead of a result, if not "".
    """

    def __init__(self, rows: list[dict[str, Any]], catalogue: Catalogue, competent: bool = True):
        self.competent = competent
        self.plans: dict[str, tuple[list[dict[str, Any]], str]] = {}
        for row in rows:
            truth = row["reward_model"]["ground_truth"]
            calls = calls_of(json.loads(truth["path"]), catalogue)
            self.plans[row["prompt"][-1]["content"]] = (calls, (truth["target"] or ["done"])[0])
        self.bodies: list[dict[str, Any]] = []
        self.said = ""
        self.asked: Counter[str] = Counter()

    def __call__(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        self.bodies.append(body)
        if body["messages"][0]["content"].startswith("You are the tool"):
            self.asked["tool"] += 1
            return answer(self.said or json.dumps(self.tool(question_of(body))))
        role, said = self.role(body)
        self.asked[role] += 1
        return said

    def role(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The role that is asked, and its completion."""
        raise NotImplementedError

    def tool(self, asked: str) -> Any:
        """A result as the documentation has it."""
        tool = json.loads(asked.splitlines()[0].removeprefix("TOOL "))
        sub_question = tool.get("more", {})
        if isinstance(sub_question, dict) and "sub_question" in sub_question:
            return sub_question["answer"]
        returns = tool.get("returns")
        return fill(returns) if isinstance(returns, dict) and "type" in returns else {"done": True}


class Player(ToolPlayer):
    """DeepAgent's agent and auxiliary.

    Args:
        rows, catalogue: see `ToolPlayer`.
        search: search once before the calls. fold: fold after so many calls.
    """

    def __init__(self, *data: Any, search: bool = False, fold: int = 0):
        super().__init__(*data)
        self.search, self.fold = search, fold

    def role(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        first = body["messages"][0]
        if first["role"] != "system":
            return "auxiliary", answer(self.auxiliary(first["content"]))
        return "agent", stopped(self.agent(body["messages"]), body["stop"], (STOPS, STOPS_WITHOUT_FOLD))

    def auxiliary(self, asked: str) -> str:
        """A memory that says how many calls were made, or a shorter text."""
        if asked.startswith("Shorten"):
            return "short"
        schema = json.loads(next(line for line in asked.splitlines() if line.startswith('{"type"')))
        made = asked.partition("The work:")[2].count("</tool_call>")
        return json.dumps(
            fill(schema) | ({"progress": f"{made} calls are done"} if "progress" in schema["required"] else {})
        )

    def agent(self, messages: list[dict[str, str]]) -> str:
        """The next step of the task."""
        task = messages[1]["content"]
        question = task.removeprefix("Task: ").split("\n\nTools that")[0].split("\n\nYour work so far")[0]
        said = "".join(message["content"] for message in messages if message["role"] == "assistant")
        made = said.count("<tool_call>") + int((DONE.findall(task) or [0])[-1])
        calls, final = self.plans[question]
        if self.search and not said and "Your work so far" not in task:
            return f"I look. <tool_search> {question[:200]} </tool_search>"
        if self.fold and made == self.fold and "Your work so far" not in task:
            return "Enough. <fold_thought>"
        if made < len(calls):
            return f"So. <tool_call> {json.dumps(calls[made])} </tool_call>"
        return f"It is \\boxed{{{final}}}"


def stopped(text: str, stops: list[str], expected: Sequence[Sequence[str]]) -> dict[str, Any]:
    """A completion as vLLM ends it: before the first of `stops`, which it names. They are one of `expected`."""
    assert tuple(stops) in expected
    at, stop = min(((text.index(stop), stop) for stop in stops if stop in text), default=(len(text), None))
    body = answer(text[:at])
    body["choices"][0]["stop_reason"] = stop
    return body
