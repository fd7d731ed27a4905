"""Settings of tools: dataclasses that pydantic checks. (The sandbox runs where pydantic is missing, so its limits are
a dataclass; hence these are no models.)

    @dataclass(frozen=True, config=STRICT)          # pydantic.dataclasses
    class Settings:
        top_k: AtLeastOne = 5

    options_from(Settings, {"top_k": 0}, "settings of search")
    # ValueError: settings of search: top_k=0 must be at least 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from verl_ext.settings import messages

# No conversions: "3" is not a number, true is not an integer. An integer is a number.
STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]

Options = TypeVar("Options")


def options_from(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    """Build the options dataclass `kind`. None means that an option is not given, also one that `kind` does not have.

    what: names the options in errors, e.g. "settings of run_python".

    Raises:
        ValueError: a key is unknown (the error names the allowed ones), or a value is not allowed.
    """
    given = {str(name): value for name, value in given.items() if value is not None}
    allowed = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        similar = get_close_matches(unknown[0], allowed, n=1)
        hint = f"Did you mean {similar[0]!r}?" if similar else "Correct or remove it."
        raise ValueError(f"unknown {what} {unknown}; allowed: {allowed}. {hint}")
    try:
        return kind(**given)
    except ValidationError as error:
        raise ValueError(f"{what}: {'; '.join(messages(error, kind, ''))}") from error  # type: ignore[arg-type]
