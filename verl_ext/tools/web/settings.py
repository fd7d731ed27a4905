"""Settings of the web's tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_ext.tools.web import arxiv
from verl_ext.tools.web.fetch import Limits

OFF, SIMULATED, LIVE = MODES = ("off", "simulated", "live")
# setting -> least value
NUMBERS = {"timeout_s": 0.1, "max_mb": 0.001, "interval_s": 0}
COUNTS = {"max_chars": 1, "max_redirects": 0, "max_results": 1, "top_k": 1, "max_documents": 1}
FLAGS = {"allow_private", "check"}


@dataclass(frozen=True)
class Settings:
    """What all three have.

    mode: off, simulated or live. In each, the settings of the others may stay.
    backend: what plays the tool under `simulated`: {_target_: verl_ext.tools.simulator.simulator, …}.
    max_chars: longest answer; of a longer one the beginning.
    """

    mode: str = OFF
    backend: Any = None
    max_chars: int = 20_000

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"the mode is {self.mode!r}; allowed: {', '.join(MODES)}")
        if self.mode == SIMULATED and not self.backend:
            raise ValueError("mode=simulated needs a backend, e.g. {_target_: verl_ext.tools.simulator.simulator, …}")
        for least, kinds in ((NUMBERS, int | float), (COUNTS, int)):
            for name in least.keys() & vars(self).keys():
                value = getattr(self, name)
                if not isinstance(value, kinds) or isinstance(value, bool) or not value >= least[name]:
                    kind = "an integer" if kinds is int else "a number"
                    raise ValueError(f"{name} must be {kind} >= {least[name]}, given {value!r}")
        for name in FLAGS & vars(self).keys():
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, given {getattr(self, name)!r}")


@dataclass(frozen=True)
class FetchSettings(Settings):
    """Of tools that ask the web live.

    timeout_s: seconds for a page, redirects included. max_mb: megabytes of it that are read, decompressed.
    max_redirects: followed. allow_private: ask addresses of this machine and of private networks, too: for an intranet.
    """

    timeout_s: float = 20.0
    max_mb: float = 2.0
    max_redirects: int = 5
    allow_private: bool = False

    @property
    def limits(self) -> Limits:
        """Of one page."""
        return Limits(self.timeout_s, int(self.max_mb * 1e6), self.max_redirects, self.allow_private)


@dataclass(frozen=True)
class ArxivSettings(FetchSettings):
    """Of `search_arxiv`.

    url: of the API. max_results: papers. interval_s: seconds between two requests of a process.
    """

    url: str = arxiv.URL
    max_results: int = 5
    interval_s: float = arxiv.INTERVAL_S


@dataclass(frozen=True)
class SearchSettings(Settings):
    """Of `web_search`, as the search tool has them (docs/retrieval.md).

    url: of what is searched live, a server that answers as `python -m verl_ext.tools.retrieval_server` does.
    top_k: passages per query. max_documents: per call. check: ask the server before a start whether it answers.
    """

    url: str | None = None
    top_k: int = 5
    max_documents: int = 5
    check: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == LIVE and not self.url:
            raise ValueError(
                "mode=live needs the url of a retrieval server: there is no web search without a key. Remedy: "
                "url=http://HOST:PORT of a server that answers like verl_ext.tools.retrieval_server, or mode=simulated"
            )

    @property
    def search(self) -> dict[str, Any]:
        """Those of the search tool."""
        return {"url": self.url, "top_k": self.top_k, "max_documents": self.max_documents, "check": self.check}
