"""Patterns of JSON Schema, matched within a time limit.

Arguments are checked on the event loop, and a pattern of a third party may take years to reject a text (^(a|a)*$).
Therefore the library `regex` matches them, which has a timeout and knows ECMA's \\p{L}, unlike `re`.

A pattern that `regex` cannot compile is logged once and not checked. In a schema with `patternProperties`,
`unevaluatedProperties` is not checked, because jsonschema evaluates it with `re`. (jsonschema-rs, with a backtracking
limit of its own, was tried instead: it refuses the whole schema for one bad pattern, and its messages, which agents
read, differ.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

logger = logging.getLogger(__name__)

# CPU seconds for all patterns together while the arguments of one call are checked; usual patterns take microseconds.
LIMIT_S = 0.1
# The seconds of LIMIT_S that are left in the current check.
_left: ContextVar[list[float]] = ContextVar("left")


class PatternTimeout(Exception):
    """A pattern took too long; the message is for the agent that made the call."""


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> regex.Pattern[str] | None:
    """The compiled pattern, or None, with a warning in the log, if `regex` cannot compile it."""
    try:
        return regex.compile(pattern)
    except Exception as error:  # regex.error, and other errors of its parser for odd patterns
        logger.warning("the pattern %.100r cannot be read (%s): it is not checked", pattern, error)
        return None


# For `check_schema`: logs patterns that cannot be compiled, and accepts all.
FORMATS = FormatChecker(formats=())
FORMATS.checks("regex")(lambda pattern: not isinstance(pattern, str) or bool(compiled(pattern)) or True)


def with_limit(kind: type[Validator], schema: Mapping[str, Any]) -> type[Validator]:
    """The validator class `kind`, with this module's pattern matching; for `schema`."""
    return _extended(kind, _mentions(schema, "patternProperties"))


def errors_of(check: Validator, value: Any) -> list[ValidationError]:
    """The errors of `value`, by a validator whose class is made by `with_limit`.

    Raises:
        PatternTimeout: its patterns took longer than LIMIT_S.
        RecursionError: `value` is nested too deeply.
    """
    token = _left.set([LIMIT_S])
    try:
        return list(check.iter_errors(value))
    finally:
        _left.reset(token)


@lru_cache
def _extended(kind: type[Validator], named: bool) -> type[Validator]:
    keywords: dict[str, Any] = {"pattern": _pattern, "uniqueItems": _unique_items}
    if named:
        keywords |= {"patternProperties": _pattern_properties, "additionalProperties": _additional_properties}
        keywords |= {"unevaluatedProperties": lambda *_: ()}
    extended: Any = extend(kind, keywords)
    usual = extended.evolve

    def evolve(check: Any, **changes: Any) -> Any:
        """As jsonschema's, which takes its own class for a part that names its draft, as the root of a schema does."""
        made = usual(check, **changes)
        if isinstance(made, extended):
            return made
        own = {"format_checker": made.format_checker, "registry": made._registry, "_resolver": made._resolver}
        return _extended(type(made), named)(made.schema, **own)

    extended.evolve = evolve
    return extended


def _found(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text; True for a pattern that cannot be compiled."""
    expression, left = compiled(pattern), _left.get()
    if expression is None:
        return True
    start = time.thread_time()
    try:
        if left[0] > 0:
            return expression.search(text, timeout=left[0]) is not None
    except TimeoutError:
        pass
    finally:
        left[0] -= time.thread_time() - start
    raise PatternTimeout(
        f"whether {text[:40]!r} fits the pattern {pattern[:100]!r} cannot be told within {LIMIT_S:g} s; "
        "give another text"
    )


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _unique_items(validator: Validator, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """As jsonschema's, which compares each object with all others: a thousand of them take seconds."""
    from verl_ext.tools.catalogue.types import canonical  # which imports this module

    if unique and validator.is_type(instance, "array") and len(set(map(canonical, instance))) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if compiled(pattern) is not None and _found(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    covered = [name for name in instance if name in named or any(_found(pattern, name) for pattern in patterns)]
    taken: dict[str, dict[str, Any]] = {name: {} for name in covered}
    check = Draft202012Validator.VALIDATORS["additionalProperties"]
    yield from check(validator, allowed, instance, {"properties": taken})


def _mentions(schema: Any, keyword: str) -> bool:
    if isinstance(schema, list):
        return any(_mentions(item, keyword) for item in schema)
    return isinstance(schema, Mapping) and (
        keyword in schema or any(_mentions(item, keyword) for item in schema.values())
    )
