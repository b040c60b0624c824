"""Secret links and the sessions they open: a token in a link, a signed session cookie, and a token in each form."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from itsdangerous import BadData, Signer
from itsdangerous.encoding import base64_decode, base64_encode

from viva.engine.errors import ConfigurationError

from .auth import hash_token

SECRET_FILE = "pages.secret"
_SECRET_BYTES = 32
_MAX_SECONDS = 90 * 86400.0  # maximum seconds of a session, even if its link does not expire
_UNIT_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def new_token() -> tuple[str, str]:
    """Return (new token for a link, its hash); only the hash is stored."""
    token = secrets.token_urlsafe(32)
    return token, hash_token(token)


def parse_expiry(text: str, now: float) -> float | None:
    """Return when a link valid for `90m`, `12h`, `7d`, `2w` or `never` expires, in seconds since 1970; None: never."""
    if text == "never":
        return None
    match = re.fullmatch(r"(\d{1,4})([mhdw])", text)
    if match is None or int(match[1]) == 0:
        raise ConfigurationError(f"--expires: expected a duration such as 12h, 7d or 2w, or never; found '{text[:40]}'")
    return now + int(match[1]) * _UNIT_SECONDS[match[2]]


def read_or_make_secret(file: Path) -> bytes:
    """Return the secret in this file; create the file if it is missing. Only the file's owner can read it.

    Raises:
        ConfigurationError: The file cannot be read or created, or contains no valid secret.
    """
    try:
        if not file.exists():
            _make_secret(file)
        if stat.S_IMODE(file.stat().st_mode) & 0o077:  # a copy of the file may have other permissions
            file.chmod(0o600)
        secret = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot read or create the pages' secret: {error.strerror}") from None
    if len(secret) != _SECRET_BYTES:
        raise ConfigurationError(
            f"{file}: expected a secret of {_SECRET_BYTES} bytes, found {len(secret)}; delete the file; everybody must "
            "then open their link again"
        )
    return secret


def _make_secret(file: Path) -> None:
    """Write the file under another name first, so that a concurrent process finds the whole secret or none."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(_SECRET_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()


@dataclass(slots=True, frozen=True)
class Session:
    """Session of a request: sender (`holder`), hash of the opened `link`, id (`name`), end (`until`, Unix time)."""

    holder: str
    link: str
    name: str
    until: float


class _JsonSerializer:
    """Signed JSON data.

    Unlike itsdangerous' own serializers, it neither compresses nor decompresses, because compressing takes far longer
    than signing.
    """

    def __init__(self, secret: bytes, salt: str) -> None:
        self._signer = Signer(secret, salt=salt, key_derivation="hmac", digest_method=hashlib.sha256)

    def dumps(self, value: Any) -> str:
        return self._signer.sign(base64_encode(orjson.dumps(value))).decode()

    def loads(self, text: str) -> Any:
        """Parse the data after its signature was checked."""
        return orjson.loads(base64_decode(self._signer.unsign(text)))


class Sessions:
    """Sessions as signed cookies. `purpose` is a word that separates the cookies of different kinds of pages.

    A cookie is sent only to its path, is not readable by scripts, and is never sent with another site's request.
    """

    def __init__(self, secret: bytes, *, purpose: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._cookies = _JsonSerializer(secret, f"viva {purpose} session")
        self._forms = _JsonSerializer(secret, f"viva {purpose} form")
        self._seals = _JsonSerializer(secret, f"viva {purpose} seal")
        # Cookies ignore ports, so two servers on one machine need cookies with different names.
        self.cookie = f"viva-{purpose}-{hashlib.sha256(secret).hexdigest()[:8]}"

    def start(
        self, response: web.StreamResponse, holder: str, link: str, *, path: str, expires: float | None, secure: bool
    ) -> Session:
        """Start a session for the pages below `path`; it ends when its link `expires`, at the latest after 90 days.

        `secure`: send the cookie over https only.
        """
        until = self._clock() + _MAX_SECONDS if expires is None else min(expires, self._clock() + _MAX_SECONDS)
        session = Session(holder, link, secrets.token_urlsafe(12), until)
        response.set_cookie(
            self.cookie,
            self._cookies.dumps([holder, link, session.name, until]),
            max_age=max(0, int(until - self._clock())),
            path=path,
            httponly=True,
            samesite="Strict",
            secure=secure,
        )
        return session

    def read(self, request: web.Request) -> Session | None:
        """Return the session of a request; None if there is none, it was not made here, or it has ended."""
        try:
            holder, link, name, until = self._cookies.loads(request.cookies.get(self.cookie, ""))
        except (BadData, TypeError, ValueError):
            return None
        return Session(holder, link, name, until) if self._clock() < until else None

    def end(self, response: web.StreamResponse, *, path: str) -> None:
        response.del_cookie(self.cookie, path=path, httponly=True, samesite="Strict")

    def form_token(self, session: Session) -> str:
        """Return the token for all forms of this session; it is constant, so that offline submissions stay valid."""
        return self._forms.dumps(session.name)

    def is_of_form(self, session: Session, seal: object) -> bool:
        try:
            return isinstance(seal, str) and bool(self._forms.loads(seal) == session.name)
        except BadData:
            return False

    def seal(self, words: str) -> str:
        """Sign words that a page will send back, so that only this server can have written them."""
        return self._seals.dumps(words)

    def unsealed(self, sealed: object) -> str | None:
        """Return the words of a seal; None if this server has not signed it."""
        try:
            return str(self._seals.loads(sealed)) if isinstance(sealed, str) else None
        except BadData:
            return None
