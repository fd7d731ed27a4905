"""Random batches through rows, padding, advantages and loss against the equations (contract.py)."""

import pytest

from tests.trainer import contract


@pytest.mark.parametrize("case", contract.CASES, ids=lambda case: "-".join(case[:3]))
def test_the_gradient_of_every_token_is_that_of_the_equations(case):
    found = [contract.check(case, seed) for seed in range(4)]
    assert max(one["worst"] for one in found) < 1e-6, found
    assert all(one["tokens"] > one["rows"] > 0 for one in found)


def test_padding_was_among_them():
    assert sum(contract.check(contract.CASES[0], seed)["padding"] for seed in range(3)) > 0
