"""Invented shops, orders, cases, campaigns and products: the data of the twelve APIs of shop.py."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SEED = 0  # of the records that the APIs serve

NAMES = (
    "Willow Harbor Cedar Juniper Maple Copper Lantern Orchid Falcon Meadow Summit Coral Amber Saffron Indigo".split()
)
TRADES = ("Toys", "Books", "Outdoor", "Kitchen", "Audio", "Garden", "Shoes", "Tea")
# Category -> yearly deposit in yuan, share of a sale per transaction in percent.
CATEGORIES = {
    "educational toys": (6000, 5.0),
    "books": (10000, 3.0),
    "outdoor clothing": (20000, 8.0),
    "kitchen appliances": (50000, 7.5),
    "headphones": (30000, 6.0),
    "garden tools": (15000, 5.5),
    "running shoes": (25000, 8.0),
    "green tea": (12000, 4.0),
}
SHOP_TYPES = ("small shop", "flagship shop", "franchise shop")
BODIES = ("individual", "company")
# What opening a shop takes, by who opens it.
DOCUMENTS = {
    "individual": ["identity card of the owner", "bank card of the owner", "commitment letter"],
    "company": ["business licence", "identity card of the legal representative", "account opening permit"],
}
# Categories that take a permit beside them.
PERMITS = {"books": "publication business licence", "green tea": "food business licence"}
PRODUCTS = {
    "Toys": ("wooden train", "abacus"),
    "Books": ("atlas", "cookbook"),
    "Outdoor": ("rain jacket", "fleece vest"),
    "Kitchen": ("rice cooker", "kettle"),
    "Audio": ("studio headphones", "earbuds"),
    "Garden": ("pruning shears", "watering can"),
    "Shoes": ("trail shoes", "racing flats"),
    "Tea": ("longjing tea", "biluochun tea"),
}
ORDER_STATES = ("waiting for payment", "waiting for shipment", "in transit", "delivered", "cancelled")
CASE_STATES = ("waiting for the merchant", "waiting for the customer", "under arbitration", "closed")
CASE_KINDS = ("return and refund", "refund only", "exchange", "door-to-door replacement", "repair")
CARD_STATES = ("bound and verified", "bound, verification pending", "not bound")
REFUND_STATES = (
    ("not applied for", ""),
    ("in review", ""),
    ("paid out", ""),
    ("held back", "two after-sales cases are open"),
    ("held back", "the shop's last orders are less than 90 days old"),
)
PAYMENTS = ("online banking wallet", "bank card", "business account")
CYCLES = ("T+1", "weekly", "monthly")
CAMPAIGNS = ("Spring Sale", "618 Festival", "Back to School", "Double Eleven", "New Year Fair")
AUDIT_STATES = ("approved", "in review", "sent back")
COUPON_STATES = ("active", "not started", "expired", "used up")


@dataclass(frozen=True)
class Shop:
    """One shop, with all data that the APIs return about it."""

    name: str
    body: str
    shop_type: str
    category: str
    card: str
    payment: str
    cycle: str
    refund: tuple[str, str]
    promotions: dict[str, dict[str, Any]]
    coupons: dict[str, dict[str, Any]]
    audits: dict[str, dict[str, Any]]
    stock: dict[str, int]


@dataclass(frozen=True)
class Records:
    """Shops by name; orders and after-sales cases by number."""

    shops: dict[str, Shop]
    orders: dict[str, dict[str, Any]]
    cases: dict[str, dict[str, Any]]


@lru_cache(maxsize=4)
def records(seed: int = SEED) -> Records:
    """The records of a seed: one shop per pair of name and trade, two to four orders each, cases for some."""
    rng = random.Random(f"{seed}/shop records")
    shops = {f"{name} {trade}": _shop(rng, f"{name} {trade}", trade) for name in NAMES for trade in TRADES}
    numbers = iter(rng.sample(range(10_000_000, 99_999_999), 10 * len(shops)))
    orders: dict[str, dict[str, Any]] = {}
    cases: dict[str, dict[str, Any]] = {}
    for shop in shops.values():
        for _ in range(rng.randint(2, 4)):
            order = f"OR{next(numbers)}"
            orders[order] = _order(rng, shop)
            if orders[order]["status"] == "delivered" and rng.random() < 0.6:
                state, days = rng.choice(CASE_STATES), rng.randint(1, 7)
                case = {"order": order, "shop": shop.name, "kind": rng.choice(CASE_KINDS), "status": state}
                cases[f"AS{next(numbers)}"] = case | ({} if state == "closed" else {"days_left": days})
    return Records(shops, orders, cases)


def _shop(rng: random.Random, name: str, trade: str) -> Shop:
    products = PRODUCTS[trade]
    return Shop(
        name=name,
        body=rng.choice(BODIES),
        shop_type=rng.choice(SHOP_TYPES),
        category=list(CATEGORIES)[TRADES.index(trade)],
        card=rng.choice(CARD_STATES),
        payment=rng.choice(PAYMENTS),
        cycle=rng.choice(CYCLES),
        refund=rng.choice(REFUND_STATES),
        promotions={
            campaign: {"discount_percent": rng.randrange(5, 55, 5), "days_left": rng.randint(1, 30)}
            for campaign in rng.sample(CAMPAIGNS, 2)
        },
        coupons={
            f"C{rng.randint(100, 999)}-{number}": {
                "status": rng.choice(COUPON_STATES),
                "value_yuan": rng.choice((5, 10, 20, 50)),
                "products": [products[number]],
            }
            for number in range(2)
        },
        audits={
            product: {"status": rng.choice(AUDIT_STATES), "hours_in_review": rng.randint(1, 72)} for product in products
        },
        stock={product: rng.randint(0, 400) for product in products},
    )


def _order(rng: random.Random, shop: Shop) -> dict[str, Any]:
    product = rng.choice(list(shop.stock))
    pieces, price = rng.randint(1, 4), rng.randint(20, 600)
    return {
        "shop": shop.name,
        "product": product,
        "pieces": pieces,
        "amount_yuan": pieces * price,
        "status": rng.choice(ORDER_STATES),
        "label": rng.choice(("standard", "door-to-door replacement", "consolidated delivery")),
    }
