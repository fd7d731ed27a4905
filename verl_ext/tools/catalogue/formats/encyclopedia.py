"""Three tools over a corpus of passages: the HotpotQA tools of ReAct and of the Smurfs paper (Table 6).

    search(query="...")                         titles and beginnings of the best passages
    retrieve(entity="Milhouse")                 the passage with this title, or an error that names similar ones
    lookup(keyword="river", entity="Milhouse")  its sentences that contain the keyword: ["(Result 1 / 2) …", …]

In a recipe the tools are a source, and the class `Encyclopedia` is the back end of tool_call:

    tool_search: {_target_: verl_ext.tools.catalogue.tool_search, method: bm25, sources: [{kind: encyclopedia}]}
    tool_call:
      _target_: verl_ext.tools.catalogue.tool_call
      sources: ${mas.tools.tool_search.sources}
      backend: {_target_: verl_ext.tools.catalogue.formats.encyclopedia.encyclopedia, index: data/hotpotqa/index}

Deviation: in the papers, Lookup steps through the page that was retrieved last, one call per sentence. Here a call
names the page and returns all its sentences: a stateless tool gives the same answer in every fork of a trajectory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from verl_ext.tools.catalogue.schemas import object_of
from verl_ext.tools.catalogue.types import CallError, ToolSpec
from verl_ext.tools.retrieval.batching import BatchedRetriever
from verl_ext.tools.retrieval.open import RetrieverConfig, check_source, open_retriever
from verl_ext.tools.retrieval.recall import same_title
from verl_ext.tools.retrieval.search import identity_of
from verl_ext.tools.retrieval.types import Passage, Retriever
from verl_ext.tools.settings import STRICT, AtLeastOne, options_from

TOP_K, BEGINNING_CHARS = 5, 300
# Titles that are suggested instead of one that does not exist.
SIMILAR = 5
# A sentence ends with a mark that no lower-case letter follows, unless the mark belongs to an initial ("J. K.").
_END = re.compile(r"(?<=[.!?])(?<!\b[^\W\d_]\.)\s+(?=[^\sa-z])|\n+")
_NOT_BLANK = {"type": "string", "pattern": r"\S"}


def load() -> list[ToolSpec]:
    """The three tools, without their back end (`encyclopedia`)."""
    return [
        _tool(
            "search",
            "Searches an encyclopedia for passages on a topic, and gives the titles and beginnings of those that fit "
            "best. Be specific.",
            query="what is searched, in words",
        ),
        _tool(
            "retrieve",
            "Gives the passage of an encyclopedia whose title is the entity. If there is none, it names similar titles "
            "to retrieve.",
            entity="title of the passage, e.g. Milhouse",
        ),
        _tool(
            "lookup",
            "Gives the sentences that contain a keyword in the passage of an encyclopedia whose title is the entity.",
            keyword="word or words to find in the passage, e.g. river",
            entity="title of the passage, as search or retrieve gave it",
        ),
    ]


def _tool(name: str, description: str, **parameters: str) -> ToolSpec:
    schema = object_of({one: {**_NOT_BLANK, "description": said} for one, said in parameters.items()}, parameters)
    return ToolSpec(name, description, schema, None, "encyclopedia", {"operation": name})


class Encyclopedia:
    """Back end of the three tools.

    Args:
        retriever: searches the passages; its attribute `passages` holds all of them.
        top_k: passages of a search. beginning_chars: characters of each that a search shows.

    Raises:
        ValueError: the retriever has no `passages` (it asks a server).
    """

    def __init__(self, retriever: Retriever, *, top_k: int = TOP_K, beginning_chars: int = BEGINNING_CHARS) -> None:
        passages: Sequence[Passage] | None = getattr(retriever, "passages", None)
        if passages is None:
            raise ValueError(
                "the encyclopedia looks titles up, for which it needs the passages themselves. Remedy: give index or "
                "corpus (data_prep/corpus.py), no url"
            )
        self.top_k, self.beginning_chars = top_k, beginning_chars
        self._passages = passages
        self._titles: dict[str, list[int]] = {}
        for number in range(len(passages)):
            self._titles.setdefault(same_title(passages[number].title), []).append(number)
        self._titles.pop("", None)
        self._batched = BatchedRetriever(retriever)

    async def __call__(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        """The result of a tool. Its name may have a prefix.

        Raises:
            CallError: nothing was found; the message says what to ask for instead.
            ValueError: the tool comes from another source.
        """
        operations = {"search": self.search, "retrieve": self.retrieve, "lookup": self.lookup}
        operation = operations.get(str(spec.extra.get("operation")))
        if operation is None:
            raise ValueError(f"{spec.name} is no tool of the encyclopedia ({', '.join(operations)})")
        return await operation(**arguments)

    async def search(self, query: str) -> list[dict[str, str]]:
        """[{"title", "text": its beginning}], best first. Raises CallError if no passage shares a word with it."""
        found = await self._found(query, self.top_k)
        if not found:
            raise CallError("Could not find any passage. Use other words.")
        return [{"title": passage.title, "text": self._beginning(passage.text)} for passage in found]

    async def retrieve(self, entity: str) -> dict[str, str]:
        """{"title", "text"}; passages with the same title are joined. Raises CallError if there is none."""
        passages = await self._titled(entity)
        return {"title": passages[0].title, "text": "\n".join(passage.text for passage in passages)}

    async def lookup(self, keyword: str, entity: str) -> list[str]:
        """The sentences with the keyword, in any case. Raises CallError if there is no such passage or sentence."""
        passages = await self._titled(entity)
        wanted = same_title(keyword)
        found = [s for passage in passages for s in sentences(passage.text) if wanted in same_title(s)]
        if not found:
            raise CallError(f"No sentence of [{passages[0].title}] contains [{keyword}].")
        return [f"(Result {number} / {len(found)}) {sentence}" for number, sentence in enumerate(found, 1)]

    async def close(self) -> None:
        """Stop the thread that searches."""
        await self._batched.close()

    async def _titled(self, entity: str) -> list[Passage]:
        numbers = self._titles.get(same_title(entity))
        if numbers is None:
            titles = dict.fromkeys(passage.title for passage in await self._found(entity, SIMILAR))
            raise CallError(f"Could not find [{entity:.200}]. Similar: {list(titles)}.")
        return [self._passages[number] for number in numbers]

    async def _found(self, query: str, k: int) -> list[Passage]:
        (hits,) = await self._batched.search([query], k)
        return [hit.passage for hit in hits]

    def _beginning(self, text: str) -> str:
        return text if len(text) <= self.beginning_chars else f"{text[: self.beginning_chars].rstrip()}…"


def sentences(text: str) -> list[str]:
    """The sentences of a passage, without the blanks around them."""
    return [sentence for part in _END.split(text) if (sentence := part.strip())]


@dataclass(frozen=True, config=STRICT)
class Settings(RetrieverConfig):
    """Settings of `encyclopedia`: those of its retriever, without `url`, and those of Encyclopedia."""

    top_k: AtLeastOne = TOP_K
    beginning_chars: AtLeastOne = BEGINNING_CHARS

    def __post_init__(self) -> None:
        if self.url:
            raise ValueError(f"it needs the passages themselves: give index or corpus, no url={self.url}")
        super().__post_init__()


def encyclopedia(**settings: Any) -> Encyclopedia:
    """The back end of a recipe (`mas.tools.tool_call.backend`); `settings` are those of Settings.

    Raises:
        ValueError: a setting is unknown or wrong, or a file cannot be read.
    """
    given = _read(settings)
    return Encyclopedia(open_retriever(given), top_k=given.top_k, beginning_chars=given.beginning_chars)


def _read(settings: Mapping[str, Any]) -> Settings:
    return options_from(Settings, settings, "settings of the encyclopedia")


def _identity(**settings: Any) -> dict[str, Any]:
    given = _read(settings)
    return identity_of(given, settings) | {"top_k": given.top_k, "beginning_chars": given.beginning_chars}


# A run calls `preflight` before it starts. A resumed evaluation compares `identity`: are the answers still the same?
encyclopedia.preflight = lambda **settings: check_source(_read(settings))  # loads neither index nor titles
encyclopedia.identity = _identity
