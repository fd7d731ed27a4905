"""Fetching one web page within limits of address, redirects, time, length and media type."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from verl_ext.tools.base import ToolError, ToolRefused
from verl_ext.tools.http.client import RETRY_STATUS
from verl_ext.tools.web.addresses import Resolver, checked
from verl_ext.tools.web.settings import FetchSettings

REDIRECTS = frozenset({301, 302, 303, 307, 308})
HEADERS = {
    "User-Agent": "verl_ext",
    "Accept": "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.8, application/xml;q=0.8",
    "Accept-Encoding": "gzip",
}
READ = ("application/json", "application/xml", "application/xhtml+xml", "")
BLOCK = 1 << 16
GZIP, WINDOW = b"\x1f\x8b", zlib.MAX_WBITS | 32  # how a part begins; gzip or zlib


@dataclass(frozen=True)
class Page:
    """A fetched page. kind: media type, "" if unknown. charset: as the server states. cut: the body is incomplete."""

    kind: str
    charset: str | None
    body: bytes
    cut: bool


async def fetch(url: str, limits: FetchSettings, query: Mapping[str, str] | None = None) -> Page:
    """GET a page. No cookies, no proxies, no credentials.

    Raises:
        ToolRefused: the address is not allowed, or the answer is not a readable page.
        ToolError: the server cannot be reached, is too slow, or failed.
    """
    start = checked(url, limits.allow_private)
    try:
        return await asyncio.wait_for(_follow(start.update_query(query or {}), limits), limits.timeout_s)
    except asyncio.TimeoutError as error:  # noqa: UP041 (in Python 3.10 not yet the same as TimeoutError)
        raise ToolError(f"{start.host} has not answered within {limits.timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ToolError(f"{start.host} cannot be read: {type(error).__name__}: {error!s:.200}") from error


async def _follow(url: URL, limits: FetchSettings) -> Page:
    connector = aiohttp.TCPConnector(resolver=Resolver(limits.allow_private), use_dns_cache=False, force_close=True)
    timeout, cookies = aiohttp.ClientTimeout(total=None), aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=cookies, headers=HEADERS, auto_decompress=False
    ) as session:
        for _ in range(limits.max_redirects + 1):
            async with session.get(url, allow_redirects=False) as response:
                target = response.headers.get("Location") if response.status in REDIRECTS else None
                if target is None:
                    return await _read(response, limits.max_bytes)
                try:
                    url = url.join(URL(target))
                except ValueError as error:
                    raise ToolRefused(f"{url.host} redirects to {target!r:.200}, which is no address") from error
                url = checked(url, limits.allow_private)
    raise ToolRefused(f"{url.host}: more than {limits.max_redirects} redirects")


async def _read(response: Any, max_bytes: int) -> Page:
    host, status = response.url.host, response.status
    if status in RETRY_STATUS:
        raise ToolError(f"{host} answered with status {status}")
    if status != 200:
        raise ToolRefused(f"{host} answered with status {status}: there is no such page, or not for everyone")
    kind = response.content_type.lower() if "Content-Type" in response.headers else ""
    if not (kind in READ or kind.startswith("text/") or kind.endswith(("+json", "+xml"))):
        raise ToolRefused(f"{host} sent {kind:.100}, which is no text")
    body, cut = await read_body(response, max_bytes)
    return Page(kind, response.charset, body, cut)


async def read_body(response: Any, max_bytes: int) -> tuple[bytes, bool]:
    """(at most `max_bytes` of the decompressed body, whether it is longer) of a response of aiohttp.

    Its session must not decompress by itself (`auto_decompress=False`).

    Raises:
        ToolRefused: the compression is unknown or damaged.
    """
    host = response.url.host
    body, unpack = bytearray(), _unpacking(response.headers.get("Content-Encoding", ""), host)
    chunk = b""
    async for chunk in response.content.iter_chunked(BLOCK):
        body += chunk if unpack is None else _unpacked(unpack, chunk, max_bytes + 1 - len(body), host)
        while unpack is not None and unpack.unused_data.startswith(GZIP) and len(body) <= max_bytes:  # one more part
            rest, unpack = unpack.unused_data, zlib.decompressobj(WINDOW)
            body += _unpacked(unpack, rest, max_bytes + 1 - len(body), host)
        if len(body) > max_bytes:
            response.close()
            break
    cut = len(body) > max_bytes
    if unpack is not None and chunk and not cut and not unpack.eof:  # answers to HEAD name a compression of nothing
        raise ToolRefused(f"{host} sent a damaged page: its compression breaks off")
    return bytes(body[:max_bytes]), cut


def _unpacking(encoding: str, host: str | None) -> Any:
    """A decompressor of the body. aiohttp's own unpacks whole blocks, up to a thousand times what has arrived."""
    if encoding.strip().lower() in ("", "identity"):
        return None
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        raise ToolRefused(f"{host} sent a page compressed by {encoding!r:.50}, which was not asked for")
    return zlib.decompressobj(WINDOW)


def _unpacked(unpack: Any, chunk: bytes, most: int, host: str | None) -> bytes:
    """At most `most` (>= 1) decompressed bytes of a chunk. If it holds more, the page is cut there."""
    try:
        return unpack.decompress(chunk, most)
    except zlib.error as error:
        raise ToolRefused(f"{host} sent a damaged page: {error}") from error
