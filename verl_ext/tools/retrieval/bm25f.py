"""BM25F: BM25 over texts with fields, of which each has a weight and a length of its own.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, Section 3.6. A word's
frequency in a document is tf = Σ_f weight_f · tf_f / (1 − b + b · length_f / mean length_f), and its score there is
idf · tf / (tf + k1). With one field of weight 1 this is BM25.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def field_scores(
    documents: Sequence[Sequence[Sequence[int]]], words: int, weights: Sequence[float], k1: float, b: float
) -> dict[str, Any]:
    """The score of each word in each document, as bm25s keeps it.

    Args:
        documents: for each, its fields as lists of numbers of words; a missing field is an empty one.
        words: how many different ones there are, numbered from 0.
        weights: of the fields.

    Returns:
        data (n,) float32 and indices (n,) int32, documents with a word, word after word; indptr (words + 1,) int64,
        where the word begins; num_docs.
    """
    keys, counts = [], []
    for number, weight in enumerate(weights):
        field = [fields[number] if number < len(fields) else () for fields in documents]
        lengths = np.array([len(one) for one in field])
        if lengths.any():
            share = weight / (1 - b + b * lengths / lengths.mean())
            document = np.repeat(np.arange(len(documents)), lengths)
            keys.append(np.concatenate([np.asarray(one, np.int64) for one in field]) * len(documents) + document)
            counts.append(share[document])
    found, place = np.unique(np.concatenate(keys), return_inverse=True)
    frequency = np.bincount(place, weights=np.concatenate(counts))
    word, document = np.divmod(found, len(documents))
    having = np.bincount(word, minlength=words)
    idf = np.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
    return {
        "data": (idf[word] * frequency / (frequency + k1)).astype(np.float32),
        "indices": document.astype(np.int32),
        "indptr": np.concatenate([[0], np.cumsum(having)]),
        "num_docs": len(documents),
    }
