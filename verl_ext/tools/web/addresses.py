"""Which addresses a tool may ask: those of the public internet, unless the settings allow private ones.

A model writes the addresses. Without these checks it could read what only this machine or its network can reach: a
cloud's metadata (169.254.169.254), other services of the cluster, Ray's dashboard.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any, TypeAlias

import psutil
from aiohttp import ThreadedResolver
from yarl import URL

from verl_ext.tools.base import ToolRefused

MAX_URL = 2048
FAMILIES = (socket.AF_INET, socket.AF_INET6)
# Some parsers take a host whose last part is a number for an address (2130706433, 0x7f.1, 012.0.0.1), others a name.
# No public name ends so. The URL standard of WHATWG has the same rule.
NUMBER = re.compile(r"(?:\d+|0x[0-9a-f]*)\Z", re.IGNORECASE)
# Blocks that are not the public internet. The standard library's `is_global` depends on Python's patch version.
# https://www.iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry, multicast and reserved
# addresses. Blocks of anycast services that are globally reachable (AS112, AMT) are among them: no website is there.
NOT_PUBLIC_4 = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24
    203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
"""
# A cloud's metadata at an ordinary address: Azure's. Those of the others are in the blocks: 169.254.169.254 (most),
# 169.254.170.2 (AWS tasks), 192.0.0.192 (Oracle), 100.100.100.200 (Alibaba), fd00:ec2::254 (AWS), fd20:ce::254
# (Google).
METADATA = "168.63.129.16/32"
# All of IPv6 but 2000::/3 is special or unassigned: loopback, local, multicast, NAT64, discard, segment routing.
GLOBAL_6 = ipaddress.ip_network("2000::/3")
NOT_PUBLIC_6 = "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20"
NOT_PUBLIC = [ipaddress.ip_network(block) for block in f"{NOT_PUBLIC_4} {METADATA} {NOT_PUBLIC_6}".split()]
NAT64 = ipaddress.ip_network("64:ff9b::/96")
Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


def checked(url: URL | str, allow_private: bool) -> URL:
    """The parsed address. `Resolver` checks the addresses of a host name.

    Raises:
        ToolRefused: it is not a web address, or it is an address of a private network.
    """
    shown = f"{str(url)!r:.200}"
    try:
        parsed = URL(url)
        host, _ = parsed.raw_host, parsed.port
    except (ValueError, TypeError) as error:
        raise ToolRefused(f"{shown} is no address of a website: {error!s:.200}") from error
    if parsed.scheme not in ("http", "https") or not host or len(str(parsed)) > MAX_URL:
        raise ToolRefused(f"{shown} is no address of a website: http:// or https://, at most {MAX_URL} characters")
    if parsed.raw_user is not None or parsed.raw_password is not None:
        raise ToolRefused(f"{shown} holds a user name or a password, which are not sent")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if NUMBER.match(host.rstrip(".").rpartition(".")[2]):
            raise ToolRefused(f"{shown} is no address of a website: its host is a malformed number") from None
    else:
        if not allow_private and not is_public(address):
            raise ToolRefused(f"{shown} is not on the public internet; private addresses are not asked")
    return parsed


def is_public(address: Address) -> bool:
    """Whether it is an address of the public internet and not one of this machine.

    An IPv6 form of an IPv4 address (mapped, compatible, 6to4, NAT64) counts as that one.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64 or int(address) >> 32 == 0:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in GLOBAL_6:
            return False
    return not any(address in block for block in NOT_PUBLIC) and address not in own_addresses()


def own_addresses() -> set[Address]:
    """Addresses of this machine's interfaces: a node of a cluster may have public ones."""
    found = [one.address for entries in psutil.net_if_addrs().values() for one in entries if one.family in FAMILIES]
    return {ipaddress.ip_address(address.partition("%")[0]) for address in found}


class Resolver(ThreadedResolver):
    """Resolves host names. Connections go only to the addresses checked here, so DNS rebinding (another answer a
    moment later) has no effect.

    Args:
        allow_private: False refuses names with a private address.
    """

    def __init__(self, allow_private: bool) -> None:
        super().__init__()
        self._allow_private = allow_private

    async def resolve(self, host: str, *arguments: Any, **named: Any) -> list[Any]:
        """As `ThreadedResolver.resolve`. Raises ToolRefused."""
        try:
            found = await super().resolve(host, *arguments, **named)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
                raise ToolRefused(f"there is no host {host!r:.200}") from error
            raise
        if not self._allow_private and not all(is_public(ipaddress.ip_address(one["host"])) for one in found):
            raise ToolRefused(f"{host!r:.200} is not on the public internet; private addresses are not asked")
        return found
