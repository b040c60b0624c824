"""Authentication and access control of the HTTP API: tokens, Host and Origin checks, CORS headers.

A token has 256 random bits, so a plain SHA-256 hash is kept: salt or stretching would slow nobody who guesses.

A page of another site can make a browser send requests to localhost. Its name in the Host header gives it away
if its DNS entry points at this machine; its Origin header gives it away if it posts across sites. No answer has
CORS headers unless an origin is allowed by name.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from viva.engine.errors import ConfigurationError
from viva.engine.permissions import Permissions, bound_permissions

from .listening import is_address, is_own_origin
from .problems import Problem, problem_of

TOKENS_VARIABLE = "VIVA_TOKENS"
_SHORTEST_TOKEN = 20  # characters of a token that somebody has made up
_HASHED = re.compile(r"sha256:[0-9a-f]{64}")


class Tokens:
    """The hashes of the tokens that are accepted; false where there is none, and nobody is asked for one."""

    def __init__(self, hashes: Iterable[str]) -> None:
        self._hashes = tuple(dict.fromkeys(hashes))

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def accepts(self, token: str) -> bool:
        """Whether this token is one of them; all are compared, so the time tells nothing."""
        found = False
        given = hash_token(token).encode()
        for known in self._hashes:
            found |= hmac.compare_digest(known.encode(), given)
        return found


def hash_token(token: str) -> str:
    """What is kept of a token: ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def read_tokens(file: Path | None) -> Tokens:
    """The tokens of a file (a name and a hash on each line; ``#`` begins a comment) and of the variable VIVA_TOKENS
    (tokens or hashes, separated by commas), which is taken out of the environment: no child process inherits it.

    :raises ConfigurationError: the file cannot be read, or holds something else; a token of the variable is short.
    """
    found = [] if file is None else _hashes_in(file)
    for text in os.environ.pop(TOKENS_VARIABLE, "").split(","):
        token = text.strip()
        if not token:
            continue
        if not _HASHED.fullmatch(token) and len(token) < _SHORTEST_TOKEN:
            raise ConfigurationError(
                f"{TOKENS_VARIABLE}: a token has {len(token)} characters and could be guessed: give at least "
                f"{_SHORTEST_TOKEN}, or "
                "make one with `viva serve --token-file FILE --new-token NAME`"
            )
        found.append(token if _HASHED.fullmatch(token) else hash_token(token))
    return Tokens(found)


def add_token(file: Path, name: str) -> str:
    """Make a token, append its hash to the file under this name, and return the token, which is kept nowhere.

    :raises ConfigurationError: the name is taken or has other than letters, digits, ``.``, ``_`` and ``-``; the file
        cannot be written.
    """
    if not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
        raise ConfigurationError(f"--new-token {name!r}: expected a name of letters, digits, '.', '_' and '-'")
    if file.exists() and any(line.split()[:1] == [name] for line in _token_lines(file)):
        raise ConfigurationError(f"{file}: has a token called {name} already; take its line out, or use another name")
    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as opened:
            opened.write(f"{name} {hash_token(token)}\n")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from None
    return token


def _hashes_in(file: Path) -> list[str]:
    found = []
    for number, line in enumerate(_token_lines(file), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not _HASHED.fullmatch(words[1]):
            raise ConfigurationError(
                f"{file}:{number}: expected NAME sha256:… (a token's hash, not the token); make such a line with "
                "`viva serve --token-file FILE --new-token NAME`"
            )
        found.append(words[1])
    return found


def _token_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        told = "there is no such file; make it with `viva serve --token-file FILE --new-token NAME`"
        raise ConfigurationError(f"{file}: {told}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: the tokens cannot be read: {error}") from None


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@]+)(?::\d{1,5})?")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Access:
    """What is let in. ``hosts`` are further names for the Host header; IP addresses and localhost always do, for
    neither can be another site's name. ``origins`` are sites whose pages may ask, as browsers name them.
    """

    tokens: Tokens
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    def check(self, request: web.Request) -> None:
        """:raises Problem: the request is not let in."""
        host = self._host(request)
        self._check_origin(request, host)
        if self.tokens:
            self._check_token(request)
        known = request.match_info.http_exception is None
        if known and request.method in _WITH_BODY and request.content_type != "application/json":
            found = request.headers.get(hdrs.CONTENT_TYPE, "none")
            raise Problem(
                415, f"expected the header Content-Type: application/json, with an empty body too; found {found}"
            )

    def _host(self, request: web.Request) -> str:
        hosts = request.headers.getall(hdrs.HOST, [])
        if len(hosts) != 1 or not request.raw_path.startswith("/"):
            raise Problem(400, f"expected one Host header and a path; found {len(hosts)} Host headers")
        found = _HOST.fullmatch(hosts[0])
        name = found[1].lower() if found else ""
        if name == "localhost" or name in self.hosts or is_address(name):
            return hosts[0].lower()
        raise Problem(421, f"this server does not answer to the name {hosts[0]!r}; allow it with --allow-host")

    def _check_origin(self, request: web.Request, host: str) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None:
            if origin not in self.origins and not is_own_origin(origin, host):
                raise Problem(403, f"pages of {origin} may not ask this server; allow them with --allow-origin")
        elif request.headers.get("Sec-Fetch-Site") == "cross-site":
            raise Problem(403, "another site's page may not ask this server")

    def _check_token(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer" or not self.tokens.accepts(token.strip()):
            raise Problem(
                401,
                "expected a valid token, as Authorization: Bearer TOKEN",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def guard(access: Access, granted: Permissions) -> Middleware:
    """The middleware that checks each request, and answers every error in the form of its path. What a request names
    means no more than is ``granted``, for all that follows from it.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get(hdrs.ORIGIN)
        try:
            if request.method == "OPTIONS" and origin in access.origins:
                answer: web.StreamResponse = _preflight()
            else:
                access.check(request)
                with bound_permissions(granted):
                    answer = await handler(request)
        except ConnectionError:  # the client has gone
            raise
        except Exception as error:
            answer = problem_of(error).answer(request.path)
        return answer

    return guarded


def add_headers(access: Access) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """What is called before the headers of any answer are sent, streams included."""

    async def add(request: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update({"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"})
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and origin in access.origins:
            answer.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})

    return add


def _preflight() -> web.Response:
    allowed = {"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Max-Age": "600"}
    allowed["Access-Control-Allow-Headers"] = "Authorization, Content-Type, Last-Event-ID"
    return web.Response(status=204, headers=allowed)
