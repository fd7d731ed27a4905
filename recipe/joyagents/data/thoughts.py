"""The thoughts of fine-tuning conversations: left out, or written by a served model instead of templates."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from verl_ext.mas.messages import Messages, user
from verl_ext.recipe.joyagents.grammar import TAG, THINK
from verl_ext.storage.jsonl import cut_torn_line
from verl_ext.tools.chat import ChatEndpoint, EndpointFailed

THOUGHT = re.compile(rf"<{THINK}>(.*?)</{THINK}>", re.S)
ASK = """\
This is the chat of an assistant. It ends with a step of the assistant, without the thought that led to it. Write that
thought, in one to four sentences in the first person: what the user wants, what is known, and why this step follows.
Write nothing else, and no tags.

{chat}"""
SAMPLING = {"temperature": 0.7, "max_tokens": 300}


def without(messages: Messages) -> Messages:
    """A conversation without thoughts (M1 of Table 2)."""
    return [_with(message, None) for message in messages]


def written(conversations: Sequence[Messages], url: str, model: str | None, cache: Path) -> list[Messages]:
    """The conversations with thoughts of a served model in place of the templates'.

    Those of conversations with a single output stay: they are solutions of problems, and answers from memories. What
    the model has written is in `cache`, a line each, so that the same call again asks only for what is missing.

    Raises:
        ValueError: the server does not answer, or with an empty thought.
    """
    try:
        return asyncio.run(_written(conversations, ChatEndpoint(url, model), cache))
    except EndpointFailed as error:
        raise ValueError(f"--thoughts_url {url}: {error}") from error


async def _written(conversations: Sequence[Messages], chat: ChatEndpoint, cache: Path) -> list[Messages]:
    if cache.is_file():
        cut_torn_line(cache)  # by a kill
    # Not `splitlines`: a thought may hold U+2028, which JSON leaves as it is.
    lines = cache.read_text(encoding="utf-8").split("\n")[:-1] if cache.is_file() else []
    known: dict[str, str] = dict(json.loads(line) for line in lines)
    cache.parent.mkdir(parents=True, exist_ok=True)
    try:
        with cache.open("a", encoding="utf-8", buffering=1) as file:

            async def think(messages: Messages, place: int) -> str:
                asked = ASK.format(chat=json.dumps(without(messages[1 : place + 1]), ensure_ascii=False, indent=1))
                key = hashlib.sha256(asked.encode()).hexdigest()
                if key not in known:
                    answer = await chat.complete(user(asked), SAMPLING)
                    known[key] = TAG.sub("", answer.text.rpartition(f"</{THINK}>")[2]).strip()
                    if not known[key]:
                        raise ValueError(f"{chat.url}: the model wrote an empty thought. Remedy: another model")
                    file.write(json.dumps([key, known[key]], ensure_ascii=False) + "\n")
                return known[key]

            async def whole(messages: Messages) -> Messages:
                said = [place for place, one in enumerate(messages) if one["role"] == "assistant"]
                places = said if len(said) > 1 else []
                found = dict(zip(places, await asyncio.gather(*(think(messages, p) for p in places)), strict=True))
                return [_with(message, found.get(place, "")) for place, message in enumerate(messages)]

            return list(await asyncio.gather(*map(whole, conversations)))
    finally:
        await chat.close()


def _with(message: dict[str, str], thought: str | None) -> dict[str, str]:
    """A message with another thought; "": with its own, None: with none."""
    if message["role"] != "assistant" or thought == "":
        return message
    new = "" if thought is None else f"<{THINK}>{thought}</{THINK}>"
    return message | {"content": THOUGHT.sub(lambda _: new, message["content"], count=1)}
