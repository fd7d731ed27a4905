"""Biographies: questions of two or three hops over passages about invented films and people.

    "Where was the director of the film Amber Harbor born?"
        the film Amber Harbor names its director (hop 1), whose biography names the birthplace (hop 2): "Old Karsa"

    corpus.jsonl   {"pid": "val-3", "title": "Amber Harbor", "text": "film, directed by Tova Brandt, ..."}
                   {"pid": "val-3-director", "title": "director of Amber Harbor",
                    "text": "Tova Brandt, born in Old Karsa."}
                   {"pid": "val-3-director-spouse", "title": "spouse of director of Amber Harbor",
                    "text": "Emil Holt, born in Lodi."}
    train.parquet, val.parquet   verl's schema; `data_source` is "tiny_world"

A `Dial` says how hard it is: hops, distractors, the gap between the words of questions and passages, the size of the
corpus.

The intended difficulty: only a query that names the role (and the relation) in the passages' words ranks the right
biography first; without it BM25 ranks the biographies around the same film alike. All names are pairs of words of one
bounded vocabulary. A fixed fifth of all title pairs and of all name pairs belongs to validation: no film and no person
of the validation world occurs in any training world, whatever the seed, although each of their words does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_ext.storage.parquet import question_row, split_files
from verl_ext.worlds import biography_questions as asking
from verl_ext.worlds.biography_questions import EASY, FORMS, KINDS, RELATIONS, Dial, Person, Question, Work
from verl_ext.worlds.data_set import Rows, stamped_folder
from verl_ext.worlds.names import ADJECTIVES, FIRST, LAST, NOUNS, PREFIXES, SPLITS, TOWNS, name_pairs

DATA_SOURCE = "tiny_world"
VERSION = 3  # raise it whenever the same arguments would give other files: `ensure` then regenerates
FILES = ("train.parquet", "val.parquet", "corpus.jsonl")
STAMP = "tiny_world.json"


def make_world(seed: int | str, split: str, works: int, distractors: int = 0) -> list[Work]:
    """Draw `works` works with their people, all names from `split`'s share of the name grid.

    Args:
        seed: anything; the world is a function of the arguments.
        split: "train" or "val".
        works: how many; bounded by the number of names (see the error).
        distractors: relatives of each person.
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
        people = {}
        for role in roles:
            # Relatives may share names with others; the title of a biography says who is meant.
            relations = sorted(rng.sample(list(RELATIONS), distractors))
            relatives = {relation: Person(rng.choice(names), _birthplace(rng)) for relation in relations}
            people[role] = Person(names.pop(), _birthplace(rng), relatives)
        world.append(Work(f"{split}-{number}", title, kind, people))
    return world


def _birthplace(rng: random.Random) -> str:
    town = rng.choice(TOWNS)
    return rng.choice((town, f"{rng.choice(PREFIXES)} {town}"))


def passages(world: Sequence[Work]) -> list[dict[str, str]]:
    """The world's passages {"pid", "title", "text"}: one per work, one per person; at most 20 tokens each."""
    rows = []
    for work in world:
        people = ", ".join(f"{KINDS[work.kind][role]} by {person.name}" for role, person in work.people.items())
        rows.append({"pid": work.pid, "title": work.title, "text": f"{work.kind}, {people}."})
        for role, relation, person in work.biographies():
            pid, title = asking.biography_pid(work, role, relation), asking.biography_title(work, role, relation)
            rows.append({"pid": pid, "title": title, "text": f"{person.name}, born in {person.born}."})
    return rows


def questions(world: Sequence[Work], dial: Dial = EASY, seed: int | str = 0) -> list[Question]:
    """Every question that can be asked of the world: works x people x forms, `dial.gap` of them in other words."""
    rng = random.Random(f"{seed}/gap")
    return [
        asking.ask(work, role, relation, form, rng.random() < dial.gap)
        for work in world
        for role, relation, _ in work.biographies()
        if (3 if relation else 2) in dial.hops
        for form in range(len(FORMS))
    ]


def row(question: Question, split: str, index: int) -> dict[str, Any]:
    """One row of a parquet file."""
    truth, name = {"target": [question.answer]}, f"{DATA_SOURCE}-{split}-{index}"
    extra = {"hops": 3 if question.relation else 2, "gold_titles": question.gold_titles}
    return question_row(DATA_SOURCE, question.text, truth, "qa", split, index, name, **extra)


def sample_questions(world: Sequence[Work], size: int, seed: int | str, split: str, dial: Dial) -> list[Question]:
    """`size` distinct questions of the world in random order, spread over its people."""
    pool = questions(world, dial, f"{seed}/{split}")
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


def data_set(
    train_size: int = 2048, val_size: int = 128, seed: int = 0, dial: Dial = EASY
) -> tuple[list[Question], list[Question], list[dict[str, str]]]:
    """Build (train questions, val questions, passages of both worlds shuffled), a function of the arguments."""
    worlds = {split: make_world(seed, split, dial.works(split), dial.distractors) for split in SPLITS}
    corpus = passages(worlds["train"]) + passages(worlds["val"])
    random.Random(f"{seed}/corpus").shuffle(corpus)
    train = sample_questions(worlds["train"], train_size, seed, "train", dial)
    return train, sample_questions(worlds["val"], val_size, seed, "val", dial), corpus


def ensure(
    output_dir: str | Path,
    train_size: int = 2048,
    val_size: int = 128,
    seed: int = 0,
    hops: Sequence[int] = EASY.hops,
    distractors: int = EASY.distractors,
    gap: float = EASY.gap,
    train_works: int = EASY.train_works,
    val_works: int = EASY.val_works,
) -> Path:
    """Make sure that `output_dir` holds the data set of these arguments; generate it only if it does not.

    The arguments from `hops` on are those of `Dial`.
    """
    dial = Dial(tuple(hops), distractors, gap, train_works, val_works)

    def contents() -> dict[str, Rows]:
        train, val, corpus = data_set(train_size, val_size, seed, dial)
        return split_files(row, train=train, val=val) | {"corpus.jsonl": corpus}

    stamp: dict[str, Any] = {"version": VERSION, "train_size": train_size, "val_size": val_size, "seed": seed}
    stamp |= {**asdict(dial), "hops": list(dial.hops)}
    return stamped_folder(output_dir, STAMP, FILES, contents, **stamp)
