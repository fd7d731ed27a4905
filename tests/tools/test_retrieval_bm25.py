"""BM25: against a naive reference, on odd queries, and its recall on real questions."""

import math
import os
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.public_data import SHARED, needs_shared
from verl_ext.tools.retrieval import Passage, build_retriever, load_corpus
from verl_ext.tools.retrieval.bm25 import BM25Options, BM25Retriever, tokenize
from verl_ext.tools.retrieval.recall import read_questions, recall

PASSAGES = [
    Passage("0", "Paris", "Paris is the capital of France."),
    Passage("1", "France", "France is a country. Its capital is Paris; Paris is large."),
    Passage("2", "Żuławski", "Andrzej Żuławski was a Polish film director."),
    Passage("3", "東京", "東京 is the capital of Japan."),
    Passage("4", "Twin", "the very same words"),
    Passage("5", "Twin", "the very same words"),
    Passage("6", "!", "??"),
]
WORDS = ["capital", "Paris", "paris", "ŻUŁAWSKI", "東京", "the", "very", "same", "France", "unknown", "!?"]


@pytest.fixture(scope="module")
def retriever():
    return build_retriever(PASSAGES, "bm25")


def naive_bm25(passages, query, k1=1.5, b=0.75, title_weight=2):
    """Lucene's formula, written out: pid -> score."""
    documents = [Counter(tokenize(f"{title_weight * f'{p.title} '}{p.text}")) for p in passages]
    lengths = [sum(document.values()) for document in documents]
    average = sum(lengths) / len(lengths)
    scores = {}
    for passage, document, length in zip(passages, documents, lengths, strict=True):
        score = 0.0
        for word in tokenize(query):
            holders = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            frequency = document[word]
            score += idf * frequency / (frequency + k1 * (1 - b + b * length / average)) if frequency else 0.0
        if score > 0:
            scores[passage.pid] = score
    return scores


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join))
def test_scores_and_order_equal_the_formula(retriever, query):
    """Ties come in corpus order, also where k cuts them."""
    expected = naive_bm25(PASSAGES, query)
    hits = retriever.search([query], 10)[0]
    assert {hit.passage.pid: hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)
    order = sorted(expected, key=lambda pid: (-round(expected[pid], 5), int(pid)))
    assert [hit.passage.pid for hit in hits] == order
    assert [hit.passage.pid for hit in retriever.search([query], 1)[0]] == order[:1]


@pytest.mark.parametrize("k1, b, title_weight", [(0.9, 0.4, 1), (2.0, 0.0, 0), (1.2, 1.0, 5)])
def test_parameters_reach_the_formula(k1, b, title_weight):
    options = {"k1": k1, "b": b, "title_weight": title_weight}
    hits = build_retriever(PASSAGES, "bm25", options).search(["capital Paris"], 10)[0]
    found = {hit.passage.pid: hit.score for hit in hits}
    assert found == pytest.approx(naive_bm25(PASSAGES, "capital Paris", k1, b, title_weight), rel=1e-5)


def test_tokens_are_lower_case_words_in_one_unicode_form(retriever):
    assert tokenize("Żuławski's film_2, U.S.!") == ["żuławski", "s", "film", "2", "u", "s"]
    assert tokenize("Ｐａｒｉｓ ﬁlm x²") == ["paris", "film", "x2"]
    decomposed = unicodedata.normalize("NFD", "Żuławski")
    found = build_retriever([Passage("n", decomposed, "a director"), *PASSAGES], "bm25").search(["Żuławski"], 5)[0]
    assert decomposed != "Żuławski" and [hit.passage.pid for hit in found] == ["n", "2"]
    assert retriever.search([decomposed], 1) == retriever.search(["Żuławski"], 1) != [[]]


class CountedReads:
    """An array that counts how often it is sliced."""

    def __init__(self, array):
        self.array, self.reads = array, 0

    def __getitem__(self, index):
        self.reads += 1
        return self.array[index]


def test_a_word_repeated_a_thousand_times_is_read_once():
    """Models caught in a loop write such queries; in a large corpus each repetition would be a pass over a column."""
    retriever = build_retriever(PASSAGES, "bm25")
    data = retriever._model.scores["data"] = CountedReads(retriever._model.scores["data"])
    many, once = (retriever.search(["the " * count], 1)[0][0] for count in (2000, 1))
    assert data.reads == 2 and many.passage == once.passage and many.score == pytest.approx(2000 * once.score)


def test_odd_queries(retriever):
    found = retriever.search(
        ["capital", "xylophone", "", "  \n", "!?", "capital " * 100_000, "\ud800 Paris \x00"], 1000
    )
    assert [len(hits) for hits in found] == [3, 0, 0, 0, 0, 3, 2] and retriever.search([], 3) == []
    assert (
        build_retriever(PASSAGES, "bm25", {"stopwords": ["The"]}).search(["the"], 5)
        == [[]]
        != [retriever.search(["the"], 5)]
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=6), st.integers(1, 9))
def test_the_answer_to_a_query_does_not_depend_on_the_others(retriever, queries, k):
    together = retriever.search(queries, k)
    assert together == [retriever.search([query], k)[0] for query in queries]
    assert all(len(hits) <= k for hits in together)


@pytest.mark.parametrize(
    "queries, k, message",
    [
        ("Paris", 3, "list of strings"),
        ([3], 3, "list of strings"),
        (["a"], 0, "k must be"),
        (["a"], True, "k must be"),
        (None, 3, "list of strings"),
        (3, 3, "list of strings"),
    ],
)
def test_malformed_arguments_are_refused(retriever, queries, k, message):
    with pytest.raises(ValueError, match=message):
        retriever.search(queries, k)


def test_queries_may_come_from_a_generator(retriever):
    """Of one, nothing was left after it was checked, and nothing was found without a word."""
    queries = ["Paris", "Ford"]
    found = retriever.search((query for query in queries), 3)
    assert found == retriever.search(tuple(queries), 3) == retriever.search(queries, 3) and len(found) == 2


def test_corpora_without_passages_or_words_are_refused():
    with pytest.raises(ValueError, match="corpus is empty"):
        build_retriever([], "bm25")
    with pytest.raises(ValueError, match="contains a word"):
        build_retriever([Passage("0", "!", "...")], "bm25")


@needs_shared
def test_recall_of_gold_titles_on_real_questions():
    shared = build_retriever(load_corpus(SHARED / "qa" / "corpus.jsonl"), "bm25")
    for name, at_5, at_10 in (("hotpotqa", 0.755, 0.877), ("2wikimultihopqa", 0.625, 0.678), ("musique", 0.512, 0.586)):
        questions, _ = read_questions(SHARED / "qa" / f"{name}.jsonl")
        found = shared.search([question.text for question in questions], 10)
        titles = [[hit.passage.title for hit in hits] for hits in found]
        assert recall(questions, titles, 5)[0] == pytest.approx(at_5, abs=0.002)
        assert recall(questions, titles, 10)[0] == pytest.approx(at_10, abs=0.002)


def test_fields_by_a_naive_bm25f(tmp_path):
    """Robertson and Zaragoza's formula, word by word; kept on disk as any index."""
    texts = [("red car", "a fast car\fspeed: of the car"), ("blue", "cars\fred"), ("car", ""), ("", "slow\f")]
    passages = [Passage(str(i), title, text) for i, (title, text) in enumerate(texts)]
    weights, k1, b = (2.0, 1.0, 0.5), 1.2, 0.6
    options = BM25Options(k1=k1, b=b, fields=weights, stems=True)
    fields = [[tokenize(part, stems=True) for part in (title, *text.split("\f"))] for title, text in texts]
    fields = [[*one, *[[]] * (3 - len(one))] for one in fields]
    means = [sum(len(one[f]) for one in fields) / len(fields) for f in range(3)]

    def score(word, document):
        having = sum(any(word in part for part in one) for one in fields)
        idf = math.log(1 + (len(fields) - having + 0.5) / (having + 0.5))
        norms = [1 - b + b * len(part) / mean for part, mean in zip(document, means, strict=True)]
        tf = sum(w * part.count(word) / norm for w, part, norm in zip(weights, document, norms, strict=True))
        return idf * tf / (tf + k1)

    built = BM25Retriever.build(passages, options)
    built.save(tmp_path)
    for retriever in (built, BM25Retriever.load(tmp_path, passages, options)):
        for query in ("car", "red cars", "slow speed"):
            words = tokenize(query, stems=True)
            expected = {str(i): total for i, one in enumerate(fields) if (total := sum(score(w, one) for w in words))}
            assert {hit.passage.pid: hit.score for hit in retriever.search([query], 9)[0]} == pytest.approx(expected)
    with pytest.raises(ValueError, match="stand in place of title_weight=3"):
        BM25Options(fields=weights, title_weight=3)


@pytest.mark.parametrize("before", ["", "import jax; ", "import jax.lax; "])
def test_jax_does_not_run(before, tmp_path):
    """bm25s runs JAX when it is imported, and JAX then takes three quarters of a GPU, beside trainer and engine."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_):\n    raise SystemExit('JAX runs')\n")
    program = (
        f"{before}from verl_ext.tools.retrieval import Passage, build_retriever\n"
        "found = build_retriever([Passage('0', 'Paris', 'a capital'), Passage('1', 'Rome', 'old')])\n"
        "import jax.lax\n"
        "print(found.search(['capital'], 1)[0][0].passage.pid, jax.lax.top_k.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["0", "top_k"], done.stdout + done.stderr
