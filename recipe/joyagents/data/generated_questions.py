"""Generated questions to the customer service of JoyAgents-R1; the paper's own are a company's, and not public.

    "What is the status of order 1003?"                                       shop: one of twelve APIs
    "Until when can customers return shoes?"                                  qa: the knowledge base
    "What do the orders 1003 and 1007 come to together?"                      cooperation: two look-ups and a sum

A cooperation takes two specialists, any two of the four. With the math agent it is one problem, whose second part needs
the result of the first; otherwise two questions in one message, and the answer has to answer both.

Everything is a function of a seed. The shops in validation questions, with their orders, cases and products, do not
occur in training, nor do the wordings of validation questions to the knowledge base.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from verl_ext.recipe.joyagents import shop
from verl_ext.recipe.joyagents.data.platform_rules import RULES
from verl_ext.recipe.joyagents.shop_records import BODIES, CATEGORIES, SHOP_TYPES, Records, records
from verl_ext.storage.parquet import held_out

SPLITS = ("train", "test")
# Specialist -> the kind of question that is for it.
KINDS = {"question_agent": "qa", "shop_agent": "shop", "function_agent": "function", "math_agent": "math"}
REAL = ("function", "math", "open")  # kinds whose questions are not generated
Arguments = dict[str, Any]

A_BODY = {"individual": "an individual", "company": "a company"}
# API -> wordings of a question that it answers.
WORDINGS = {
    "check_shop_expenses": (
        "I want to open a {shop_type} as {a_body} to sell {category}. How much deposit do I need to pay?",
        "What are the platform's fees for {category} if {a_body} opens a {shop_type}?",
    ),
    "check_qualifications": (
        "Which documents does {a_body} need to open a shop for {category}?",
        "What has {a_body} to hand in before selling {category} here?",
    ),
    "search_order_code": (
        "What is the status of order {order}?",
        "Please look up {order} for me: what was bought, and for how much?",
    ),
    "search_after_sales": (
        "How far is after-sales case {case}?",
        "What does the customer want in case {case}, and how long may I take to answer?",
    ),
    "report_order_delay": (
        "Order {order} will ship {days} days late, please report that.",
        "I cannot send {order} in time, I need {days} more days. Tell the platform.",
    ),
    "check_deposit_refund": (
        "{shop} has checked out. When is the deposit paid back?",
        "Why have I not got the deposit of {shop} back yet?",
    ),
    "search_promotion": (
        "Which promotion activities does {shop} take part in?",
        "What discounts does {shop} give at the moment?",
    ),
    "search_coupon": ("Are the coupons of {shop} active?", "Which products do the coupons of {shop} apply to?"),
    "check_bank_card": ("Is a bank card bound to {shop}?", "Has the bank card of {shop} been verified?"),
    "search_payment_method": ("How is {shop} paid by the platform?", "How often does {shop} get its money?"),
    "search_product_audit": (
        "Has the {product} of {shop} passed the review?",
        "How long has the {product} of {shop} been in audit?",
    ),
    "check_stock": (
        "How many pieces of {product} does {shop} have left?",
        "Is the {product} of {shop} still in stock?",
    ),
}


@dataclass(frozen=True)
class Question:
    """A question of any kind.

    Attributes:
        answer: to a sum, or from the knowledge base. title: of the entry that answers it.
        functions: the functions to call; arguments: those of the only function, if they are known.
        parts: the questions that a cooperation consists of. thought: the steps of a sum.
    """

    kind: str
    text: str
    answer: str = ""
    title: str = ""
    functions: tuple[str, ...] = ()
    arguments: Arguments | None = None
    parts: tuple[Question, ...] = ()
    thought: str = ""

    @property
    def truth(self) -> dict[str, Any]:
        """The ground truth of recipe/joyagents/accuracy.py."""
        functions = list(self.functions)
        if not self.answer:
            return {"kind": "function", "target": [], "functions": functions}
        told = [part for part in self.parts if part.answer] or [self]  # by its last part: the sum, if there is one
        kind = told[-1].kind if told[-1].kind in ("qa", "open") else "math"
        return {"kind": kind, "target": [self.answer], "functions": functions}


class QuestionGenerator:
    """Draws questions of a split. A function of `seed`.

    Args:
        real: kind -> questions of this split that are not generated, for cooperations; without them, or without their
            specialists, there are fewer pairs. specialists: those of the system.
    """

    def __init__(
        self,
        seed: int,
        split: str,
        real: Mapping[str, Sequence[Question]] | None = None,
        specialists: Sequence[str] = tuple(KINDS),
    ):
        self.real = dict(real or {})
        # A sum in a cooperation is generated, so the math agent needs no real questions but beside the function agent.
        kinds = [KINDS[name] for name in KINDS if name in specialists]
        self.pairs = [pair for pair in combinations(kinds, 2) if self._possible(pair)]
        self.rng, self.split = random.Random(f"{seed}/{split}/joyagents"), split
        self.records: Records = records()
        self.shops = [name for name in self.records.shops if SPLITS[held_out(name)] == split]
        self.orders = [number for number, one in self.records.orders.items() if one["shop"] in self.shops]
        self.cases = [number for number, one in self.records.cases.items() if one["shop"] in self.shops]
        self.rules = knowledge(seed)

    def draw(self, kind: str, _: int = 0) -> Question:
        """A random question of a kind: shop, qa, cooperation."""
        return getattr(self, kind)()

    def shop(self, function: str = "", **given: Any) -> Question:
        """A question for one of the twelve APIs; `given` fixes some of its arguments."""
        function = function or self.rng.choice(list(WORDINGS))
        while True:
            arguments = self._arguments(function) | given
            words = arguments | {"a_body": A_BODY.get(arguments.get("shop_body", ""))}
            text = self.rng.choice(WORDINGS[function]).format(**words)
            # Questions about a category name no shop and no order of the split: their text decides.
            if "category" not in arguments or SPLITS[held_out(text)] == self.split:
                return Question("shop", text, functions=(function,), arguments=arguments)

    def qa(self) -> Question:
        """A question to the knowledge base."""
        topic, category = self.rng.choice(list(RULES)), self.rng.choice(list(CATEGORIES))
        rule = RULES[topic]
        text = rule.held_out if self.split == "test" else self.rng.choice((rule.first, rule.second))
        title = title_of(topic, category)
        return Question("qa", text.format(c=category), answer=self.rules[title], title=title)

    def cooperation(self) -> Question:
        """A question for two specialists, all pairs alike."""
        pair = self.rng.choice(self.pairs)
        if pair == ("shop", "math"):
            kinds: Sequence[Callable[[], Question]] = (self._deposits, self._amounts, self._pieces)
            return self.rng.choice(kinds)()
        if pair == ("qa", "math"):
            return self._times()
        one, other = (self.rng.choice(self.real[kind]) if kind in REAL else self.draw(kind) for kind in pair)
        answer = one.answer or other.answer  # at most one of them has a text for an answer
        functions = (*one.functions, *(name for name in other.functions if name not in one.functions))
        return Question("cooperation", f"{one.text} {other.text}", answer, functions=functions, parts=(one, other))

    def _possible(self, pair: tuple[str, str]) -> bool:
        return all(kind in self.real for kind in pair if kind == "function" or pair == ("function", "math"))

    def _times(self) -> Question:
        """How much a number of the platform's rules is, so many times."""
        part, count = self.qa(), self.rng.randint(2, 6)
        number = next(int(one) for one in part.answer.split() if one.isdigit())
        text = f"{part.text} And how much is that number times {count}?"
        return self._joined(text, (part,), f"What is {number} times {count}?", f"{number} * {count}", number * count)

    def _arguments(self, function: str) -> Arguments:
        draw = self.rng.choice
        if function in ("check_shop_expenses", "check_qualifications"):
            found: Arguments = {"category": draw(list(CATEGORIES)), "shop_body": draw(BODIES)}
            return found | ({"shop_type": draw(SHOP_TYPES)} if function == "check_shop_expenses" else {})
        if function == "search_order_code":
            return {"order": draw(self.orders)}
        if function == "report_order_delay":
            waiting = [o for o in self.orders if self.records.orders[o]["status"] == "waiting for shipment"]
            return {"order": draw(waiting), "days": self.rng.randint(2, 7)}
        if function == "search_after_sales":
            return {"case": draw(self.cases)}
        name = draw(self.shops)
        with_product = function in ("search_product_audit", "check_stock")
        return {"shop": name} | ({"product": draw(list(self.records.shops[name].stock))} if with_product else {})

    def _deposits(self) -> Question:
        part, count = self.shop("check_shop_expenses"), self.rng.randint(2, 6)
        given = part.arguments or {}
        about = f"{given['shop_type']}s for {given['category']} as {A_BODY[given['shop_body']]}"
        text = f"I want to open {count} {about}. How much deposit is that in total?"
        if SPLITS[held_out(text)] != self.split:
            return self._deposits()
        deposit = run(part)["deposit_yuan_per_year"]
        return self._joined(text, (part,), f"What is {deposit} times {count}?", f"{deposit} * {count}", deposit * count)

    def _amounts(self) -> Question:
        orders = self.rng.sample(self.orders, 2)
        parts = tuple(self.shop("search_order_code", order=order) for order in orders)
        return self._added(f"What do the orders {orders[0]} and {orders[1]} come to together?", parts, "amount_yuan")

    def _pieces(self) -> Question:
        name = self.rng.choice(self.shops)
        products = list(self.records.shops[name].stock)
        parts = tuple(self.shop("check_stock", shop=name, product=product) for product in products)
        text = f"How many pieces of {' and '.join(products)} does {name} have altogether?"
        return self._added(text, parts, "pieces")

    def _added(self, text: str, parts: tuple[Question, ...], field: str) -> Question:
        one, other = (run(part)[field] for part in parts)
        return self._joined(text, parts, f"What is {one} plus {other}?", f"{one} + {other}", one + other)

    def _joined(self, text: str, lookups: tuple[Question, ...], sum_text: str, steps: str, result: int) -> Question:
        added = Question("math", sum_text, answer=str(result), thought=f"{steps} = {result}")
        return Question("cooperation", text, answer=str(result), parts=(*lookups, added), thought=added.thought)


def run(question: Question) -> Any:
    """The result of the question's API call. Raises CallError if the API returns an error."""
    return getattr(shop, question.functions[0])(**(question.arguments or {}))


def knowledge(seed: int) -> dict[str, str]:
    """Title -> text of every entry of the knowledge base: each topic for each category, near duplicates.

    The entries of a topic have different numbers, so that an answer from the wrong one has the wrong number.
    """
    rng, entries = random.Random(f"{seed}/knowledge"), {}
    for topic, rule in RULES.items():
        low = min(rule.numbers)
        high = max(low + len(CATEGORIES), *rule.numbers)
        numbers = rng.sample(range(low, high + 1, max(1, (high - low) // 30)), len(CATEGORIES))
        for category, number in zip(CATEGORIES, numbers, strict=True):
            text = rule.answer.format(c=category, C=category.capitalize(), n=number)
            entries[title_of(topic, category)] = text
    return entries


def title_of(topic: str, category: str) -> str:
    """Title of the entry on a topic for a category."""
    return f"{topic}: {category}"
