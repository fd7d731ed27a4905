"""The search tool of agents.

documents = await search(queries=["Who directed Titanic?"])     # [{"pid": …, "title": …, "text": …}, …]
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.storage.files import file_sha256
from verl_ext.tools.base import Tool
from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.corpus import as_paths
from verl_ext.tools.retrieval.index import read_meta
from verl_ext.tools.retrieval.open import RetrieverConfig, check_source, open_retriever
from verl_ext.tools.retrieval.types import MAX_K, Hit, Retriever
from verl_ext.tools.settings import STRICT, AtLeastOne, options_from

# Settings that decide where and how fast passages are found, but not which.
NOT_IDENTITY = ("index", "corpus", "url", "timeout_s", "attempts", "check", "verify", "device", "index_device")


@dataclass(frozen=True, config=STRICT)
class SearchSettings(RetrieverConfig):
    """Settings of the search tool: those of its retriever, and

    top_k: passages asked for per query. max_documents: most documents returned for one call.
    """

    top_k: Annotated[int, Field(ge=1, le=MAX_K)] = 5
    max_documents: AtLeastOne = 10


class SearchTool(Tool):
    """`await tool(queries=[...])` -> documents for all queries together; see SearchSettings."""

    name = "search"

    def __init__(self, retriever: Retriever, *, top_k: int = 5, max_documents: int = 10) -> None:
        self.top_k, self.max_documents = top_k, max_documents
        self._batched = BatchedRetriever(retriever)

    async def __call__(self, queries: Sequence[str]) -> list[dict[str, str]]:  # type: ignore[override]
        """Documents {"pid", "title", "text"}, the best of every query first, then the second ones, each pid once.

        queries: strings; blank ones find nothing. An empty result is legal.
        Raises ValueError when queries is not a list of strings, ToolError when a retrieval server fails.
        """
        return interleave(await self._batched.search(queries, self.top_k), self.max_documents)

    async def close(self) -> None:
        """Stop the tool's thread and close its connections."""
        await self._batched.close()


def search_tool(**settings: Any) -> SearchTool:
    """The search tool of a recipe (`mas.tools.search`); `settings` are those of SearchSettings.

    Raises:
        ValueError: a setting is unknown or wrong, or an index or corpus cannot be used.
        ToolError: a retrieval server does not answer.
    """
    given = _read(settings)
    return SearchTool(open_retriever(given), top_k=given.top_k, max_documents=given.max_documents)


def _read(settings: Mapping[str, Any]) -> SearchSettings:
    return options_from(SearchSettings, settings, "settings of the search tool")


def content_of(config: RetrieverConfig) -> dict[str, Any]:
    """The content of an index or a corpus, wherever it lies. That behind a server is unknown. Raises ValueError."""
    if config.index:
        meta = read_meta(Path(config.index))
        return {"index": {key: meta[key] for key in ("backend", "format", "options", "corpus_sha256")}}
    return {"corpus": [file_sha256(file) for file in as_paths(config.corpus)]} if config.corpus else {}


def identity_of(config: RetrieverConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What answers depend on: of the `settings`, which `config` was read from, those that say which passages are found,
    and the content of the index or corpus."""
    said = {key: value for key, value in settings.items() if value is not None and key not in NOT_IDENTITY}
    return said | content_of(config)


# Called before a run starts: a tool that cannot work should not cost the loading of a model.
search_tool.preflight = lambda **settings: check_source(_read(settings))
# Called before an evaluation is resumed: are these the passages behind its first answers?
search_tool.identity = lambda **settings: identity_of(_read(settings), settings)


def interleave(lists: Sequence[Sequence[Hit]], max_documents: int) -> list[dict[str, str]]:
    """Merge the hits of several queries by rank (query order within a rank), each pid once, at most max_documents."""
    documents: dict[str, dict[str, str]] = {}
    for rank in range(max(map(len, lists), default=0)):
        for hits in lists:
            if rank < len(hits) and len(documents) < max_documents:
                passage = hits[rank].passage
                documents.setdefault(passage.pid, dict(vars(passage)))
    return list(documents.values())
