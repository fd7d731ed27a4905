"""The tool by which agents find tools: in words, over the documentation of a catalogue.

    await search(query="Who directed a film?", k=3)
        [{"name": "GET /movie/{movie_id}/credits", "description": "...", "parameters": {...}}, ...]        best first

bm25 ranks by shared words and stems but for stop words, dense by meaning (cosine of sentence embeddings), hybrid by a
weighted mean of both (fusion.py). What they find on real queries: docs/tools.md.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from verl_ext.tools.base import Tool
from verl_ext.tools.catalogue.load import CatalogueSettings
from verl_ext.tools.catalogue.search.documents import passages
from verl_ext.tools.catalogue.search.fusion import DENSE, HybridRetriever, Part
from verl_ext.tools.catalogue.search.indexes import cached_index, default_cache, described
from verl_ext.tools.catalogue.types import Catalogue
from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.bm25 import library
from verl_ext.tools.retrieval.types import Retriever, check_search, missing_extra
from verl_ext.tools.settings import STRICT, AtLeastOne, options_from

# Method -> the indexes that it asks.
METHODS = {"bm25": ("bm25",), "dense": ("dense",), "hybrid": ("bm25", "dense")}
# Weights of a tool's name, description and parameters in bm25.
FIELDS = (2.0, 1.0, 0.5)
# Library of the dense index -> what to install.
LIBRARIES = {"faiss": "faiss-cpu", "sentence_transformers": "sentence-transformers"}


@dataclass(frozen=True, config=STRICT)
class SearchSettings(CatalogueSettings):
    """Settings of `tool_search`.

    Attributes:
        method: "hybrid", "bm25" or "dense".
        top_k: tools found for a query that does not say how many.
        bm25, dense: options of the indexes (BM25Options, DenseOptions). By default bm25 leaves English stop words out
            (an agent asks in sentences, and "can you find me" is not what a tool does), counts stems beside words, and
            weighs a tool's name by 2, its description by 1, its parameters by 1/2. The dense model is "minilm", a
            folder, or a name of the hub.
        cache_dir: folder of the indexes; None: the user's cache folder.
        device: of the encoder, as torch names it; None: its own choice.
    """

    method: Literal["hybrid", "bm25", "dense"] = "hybrid"
    top_k: AtLeastOne = 5
    bm25: Mapping[str, Any] = field(default_factory=dict)
    dense: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for backend in ("bm25", "dense"):
            if getattr(self, backend) and backend not in METHODS[self.method]:
                raise ValueError(f"options of {backend} do nothing with method={self.method}; remove them")


class ToolSearch(Tool):
    """Finds tools of `catalogue` by what their documentation says.

    Args:
        retriever: over the catalogue's passages (documents.py), whose pids are the tools' names; see `open_search`.
        top_k: tools found for a query that does not say how many.
    """

    name = "tool_search"

    def __init__(self, catalogue: Catalogue, retriever: Retriever, *, top_k: int = 5) -> None:
        self.catalogue, self.top_k = catalogue, top_k
        self._batched = BatchedRetriever(retriever)

    async def __call__(  # type: ignore[override]
        self, query: str = "", k: int | None = None, names: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Documents {"name", "description", "parameters"} of the tools found, best first.

        Args:
            query: in words; a blank one finds nothing.
            k: at most so many; None: top_k.
            names: instead of a query, the tools to document, in this order (a benchmark's ground-truth tools).

        Raises:
            ValueError: query is no text, k no positive integer, a name is of no tool, or query and names are both
                given.
        """
        if names is not None:
            if query or isinstance(names, str):
                raise ValueError(f"tool_search: give query or a list of names, given {query!r:.80} and {names!r:.120}")
            return [tool.shown() for tool in self.catalogue.only(names).values()]
        k = self.top_k if k is None else k
        check_search([query], k)
        hits = await self._batched.search([query], min(k, len(self.catalogue)))
        return [self.catalogue[hit.passage.pid].shown() for hit in hits[0]]

    async def close(self) -> None:
        """Stop the tool's thread."""
        await self._batched.close()


def open_search(
    catalogue: Catalogue,
    method: str = "hybrid",
    *,
    bm25: Mapping[str, Any] | None = None,
    dense: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = False,
    device: str | None = None,
) -> Retriever:
    """The retriever of a method over a catalogue, its indexes from the cache or built into it; see SearchSettings.

    Raises:
        ValueError: unknown method or options, or a cache that cannot be written.
        ImportError: a library is missing.
    """
    if method not in METHODS:
        raise ValueError(f"tool_search: method must be one of {list(METHODS)}, given {method!r}")
    cache, found = Path(cache_dir) if cache_dir else default_cache(), passages(catalogue.values())
    runtime = {"bm25": {}, "dense": {"device": device}}
    options = {"bm25": with_defaults(bm25 or {}), "dense": dense or {}}
    opened = {
        backend: cached_index(found, backend, options[backend], cache, progress=progress, **runtime[backend])
        for backend in METHODS[method]
    }
    if len(opened) == 1:
        return opened[method]
    return HybridRetriever([Part(opened["bm25"], 1 - DENSE, 0.0), Part(opened["dense"], DENSE, -1.0)])


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of bm25 with those of tool search; its stop words are bm25s's list of 179 English ones."""
    fields = {} if "title_weight" in options else {"fields": FIELDS}
    return {"stopwords": list(library().stopwords.STOPWORDS_EN_PLUS), "stems": True, **fields, **options}


def tool_search(**settings: Any) -> ToolSearch:
    """The tool_search of a recipe (`mas.tools.tool_search`); `settings` are those of SearchSettings.

    Raises:
        ValueError: a setting is unknown or wrong, or a file cannot be read.
        ImportError: a library is missing.
    """
    given = _read(settings)
    catalogue = given.catalogue()
    retriever = open_search(
        catalogue, given.method, bm25=given.bm25, dense=given.dense, cache_dir=given.cache_dir, device=given.device
    )
    return ToolSearch(catalogue, retriever, top_k=given.top_k)


def _preflight(**settings: Any) -> None:
    """Everything but the indexes and the model."""
    given = _read(settings)
    given.catalogue()
    _options(given)
    for module, package in LIBRARIES.items() if "dense" in METHODS[given.method] else ():
        if importlib.util.find_spec(module) is None:
            raise missing_extra(package, f"tool_search with method={given.method}")


def _identity(**settings: Any) -> dict[str, Any]:
    given = _read(settings)
    return {"catalogue": given.catalogue().version, "method": given.method, "top_k": given.top_k, **_options(given)}


def _options(given: SearchSettings) -> dict[str, Any]:
    """All options of the method's indexes. Raises ValueError."""
    options = {"bm25": with_defaults(given.bm25), "dense": given.dense}
    return {backend: described(backend, options[backend]) for backend in METHODS[given.method]}


# A run asks this before it starts anything; an evaluation that goes on asks the other: are the answers still the same?
tool_search.preflight = _preflight
tool_search.identity = _identity


def _read(settings: Mapping[str, Any]) -> SearchSettings:
    return options_from(SearchSettings, settings, "settings of tool_search")
