"""Settings of the web tools."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.settings import STRICT, AtLeastOne, NotNegative
from verl_ext.tools.web import arxiv

OFF: Final = "off"
SIMULATED: Final = "simulated"
LIVE: Final = "live"


@dataclass(frozen=True, config=STRICT)
class Settings:
    """Settings that all web tools share.

    mode: off, simulated or live. Settings of the other modes may stay in the configuration.
    backend: the simulator of mode=simulated: {_target_: verl_ext.tools.simulator.simulator, …}.
    max_chars: characters of an answer; a longer one is cut there.
    """

    mode: Literal["off", "simulated", "live"] = OFF
    backend: Any = None
    max_chars: AtLeastOne = 20_000

    def __post_init__(self) -> None:
        if self.mode == SIMULATED and not self.backend:
            raise ValueError("mode=simulated needs a backend, e.g. {_target_: verl_ext.tools.simulator.simulator, …}")


@dataclass(frozen=True, config=STRICT)
class FetchSettings(Settings):
    """Settings of tools that fetch pages in mode=live.

    timeout_s: seconds for a page, redirects included.
    max_mb: megabytes of a page that are read, decompressed.
    max_redirects: redirects that are followed.
    allow_private: also ask addresses of this machine and of private networks, for an intranet.
    """

    timeout_s: Annotated[float, Field(ge=0.1)] = 20.0
    max_mb: Annotated[float, Field(ge=0.001)] = 2.0
    max_redirects: NotNegative = 5
    allow_private: bool = False

    @property
    def max_bytes(self) -> int:
        """`max_mb` in bytes."""
        return int(self.max_mb * 1e6)


@dataclass(frozen=True, config=STRICT)
class ArxivSettings(FetchSettings):
    """Settings of `search_arxiv`.

    url: address of the API. max_results: papers per query. interval_s: seconds between two requests of a process.
    """

    url: str = arxiv.URL
    max_results: AtLeastOne = 5
    interval_s: Annotated[float, Field(ge=0)] = arxiv.INTERVAL_S


@dataclass(frozen=True, config=STRICT)
class SearchSettings(Settings):
    """Settings of `web_search`; those of mode=live are settings of the search tool (docs/retrieval.md).

    url: a server with the interface of `python -m verl_ext.tools.retrieval_server`.
    top_k: passages per query. max_documents: passages per call. check: ask the server before a run starts.
    """

    url: str | None = None
    top_k: AtLeastOne = 5
    max_documents: AtLeastOne = 5
    check: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == LIVE and not self.url:
            raise ValueError(
                "mode=live needs the url of a retrieval server, because no search engine works without a key. Remedy: "
                "url=http://HOST:PORT of a server with the interface of verl_ext.tools.retrieval_server, or "
                "mode=simulated"
            )

    @property
    def search(self) -> dict[str, Any]:
        """Settings for the search tool."""
        return {"url": self.url, "top_k": self.top_k, "max_documents": self.max_documents, "check": self.check}
