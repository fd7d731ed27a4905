"""Reading pages of a real server in this process: what is followed, what is refused, what has a bound."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from types import SimpleNamespace

import pytest
from aiohttp import ThreadedResolver

from tests.tools.website import BOMB, Site, visit
from verl_ext.tools import ToolError, ToolRefused
from verl_ext.tools.time_limits import within
from verl_ext.tools.web import search_arxiv, tools


def test_a_page_is_read_as_text(site, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert visit(f"http://{site}/good#part") == "T\ncafé"
    (headers,) = Site.headers_seen
    assert headers["User-Agent"] == "verl_ext" and "Cookie" not in headers and Site.asked == ["/good"]
    assert visit(f"http://{site}/gzip") == "packed" and visit(f"http://{site}/untyped") == "plain words"


def test_redirects_are_followed_up_to_a_number_and_without_cookies(site):
    assert visit(f"http://{site}/hops/4", max_redirects=5) == visit(f"http://{site}/cookie") == "T\ncafé"
    assert all("Cookie" not in headers for headers in Site.headers_seen)
    for page in ("hops/5", "loop"):
        with pytest.raises(ToolRefused, match="more than 5 redirects"):
            visit(f"http://{site}/{page}")
    assert Site.asked.count("/loop") == 6


@pytest.mark.parametrize(
    ("page", "kind", "words"),
    [
        ("image", ToolRefused, "sent image/png, which is no text"),
        ("liar", ToolRefused, "not text, although"),
        ("broken", ToolRefused, "damaged page: Error -3"),
        ("halfgzip", ToolRefused, "damaged page: its compression breaks off"),
        ("brotli", ToolRefused, "compressed by 'br'"),
        ("status/404", ToolRefused, "answered with status 404"),
        ("status/503", ToolError, "answered with status 503"),
        ("nowhere", ToolRefused, "answered with status 302"),
        ("short", ToolError, "cannot be read: ClientPayloadError"),
        ("endlessheader", ToolError, "cannot be read"),
        ("slow", ToolError, "has not answered within 0.3 s"),
        ("silent", ToolError, "has not answered within 0.3 s"),
        ("to/file:///etc/passwd", ToolRefused, "no address of a website"),
        ("to/http://[x/", ToolRefused, "no address"),
        ("to/http://2130706433/", ToolRefused, "malformed number"),
    ],
)
def test_bad_pages(site, page, kind, words):
    with pytest.raises(ToolError, match=words) as error:
        visit(f"http://{site}/{page}", timeout_s=0.3 if page in ("slow", "silent") else 60)
    assert type(error.value) is kind


@pytest.mark.parametrize("page", ["endless", "bomb"])
def test_endless_and_gigantic_pages_end_at_their_bound(site, page):
    """And a bomb is never unpacked as a whole."""
    visit(f"http://{site}/good")
    tracemalloc.start()
    try:
        text = visit(f"http://{site}/{page}", max_mb=1, max_chars=2_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert text.endswith("\n[cut: the page is longer]") and 999_000 < len(text) < 1_000_100
    assert len(BOMB) < 200_000 and peak < 30_000_000


def test_a_host_that_there_is_not_is_refused_for_good(monkeypatch):
    async def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(ThreadedResolver, "resolve", unknown)
    with pytest.raises(ToolRefused, match="there is no host 'nowhere.example'"):
        visit("http://nowhere.example/")


def test_nobody_there_is_the_tools_failure():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ToolError, match="cannot be read: ClientConnectorError") as error:
            visit(f"http://127.0.0.1:{free.getsockname()[1]}/")
    assert not isinstance(error.value, ToolRefused)


def test_the_wait_for_a_turn_at_arxiv_is_not_counted(site):
    tool = search_arxiv(mode="live", url=f"http://{site}/api/query", allow_private=True, interval_s=0.6)

    async def several():  # the last one begins after 3 s
        return await asyncio.gather(*[within(tool(query="multi agent"), 2.0) for _ in range(6)])

    assert asyncio.run(several()) == [[{"title": "T", "text": ". . S ()"}]] * 6


def test_arxiv_is_asked_as_it_wants_to_be(site, monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(tools, "asyncio", SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread))
    tool = search_arxiv(mode="live", url=f"http://{site}/api/query", allow_private=True, interval_s=1000, max_results=3)

    async def several():
        return await asyncio.gather(*[tool(query="multi agent") for _ in range(3)])

    assert asyncio.run(several()) == [[{"title": "T", "text": ". . S ()"}]] * 3
    assert [round(wait, -2) for wait in sorted(waits)] == [0, 1000, 2000]
    assert Site.asked == ["/api/query?search_query=all:multi+AND+all:agent&max_results=3&sortBy=relevance"] * 3
    assert tool.counts() == {"answered": 3, "refused": 0, "failed": 0}
    with pytest.raises(ToolRefused, match="no word"):
        asyncio.run(tool(query="..."))
    with pytest.raises(ToolRefused, match="private addresses are not asked"):
        search_arxiv.preflight(mode="live", url=f"http://{site}/")
