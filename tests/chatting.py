"""Real tokenizers with scripted outputs, for tests of chats with tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from verl_ext.mas.types import Generation
from verl_ext.trainer.rollout.llm import ServedLLM

ROOT = Path(__file__).parents[1]
TINY = ROOT / "recipe" / "mhgpo" / "assets" / "tiny_model"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
# The template of Qwen2.5-Instruct.
QWEN = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0]['role'] == 'system' %}"
    "{{- messages[0]['content'] }}{%- else %}{{- 'You are Qwen.' }}{%- endif %}"
    "{{- '\\n\\n# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '\\n</tools><|im_end|>\\n' }}{%- else %}{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- endif %}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) or "
    "(message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}"
    "{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}"
    "{%- for tool_call in message.tool_calls %}{%- if tool_call.function is defined %}"
    "{%- set tool_call = tool_call.function %}{%- endif %}"
    '{{- \'\\n<tool_call>\\n{"name": "\' }}{{- tool_call.name }}{{- \'", "arguments": \' }}'
    "{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}"
    "{%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def tiny() -> Any:
    """The tokenizer of the embedded model, whose chat template knows no tools."""
    return AutoTokenizer.from_pretrained(TINY)


def qwen() -> Any:
    """The same with the chat template of Qwen2.5-Instruct and the special tokens that it writes."""
    tokenizer = tiny()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>"})
    tokenizer.chat_template = QWEN
    return tokenizer


def smollm2() -> Any:
    """The same with the chat template of SmolLM2-Instruct, which knows no tools and ends a turn with a line break."""
    tokenizer = qwen()
    tokenizer.chat_template = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM<|im_end|>\\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    return tokenizer


class Scripted(ServedLLM):
    """Answers with given texts, as tokens of a real tokenizer; `asked` holds the prompts.

    Args:
        texts: a text, or (text, stop reason) for one without an end token.
    """

    def __init__(self, texts: Sequence[str | tuple[str, str]], tokenizer: Any = None, **options: Any):
        super().__init__(tokenizer or qwen(), None, **{"model_type": "qwen2", **options})
        self.texts, self.asked = list(texts), []

    async def generate(self, prompt_ids: list[int], sampling: dict[str, Any], key: tuple[str, ...]) -> Generation:
        given = self.texts[len(self.asked)]
        self.asked.append((list(prompt_ids), dict(sampling)))
        text, reason = given if isinstance(given, tuple) else (given, "completed")
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        ids += [self.tokenizer.eos_token_id] if reason == "completed" else []
        return Generation(ids, [-0.5] * len(ids), reason)


def calling(a: float, b: float, before: str = "") -> str:
    """An output that calls `add`."""
    return f'{before}<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
