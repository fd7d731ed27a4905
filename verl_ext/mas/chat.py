"""Chats in OpenAI's form: what `ctx.chat` asks (`ChatRequest`), and what it answers (`Reply`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from verl_ext.mas.json_texts import valid
from verl_ext.mas.parameters import checked

if TYPE_CHECKING:
    from verl_ext.mas.types import Call, CallId, Status, Stream

Message = dict[str, Any]
# A tool call as a model wrote it: the tool's name, and its arguments as JSON.
Written = tuple[str, str]

ROLES = ("system", "developer", "user", "assistant", "tool")
CHOICES = ("auto", "none", "required")
# Of the 36 letters and digits of a tool call's id. Mistral's chat template accepts ids of this length only.
ID_LENGTH = 9


@dataclass(frozen=True)
class ChatRequest:
    """A chat as an agent is asked it. Two that are equal are the same question: a replay compares them whole.

    Attributes:
        messages: OpenAI's, in the form of `read_messages`.
        tools: OpenAI's definitions, {"type": "function", "function": {…}}.
        tool_choice: auto, none, required, or the name of the function that must be called.
        sampling: parameters that this chat has of its own.
        parser: the name of the tool parser; None: the policy's own.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str = "auto"
    sampling: dict[str, Any] = field(default_factory=dict)
    parser: str | None = None

    @property
    def calls_tools(self) -> bool:
        """Whether an answer is read for tool calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether an answer without a tool call is none."""
        return self.tool_choice not in ("auto", "none")

    @property
    def wire_choice(self) -> Any:
        """`tool_choice` in OpenAI's form."""
        named = self.tool_choice not in CHOICES
        return {"type": "function", "function": {"name": self.tool_choice}} if named else self.tool_choice

    def named(self, parser: str | None) -> ChatRequest:
        """The same, read by this parser."""
        return replace(self, parser=parser)

    def in_words(self) -> str:
        """The chat as text, in which a first difference can be shown."""
        lines = [json.dumps(message, ensure_ascii=False) for message in self.messages]
        rest = {"tools": self.tools, "tool_choice": self.tool_choice, "sampling": self.sampling}
        return "\n".join([*lines, json.dumps(rest, ensure_ascii=False)])


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer, its text, and its log-probability under the policy that sampled it."""

    token: str
    token_id: int
    logprob: float


@dataclass(frozen=True)
class Reply:
    """The answer to a chat.

    Attributes:
        content: the text beside the tool calls; None if there is none beside them.
        tool_calls: OpenAI's, with ids that follow from the call's identity.
        finish_reason: stop, length or tool_calls.
        prompt_tokens, completion_tokens: their numbers; 0 where a server does not report them.
        call: the record of the call.
    """

    content: str | None
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    call: Call = field(repr=False)
    texts: Callable[[list[int]], list[str]] = field(repr=False, compare=False, default=lambda ids: [""] * len(ids))

    @property
    def status(self) -> Status:
        """How the call ended, e.g. unparsable if a tool call could not be read."""
        return self.call.status

    @property
    def message(self) -> Message:
        """The assistant's message, to be appended to the chat."""
        return assistant(self.content, self.tool_calls)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """The tokens of the answer; empty if a server keeps them to itself."""
        made = self.call.generation
        texts = self.texts(made.token_ids)
        return [TokenLogprob(*one) for one in zip(texts, made.token_ids, made.log_probs, strict=True)]


def assistant(content: str | None, tool_calls: Sequence[dict[str, Any]] = ()) -> Message:
    """A message of the assistant. Without tool calls its content is a text."""
    if tool_calls:
        return {"role": "assistant", "content": content or None, "tool_calls": list(tool_calls)}
    return {"role": "assistant", "content": content or ""}


def request_of(
    messages: Any, tools: Any = None, tool_choice: Any = "auto", sampling: Mapping[str, Any] | None = None
) -> ChatRequest:
    """A checked `ChatRequest`.

    Raises:
        ValueError: not OpenAI's form, or a sampling parameter, or a value of one, that a chat cannot have.
    """
    definitions = [_definition(tool) for tool in tools or ()]
    names = [tool["function"]["name"] for tool in definitions]
    options = checked("ctx.chat: sampling", sampling or {})
    return ChatRequest(read_messages(messages), definitions, _choice(tool_choice, names), options)


def _definition(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f"ctx.chat: a tool must be {{'type': 'function', 'function': {{'name': …, 'parameters': …}}}}, but is "
            f"{tool!r:.200}. Remedy: ctx.tool_schemas(name, …) for tools of mas.tools"
        )
    if not _describes(function.get("parameters") or {}):
        raise ValueError(
            f"ctx.chat: the parameters of the tool {function['name']!r} must be a JSON Schema of an object, but are "
            f"{function['parameters']!r:.200}"
        )
    return {"type": "function", "function": dict(function)}


def _describes(parameters: Any) -> bool:
    """Whether this is a JSON Schema of an object, as far as parsers of tool calls read it."""
    if not isinstance(parameters, Mapping):
        return False
    properties, required = parameters.get("properties") or {}, parameters.get("required") or []
    if not isinstance(properties, Mapping):
        return False
    types = [one.get("type", "string") for one in properties.values() if isinstance(one, Mapping)]
    return _are_texts(required) and all(isinstance(one, str) or _are_texts(one) for one in types)


def _are_texts(given: Any) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)


def _choice(given: Any, names: list[str]) -> str:
    """auto, none, required, or the name of a tool."""
    choice = "auto" if given is None else given
    if isinstance(given, Mapping):
        function = given.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else None
    if choice not in CHOICES and (not isinstance(given, Mapping) or choice not in names):
        allowed = f"{', '.join(CHOICES)}, or {{'type': 'function', 'function': {{'name': …}}}} of a given tool"
        raise ValueError(f"ctx.chat: tool_choice={given!r}; allowed: {allowed} ({', '.join(names) or 'none given'})")
    if choice not in ("auto", "none") and not names:
        raise ValueError(f"ctx.chat: tool_choice={given!r} without tools. Remedy: tools=[…]")
    return choice


def read_messages(given: Any) -> list[Message]:
    """Messages in one form: role, content (a text; None beside tool calls), and where they have them name,
    tool_call_id, tool_calls and reasoning_content. Objects of the package `openai` are taken as well.

    Raises:
        ValueError: no list of messages, an unknown role, content that is not text, or a tool call of another form.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ValueError(f"ctx.chat: messages must be a list of at least one message, but are {given!r:.200}")
    return [_message(one) for one in given]


def _message(given: Any) -> Message:
    plain = given.model_dump(exclude_none=True) if hasattr(given, "model_dump") else given
    role = plain.get("role") if isinstance(plain, Mapping) else None
    if role not in ROLES:
        raise ValueError(
            f"ctx.chat: a message has the role {role!r}; allowed: {', '.join(ROLES)}. It is {given!r:.200}"
        )
    content = _text(plain.get("content"))
    if role == "assistant":
        message = assistant(content, [_tool_call(call) for call in plain.get("tool_calls") or ()])
    else:
        message = {"role": role, "content": content}
    return message | {
        name: plain[name] for name in ("name", "tool_call_id", "reasoning_content") if isinstance(plain.get(name), str)
    }


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, Sequence) else [content]
    if all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    raise ValueError(f"ctx.chat: the content of a message must be text, or parts that are text, but is {content!r:.99}")


def _tool_call(given: Any) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"ctx.chat: a tool call of an assistant's message is {given!r:.200}; it needs function.name")
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _wire(str(given.get("id") or ""), function["name"], text)


def _wire(identity: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_calls_of(written: Sequence[Written], call: CallId, stream: Stream) -> list[dict[str, Any]]:
    """Tool calls in OpenAI's form. Their ids are a function of the call's identity: a replay gives the same ones."""
    return [_wire(_identity(number, call, stream), *map(valid, one)) for number, one in enumerate(written)]


def _identity(number: int, call: CallId, stream: Stream) -> str:
    text = "\x1f".join([*stream.path, str(call), str(number)])
    left, letters = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"), ""
    for _ in range(ID_LENGTH):
        left, digit = divmod(left, 36)
        letters += "0123456789abcdefghijklmnopqrstuvwxyz"[digit]
    return letters


def continued_length(earlier: ChatRequest, answer: Message, now: ChatRequest) -> int:
    """Number of messages of `now` that are those of `earlier` and its answer; 0 unless `now` goes on from there.

    The tools must be the same. Content is compared exactly, arguments of tool calls as JSON.
    """
    length = len(earlier.messages) + 1
    if len(now.messages) <= length or earlier.tools != now.tools or earlier.parser != now.parser:
        return 0
    if compared(answer) != compared(now.messages[length - 1]):  # the likeliest difference
        return 0
    pairs = zip(earlier.messages, now.messages, strict=False)
    return length if all(compared(one) == compared(other) for one, other in pairs) else 0


def compared(message: Message) -> tuple[Any, ...]:
    """What of a message must be the same for a chat to go on from it."""
    calls = [
        (call["id"], call["function"]["name"], _json(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    name = message.get("name") if message["role"] != "assistant" else None  # frameworks name agents there
    return message["role"], message["content"] or "", name, message.get("tool_call_id"), calls


def _json(text: str) -> Any:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text
