"""Model names before parsing: JSON objects inside a name, and the refusal of names that contain a key.

Names are written to manifests, tables and messages, so none may contain a credential. A name such as `http:{"url":
…}#fragment?option=value` contains a JSON object with any characters, which is cut out before the rest is parsed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from ..errors import ConfigurationError

_INLINE_KINDS = ("http",)  # kinds whose location may be an object; for others a brace is part of a path or a name


class InlineMapping(NamedTuple):
    """A JSON object in a name: `text` is the object as written, `behind` the rest of the name."""

    kind: str
    text: str
    value: dict[str, Any]
    behind: str


def find_inline_mapping(name: str) -> InlineMapping | None:
    """Return the JSON object in a model name, or None. No message repeats the name, which may contain a key."""
    kind, _, rest = name.partition(":")
    if kind not in _INLINE_KINDS or not rest.startswith("{"):
        return None
    try:
        value, end = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys).raw_decode(rest)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"a model of kind '{kind}': its mapping in braces is not JSON: {error.msg} at character {error.pos + 1}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"a model of kind '{kind}': its mapping in braces cannot be read: {error}") from None
    behind = rest[end:]
    if behind and behind[0] not in "#?":
        raise ConfigurationError(
            f"a model of kind '{kind}': after its mapping in braces comes '{behind[:20]}'; expected nothing, #name "
            "or ?option=value"
        )
    return InlineMapping(kind, rest[:end], value, behind)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{twice}' is given twice; remove one of them")
    return mapping


# Kinds whose location is a file or folder: "@" and ":" are ordinary characters there.
_PATH_KINDS = ("llama", "hf", "replay", "human")
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*:[/\\]+|https?:|[/\\]{2})[/\\]*", re.IGNORECASE)
# user:password@host with a port or a path; a version, as in model:8b@2024, is part of a name.
_WITHOUT_SCHEME = re.compile(r"[^/?#@:]+:[^/?#@]+@[^/?#@]*(?:/|:\d+(?:[?#]|$))")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(?:[A-Za-z_]|\{[A-Za-z_][A-Za-z0-9_]*\})")
_LOGIN = re.compile(r"(?:bearer|basic|token)\s+\S", re.IGNORECASE)  # in the value of a header
# Names, without separators, of options that hold a key in other programs. No kind of ours has one of them.
_OPTIONS = frozenset(
    [
        "accesskey",
        "accesstoken",
        "apikey",
        "apitoken",
        "auth",
        "authkey",
        "authorization",
        "authtoken",
        "bearer",
        "bearertoken",
        "clientsecret",
        "key",
        "passwd",
        "password",
        "secret",
        "secretkey",
        "token",
        "xapikey",
    ]
)
# Endings of headers that hold a key.
_HEADERS = re.compile(r"(authorization|cookie|key|token|secret|password|auth)$", re.IGNORECASE)
USE_VARIABLE_ADVICE = "put the key into an environment variable and write ${NAME} in its place"
_DECODINGS = 5  # passes of percent-decoding, for encoded percent signs


def refuse_credentials(text: str) -> None:
    """Refuse a model name that contains a password or key. The message does not repeat the name.

    Raises:
        ConfigurationError: The URL has user information (`user:password@host`, in any letter case or percent encoding),
            an option is named like a key, `key_env` is no valid variable name, or a mapping in braces has a key in a
            URL or a header.
    """
    inline = find_inline_mapping(text)
    if inline is not None:
        _refuse_in_mapping(inline.kind, inline.value)
        text = f"{inline.kind}:{inline.behind}"
    if text.isascii() and not any(sign in text for sign in "@%?"):  # most names
        return
    kind, _, rest = text.partition(":")
    kind = kind.partition("?")[0]
    if _has_login_in_address(kind, rest):
        raise ConfigurationError(
            f"a model of kind '{kind}': its URL holds a user name or a password before '@'; model names are "
            "written to files and messages: remove it, put the key into an environment variable and name the "
            "variable with ?key_env=NAME"
        )
    for name, value in parse_qsl(text.partition("?")[2], keep_blank_values=True):
        if _looks_like_key(name):
            raise ConfigurationError(
                f"a model of kind '{kind}': its option {name} would put a key into files and messages: remove it, "
                "put the key into an environment variable and name the variable with ?key_env=NAME"
            )
        if _is_secret_in(name, value):
            raise ConfigurationError(
                f"a model of kind '{kind}': its option {name} would put a key into files and messages: remove it, "
                f"put the key into an environment variable and name the variable, as in {name}=$NAME"
                if not name.startswith("body.")
                else f"a model of kind '{kind}': its option {name} would put a key into files and messages: remove "
                "it, and send the key in a header that names an environment variable, as in header.NAME=$NAME"
            )
        if name == "key_env" and value and not _VARIABLE.fullmatch(value):
            raise ConfigurationError(
                f"a model of kind '{kind}': key_env is not the name of an environment variable; if it is the key "
                "itself, put the key into a variable and name the variable"
            )


def _is_secret_in(name: str, value: str) -> bool:
    """Return True if an option `header.KEY`, `query.KEY` or `body.KEY` contains a literal key."""
    group, dot, key = name.partition(".")
    if not dot or not value or (group != "body" and _REFERENCE.search(value)):
        return False
    last = key.rpartition(".")[2]
    if group == "header":
        return bool(_HEADERS.search(key) or _LOGIN.match(value))
    return group in ("query", "body") and (_looks_like_key(last) or (group == "query" and bool(_HEADERS.search(last))))


def secret_in_url(url: str) -> str:
    """Return the part of a mapping's URL that contains a literal key, or ""."""
    if has_url_credentials(url):
        return "holds a user name or a password before '@'"
    for name, value in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if _looks_like_key(name) and value and "${" not in value:
            return f"holds a key, in its parameter {name}"
    return ""


def is_secret_header(name: str, value: str) -> bool:
    """Return True if a header of a mapping contains a literal key."""
    return bool(_HEADERS.search(name)) and bool(value) and "${" not in value


def _refuse_in_mapping(kind: str, value: object) -> None:
    """Refuse literal keys in URLs and headers anywhere in a mapping."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        if name == "url" and isinstance(inner, str) and (secret := secret_in_url(inner)):
            raise ConfigurationError(f"a model of kind '{kind}': its url {secret}; {USE_VARIABLE_ADVICE}")
        for header, text in inner.items() if name == "headers" and isinstance(inner, dict) else ():
            if isinstance(text, str) and is_secret_header(header, text):
                raise ConfigurationError(
                    f"a model of kind '{kind}': its header {header} holds a key; {USE_VARIABLE_ADVICE}"
                )
        _refuse_in_mapping(kind, inner)


def describe_value(value: object) -> str:
    """Describe a wrong value for a message; for a mapping give only the names, because it may contain a key."""
    if isinstance(value, dict):
        return f"a mapping of {', '.join(map(str, value))[:200] or 'nothing'}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return f"a list of {len(value)}"
    return repr(value)


def _looks_like_key(name: str) -> bool:
    return re.sub("[^a-z]", "", name.lower()) in _OPTIONS


def has_url_credentials(url: str) -> bool:
    """Return True if a URL contains user information."""
    return _has_login_in_address("", url)


def _has_login_in_address(kind: str, rest: str) -> bool:
    plain = rest
    for _ in range(_DECODINGS):
        plain, before = unquote(plain), plain
        if plain == before:
            break
    # URL parsers drop blanks and normalise wide characters.
    plain = re.sub("[\x00-\x20\x7f]", "", unicodedata.normalize("NFKC", plain))
    match = _URL.match(plain)
    if match is None:
        if kind in _PATH_KINDS:
            return False
        return _WITHOUT_SCHEME.match(plain) is not None
    address = re.split(r"[/\\]", plain[match.end() :], maxsplit=1)[0]
    host = re.split("[?#]", address, maxsplit=1)[0]
    if "@" in host:
        return True
    # A password may contain "?" or "#": the apparent port is then the beginning of the password.
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return "@" in address and bool(port) and not port.isdigit()
