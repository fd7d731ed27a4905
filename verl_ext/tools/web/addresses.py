"""Which addresses a tool may ask: those of the public internet, unless the settings allow private ones.

A model writes the addresses. Without these checks it could read what only this machine or its network can reach: a
cloud's metadata (169.254.169.254), other services of the cluster, Ray's dashboard.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any

from aiohttp import ThreadedResolver
from yarl import URL

from verl_ext.tools.base import ToolRefused

MAX_URL = 2048
# Some parsers take a host whose last part is a number for an address (2130706433, 0x7f.1, 012.0.0.1), others a name.
# No public name ends so. The URL standard of WHATWG has the same rule.
NUMBER = re.compile(r"(?:\d+|0x[0-9a-f]*)\Z", re.IGNORECASE)
NAT64 = ipaddress.ip_network("64:ff9b::/96")


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


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is a single address of the public internet. An IPv6 form of an IPv4 address counts as that one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64 or int(address) >> 32 == 0:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast


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
