"""Numbers in answers: what a reader accepts, and PAL's tolerance."""

import pytest

from verl_ext.rewards.numbers import number_of, same_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9{,}360", 9360),
        ("$1{,}234{,}567.50", 1234567.5),
        ("9\u202f360 and 12\u2009345\u00a0678", 12345678),
        ("18 (see step 2)", 18),
        ("18 apples (see step 2).", 18),
        ("18 m^2", 18),
        ("18 m² or 18 \\text{cm}^{3}", 18),
        ("(18)", 18),
        ("3 or (4)", 4),
        ("2 (17)", 17),
        ("2^5", 5),
        ("room 12\u202f34", 34),
        ("2 of (a) and 3 of (b)", 3),
    ],
)
def test_numbers_as_a_reader_sees_them(text, number):
    assert number_of(text) == number


def test_the_time_is_linear_in_the_length_of_a_bracket_that_does_not_close():
    """Quadratic time would take longer than the time limit of a test."""
    assert number_of("18 (" + "a" * 1_000_000) == 18


@pytest.mark.parametrize("target", ["5", "-9867630", "1234567890123"])
def test_the_tolerance_is_that_of_pal_at_any_magnitude(target):
    """max(1e-3, 1e-6 · target) accepted wrong sums: target + 1 on 774 of GSM-Hard's 1,319 rows."""
    assert same_number(f"{float(target) + 5e-4:.4f}", target)
    for wrong in (1e-2, 1, 10):
        assert not same_number(repr(float(target) + wrong), target)
    assert not same_number("none", target) and not same_number(target, "none")
