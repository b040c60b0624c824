"""Proxies and certificates from the environment: `http_proxy`, `no_proxy`, `SSL_CERT_FILE` and the like."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import aiohttp

from ..errors import ConfigurationError

_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True, frozen=True)
class Proxy:
    """A proxy without its login.

    `variable` is the environment variable that names it, `login` the value of the header `Proxy-Authorization` ("":
    none).
    """

    url: str
    variable: str
    login: str = field(default="", repr=False)


class Proxies:
    """The proxies of the environment, read once; true if there are any."""

    def __init__(self) -> None:
        # Lower-case names take precedence over upper-case ones; an empty value means none.
        self._named = {name: value.strip() for name, value in getproxies_environment().items() if value.strip()}
        self._exempt = self._named.pop("no", "")
        self._chosen: dict[tuple[str, str], Proxy | None] = {}

    def __bool__(self) -> bool:
        return bool(self._named.keys() & {"http", "https", "all"})

    def for_url(self, url: str) -> Proxy | None:
        """Return the proxy for requests to this URL."""
        parts = urlsplit(url)
        host = parts.scheme.lower(), parts.netloc.rpartition("@")[2].lower()
        if host not in self._chosen:
            self._chosen[host] = self._choose(*host)
        return self._chosen[host]

    def _choose(self, scheme: str, host: str) -> Proxy | None:
        name = scheme if scheme in self._named else "all"
        if name not in self._named or is_exempt(scheme, host, self._exempt):
            return None
        return _parse_proxy(self._named[name], f"{name}_proxy", host)


def is_exempt(scheme: str, address: str, exempt: str) -> bool:
    """Return True if `no_proxy` covers a host and port.

    Entries are the host's name, a parent domain, its address, its network, or `*`; an entry with a port covers that
    port only.
    """
    parts = urlsplit(f"//{address}")
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(scheme)
    for entry in exempt.replace(",", " ").lower().split():
        name, own = _host_and_port(entry)
        if entry == "*" or (_matches(host, name) and own in (None, port)):
            return True
    return False


def _host_and_port(entry: str) -> tuple[str, int | None]:
    """Return an entry's host or network, and its port if it has one."""
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        return name, int(port[1:]) if port[1:].isdecimal() else None
    name, colon, port = entry.partition(":")
    if colon and port.isdecimal():
        return name, int(port)
    return entry, None


def _matches(host: str, entry: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        domain = entry.removeprefix("*").strip(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))
    try:
        return address in ip_network(entry, strict=False)
    except (ValueError, TypeError):
        return False


def _parse_proxy(value: str, variable: str, default_host: str) -> Proxy:
    """Return the proxy that a variable names. No message repeats its value."""
    parts = urlsplit(value if "://" in value else f"http://{value}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in _PORTS or not host:
        problem = f"names a {parts.scheme} proxy" if host else "is not a proxy URL"
        raise ConfigurationError(
            f"the environment variable {variable} {problem}, and {default_host} would be called through it; name a "
            "proxy that begins with http:// or https://, unset the variable, or add the host to no_proxy"
        )
    host_text = f"[{host}]" if ":" in host else host
    login = ""
    if parts.username is not None:
        login = f"Basic {_login(parts.username, parts.password or '')}"
    return Proxy(f"{parts.scheme}://{host_text}:{port or _PORTS[parts.scheme]}", variable, login)


def proxy_secrets() -> Iterator[str]:
    """Yield the passwords (or lone user names) of the environment's proxies, and their logins as sent."""
    for value in getproxies_environment().values():
        login, at, _ = value.rpartition("@")
        user, _, password = login.rpartition("://")[2].partition(":")
        secret = password or user
        if at and secret:
            yield from {secret, unquote(secret), _login(user, password)}


def _login(user: str, password: str) -> str:
    """Return the percent-encoded user and password as sent in the header."""
    return base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def trusted_certificates() -> ssl.SSLContext | None:
    """Return the SSL context for the environment's certificates; None if it names no certificates."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
    named = tuple((name, value) for name in names if (value := os.environ.get(name)))
    return _ssl_context(named) if named else None


@lru_cache(maxsize=4)
def _ssl_context(named: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    context = ssl.create_default_context()  # this already respects the first two variables
    context.set_alpn_protocols(["http/1.1"])
    for name, value in named:
        try:
            if Path(value).is_dir():
                context.load_verify_locations(capath=value)
            elif name != "SSL_CERT_DIR":  # which may be a list of folders
                context.load_verify_locations(cafile=value)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"the environment variable {name}: {value} cannot be read as certificates "
                f"({error.strerror or error}); name a file in PEM format, or unset it"
            ) from None
    return context


def proxy_failure(error: BaseException, proxy: Proxy) -> str:
    """Return advice if a proxy failed rather than the endpoint behind it, else ""."""
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"; that is the proxy of {proxy.variable}: start it, fix the variable, or add the host to no_proxy"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"; reported by the proxy {proxy.url} of {proxy.variable}: ask its operator, or add the host to no_proxy"
    return ""
