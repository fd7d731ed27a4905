"""Chat requests in the form of OpenAI: checked, and reduced to what decides the answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from verl_ext.gateway.errors import ApiError
from verl_ext.mas.chat import Message, compared, request_of
from verl_ext.mas.chat import read_messages as in_one_form
from verl_ext.mas.json_texts import read_json

ROLES = ("system", "developer", "user", "assistant", "tool")
# What is read. `temperature` and `top_p` are those of the configuration, whatever is asked for.
READ = ("model", "messages", "tools", "tool_choice", "stop", "max_tokens", "max_completion_tokens", "seed", "logprobs",
        "n", "stream", "stream_options", "user", "store")  # fmt: skip
CONFIGURED = ("temperature", "top_p")
# Parameters that are not served, with the value that asks for nothing.
PLAIN = {"response_format": {"type": "text"}, "top_logprobs": 0, "parallel_tool_calls": True}
# Types of parameters.
FORMS = {"model": (str, "a text"), "tools": (list, "a list"), "stream": (bool, "true or false")}
# What would change the meaning of the answer and cannot be served.
REFUSED = {"functions": "tools", "function_call": "tool_choice"}


@dataclass(frozen=True)
class ChatRequest:
    """One request.

    Attributes:
        agent: the request's `model`.
        messages: with texts as content; roles system, user, assistant, tool.
        tools, tool_choice: as OpenAI has them.
        sampling: of max_tokens and stop what is asked for.
        extra: what else belongs to its identity: seed, user.
        stream, usage, logprobs: the form of the answer.
        ignored: names of what is asked for and ignored.
    """

    agent: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = "auto"
    sampling: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def content(self) -> str:
        """What the request asks, as a text that is equal for equal requests."""
        asked = [self.messages, self.tools, self.tool_choice, self.sampling, self.extra]
        return json.dumps(asked, ensure_ascii=False, sort_keys=True)

    @property
    def digest(self) -> str:
        """A hash of `content`."""
        return digest(self.content)


def digest(text: str) -> str:
    """96 bits of a text's hash."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def histories(agent: str, messages: Sequence[Message]) -> Iterator[str]:
    """For each message, a hash of the chat with this agent up to it, whatever blanks stand around the texts."""
    so_far = agent
    for message in in_one_form(messages):
        role, content, *rest = compared(message)
        so_far = digest(json.dumps([so_far, role, content.strip(), *rest], ensure_ascii=False))
        yield so_far


def read_chat(body: Any, agents: Collection[str]) -> ChatRequest:
    """A body of /v1/chat/completions.

    Raises:
        ApiError: 404 for a model that is no agent, 400 for everything else that cannot be served.
    """
    given = given_in(body, FORMS)
    agent = agent_of(given.get("model"), agents)
    for old, new in REFUSED.items():
        if old in given:
            raise ApiError(400, f"`{old}` is not served. Remedy: `{new}`", "unsupported_parameter", old)
    if given.get("n", 1) != 1:
        raise ApiError(400, f"n={given['n']!r}, but a request has one answer. Remedy: ask n times", "unsupported", "n")
    ignored = [key for key in given if key not in (*READ, *CONFIGURED)]
    ignored = [key for key in ignored if key not in PLAIN or given[key] != PLAIN[key]]
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, dict) and isinstance(allowed := choice.get("allowed_tools"), dict):
        choice = allowed.get("mode")
        ignored.append("tool_choice.allowed_tools.tools")
    return checked(
        ChatRequest(
            agent,
            read_messages(given.get("messages")),
            given.get("tools") or None,
            choice,
            _sampling(given),
            {key: given[key] for key in ("seed", "user") if key in given},
            bool(given.get("stream", False)),
            bool(_options(given).get("include_usage", False)),
            bool(given.get("logprobs", False)),
            tuple(ignored),
        )
    )


def given_in(body: Any, forms: Mapping[str, tuple[type, str]]) -> dict[str, Any]:
    """The parameters of a body that are not null.

    Raises:
        ApiError: 400; it is no object, or one of them has not the type that `forms` names, in code and in words.
    """
    if not isinstance(body, dict):
        raise ApiError(400, f"the body must be a JSON object, but is {type(body).__name__}", "invalid_body")
    given = {key: value for key, value in body.items() if value is not None}
    for name, (form, words) in forms.items():
        if name in given and not isinstance(given[name], form):
            raise ApiError(400, f"{name} must be {words}, but is {given[name]!r:.100}", "invalid", name)
    return given


def checked(request: ChatRequest) -> ChatRequest:
    """The request, if `Context.chat` takes it.

    Raises:
        ApiError: 400; it does not.
    """
    limit = request.sampling.get("max_tokens", 1)
    if type(limit) is not int or limit < 1:
        raise ApiError(400, f"max_tokens={limit!r} must be a whole number above 0", "invalid", "max_tokens")
    stops = request.sampling.get("stop", [])
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(400, f"stop={stops!r} must be a text or a list of texts", "invalid", "stop")
    try:
        request_of(request.messages, request.tools, request.tool_choice, request.sampling)
    except (ValueError, TypeError, AttributeError) as error:
        raise ApiError(400, str(error).removeprefix("ctx.chat: "), "invalid") from None
    return request


def agent_of(model: Any, agents: Collection[str]) -> str:
    """The agent that a request's `model` names.

    Raises:
        ApiError: 404; there is none of this name.
    """
    if model not in agents:
        allowed = ", ".join(sorted(agents))
        raise ApiError(
            404,
            f"model={model!r} is no agent of this workflow; allowed: {allowed}. Remedy: let each part of your program "
            "ask with the name of its agent as the model, or add the agent to `agents`",
            "model_not_found",
            "model",
        )
    return str(model)


def arguments_of(given: Any) -> dict[str, Any]:
    """The arguments of a tool: an object, or JSON of one as a text, as OpenAI's tool calls have it.

    Raises:
        ApiError: 400; anything else.
    """
    read = given
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            read = read_json(given) if given.strip() else {}
    if read is not None and not isinstance(read, dict):
        message = f"arguments must be an object, or JSON of an object as a text, but is {given!r:.100}"
        raise ApiError(400, message, "invalid", "arguments")
    return dict(read or {})


def _options(given: dict[str, Any]) -> dict[str, Any]:
    options = given.get("stream_options", {})
    return options if isinstance(options, dict) else {}


def _sampling(given: dict[str, Any]) -> dict[str, Any]:
    sampling: dict[str, Any] = {}
    limits = [given[key] for key in ("max_tokens", "max_completion_tokens") if key in given]
    if limits:
        sampling["max_tokens"] = min(limits) if all(type(limit) is int for limit in limits) else limits[0]
    if "stop" in given:
        sampling["stop"] = [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
    return sampling


def read_messages(given: Any) -> list[dict[str, Any]]:
    """The messages of a request, with texts as content.

    Raises:
        ApiError: 400; a role that there is not, or content that is no text.
    """
    if not isinstance(given, list) or not given:
        raise ApiError(400, "messages must be a list with at least one message", "invalid", "messages")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(given)]


def _message(message: Any, place: str) -> dict[str, Any]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise ApiError(400, f"{place}: role={role!r} is unknown; allowed: {', '.join(ROLES)}", "invalid", place)
    read: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": text_of(message.get("content"), f"{place}.content"),
    }
    if role == "assistant" and message.get("tool_calls"):
        if not isinstance(message["tool_calls"], list):
            raise ApiError(400, f"{place}.tool_calls must be a list", "invalid", f"{place}.tool_calls")
        read["tool_calls"] = message["tool_calls"]
    if role == "tool":
        read["tool_call_id"] = str(message.get("tool_call_id", ""))
    if message.get("name") and role != "assistant":
        read["name"] = str(message["name"])
    return read


def text_of(content: Any, place: str) -> str:
    """Content of a message as a text.

    Raises:
        ApiError: 400; it has parts that are no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{place} must be a text or a list of parts, but is {content!r:.100}", "invalid", place)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
            refuse_content(kind, f"{place}[{number}]")
        texts.append(part[kind])
    return "\n".join(texts)


def refuse_content(kind: Any, place: str) -> NoReturn:
    """Refuse a part of a message that is no text.

    Raises:
        ApiError: 400.
    """
    raise ApiError(
        400,
        f"{place} is of type {kind!r}; allowed: text. The policy reads texts: images, sound and files cannot be "
        "trained on",
        "unsupported_content",
        place,
    )
