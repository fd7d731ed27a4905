"""Reading pages of a real server in this process: what is followed, what is refused, what has a bound."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import socket
import threading
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest
from aiohttp import ThreadedResolver
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.tools import ToolError, ToolRefused
from verl_ext.tools.web import access_website, search_arxiv
from verl_ext.tools.web.addresses import checked, is_public

FEED = b"""<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>T</title><summary>S</summary></entry></feed>"""
CHUNK = b"x" * 65536
BOMB = gzip.compress(b"b" * 100_000_000, 9)  # 97 kB: one block of what is read


class Site(BaseHTTPRequestHandler):
    """A site with good and bad pages; `asked` are the paths."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []
    headers_seen: list[dict] = []

    def do_GET(self):
        self.asked.append(self.path)
        self.headers_seen.append(dict(self.headers))
        try:
            getattr(self, "page_" + self.path.strip("/").split("?")[0].split("/")[0])()
        except OSError:
            pass
        self.close_connection = True

    def send(self, body=b"", status=200, kind="text/html", length=True, **headers):
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def page_good(self):
        self.send(b"<title>T</title><p>caf\xc3\xa9")

    def page_gzip(self):
        self.send(gzip.compress(b"<p>packed"), Content_Encoding="gzip")

    def page_bomb(self):
        self.send(BOMB, Content_Encoding="gzip")

    def page_broken(self):
        self.send(b"no gzip at all", Content_Encoding="gzip")

    def page_halfgzip(self):
        self.send(gzip.compress(b"<p>packed" * 1000)[:-20], Content_Encoding="gzip")

    def page_brotli(self):
        self.send(b"x", Content_Encoding="br")

    def page_short(self):
        self.send(length=False, Content_Length="1000")

    def page_image(self):
        self.send(b"\x89PNG", kind="image/png")

    def page_liar(self):
        self.send(b"\x89PNG\0\0\0")

    def page_untyped(self):
        self.send(b"plain words", kind="")

    def page_status(self):
        self.send(b"no", status=int(self.path.split("/")[2]))

    def page_endless(self):
        self.send(length=False)
        while True:
            self.wfile.write(CHUNK)

    def page_endlessheader(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nA: ")
        while True:
            self.wfile.write(CHUNK)

    def page_slow(self):
        self.send(length=False)
        for _ in range(100):
            self.wfile.write(b"x")
            self.wfile.flush()
            time.sleep(0.1)

    def page_silent(self):
        time.sleep(10)

    def page_to(self):
        self.send(status=302, Location=unquote(self.path[4:]))

    def page_loop(self):
        self.send(status=302, Location="/loop")

    def page_hops(self):
        left = int(self.path.split("/")[2])
        self.send(status=302, Location=f"/hops/{left - 1}" if left else "/good")

    def page_cookie(self):
        self.send(status=302, Location="/good", Set_Cookie="a=b")

    def page_nowhere(self):
        self.send(b"moved", status=302)

    def page_api(self):
        self.send(FEED, kind="application/atom+xml")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    """host:port of the site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(autouse=True)
def forget():
    Site.asked.clear()
    Site.headers_seen.clear()


def visit(url, **settings):
    tool = access_website(**{"mode": "live", "allow_private": True, "timeout_s": 5, **settings})
    return asyncio.run(tool(url=url))


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
        ("liar", ToolRefused, "no text, whatever"),
        ("broken", ToolRefused, "damaged page: Error -3"),
        ("halfgzip", ToolRefused, "damaged page: its compression breaks off"),
        ("brotli", ToolRefused, "compressed by 'br'"),
        ("status/404", ToolRefused, "answered with status 404"),
        ("status/403", ToolRefused, "answered with status 403"),
        ("status/503", ToolError, "answered with status 503"),
        ("nowhere", ToolRefused, "answered with status 302"),
        ("short", ToolError, "cannot be read: ClientPayloadError"),
        ("endlessheader", ToolError, "cannot be read"),
        ("slow", ToolError, "has not answered within 0.5 s"),
        ("silent", ToolError, "has not answered within 0.5 s"),
        ("to/file:///etc/passwd", ToolRefused, "no address of a website"),
        ("to/gopher://x/", ToolRefused, "no address of a website"),
        ("to/http://[x/", ToolRefused, "no address"),
        ("to/http://u:p@example.org/", ToolRefused, "holds a user name"),
        ("to/http://2130706433/", ToolRefused, "malformed number"),
    ],
)
def test_bad_pages(site, page, kind, words):
    start = time.monotonic()
    with pytest.raises(ToolError, match=words) as error:
        visit(f"http://{site}/{page}", timeout_s=0.5 if page in ("slow", "silent") else 5)
    assert type(error.value) is kind and time.monotonic() - start < 4


def test_endless_and_gigantic_pages_end_at_their_bound(site):
    for page in ("endless", "bomb"):
        text = visit(f"http://{site}/{page}", max_mb=1, max_chars=2_000_000)
        assert text.endswith("\n[cut: the page is longer]") and 999_000 < len(text) < 1_000_100


def test_a_bomb_is_never_unpacked_as_a_whole(site):
    visit(f"http://{site}/good")
    tracemalloc.start()
    try:
        visit(f"http://{site}/bomb", max_mb=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(BOMB) < 200_000 and peak < 30_000_000


def test_a_long_text_is_cut_to_max_chars(site):
    assert visit(f"http://{site}/endless", max_chars=100).endswith("… [cut: longer than 100 characters]")


PRIVATE = [
    "127.0.0.1", "[::1]", "169.254.169.254", "10.0.0.1", "10.255.255.255", "172.16.0.1", "192.168.1.1", "100.64.0.1",
    "0.0.0.0", "255.255.255.255", "224.0.0.1", "[fe80::1]", "[fe80::1%25eth0]", "[fc00::1]", "[fec0::1]", "[ff02::1]",
    "[::]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "[::127.0.0.1]",
    "127.0.0.1.", "１２７.０.０.１", "localhost", "LOCALHOST",
]  # fmt: skip
NUMBERS = ["2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "012.0.0.1", "0x7f.0.0.0x1", "127.0.0.1.0"]


@pytest.mark.parametrize("host", [*PRIVATE, *NUMBERS])
def test_private_addresses_are_refused_however_they_are_written(site, host):
    port = site.rpartition(":")[2]
    with pytest.raises(ToolRefused, match="public internet|malformed number"):
        visit(f"http://{host}:{port}/good", allow_private=False)
    with pytest.raises(ToolRefused, match="public internet|malformed number"):
        visit(f"https://{host}/", allow_private=False)
    assert Site.asked == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/", "//example.org/", "example.org", "http://",
                                 "http:///x", "http://[", "http://a:99999/", "javascript:1", "data:text/html,x", "",
                                 "http://example.org/" + "x" * 3000, "http://user@example.org/"])  # fmt: skip
def test_other_addresses_are_refused(url):
    with pytest.raises(ToolRefused, match="no address of a website|user name|^url: "):
        visit(url)


@given(st.text(max_size=40) | st.text(max_size=30).map(lambda text: f"http://{text}"))
def test_any_text_is_an_address_or_refused(text):
    try:
        assert checked(text, True).scheme in ("http", "https")
    except ToolRefused:
        pass


class Names:
    """What names stand for: the resolver below the check, in the place of DNS."""

    def __init__(self, monkeypatch, **names):
        self.names, self.asked = {name.replace("_", "."): found for name, found in names.items()}, []

        async def resolve(_, host, port=0, family=socket.AF_INET):
            self.asked.append(host)
            found = self.names[host]
            found = found.pop(0) if isinstance(found, list) and isinstance(found[0], list) else found
            entry = {"port": port, "family": socket.AF_INET, "proto": 0, "flags": 0, "hostname": host}
            return [{**entry, "host": one} for one in found]

        monkeypatch.setattr(ThreadedResolver, "resolve", resolve)


@pytest.mark.parametrize("found", [["10.0.0.1"], ["93.184.215.14", "127.0.0.1"], ["169.254.169.254"]])
def test_names_that_stand_for_private_addresses_are_refused(monkeypatch, found):
    names = Names(monkeypatch, evil_example=found)
    with pytest.raises(ToolRefused, match="'evil.example' is not on the public internet"):
        visit("http://evil.example/", allow_private=False)
    assert names.asked == ["evil.example"]


def test_the_connection_goes_to_the_address_that_was_checked(site, monkeypatch):
    """A name that stands for another address at the second look: there is no second look."""
    port = site.rpartition(":")[2]
    monkeypatch.setattr("verl_ext.tools.web.addresses.is_public", lambda address: str(address) == "127.0.0.1")
    names = Names(monkeypatch, rebound_example=[["127.0.0.1"], ["127.0.0.2"]])
    assert visit(f"http://rebound.example:{port}/good", allow_private=False) == "T\ncafé"
    assert names.asked == ["rebound.example"]


@pytest.mark.parametrize("target", ["http://127.0.0.1:{port}/good", "http://169.254.169.254/", "http://inner.example/",
                                    "//10.0.0.1/", "http://[::1]:{port}/good"])  # fmt: skip
def test_redirects_to_private_addresses_are_refused(site, monkeypatch, target):
    """The first address passes as public, the redirect's are judged as they are."""
    port = site.rpartition(":")[2]
    first = ipaddress.ip_address("127.0.0.1")
    judged = iter([True])
    monkeypatch.setattr(
        "verl_ext.tools.web.addresses.is_public",
        lambda address: address == first and next(judged, False) or (address != first and is_public(address)),
    )
    Names(monkeypatch, outer_example=["127.0.0.1"], inner_example=["10.1.2.3"])
    with pytest.raises(ToolRefused, match="not on the public internet"):
        visit(f"http://outer.example:{port}/to/{target.format(port=port)}", allow_private=False)
    assert len(Site.asked) == 1


def test_what_is_public():
    public = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "2002:808:808::", "64:ff9b::808:808"]
    assert all(is_public(ipaddress.ip_address(one)) for one in public)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_every_form(address):
    forms = [
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        str(ipaddress.IPv6Address((0x2002 << 112) | int(address) << 80)),
    ]
    assert {is_public(ipaddress.ip_address(form)) for form in forms} == {is_public(address)}


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


def test_arxiv_is_asked_as_it_wants_to_be(site):
    tool = search_arxiv(mode="live", url=f"http://{site}/api/query", allow_private=True, interval_s=0.3, max_results=3)

    async def several():
        start = time.monotonic()
        found = await asyncio.gather(*[tool(query="multi agent") for _ in range(3)])
        return found, time.monotonic() - start

    found, seconds = asyncio.run(several())
    assert found == [[{"title": "T", "text": ". . S ()"}]] * 3 and seconds > 0.6
    assert Site.asked == ["/api/query?search_query=all:multi+AND+all:agent&max_results=3&sortBy=relevance"] * 3
    assert tool.counts() == {"answered": 3, "refused": 0, "failed": 0}
    with pytest.raises(ToolRefused, match="no word"):
        asyncio.run(tool(query="..."))
    with pytest.raises(ToolRefused, match="private addresses are not asked"):
        search_arxiv.preflight(mode="live", url=f"http://{site}/")
