"""Conversations of JoyAgents-R1's agents in natural language, for instruction-tuned models: what they ask, see and say.

Prompts are the recipe's own, what tools say is what they really answer: searches (BM25) find it, the shop's APIs return
it. ToolBench's questions come without arguments, results and answers. A call is made where its arguments are clear
(call_of), and returns the documented form of the API's response ({"date": "str"}; {} where none is documented), not
data. Where all of a question's calls are clear, the agent makes them and answers with what they returned; where only
some are, the conversation ends with the first of these; where none is, it is left out.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ext.memory import Memory
from verl_ext.recipe.joyagents import prompts
from verl_ext.recipe.joyagents.data.questions import Asked, Asking, knowledge, run
from verl_ext.recipe.joyagents.react import RESULT_CHARS, safe
from verl_ext.recipe.joyagents.specialists import RETRIEVALS, SUMMARY
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.tools.catalogue.formats.functions import load
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec
from verl_ext.tools.retrieval import Passage, build_retriever

Messages = prompts.Messages
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


@dataclass
class Chat:
    """A conversation as it grows."""

    messages: Messages

    def call(self, thought: str, name: str, arguments: Mapping[str, Any], result: str | None = None) -> Messages:
        """The agent calls something, and sees what comes of it unless the conversation ends there."""
        said = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        self._say(f"<think>{thought}</think><tool_call>{said}</tool_call>")
        if result is not None:
            self.messages.append({"role": "tool", "content": result})
        return self.messages

    def answer(self, thought: str, text: str) -> Messages:
        """The agent answers."""
        return self._say(f"<think>{thought}</think>{text}")

    def _say(self, text: str) -> Messages:
        self.messages.append({"role": "assistant", "content": text})
        return self.messages


class Found:
    """A search over a catalogue, as `tool_retrievals` of an agent shows it."""

    def __init__(self, tools: Sequence[ToolSpec]):
        self.catalogue = Catalogue(tools)
        self._retriever = build_retriever(passages(tools))

    def __call__(self, query: str, wanted: Sequence[str]) -> str:
        """What is found; those of `wanted` that were not among it take the last places."""
        names = [hit.passage.pid for hit in self._retriever.search([query], FOUND)[0]]
        missed = [name for name in wanted if name not in names]
        others = [name for name in names if name not in wanted]
        kept = set(others[: max(0, FOUND - len(wanted))])
        names = [*(name for name in names if name in wanted or name in kept), *missed]
        return prompts.documents([self.catalogue[name].shown() for name in names])


class Chats:
    """Draws conversations about questions of the training split. A function of `seed`.

    Args:
        math: worked problems. calls: questions to other functions. tools: their documents.
    """

    def __init__(self, seed: int, math: Sequence[Asked], calls: Sequence[Asked], tools: Sequence[ToolSpec]):
        self.rng, self.asking = random.Random(f"{seed}/joyagents chats"), Asking(seed, "train")
        self.given = {"math": list(math), "function": list(calls)}
        self.apis, self.others = Found(load("verl_ext.recipe.joyagents.shop")), Found(tools)
        self.entries = knowledge(seed)
        self._knowledge = build_retriever([Passage(title, title, text) for title, text in self.entries.items()])

    def sets(self, sizes: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, list[Messages]]]:
        """Per agent its conversations; `sizes`: agent -> kind of question -> how many at most."""
        made: dict[str, Callable[[Asked], Messages | None]] = {
            "master": self.master,
            "question_agent": self.question_agent,
            "shop_agent": self.shop_agent,
            "function_agent": self.function_agent,
            "math_agent": self.math_agent,
        }
        for agent, kinds in sizes.items():
            drawn = [asked for kind, size in kinds.items() for asked in self._draw(kind, size)]
            self.rng.shuffle(drawn)
            chats = [made[agent](asked) for asked in drawn]
            yield agent, [chat for chat in chats if chat is not None]

    def _draw(self, kind: str, size: int) -> list[Asked]:
        if kind in self.given:
            return self.rng.sample(self.given[kind], min(size, len(self.given[kind])))
        return [getattr(self.asking, kind)() for _ in range(size)]

    # -- the master ----------------------------------------------------------------------------------------------------

    def master(self, asked: Asked) -> Messages:
        """A user's question -> specialists -> the answer, unless a specialist's is not known."""
        memories, known = self._memories("master", asked)
        chat = Chat(prompts.master(asked.text, memories, SPECIALISTS))
        if known:
            return chat.answer("The same question stands in the memory.", memories[0].output)
        if not self.result(asked):
            agent, why = SPECIALIST[asked.kind]
            return chat.call(why, agent, {"intention": asked.text})
        for part in asked.parts or (asked,):
            agent, why = SPECIALIST[part.kind]
            chat.call(why, agent, {"intention": part.text}, self.result(part))
        why = "The results solve the problem." if asked.parts else f"The {agent} has answered the question."
        return chat.answer(why, self.result(asked))

    def result(self, asked: Asked) -> str:
        """What a specialist answers; of a cooperation the number; "" where not all calls are clear."""
        if not asked.functions:
            return asked.answer
        if asked.kind == "function":
            made = self.clear(asked)
            return "\n".join(result for *_, result in made) if len(made) == len(asked.functions) else ""
        (name,), arguments = asked.functions, asked.arguments or {}
        return prompts.called(name, arguments, {"ok": True, "result": run(asked)}, RESULT_CHARS)

    # -- specialists ---------------------------------------------------------------------------------------------------

    def question_agent(self, asked: Asked) -> Messages:
        """A question -> passages -> their summary -> the answer."""
        memories, known = self._memories("question_agent", asked)
        chat = Chat(prompts.question_agent(asked.text, memories))
        if known:
            return chat.answer("The memory has the answer to this very question.", memories[0].output)
        hits = self._knowledge.search([asked.text], PASSAGES)[0]
        found = [{"title": hit.passage.title, "text": hit.passage.text} for hit in hits]
        chat.call("This is about the platform: I look it up.", RETRIEVALS, {}, prompts.passages(found))
        chat.call("The passages are there; tool_summary answers from them.", SUMMARY, {}, asked.answer)
        return chat.answer("tool_summary has answered the question.", asked.answer)

    def shop_agent(self, asked: Asked) -> Messages:
        """A question about a shop -> its APIs -> the right one -> what it returns."""
        memories, known = self._memories("shop_agent", asked)
        chat = Chat(prompts.shop_agent(asked.text, memories))
        if known:
            return chat.answer("The memory has the answer to this very question.", memories[0].output)
        name, result = asked.functions[0], self.result(asked)
        found = self.apis(asked.text, [name])
        chat.call("I look for a function that can tell this.", RETRIEVALS, {"intention": asked.text}, found)
        chat.call(f"{name} fits, and the question has its arguments.", name, asked.arguments or {}, result)
        return chat.answer("The function has returned what was asked for.", result)

    def function_agent(self, asked: Asked) -> Messages | None:
        """A question -> functions -> their calls -> what they return; only one call if not all are clear."""
        made, answer = self.clear(asked), self.result(asked)
        if not made:
            return None
        chat = Chat(prompts.function_agent(asked.text, []))
        found = self.others(asked.text, [name for name, *_ in made])
        chat.call("I look for a function that can do this.", RETRIEVALS, {"intention": asked.text}, found)
        for name, arguments, result in made if answer else made[:1]:
            chat.call(f"{name} does what is wanted.", name, arguments, result if answer else None)
        return chat.answer("The functions have returned what was asked for.", answer) if answer else chat.messages

    def clear(self, asked: Asked) -> list[tuple[str, dict[str, Any], str]]:
        """Of a question to other functions the calls whose arguments are clear: name, arguments, what is returned."""
        made = []
        for tool in map(self.others.catalogue.__getitem__, asked.functions):
            arguments = call_of(tool, asked.text)
            if arguments is not None:
                answer = {"ok": True, "result": tool.returns or {}}
                made.append((tool.name, arguments, safe(prompts.called(tool.name, arguments, answer, RESULT_CHARS))))
        return made

    def math_agent(self, asked: Asked) -> Messages:
        """A problem -> its steps -> the number."""
        memories, known = self._memories("math_agent", asked)
        chat = Chat(prompts.math_agent(asked.text, memories))
        thought = "The same problem stands in the memory." if known else CALCULATOR.sub("", asked.thought)
        return chat.answer(thought, asked.answer)

    # -- memories ------------------------------------------------------------------------------------------------------

    def _memories(self, agent: str, asked: Asked) -> tuple[list[Memory], bool]:
        """None, mostly; or the question itself with its answer, or one that is only alike."""
        if asked.kind == "function" or self.rng.random() >= WITH_MEMORY:
            return [], False
        known = self.rng.random() < 0.5
        (other,) = self._draw(asked.kind, 1)
        one, known = (asked, True) if known or other.text == asked.text else (other, False)
        return [Memory(self.rng.randint(1, 9999), agent, one.text, (), self.result(one), 1, 2.0)], known


def call_of(tool: ToolSpec, question: str) -> dict[str, Any] | None:
    """The arguments of a call where they are clear: each required one has an example in the tool's documentation that
    stands in the question, word by word; None where they are not."""
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
