"""Records and the interface of retrieval, and the checks of queries that every backend shares."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

# Characters of a query that are used. Every backend cuts longer ones, so that a local index and a server agree.
MAX_QUERY_CHARS = 8192
# Queries in one request to the retrieval server; its client splits longer lists.
MAX_QUERIES_PER_REQUEST = 256
# Largest k in one request to the retrieval server.
MAX_K = 1000


@dataclass(frozen=True)
class Passage:
    """One document of the corpus. pid is unique in it."""

    pid: str
    title: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage with its score: BM25's sum, a cosine or an inner product. Only the order within a query matters."""

    passage: Passage
    score: float


@runtime_checkable
class Retriever(Protocol):
    """The interface of a backend.

    `search` is synchronous and called from one thread at a time. Its answer to a query must not depend on the other
    queries of the call.
    """

    backend: str

    def __len__(self) -> int:
        """Number of passages."""

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list per query: at most min(k, passages) hits, best first, ties in corpus order; [] for no match."""


def check_search(queries: Iterable[str], k: int) -> list[str]:
    """Validated queries, cleaned (see `clean_query`).

    Raises ValueError when queries is not a list of strings or k is not a positive integer.
    """
    given: list[Any] = list(queries) if isinstance(queries, Iterable) and not isinstance(queries, str) else [None]
    if not all(isinstance(query, str) for query in given):
        raise ValueError(f"queries must be a list of strings, given {queries!r:.200}; wrap a single query in a list.")
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ValueError(f"k must be an integer >= 1 (documents per query), given {k!r}.")
    return [clean_query(query) for query in given]


def clean_query(query: str) -> str:
    """The part of a query that is searched: stripped, at most MAX_QUERY_CHARS, no lone surrogates (not encodable)."""
    return encodable(query.strip()[:MAX_QUERY_CHARS])


def encodable(text: str) -> str:
    """`text` with "?" for lone surrogates, which JSON may hold but neither UTF-8 nor a tokeniser takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def missing_extra(library: str, purpose: str) -> ImportError:
    """The error to raise when an optional library is not installed."""
    return ImportError(f"{purpose} needs {library}: `pip install verl_ext[retrieval]`.")
