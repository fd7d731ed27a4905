"""The search tool of agents.

documents = await search(queries=["Who directed Titanic?"])     # [{"pid": …, "title": …, "text": …}, …]
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.base import Tool
from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.corpus import file_sha256
from verl_ext.tools.retrieval.index import read_meta
from verl_ext.tools.retrieval.open import RetrieverConfig, check_source, open_retriever, read_config
from verl_ext.tools.retrieval.types import MAX_K, Hit, Retriever
from verl_ext.tools.settings import STRICT, AtLeastOne, check_names, options_from

# Settings that decide where and how fast passages are found, but not which.
NOT_IDENTITY = ("url", "timeout_s", "attempts", "check", "verify", "device", "index_device")


@dataclass(frozen=True, config=STRICT)
class SearchSettings:
    """Settings of the search tool itself.

    top_k: passages asked for per query. max_documents: most documents returned for one call.
    """

    top_k: Annotated[int, Field(ge=1, le=MAX_K)] = 5
    max_documents: AtLeastOne = 10


class SearchTool(Tool):
    """`await tool(queries=[...])` -> documents for all queries together.

    settings: fields of SearchSettings.
    """

    name = "search"

    def __init__(self, retriever: Retriever, **settings: Any) -> None:
        self.settings = options_from(SearchSettings, settings, "settings of the search tool")
        self._batched = BatchedRetriever(retriever)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SearchTool":
        """From the fields of SearchSettings and RetrieverConfig in one mapping; null means the default."""
        settings, source = _split(config)
        return cls(open_retriever(source), **asdict(settings))

    @staticmethod
    def check_config(config: Mapping[str, Any]) -> None:
        """Refuse what `from_config` would refuse, as far as that is possible without loading an index or a model.

        Raises ValueError, or ToolError when a retrieval server does not answer.
        """
        check_source(read_config(_split(config)[1]))

    @staticmethod
    def identity_of(config: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool's answers depend on: settings, and the content of its index or corpus wherever that lies.

        The content behind a retrieval server is unknown. Raises ValueError for unknown settings or an unreadable index.
        """
        source = read_config(_split(config)[1])
        left_out = (*NOT_IDENTITY, "index", "corpus")
        identity = {key: value for key, value in config.items() if value is not None and key not in left_out}
        if source.index:
            meta = read_meta(Path(source.index))
            identity["index"] = {key: meta[key] for key in ("backend", "format", "options", "corpus_sha256")}
        elif source.corpus:
            files = [source.corpus] if isinstance(source.corpus, str) else source.corpus
            identity["corpus"] = [file_sha256(Path(file)) for file in files]
        return identity

    async def __call__(self, queries: Sequence[str]) -> list[dict[str, str]]:  # type: ignore[override]
        """Documents {"pid", "title", "text"}, the best of every query first, then the second ones, each pid once.

        queries: strings; blank ones find nothing. An empty result is legal.
        Raises ValueError when queries is not a list of strings, ToolError when a retrieval server fails.
        """
        return interleave(await self._batched.search(queries, self.settings.top_k), self.settings.max_documents)

    async def close(self) -> None:
        """Stop the tool's thread and close its connections."""
        await self._batched.close()


def _split(config: Mapping[str, Any]) -> tuple[SearchSettings, dict[str, Any]]:
    """The tool's own settings, checked, and those of its retriever."""
    own = [field.name for field in fields(SearchSettings)]
    given = {str(key): value for key, value in config.items() if value is not None}
    allowed = [*(field.name for field in fields(RetrieverConfig)), *own]
    check_names(given, allowed, "settings of the search tool")
    settings = {key: given.pop(key) for key in own if key in given}
    return options_from(SearchSettings, settings, "settings of the search tool"), given


def search_tool(**settings: Any) -> SearchTool:
    """The search tool of a recipe (`mas.tools.search`); see `SearchTool.from_config`."""
    return SearchTool.from_config(settings)


# Called before a run starts: a tool that cannot work should not cost the loading of a model.
search_tool.preflight = lambda **settings: SearchTool.check_config(settings)
# Called before an evaluation is resumed: are these the passages behind its first answers?
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
