"""Chats as tokens: verl's builder of continued conversations, and verl's parsers of tool calls.

`ChatTokens.extend` gives a conversation that goes on the tokens that it had, sampled ones as they were sampled, and the
new messages' behind them. Nothing that a model wrote is encoded again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from verl_ext.mas.agent import Unparsable
from verl_ext.mas.chat import ChatRequest, Message, Written, continued_length
from verl_ext.mas.tool_texts import checked_calls, plain_messages, written_out
from verl_ext.mas.types import Call

logger = logging.getLogger(__name__)
# What stands in a synthetic answer, behind which the chat template closes the turn.
MARK = "verl_ext mark"
# Attributes of verl's parsers: texts that occur once, or less, for each tool call.
MARKS = ("tool_call_start_token", "tool_call_begin_token", "tool_call_prefix", "tool_calls_section_start_token",
         "tool_calls_start_token")  # fmt: skip
# Of the parser that has none of them.
MARK_OF_GPT_OSS = "to=functions."


class ChatTokens:
    """Chat template, conversations and tool calls of one tokenizer.

    Args:
        tokenizer: of the policy.
        template: keyword arguments for the chat template.
        model_type: of the model's config.json, for which verl has builders; None: verl's general one.
        parser: of tool calls, by verl's name, where the agent names none.
    """

    def __init__(self, tokenizer: Any, template: dict[str, Any], model_type: str | None = None, parser: str = "hermes"):
        self.tokenizer, self.template, self.model_type, self.parser = tokenizer, template, model_type, parser
        self._parsers: dict[str, Any] = {}

    @cached_property
    def text(self) -> str:
        """The chat template; of several, all."""
        given = getattr(self.tokenizer, "chat_template", None) or ""
        return given if isinstance(given, str) else "\n".join(given.values())

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the chat template writes tools and their results. Otherwise they are written out as text."""
        knows = "tools" in self.text and "tool_calls" in self.text
        if not knows:
            logger.warning("The chat template has no tools: they are written out as text, in the form of Hermes.")
        return knows

    @cached_property
    def builder(self) -> Any:
        """verl's builder for this model, or the general one if the tokenizer is not what that one expects."""
        from verl.utils.tokenizer import continuous_token_wiring as wiring

        family = wiring.ContinuousTokenModelFamily.DEFAULT
        if self.model_type in wiring._MODEL_TYPE_TO_FAMILY:
            family = wiring.infer_continuous_token_model_family(hf_model_type=self.model_type)
        try:
            return wiring.create_continuous_token_builder(
                self.tokenizer, model_family=family, chat_template_kwargs=self.template
            )
        except ValueError:  # e.g. a Qwen2 with a template of its own
            family = wiring.ContinuousTokenModelFamily.DEFAULT
            return wiring.create_continuous_token_builder(
                self.tokenizer, model_family=family, chat_template_kwargs=self.template
            )

    @cached_property
    def _ending(self) -> list[int]:
        """The tokens with which the chat template ends an answer, e.g. <|im_end|> and a line break."""
        chat = [{"role": "user", "content": MARK}, {"role": "assistant", "content": MARK}]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, **self.template)
        return list(self.tokenizer.encode(text.rpartition(MARK)[2], add_special_tokens=False))

    def _builder_ends_turns(self) -> bool:
        """False for verl's builders that leave it to the model to end its turn."""
        from verl.utils.tokenizer import continuous_token as builders

        general = (builders.ContinuousTokenBuilder, builders.QwenContinuousTokenBuilder)
        return type(self.builder) not in (*general, builders.MiniMaxContinuousTokenBuilder)

    def _rendered(self, chat: ChatRequest, messages: Sequence[Message]) -> tuple[list[Message], list[Any] | None]:
        """(messages, tools) for the chat template."""
        uses_tools = chat.tools or any(m["role"] == "tool" or m.get("tool_calls") for m in messages)
        if not uses_tools or self.knows_tools:
            return plain_messages(messages), chat.tools or None
        return written_out(messages, chat.tools), None

    def encode(self, chat: ChatRequest) -> list[int]:
        """Prompt token ids of a chat, generation prompt included."""
        messages, tools = self._rendered(chat, chat.messages)
        options = {"tool_choice": chat.wire_choice} if tools and "tool_choice" in self.text else {}
        if options or not tools:
            ids = self.tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, return_dict=False, **options, **self.template
            )
            return list(ids)
        return list(self.builder.build_initial_tokens(messages, tools=tools))

    def extend(self, before: Call, chat: ChatRequest) -> list[int] | None:
        """Prompt token ids of a chat that goes on from `before`, or None if this template cannot go on exactly."""
        if before.chat is None or (before.chat.tool_choice != chat.tool_choice and "tool_choice" in self.text):
            return None
        had = [*before.prompt_ids, *before.generation.token_ids]
        length = continued_length(before.chat, before.value, chat)
        earlier, tools = self._rendered(chat, chat.messages[:length])
        now, _ = self._rendered(chat, chat.messages)
        try:
            merged = self.builder.merge_context_tokens(earlier, now, self._ended(had), tools=tools).token_ids
        except ValueError as error:
            logger.warning("a chat begins afresh, because its template cannot go on token by token: %s", error)
            return None
        return list(merged) if merged[: len(had)] == had else None

    def _ended(self, tokens: list[int]) -> list[int]:
        """The tokens, and what the end of the turn lacks, e.g. all of it after an output that was cut off."""
        if self._builder_ends_turns():
            return tokens
        ending = self._ending
        has = next(n for n in range(len(ending), -1, -1) if n == 0 or tokens[-n:] == ending[:n])
        return [*tokens, *ending[has:]]

    def stop_tokens(self, chat: ChatRequest) -> list[int]:
        """Tokens that end an output because a tool call ends with them (Gemma 4, Kimi)."""
        return list(self._parser(chat).stop_token_ids)

    async def read(self, text: str, token_ids: list[int], chat: ChatRequest) -> tuple[str, list[Written]]:
        """(text beside the tool calls, tool calls) of an output, by verl's parser.

        verl's parsers leave out a call that they cannot read; here that is noticed.

        Raises:
            Unparsable: fewer calls were read than begin in the output, or arguments are no JSON object.
        """
        parser = self._parser(chat)
        content, calls = await parser.extract_tool_calls(list(token_ids), _schemas(chat.tools))
        whole = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        marks = {getattr(parser, name) for name in MARKS if hasattr(parser, name)} or {MARK_OF_GPT_OSS}
        begun = max(whole.count(mark) for mark in marks)
        if len(calls) < begun:
            raise Unparsable(f"{len(calls)} tool calls can be read, but {begun} begin: {text!r:.200}")
        if not calls:
            return text, []
        for token in self.tokenizer.all_special_tokens:
            content = content.replace(token, "")
        return content, checked_calls([(call.name, call.arguments) for call in calls])

    def _parser(self, chat: ChatRequest) -> Any:
        name = chat.parser or self.parser
        if name not in self._parsers:
            from verl.experimental.agent_loop.tool_parser import ToolParser

            check_parser(name)
            self._parsers[name] = ToolParser.get_tool_parser(name, self.tokenizer)
        return self._parsers[name]


def check_parser(name: str, setting: str = "tool_parser") -> None:
    """Refuse a parser that verl does not have.

    Raises:
        ValueError: names the allowed ones.
    """
    from verl.experimental.agent_loop.tool_parser import ToolParser

    if name not in ToolParser._registry:
        raise ValueError(f"{setting}={name!r} is no tool parser of verl; allowed: {', '.join(ToolParser._registry)}")


def _schemas(tools: Sequence[dict[str, Any]]) -> list[Any]:
    """verl's records of the tools, which have less than JSON Schema: parsers look up the types of arguments there."""
    from verl.tools.schemas import OpenAIFunctionToolSchema

    return [OpenAIFunctionToolSchema.model_validate(_reduced(tool["function"])) for tool in tools]


def _reduced(function: dict[str, Any]) -> dict[str, Any]:
    given = function.get("parameters") or {}
    properties = {
        name: {"type": said.get("type", "string"), "description": str(said.get("description") or "")}
        for name, said in (given.get("properties") or {}).items()
        if isinstance(said, dict)
    }
    parameters = {"type": "object", "properties": properties, "required": list(given.get("required") or [])}
    described = {"name": function["name"], "description": str(function.get("description") or "")}
    return {"type": "function", "function": described | {"parameters": parameters}}
