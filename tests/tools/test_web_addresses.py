"""Which addresses may be asked: however they are written, whatever a name stands for, wherever a page redirects."""

from __future__ import annotations

import ipaddress
import socket
from types import SimpleNamespace

import pytest
from aiohttp import ThreadedResolver
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.website import Site, visit
from verl_ext.tools import ToolRefused
from verl_ext.tools.web import addresses
from verl_ext.tools.web.addresses import checked, is_public

PRIVATE = [
    "127.0.0.1", "[::1]", "169.254.169.254", "10.0.0.1", "10.255.255.255", "172.16.0.1", "192.168.1.1", "100.64.0.1",
    "0.0.0.0", "255.255.255.255", "224.0.0.1", "[fe80::1]", "[fe80::1%25eth0]", "[fc00::1]", "[fec0::1]", "[ff02::1]",
    "[::]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "[::127.0.0.1]",
    "127.0.0.1.", "１２７.０.０.１", "localhost", "LOCALHOST",
    # Metadata of clouds, and blocks that the library of some Pythons takes for public.
    "192.0.0.192", "168.63.129.16", "100.100.100.200", "[fd00:ec2::254]", "192.88.99.1", "198.18.0.1", "203.0.113.9",
    "[64:ff9b:1::1]", "[::ffff:0:8.8.8.8]", "[5f00::1]", "[3fff::1]", "[2001::1]", "[2001:db8::1]", "[100::1]",
    "[2002:a83f:8110::]", "[::ffff:168.63.129.16]", "[4000::1]",
]  # fmt: skip
NUMBERS = ["2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "012.0.0.1", "0x7f.0.0.0x1", "127.0.0.1.0"]


def test_private_addresses_are_refused_however_they_are_written(site):
    port = site.rpartition(":")[2]
    for host in (*PRIVATE, *NUMBERS):
        for url in (f"http://{host}:{port}/good", f"https://{host}/"):
            with pytest.raises(ToolRefused, match="public internet|malformed number"):
                visit(url, allow_private=False)
                pytest.fail(url)
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


def snicaddr(family, address):
    """An address of an interface, as psutil gives it."""
    return SimpleNamespace(family=family, address=address)


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


def test_the_machine_s_own_addresses_are_not_public(monkeypatch):
    """A node of a cluster may have a public address; what listens on it is not for the model."""
    found = {"eth0": [snicaddr(socket.AF_INET, "8.8.8.8"), snicaddr(socket.AF_INET6, "2606:4700::1%eth0"),
                      snicaddr(17, "00:11:22:33:44:55")]}  # fmt: skip
    monkeypatch.setattr(addresses.psutil, "net_if_addrs", lambda: found)
    for own in ("8.8.8.8", "::ffff:8.8.8.8", "2002:808:808::", "2606:4700::1"):
        assert not is_public(ipaddress.ip_address(own))
    assert is_public(ipaddress.ip_address("8.8.4.4"))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_every_form(address):
    forms = [
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        str(ipaddress.IPv6Address((0x2002 << 112) | int(address) << 80)),
    ]
    assert {is_public(ipaddress.ip_address(form)) for form in forms} == {is_public(address)}
