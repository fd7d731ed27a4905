"""Sections of a configuration as dataclasses: unknown keys, wrong types and values out of range are refused."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable
from typing import Any

# Allowed values by field name, and in words. Options of a sampling strategy are checked by the strategy.
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_calls": (lambda value: value >= 1, "at least 1"),
    "call_timeout": (lambda value: value > 0, "above 0, or null for no limit"),
    "tool_timeout": (lambda value: value > 0, "above 0, or null for no limit"),
    "tool_retries": (lambda value: value >= 0, "at least 0"),
    "poll_interval": (lambda value: value > 0, "above 0"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "top_k": (lambda value: value == -1 or value >= 1, "at least 1, or -1 for all"),
    "max_tokens": (lambda value: value >= 1, "at least 1"),
    "generated_tokens": (lambda value: value >= 1, "at least 1, or null for no budget"),
    "questions": (lambda value: value >= 1, "at least 1, or null for no budget"),
    "train_questions": (lambda value: value >= 0, "at least 0 (none)"),
    "val_questions": (lambda value: value >= 0, "at least 0 (none)"),
    "every": (lambda value: value >= 1, "at least 1"),
    "file_mb": (lambda value: value > 0, "above 0"),
    "files": (lambda value: value >= 1, "at least 1"),
    "efficiency": (lambda value: value >= 0, "at least 0 (off)"),
    "concurrency": (lambda value: value >= 1, "at least 1"),
    "timeout": (lambda value: value > 0, "above 0"),
    "retries": (lambda value: value >= 0, "at least 0"),
    "recall": (lambda value: value >= 1, "at least 1"),
    "alpha": (lambda value: value >= 0, "at least 0 (no decay)"),
    "beta": (lambda value: value >= 0, "at least 0"),
    "capacity": (lambda value: value >= 1, "at least 1"),
    "lr": (lambda value: value > 0, "above 0"),
    "entropy": (lambda value: value >= 0, "at least 0 (off)"),
    "cost": (lambda value: value >= 0, "at least 0 (free)"),
    "price": (lambda value: value >= 0, "at least 0 (free)"),
    "discount": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "steps": (lambda value: value >= 1, "at least 1"),
    "unit": (lambda value: value > 0, "above 0"),
}


def typed_section(cls: type, section: Any, path: str) -> Any:
    """An instance of the dataclass `cls` from a plain dictionary, strictly.

    Raises:
        ValueError: unknown or missing key, value of the wrong type or range; `path` names the section in messages.
    """
    if not isinstance(section, dict):
        raise ValueError(f"{path} must be a section with keys, but is {section!r}")
    hints = typing.get_type_hints(cls)
    check_keys(section, list(hints), path)
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.name not in section and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    values = {name: _convert(hints[name], value, f"{path}.{name}") for name, value in section.items()}
    for name, value in values.items():
        valid, words = RANGES.get(name, (lambda value: True, ""))
        if value is not None and not valid(value):
            raise ValueError(f"{path}.{name}={value} must be {words}")
    return cls(**values)


def check_keys(given: typing.Iterable[str], allowed: list[str], path: str) -> None:
    """Refuse keys that are not allowed.

    Raises:
        ValueError: names the key, the closest allowed one, and all allowed ones.
    """
    for key in given:
        if key not in allowed:
            close = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            place = f"{path}.{key}" if path else key
            raise ValueError(f"unknown key {place}{hint} (allowed: {', '.join(sorted(allowed))})")


def keys_at(cls: type, path: typing.Iterable[str]) -> list[str] | None:
    """Keys that the section at `path` below the dataclass `cls` may have; None: any, or it is no section."""
    hint: Any = cls
    for name in path:
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(name)
        else:
            hint = typing.get_args(hint)[1] if typing.get_origin(hint) is dict else None
        if type(None) in typing.get_args(hint):
            hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return list(typing.get_type_hints(hint)) if dataclasses.is_dataclass(hint) else None


def _convert(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return typed_section(hint, value, path)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{path} must be a section with keys, but is {value!r}")
        return {name: _convert(args[1], item, f"{path}.{name}") for name, item in value.items()}
    if origin is list:
        if not isinstance(value, list):
            raise ValueError(f"{path} must be a list, but is {value!r}")
        return [_convert(args[0], item, f"{path}[{i}]") for i, item in enumerate(value)]
    if type(None) in args:
        return None if value is None else _convert(next(a for a in args if a is not type(None)), value, path)
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise ValueError(f"{path} must be of type {hint.__name__}, but is {value!r}")
