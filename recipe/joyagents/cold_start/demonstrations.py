"""Noisy demonstrations of the shop system's agents: the training data of its tiny model.

Habits are systematic errors (recipe/mhgpo/cold_start/demonstrations.py explains why), by a majority unless a line
says otherwise:

    master           sends complaints and the like to the question agent, questions about invoices to the shop agent;
                     hands a sum of two look-ups to the math agent as a whole; asks tool_retrievals or tool_intention
                     first, for nothing, where a question is not about a shop; answers with the first look-up without
                     adding (a minority), or changes a result (a minority)
    question_agent   lets tool_summary answer without having looked anything up, unless it is about returns
    shop_agent       looks for an API that it knows; takes the wrong one for a customer's own word
    function_agent   calls the first tool found, open or not, and gives up; leaves the kind out of a search (a minority)
    math_agent       forgets the one that crossing a ten carries or borrows
    all              take the answer of a memory that asks about something else, or do the work again that a memory has
                     done; forget </think> (minorities)

So an untrained system is often wrong and takes detours; RL has to learn the way to the right specialist, the
right tool, and no more rounds than it takes.

A demonstration is one agent's chat: all its outputs train at once, what its tools say does not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from verl_ext.recipe.cold_start import teacher
from verl_ext.recipe.joyagents import prompts_tiny
from verl_ext.recipe.joyagents.cold_start import improvised
from verl_ext.recipe.joyagents.cold_start.improvised import Improvised, Made, marks, words  # noqa: F401 (for the registry)
from verl_ext.recipe.joyagents.data import agent_chats
from verl_ext.recipe.joyagents.prompts_tiny import Messages
from verl_ext.recipe.joyagents.workflow import SPECIALISTS
from verl_ext.worlds.shop import API_OF, APIS, LARGEST, SPECIALIST

# What an agent thinks before it calls a specialist.
THOUGHTS = {"math_agent": "total", "question_agent": "ask", "shop_agent": "shop", "function_agent": "function"}
AGENTS = ("master", *SPECIALISTS, "summary", "intention")
KINDS = ("math", "qa", "shop", "function", "cooperation", "cooperation")
# Words that sound like another specialist's.
SOUNDS_LIKE = dict.fromkeys(("complaint", "dispute", "papers", "refund"), "question_agent") | {"invoice": "shop_agent"}
# A customer's own word -> the API that is taken for it.
TAKEN_FOR = {
    "guarantee": "check_deposit_refund",
    "papers": "search_product_audit",
    "parcel": "report_order_delay",
    "dispute": "search_product_audit",
    "lateness": "search_order_code",
    "payback": "search_after_sales",
    "sale": "search_coupon",
    "voucher": "search_promotion",
    "account": "search_payment_method",
    "payout": "check_bank_card",
    "review": "search_after_sales",
    "supply": "search_order_code",
}


@dataclass(frozen=True)
class Habits(teacher.Shares):
    """Shares of wrong demonstrations, each in [0, 1].

    route: questions that sound like another specialist's. whole: sums of two look-ups handed on as a whole; early: sums
    answered after one look-up. detour: searches and questions for nothing. changed: results that the master changes.
    unread: summaries of nothing, but about returns. wrong: APIs for a customer's own word. first: the first tool found
    though it is not open, give_up: answers after its error; vague: searches without the kind of thing. carry, borrow:
    steps that cross a ten and forget it. misled: answers of memories that ask something else; again: work that a memory
    has done. broken: outputs without </think>.
    """

    route: float = 0.65
    whole: float = 0.5
    early: float = 0.1
    detour: float = 0.55
    changed: float = 0.05
    unread: float = 0.65
    wrong: float = 0.65
    first: float = 0.6
    give_up: float = 0.6
    vague: float = 0.15
    carry: float = 0.3
    borrow: float = 0.35
    misled: float = 0.05
    again: float = 0.25
    broken: float = 0.04


scaled = Habits().scaled  # 0 right demonstrations only, 1 the shipped model's
NO_HABITS = scaled(0.0)


class Chat(agent_chats.Chat):
    """One agent's chat as it grows. `broken`: share of outputs that lack </think>."""

    def __init__(self, prompt: Messages, rng: random.Random, broken: float):
        super().__init__(list(prompt))
        self._rng, self._broken = rng, broken

    def answer(self, thought: str, text: str) -> Messages:
        """The agent answers, with a blank before the first word."""
        return super().answer(thought, f" {text}")

    def say(self, thought: str, text: str, closing: str = "</think>") -> Messages:
        """The agent thinks, perhaps without an end, and then writes a text."""
        return super().say(thought, text, "" if self._rng.random() < self._broken else closing)


class Teacher(teacher.Teacher):
    """Chats of prompt, outputs and results, each in a world of its own."""

    def batch(self, size: int, habits: Habits) -> dict[str, list[teacher.Example]]:
        """`size` chats of the master, more of the math agent, fewer of the easy ones."""
        special = {"master": size, "function_agent": size, "math_agent": size + size // 2}
        sizes = {agent: special.get(agent, max(1, size // 2)) for agent in AGENTS}
        return {
            agent: [improvised.segments(self.demonstrate(agent, habits)) for _ in range(count)]
            for agent, count in sizes.items()
        }

    def master(self, habits: Habits) -> Messages:
        """A user's question -> calls of specialists -> the answer."""
        world, made, chat, answered = self._begin("master", self.rng.choice(KINDS), habits)
        if answered:
            return chat.messages
        if made.kind != "shop" and self.does(habits.detour):
            if self.does(0.5):
                chat.call("find", "tool_retrievals", {}, improvised.found("agents", made.query))
            else:
                chat.call("intend", "tool_intention", {}, made.query)
        if made.kind == "cooperation":
            return self._cooperate(chat, made, habits)
        right = SPECIALIST[made.kind]
        agent = SOUNDS_LIKE.get(made.word, right) if self.does(habits.route) else right
        result = made.output if agent == right else world.foreign(agent)
        chat.call(THOUGHTS[agent], agent, {}, result)
        return chat.answer("done", self._changed(result, habits))

    def _cooperate(self, chat: Chat, made: Made, habits: Habits) -> Messages:
        lookups = [part for part in made.parts if part.kind == "shop"]
        if len(lookups) > 1 and self.does(habits.whole):
            guess = str(self.rng.randint(1, LARGEST))
            chat.call(THOUGHTS["math_agent"], "math_agent", {}, guess)
            return chat.answer("done", guess)
        for number, part in enumerate(made.parts):
            agent = SPECIALIST[part.kind]
            chat.call(THOUGHTS[agent], agent, {"intention": part.query}, part.output)
            if not number and self.does(habits.early):
                return chat.answer("done", part.output.rpartition(" ")[2])
        return chat.answer("done", self._changed(made.output, habits))

    def _changed(self, result: str, habits: Habits) -> str:
        """A result, perhaps without what says where it is from, or another number."""
        if not self.does(habits.changed):
            return result
        if result.isdigit():
            return str(max(0, int(result) + self.rng.choice((-1, 1))))
        return result.rpartition(" : ")[2].rpartition(" ")[2]

    def question_agent(self, habits: Habits) -> Messages:
        """A question -> passages -> their summary -> the answer; now and then one that it knows nothing about."""
        asked = "qa" if self.does(0.9) else "shop"
        world, made, chat, answered = self._begin("question_agent", asked, habits, remembers=asked == "qa")
        if answered:
            return chat.messages
        unread = made.word != "returns" and self.does(habits.unread)
        if not unread:
            found = world.passages(made.query) if made.kind == "qa" else []
            chat.call("find", "tool_retrievals", {}, prompts_tiny.passages(found))
        text = made.output if made.kind == "qa" and not unread else improvised.text(self.rng)
        chat.call("sum", "tool_summary", {}, text)
        return chat.answer("done", text)

    def shop_agent(self, habits: Habits) -> Messages:
        """Something about a shop -> an API -> what it says; now and then a question that no API answers."""
        asked = "shop" if self.does(0.93) else "qa"
        world, made, chat, answered = self._begin("shop_agent", asked, habits, remembers=asked == "shop")
        if answered:
            return chat.messages
        if self.does(habits.detour):
            chat.call("find", "tool_retrievals", {}, improvised.found("apis", made.query))
        if made.kind == "qa":
            chat.call("call", self.rng.choice(list(APIS)), {"shop": made.query.split(":")[1]}, "error not found")
            return chat.answer("done", "none")
        taken = TAKEN_FOR.get(made.word, "") if self.does(habits.wrong) else ""
        name = taken or API_OF[made.word]
        result = world.api(name, made.thing)
        chat.call("call", name, {"shop": made.thing}, result)
        return chat.answer("done", result)

    def function_agent(self, habits: Habits) -> Messages:
        """A thing and a relation -> a search -> the open tool -> what it says; now and then one that no tool knows."""
        asked = "function" if self.does(0.95) else "qa"
        world, made, chat, answered = self._begin("function_agent", asked, habits, remembers=asked == "function")
        if answered:
            return chat.messages
        kind, name, relation = made.query.split(":")
        if made.kind == "qa":
            chat.call("find", "tool_retrievals", {"intention": f"{relation}:{kind}"}, "none")
            return chat.answer("done", "none")
        found = self._search(chat, world, relation if self.does(habits.vague) else f"{relation}:{kind}")
        if found[0]["name"] != made.name and self.does(habits.first):
            self._call_found(chat, found[0], {kind: name}, improvised.refusal(found[0], kind))
            if self.does(habits.give_up):
                return chat.answer("done", "none")
        if made.name not in [tool["name"] for tool in found]:
            self._search(chat, world, f"{relation}:{kind}")
        self._call_found(chat, {"description": f"{relation}:open", "name": made.name}, {kind: name}, made.output)
        return chat.answer("done", made.output)

    def _call_found(self, chat: Chat, found: dict[str, Any], arguments: dict[str, str], result: str) -> None:
        thought = found["description"].partition(":")[2]  # its state, before its name: reading that is then going on
        chat.call(f"{thought}:{found['name']}", found["name"], arguments, result)

    def _search(self, chat: Chat, world: Improvised, query: str) -> list[dict[str, Any]]:
        found = world.tools.search(query)
        chat.call("find", "tool_retrievals", {"intention": query}, prompts_tiny.documents(found))
        return found

    def math_agent(self, habits: Habits) -> Messages:
        """A chain -> its totals -> the last one; now and then something that is not only a sum."""
        if self.does(0.1):
            _, _, chat, _ = self._begin("math_agent", "cooperation", habits, remembers=False)
            guess = self.rng.randint(1, LARGEST)
            return chat.answer(f" {guess}", str(guess))
        _, made, chat, answered = self._begin("math_agent", "math", habits)
        if answered:
            return chat.messages
        totals = improvised.worked_out(made.chain, {"carry": habits.carry, "borrow": habits.borrow}, self.rng)
        return chat.answer("".join(f" {total}" for total in totals), str(totals[-1]))

    def summary(self, habits: Habits) -> Messages:
        """A question and passages -> the text of the passage that answers it; without any, what comes to mind."""
        world = Improvised(self.rng)
        made = world.question("qa")
        found = world.passages(made.query) if self.rng.random() < 0.9 else []
        chat = Chat(prompts_tiny.summary(made.query, found), self.rng, broken=0.0)
        text = made.output if found else improvised.text(self.rng)
        # It copies the title first: reading the right passage is then only going on.
        return chat.answer(f"{made.query.partition(':')[2]} is {text}" if found else "none", text)

    def intention(self, habits: Habits) -> Messages:
        """A question -> the question."""
        made = Improvised(self.rng).question(self.rng.choice(KINDS))
        return [*prompts_tiny.intention(made.query, []), {"role": "assistant", "content": made.query}]

    def _begin(
        self, agent: str, kind: str, habits: Habits, remembers: bool = True
    ) -> tuple[Improvised, Made, Chat, bool]:
        """A world, a question in it, a chat with the agent's memories, and whether one of them has answered it."""
        world = Improvised(self.rng)
        made, memories, known = world.question(kind), [], False
        if remembers and not self.does(0.5):  # of the memories the first may be the question's own
            known = self.does(0.4)
            kinds = [kind] if agent != "master" else [kind, self.rng.choice(KINDS)]
            drawn = [self.rng.choice(kinds) for _ in range(self.rng.choice((1, 1, 2)) - known)]
            others = [world.other(made) if one == kind else world.question(one) for one in drawn]
            memories = [improvised.memory(agent, one) for one in ([made] if known else []) + others]
        chat = Chat(getattr(prompts_tiny, agent)(made.query, memories), self.rng, habits.broken)
        answered = bool(memories) and self.does(1.0 - habits.again if known else habits.misled)
        if answered:
            chat.answer("memory", memories[0].output)
        return world, made, chat, answered
