"""The search tool of agents, and the batching of concurrent searches that it shares with the server."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

from verl_ext.tools.base import Tool
from verl_ext.tools.batching import AsyncBatcher
from verl_ext.tools.retrieval.index import file_sha256, read_meta
from verl_ext.tools.retrieval.open import RetrieverConfig, check_source, open_retriever, read_config
from verl_ext.tools.retrieval.types import MAX_K, Hit, Retriever, check_search

TOOL_SETTINGS = ("top_k", "max_documents", "max_batch", "max_delay_s")
# Where and how fast passages are found; the other settings decide which.
HOW = ("url", "timeout_s", "attempts", "check", "verify", "device", "index_device", "max_batch", "max_delay_s")


class BatchedRetriever:
    """Asynchronous face of a retriever: concurrent searches become one call, made in a thread of its own.

    Results are those of separate calls: a backend scores each query alone, and queries are grouped by k.
    A retriever with a coroutine `asearch` (HttpRetriever) is awaited instead of run in the thread.
    """

    def __init__(self, retriever: Retriever, *, max_batch: int = 64, max_delay_s: float = 0.005) -> None:
        self.retriever = retriever
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")
        self._batcher: AsyncBatcher[tuple[str, int], list[Hit]] = AsyncBatcher(
            self._run, max_batch=max_batch, max_delay_s=max_delay_s
        )

    @property
    def waiting(self) -> int:
        """Queries not yet handed to the retriever."""
        return self._batcher.waiting

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`, without blocking the event loop."""
        return await self._batcher.submit([(query, k) for query in check_search(queries, k)])

    async def close(self) -> None:
        """Stop the worker and the thread, and close the retriever's connections if it has any."""
        await self._batcher.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        if hasattr(self.retriever, "aclose"):
            await self.retriever.aclose()

    async def _run(self, requests: list[tuple[str, int]]) -> list[list[Hit]]:
        found: dict[tuple[str, int], list[Hit]] = {}
        for k in sorted({k for _, k in requests}):
            queries = list(dict.fromkeys(query for query, other in requests if other == k))  # the G samples repeat them
            if hasattr(self.retriever, "asearch"):
                lists = await self.retriever.asearch(queries, k)
            else:
                loop = asyncio.get_running_loop()
                lists = await loop.run_in_executor(self._executor, self.retriever.search, queries, k)
            found.update({(query, k): hits for query, hits in zip(queries, lists, strict=True)})
        return [found[request] for request in requests]


class SearchTool(Tool):
    """`await tool(queries=[...])` -> documents for all queries together.

    top_k: passages asked for per query. max_documents: most documents returned for one call.
    max_batch, max_delay_s: queries per batch, and seconds a call waits for others to join it.
    """

    name = "search"

    def __init__(
        self,
        retriever: Retriever,
        *,
        top_k: int = 5,
        max_documents: int = 10,
        max_batch: int = 64,
        max_delay_s: float = 0.005,
    ) -> None:
        _check_sizes(top_k, max_documents)
        self.top_k, self.max_documents = top_k, max_documents
        self._batched = BatchedRetriever(retriever, max_batch=max_batch, max_delay_s=max_delay_s)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SearchTool":
        """From the fields of RetrieverConfig and TOOL_SETTINGS in one mapping; null means the default."""
        settings, source = _split(config)
        return cls(open_retriever(source), **settings)

    @staticmethod
    def check_config(config: Mapping[str, Any]) -> None:
        """What `from_config` would refuse, as far as it can be said without loading an index or a model.

        Raises ValueError, or ToolError when a retrieval server does not answer.
        """
        settings, source = _split(config)
        _check_sizes(**{key: settings[key] for key in ("top_k", "max_documents") if key in settings})
        check_source(read_config(source))

    @staticmethod
    def identity_of(config: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool's answers depend on: settings, and the content of its index or corpus wherever that lies.

        A retrieval server does not tell its content. Raises ValueError for unknown settings or an unreadable index.
        """
        settings, source = _split(config)
        places, given = read_config(source), {**settings, **source}
        identity = {key: value for key, value in given.items() if key not in (*HOW, "index", "corpus")}
        if places.index:
            meta = read_meta(Path(places.index))
            identity["index"] = {key: meta[key] for key in ("backend", "format", "options", "corpus_sha256")}
        elif places.corpus:
            files = [places.corpus] if isinstance(places.corpus, str) else places.corpus
            identity["corpus"] = [file_sha256(Path(file)) for file in files]
        return identity

    async def __call__(self, queries: Sequence[str]) -> list[dict[str, str]]:  # type: ignore[override]
        """Documents {"pid", "title", "text"}, the best of every query first, then the second ones, each pid once.

        queries: strings; blank ones find nothing. An empty result is legal.
        Raises ValueError when queries is not a list of strings, ToolError when a retrieval server fails.
        """
        return interleave(await self._batched.search(queries, self.top_k), self.max_documents)

    async def close(self) -> None:
        """Stop the tool's thread and close its connections."""
        await self._batched.close()


def _check_sizes(top_k: Any = 1, max_documents: Any = 1) -> None:
    for setting, value in (("top_k", top_k), ("max_documents", max_documents)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"search tool: {setting} must be an integer >= 1, given {value!r}.")
    if top_k > MAX_K:
        raise ValueError(f"search tool: top_k must be at most {MAX_K} passages per query, given {top_k}.")


def _split(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tool's own settings, and those of its retriever."""
    given = {str(key): value for key, value in config.items() if value is not None}
    allowed = [*(field.name for field in fields(RetrieverConfig)), *TOOL_SETTINGS]
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ValueError(f"unknown settings of the search tool: {unknown}; allowed: {allowed}. Correct them.")
    settings = {key: given.pop(key) for key in TOOL_SETTINGS if key in given}
    return settings, given


def search_tool(**settings: Any) -> SearchTool:
    """The search tool of a recipe (`mas.tools.search`); see `SearchTool.from_config`."""
    return SearchTool.from_config(settings)


# A run asks this before it starts anything: a tool that cannot work should not cost the loading of a model.
search_tool.preflight = lambda **settings: SearchTool.check_config(settings)
# An evaluation that goes on asks this: are these the passages that its first answers were made of?
search_tool.identity = lambda **settings: SearchTool.identity_of(settings)


def interleave(lists: Sequence[Sequence[Hit]], max_documents: int) -> list[dict[str, str]]:
    """Merge the hits of several queries by rank (query order within a rank), each pid once, at most max_documents."""
    documents: dict[str, dict[str, str]] = {}
    for rank in range(max(map(len, lists), default=0)):
        for hits in lists:
            if rank < len(hits) and len(documents) < max_documents:
                passage = hits[rank].passage
                documents.setdefault(passage.pid, {"pid": passage.pid, "title": passage.title, "text": passage.text})
    return list(documents.values())
