"""The tiny world: an invented multi-hop question-answering data set that is generated, not downloaded.

One row in words: "Where was the director of the film Amber Harbor born?" -> the film *Amber Harbor* names its director
(hop 1), the director's biography names the birthplace (hop 2): "Old Karsa".

    corpus.jsonl   {"pid": "val-3", "title": "Amber Harbor", "text": "film, directed by Tova Brandt, ..."}
                   {"pid": "val-3-director", "title": "director of Amber Harbor",
                    "text": "Tova Brandt, born in Old Karsa."}
                   {"pid": "val-3-director-spouse", "title": "spouse of director of Amber Harbor",
                    "text": "Emil Holt, born in Lodi."}
    train.parquet, val.parquet   verl's schema; `data_source` is "tiny_world"

How hard it is, is a `Dial`: hops, distractors, the gap between the words of questions and passages, the size of the
corpus. (The noise of the cold start is the model's: `tiny_model.py --habits`.)

The quirk on purpose: only a query that names the role (and the relation) in the passages' words puts the biography
asked for first; without it the biographies around the same film look as good to BM25. All names are pairs of words of
one bounded vocabulary. A fixed fifth of all title pairs and of all name pairs belongs to validation: no film and no
person of the validation world occurs in any training world, whatever the seed, although each of their words does.

    python verl_ext/worlds/biographies.py --output_dir data/tiny_world
    python verl_ext/worlds/biographies.py --output_dir data/hard_world --hops 2 3 --distractors 2 --gap 0.5
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_ext.worlds.files import stamped_folder
from verl_ext.worlds.names import (
    ADJECTIVES,
    FIRST,
    LAST,
    NOUNS,
    PREFIXES,
    SPLITS,
    TOWNS,
    name_pairs,
)
from verl_ext.worlds.questions import (
    EASY,
    FORMS,
    KINDS,
    RELATIONS,
    Dial,
    Person,
    Question,
    Work,
    ask,
    biography_pid,
    biography_title,
)

DATA_SOURCE = "tiny_world"
VERSION = 3  # raise it whenever the same arguments would give other files: `ensure` then regenerates
FILES = ("train.parquet", "val.parquet", "corpus.jsonl")
STAMP = "tiny_world.json"  # written last: its presence says that the other files are complete


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
            # Relatives may share names with others: who is meant is in a biography's title.
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
            text = f"{person.name}, born in {person.born}."
            rows.append(
                {
                    "pid": biography_pid(work, role, relation),
                    "title": biography_title(work, role, relation),
                    "text": text,
                }
            )
    return rows


def questions(world: Sequence[Work], dial: Dial = EASY, seed: int | str = 0) -> list[Question]:
    """Every question that can be asked of the world: works x people x forms, `dial.gap` of them in other words."""
    rng = random.Random(f"{seed}/gap")
    return [
        ask(work, role, relation, form, rng.random() < dial.gap)
        for work in world
        for role, relation, _ in work.biographies()
        if (3 if relation else 2) in dial.hops
        for form in range(len(FORMS))
    ]


def vocabulary() -> list[str]:
    """Every word of the world (names, roles, verbs, question and passage words), each once, sorted."""
    words = {*FIRST, *LAST, *ADJECTIVES, *NOUNS, *TOWNS, *PREFIXES, *KINDS, *RELATIONS, *RELATIONS.values()}
    words |= {*"of the born in by whoever it its one who".split()}
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
            "hops": 3 if question.relation else 2,
            "gold_titles": question.gold_titles,
        },
    }


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


def ensure(output_dir: str | Path, train_size: int = 2048, val_size: int = 128, seed: int = 0, **dial: Any) -> Path:
    """Make sure that `output_dir` holds the data set of these arguments; generate it only when it does not.

    Args:
        dial: fields of `Dial`.

    Returns: `output_dir` as a path.
    """
    chosen = Dial(**{**dial, "hops": tuple(dial.get("hops", EASY.hops))})
    stamp = {"version": VERSION, "train_size": train_size, "val_size": val_size, "seed": seed}
    stamp |= {**asdict(chosen), "hops": list(chosen.hops)}

    def contents() -> dict[str, list[dict]]:
        train, val, corpus = data_set(train_size, val_size, seed, chosen)
        rows = {"train.parquet": [row(q, "train", i) for i, q in enumerate(train)], "corpus.jsonl": corpus}
        return rows | {"val.parquet": [row(q, "val", i) for i, q in enumerate(val)]}

    return stamped_folder(Path(output_dir), stamp, STAMP, FILES, contents)


def main() -> None:
    """Command line: write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="data/tiny_world", help="where the three files go")
    parser.add_argument("--train_size", type=int, default=2048, help="training questions")
    parser.add_argument("--val_size", type=int, default=128, help="questions of the held-out world")
    parser.add_argument("--seed", type=int, default=0, help="seed of both worlds")
    parser.add_argument("--hops", type=int, nargs="+", default=list(EASY.hops), help="2, 3 or both")
    parser.add_argument("--distractors", type=int, default=EASY.distractors, help="relatives of each person, 0 to 3")
    parser.add_argument("--gap", type=float, default=EASY.gap, help="share of questions in other words")
    parser.add_argument("--train_works", type=int, default=EASY.train_works, help="works of the training world")
    parser.add_argument("--val_works", type=int, default=EASY.val_works, help="works of the held-out world")
    print(f"tiny world in {ensure(**vars(parser.parse_args()))}")


if __name__ == "__main__":
    main()
