"""Attributes for the duration of a block: how little is changed where verl offers no argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes of `owner`, an object or a module; afterwards they are what they were."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
