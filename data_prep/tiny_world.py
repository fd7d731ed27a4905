"""The tiny world: an invented two-hop question-answering data set that is generated, not downloaded.

One row in words: "Where was the director of the film Amber Harbor born?" -> the film *Amber Harbor* names its director
(hop 1), the director's biography names the birthplace (hop 2): "Old Karsa".

    corpus.jsonl   {"pid": "val-3", "title": "Amber Harbor", "text": "film, directed by Tova Brandt, ..."}
                   {"pid": "val-3-director", "title": "director of Amber Harbor",
                    "text": "Tova Brandt, born in Old Karsa."}
    train.parquet, val.parquet   verl's schema; `data_source` is "tiny_world"

The quirk on purpose: only a query that names the role puts the biography asked for first; without it the biographies of
the same film's other people look as good to BM25. All names are pairs of words of one bounded vocabulary. A fixed fifth
of all title pairs and of all name pairs belongs to validation: no film and no person of the validation world occurs in
any training world, whatever the seed, although each of their words does.

    python data_prep/tiny_world.py --output_dir data/tiny_world
"""

import argparse
import json
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DATA_SOURCE = "tiny_world"
VERSION = 2  # raise it whenever the same arguments would give other files: `ensure` then regenerates
FILES = ("train.parquet", "val.parquet", "corpus.jsonl")
STAMP = "tiny_world.json"  # written last: its presence says that the other files are complete

FIRST = (
    "Adela Bram Cora Dario Edda Fenno Greta Halim Ilse Joren Katya Lorin Mirel Nando Orla Pavel Quim Runa "
    "Selma Tova Ugo Vera Wanda Yaro Zelda Amos Bruna Clio Dagny Emil Frida Goran Hedda Ivo Jutta Kolja"
).split()
LAST = (
    "Abbott Brandt Calder Dorsey Eklund Farrow Gallo Hobart Ibsen Jansen Keller Lorca Moreno Nolan Oakes Pavic "
    "Quist Rossi Sabel Tanaka Ulmer Varga Weller Yates Zorn Ames Bellini Cramer Duval Ferro Grieg Holt Kimura "
    "Lindt Marlow Novak"
).split()
ADJECTIVES = (
    "Amber Bitter Crimson Distant Empty Frozen Golden Hidden Iron Jagged Kindly Lonely Marble Narrow Paper Quiet "
    "Restless Silver Tender Velvet Wooden Scarlet Broken Gentle Hollow Misty Patient Stormy"
).split()
NOUNS = (
    "Anchor Bridge Castle Desert Engine Forest Garden Harbor Island Journey Kingdom Lantern Mirror Orchard Palace "
    "River Season Tower Valley Winter Bell Candle Feather Meadow Compass Shadow Thunder Window"
).split()
TOWNS = (
    "Arvik Belmora Corvo Dunmere Estal Farholm Gorin Haskel Irvane Jelsa Karsa Lumar Mostar Nerva Ostrel Pelham "
    "Quenby Ralto Selno Tarvis Umbra Velden Wexton Yarrow Zemst Almen Brask Cintra Dorva Elster Fosk Grado Hulme "
    "Istra Kelso Lodi"
).split()
PREFIXES = "North South Old New Upper Port".split()

# kind -> {role as questions and biographies name it: verb in the work's passage}
KINDS: dict[str, dict[str, str]] = {
    "film": {"director": "directed", "screenwriter": "scripted", "producer": "produced"},
}
# The model's cold-start habits depend on the form, see tiny_demos.py.
FORMS = (
    "Where was the {role} of the {kind} {title} born?",
    "In which town was the {role} of {title} born?",
    "What is the birthplace of the {role} of the {kind} {title}?",
    "About {title}: where was its {role} born?",
)
WORKS = {"train": 240, "val": 56}  # works per split of the data set, with 2 or 3 people each


@dataclass(frozen=True)
class Person:
    """Somebody with exactly one role in one work, and the place where they were born."""

    name: str
    born: str


@dataclass(frozen=True)
class Work:
    """A work; `people` maps two or three of its kind's roles to who filled them."""

    pid: str
    title: str
    kind: str
    people: dict[str, Person]


@dataclass(frozen=True)
class Question:
    """One two-hop question; `form` indexes FORMS, `gold_pid` is the biography that holds the answer."""

    text: str
    answer: str
    work: Work
    role: str
    form: int

    @property
    def person(self) -> Person:
        """Whom the question is about."""
        return self.work.people[self.role]

    @property
    def gold_pid(self) -> str:
        """Passage that holds the answer."""
        return f"{self.work.pid}-{self.role}"


def name_pairs(heads: Sequence[str], tails: Sequence[str], split: str) -> list[str]:
    """All two-word names of one split, in a fixed order: a fifth of the grid is validation's, the rest training's."""
    if split not in WORKS:
        raise ValueError(f"unknown split {split!r}; allowed: {', '.join(WORKS)}")
    pairs = ((i, j, f"{head} {tail}") for i, head in enumerate(heads) for j, tail in enumerate(tails))
    return [name for i, j, name in pairs if ((i + 2 * j) % 5 == 0) == (split == "val")]


def make_world(seed: int | str, split: str, works: int) -> list[Work]:
    """Draw `works` works with their people, all names from `split`'s share of the name grid.

    Args:
        seed: anything; the world is a function of (seed, split, works).
        split: "train" or "val".
        works: how many; bounded by the number of names (see the error).
    """
    rng = random.Random(f"{seed}/{split}/{works}")
    titles, names = name_pairs(ADJECTIVES, NOUNS, split), name_pairs(FIRST, LAST, split)
    limit = min(len(titles), len(names) // 3)
    if not 1 <= works <= limit:
        raise ValueError(f"works={works}: a {split} world has names for 1 to {limit} works; choose a number in between")
    rng.shuffle(names)
    world = []
    for number, title in enumerate(rng.sample(titles, works)):
        kind = rng.choice(list(KINDS))
        roles = rng.sample(list(KINDS[kind]), rng.choice((2, 3, 3)))
        people = {role: _make_person(names.pop(), rng) for role in roles}
        world.append(Work(f"{split}-{number}", title, kind, people))
    return world


def _make_person(name: str, rng: random.Random) -> Person:
    town = rng.choice(TOWNS)
    return Person(name, rng.choice((town, f"{rng.choice(PREFIXES)} {town}")))


def passages(world: Sequence[Work]) -> list[dict[str, str]]:
    """The world's passages {"pid", "title", "text"}: one per work, one per person; at most 20 tokens each."""
    rows = []
    for work in world:
        people = ", ".join(f"{KINDS[work.kind][role]} by {person.name}" for role, person in work.people.items())
        rows.append({"pid": work.pid, "title": work.title, "text": f"{work.kind}, {people}."})
        for role, person in work.people.items():
            text = f"{person.name}, born in {person.born}."
            rows.append({"pid": f"{work.pid}-{role}", "title": f"{role} of {work.title}", "text": text})
    return rows


def questions(world: Sequence[Work]) -> list[Question]:
    """Every question that can be asked of the world: works x roles x forms."""
    return [
        Question(form.format(role=role, kind=work.kind, title=work.title), person.born, work, role, number)
        for work in world
        for role, person in work.people.items()
        for number, form in enumerate(FORMS)
    ]


def vocabulary() -> list[str]:
    """Every word of the world (names, roles, verbs, question and passage words), each once, sorted."""
    words = {*FIRST, *LAST, *ADJECTIVES, *NOUNS, *TOWNS, *PREFIXES, *KINDS, *"of the born in by".split()}
    for roles in KINDS.values():
        words |= {*roles, *roles.values()}
    for form in FORMS:
        words |= {word.strip("?:") for word in form.split() if "{" not in word}
    return sorted(words)


def row(question: Question, split: str, index: int) -> dict:
    """One parquet row in verl's schema."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": question.text}],
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": {"target": [question.answer]}},
        "extra_info": {
            "index": index,
            "split": split,
            "id": f"{DATA_SOURCE}-{split}-{index}",
            "question": question.text,
            "gold_titles": [question.work.title, f"{question.role} of {question.work.title}"],
        },
    }


def sample_questions(world: Sequence[Work], size: int, seed: int | str, split: str) -> list[Question]:
    """`size` distinct questions of the world in random order, spread over its people."""
    pool = questions(world)
    if not 1 <= size <= len(pool):
        raise ValueError(f"{split}_size={size}: the {split} world has 1 to {len(pool)} questions; choose in between")
    random.Random(f"{seed}/{split}/questions").shuffle(pool)
    seen: dict[str, int] = {}
    rounds = []  # how many questions about the same person came before: sorting by it takes each once, then twice
    for question in pool:
        rounds.append(seen.get(question.gold_pid, 0))
        seen[question.gold_pid] = rounds[-1] + 1
    order = sorted(range(len(pool)), key=rounds.__getitem__)[:size]
    random.Random(f"{seed}/{split}/order").shuffle(order)
    return [pool[i] for i in order]


def data_set(train_size: int = 2048, val_size: int = 128, seed: int = 0) -> tuple[list, list, list]:
    """Build (train questions, val questions, passages of both worlds shuffled), a function of the arguments."""
    worlds = {split: make_world(seed, split, works) for split, works in WORKS.items()}
    corpus = passages(worlds["train"]) + passages(worlds["val"])
    random.Random(f"{seed}/corpus").shuffle(corpus)
    train = sample_questions(worlds["train"], train_size, seed, "train")
    return train, sample_questions(worlds["val"], val_size, seed, "val"), corpus


def ensure(output_dir: str | Path, train_size: int = 2048, val_size: int = 128, seed: int = 0) -> Path:
    """Make sure that `output_dir` holds the data set of these arguments; generate it only when it does not.

    Safe against being killed at any moment: files are written aside and renamed, the stamp last, so that a half-done
    directory has no stamp and is regenerated by the next call. Other files in `output_dir` are left alone.

    Returns: `output_dir` as a path.
    """
    target = Path(output_dir)
    stamp = {"version": VERSION, "train_size": train_size, "val_size": val_size, "seed": seed}
    if _read_stamp(target) == stamp and all((target / name).is_file() for name in FILES):
        return target
    train, val, corpus = data_set(train_size, val_size, seed)
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".tiny_world-", dir=target))
    try:
        _write_parquet([row(q, "train", i) for i, q in enumerate(train)], aside / "train.parquet")
        _write_parquet([row(q, "val", i) for i, q in enumerate(val)], aside / "val.parquet")
        lines = "".join(json.dumps(passage) + "\n" for passage in corpus)
        (aside / "corpus.jsonl").write_text(lines, encoding="utf-8")
        (aside / STAMP).write_text(json.dumps(stamp), encoding="utf-8")
        (target / STAMP).unlink(missing_ok=True)
        for name in (*FILES, STAMP):
            os.replace(aside / name, target / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _read_stamp(target: Path) -> dict | None:
    try:
        return json.loads((target / STAMP).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _write_parquet(rows: list[dict], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def main() -> None:
    """Command line: write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="data/tiny_world", help="where the three files go")
    parser.add_argument("--train_size", type=int, default=2048, help="training questions")
    parser.add_argument("--val_size", type=int, default=128, help="questions of the held-out world")
    parser.add_argument("--seed", type=int, default=0, help="seed of both worlds")
    args = parser.parse_args()
    print(f"tiny world in {ensure(args.output_dir, args.train_size, args.val_size, args.seed)}")


if __name__ == "__main__":
    main()
