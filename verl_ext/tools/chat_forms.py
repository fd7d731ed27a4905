"""The forms in which OpenAI-compatible servers answer and refuse: pure functions of what came back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# How servers say that a prompt is too long for the model: OpenAI's code, vLLM, SGLang, TGI, llama.cpp. By which status.
TOO_LONG = re.compile(
    r"context[_ ]length|context[_ ]size|context window|maximum context|tokens? exceed"
    r"|(prompt|input|context)\b.{0,80}\btoo long|too long\b.{0,20}\b(prompt|input|context)",
    re.I | re.S,
)
TOO_LONG_STATUS = (400, 413, 422)
# Where an error's text begins to repeat what was sent: pydantic's errors, in JSON or as Python writes them; a chat
# template's (transformers).
ECHO = re.compile(r"""['"]input['"]\s*:|\binput_value=|\bFinal message to continue:""")
# The last message is one of the assistant's, and the answer goes on in it (vLLM, SGLang, TGI; of these SGLang needs and
# knows only the first).
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
# Parameters that a server may not know. Without them a call is still answered, but not as was asked: that is told.
OPTIONAL = ("seed", "top_k", "stop", "structured_outputs", *CONTINUE)
# What is done without one: by default it is left out.
INSTEAD = dict.fromkeys(CONTINUE, "a stream is sent as turns, which a model may answer otherwise,")


@dataclass(frozen=True)
class Answer:
    """One answer to a chat.

    Attributes:
        text: what the model said; its reasoning is no part of it where the server keeps the two apart.
        reasoning: what it thought before, there.
        stop_reason: "completed", "length", or the server's own word.
        prompt_tokens, generated_tokens: how many; 0 if the server does not tell.
        stopped_by: the stop string that ended it, where the server tells (vLLM, SGLang).
        sent: the messages that it answers.
    """

    text: str
    reasoning: str = ""
    stop_reason: str = "completed"
    prompt_tokens: int = 0
    generated_tokens: int = 0
    stopped_by: str = ""
    sent: Sequence[dict[str, str]] = ()


def joined(messages: list[dict[str, str]], start: int) -> list[dict[str, str]]:
    """A chat in which the messages from `start` on are one, of the assistant: a stream of texts and observations."""
    stream = "".join(message["content"] for message in messages[start:])
    return [*messages[:start], {"role": "assistant", "content": stream}]


def sendable(stops: Sequence[str], named: bool) -> list[str]:
    """The stop strings to send to a server; the others are found in its texts, which go on behind them.

    What a server leaves out without a word is lost unless it closes a tag: `until_stop` could not put it back. So the
    others wait until a closing tag has been `named`. Without closing tags nothing would ever be named: all are sent.
    """
    closing = [stop for stop in stops if stop.startswith("</")]
    return list(stops) if named or not closing else closing


def answer_of(body: Any) -> Answer:
    """A chat completion as the API words it.

    Raises:
        ValueError: it is none (a proxy's page, no choices, content that is no text).
    """
    try:
        choice = body["choices"][0]
        message = choice["message"]
        text = _text(message.get("content"))
        reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
        reason = choice.get("finish_reason")
        stopped_by = next((choice[name] for name in ("stop_reason", "matched_stop") if choice.get(name)), "")
        usage = body.get("usage") or {}
        counts = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no chat completion: {error!r}") from error
    reason = "completed" if reason in (None, "stop") else str(reason)
    return Answer(text, reasoning, reason, *counts, stopped_by=stopped_by if isinstance(stopped_by, str) else "")


def until_stop(answer: Answer, stops: Sequence[str]) -> str:
    """The answer's text to the end of its first stop string, which servers leave out; without stops the text alone.

    Put back is the one that the server names, else the closing tag of one that is open (`</x>` after `<x>`). A server
    that has gone on behind one, since it does not know `stop` or was not sent it: that is cut off. An output that stops
    may do so in its thoughts: these are part of the text.
    """
    if not stops:
        return answer.text
    text = _with_thoughts(answer)
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        return text[: min(ends)]
    if answer.stopped_by in stops:
        return text + answer.stopped_by
    if answer.stop_reason != "completed":
        return text
    open_tags = [stop for stop in stops if stop.startswith("</") and f"<{stop[2:]}" in text]
    return text + max(open_tags, key=lambda stop: text.rindex(f"<{stop[2:]}"), default="")


def _with_thoughts(answer: Answer) -> str:
    """The text as the model wrote it, where the server has taken its reasoning out of it.

    `<think>` and a line break, as models and templates write it, `</think>` before what is no reasoning. One that goes
    on in its own message has opened its thoughts there.
    """
    if not answer.reasoning:
        return answer.text
    goes_on = bool(answer.sent) and answer.sent[-1]["role"] == "assistant"
    begin = "" if goes_on else "<think>" if answer.reasoning.startswith("\n") else "<think>\n"
    return f"{begin}{answer.reasoning}" + (f"</think>{answer.text}" if answer.text else "")


def _text(content: Any) -> str:
    """A message's content: text, nothing, or a list of parts of which the texts count."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") in ("text", "output_text"))
    if content is not None and not isinstance(content, str):
        raise ValueError(f"the content is of type {type(content).__name__}")
    return content or ""


def model_names(content: bytes) -> list[str]:
    """The names under /models; empty if it is no such page."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return []
    models = body.get("data") if isinstance(body, dict) else None
    named = [model.get("id") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return [name for name in named if isinstance(name, str)]


def complaint_of(text: str) -> str:
    """What a refusal says, without what it repeats of the request (which names all parameters, and holds the prompt).

    OpenAI, vLLM: {"error": {"message"}} or {"message"}; FastAPI: {"detail": [{"loc", "msg", "input"}]}; or just text.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = text
    if isinstance(said, dict):
        said = next((said[name] for name in ("error", "detail", "message") if said.get(name)), "")
    if isinstance(said, dict):
        said = said.get("message", "")
    if isinstance(said, list):
        said = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in said if isinstance(one, dict))
    return ECHO.split(said, maxsplit=1)[0] if isinstance(said, str) else ""


def is_too_long(status: int, complaint: str) -> bool:
    """True if a refusal says that the prompt does not fit the model."""
    return status in TOO_LONG_STATUS and TOO_LONG.search(complaint) is not None


def refused(body: dict[str, Any], complaint: str) -> dict[str, str | None]:
    """Parameters of `body` that the server complains of, with their other names; None: to be left out."""
    if "max_tokens" in body and "max_completion_tokens" in complaint:
        return {"max_tokens": "max_completion_tokens"}
    return {name: None for name in OPTIONAL if name in body and re.search(rf"\b{name}\b", complaint)}


def told(url: str, name: str) -> str:
    """The note that a parameter is no longer sent."""
    return f"Note: {url} does not take {name}; {INSTEAD.get(name, 'it is left out')} from here on."


def renamed(body: dict[str, Any], changed: dict[str, str | None]) -> dict[str, Any]:
    """`body` with parameters under their other names, or without them."""
    return {name: value for old, value in body.items() if (name := changed.get(old, old)) is not None}
