"""Access tokens: made at random, kept as SHA-256 hashes, compared in constant time.

A token has 256 random bits, so a plain hash is enough: there is nothing to guess that salt or stretching would slow.
What never belongs here: HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from viva.engine.errors import ConfigurationError

VARIABLE = "VIVA_TOKENS"
_SHORTEST = 20  # characters of a token that somebody has made up
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
        given = hashed(token).encode()
        for known in self._hashes:
            found |= hmac.compare_digest(known.encode(), given)
        return found


def hashed(token: str) -> str:
    """What is kept of a token: ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def read_tokens(file: Path | None) -> Tokens:
    """The tokens of a file (a name and a hash on each line; ``#`` begins a comment) and of the variable VIVA_TOKENS
    (tokens or hashes, separated by commas), which is taken out of the environment: no child process inherits it.

    :raises ConfigurationError: the file cannot be read, or holds something else; a token of the variable is short.
    """
    found = [] if file is None else _hashes_in(file)
    for text in os.environ.pop(VARIABLE, "").split(","):
        token = text.strip()
        if not token:
            continue
        if not _HASHED.fullmatch(token) and len(token) < _SHORTEST:
            raise ConfigurationError(
                f"{VARIABLE}: a token has {len(token)} characters and could be guessed: give at least {_SHORTEST}, or "
                "make one with `viva serve --token-file FILE --new-token NAME`"
            )
        found.append(token if _HASHED.fullmatch(token) else hashed(token))
    return Tokens(found)


def add_token(file: Path, name: str) -> str:
    """Make a token, append its hash to the file under this name, and return the token, which is kept nowhere.

    :raises ConfigurationError: the name is taken or has other than letters, digits, ``.``, ``_`` and ``-``; the file
        cannot be written.
    """
    if not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
        raise ConfigurationError(f"--new-token {name!r}: expected a name of letters, digits, '.', '_' and '-'")
    if file.exists() and any(line.split()[:1] == [name] for line in _lines(file)):
        raise ConfigurationError(f"{file}: has a token called {name} already; take its line out, or use another name")
    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as opened:
            opened.write(f"{name} {hashed(token)}\n")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from None
    return token


def _hashes_in(file: Path) -> list[str]:
    found = []
    for number, line in enumerate(_lines(file), 1):
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


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        told = "there is no such file; make it with `viva serve --token-file FILE --new-token NAME`"
        raise ConfigurationError(f"{file}: {told}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: the tokens cannot be read: {error}") from None
