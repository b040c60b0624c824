"""Access to all of our servers: tokens, host names, origins and content types, checked in one place.

A token has 256 random bits, so we store a plain SHA-256 hash: salt or stretching would not slow an attacker down.

A page of another site can make a browser send requests to localhost. If the site's DNS entry points at this machine,
the Host header has the site's name; if the page sends a request across sites, Origin or Sec-Fetch-Site says so. An
answer has CORS headers only for an origin that is allowed by name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import hdrs, web

from viva.engine.errors import ConfigurationError

from .problems import Problem, Refusal

TOKENS_VARIABLE = "VIVA_TOKENS"
_SHORTEST_TOKEN = 20  # minimum characters of a token that a person has chosen
_HASHED = re.compile(r"sha256:[0-9a-f]{64}")


class Tokens:
    """Hashes of the accepted tokens. The object is false if there are none; then no token is required."""

    def __init__(self, hashes: Iterable[str]) -> None:
        self._hashes = tuple(dict.fromkeys(hashes))

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def accepts(self, token: str) -> bool:
        """Return True if this token is accepted, in constant time."""
        accepted = False
        digest = hash_token(token).encode()
        for accepted_digest in self._hashes:
            accepted |= hmac.compare_digest(accepted_digest.encode(), digest)
        return accepted


def hash_token(token: str) -> str:
    """Return the stored form of a token: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def read_tokens(file: Path | None) -> Tokens:
    """Read the accepted tokens from a file and from VIVA_TOKENS.

    The file has a name and a hash on each line; `#` begins a comment. VIVA_TOKENS has tokens or hashes, separated by
    commas; the variable is removed from the environment, so that no child process inherits it.

    Raises:
        ConfigurationError: The file cannot be read or is malformed, or a token in VIVA_TOKENS is too short.
    """
    hashes = [] if file is None else _hashes_in(file)
    for text in os.environ.pop(TOKENS_VARIABLE, "").split(","):
        token = text.strip()
        if not token:
            continue
        if not _HASHED.fullmatch(token) and len(token) < _SHORTEST_TOKEN:
            raise ConfigurationError(
                f"{TOKENS_VARIABLE}: a token has {len(token)} characters and could be guessed: use at least "
                f"{_SHORTEST_TOKEN}, or create one with `viva serve --token-file FILE --new-token NAME`"
            )
        hashes.append(token if _HASHED.fullmatch(token) else hash_token(token))
    return Tokens(hashes)


def add_token(file: Path, name: str) -> str:
    """Create a token, append its hash to the file under this name, and return the token; only the hash is stored."""
    if not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
        raise ConfigurationError(f"--new-token {name!r}: expected a name of letters, digits, '.', '_' and '-'")
    if file.exists() and any(line.split()[:1] == [name] for line in _token_lines(file)):
        raise ConfigurationError(f"{file}: already has a token called {name}; remove its line, or use another name")
    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as opened:
            opened.write(f"{name} {hash_token(token)}\n")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from None
    return token


def _hashes_in(file: Path) -> list[str]:
    hashes = []
    for number, line in enumerate(_token_lines(file), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not _HASHED.fullmatch(words[1]):
            raise ConfigurationError(
                f"{file}:{number}: expected NAME sha256:… (a token's hash, not the token); create such a line with "
                "`viva serve --token-file FILE --new-token NAME`"
            )
        hashes.append(words[1])
    return hashes


def _token_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        message = "no such file; create it with `viva serve --token-file FILE --new-token NAME`"
        raise ConfigurationError(f"{file}: {message}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: the tokens cannot be read: {error}") from None


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@]+)(?::\d{1,5})?")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
READ_ONLY = ("GET", "HEAD")
READ_AND_SEND = (*READ_ONLY, "POST")
_ANY_ADDRESS = ("", "0.0.0.0", "::")
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Decides which requests are accepted.

    Attributes:
        hosts: Further names for the Host header. IP addresses and localhost are always accepted, since neither can be
            the name of another site.
        origins: Sites whose pages may send requests, as browsers name them.
        tokens: Accepted tokens; if there are none, no token is required.
    """

    tokens: Tokens
    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    body_types: Sequence[str] = (JSON,)
    allow_host: str = "--allow-host"  # the option that adds a host name

    def check(self, request: web.Request) -> None:
        """Check a request.

        Raises:
            Problem: The request is refused.
        """
        host = self._host(request)
        self._check_origin(request, host)
        if self.tokens:
            self._check_token(request)
        is_routed = request.match_info.http_exception is None
        if is_routed and request.method in _WITH_BODY:
            self._check_body(request)

    def _host(self, request: web.Request) -> str:
        hosts = request.headers.getall(hdrs.HOST, [])
        if len(hosts) != 1 or not request.raw_path.startswith("/"):
            raise Problem(400, f"expected one Host header and a path; found {len(hosts)} Host headers")
        match = _HOST.fullmatch(hosts[0])
        name = match[1].lower() if match else ""
        if name == "localhost" or name in self.hosts or is_address(name):
            return hosts[0].lower()
        raise Problem(421, f"this server does not answer to the name {hosts[0]!r}; allow it with {self.allow_host}")

    def _check_origin(self, request: web.Request, host: str) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None:
            if origin not in self.origins and not _is_own_origin(origin, host):
                raise Problem(
                    403, f"pages of {origin} may not send requests to this server; allow them with --allow-origin"
                )
        elif request.headers.get("Sec-Fetch-Site") == "cross-site":
            raise Problem(403, "pages of another site may not send requests to this server")

    def _check_token(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer" or not self.tokens.accepts(token.strip()):
            raise Problem(
                401,
                "expected a valid token, as Authorization: Bearer TOKEN",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_body(self, request: web.Request) -> None:
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise Problem(415, f"{hdrs.CONTENT_ENCODING} is not supported: send the body uncompressed")
        if request.content_type not in self.body_types:
            content_type = request.headers.get(hdrs.CONTENT_TYPE, "none")
            raise Problem(
                415,
                f"expected the header Content-Type: {self.body_types[0]}, with an empty body too; found {content_type}",
            )


@dataclass(frozen=True, slots=True)
class PageAccess(Access):
    """Decides which requests for pages are accepted.

    A page of another site may link to our pages. It may not load them as images, frames or data, and may not send our
    forms.

    A form has the origin `null` if its page sends no referrer. Sec-Fetch-Site then says if the form was on our site;
    Sec-Fetch-Dest says if a link was followed.
    """

    methods: Collection[str] = READ_AND_SEND
    body_types: Sequence[str] = (FORM, JSON)
    allow_host: str = "--name"

    def _check_origin(self, request: web.Request, host: str) -> None:
        if request.method not in self.methods:
            raise Refusal(405, "Not allowed", "Use GET for pages and POST for forms.")
        origin, site = request.headers.get(hdrs.ORIGIN, "null"), request.headers.get("Sec-Fetch-Site", "none")
        foreign = (origin != "null" and not _is_own_origin(origin, host)) or site not in ("same-origin", "none")
        if foreign and request.method == "POST":
            raise Refusal(403, "Not allowed", "A page of another site may not send this form.")
        if foreign and request.headers.get("Sec-Fetch-Dest", "document") != "document":
            raise Refusal(403, "Not allowed", "A page of another site may link to this page, but not load it.")

    def _check_body(self, request: web.Request) -> None:
        if (request.charset or "utf-8").lower() != "utf-8":  # other charsets may fail, or produce lone surrogates
            raise Refusal(415, "Not UTF-8", "Please send the form in UTF-8.")
        Access._check_body(self, request)


def known_hosts(host: str, names: Iterable[str]) -> frozenset[str]:
    """Return the host names, in lower case, that a server listening on `host` accepts."""
    own = {socket.gethostname(), socket.getfqdn()} if host in _ANY_ADDRESS else {host}
    return frozenset(name.lower() for name in (*own, *names))


def is_address(name: str) -> bool:
    """Return True if a name is an IP address; an address cannot be the name of another site."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return True if only programs on this machine can reach a server bound to `host`."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_own_origin(origin: str, host: str) -> bool:
    return origin.lower() in (f"http://{host}", f"https://{host}")
