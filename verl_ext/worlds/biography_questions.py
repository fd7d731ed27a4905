"""Works, people and the questions about them that biographies.py asks, and how hard these are (`Dial`).

"Where was the director of the film Amber Harbor born?"
"In which town was the spouse of the director of Amber Harbor born?"      three hops
"Where was whoever directed the film Amber Harbor born?"                  with a gap
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# kind -> {role as biographies name it: verb in the work's passage}
KINDS: dict[str, dict[str, str]] = {
    "film": {"director": "directed", "screenwriter": "scripted", "producer": "produced"},
}
# relation between people as biographies name it: verb in a question with a gap
RELATIONS = {"spouse": "married", "teacher": "taught", "rival": "fought"}
# {person} is "the director of the film Amber Harbor". Forms of odd number do not name the work's kind, and the tiny
# model's habits depend on it (recipe/mhgpo/cold_start/demonstrations.py).
FORMS = (
    "Where was {person} born?",
    "In which town was {person} born?",
    "What is the birthplace of {person}?",
    "About {title}: where was {person} born?",
)


@dataclass(frozen=True)
class Dial:
    """How hard a world is.

    Attributes:
        hops: facts from the question to its answer: 2 (work, person, place), 3 (work, person, relative, place), both.
        distractors: relatives of each person, 0 to 3, with biographies of their own.
        gap: share of questions in other words than the passages' ("whoever directed" for "the director of"): their own
            text is a bad query.
        train_works, val_works: works per split, with 2 or 3 people each.

    Raises:
        ValueError: a value out of range.
    """

    hops: tuple[int, ...] = (2,)
    distractors: int = 0
    gap: float = 0.0
    train_works: int = 240
    val_works: int = 56

    def __post_init__(self) -> None:
        if not self.hops or not set(self.hops) <= {2, 3}:
            raise ValueError(f"hops={list(self.hops)}: give 2, 3 or both")
        if not 0 <= self.distractors <= len(RELATIONS):
            raise ValueError(f"distractors={self.distractors}: a person has 0 to {len(RELATIONS)} relatives")
        if 3 in self.hops and not self.distractors:
            raise ValueError("hops=3 asks for relatives, but distractors=0 means that there are none: give 1 to 3")
        if not 0 <= self.gap <= 1:
            raise ValueError(f"gap={self.gap}: a share is a number in [0, 1]")

    def works(self, split: str) -> int:
        """Number of works of a split."""
        return {"train": self.train_works, "val": self.val_works}[split]


EASY = Dial()


@dataclass(frozen=True)
class Person:
    """Somebody, the place where they were born, and their relatives by relation."""

    name: str
    born: str
    relatives: dict[str, Person] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """A work; `people` maps two or three of its kind's roles to who filled them."""

    pid: str
    title: str
    kind: str
    people: dict[str, Person]

    def biographies(self) -> Iterator[tuple[str, str, Person]]:
        """(role, relation or "", person) of everybody around the work."""
        for role, person in self.people.items():
            yield role, "", person
            for relation, relative in person.relatives.items():
                yield role, relation, relative


@dataclass(frozen=True)
class Question:
    """One question; `form` indexes FORMS, `relation` is "" for two hops, `gap` says that it uses other words."""

    text: str
    work: Work
    role: str
    relation: str
    form: int
    gap: bool

    @property
    def person(self) -> Person:
        """Whom the question is about."""
        person = self.work.people[self.role]
        return person.relatives[self.relation] if self.relation else person

    @property
    def answer(self) -> str:
        """The place where they were born."""
        return self.person.born

    @property
    def gold_pid(self) -> str:
        """Passage that holds the answer."""
        return biography_pid(self.work, self.role, self.relation)

    @property
    def gold_titles(self) -> list[str]:
        """Titles of the passages that lead to the answer, in order."""
        steps = [self.work.title, biography_title(self.work, self.role, "")]
        return [*steps, biography_title(self.work, self.role, self.relation)] if self.relation else steps


def biography_pid(work: Work, role: str, relation: str) -> str:
    """Identifier of a biography; `relation` is "" for the one who filled the role."""
    return "-".join(part for part in (work.pid, role, relation) if part)


def biography_title(work: Work, role: str, relation: str) -> str:
    """Title of a biography."""
    return " of ".join(part for part in (relation, role, work.title) if part)


def ask(work: Work, role: str, relation: str, form: int, gap: bool) -> Question:
    """Put the question into words: `the director of the film X`, or with a gap `whoever directed the film X`."""
    title = work.title if form % 2 else f"the {work.kind} {work.title}"
    if gap:
        person = f"whoever {KINDS[work.kind][role]} {'it' if form == 3 else title}"
        person = f"the one who {RELATIONS[relation]} {person}" if relation else person
    else:
        person = f"its {role}" if form == 3 else f"the {role} of {title}"
        person = f"the {relation} of {person}" if relation else person
    return Question(FORMS[form].format(person=person, title=work.title), work, role, relation, form, gap)
