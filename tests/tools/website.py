"""A web site with good and bad pages, real and in this process."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from verl_ext.tools.web import access_website

FEED = b"""<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>T</title><summary>S</summary></entry></feed>"""
CHUNK = b"x" * 65536
BOMB = gzip.compress(b"b" * 50_000_000, 9)  # 49 kB: less than one block that is read

GZIP = {"Content_Encoding": "gzip"}
# Pages that are always the same: arguments of `Site.send`.
PAGES = {
    "good": {"body": b"<title>T</title><p>caf\xc3\xa9"},
    "gzip": {"body": gzip.compress(b"<p>packed"), **GZIP},
    "bomb": {"body": BOMB, **GZIP},
    "broken": {"body": b"no gzip at all", **GZIP},
    "halfgzip": {"body": gzip.compress(b"<p>packed" * 1000)[:-20], **GZIP},
    "brotli": {"body": b"x", "Content_Encoding": "br"},
    "short": {"length": False, "Content_Length": "1000"},
    "image": {"body": b"\x89PNG", "kind": "image/png"},
    "liar": {"body": b"\x89PNG\0\0\0"},
    "untyped": {"body": b"plain words", "kind": ""},
    "loop": {"status": 302, "Location": "/loop"},
    "cookie": {"status": 302, "Location": "/good", "Set_Cookie": "a=b"},
    "nowhere": {"body": b"moved", "status": 302},
    "api": {"body": FEED, "kind": "application/atom+xml"},
}


class Site(BaseHTTPRequestHandler):
    """A site with good and bad pages; `asked` are the paths."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []
    headers_seen: list[dict] = []

    def do_GET(self):
        self.asked.append(self.path)
        self.headers_seen.append(dict(self.headers))
        try:
            page = self.path.strip("/").split("?")[0].split("/")[0]
            self.send(**PAGES[page]) if page in PAGES else getattr(self, f"page_{page}")()
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

    def page_hops(self):
        left = int(self.path.split("/")[2])
        self.send(status=302, Location=f"/hops/{left - 1}" if left else "/good")

    def log_message(self, *_):
        pass


@cache
def serve() -> str:
    """host:port of the site, which starts at the first call."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


def visit(url, **settings):
    tool = access_website(**{"mode": "live", "allow_private": True, "timeout_s": 60, **settings})
    return asyncio.run(tool(url=url))
