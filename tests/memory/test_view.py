"""Recall against plain sorting and against faiss; alone as in any batch; ties, degenerate shelves, pickling."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.histories import Halves
from verl_ext.memory import HashingSimilarity, View
from verl_ext.memory.view import Shelf, _reached

WORDS = st.sampled_from(["deposit", "store", "sum", "of", "two", "numbers", "film", "first", "7", "8", ""])
TEXTS = st.lists(WORDS, max_size=4).map(" ".join)


def view_of(texts, similarity=None, agent="math", first=1):
    similarity = similarity or HashingSimilarity()
    count = len(texts)
    vectors = np.ascontiguousarray(similarity.encode(texts).T)
    triples = [(text, (), f"answer {number}") for number, text in enumerate(texts)]
    times, scores = np.arange(count), np.arange(count) / 4
    return View(
        9, similarity, {agent: Shelf(np.arange(first, first + count), times, scores, vectors, triples)}, first + count
    )


def expected(view, query, k, agent="math"):
    """By float64 cosines of everything, sorted by Python."""
    shelf = view.shelves[agent]
    (vector,) = view.similarity.encode([query]).astype(np.float64)
    cosines = [float((column * vector).sum()) for column in shelf.vectors.T.astype(np.float64)]
    order = sorted(range(len(shelf)), key=lambda row: (-cosines[row], shelf.ids[row]))
    return [(int(shelf.ids[row]), cosines[row]) for row in order[:k]] if query.strip() else []


def found(memories):
    return [(memory.id, memory.similarity) for memory in memories]


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=40), st.lists(TEXTS, min_size=1, max_size=70), st.integers(1, 50))
def test_recall_is_exact_and_does_not_depend_on_what_else_is_asked(texts, queries, k):
    """Many texts are equal: their order is that of their ids."""
    view = view_of(texts)
    asked = [("math" if number % 3 else "nobody", query) for number, query in enumerate(queries)]
    answers = view.recall_many(asked, k)
    assert answers == [view.recall(agent, query, k) for agent, query in asked]
    for (agent, query), memories in zip(asked, answers, strict=True):
        assert found(memories) == (expected(view, query, k) if agent == "math" else [])


def large(count=8_000, width=48, twice=100):
    """A view of random unit vectors, the first `twice` of them two times, and the vectors."""
    vectors = np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)
    vectors[twice : 2 * twice] = vectors[:twice]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return with_vectors(view_of([str(number) for number in range(count)], LookUp(vectors)), vectors), vectors


class LookUp:
    """A similarity that looks vectors up by number."""

    name = "look-up"

    def __init__(self, vectors):
        self.vectors, self.width = vectors, vectors.shape[1]

    def encode(self, texts):
        return np.stack([self.vectors[int(text)] if text else np.zeros(self.width, np.float32) for text in texts])


def with_vectors(view, vectors):
    shelf = view.shelves["math"]
    placed = Shelf(shelf.ids, shelf.times, shelf.scores, np.ascontiguousarray(vectors.T), shelf.texts)
    return View(view.version, view.similarity, {"math": placed}, view.next_id)


def test_large_shelves_are_exact_too():
    view, _ = large()
    for k in (1, 5, 100, 400):
        asked = [("math", str(number)) for number in range(0, 200, 40)]
        for (_, query), memories in zip(asked, view.recall_many(asked, k), strict=True):
            assert found(memories) == expected(view, query, k)
            assert memories == view.recall("math", query, k)
    assert [memory.id for memory in view.recall("math", "150", 2)] == [51, 151]


def test_near_ties_are_told_apart_by_exact_cosines():
    """Cosines that differ by less than float32 can add up; whichever scan, the better one comes first."""
    rng = np.random.default_rng(3)
    base = rng.standard_normal(192)
    copies = np.repeat(base[None], 3000, axis=0) + 1e-7 * rng.standard_normal((3000, 192))
    vectors = (copies / np.linalg.norm(copies, axis=1, keepdims=True)).astype(np.float32)
    view = with_vectors(view_of([str(number) for number in range(3000)], LookUp(vectors)), vectors)
    assert found(view.recall("math", "7", 20)) == expected(view, "7", 20)
    assert view.recall_many([("math", "7"), ("math", "8")], 20)[0] == view.recall("math", "7", 20)


@pytest.mark.parametrize("k", [1, 3, 70, 700])
def test_queries_that_were_solved_again_and_again(k):
    """Of each the oldest come first, as of any other equally similar ones."""
    often = ["how many films", "how many songs", "films"]
    view = view_of([often[number * number % 3] if number % 2 else f"film {number}" for number in range(2000)])
    for query in (*often, "film 12"):
        assert found(view.recall("math", query, k)) == expected(view, query, k)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=500), st.integers(1, 600))
def test_at_least_k_reach_the_bound(values, k):
    scan = np.array(values, dtype=np.float32)
    assert (scan >= _reached(scan, k)).sum() >= min(k, len(scan))
    large = np.tile(scan, 1 + 6400 // len(scan))
    bound = _reached(large, 10)
    assert (large >= bound).sum() >= 10 and bound >= np.sort(large)[-640]


def test_memories_come_with_their_fields():
    view = view_of(["sum of two", "first film"], first=5)
    (memory,) = view.recall("math", "which film came first", 1)
    assert (memory.id, memory.agent, memory.query, memory.output) == (6, "math", "first film", "answer 1")
    assert (memory.time, memory.score, memory.plan) == (1, 0.25, ()) and 0 < memory.similarity < 1
    assert [m.id for m in view.memories("math")] == [5, 6] and view.memories("nobody") == []
    assert all(memory.similarity == 0 for memory in view.memories("math")) and len(view) == 2


def test_nothing_to_recall():
    empty = View(0, Halves())
    assert empty.recall("math", "q", 3) == [] and empty.recall_many([], 3) == [] and len(empty) == 0
    view = view_of(["sum"])
    assert view.recall("math", "", 3) == view.recall("math", " \n", 3) == view.recall("expert", "sum", 3) == []
    assert len(view.recall("math", "sum", 100)) == 1


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None, "5"])
def test_k_must_be_positive(k):
    with pytest.raises(ValueError, match="k must be an integer >= 1 .*given"):
        view_of(["sum"]).recall("math", "sum", k)


def test_a_view_can_be_sent_and_not_changed():
    view = view_of(["sum of two", "first film", "first"])
    sent = pickle.loads(pickle.dumps(view))
    assert sent.content_hash() == view.content_hash() and sent.version == 9
    assert sent.recall("math", "film", 2) == view.recall("math", "film", 2)
    with pytest.raises(ValueError, match="read-only"):
        view.shelves["math"].scores[0] = 3
    with pytest.raises(AttributeError):
        view.version = 10


def test_the_content_hash_covers_everything():
    view = view_of(["sum of two", "first film"])
    shelf = view.shelves["math"]

    def hash_with(**changes):
        fields = {name: getattr(shelf, name) for name in ("ids", "times", "scores", "vectors", "texts")}
        return View(9, view.similarity, {"math": Shelf(**{**fields, **changes})}, view.next_id).content_hash()

    hashes = {
        view.content_hash(),
        hash_with(ids=shelf.ids + 1),
        hash_with(times=shelf.times + 1),
        hash_with(scores=np.nextafter(shelf.scores, 9)),
        hash_with(vectors=shelf.vectors * np.float32(0.5)),
        hash_with(texts=[("sum of two", (), "another"), shelf.texts[1]]),
        View(8, view.similarity, view.shelves, view.next_id).content_hash(),
        View(9, view.similarity, view.shelves, 99).content_hash(),
        View(9, view.similarity, {"expert": shelf}, view.next_id).content_hash(),
    }
    assert len(hashes) == 9 and hash_with() == view.content_hash()
    with_empty = {**view.shelves, "expert": Shelf.empty(128)}
    assert View(9, view.similarity, with_empty, view.next_id).content_hash() == view.content_hash()
