"""Settings of tools that are called over HTTP, and which server and key a call gets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_ext.tools.base import ToolRefused
from verl_ext.tools.catalogue.formats.openapi_requests import BEARER, Key, Request
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec
from verl_ext.tools.settings import STRICT, AtLeastOne, options_from
from verl_ext.tools.simulator.cache import MAX_MB, MAX_ROWS
from verl_ext.tools.web.addresses import checked

READING = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, config=STRICT)
class RestSettings:
    """Settings of `rest`; null means the default.

    mode: live asks the server. record asks it once for each call and keeps the answer. replay answers only from the
        record; needs no server and no key.
    cache: file of the record (SQLite), for record and replay.
    server: base URL, in place of the document's.
    hosts: HOST or HOST:PORT that may be asked; null: those of the document's servers, or of `server`.
    methods: HTTP methods that are sent, by default those that only read. Calls of others are answered with an error.
    key_env: name of the environment variable with the key. The key itself never stands in settings, records or errors.
    key_in: bearer, header or query; key_name: of the header or the parameter. null: as the document says.
    key_statuses: HTTP statuses that mean that the key is wrong. The trajectory is then failed, not scored.
    per_second: requests per second of this process, evenly spaced; null: no limit.
    concurrency: requests at a time.
    attempts: tries per call; what changes something is tried again only after 429 or 503.
    timeout_s: seconds for a call, all attempts together. max_mb: megabytes of an answer, decompressed.
    allow_private: also ask addresses of this machine and of private networks.
    max_rows, max_cache_mb: bounds of the record.
    """

    mode: Literal["live", "record", "replay"] = "live"
    cache: str | None = None
    server: str | None = None
    hosts: list[str] | None = None
    methods: list[str] = field(default_factory=lambda: list(READING))
    key_env: str | None = None
    key_in: Literal["bearer", "header", "query"] | None = None
    key_name: str | None = None
    key_statuses: list[int] = field(default_factory=lambda: [401, 403])
    per_second: Annotated[float, Field(gt=0)] | None = None
    concurrency: AtLeastOne = 8
    attempts: AtLeastOne = 3
    # Below the toolbox's limit for a call (30 s), whose message would hide the reason.
    timeout_s: Annotated[float, Field(gt=0)] = 25.0
    max_mb: Annotated[float, Field(ge=0.001)] = 2.0
    allow_private: bool = False
    max_rows: AtLeastOne = MAX_ROWS
    max_cache_mb: AtLeastOne = MAX_MB

    def __post_init__(self) -> None:
        if self.mode != "live" and self.cache is None:
            raise ValueError(f"mode={self.mode} needs a cache. Remedy: cache=PATH of a file, or mode=live")
        if self.key_in in ("header", "query") and not self.key_name:
            raise ValueError(f"key_in={self.key_in} needs key_name, e.g. key_name=X-API-Key")
        if (self.key_in or self.key_name) and not self.key_env:
            raise ValueError("key_in and key_name need key_env, the name of the variable that holds the key")
        if self.server is not None:
            _host(self.server, "server")

    @property
    def max_bytes(self) -> int:
        """`max_mb` in bytes."""
        return int(self.max_mb * 1e6)

    @property
    def key(self) -> str | None:
        """The secret, from the environment."""
        return os.environ.get(self.key_env) or None if self.key_env else None

    def base(self, spec: ToolSpec, request: Request) -> str:
        """The base URL of an operation: `server`, or the document's first server that is allowed.

        Raises:
            ValueError: there is none; says what is allowed.
        """
        servers = [self.server] if self.server else [url for url in request.servers if "://" in url]
        for url in servers:
            if self.hosts is None or {_host(url, "server"), urlsplit(url).hostname} & set(self.hosts):
                return _reachable(url, self.allow_private, spec.name).rstrip("/")
        given = f"its servers are {list(request.servers)}, server={self.server}"
        allowed = "any host of the document" if self.hosts is None else f"hosts={list(self.hosts)}"
        raise ValueError(
            f"{spec.name} has no server that may be asked: {given}; allowed is {allowed}. Remedy: name its host in "
            "hosts, or give server=https://HOST/PATH"
        )

    def place_of_key(self, request: Request) -> Key | None:
        """Where the key of a request goes; None: it gets none."""
        if self.key_env is None or request.open:
            return None
        return Key(self.key_in, self.key_name or "") if self.key_in else request.key


def read_settings(settings: Mapping[str, Any]) -> RestSettings:
    """The typed settings. Raises ValueError for unknown or inconsistent ones."""
    lists = {  # Hydra gives lists of its own kind
        name: list(value)
        for name, value in settings.items()
        if isinstance(value, Sequence) and not isinstance(value, str)
    }
    return options_from(RestSettings, {**settings, **lists}, "settings of rest")


def check_tools(given: RestSettings, catalogue: Catalogue) -> None:
    """Check before a start that each operation has a server that may be asked and a place for its key.

    Raises:
        ValueError: one has not; a tool is no operation of an OpenAPI document; or the key's variable is not set.
    """
    if given.mode == "replay":
        return
    if given.key_env and given.key is None:
        raise ValueError(
            f"key_env: the environment variable {given.key_env} is not set. Remedy: export it, or no key_env"
        )
    for spec in catalogue.values():
        if spec.backend is None:
            request = request_of(spec)
            given.base(spec, request)
            if given.key_env and not request.open and given.place_of_key(request) is None:
                raise ValueError(
                    f"{spec.name}: the document does not say where the key goes. Remedy: key_in={BEARER}, or "
                    "key_in=header|query and key_name"
                )


def request_of(spec: ToolSpec) -> Request:
    """The request of a tool. Raises ValueError: it is no operation of an OpenAPI document."""
    if spec.request is None:
        raise ValueError(
            f"{spec.name} (of {spec.source or 'no source'}) is no operation of an OpenAPI document, so it cannot be "
            "called over HTTP. Remedy: sources of kind openapi, or another back end for tool_call"
        )
    return spec.request


def check_cache(given: RestSettings) -> None:
    """Check before a start that the record can be read or made. Raises ValueError: it cannot."""
    if given.mode == "live" or given.cache is None:
        return
    path = Path(given.cache)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if given.mode == "replay" and not path.exists():
        raise ValueError(f"there is no record {path} to replay. Remedy: mode=record first")
    if not path.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"the record {path} cannot be made: {folder} cannot be written. Remedy: another path")


def _reachable(url: str, allow_private: bool, name: str) -> str:
    try:
        checked(url, allow_private)
    except ToolRefused as error:
        raise ValueError(f"{name}: {error}. Remedy: another server, or allow_private=true") from error
    return url


def _host(url: str, what: str) -> str:
    """HOST:PORT, or HOST without a port. Raises ValueError."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0:
            return parts.netloc.rpartition("@")[2]
    except ValueError:
        pass
    raise ValueError(f"{what}={url!r} must be a base URL, e.g. https://api.themoviedb.org/3")
