"""Settings that a person writes: pydantic models whose errors say what was given, what is allowed and what to do.

class Limits(Settings):
    max_calls: int = Field(64, ge=1)

Limits.read({"max_calls": 0}, "mas.limits")    # ValueError: mas.limits.max_calls=0 must be at least 1
Limits.read({"max_cals": 3}, "mas.limits")     # ValueError: unknown key mas.limits.max_cals; did you mean …
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from verl_ext.arguments import did_you_mean

S = TypeVar("S", bound="Settings")

# What a value must be, by pydantic's type of error; the context of the error fills the braces.
WORDS: dict[str, str] = {
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be below {lt:g}",
    "finite_number": "must be finite",
    "literal_error": "is unknown; allowed: {expected}",
    "int_type": "must be of type int",
    "int_from_float": "must be of type int",
    "float_type": "must be of type float",
    "bool_type": "must be of type bool",
    "string_type": "must be of type str",
    "list_type": "must be a list",
    "is_instance_of": "must be a list",
    "too_short": "must have {min_length} or more",
    "dict_type": "must be a section with keys",
    "model_type": "must be a section with keys",
}


# Parts of a place by which pydantic tells the types of a union apart.
TAGS = ("function-", "lax-or-strict", "json-or-python")


class Settings(BaseModel):
    """Base of every section: unknown keys, wrong types, values out of range, NaN and ∞ are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @classmethod
    def read(cls: type[S], values: Any, path: str) -> S:
        """Build the section from plain values; `path` names it in messages, e.g. `mas.limits`.

        Raises:
            ValueError: one line for each thing that is wrong.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"{path} must be a section with keys, but is {values!r}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ValueError("\n".join(messages(error, cls, path))) from None


def messages(error: ValidationError, cls: type[BaseModel], path: str) -> list[str]:
    """pydantic's errors in the project's words, one line each; of a value of several types, all that it may be."""
    lines = dict[str, str]()
    for found in error.errors():
        value, must, what = _message(found, cls, path).partition(" must be ")
        before = lines.get(value)
        lines[value] = f"{before} or {what}" if before and must and not before.endswith(what) else must + what
    return [value + rest for value, rest in lines.items()]


def _message(found: Any, cls: type[BaseModel], path: str) -> str:
    location, kind, given = found["loc"], found["type"], found["input"]
    if kind == "string_type" and location[-1:] == ("str",):  # a text is one of several types
        location = location[:-1]
    place, section = _place(path, location), section_at(cls, location[:-1])
    if kind == "extra_forbidden":
        known = section.model_fields if section else ()
        return unknown_key(location[-1], known, _place(path, location[:-1]))
    if kind == "missing":
        return f"{_place(path, location[:-1])} lacks {location[-1]}"
    context = found.get("ctx", {})
    if kind == "value_error":  # of a validator, which may name the place itself
        text = str(context["error"])
        if text.startswith("must"):
            return f"{place}={given!r} {text}"
        named = path and text.startswith((path, "unknown key"))
        return text if named or not place else f"{place}: {text}"
    if kind == "literal_error":
        context = {"expected": context["expected"].replace("'", "").replace(" or ", ", ")}
    words = WORDS.get(kind, found["msg"][0].lower() + found["msg"][1:]).format(**context)
    field = section.model_fields.get(str(location[-1])) if section else None
    meaning = f" ({field.description})" if field and field.description else ""
    return f"{place}={given!r} {words}{meaning}"


def _place(path: str, location: Iterable[Any]) -> str:
    parts = [str(part) for part in location if not str(part).startswith(TAGS)]
    return ".".join([path, *parts] if path else parts)


def section_at(cls: type[BaseModel], location: Iterable[Any]) -> type[BaseModel] | None:
    """The section at `location` below another one; None where keys are free, or where there is no section."""
    annotation: Any = cls
    for part in location:
        if typing.get_origin(annotation) in (dict, list):
            annotation = typing.get_args(annotation)[-1]
        else:
            field = section.model_fields.get(part) if (section := _model_in(annotation)) else None
            annotation = field.annotation if field else None
    return None if typing.get_origin(annotation) in (dict, list) else _model_in(annotation)


def _model_in(annotation: Any) -> Any:
    """The model inside `Model`, `Model | None`, `dict[str, Model]`; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _model_in(part))), None)


def unknown_key(key: Any, known: Iterable[str], path: str, if_meant: str = "") -> str:
    """The message for a key that a section does not have: with the closest one that it has, or else `if_meant`."""
    known = sorted(known)
    close = did_you_mean(key, known)
    allowed = f"(allowed: {', '.join(known) or 'none'})"
    return f"unknown key {_place(path, [key])}{close} {allowed}{'' if close else if_meant}"


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not registered, e.g. of a strategy, with the closest one that is."""
    known = list(known)
    return f"{what}={name!r} is unknown{did_you_mean(name, known)} (allowed: {', '.join(known)})"


def check_keys(given: Iterable[str], known: Iterable[str], path: str, remedy: str = "") -> None:
    """Refuse keys that a section does not have.

    Raises:
        ValueError: a line for each, with the closest known one and all known ones; then the remedy.
    """
    allowed = set(known)
    if unknown := [unknown_key(key, allowed, path) for key in given if key not in allowed]:
        raise ValueError("\n".join([*unknown, *([remedy] if remedy else [])]))
