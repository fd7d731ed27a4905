"""The invented platform's rules, from which the knowledge base of JoyAgents-R1's questions is made.

    "Until when can customers return shoes?"      "Shoes can be returned within 14 days of delivery, in their …"

{c} is a category of goods, {C} the same with a capital letter, {n} a number.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """Two wordings of a question, and one for validation only; the answer; the numbers it may contain."""

    first: str
    second: str
    held_out: str
    answer: str
    numbers: tuple[int, ...]


RULES = {
    "Returns": Rule(
        "Until when can customers return {c}?",
        "What is the return period for {c}?",
        "How long do buyers have to send back {c}?",
        "{C} can be returned within {n} days of delivery, in their original packing.",
        (7, 14, 15, 30),
    ),
    "Shipping time": Rule(
        "How fast must I ship {c}?",
        "When do orders of {c} have to leave the shop?",
        "By when must {c} be sent?",
        "Orders of {c} must be handed to the carrier within {n} hours of payment.",
        (24, 48, 72),
    ),
    "Warranty": Rule(
        "How long is the warranty on {c}?",
        "Do I have to repair {c} for free?",
        "What guarantee comes with {c}?",
        "The merchant repairs {c} free of charge for {n} months after purchase.",
        (3, 6, 12, 24),
    ),
    "Invoices": Rule(
        "When must an invoice for {c} be issued?",
        "How do I invoice {c}?",
        "A buyer of {c} wants a bill. By when?",
        "Invoices for {c} are issued electronically, at the latest {n} days after a request.",
        (2, 3, 5, 10),
    ),
    "Pictures": Rule(
        "How many pictures may a listing of {c} have?",
        "What should pictures of {c} look like?",
        "Photos of {c}: how many?",
        "A listing of {c} shows up to {n} pictures, the first one on a white background.",
        (5, 8, 9, 12),
    ),
    "Price protection": Rule(
        "How long are buyers of {c} protected against price cuts?",
        "Who gets money back if I lower the price of {c}?",
        "What happens when {c} become cheaper after a purchase?",
        "Buyers of {c} are paid the difference if the price falls within {n} days.",
        (7, 15, 30),
    ),
    "Consolidated delivery": Rule(
        "What does consolidated delivery of {c} cost me?",
        "How does consolidated delivery of {c} work?",
        "Who pays for which leg of parcels with {c}?",
        "For {c} the merchant pays {n} yuan per parcel to the warehouse, the platform pays the second leg.",
        (2, 3, 4, 6),
    ),
    "Product names": Rule(
        "How long may the name of {c} be?",
        "What may I call {c}?",
        "Which limits are there for titles of {c}?",
        "Names of {c} have at most {n} characters and no exclamation marks.",
        (30, 45, 60),
    ),
    "Reviews": Rule(
        "How long can buyers review {c}?",
        "Until when may a review of {c} be changed?",
        "What is the deadline for comments on {c}?",
        "Buyers can review {c} within {n} days of delivery and change the review once.",
        (15, 30, 90),
    ),
    "Live streams": Rule(
        "What do I need to sell {c} in a live stream?",
        "From how many followers may I stream {c}?",
        "May I present {c} in a live show?",
        "Shops for {c} with at least {n} followers may present them in live streams.",
        (100, 500, 1000),
    ),
    "Second-hand goods": Rule(
        "May I sell used {c}?",
        "What are the rules for second-hand {c}?",
        "Can {c} that were opened be offered again?",
        "Used {c} may be offered if they are marked as such and checked by the platform for {n} yuan.",
        (10, 20, 35),
    ),
    "Gifts": Rule(
        "May I add gifts to orders of {c}?",
        "What may a gift to {c} be worth?",
        "Are free extras allowed with {c}?",
        "Gifts to {c} are allowed up to a value of {n} yuan and must stand on the listing.",
        (20, 50, 80),
    ),
    "Weight": Rule(
        "How heavy may a parcel of {c} be?",
        "What is the weight limit for {c}?",
        "When does a parcel with {c} cost more because it is heavy?",
        "Parcels of {c} weigh at most {n} kilograms; heavier ones are split.",
        (5, 10, 20, 30),
    ),
}
