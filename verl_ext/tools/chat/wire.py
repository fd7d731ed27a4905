"""How OpenAI-compatible servers word their answers and refusals: pure functions of a response."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Refusals of a prompt that is too long for the model, by OpenAI, vLLM, SGLang, TGI and llama.cpp, and their statuses.
TOO_LONG = re.compile(
    r"context[_ ]length|context[_ ]size|context window|maximum context|tokens? exceed"
    r"|(prompt|input|context)\b.{0,80}\btoo long|too long\b.{0,20}\b(prompt|input|context)",
    re.I | re.S,
)
TOO_LONG_STATUS = (400, 413, 422)
# Where the text of an error begins to repeat the request: errors of pydantic (JSON or Python) and of chat templates
# (transformers).
ECHO = re.compile(r"""['"]input['"]\s*:|\binput_value=|\bFinal message to continue:""")
# Ask the server to continue the last message, which is an assistant's (vLLM, SGLang, TGI; SGLang knows and needs only
# the first).
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
# Parameters that a server may not know. Without them it still answers, but differently, so a note is printed.
OPTIONAL = ("seed", "top_k", "stop", "structured_outputs", *CONTINUE)
# What happens instead when a server refuses one; for the others: it is left out.
INSTEAD = dict.fromkeys(CONTINUE, "a stream is sent as turns, which a model may answer differently,")


@dataclass(frozen=True)
class Answer:
    """One answer to a chat.

    Attributes:
        text: the model's text, without its reasoning if the server separates the two.
        reasoning: the reasoning, if the server separates it.
        stop_reason: "completed", "length", or the server's own value.
        prompt_tokens, generated_tokens: numbers of tokens; 0 if the server does not report them.
        stopped_by: the stop string that ended the text, if the server reports it (vLLM, SGLang).
        sent: the messages that were sent.
        tool_calls: (name, arguments as JSON) of those that the server has read.
    """

    text: str
    reasoning: str = ""
    stop_reason: str = "completed"
    prompt_tokens: int = 0
    generated_tokens: int = 0
    stopped_by: str = ""
    sent: Sequence[dict[str, Any]] = ()
    tool_calls: Sequence[tuple[str, str]] = ()


def join_stream(messages: list[dict[str, str]], start: int) -> list[dict[str, str]]:
    """A chat whose messages from `start` on (texts and observations) are joined to one message of the assistant."""
    stream = "".join(message["content"] for message in messages[start:])
    return [*messages[:start], {"role": "assistant", "content": stream}]


def sendable(stops: Sequence[str], named: bool) -> list[str]:
    """The stop strings to send to a server. `until_stop` finds the others in the text, which continues after them.

    Servers leave the stop string out of the text. `until_stop` can restore a closing tag, but another stop string only
    if the server names it. So the others are sent only after the server has `named` a closing tag. Without closing tags
    it would never name one: then all are sent.
    """
    closing = [stop for stop in stops if stop.startswith("</")]
    return list(stops) if named or not closing else closing


def answer_of(body: Any) -> Answer:
    """The answer in the body of a chat completion.

    Raises:
        ValueError: the body is not a chat completion (a proxy's page, no choices, content that is not text).
    """
    try:
        choice = body["choices"][0]
        message = choice["message"]
        text = _text(message.get("content"))
        reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
        tool_calls = [_called(call["function"]) for call in message.get("tool_calls") or ()]
        reason = choice.get("finish_reason")
        stopped_by = next((choice[name] for name in ("stop_reason", "matched_stop") if choice.get(name)), "")
        usage = body.get("usage") or {}
        prompt, generated = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"no chat completion: {error!r}") from error
    reason = "completed" if reason in (None, "stop", "tool_calls") else str(reason)
    stop = stopped_by if isinstance(stopped_by, str) else ""
    return Answer(text, reasoning, reason, prompt, generated, stop, tool_calls=tool_calls)


def _called(function: Any) -> tuple[str, str]:
    """(name, arguments as JSON) of a tool call; some servers give the arguments as an object."""
    arguments = function.get("arguments") or "{}"
    return str(function["name"]), arguments if isinstance(arguments, str) else json.dumps(arguments)


def until_stop(answer: Answer, stops: Sequence[str]) -> str:
    """The answer's text up to and including its first stop string; without stops the text alone.

    Servers leave the stop string out. This adds the one that the server names, else the closing tag of a tag that is
    open (`</x>` after `<x>`). If the text continues after a stop string (the server does not know `stop`, or was not
    sent this one), the rest is cut off. A stop string may also end the reasoning, so reasoning is part of the text.
    """
    if not stops:
        return answer.text
    text = _with_reasoning(answer)
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        return text[: min(ends)]
    if answer.stopped_by in stops:
        return text + answer.stopped_by
    if answer.stop_reason != "completed":
        return text
    open_tags = [stop for stop in stops if stop.startswith("</") and f"<{stop[2:]}" in text]
    return text + max(open_tags, key=lambda stop: text.rindex(f"<{stop[2:]}"), default="")


def _with_reasoning(answer: Answer) -> str:
    """The text as the model wrote it, with the reasoning that the server has separated.

    Models and templates write `<think>` and a line break before the reasoning, and `</think>` after it. An answer that
    continues a message of the assistant has its `<think>` there.
    """
    if not answer.reasoning:
        return answer.text
    continues = bool(answer.sent) and answer.sent[-1]["role"] == "assistant"
    begin = "" if continues else "<think>" if answer.reasoning.startswith("\n") else "<think>\n"
    return f"{begin}{answer.reasoning}" + (f"</think>{answer.text}" if answer.text else "")


def _text(content: Any) -> str:
    """The text of a message's content: a string, None, or a list of parts, some of them text."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") in ("text", "output_text"))
    if content is not None and not isinstance(content, str):
        raise ValueError(f"the content is of type {type(content).__name__}")
    return content or ""


def model_names(content: bytes) -> list[str]:
    """The model names in the answer of /models; empty if it is another page."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return []
    models = body.get("data") if isinstance(body, dict) else None
    named = [model.get("id") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return [name for name in named if isinstance(name, str)]


def complaint_of(text: str) -> str:
    """The message of a refusal, without its copy of the request, which names all parameters and contains the prompt.

    OpenAI, vLLM: {"error": {"message"}} or {"message"}; FastAPI: {"detail": [{"loc", "msg", "input"}]}; or plain text.
    """
    try:
        complaint = json.loads(text)
    except (ValueError, RecursionError):
        complaint = text
    if isinstance(complaint, dict):
        complaint = next((complaint[name] for name in ("error", "detail", "message") if complaint.get(name)), "")
    if isinstance(complaint, dict):
        complaint = complaint.get("message", "")
    if isinstance(complaint, list):
        complaint = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in complaint if isinstance(one, dict))
    return ECHO.split(complaint, maxsplit=1)[0] if isinstance(complaint, str) else ""


def is_too_long(status: int, complaint: str) -> bool:
    """True if a refusal says that the prompt does not fit the model."""
    return status in TOO_LONG_STATUS and TOO_LONG.search(complaint) is not None


def refused_parameters(body: dict[str, Any], complaint: str) -> dict[str, str | None]:
    """Parameters of `body` that the complaint names, with the names to use instead; None: leave it out."""
    if "max_tokens" in body and "max_completion_tokens" in complaint:
        return {"max_tokens": "max_completion_tokens"}
    return {name: None for name in OPTIONAL if name in body and re.search(rf"\b{name}\b", complaint)}


def refusal_note(url: str, name: str) -> str:
    """The note that a parameter is no longer sent."""
    return f"Note: {url} does not take {name}; {INSTEAD.get(name, 'it is left out')} from here on."


def remedy_of(complaint: str) -> str:
    """What to do about a refusal, on a line of its own; empty: no remedy is known."""
    if "--tool-call-parser" not in complaint:  # vLLM; the option reads the calls of one kind of model
        return ""
    return "\nRemedy: vllm serve MODEL --enable-auto-tool-choice --tool-call-parser PARSER, e.g. hermes for Qwen"


def rename(body: dict[str, Any], changed: dict[str, str | None]) -> dict[str, Any]:
    """`body` with some parameters renamed, and without those whose new name is None."""
    return {name: value for old, value in body.items() if (name := changed.get(old, old)) is not None}
