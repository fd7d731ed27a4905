"""Records and the protocol of retrieval, with what every backend shares about queries and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

# Characters of a query that are used; every backend cuts the rest alike, so that a local index and a server agree.
MAX_QUERY_CHARS = 8192
# Queries in one request to the retrieval server; its client splits longer lists.
MAX_QUERIES_PER_REQUEST = 256
# Largest k in one request to the retrieval server.
MAX_K = 1000

Options = TypeVar("Options")


@dataclass(frozen=True)
class Passage:
    """One document of the corpus. pid is unique in it."""

    pid: str
    title: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage with its score: BM25's sum, or the cosine in [-1, 1]. Only the order within a query matters."""

    passage: Passage
    score: float


@runtime_checkable
class Retriever(Protocol):
    """What the search tool needs of a backend.

    `search` is synchronous and called from one thread at a time; it depends on each query alone, not on its batch.
    """

    backend: str

    def __len__(self) -> int:
        """Number of passages."""

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """One list per query: at most min(k, passages) hits, best first, ties in corpus order; [] for no match."""


def check_search(queries: Sequence[str], k: int) -> list[str]:
    """Validated queries, cleaned (see `clean_query`).

    Raises ValueError when queries is not a list of strings or k is not a positive integer.
    """
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise ValueError(f"queries must be a list of strings, given {queries!r:.200}; wrap a single query in a list.")
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ValueError(f"k must be an integer >= 1 (documents per query), given {k!r}.")
    return [clean_query(query) for query in queries]


def clean_query(query: str) -> str:
    """The part of a query that is searched: stripped, at most MAX_QUERY_CHARS, no lone surrogates (not encodable)."""
    return encodable(query.strip()[:MAX_QUERY_CHARS])


def encodable(text: str) -> str:
    """`text` with "?" for lone surrogates, which JSON may hold but neither UTF-8 nor a tokeniser takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def options_from(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    """Build the options dataclass `kind`; a misspelt key is a ValueError that names the allowed ones."""
    allowed = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ValueError(f"unknown {what} {unknown}; allowed: {allowed}. Correct or remove it.")
    return kind(**given)


def missing_extra(library: str, purpose: str) -> ImportError:
    """The error to raise when an optional library is not installed."""
    return ImportError(f"{purpose} needs {library}: `pip install verl_ext[retrieval]`.")
