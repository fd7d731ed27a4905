"""Requests that no client of the servers would send, byte by byte: what they get, and in which form."""

from __future__ import annotations

import json
import re
import socket
import time

import pytest

from tests.tools.requesting import running
from tests.tools.simulating import MOVIE
from verl_ext.gateway import server as gateway_server
from verl_ext.gateway.settings import GatewaySection
from verl_ext.tools import retrieval_server, simulator_server
from verl_ext.tools.base import ToolRefused
from verl_ext.tools.catalogue import Catalogue
from verl_ext.tools.http import guard
from verl_ext.tools.http.client import TOKEN
from verl_ext.tools.http.server import listen
from verl_ext.tools.retrieval import HttpRetriever
from verl_ext.tools.simulator import ResultCache, Simulator


class Broken:
    """A retriever with a bug."""

    backend = "broken"

    def __len__(self):
        return 1

    def search(self, queries, k):
        if queries == ["bug"]:
            raise RuntimeError("a bug")
        return [[] for _ in queries]


def retrieval(_, **options):
    return retrieval_server.create_app(Broken(), **options), "/search", retrieval_server.MAX_BODY_BYTES


def simulator(folder, **options):
    player = Simulator(mode="replay", cache=ResultCache(folder / "c.db"))
    app = simulator_server.create_app(player, Catalogue([MOVIE]), **options)
    return app, "/call", simulator_server.MAX_BODY_BYTES


SERVERS = pytest.mark.parametrize("server", [retrieval, simulator])


def sent(url, data):
    """What a server answers to these bytes, until it closes the connection: (status, body)."""
    host, port = re.fullmatch(r"http://(.*):(\d+)", url).groups()
    with socket.create_connection((host, int(port)), 30) as connection:
        for part in data if isinstance(data, list) else [data]:
            connection.sendall(part)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    if not answer:
        return None, None
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def request(path, *headers, body=b"{}", method="POST", host="localhost", kind="application/json", version="1.1"):
    """The bytes of a request after which the connection ends. Headers and body are as given."""
    lines = [f"{method} {path} HTTP/{version}", "Connection: close", *headers]
    lines += [f"Host: {host}"] if host is not None else []
    lines += [f"Content-Type: {kind}"] if kind is not None else []
    lines += [] if any(line.startswith(("Content-Length", "Transfer")) for line in headers) else [
        f"Content-Length: {len(body)}"
    ]  # fmt: skip
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


# Request, without its path -> status and kind.
REFUSED = {
    "a web page's text": ({"kind": "text/plain"}, 415, "not_json"),
    "a web page's form": ({"kind": "application/x-www-form-urlencoded"}, 415, "not_json"),
    "a web page's upload": ({"kind": "multipart/form-data; boundary=x"}, 415, "not_json"),
    "a type that resembles JSON": ({"kind": "text/plain; application/json"}, 415, "not_json"),
    "no type": ({"kind": None}, 415, "not_json"),
    "a rebound name": ({"host": "evil.example"}, 421, "other_host"),
    "a rebound name with a port": ({"host": "evil.example:80"}, 421, "other_host"),
    "a name below localhost": ({"host": "localhost.evil.example"}, 421, "other_host"),
    "a name before localhost": ({"host": "evil.example@localhost.x"}, 421, "other_host"),
    "a malformed host": ({"host": "[::1"}, 421, "other_host"),
    "an empty host": ({"host": ""}, 421, "other_host"),
    "no host": ({"host": None, "version": "1.0"}, 421, "other_host"),
    "a rebound name asking for more": ({"method": "GET", "path": "/health", "host": "evil.example"}, 421, "other_host"),
    "a web page asking whether it may": ({"method": "OPTIONS"}, 405, "method"),
    "another method": ({"method": "PUT"}, 405, "method"),
    "another path": ({"path": "/admin"}, 404, "unknown_path"),
    "a path upwards": ({"path": "/../../etc/passwd"}, 404, "unknown_path"),
    "the documentation that FastAPI has": ({"path": "/docs", "method": "GET"}, 404, "unknown_path"),
    "half of JSON": ({"body": b'{"tool": '}, 422, "malformed"),
    "nested JSON": ({"body": b"[" * 100_000}, 422, "malformed"),
    "nested objects": ({"body": b'{"a":' * 30_000}, 422, "malformed"),
    "no text": ({"body": b"\xff\xfe\x00"}, 422, "malformed"),
    "nothing": ({"body": b""}, 422, "malformed"),
    "a list": ({"body": b"[]"}, 422, "malformed"),
    "a null": ({"body": b"null"}, 422, "malformed"),
}  # fmt: skip


@SERVERS
def test_requests_of_strangers(server, tmp_path):
    app, own, limit = server(tmp_path)
    with running(app) as url:
        for name, (given, status, kind) in REFUSED.items():
            given = dict(given)
            answer = sent(url, request(given.pop("path", own), **given))
            assert answer[0] == status and answer[1].keys() == {"error", "kind"} and answer[1]["kind"] == kind, name
        large = b'{"queries": ["' + b"x" * limit + b'"]}'
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large)
        for data in (request(own, body=large), request(own, "Transfer-Encoding: chunked", body=chunked)):
            assert sent(url, data)[1]["kind"] == "too_large"
        for odd in (b"\x16\x03\x01 no HTTP\r\n\r\n", request(own, "Content-Length: -1"), request(own, "Host: two")):
            status, said = sent(url, odd)
            assert status == 400 and said["kind"] == "malformed"
        for host in ("localhost:1", "127.0.0.1", "[::1]:8000", "192.168.0.7", "LOCALHOST.", socket.gethostname()):
            assert sent(url, request("/health", method="GET", host=host, kind=None))[0] == 200, host
        upgrade = request("/health", "Upgrade: websocket", method="GET", kind=None)
        assert sent(url, upgrade)[0] == 200  # as if it had not asked for another protocol


def test_a_bug_of_the_server_is_told_in_the_same_form():
    app, own, _ = retrieval(None)
    with running(app) as url:
        status, said = sent(url, request(own, body=b'{"queries": ["bug"]}'))
        assert (status, said["kind"]) == (500, "internal") and "RuntimeError" in said["error"]
        assert sent(url, request(own, body=b'{"queries": ["a"]}')) == (200, {"hits": [[]]})


@SERVERS
def test_names_of_a_cluster(server, tmp_path):
    with running(server(tmp_path, hosts=["Node7.cluster"])[0]) as url:
        asked = [sent(url, request("/health", method="GET", host=host))[0] for host in ("node7.cluster:8000", "node8")]
    assert asked == [200, 421]


@SERVERS
def test_the_token(server, tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN, "secret")
    app, own, _ = server(tmp_path)
    with running(app) as url:
        for header in ("X: y", "Authorization: Bearer wrong", "Authorization: Bearer", "Authorization: Basic secret",
                       "Authorization: Bearer secret2", "Authorization: Bearer sécret"):  # fmt: skip
            status, said = sent(url, request(own, header))
            assert (status, said["kind"]) == (401, "token") and "secret" not in said["error"]
            assert sent(url, request("/health", header, method="GET"))[0] == 401
        assert sent(url, request(own, "Authorization: Bearer secret"))[0] == 422
        client = HttpRetriever(url)
        if server is retrieval:
            assert client.search(["a"], 1) == [[]]
        monkeypatch.setenv(TOKEN, "other")
        with pytest.raises(ToolRefused, match=f"status 401.*set {TOKEN} as the server has it"):
            client.search(["a"], 1)


@SERVERS
def test_requests_that_do_not_end(server, tmp_path, monkeypatch):
    """Many at once: all are dropped, and meanwhile the server serves others."""
    monkeypatch.setattr(guard, "REQUEST_S", 0.5)
    app, own, _ = server(tmp_path)
    whole = request(own, "Content-Length: 100", body=b"")
    kept = request("/health", method="GET", kind=None).replace(b"Connection: close\r\n", b"")
    halves = [b"", whole[:5], whole[:-2], whole, whole + b'{"queries"', kept + whole[:20]]
    with running(app) as url:
        port = int(url.rpartition(":")[2])
        held = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(10) for _ in halves]
        for place, connection in enumerate(held):
            connection.sendall(halves[place % len(halves)])
        assert sent(url, request("/health", method="GET", kind=None))[0] == 200
        until = time.monotonic() + 300
        for connection in held:  # one byte at a time keeps none of them
            connection.settimeout(0.05)
            while time.monotonic() < until:
                try:
                    if not connection.recv(1 << 16):
                        break
                    continue
                except TimeoutError:
                    pass
                except ConnectionError:
                    break
                try:
                    connection.sendall(b"x")
                except ConnectionError:
                    break
            connection.close()
        assert time.monotonic() < until
        assert sent(url, request("/health", method="GET", kind=None))[0] == 200


@pytest.mark.parametrize("open_", [lambda: listen("127.0.0.1", 0), lambda: gateway_server._listen(GatewaySection())])
def test_the_parts_of_an_answer_do_not_wait_for_one_another(open_):
    with open_() as listener, socket.create_connection(listener.getsockname()) as client:
        with listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert client
