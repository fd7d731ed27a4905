"""Numbers in answers that are texts, and when two of them are the same.

number_of("so it is 9{,}360 m^2 (see step 2)")     9360.0
"""

from __future__ import annotations

import math
import re

NUMBER = re.compile(r"[-+−]?\$?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+−]?\.\d+")
# |answer − target| below which an answer is right: that of PAL's evaluation of GSM8K and GSM-Hard, at any magnitude.
TOLERANCE = 1e-3
# What a reader skips, and a search for the last number must not find: the mark between groups of digits where it is
# LaTeX's {,} or a narrow blank, the exponent of a unit (m^2, m²), a remark in brackets behind a number.
GROUPS = re.compile(r"(?<=\d)(?:\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
EXPONENT = re.compile(r"(?:(?<=[^\W\d_])|(?<=[^\W\d_]\}))(?:\^\{?-?\d+\}?|[²³])")
REMARK = re.compile(r"(?<=\d)((?:\s*[^\W\d]+)?)\s*\((?=[^()]*[^\W\d_])[^()]*\)")


def readable(text: str) -> str:
    """The text without the marks and remarks that a reader skips."""
    return REMARK.sub(r"\1", EXPONENT.sub("", GROUPS.sub("", text)))


def number_of(text: str) -> float | None:
    """The last number in a text; thousands may be set off by commas, a currency sign may stand before it."""
    found = NUMBER.findall(readable(text))
    if not found:
        return None
    plain = found[-1].replace(",", "").replace("$", "").replace("−", "-").lstrip("+")
    value = float(plain)
    return value if math.isfinite(value) else None


def same_number(answer: str, target: str) -> bool:
    """Whether the last numbers of two texts differ by less than TOLERANCE."""
    said, right = number_of(answer), number_of(target)
    return said is not None and right is not None and abs(said - right) < TOLERANCE
