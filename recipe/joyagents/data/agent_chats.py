"""Conversations of JoyAgents-R1's agents in natural language, from which instruction-tuned models learn their roles.

    system: the question agent's prompt       user: Until when can customers return shoes?
    assistant: <think>This is about the platform: I look it up.</think><tool_call>…</tool_call>
    tool: the passages that the search finds  assistant: <think>…</think>Shoes can be returned within 14 days …

Prompts are the recipe's own, and tool results are real: searches (BM25) find them, the shop's APIs return them.
ToolBench's questions come without arguments, results and answers. A call is made if its arguments are clear (call_of),
and returns the documented form of the API's response ({"date": "str"}; {} if none is documented), not data. If all
calls of a question are clear, the agent makes them and answers with the results. If only some are, the conversation
ends with the first of these; if none is, it is left out.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ext.memory import Memory
from verl_ext.recipe.joyagents import prompts
from verl_ext.recipe.joyagents.data.generated_questions import Question, QuestionGenerator, knowledge, run
from verl_ext.recipe.joyagents.prompts import Messages
from verl_ext.recipe.joyagents.react import RESULT_CHARS, safe
from verl_ext.recipe.joyagents.specialists import RETRIEVALS, SUMMARY
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.tools.catalogue.formats.functions import load
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec
from verl_ext.tools.retrieval import Passage, build_retriever

# Kind of question -> the specialist for it, and why.
SPECIALIST = {
    "math": ("math_agent", "The user wants a mathematical problem solved."),
    "qa": ("question_agent", "The user asks about the rules of the platform."),
    "shop": ("shop_agent", "The user wants to know something about a shop's data, which the shop agent can look up."),
    "function": ("function_agent", "This takes a service outside of the platform, which the function agent can call."),
}
FOUND = 5  # functions that a search shows
PASSAGES = 3
WITH_MEMORY = 0.3  # share of conversations with memories in the prompt
CALCULATOR = re.compile(r"<<.*?>>")
REMEMBERED = "The memory has the answer to this very question."


@dataclass
class Chat:
    """A conversation as it grows."""

    messages: Messages

    def call(self, thought: str, name: str, arguments: Mapping[str, Any], result: str | None = None) -> Messages:
        """Add a call of the agent and its result; without the result if the conversation ends there."""
        call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        self.say(thought, f"<tool_call>{call}</tool_call>")
        if result is not None:
            self.messages.append({"role": "tool", "content": result})
        return self.messages

    def answer(self, thought: str, text: str) -> Messages:
        """The agent answers."""
        return self.say(thought, text)

    def say(self, thought: str, text: str, closing: str = "</think>") -> Messages:
        """The agent thinks, and then writes a text."""
        self.messages.append({"role": "assistant", "content": f"<think>{thought}{closing}{text}"})
        return self.messages


class Search:
    """A search over a catalogue, as `tool_retrievals` of an agent shows it."""

    def __init__(self, tools: Sequence[ToolSpec]):
        self.catalogue = Catalogue(tools)
        self._retriever = build_retriever(passages(tools))

    def __call__(self, query: str, wanted: Sequence[str]) -> str:
        """The documents found; documents of `wanted` that the search missed replace the last ones."""
        names = [hit.passage.pid for hit in self._retriever.search([query], FOUND)[0]]
        missed = [name for name in wanted if name not in names]
        others = [name for name in names if name not in wanted]
        kept = set(others[: max(0, FOUND - len(wanted))])
        names = [*(name for name in names if name in wanted or name in kept), *missed]
        return prompts.documents([self.catalogue[name].shown() for name in names])


class ChatGenerator:
    """Draws conversations about training questions. A function of `seed`.

    Args:
        math: problems with their solutions. calls: questions to other functions. tools: the documents of these.
    """

    def __init__(self, seed: int, math: Sequence[Question], calls: Sequence[Question], tools: Sequence[ToolSpec]):
        self.rng, self.generator = random.Random(f"{seed}/joyagents chats"), QuestionGenerator(seed, "train")
        self.real = {"math": list(math), "function": list(calls)}
        self.apis, self.others = Search(load("verl_ext.recipe.joyagents.shop")), Search(tools)
        self.entries = knowledge(seed)
        self._knowledge = build_retriever([Passage(title, title, text) for title, text in self.entries.items()])

    def sets(self, sizes: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, list[Messages]]]:
        """Per agent its conversations; `sizes`: agent -> kind of question -> how many at most."""
        for agent, kinds in sizes.items():
            drawn = [question for kind, size in kinds.items() for question in self._draw(kind, size)]
            self.rng.shuffle(drawn)
            chats = [getattr(self, agent)(question) for question in drawn]
            yield agent, [chat for chat in chats if chat is not None]

    def _draw(self, kind: str, size: int) -> list[Question]:
        if kind in self.real:
            return self.rng.sample(self.real[kind], min(size, len(self.real[kind])))
        return [self.generator.draw(kind) for _ in range(size)]

    def master(self, question: Question) -> Messages:
        """A user's question -> specialists -> the answer, if the specialists' answers are known."""
        chat, remembered = self._begin("master", question, specialists=SPECIALISTS)
        if remembered:
            return chat.answer("The same question stands in the memory.", remembered)
        if not self.result(question):
            agent, why = SPECIALIST[question.kind]
            return chat.call(why, agent, {"intention": question.text})
        for part in question.parts or (question,):
            agent, why = SPECIALIST[part.kind]
            chat.call(why, agent, {"intention": part.text}, self.result(part))
        why = "The results solve the problem." if question.parts else f"The {agent} has answered the question."
        return chat.answer(why, self.result(question))

    def result(self, question: Question) -> str:
        """A specialist's answer, or the number of a cooperation; "" if not all calls are clear."""
        if not question.functions:
            return question.answer
        if question.kind == "function":
            made = self.clear(question)
            return "\n".join(result for *_, result in made) if len(made) == len(question.functions) else ""
        (name,), arguments = question.functions, question.arguments or {}
        return prompts.called(name, arguments, {"ok": True, "result": run(question)}, RESULT_CHARS)

    def question_agent(self, question: Question) -> Messages:
        """A question -> passages -> their summary -> the answer."""
        chat, remembered = self._begin("question_agent", question)
        if remembered:
            return chat.answer(REMEMBERED, remembered)
        hits = self._knowledge.search([question.text], PASSAGES)[0]
        found = [{"title": hit.passage.title, "text": hit.passage.text} for hit in hits]
        chat.call("This is about the platform: I look it up.", RETRIEVALS, {}, prompts.passages(found))
        chat.call("The passages are there; tool_summary answers from them.", SUMMARY, {}, question.answer)
        return chat.answer("tool_summary has answered the question.", question.answer)

    def shop_agent(self, question: Question) -> Messages:
        """A question about a shop -> its APIs -> the right one -> what it returns."""
        chat, remembered = self._begin("shop_agent", question)
        if remembered:
            return chat.answer(REMEMBERED, remembered)
        name, result = question.functions[0], self.result(question)
        found = self.apis(question.text, [name])
        chat.call("I look for a function that can tell this.", RETRIEVALS, {"intention": question.text}, found)
        chat.call(f"{name} fits, and the question has its arguments.", name, question.arguments or {}, result)
        return chat.answer("The function has returned what was asked for.", result)

    def function_agent(self, question: Question) -> Messages | None:
        """A question -> functions -> their calls -> what they return; only one call if not all are clear."""
        made, answer = self.clear(question), self.result(question)
        if not made:
            return None
        chat = Chat(prompts.function_agent(question.text, []))
        found = self.others(question.text, [name for name, *_ in made])
        chat.call("I look for a function that can do this.", RETRIEVALS, {"intention": question.text}, found)
        for name, arguments, result in made if answer else made[:1]:
            chat.call(f"{name} does what is wanted.", name, arguments, result if answer else None)
        return chat.answer("The functions have returned what was asked for.", answer) if answer else chat.messages

    def clear(self, question: Question) -> list[tuple[str, dict[str, Any], str]]:
        """(name, arguments, result) of the calls of a question to other functions whose arguments are clear."""
        made = []
        for tool in map(self.others.catalogue.__getitem__, question.functions):
            arguments = call_of(tool, question.text)
            if arguments is not None:
                answer = {"ok": True, "result": tool.returns or {}}
                made.append((tool.name, arguments, safe(prompts.called(tool.name, arguments, answer, RESULT_CHARS))))
        return made

    def math_agent(self, question: Question) -> Messages:
        """A problem -> its steps -> the number."""
        chat, remembered = self._begin("math_agent", question)
        thought = "The same problem stands in the memory." if remembered else CALCULATOR.sub("", question.thought)
        return chat.answer(thought, question.answer)

    def _begin(self, agent: str, question: Question, **inputs: Any) -> tuple[Chat, str]:
        """A chat, and what the agent remembers of this question: mostly nothing is in the prompt, else this question or
        a similar one."""
        memories, known = [], False
        if question.kind != "function" and self.rng.random() < WITH_MEMORY:
            known = self.rng.random() < 0.5
            (other,) = self._draw(question.kind, 1)
            one, known = (question, True) if known or other.text == question.text else (other, False)
            memories = [Memory(self.rng.randint(1, 9999), agent, one.text, (), self.result(one), 1, 2.0)]
        chat = Chat(getattr(prompts, agent)(question.text, memories, **inputs))
        return chat, memories[0].output if known else ""


def call_of(tool: ToolSpec, question: str) -> dict[str, Any] | None:
    """The arguments of a call if they are clear, else None.

    They are clear if the tool's documentation has an example of each required argument, and the question contains it
    word by word.
    """
    properties = tool.parameters.get("properties", {})
    arguments = {}
    for name in tool.parameters.get("required", ()):
        example = properties[name].get("default")
        if not isinstance(example, str | int) or isinstance(example, bool) or not str(example).strip():
            return None
        if not re.search(rf"(?<!\w){re.escape(str(example))}(?!\w)", question, re.I):
            return None
        arguments[name] = example
    return arguments
