"""Tool calls as text, in the form of Hermes, for models whose chat template has no tools of its own.

The tools stand in the system message; a call is <tool_call>{"name": …, "arguments": {…}}</tool_call>, and results come
back in a message of the user, each in <tool_response>. Qwen's templates write the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from verl_ext.mas.agent import Unparsable
from verl_ext.mas.chat import Message, Written
from verl_ext.mas.json_texts import read_json

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
OPEN, CLOSE = "<tool_call>", "</tool_call>"
INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Messages for a chat template: "developer" is "system", content is a text, arguments are objects."""
    return [_plain(message) for message in messages]


def _plain(message: Message) -> Message:
    role = "system" if message["role"] == "developer" else message["role"]
    plain = {**message, "role": role, "content": message["content"] or ""}
    if message.get("tool_calls"):
        plain["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _object(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return plain


def _object(arguments: str) -> Any:
    try:
        value = read_json(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def written_out(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    """The same chat with nothing but roles and texts."""
    chat: list[Message] = []
    results = False
    for message in plain_messages(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            response = f"<tool_response>\n{content}\n</tool_response>"
            if results:
                chat[-1] = {"role": "user", "content": f"{chat[-1]['content']}\n{response}"}
            else:
                chat.append({"role": "user", "content": response})
        else:
            functions = [call["function"] for call in message.get("tool_calls") or ()]
            calls = [written_call((function["name"], function["arguments"])) for function in functions]
            chat.append({"role": role, "content": "\n".join([content, *calls] if content else calls)})
        results = role == "tool"
    if tools:
        told = INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if chat[0]["role"] == "system":
            chat[0] = {"role": "system", "content": f"{chat[0]['content']}\n\n{told}"}
        else:
            chat.insert(0, {"role": "system", "content": told})
    return chat


def written_call(call: tuple[str, Any]) -> str:
    """A tool call, its name and its arguments, as text."""
    arguments = _object(call[1]) if isinstance(call[1], str) else call[1]
    text = json.dumps({"name": call[0], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def read_calls(text: str) -> tuple[str, list[Written]]:
    """(text beside the calls, calls) of an output in the form of Hermes.

    Raises:
        Unparsable: a call is no JSON object with a name and arguments, or has no end.
    """
    if (start := text.rfind(OPEN)) > text.rfind(CLOSE):  # the pattern would look for it from every beginning
        raise Unparsable(f"a tool call has no end: {text[start:]!r:.200}")
    written = []
    for inside in CALL.findall(text):
        try:
            call = read_json(inside)
            written.append((call["name"], json.dumps(call["arguments"], ensure_ascii=False)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unparsable(f"a tool call cannot be read ({type(error).__name__}: {error}): {inside!r:.200}") from None
    return CALL.sub("", text), checked_calls(written)


def checked_calls(written: Sequence[Written]) -> list[Written]:
    """The calls, if each has a name and arguments that are a JSON object.

    Raises:
        Unparsable: one has not.
    """
    for name, arguments in written:
        try:
            right = isinstance(json.loads(arguments), dict)
        except (ValueError, TypeError, RecursionError):
            right = False
        if not right or not isinstance(name, str) or not name:
            raise Unparsable(f"the arguments of a call of {name!r:.100} are no JSON object: {arguments!r:.200}")
    return list(written)
