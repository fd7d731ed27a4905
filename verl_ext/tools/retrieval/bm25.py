"""BM25 with the library bm25s (Lucene's variant, scores computed at indexing time).

Tokens: the text in Unicode's form NFKC (so that composed and decomposed letters are one), lower-cased, cut into maximal
runs of letters and digits; no stemming, and no stop words unless asked for. (A script written without blanks, such as
Chinese, becomes one token per run: use the dense backend there.) Recall on real questions, and what stemming, stop
words and the weight of titles change in it: docs/retrieval.md.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_ext.tools.retrieval.types import Hit, Passage, check_search

_WORD = re.compile(r"[^\W_]+")
FOLDER = "bm25"
MAX_TITLE_WEIGHT = 100


@dataclass(frozen=True)
class BM25Options:
    """k1 > 0: saturation of repeated words. b in [0, 1]: weight of the passage's length. stopwords: words left out.

    title_weight: how often a word of the title counts (0: titles are not searched); one of the text counts once.
    """

    k1: float = 1.5
    b: float = 0.75
    title_weight: int = 2
    stopwords: Sequence[str] = ()

    def __post_init__(self) -> None:
        numbers = isinstance(self.k1, int | float) and isinstance(self.b, int | float)
        if not numbers or not 0 < self.k1 < float("inf") or not 0 <= self.b <= 1:
            raise ValueError(f"bm25 needs numbers k1 > 0 and 0 <= b <= 1, given k1={self.k1!r}, b={self.b!r}.")
        if not isinstance(self.title_weight, int) or not 0 <= self.title_weight <= MAX_TITLE_WEIGHT:
            allowed = f"an integer from 0 to {MAX_TITLE_WEIGHT}"
            raise ValueError(f"bm25 title_weight must be {allowed}, given {self.title_weight!r}.")
        if isinstance(self.stopwords, str):
            raise ValueError(f"bm25 stopwords must be a list of words, given {self.stopwords!r:.80}.")
        object.__setattr__(self, "stopwords", tuple(sorted({str(word).lower() for word in self.stopwords})))


def tokenize(text: str, stopwords: frozenset[str] = frozenset()) -> list[str]:
    """Lower-case words of `text` in order, see the module's docstring."""
    normal = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return [word for word in _WORD.findall(normal.lower()) if word not in stopwords]


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

        bm25s = _bm25s()
        options = options or BM25Options()
        stopwords = frozenset(options.stopwords)
        vocabulary: dict[str, int] = {}
        documents = []
        for passage in tqdm(passages, desc="tokenise", unit="passage", disable=not progress):
            words = tokenize(passage.title, stopwords) * options.title_weight + tokenize(passage.text, stopwords)
            documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
        if not vocabulary:
            raise ValueError(f"none of the {len(documents)} passages contains a word (letters or digits) to index.")
        model = bm25s.BM25(method="lucene", k1=options.k1, b=options.b)
        model.index((documents, dict(vocabulary)), show_progress=progress)  # a copy: bm25s adds a word to it
        return cls(model, vocabulary, passages, options)

    def save(self, folder: Path) -> None:
        """Write the index (not the passages) under `folder`/bm25."""
        self._model.save(str(folder / FOLDER), show_progress=False)

    @classmethod
    def load(cls, folder: Path, passages: Sequence[Passage], options: BM25Options, **_: Any) -> "BM25Retriever":
        """Open what `save` wrote; the scores are memory-mapped. Raises ValueError when it does not fit `passages`."""
        import numpy as np

        model = _bm25s().BM25.load(str(folder / FOLDER), mmap=True)
        scores, vocabulary = model.scores, model.vocab_dict
        # plain views of the mapped files: a slice of a numpy.memmap costs ten times that of an array
        scores |= {name: np.asarray(array) for name, array in scores.items() if isinstance(array, np.memmap)}
        vocabulary.pop("", None)  # bm25s adds it for empty documents, without a column
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

        words = tokenize(query, self._stopwords)
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
        """Sum of the words' columns, (passages,) float32.

        As bm25s' get_scores_from_ids, but a repeated word costs once: a model that has fallen into a loop asks for the
        same word a thousand times.
        """
        import numpy as np

        columns, scores = self._model.scores, np.zeros(len(self), dtype=np.float32)
        for word, count in Counter(ids).items():
            column = slice(columns["indptr"][word], columns["indptr"][word + 1])
            weights = columns["data"][column]
            np.add.at(scores, columns["indices"][column], weights if count == 1 else count * weights)
        return scores

    def describe(self) -> dict[str, Any]:
        """Options as recorded in the index's meta.json."""
        return {**asdict(self.options), "stopwords": list(self.options.stopwords)}


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise ImportError("BM25 retrieval needs bm25s: `pip install bm25s` (a dependency of verl_ext).") from error
    return bm25s
