"""BM25: against a naive reference, on odd queries, and its recall on real questions."""

import math
import time
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.tools.retrieval import Passage, build_retriever, load_corpus
from verl_ext.tools.retrieval.bm25 import tokenize
from verl_ext.tools.retrieval.recall import read_questions, recall

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "qa"
PASSAGES = [
    Passage("0", "Paris", "Paris is the capital of France."),
    Passage("1", "France", "France is a country. Its capital is Paris; Paris is large."),
    Passage("2", "Żuławski", "Andrzej Żuławski was a Polish film director."),
    Passage("3", "東京", "東京 is the capital of Japan."),
    Passage("4", "Twin", "the very same words"),
    Passage("5", "Twin", "the very same words"),
    Passage("6", "!", "??"),
]


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


def test_tokens_are_lower_case_words_of_letters_and_digits():
    assert tokenize("Żuławski's film_2, U.S.!") == ["żuławski", "s", "film", "2", "u", "s"]
    assert tokenize("The end", frozenset({"the"})) == ["end"]


@pytest.mark.parametrize("query", ["capital of France", "paris paris", "ŻUŁAWSKI director", "東京", "the very same"])
def test_scores_and_order_equal_the_formula(retriever, query):
    expected = naive_bm25(PASSAGES, query)
    hits = retriever.search([query], 10)[0]
    assert {hit.passage.pid: hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)
    order = sorted(expected, key=lambda pid: (-round(expected[pid], 5), int(pid)))
    assert [hit.passage.pid for hit in hits] == order


@pytest.mark.parametrize("k1, b, title_weight", [(0.9, 0.4, 1), (2.0, 0.0, 0), (1.2, 1.0, 5)])
def test_parameters_reach_the_formula(k1, b, title_weight):
    options = {"k1": k1, "b": b, "title_weight": title_weight}
    hits = build_retriever(PASSAGES, "bm25", options).search(["capital Paris"], 10)[0]
    found = {hit.passage.pid: hit.score for hit in hits}
    assert found == pytest.approx(naive_bm25(PASSAGES, "capital Paris", k1, b, title_weight), rel=1e-5)


def test_composed_decomposed_and_compatible_letters_are_one(retriever):
    decomposed = unicodedata.normalize("NFD", "Żuławski")
    assert decomposed != "Żuławski" and tokenize(decomposed) == tokenize("Żuławski") == ["żuławski"]
    assert tokenize("Ｐａｒｉｓ ﬁlm x²") == ["paris", "film", "x2"]
    passages = [Passage("n", decomposed, "a director"), *PASSAGES]
    found = build_retriever(passages, "bm25").search(["Żuławski"], 5)[0]
    assert [hit.passage.pid for hit in found] == ["n", "2"]
    assert retriever.search([decomposed], 1) == retriever.search(["Żuławski"], 1) != [[]]


def test_a_word_repeated_a_thousand_times_costs_no_more_than_once():
    """Models that fall into a loop ask so; on a large corpus each repetition would be a pass over a column."""
    passages = [Passage(str(i), "", f"the word{i}") for i in range(20_000)]
    retriever = build_retriever(passages, "bm25")

    def seconds(query):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            retriever.search([query], 1)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds("the " * 2000) < 5 * seconds("the") + 0.005  # with bm25s' own sum: about 500 times


def test_ties_come_in_corpus_order_and_survive_the_cut_at_k(retriever):
    assert [hit.passage.pid for hit in retriever.search(["very same words"], 2)[0]] == ["4", "5"]
    assert [hit.passage.pid for hit in retriever.search(["very same words"], 1)[0]] == ["4"]


def test_k_is_clipped_and_no_match_is_an_empty_list(retriever):
    found = retriever.search(["capital", "xylophone", "", "  \n", "!?"], 1000)
    assert len(found[0]) == 3
    assert found[1:] == [[], [], [], []]
    assert retriever.search([], 3) == []


def test_very_long_and_broken_queries_are_searched(retriever):
    found = retriever.search(["capital " * 100_000, "\ud800 Paris \x00"], 2)
    assert [len(hits) for hits in found] == [2, 2]


def test_stop_words_are_off_unless_given():
    assert build_retriever(PASSAGES, "bm25").search(["the"], 5)[0]
    assert build_retriever(PASSAGES, "bm25", {"stopwords": ["The"]}).search(["the"], 5) == [[]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=6), st.integers(1, 9))
def test_any_text_is_answered_and_alone_as_in_company(retriever, queries, k):
    together = retriever.search(queries, k)
    assert together == [retriever.search([query], k)[0] for query in queries]
    assert all(len(hits) <= k for hits in together)


@pytest.mark.parametrize(
    "queries, k, message",
    [("Paris", 3, "list of strings"), ([3], 3, "list of strings"), (["a"], 0, "k must be"), (["a"], True, "k must be")],
)
def test_malformed_arguments_are_refused(retriever, queries, k, message):
    with pytest.raises(ValueError, match=message):
        retriever.search(queries, k)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"k_1": 1}, "allowed: .*k1"),
        ({"k1": 0}, "k1 > 0"),
        ({"k1": float("nan")}, "k1 > 0"),
        ({"k1": float("inf")}, "k1 > 0"),
        ({"k1": "1.5"}, "numbers k1 > 0"),
        ({"title_weight": -1}, "title_weight must be an integer from 0 to 100"),
        ({"title_weight": 1.5}, "title_weight must be an integer"),
        ({"b": 2}, "b <= 1"),
        ({"stopwords": "the"}, "list of words"),
    ],
)
def test_wrong_options_name_the_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        build_retriever(PASSAGES, "bm25", options)


def test_corpora_without_passages_or_words_are_refused():
    with pytest.raises(ValueError, match="corpus is empty"):
        build_retriever([], "bm25")
    with pytest.raises(ValueError, match="contains a word"):
        build_retriever([Passage("0", "!", "...")], "bm25")
    with pytest.raises(ValueError, match="allowed \\['bm25', 'dense'\\]"):
        build_retriever(PASSAGES, "bm42")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared data are not at {SHARED}")
@pytest.mark.parametrize(
    "name, at_5, at_10", [("hotpotqa", 0.755, 0.877), ("2wikimultihopqa", 0.625, 0.678), ("musique", 0.512, 0.586)]
)
def test_recall_of_gold_titles_on_real_questions(shared_retriever, name, at_5, at_10):
    questions, _ = read_questions(SHARED / f"{name}.jsonl")
    found = shared_retriever.search([question.text for question in questions], 10)
    titles = [[hit.passage.title for hit in hits] for hits in found]
    assert recall(questions, titles, 5)[0] == pytest.approx(at_5, abs=0.002)
    assert recall(questions, titles, 10)[0] == pytest.approx(at_10, abs=0.002)


@pytest.fixture(scope="module")
def shared_retriever():
    return build_retriever(load_corpus(SHARED / "corpus.jsonl"), "bm25")
