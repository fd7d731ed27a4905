"""Servers of four kinds that play DeepAgent by rule, and the same model in this process.

All render a chat with a chat template of transformers', as vLLM and SGLang do, and hand the model what came of it: so
the prompts of a server can be compared with those in this process, character by character.
"""

from __future__ import annotations

import json
import re
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from tests.helpers import FakeLLM
from tests.recipe.test_deepagent_folding import MADE
from tests.serving import answer

ADD = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content DROPPING }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPEN{% endif %}"
)
DROPPING = "if KEPT else m.content.split('</think>')[-1]"
PLAIN = CHATML.replace("DROPPING", "").replace("OPEN", "")
# QwQ: the template opens the thoughts, and keeps those of the last message.
THINKING = CHATML.replace("DROPPING", DROPPING.replace("KEPT", "m.role != 'assistant' or loop.last"))
# DeepSeek-R1: it drops all that have an end.
FORGETFUL = CHATML.replace("DROPPING", DROPPING.replace("KEPT", "m.role != 'assistant'"))
THINKING, FORGETFUL = (template.replace("OPEN", "<think>\n") for template in (THINKING, FORGETFUL))
# What parts the turns of a stream that is sent in turns.
TURN = re.compile(r"(<\|im_end\|>\n)?<\|im_start\|>(user|assistant)\n(<think>\n)?|<\|im_end\|>\n")


def rendered(template: str, messages: list[dict[str, str]], goes_on: bool = False) -> str:
    """The prompt.

    Raises:
        ValueError: the last message is to be continued, and the template has dropped some of it.
    """
    chats, _ = render_jinja_template(
        [messages], chat_template=template, continue_final_message=goes_on, add_generation_prompt=not goes_on
    )
    return chats[0]


def speak(prompt: str) -> str:
    """What the model says, to its own end. It searches, calls, folds, calls, and answers; the auxiliary's memories."""
    first, _, stream = prompt.partition("<|im_start|>assistant\n")
    kind = next((kind for kind in MADE if f"the {kind} memory" in first), "")
    if kind:
        return f"I write it down.</think>{json.dumps(MADE[kind])}"
    steps = [
        "I look.</think> <tool_search> sums </tool_search>\nIt will say something",
        f"So: {ADD} and I expect 5",
        f"Enough. <fold_thought> and then {ADD}",
    ]
    steps = [f"Again: {ADD}", "That was it.</think>\nIt is \\boxed{5}"] if "Your work so far" in first else steps
    return steps[TURN.sub("", stream).count("_result>\n") // 2]


def first_stop(text: str, stops: list[str]) -> tuple[int, str]:
    """Where the text is stopped, and by what; its length and "" if it is not."""
    return min(((text.index(stop), stop) for stop in stops if stop in text), default=(len(text), ""))


class Local(FakeLLM):
    """The model in this process, token in, token out."""

    def __init__(self, template: str):
        super().__init__(lambda request: self.stopped(request))
        self.template = template

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return list(rendered(self.template, messages).encode())

    def stopped(self, request: Any) -> str:
        text = speak(request.prompt)
        at, stop = first_stop(text, request.sampling.get("stop") or [])
        return text[:at] + stop


class StreamServer:
    """What `tests.serving.ChatServer` does.

    Args:
        kind: vllm and sglang continue a message and name the stop, each in its way; openai refuses what it does not
            know and says no stop; simple ignores what it does not know, and says none.
        template: of chats.
        parser: reasoning is kept apart, as vLLM's deepseek_r1 does it. mute: and not told.

    Attributes:
        prompts: of the agent, as the model got them. stops: that were sent with them.
    """

    def __init__(self, kind: str, template: str, parser: bool = False, mute: bool = False):
        self.kind, self.template, self.parser, self.mute = kind, template, parser, mute
        self.prompts: list[str] = []
        self.stops: list[list[str]] = []

    def __call__(self, body: dict[str, Any], number: int) -> Any:
        if self.kind == "openai":
            for name in ("continue_final_message", "add_generation_prompt"):
                if name in body:
                    return 400, {"error": {"message": f"Unrecognized request argument supplied: {name}"}}
        try:
            prompt = self.prompt(body)
        except ValueError as error:
            return 400, {"error": {"message": f"{error} None", "type": "BadRequestError"}}
        stops = body.get("stop") or []
        if stops:
            self.prompts.append(prompt)
            self.stops.append(stops)
        text = speak(prompt)
        at, stop = first_stop(text, stops)
        return self.worded(text[:at], stop)

    def prompt(self, body: dict[str, Any]) -> str:
        messages, goes_on = body["messages"], self.kind in ("vllm", "sglang") and body.get("continue_final_message")
        if goes_on and self.kind == "sglang":  # it puts the message behind the prompt for a new one
            return rendered(self.template, messages[:-1]) + messages[-1]["content"]
        if goes_on and body.get("add_generation_prompt", True):
            raise ValueError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return rendered(self.template, messages, bool(goes_on))

    def worded(self, text: str, stop: str) -> dict[str, Any]:
        """The completion."""
        reasoning, end, content = text.partition("</think>") if self.parser else ("", "", text)
        told = {} if self.mute or not self.parser else {"reasoning_content": reasoning}
        body = answer(content or None, **told)
        if self.kind in ("vllm", "sglang"):
            body["choices"][0]["stop_reason" if self.kind == "vllm" else "matched_stop"] = stop or None
        return body
