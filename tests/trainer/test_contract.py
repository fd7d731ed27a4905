"""Random batches through rows, padding, advantages and loss against the equations (contract.py)."""

import pytest

from tests.trainer import contract


@pytest.mark.parametrize("case", contract.CASES, ids=lambda case: "-".join(case[:3]))
def test_the_gradient_of_every_token_is_that_of_the_equations(case):
    found = [contract.check(case, seed) for seed in (0, 3, 4, 5)]  # 0 and 4: with failures
    assert max(one["worst"] for one in found) < 1e-6, found
    assert sum(one["tokens"] for one in found) > sum(one["rows"] for one in found) > 0


def test_padding_was_among_them():
    assert sum(contract.check(contract.CASES[0], seed)["padding"] for seed in (3, 4)) > 0
