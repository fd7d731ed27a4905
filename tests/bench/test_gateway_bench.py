"""The measurement of the gateway measures something."""

from __future__ import annotations

from tests.bench.gateway import Asking, Direct, Stub, seconds


def test_requests_are_made_and_take_time():
    wall, used = seconds(Asking(2, 0.0), 3, Stub())
    assert wall > 0 and used > 0
    assert seconds(Direct(2), 3, Stub())[0] > 0
