"""Whose name a request uses: the Host header that a server is known by, and whether another site's page asks.

What never belongs here: what is done about it, and what a request is about.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from viva.engine.errors import ConfigurationError

_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_EVERYWHERE = ("", "0.0.0.0", "::")


def known_hosts(host: str, names: Iterable[str]) -> frozenset[str]:
    """The names by which a server that listens on ``host`` may be asked."""
    found = set(_LOCAL) | {name.lower() for name in names}
    if host in _EVERYWHERE:
        found |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    else:
        found.add(f"[{host}]" if ":" in host else host.lower())
    return frozenset(found)


def name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def is_address(name: str) -> bool:
    """Whether a name is an IP address: it cannot be the name of another site."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach a server bound to ``host``."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_own_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the site that the Host header names, over whichever scheme."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether another site's page asks.

    A form on a page that sends no referrer has the origin ``null``; browsers say in Sec-Fetch-Site where it stood.
    """
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if origin not in (None, "null") and not is_own_origin(origin or "", headers.get("Host", "")):
        return True
    return site not in (None, "same-origin", "none")


def checked_url(url: str | None) -> tuple[bool, list[str]]:
    """Whether the address that people use (``--url``) is one over https, and its host, for ``known_hosts``.

    :raises ConfigurationError: it is no such address.
    """
    if url is None:
        return False, []
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ConfigurationError(f"--url: expected an address such as https://grades.example.org, found '{url[:100]}'")
    return parts.scheme == "https", [parts.hostname]


def outer_address(address: str, url: str | None, names: Sequence[str]) -> str:
    """The address by which others reach a server that listens at ``address``: the stated one, or by its first name."""
    if url:
        return url.rstrip("/")
    return f"http://{names[0]}:{address.rpartition(':')[2]}" if names else address
