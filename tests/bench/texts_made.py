"""Texts as no model should write them: right outputs that were changed, cut, nested or mixed, and noise."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

# A right output of every grammar.
RIGHT = [
    '{"Tasks": ["find the film", "find its director"]}',
    '{"movie_id": 59, "title": "Amber Harbor", "tags": ["a", null, true, 1.5e3]}',
    '{"Speak": "say {more}", "Status": 0}',
    '{"Reason": "it needs data", "Choice": "Yes"}',
    'Thought: the film\nAction: film\nAction Input: {"q": "x"}\nObservation:',
    'Thought: ok\nAction: Finish\nAction Input: {"answer": "Tova"}',
    "I know.\nFINAL ANSWER: **Tova**",
    '<think>so</think><tool_call>{"name": "film", "arguments": {"x": [1]}}</tool_call>',
    "<think>known</think> the answer is \\boxed{42}",
    "<tool_search> films </tool_search> then <fold_thought>",
    '{"task": "t", "events": [{"step": "a", "outcome": "b"}], "progress": "half"}',
    "### who is it ; where was he born ###",
    "Document 2, Document 0",
    "12 9 17",
    "wrong 2",
    "REASONING RESULT: so it is\nFINAL ANSWER: [1,234.5]",
    "```python\nprint(1)\n```",
    "see https://example.org/a?b=c.",
    "Pass calling {'api_name': 'film'} #### -1,072",
    '{"choices": [{"message": {"content": "hello", "reasoning": null}, "finish_reason": "stop"}], "usage": {}}',
    '{"message": {"content": [{"type": "text", "text": "hello"}]}, "stop_reason": "</tool_call>"}',
    '{"error": {"message": "maximum context length is 4096 tokens"}}',
    '{"data": [{"id": "model"}]}',
    'description = "x"\ninput_parameters = {\n    None\n}',
    "{'name': 'messi', 'n': (1, 2)}",
    '[{"name": "film", "arguments": {"id": 5}}, "person"]',
    "terminate",
    "(C)",
]
TOKENS = ["<|im_end|>", "<|im_start|>system\n", "</s>", "<think>", "</think>", "<tool_call>", "</tool_call>", "[INST]"]
TOKENS += ["<tool_search>", "</tool_search>", "<fold_thought>", "\\boxed{", "```", "FINAL ANSWER:", "Action:", "###"]
TOKENS += ["Observation:", "Action Input:", "<｜end▁of▁sentence｜>", "Document ", "Thought:", "####", "https://"]
MARKS = list("{}[]()\"'\\,:\n <>/#*`\t-.")
LETTERS = ["\x1b[2J", *"é🙂\ud83d\u202e\ufffd\x00\u2028ßİⅧ٣²\u00a0\ufeff"]
DIGITS = ["0", "9", "9" * 400, "1e999", "-", "NaN", "Infinity", "0x1f", "1_000", "-0.0", "9" * 5000]
ANYTHING = [*TOKENS, *MARKS, *MARKS, *LETTERS, *DIGITS[:2], "a", "Yes", "null", "true", '{"a": 1}']
LONG = 20_000  # characters of a long text


def made(rng: random.Random) -> str:
    """One text. One in two hundred is long."""
    text = rng.choice(KINDS)(rng)
    if rng.random() < 0.005:
        text = (text * (LONG // max(1, len(text)) + 1))[: rng.randrange(1, LONG)]
    return text


def noise(rng: random.Random) -> str:
    """Random bytes, read as text in one of three ways."""
    content = rng.randbytes(rng.randrange(200))
    return content.decode(*rng.choice([("utf-8", "replace"), ("latin-1", "strict"), ("utf-8", "surrogateescape")]))


def changed(rng: random.Random) -> str:
    """A right output with up to five changes: pieces inserted, removed, doubled or exchanged."""
    text = rng.choice(RIGHT)
    for _ in range(rng.randrange(1, 6)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.randrange(8))
        piece = rng.choice(["", text[start:end] * 2, rng.choice(ANYTHING), rng.choice(DIGITS)])
        text = text[:start] + piece + text[end if rng.random() < 0.7 else start :]
    return text


def cut(rng: random.Random) -> str:
    """A right output that was cut off, maybe after another one."""
    before = rng.choice(["", "", rng.choice(RIGHT), rng.choice(TOKENS)])
    text = rng.choice(RIGHT)
    return before + text[: rng.randrange(len(text) + 1)]


def mixed(rng: random.Random) -> str:
    """Pieces of the grammars in any order."""
    return "".join(rng.choice(ANYTHING) if rng.random() < 0.8 else rng.choice(RIGHT) for _ in range(rng.randrange(12)))


def nested(rng: random.Random) -> str:
    """Brackets within brackets, closed or not."""
    depth = rng.choice([3, 3, 10, 60, 60, 400]) if rng.random() < 0.95 else 3000
    opening, inner, closing = rng.choice([('{"a": ', "1", "}"), ("[", "", "]"), ("{", '"a"', "}"), ("(", "1,", ")")])
    return opening * depth + inner + closing * rng.choice([depth, depth, depth - 1, 0])


def brackets(rng: random.Random) -> str:
    """Marks alone."""
    return "".join(rng.choices(MARKS, k=rng.randrange(120)))


def letters(rng: random.Random) -> str:
    """Letters of all planes, half surrogate pairs, and marks of writing direction."""
    return "".join(rng.choice([*LETTERS, chr(rng.randrange(0x110000)), "a "]) for _ in range(rng.randrange(60)))


def repeated(rng: random.Random) -> str:
    """One piece many times, in one line or in many, before or after a right output."""
    line = rng.choice(ANYTHING) * (rng.choice([10, 30, 100]) if rng.random() < 0.9 else 2000)
    return rng.choice([line, rng.choice(RIGHT) + line, line + rng.choice(RIGHT), "Action: " + line])


def value(rng: random.Random) -> str:
    """A JSON value of any form, in JSON or as Python writes it."""

    def any_value(depth: int) -> Any:
        kind = rng.randrange(8 if depth else 5)
        if kind < 5:
            return rng.choice(
                [None, True, 0, -1.5, 10**20, float("nan"), "x", rng.choice(ANYTHING), rng.choice(LETTERS)]
            )
        items = [any_value(depth - 1) for _ in range(rng.randrange(4))]
        words = ["name", "arguments", "Tasks", "Status", "Speak", "choices", "message", "content", "error", "data", "a"]
        return items if kind == 5 else {rng.choice(words): item for item in items}

    said = any_value(4)
    return repr(said) if rng.random() < 0.2 else json.dumps(said, ensure_ascii=rng.random() < 0.5)


KINDS: list[Callable[[random.Random], str]] = [noise, changed, changed, changed, cut, mixed, nested, brackets, letters]
KINDS += [repeated, value, value]
