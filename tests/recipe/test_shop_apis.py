"""The twelve APIs: what they say is what the records hold, and what there is not is an error in words."""

from __future__ import annotations

import asyncio

import pytest

from verl_ext.recipe.joyagents import shop
from verl_ext.recipe.joyagents.shop_records import BODIES, CATEGORIES, records
from verl_ext.tools.catalogue import tool_call

RECORDS = records()
NAME = next(iter(RECORDS.shops))
WAITING = next(number for number, one in RECORDS.orders.items() if one["status"] == "waiting for shipment")
DELIVERED = next(number for number, one in RECORDS.orders.items() if one["status"] == "delivered")
PRODUCT = next(iter(RECORDS.shops[NAME].stock))


def ask(*calls):
    async def scene():
        toolbox = tool_call(sources=[{"kind": "functions", "path": shop.__name__}])
        said = [await toolbox(name=name, arguments=arguments) for name, arguments in calls]
        await toolbox.close()
        return said, toolbox.catalogue

    return asyncio.run(scene())


RIGHT = {
    "check_shop_expenses": {"category": "educational toys", "shop_body": "individual"},
    "check_qualifications": {"category": "books", "shop_body": "company"},
    "search_order_code": {"order": DELIVERED},
    "search_after_sales": {"case": next(iter(RECORDS.cases))},
    "report_order_delay": {"order": WAITING, "days": 3},
    "check_deposit_refund": {"shop": NAME},
    "search_promotion": {"shop": NAME},
    "search_coupon": {"shop": NAME, "coupon": next(iter(RECORDS.shops[NAME].coupons))},
    "check_bank_card": {"shop": NAME},
    "search_payment_method": {"shop": NAME},
    "search_product_audit": {"shop": NAME, "product": PRODUCT},
    "check_stock": {"shop": NAME, "product": PRODUCT},
}


def test_all_twelve_answer_with_what_the_records_hold():
    said, catalogue = ask(*RIGHT.items())
    assert list(catalogue) == list(RIGHT) and all(answer["ok"] for answer in said), said
    results = dict(zip(RIGHT, (answer["result"] for answer in said), strict=True))
    own = RECORDS.shops[NAME]
    assert results["check_shop_expenses"]["deposit_yuan_per_year"] == CATEGORIES["educational toys"][0] == 6000
    assert "publication business licence" in results["check_qualifications"]["documents"]
    assert results["search_order_code"] == RECORDS.orders[DELIVERED]
    assert results["report_order_delay"]["ships_within_days"] == 3
    assert results["search_promotion"]["promotions"] == own.promotions
    assert results["check_stock"] == {"pieces": own.stock[PRODUCT]} and results["check_bank_card"]["status"] == own.card
    again, _ = ask(*RIGHT.items())
    assert again == said, "nothing changes anything"


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("check_bank_card", {"shop": "Nobody Toys"}, "there is no shop Nobody Toys"),
        ("search_order_code", {"order": "OR1"}, "there is no order OR1"),
        ("search_after_sales", {"case": "AS1"}, "there is no after-sales case AS1"),
        ("report_order_delay", {"order": DELIVERED, "days": 3}, "only orders waiting for shipment"),
        ("report_order_delay", {"order": WAITING, "days": 30}, "days must be between 1 and 7"),
        ("check_stock", {"shop": NAME, "product": "zeppelin"}, "has no product zeppelin"),
        ("check_shop_expenses", {"category": "zeppelins", "shop_body": BODIES[0]}, "unknown category 'zeppelins'"),
        ("search_promotion", {"shop": NAME, "campaign": "Never"}, "takes no part in Never"),
        ("search_coupon", {"shop": NAME, "coupon": "C0"}, "has no coupon C0"),
    ],
)
def test_what_there_is_not_is_an_error_in_words(name, arguments, error):
    ((answer,), _) = ask((name, arguments))
    assert answer["kind"] == "tool_error" and error in answer["error"]


def test_arguments_that_do_not_fit_are_refused_by_the_schema():
    answers, _ = ask(
        ("check_shop_expenses", {"category": "books", "shop_body": "club"}),
        ("check_bank_card", {}),
        ("report_order_delay", {"order": WAITING, "days": "three"}),
        ("check_stock", {"shop": NAME, "colour": "x"}),
    )
    assert [answer["kind"] for answer in answers] == ["bad_arguments"] * 4


def test_records_are_a_function_of_the_seed_and_hang_together():
    assert records(1) == records.__wrapped__(1) and records(1) != records(2)
    for case in RECORDS.cases.values():
        assert RECORDS.orders[case["order"]]["shop"] == case["shop"] in RECORDS.shops
    assert all(one["product"] in RECORDS.shops[one["shop"]].stock for one in RECORDS.orders.values())
