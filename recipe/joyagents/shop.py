"""The twelve APIs of the e-commerce agent, after the list in the master's prompt (JoyAgents-R1, Template #1).

The paper's are a company's own and not public; these look up invented records (shop_records.py). They answer as APIs
do: a JSON object, or an error for a shop or a number that there is not. None changes anything, so that a trajectory can
be played again. As tools: `sources: [{kind: functions, path: verl_ext.recipe.joyagents.shop}]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from verl_ext.recipe.joyagents import shop_records as _data
from verl_ext.tools.catalogue.types import CallError as _CallError


def check_shop_expenses(
    category: str, shop_body: Literal["individual", "company"], shop_type: str = "small shop"
) -> dict[str, Any]:
    """Check fees: the deposit, the quality guarantee and the service fees required for opening a shop on the platform.

    Args:
        category: what the shop sells, e.g. educational toys
        shop_body: who opens the shop
        shop_type: small shop, flagship shop or franchise shop
    """
    deposit, share = _category(category)
    factors = {"small shop": 1, "franchise shop": 2, "flagship shop": 3}
    problem = f"unknown shop_type {shop_type!r}; allowed: {', '.join(_data.SHOP_TYPES)}"
    company = 2 if shop_body == "company" else 1
    return {
        "deposit_yuan_per_year": deposit * _found(factors, shop_type, problem) * company,
        "transaction_fee_percent": share,
        "technical_service_fee_percent": 0.41,
    }


def check_qualifications(category: str, shop_body: Literal["individual", "company"]) -> dict[str, Any]:
    """Check qualifications: the documents and permits required for opening a shop on the platform.

    Args:
        category: what the shop sells, e.g. educational toys
        shop_body: who opens the shop
    """
    _category(category)
    permit = _data.PERMITS.get(category.strip().lower())
    return {"documents": [*_data.DOCUMENTS[shop_body], *([permit] if permit else [])]}


def search_order_code(order: str) -> dict[str, Any]:
    """Check an order: its shop, product, number of pieces, amount, status and label.

    Args:
        order: number of the order, OR and eight digits
    """
    return _order(order)


def search_after_sales(case: str) -> dict[str, Any]:
    """Query an after-sales case: what the customer asks for, its status, and how many days are left to respond.

    Args:
        case: number of the after-sales case, AS and eight digits
    """
    return dict(_found(_data.records().cases, case.strip().upper(), f"there is no after-sales case {case}"))


def report_order_delay(order: str, days: int) -> dict[str, Any]:
    """Report a delay: tell the platform that an order cannot be shipped on time. It cannot say whether it was before.

    Args:
        order: number of the order, OR and eight digits
        days: how many days later it will be shipped, 1 to 7
    """
    found = _order(order)
    if found["status"] != "waiting for shipment":
        raise _CallError(f"order {order} is {found['status']}; only orders waiting for shipment can be reported")
    if not 1 <= days <= 7:
        raise _CallError("days must be between 1 and 7")
    return {"order": order.strip().upper(), "reported": True, "ships_within_days": days}


def check_deposit_refund(shop: str) -> dict[str, Any]:
    """Check the refund of the deposit at check-out: its progress, and the reason why it cannot be returned at present.

    Args:
        shop: name of the shop
    """
    state, reason = _shop(shop).refund
    return {"status": state, **({"reason": reason} if reason else {})}


def search_promotion(shop: str, campaign: str | None = None) -> dict[str, Any]:
    """Query promotions: details of the promotion activities that a shop takes part in.

    Args:
        shop: name of the shop
        campaign: name of one promotion activity; all of the shop's if it is left out
    """
    found = _shop(shop).promotions
    if campaign is None:
        return {"promotions": found}
    return {"campaign": campaign, **_found(found, campaign, f"{shop} takes no part in {campaign}")}


def search_coupon(shop: str, coupon: str | None = None) -> dict[str, Any]:
    """Query coupons: their status and the products they apply to. It cannot tell why a coupon does not take effect.

    Args:
        shop: name of the shop
        coupon: code of one coupon; all of the shop's if it is left out
    """
    found = _shop(shop).coupons
    if coupon is None:
        return {"coupons": found}
    return {"coupon": coupon, **_found(found, coupon, f"{shop} has no coupon {coupon}")}


def check_bank_card(shop: str) -> dict[str, Any]:
    """Check the bank card of a shop: whether one is bound, and whether it is verified.

    Args:
        shop: name of the shop
    """
    return {"status": _shop(shop).card}


def search_payment_method(shop: str) -> dict[str, Any]:
    """Query the settlement method of a shop: how and how often the platform pays it.

    Args:
        shop: name of the shop
    """
    found = _shop(shop)
    return {"paid_to": found.payment, "settlement": found.cycle}


def search_product_audit(shop: str, product: str) -> dict[str, Any]:
    """Query the audit of a product: the status of its review, and since when it runs. It cannot tell why one failed.

    Args:
        shop: name of the shop
        product: name of the product
    """
    return dict(_of_product(_shop(shop).audits, shop, product))


def check_stock(shop: str, product: str) -> dict[str, Any]:
    """Check the stock: how many pieces of a product a shop has.

    Args:
        shop: name of the shop
        product: name of the product
    """
    return {"pieces": _of_product(_shop(shop).stock, shop, product)}


def _found(records: Mapping[str, Any], key: str, problem: str) -> Any:
    if key not in records:
        raise _CallError(problem)
    return records[key]


def _category(name: str) -> tuple[int, float]:
    problem = f"unknown category {name!r}; there are: {', '.join(_data.CATEGORIES)}"
    return _found(_data.CATEGORIES, name.strip().lower(), problem)


def _shop(name: str) -> _data.Shop:
    return _found(_data.records().shops, name.strip(), f"there is no shop {name}")


def _order(number: str) -> dict[str, Any]:
    return dict(_found(_data.records().orders, number.strip().upper(), f"there is no order {number}"))


def _of_product(records: Mapping[str, Any], shop: str, product: str) -> Any:
    return _found(records, product.strip(), f"{shop} has no product {product}")
