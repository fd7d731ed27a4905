"""Shares of wrong demonstrations, by which a tiny model gets its bad habits.

class Habits(Shares): borrow: float = 0.72       72% of the subtractions are wrong
Habits().scaled(0.5).borrow                      0.36
"""

from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

S = TypeVar("S", bound="Shares")


@dataclass(frozen=True)
class Shares:
    """Numbers in [0, 1], the fields of a subclass.

    Attributes:
        FACTORS: fields that are not shares of errors, and stay when the others are scaled.

    Raises:
        ValueError: a value out of range.
    """

    FACTORS: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise ValueError(f"{type(self).__name__}.{field.name}={value}: a share is a number in [0, 1]")

    def scaled(self: S, factor: float) -> S:
        """All shares of errors times `factor`, at most 1 each: 0 leaves only right demonstrations."""
        errors = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.FACTORS}
        kept = {name: getattr(self, name) for name in self.FACTORS}
        return type(self)(**kept, **{name: min(1.0, factor * share) for name, share in errors.items()})
