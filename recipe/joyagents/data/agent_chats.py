"""Conversations of JoyAgents-R1's agents in natural language, from which instruction-tuned models learn their roles.

    system: the question agent's prompt       user: Until when can customers return shoes?
    assistant: <think>This is about the platform: I look it up.</think><tool_call>…</tool_call>
    tool: the passages that the search finds  assistant: <think>…</think>Shoes can be returned within 14 days …

Prompts are the recipe's own, and tool results are real: searches (BM25) find them, the shop's APIs return them.
Thoughts are one sentence each, from templates; thoughts.py asks a model for better ones. What `tool_intention` says
is the question itself.
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
from verl_ext.recipe.joyagents import prompts, single
from verl_ext.recipe.joyagents.data.chat_tools import Search, call_of
from verl_ext.recipe.joyagents.data.generated_questions import Question, QuestionGenerator, knowledge, run
from verl_ext.recipe.joyagents.grammar import answer_of, output
from verl_ext.recipe.joyagents.prompts import Messages
from verl_ext.recipe.joyagents.react import OUTPUT, RESULT_CHARS, safe
from verl_ext.recipe.joyagents.specialists import INTENTION, LISTED, RETRIEVALS, SEARCHED, SUMMARY
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.tools.catalogue.formats.functions import load
from verl_ext.tools.catalogue.types import ToolSpec
from verl_ext.tools.retrieval import Passage, build_retriever

# Kind of question -> the specialist for it, and why.
SPECIALIST = {
    "math": ("math_agent", "The user wants a mathematical problem solved."),
    "qa": ("question_agent", "The user asks about the rules of the platform."),
    "open": ("question_agent", "The user talks about something of every day, which the question agent answers."),
    "shop": ("shop_agent", "The user wants to know something about a shop's data, which the shop agent can look up."),
    "function": ("function_agent", "This takes a service outside of the platform, which the function agent can call."),
}
AGENTS = 3  # that a search of the master shows
PASSAGES = 3
# Shares of conversations: with memories in the prompt; in which the master looks for its next agent, though it knows it
# (Table 8); in which a function agent asks for the intention first (Figures 6 and 7).
WITH_MEMORY, WITH_SEARCH, WITH_INTENTION = 0.3, 0.3, 0.5
CALCULATOR = re.compile(r"<<.*?>>")
SOLVED = "The results solve the problem."
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


class ChatGenerator:
    """Draws conversations about training questions. A function of `seed`.

    Args:
        real: kind -> questions that are not generated: problems with their solutions, questions to other functions.
        tools: the documents of these functions. specialists: of the system. apis, found, remember: as in mas.workflow.
    """

    def __init__(
        self,
        seed: int,
        real: Mapping[str, Sequence[Question]],
        tools: Sequence[ToolSpec],
        specialists: Sequence[str] = SPECIALISTS,
        apis: str = SEARCHED,
        found: str = "agents",
        remember: str = OUTPUT,
    ):
        self.listed, self.found, self.remember = apis == LISTED, found, remember
        self.rng, self.specialists = random.Random(f"{seed}/joyagents chats"), list(specialists)
        self.real = {kind: list(questions) for kind, questions in real.items()}
        self.generator = QuestionGenerator(seed, "train", self.real, specialists)
        self.apis, self.others = Search(load("verl_ext.recipe.joyagents.shop")), Search(tools)
        about = [ToolSpec(name, prompts.SPECIALISTS[name], {}) for name in specialists]
        self.agents = Search(about, AGENTS)
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
        chat, remembered = self._begin("master", question, specialists=self.specialists)
        if remembered:
            return chat.answer("The same question stands in the memory.", remembered)
        parts = question.parts or (question,)
        if not self.result(question):
            agent, why = SPECIALIST[parts[0].kind]
            return chat.call(why, agent, {"intention": parts[0].text})
        for number, part in enumerate(parts):
            agent, why = SPECIALIST[part.kind]
            if number and self.rng.random() < WITH_SEARCH:
                described = {}
                if self.found == "functions" and self.others.catalogue:
                    wanted = part.functions if part.kind == "function" else ()
                    described = {"function_agent": prompts.listing(self.others.documents(part.text, wanted))}
                found = self.agents(part.text, [agent], **described)
                chat.call(
                    "What is left needs another agent: I look for it.", RETRIEVALS, {"intention": part.text}, found
                )
            chat.call(why, agent, {"intention": part.text}, self.handed_over(part))
        why = SOLVED if question.parts else f"The {agent} has answered the question."
        return chat.answer(why, self.result(question))

    def result(self, question: Question) -> str:
        """The answer to a question; "" if not all calls are clear. Of two questions in one, reports of calls first."""
        if not question.functions:
            return question.answer
        if question.parts:
            said = [self.result(part) for part in sorted(question.parts, key=lambda part: not part.functions)]
            return "\n".join(said) if all(said) else ""
        if question.kind == "function":
            made = self.clear(question)
            return "\n".join(result for *_, result in made) if len(made) == len(question.functions) else ""
        (name,), arguments = question.functions, question.arguments or {}
        return prompts.called(name, arguments, {"ok": True, "result": run(question)}, RESULT_CHARS)

    def handed_over(self, question: Question) -> str:
        """What the specialist gives the master: the math agent its steps, too (Table 8)."""
        steps = self.steps(question)
        return f"{steps}\n{question.answer}" if question.kind == "math" and steps else self.result(question)

    def steps(self, question: Question) -> str:
        """The solution of a problem, without the calculator's marks."""
        return CALCULATOR.sub("", question.thought)

    def single_agent(self, question: Question) -> Messages | None:
        """A question -> searches and calls of one agent with all tools -> the answer (Table 1, fine-tuned)."""
        if not self.result(question):
            return None
        chat, thought = Chat(prompts.single_agent(question.text)), "What I have is enough for the answer."
        for part in question.parts or (question,):
            asked = {"intention": part.text}
            if part.kind == "qa":
                chat.call("The rules of the platform tell this.", single.KNOWLEDGE, asked, self._passages(part))
            elif part.kind == "shop":
                name, found = part.functions[0], self.apis(part.text, part.functions)
                chat.call("I look for an API of the platform.", single.SHOP, asked, found)
                chat.call(f"{name} fits.", name, part.arguments or {}, self.result(part))
            elif part.kind == "function":
                made = self.clear(part)
                found = self.others(part.text, part.functions)
                chat.call("I look for a general API.", single.GENERAL, asked, found)
                for name, arguments, result in made:
                    chat.call(f"{name} does what is wanted.", name, arguments, result)
            elif part.kind == "math":
                thought = self.steps(part)
            else:
                thought = "This needs no tools."
        return chat.answer(thought, self.result(question))

    def question_agent(self, question: Question) -> Messages:
        """A question -> passages -> their summary -> the answer."""
        chat, remembered = self._begin("question_agent", question)
        if remembered:
            return chat.answer(REMEMBERED, remembered)
        if question.kind == "open":  # Template #4: without knowledge of the domain, tool_summary at once
            why = "This takes no knowledge of the platform; tool_summary answers from what it knows."
        else:
            chat.call("This is about the platform: I look it up.", RETRIEVALS, {}, self._passages(question))
            why = "The passages are there; tool_summary answers from them."
        chat.call(why, SUMMARY, {}, question.answer)
        return chat.answer("tool_summary has answered the question.", question.answer)

    def _passages(self, question: Question) -> str:
        hits = self._knowledge.search([question.text], PASSAGES)[0]
        return prompts.passages([{"title": hit.passage.title, "text": hit.passage.text} for hit in hits])

    def shop_agent(self, question: Question) -> Messages:
        """A question about a shop -> its APIs -> the right one -> what it returns."""
        name, result = question.functions[0], self.result(question)
        known = {"tools": self.apis.documents(question.text, [name])} if self.listed else {}
        chat, remembered = self._begin("shop_agent", question, **known)
        if remembered:
            return chat.answer(REMEMBERED, remembered)
        self._understand(chat, question)
        if not known:
            found = self.apis(question.text, [name])
            chat.call("I look for a function that can tell this.", RETRIEVALS, {"intention": question.text}, found)
        chat.call(f"{name} fits, and the question has its arguments.", name, question.arguments or {}, result)
        return chat.answer("The function has returned what was asked for.", result)

    def function_agent(self, question: Question) -> Messages | None:
        """A question -> functions -> their calls -> what they return; only one call if not all are clear."""
        made, answer = self.clear(question), self.result(question)
        if not made:
            return None
        names = [name for name, *_ in made]
        known = self.others.documents(question.text, names) if self.listed else []
        chat = Chat(prompts.function_agent(question.text, [], known))
        self._understand(chat, question)
        if not known:
            found = self.others(question.text, names)
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
        thought = "The same problem stands in the memory." if remembered else self.steps(question)
        return chat.answer(thought, question.answer)

    def _understand(self, chat: Chat, question: Question) -> None:
        if self.rng.random() < WITH_INTENTION:
            why = "I make sure what the user wants before I look for a function."
            chat.call(why, INTENTION, {}, f"The user asks: {question.text}")

    def _begin(self, agent: str, question: Question, **inputs: Any) -> tuple[Chat, str]:
        """A chat, and what the agent remembers of this question: mostly nothing is in the prompt, else this question or
        a similar one."""
        memories, known = [], False
        if question.kind != "function" and self.rng.random() < WITH_MEMORY:
            known = self.rng.random() < 0.5
            (other,) = self._draw(question.kind, 1)
            one, known = (question, True) if known or other.text == question.text else (other, False)
            memories = self._memories(agent, one)
        chat = Chat(getattr(prompts, agent)(question.text, memories, **inputs))
        return chat, answer_of(memories[0].output) if known and memories else ""

    def _memories(self, agent: str, question: Question) -> list[Memory]:
        """A memory of a question as training writes it; none if its answer is not known."""
        result, thought = self.result(question), self.steps(question) if agent == "math_agent" else SOLVED
        if not result:
            return []
        called = [SPECIALIST[part.kind][0] for part in question.parts or (question,)]
        plan = {
            "master": called,
            "question_agent": [SUMMARY] if question.kind == "open" else [RETRIEVALS, SUMMARY],
            "math_agent": [],
        }
        steps = tuple(plan.get(agent, [RETRIEVALS, *question.functions]))
        kept = output(thought, result) if self.remember == OUTPUT else result
        return [Memory(self.rng.randint(1, 9999), agent, question.text, steps, kept, 1, 2.0)]
