"""Demonstrations for a tiny model, and the shares of wrong ones, which give it its bad habits.

class Habits(Shares): borrow: float = 0.72       72% of the subtractions are wrong
Habits().scaled(0.5).borrow                      0.36
class SolverTeacher(Teacher): agents = ("solver", "verifier"), with a method each
SolverTeacher(seed=0).batch(24, Habits())         {"solver": [(prompt, output), …], "verifier": […]}
"""

import random
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

Messages = list[dict[str, str]]
Segment = tuple[str, bool]  # a text, and whether it is trained
# (prompt, output); or, with observations between the outputs, segments instead of the output.
Example = tuple[Messages, str | list[Segment]]
END = "<|end|>"  # the tiny models' end token

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


class Teacher:
    """Demonstrations of the agents in `agents`; a method per agent makes one. A function of `seed`.

    Attributes:
        stream: name of the stream of random numbers.
    """

    agents: ClassVar[tuple[str, ...]]
    stream: ClassVar[str] = "teacher"

    def __init__(self, seed: int):
        self.rng = random.Random(f"{seed}/{self.stream}")

    def does(self, share: float) -> bool:
        """True in so many cases."""
        return self.rng.random() < share

    def demonstrate(self, agent: str, habits: Any) -> Any:
        """One demonstration of an agent."""
        return getattr(self, agent)(habits)

    def batch(self, size: int, habits: Any) -> dict[str, list[Example]]:
        """`size` demonstrations of each agent."""
        return {agent: [self.demonstrate(agent, habits) for _ in range(size)] for agent in self.agents}
