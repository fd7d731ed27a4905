"""Settings of tools: dataclasses that pydantic checks, and errors that name the field and what is allowed.

@dataclass(frozen=True, config=STRICT)          # pydantic.dataclasses
class Settings:
    top_k: Annotated[int, Field(ge=1)] = 5

options_from(Settings, {"top_k": 0}, "settings of search")
# ValueError: settings of search: top_k: input should be greater than or equal to 1, given 0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

# No conversions: "3" is no number, true is no integer. An integer is a number.
STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]

Options = TypeVar("Options")


def options_from(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    """Build the options dataclass `kind`. None means that an option is not given.

    what: names the options in errors, e.g. "settings of run_python".

    Raises:
        ValueError: a key is unknown (the error names the allowed ones), or a value is not allowed.
    """
    check_names(given, [field.name for field in fields(kind)], what)  # type: ignore[arg-type]
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise ValueError(f"{what}: {explain(error)}") from error


def check_names(given: Iterable[str], allowed: Sequence[str], what: str) -> None:
    """Raises ValueError for a name that is not allowed, with the most similar allowed one."""
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        similar = get_close_matches(str(unknown[0]), allowed, n=1)
        hint = f" Did you mean {similar[0]!r}?" if similar else " Correct or remove it."
        raise ValueError(f"unknown {what} {unknown}; allowed: {list(allowed)}.{hint}")


def explain(error: ValidationError) -> str:
    """What pydantic found wrong, in one line: field, what is allowed, what was given."""
    return "; ".join(_explain_one(found) for found in error.errors(include_url=False))


def _explain_one(found: Any) -> str:
    if found["type"] == "value_error":  # raised by a check of the dataclass, which says it all
        return str(found["ctx"]["error"])
    message = found["msg"][0].lower() + found["msg"][1:]
    return f"{'.'.join(map(str, found['loc']))}: {message}, given {found['input']!r:.80}"
