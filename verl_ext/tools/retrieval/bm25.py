"""BM25 with the library bm25s (Lucene's variant, scores computed at indexing time).

Tokens are runs of letters and digits of the lower-cased text in Unicode's form NFKC, so that composed and decomposed
letters are equal. Stems, stop words and fields (BM25F) only if given. A script written without blanks, such as Chinese,
becomes one token per run: use the dense backend there. docs/results/2026-11-21-retrieval.md has the recall on real
questions, and how stemming, stop words and the weight of titles change it.
"""

import re
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.retrieval.bm25f import field_scores
from verl_ext.tools.retrieval.types import Hit, Passage, check_search
from verl_ext.tools.settings import STRICT

_WORD = re.compile(r"[^\W_]+")
FOLDER = "bm25"
_IMPORTING = threading.Lock()


@dataclass(frozen=True, config=STRICT)
class BM25Options:
    """k1 > 0: saturation of repeated words. b in [0, 1]: weight of the passage's length. stopwords: words left out.

    title_weight: how often a word of the title counts (0: titles are not searched); one of the text counts once.
    stems: each word counts twice, as it is written and by its English stem (Porter 2).
    fields: instead of title_weight: weights of the title and of the parts of the text between form feeds, each of which
        has a length of its own (BM25F).
    """

    k1: Annotated[float, Field(gt=0)] = 1.5
    b: Annotated[float, Field(ge=0, le=1)] = 0.75
    title_weight: Annotated[int, Field(ge=0, le=100)] = 2
    stopwords: Sequence[str] = ()
    stems: bool = False
    fields: Sequence[Annotated[float, Field(gt=0, le=100)]] = ()

    def __post_init__(self) -> None:
        if len(self.fields) == 1 or (self.fields and self.title_weight != 2):
            raise ValueError(
                f"bm25: fields={list(self.fields)} must be a weight for the title and one for each part of the text, "
                f"and stand in place of title_weight={self.title_weight}"
            )
        object.__setattr__(self, "fields", tuple(self.fields))
        object.__setattr__(self, "stopwords", tuple(sorted({word.lower() for word in self.stopwords})))


def tokenize(text: str, stopwords: frozenset[str] = frozenset(), stems: bool = False) -> list[str]:
    """The tokens of `text` in order, stems ("~run") behind them; see the module's docstring."""
    normal = text if text.isascii() else unicodedata.normalize("NFKC", text)
    words = [word for word in _WORD.findall(normal.lower()) if word not in stopwords]
    return [*words, *(f"~{stem}" for stem in _stemmer().stemWords(words))] if stems else words


@cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")


class BM25Retriever:
    """Retriever over a bm25s index; a passage that shares no word with the query is never a hit."""

    backend = "bm25"
    options_type = BM25Options

    def __init__(
        self, model: Any, vocabulary: dict[str, int], passages: Sequence[Passage], options: BM25Options
    ) -> None:
        self._model, self._vocabulary, self.passages, self.options = model, vocabulary, passages, options
        self._stopwords = frozenset(options.stopwords)

    @classmethod
    def build(
        cls, passages: Sequence[Passage], options: BM25Options | None = None, progress: bool = False
    ) -> "BM25Retriever":
        """Index `passages`. progress: a bar on stderr. Raises ValueError when no passage contains a word."""
        from tqdm import tqdm

        bm25s = library()
        options = options or BM25Options()
        stopwords = frozenset(options.stopwords)
        vocabulary: dict[str, int] = {}
        documents = []
        for passage in tqdm(passages, desc="tokenise", unit="passage", disable=not progress):
            parts = [passage.title, *passage.text.split("\f", max(len(options.fields) - 2, 0))]
            found = [tokenize(part, stopwords, options.stems) for part in parts]
            documents.append([[vocabulary.setdefault(word, len(vocabulary)) for word in words] for words in found])
        if not vocabulary:
            raise ValueError(f"none of the {len(documents)} passages contains a word (letters or digits) to index.")
        model = bm25s.BM25(method="lucene", k1=options.k1, b=options.b)
        if options.fields:
            # What index() sets; Lucene's variant has no scores of words that do not occur.
            model.scores = field_scores(documents, len(vocabulary), options.fields, options.k1, options.b)
            model.vocab_dict, model.nonoccurrence_array = dict(vocabulary), None
        else:
            joined = [title * options.title_weight + text for title, text in documents]
            model.index((joined, dict(vocabulary)), show_progress=progress)  # a copy: bm25s adds a word to it
        return cls(model, vocabulary, passages, options)

    def save(self, folder: Path) -> None:
        """Write the index (not the passages) under `folder`/bm25."""
        self._model.save(str(folder / FOLDER), show_progress=False)

    @classmethod
    def load(cls, folder: Path, passages: Sequence[Passage], options: BM25Options, **_: Any) -> "BM25Retriever":
        """Open what `save` wrote; the scores are memory-mapped. Raises ValueError when it does not fit `passages`."""
        import numpy as np

        model = library().BM25.load(str(folder / FOLDER), mmap=True)
        scores, vocabulary = model.scores, model.vocab_dict
        # Plain views of the mapped files: slicing a numpy.memmap costs ten times as much as slicing an array.
        scores |= {name: np.asarray(array) for name, array in scores.items() if isinstance(array, np.memmap)}
        vocabulary.pop("", None)  # bm25s adds it for empty documents, but gives it no column
        columns = max(vocabulary.values(), default=-1) + 1
        if scores["num_docs"] != len(passages) or len(scores["indptr"]) < columns + 1:
            raise ValueError(f"it indexes {scores['num_docs']} passages, the store holds {len(passages)}")
        return cls(model, vocabulary, passages, options)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list of at most k hits per query, best first; ties in corpus order; [] when no word of it is known."""
        return [self._search_one(query, k) for query in check_search(queries, k)]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        import numpy as np

        words = tokenize(query, self._stopwords, self.options.stems)
        ids = [self._vocabulary[word] for word in words if word in self._vocabulary]
        if not ids:
            return []
        scores = self._scores(ids)
        found = np.flatnonzero(scores > 0)
        if len(found) > k:
            threshold = np.partition(scores[found], len(found) - k)[len(found) - k]
            found = found[scores[found] >= threshold]
        best = found[np.lexsort((found, -scores[found]))][:k]
        return [Hit(self.passages[int(index)], float(scores[index])) for index in best]

    def _scores(self, ids: list[int]) -> Any:
        """The score of each passage, (passages,) float32: the sum of the words' columns.

        As get_scores_from_ids of bm25s, but the cost of a repeated word is that of one: a model caught in a loop asks
        for the same word a thousand times.
        """
        import numpy as np

        columns, scores = self._model.scores, np.zeros(len(self), dtype=np.float32)
        for word, count in Counter(ids).items():
            column = slice(columns["indptr"][word], columns["indptr"][word + 1])
            weights = columns["data"][column]
            np.add.at(scores, columns["indices"][column], weights if count == 1 else count * weights)
        return scores


def library() -> Any:
    """bm25s, without JAX: it would run JAX when it is imported, and JAX takes three quarters of a GPU's memory then."""
    with _IMPORTING:
        return sys.modules.get("bm25s") or _without_jax()


def _without_jax() -> Any:
    absent: dict[str, Any] = {"jax": None, "jax.lax": None}  # what cannot be imported
    before = {name: sys.modules[name] for name in absent if name in sys.modules}
    try:
        sys.modules.update(absent)
        import bm25s
    except ImportError as error:
        raise ImportError("BM25 retrieval needs bm25s: `pip install bm25s` (a dependency of verl_ext).") from error
    finally:
        for name in absent:
            sys.modules.pop(name, None)
        sys.modules.update(before)
    return bm25s
