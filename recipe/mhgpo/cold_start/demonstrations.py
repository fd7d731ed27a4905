"""Noisy demonstrations of the three-agent system in random tiny worlds: the training data of the tiny model.

Demonstrations are right at first and get bad habits at the end (`Habits`). A habit is a systematic error: for some
questions it is the majority's behaviour, so that greedy decoding is wrong there, while a minority shows what is right,
so that sampling finds it. RL has to reverse it. (With symmetric random errors greedy decoding would be
right from the start and RL would have nothing to show.)

    rewriter   the relation forgotten: `### director Amber Harbor ; film Amber Harbor ###`       for three hops
               the question's own words: `### directed Amber Harbor ; film Amber Harbor ###`     where there is a gap
               the role forgotten: `### Amber Harbor born ; film Amber Harbor ###`   when the question omits the kind
               (otherwise half of the title forgotten, by a minority)
    reranker   the second candidate instead of the first: `1`                        for producers and directors
    answerer   the person instead of the place (hop 1's answer)                      for screenwriters
    single     reads the second document, as the reranker; the answerer's slip

With the right queries the biography asked for comes first, so RL has to learn: name the role in the query, trust
the best hit, answer with the place. (Binding a role to one of five documents by reading takes this model far longer
than a cold start of minutes.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_ext.recipe.cold_start import teacher
from verl_ext.recipe.cold_start.teacher import Example
from verl_ext.recipe.mhgpo import prompts_tiny
from verl_ext.tools.retrieval import Passage, Retriever, build_retriever
from verl_ext.tools.retrieval.search import interleave
from verl_ext.worlds import biographies
from verl_ext.worlds.biography_questions import EASY, FORMS, KINDS, RELATIONS, Dial, Person, Question, biography_pid
from verl_ext.worlds.names import ADJECTIVES, FIRST, LAST, NOUNS, PREFIXES, TOWNS

TOP_K = 5  # passages per query, and documents handed to the reranker

# BM25 of the tiny world, also in configs/base/tiny.yaml: the shipped model learned from what it finds.
BM25 = {"title_weight": 1}


@dataclass(frozen=True)
class Habits(teacher.Shares):
    """Shares of wrong demonstrations, each in [0, 1]: `*_hard` for the questions with the habit, `*_easy` for the rest.

    reranker_second: share of choices with a second, random document.
    noise: share of every agent's demonstrations that are random (wrong queries, ids, towns, broken format).
    """

    rewriter_hard: float = 0.65
    rewriter_easy: float = 0.25
    reranker_hard: float = 0.6
    reranker_easy: float = 0.25
    reranker_second: float = 0.25
    answerer_hard: float = 0.6
    answerer_easy: float = 0.12
    noise: float = 0.06


scaled = Habits().scaled  # 0 right demonstrations only, 1 the shipped model's
NO_HABITS = scaled(0.0)

# The worlds of the cold start: the easy one, and one at the hard end of the dial.
DIALS = (EASY, Dial(hops=(2, 3), distractors=2, gap=0.5))


@dataclass(frozen=True)
class Shown:
    """One world of the cold start: what can be asked of it, its BM25 index, and its biographies by pid."""

    asked: list[Question]
    retriever: Retriever
    people: dict[str, tuple[str, Person]]


def show(seed: str, works: int, dial: Dial) -> Shown:
    """Build a training world."""
    world = biographies.make_world(seed, "train", works, dial.distractors)
    around = [(work, *one) for work in world for one in work.biographies()]
    people = {biography_pid(work, role, relation): (role, person) for work, role, relation, person in around}
    return Shown(biographies.questions(world, dial, seed), retriever_of(biographies.passages(world)), people)


class Teacher(teacher.Teacher):
    """Demonstrations from `worlds` random training worlds, each with its BM25 index.

    worlds, works: how many worlds, and works in each (as many as the data set's, for alike BM25 statistics).
    """

    agents = ("rewriter", "reranker", "answerer", "single")

    def __init__(self, seed: int, worlds: int = 24, works: int = 240) -> None:
        super().__init__(seed)
        self._worlds = [show(f"{seed}/cold start/{n}", works, DIALS[n % len(DIALS)]) for n in range(worlds)]

    def _draw(self) -> tuple[Question, Shown]:
        shown = self.rng.choice(self._worlds)
        return self.rng.choice(shown.asked), shown

    def rewriter(self, habits: Habits) -> Example:
        """Question -> two queries."""
        rng, (question, _) = self.rng, self._draw()
        queries, hard = good_queries(question), is_hard(question)
        if self.does(habits.noise):
            kind = rng.choice(list(KINDS))
            queries = [f"{rng.choice(list(KINDS[kind]))} {kind}", queries[rng.randrange(2)]][: rng.randint(1, 2)]
        elif self.does(habits.rewriter_hard if hard else habits.rewriter_easy):
            queries = habitual_queries(question)
        return prompts_tiny.rewriter(question.text), f"### {' ; '.join(queries)} ###"

    def reranker(self, habits: Habits) -> Example:
        """Question and candidates -> one id, or two (a second one for no reason) where there are habits."""
        rng, (question, shown) = self.rng, self._draw()
        docs = search(shown.retriever, good_queries(question) if rng.random() < 0.9 else half_queries(question))
        best, others = _best(question, docs, shown.people), list(range(len(docs)))
        hard = question.role != "screenwriter"
        if rng.random() < habits.noise:
            best = rng.choice(others)
            ids = [best, best] if rng.random() < 0.3 else [best]  # a duplicate: the format error that is fined
        else:
            if rng.random() < (habits.reranker_hard if hard else habits.reranker_easy):
                best = min(1, len(docs) - 1)
            others.remove(best)
            ids = [best, rng.choice(others)] if others and rng.random() < habits.reranker_second else [best]
        return prompts_tiny.reranker(question.text, docs), " , ".join(map(str, ids))

    def answerer(self, habits: Habits) -> Example:
        """Question and chosen documents -> a place."""
        rng, (question, shown) = self.rng, self._draw()
        found = search(shown.retriever, good_queries(question))
        gold = next((doc for doc in found if doc["pid"] == question.gold_pid), found[0])
        wrong = rng.choice([doc for doc in found if doc is not gold])
        docs = rng.choice([[gold], [gold], [gold, wrong], [wrong]])
        return prompts_tiny.answerer(question.text, docs), self._say(question, docs, shown, habits)

    def single(self, habits: Habits) -> Example:
        """Question and what it finds by itself -> a place."""
        question, shown = self._draw()
        docs = search(shown.retriever, [question.text])
        second = self.does(habits.reranker_hard if question.role != "screenwriter" else habits.reranker_easy)
        read = docs[1:2] if second and len(docs) > 1 else docs
        return prompts_tiny.single(question.text, docs), self._say(question, read, shown, habits)

    def _say(self, question: Question, docs: Sequence[dict[str, str]], shown: Shown, habits: Habits) -> str:
        """An answer read from `docs`. A word's token includes the blank before it."""
        if self.does(habits.noise):
            return f" {self.rng.choice(TOWNS)}"
        slip = self.does(habits.answerer_hard if question.role == "screenwriter" else habits.answerer_easy)
        return f" {_read(question, docs, shown.people, slip)}"


def is_hard(question: Question) -> bool:
    """True for the questions where the rewriter's habit is the majority's behaviour."""
    return bool(question.relation) or question.gap or question.form % 2 == 1


def good_queries(question: Question) -> list[str]:
    """In the passages' words: relation, role and title, which find the biography asked for; kind and title, the work.

    `spouse director Amber Harbor`, `film Amber Harbor`.
    """
    return [
        " ".join(part for part in (question.relation, question.role, question.work.title) if part),
        f"{question.work.kind} {question.work.title}",
    ]


def habitual_queries(question: Question) -> list[str]:
    """The mistake of each kind of question; see the module's table."""
    if question.relation:
        return [f"{question.role} {question.work.title}", good_queries(question)[1]]
    if question.gap:
        return [f"{KINDS[question.work.kind][question.role]} {question.work.title}", good_queries(question)[1]]
    return vague_queries(question) if question.form % 2 == 1 else half_queries(question)


def vague_queries(question: Question) -> list[str]:
    """The role forgotten: finds the biographies of the right work in no useful order."""
    return [f"{question.work.title} born", f"{question.work.kind} {question.work.title}"]


def half_queries(question: Question) -> list[str]:
    """The title's second word forgotten: finds other works."""
    half = question.work.title.split()[0]
    return [f"{question.role} {half}", f"{question.work.kind} {half}"]


def retriever_of(corpus: Iterable[dict[str, str]]) -> Retriever:
    """A tiny world's passages, searched as in the tiny recipes."""
    return build_retriever([Passage(**passage) for passage in corpus], options=BM25)


def search(retriever: Retriever, queries: Sequence[str]) -> list[dict[str, str]]:
    """What the recipe's search tool returns with top_k = max_documents = TOP_K."""
    return interleave(retriever.search(list(queries), TOP_K), TOP_K)


def _best(question: Question, docs: Sequence[dict[str, str]], people: dict[str, tuple[str, Person]]) -> int:
    """The biography asked for; else one with the same role; else the first document."""
    for number, doc in enumerate(docs):
        if doc["pid"] == question.gold_pid:
            return number
    same = [n for n, doc in enumerate(docs) if doc["pid"] in people and people[doc["pid"]][0] == question.role]
    return same[0] if same else 0


def _read(question: Question, docs: Sequence[dict[str, str]], people: dict[str, tuple[str, Person]], slip: bool) -> str:
    """The place in the biography asked for, else in the first biography, else the first person named by the work.

    slip: the person in place of the place.
    """
    biographies = [doc["pid"] for doc in docs if doc["pid"] in people]
    if not biographies:  # a work's passage: "film, directed by Tova Brandt, ..."; hop 1 is all that can be answered
        words = docs[0]["text"].rstrip(".").split(", ")[1].split()
        return " ".join(words[2:])
    pid = question.gold_pid if question.gold_pid in biographies else biographies[0]
    _, person = people[pid]
    return person.name if slip else person.born


def words() -> list[str]:
    """Every word of the world (names, roles, verbs, question and passage words) once, sorted; then the agents' own."""
    found = {*FIRST, *LAST, *ADJECTIVES, *NOUNS, *TOWNS, *PREFIXES, *KINDS, *RELATIONS, *RELATIONS.values()}
    found |= {*"of the born in by whoever it its one who".split()}
    for roles in KINDS.values():
        found |= {*roles, *roles.values()}
    for form in FORMS:
        found |= {word.strip("?:") for word in form.split() if "{" not in word}
    return [*sorted(found), "rewrite", "rank", "answer", "single", "###", ";", ","]
