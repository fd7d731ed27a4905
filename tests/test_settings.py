"""Messages about settings: the place, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from pydantic import Field, model_validator

from verl_ext.settings import Settings


class Inner(Settings):
    share: float = Field(0.5, ge=0, le=1)
    kind: Literal["mean", "max"] = "mean"


class Outer(Settings):
    name: str
    steps: int = Field(4, ge=1, description="epochs")
    on: bool = False
    inner: Inner = Inner()
    maybe: Inner | None = None
    many: dict[str, Inner] = {}
    values: list[float] | None = None
    paths: str | Sequence[str] = ""

    @model_validator(mode="after")
    def _check(self) -> Outer:
        if self.on and self.steps > 100:
            raise ValueError("s.steps above 100 needs s.on=false")
        return self


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "x", "steps": 0}, "s.steps=0 must be at least 1 (epochs)"),
        ({"name": "x", "inner": {"share": 2.0}}, "s.inner.share=2.0 must be at most 1"),
        ({"name": "x", "many": {"a": {"share": -1}}}, "s.many.a.share=-1 must be at least 0"),
        ({"name": "x", "inner": {"kind": "median"}}, "s.inner.kind='median' is unknown; allowed: mean, max"),
        ({"name": "x", "stepz": 1}, "unknown key s.stepz; did you mean 'steps'? (allowed: inner, many, maybe, name, "),
        ({"name": "x", "inner": {"shares": 1}}, "unknown key s.inner.shares; did you mean 'share'? (allowed: kind, "),
        ({"name": "x", "maybe": {"shares": 1}}, "unknown key s.maybe.shares; did you mean 'share'?"),
        ({"name": "x", "many": {"a": {"shares": 1}}}, "unknown key s.many.a.shares; did you mean 'share'?"),
        ({}, "s lacks name"),
        ({"name": 3}, "s.name=3 must be of type str"),
        ({"name": "x", "steps": 1.5}, "s.steps=1.5 must be of type int"),
        ({"name": "x", "steps": True}, "s.steps=True must be of type int"),
        ({"name": "x", "on": 1}, "s.on=1 must be of type bool"),
        ({"name": "x", "inner": {"share": float("nan")}}, "s.inner.share=nan must be finite"),
        ({"name": "x", "inner": 3}, "s.inner=3 must be a section with keys"),
        ({"name": "x", "values": "0.5"}, "s.values='0.5' must be a list"),
        ({"name": "x", "paths": 5}, "s.paths=5 must be of type str or a list"),
        ({"name": "x", "steps": 200, "on": True}, "s.steps above 100 needs s.on=false"),
        ("text", "s must be a section with keys, but is 'text'"),
    ],
)
def test_a_refusal_names_the_place_what_was_given_and_what_is_allowed(values, message):
    with pytest.raises(ValueError) as refused:
        Outer.read(values, "s")
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_what_is_right_is_read_whole_and_an_integer_is_a_number():
    read = Outer.read({"name": "x", "inner": {"share": 1}, "values": [1, 0.5]}, "s")
    assert (read.inner.share, read.values, read.maybe) == (1.0, [1.0, 0.5], None)
