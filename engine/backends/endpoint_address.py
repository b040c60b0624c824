"""From a model's name to the endpoint that serves it: URL, model, key, extra headers and query parameters.

Shared by all kinds of provider: ``kind:MODEL`` is a model of the provider's public API, ``kind:URL#MODEL`` one
of any other endpoint that speaks like it. No message shows a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from ..errors import ConfigurationError
from ..permissions import permissions
from .base import ModelSpec
from .http_application_mapping import fill_from_environment
from .model_name import has_url_credentials
from .redaction import is_usable_key

# host:port, localhost, or a path that ends as endpoints' paths do; models' names are none of these.
_LOOKS_LIKE_URL = re.compile(
    r"//|[\w.-]+:\d+(/|$)|localhost(/|$)|\d+(\.\d+){3}(/|$)|[\w.-]+\.[a-z]+/(.*/)?(v\d+|completions|messages)/?$",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = ("accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding")


@dataclass(slots=True, frozen=True)
class ProviderApi:
    """A provider's public API.

    :param kind: the kind of its models' names. :param url: its address. :param url_variable: the environment variable
        that may hold another one. :param key_variable: the one that usually holds the key. :param example: a model.
    :param path: how the URL of an endpoint ends, for advice. :param unnamed: the model of a URL that names none; empty
        where it must name one. :param calls: how the URLs of single calls end, which are named in place of the
        endpoint's own: what ends so is cut.
    """

    kind: str
    url: str
    url_variable: str
    key_variable: str
    example: str
    path: str = ""
    unnamed: str = ""
    calls: str = ""

    def base_of(self, url: str) -> str:
        """The endpoint's own URL, from one that may be that of a single call."""
        return (
            re.sub(rf"({self.calls})/*$", "", url, flags=re.IGNORECASE).rstrip("/") if self.calls else url.rstrip("/")
        )


@dataclass(slots=True, frozen=True)
class EndpointAddress:
    """Where a model is served. ``key`` is None where none is sent; no message shows it. ``headers`` and ``query`` (of
    the URL, encoded) are sent with each request; ``secrets`` are the values in them that came from the environment.
    """

    base_url: str
    model: str
    key: str | None = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)


_keyless: ContextVar[bool] = ContextVar("keyless", default=False)


@contextmanager
def without_keys() -> Iterator[None]:
    """Have models of endpoints made without their keys: they can be looked at, and answer nothing."""
    token = _keyless.set(True)
    try:
        yield
    finally:
        _keyless.reset(token)


def resolve_endpoint(spec: ModelSpec, service: ProviderApi) -> EndpointAddress:
    """Return the place that a model's name means, with the options ``key_env``, ``header.KEY`` and ``query.KEY``."""
    base_url, model, usual = _split_name(spec, service)
    variable = spec.take("key_env", usual)
    key = (permissions().variable(variable) or "").strip() or None if variable else None
    if variable and key is None and (variable != usual or base_url == service.url) and not _keyless.get():
        raise ConfigurationError(f"model '{spec.text}': no key in the environment variable {variable}; set it")
    if key is not None and not is_usable_key(key):
        raise ConfigurationError(
            f"the key in the environment variable {variable} is not plain text: a header can hold printable ASCII "
            "characters, and no backslash; set it anew (typographic quotes, line breaks?)"
        )
    secrets: list[str] = []
    headers = {name: _check_header(spec, name, value, secrets) for name, value in spec.group("header").items()}
    query = {
        name: _expand_variables(spec, f"query.{name}", value, secrets) for name, value in spec.group("query").items()
    }
    return EndpointAddress(
        service.base_of(base_url), model, key, headers, urlencode(query, quote_via=quote), tuple(secrets)
    )


def _check_header(spec: ModelSpec, name: str, value: str, secrets: list[str]) -> str:
    filled = _expand_variables(spec, f"header.{name}", value, secrets)
    if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS or not is_usable_key(filled.replace("\\", "")):
        raise ConfigurationError(
            f"model '{spec.text}': header.{name}: expected the name of a header that the client does not set itself, "
            "with a value of printable ASCII characters"
        )
    return filled


def _expand_variables(spec: ModelSpec, option: str, value: str, secrets: list[str]) -> str:
    """Return an option's value with ``$NAME`` and ``${NAME}`` read from the environment, which are kept as secrets."""
    if _keyless.get():
        return value
    filled, values = fill_from_environment(_REFERENCE.sub(r"${\1}", value), option, f"model '{spec.text}'")
    secrets += values
    return filled


def _split_name(spec: ModelSpec, service: ProviderApi) -> tuple[str, str, str | None]:
    """URL, model, and the variable that usually holds the key for it."""
    kind = service.kind
    if "#" in spec.text.partition("?")[2]:
        raise ConfigurationError(
            f"model '{spec.text}': a '#' behind the '?'; the model stands before the options: "
            f"{kind}:URL#name?option=value (a '#' in a value is written %23)"
        )
    if spec.where.lower().startswith(("http://", "https://")):
        model = spec.fragment or service.unnamed
        if not model:
            raise ConfigurationError(f"model '{spec.text}': name the model behind the URL: {kind}:{spec.where}#name")
        # A key for one place is never sent to another: a URL's key is named with it, or there is none.
        return spec.where, model, None
    if _LOOKS_LIKE_URL.match(spec.where):
        raise ConfigurationError(
            f"model '{spec.text}': an endpoint's URL begins with http:// or https://: "
            f"{kind}:http://{spec.where}#{spec.fragment or 'name'}"
        )
    if not spec.where:
        raise ConfigurationError(
            f"model '{spec.text}': name a model ({kind}:{service.example}) or a URL ({kind}:http://…{service.path}#name)"
        )
    base_url = permissions().variable(service.url_variable) or service.url
    _check_variable(base_url, service)
    return base_url, spec.where, service.key_variable


def _check_variable(base_url: str, service: ProviderApi) -> None:
    """What is looked at in names when they are parsed, of a URL that none was seen to."""
    if has_url_credentials(base_url) or "?" in base_url or "#" in base_url:
        raise ConfigurationError(
            f"{service.url_variable} must not hold a password, nor anything behind '?' or '#': it stands in messages "
            f"and records; put the key in {service.key_variable}"
        )
    if not base_url.lower().startswith(("http://", "https://")):
        raise ConfigurationError(f"{service.url_variable}={base_url}: a URL begins with http:// or https://")
