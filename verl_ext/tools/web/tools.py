"""The web tools. Each has three modes.

off         (default) every call fails at once, and the error says how to turn the tool on
simulated   a model answers in place of the tool: the simulator, with its cache and server (docs/simulator.md)
live        the web itself. Its answers change from day to day: for evaluations, not for training
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from verl_ext.tools.base import Tool, ToolError, ToolRefused
from verl_ext.tools.catalogue import Catalogue, load_catalogue
from verl_ext.tools.catalogue.render import plain
from verl_ext.tools.catalogue.toolbox import of_backend
from verl_ext.tools.catalogue.types import CallError
from verl_ext.tools.retrieval.search import SearchTool, search_tool
from verl_ext.tools.settings import options_from
from verl_ext.tools.time_limits import not_counted
from verl_ext.tools.web import arxiv
from verl_ext.tools.web.addresses import checked
from verl_ext.tools.web.fetch import fetch
from verl_ext.tools.web.pages import text_of
from verl_ext.tools.web.settings import LIVE, OFF, SIMULATED, ArxivSettings, FetchSettings, SearchSettings, Settings

# The documentation of the tools, which the simulator reads, here and behind a server (--catalogue json:FILE).
TOOLS = Path(__file__).with_name("tools.jsonl")
ANSWERED, REFUSED, FAILED = "answered", "refused", "failed"


class WebTool(Tool):
    """A web tool. A subclass defines `name`, `settings_type`, `live`, and `__call__` with one argument of its own.

    In a recipe: `mas.tools.NAME`, with the settings of `settings_type`. Raises ValueError for unknown or wrong ones.
    """

    settings_type: ClassVar[type[Settings]] = Settings

    def __init__(self, **settings: Any) -> None:
        self.settings = self.read(settings)
        self._counts: Counter[str] = Counter({ANSWERED: 0, REFUSED: 0, FAILED: 0})

    @abstractmethod
    async def live(self, argument: Any) -> Any:
        """The web's answer. Raises ToolRefused, ToolError."""

    async def answer(self, **arguments: Any) -> Any:
        """The answer to a call with one argument, as JSON of at most `max_chars`.

        Raises:
            ToolRefused: the tool is off, its documentation forbids the argument, or the page or recording is missing.
            ToolError: the web or the simulator failed.
        """
        try:
            result = await self._ask(arguments)
        except ToolRefused:
            self._counts[REFUSED] += 1
            raise
        except ToolError:
            self._counts[FAILED] += 1
            raise
        self._counts[ANSWERED] += 1
        return plain(result, self.settings.max_chars)

    def counts(self) -> dict[str, int]:
        """Calls answered, refused and failed, and the counts of the back end."""
        counters = getattr(self.settings.backend, "counters", None) if self.settings.mode == SIMULATED else None
        return dict(self._counts) | (counters.as_dict() if counters else {})

    async def close(self) -> None:
        """Close the back end."""
        if hasattr(self.settings.backend, "close"):
            await self.settings.backend.close()

    async def _ask(self, arguments: dict[str, Any]) -> Any:
        if self.settings.mode == OFF:
            raise ToolRefused(f"{self.name} is off. To turn it on: mas.tools.{self.name}.mode=simulated, or live")
        problems = documented().problems(self.name, arguments)
        if problems:
            raise ToolRefused("; ".join(problems))
        if self.settings.mode == LIVE:
            (argument,) = arguments.values()
            return await self.live(argument)
        try:
            return await self.settings.backend(documented()[self.name], arguments)
        except CallError as error:
            raise ToolRefused(f"{self.name}: {error}") from error

    @classmethod
    def read(cls, settings: dict[str, Any]) -> Any:
        """The typed settings. Raises ValueError, which names the tool."""
        return options_from(cls.settings_type, settings, f"settings of {cls.name}")

    @classmethod
    def preflight(cls, **settings: Any) -> None:
        """Check the settings, and the back end of mode=simulated. Raises ValueError, ToolError."""
        read = cls.read(settings)
        if read.mode == SIMULATED:
            of_backend(read.backend, "preflight")

    @classmethod
    def identity(cls, **settings: Any) -> dict[str, Any]:
        """What the answers depend on, except for the state of the web, which is unknown."""
        read = cls.read(settings)
        if read.mode != SIMULATED:
            return {"mode": OFF} if read.mode == OFF else asdict(read) | {"backend": None}
        simulated = {"version": documented()[cls.name].version, "backend": of_backend(read.backend, "identity")}
        return {"mode": SIMULATED, "max_chars": read.max_chars, **simulated}


class AccessWebsite(WebTool):
    """Reads a page."""

    name, settings_type = "access_website", FetchSettings

    async def __call__(self, url: str) -> Any:  # type: ignore[override]
        """The text of a page, see `answer`."""
        return await self.answer(url=url)

    async def live(self, argument: Any) -> str:
        """The text of a page."""
        page = await fetch(argument, self.settings)
        text = await asyncio.to_thread(text_of, page.body, page.kind, page.charset)
        return f"{text}\n[cut: the page is longer]" if page.cut else text


class SearchArxiv(WebTool):
    """Searches arXiv."""

    name, settings_type = "search_arxiv", ArxivSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._free = 0.0

    async def __call__(self, query: str) -> Any:  # type: ignore[override]
        """Papers, {title, text} each, see `answer`."""
        return await self.answer(query=query)

    async def live(self, argument: Any) -> list[dict[str, str]]:
        """Papers."""
        asked = arxiv.parameters(argument, self.settings.max_results)
        if not asked:
            raise ToolRefused(f"{self.name}: there is no word in {argument!r:.200}")
        now = time.monotonic()
        turn = max(now, self._free)
        self._free = turn + self.settings.interval_s
        with not_counted():
            await asyncio.sleep(turn - now)
        page = await fetch(self.settings.url, self.settings, asked)
        if page.cut:
            raise ToolError(f"{self.name}: the answer is longer than max_mb={self.settings.max_mb:g}")
        return await asyncio.to_thread(arxiv.papers, page.body)

    @classmethod
    def preflight(cls, **settings: Any) -> None:
        """As for all web tools; also checks the address."""
        super().preflight(**settings)
        read = cls.read(settings)
        checked(read.url, read.allow_private)


class WebSearch(WebTool):
    """Searches the web."""

    name, settings_type = "web_search", SearchSettings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._search: SearchTool | None = search_tool(**self.settings.search) if self.settings.mode == LIVE else None

    async def __call__(self, queries: list[str]) -> Any:  # type: ignore[override]
        """Passages, {title, text} each, see `answer`."""
        return await self.answer(queries=queries)

    async def live(self, argument: Any) -> list[dict[str, str]]:
        """Passages of the retrieval server."""
        return await self._search(queries=argument)

    async def close(self) -> None:
        """Close the back end and the connections."""
        if self._search is not None:
            await self._search.close()
        await super().close()

    @classmethod
    def preflight(cls, **settings: Any) -> None:
        """As for all web tools; also asks the retrieval server."""
        super().preflight(**settings)
        read = cls.read(settings)
        if read.mode == LIVE:
            search_tool.preflight(**read.search)

    @classmethod
    def identity(cls, **settings: Any) -> dict[str, Any]:
        """As for all web tools; the address of the retrieval server does not count."""
        read = cls.read(settings)
        if read.mode != LIVE:
            return super().identity(**settings)
        return {"mode": LIVE, "max_chars": read.max_chars, **search_tool.identity(**read.search)}


@cache
def documented() -> Catalogue:
    """The tools as TOOLS documents them."""
    return load_catalogue([{"kind": "json", "path": str(TOOLS)}])


# As configurations name them.
access_website, search_arxiv, web_search = AccessWebsite, SearchArxiv, WebSearch
