"""Resolve a model name to its endpoint: URL, model, key, extra headers and query parameters.

All providers share this: `kind:MODEL` is a model of the provider's public API, `kind:URL#MODEL` a model of any other
endpoint with the same API. No message contains a key.
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

# host:port, localhost, or a path that ends like an endpoint's; model names look different.
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

    Args:
        kind: The kind in model names.
        url: The API's address.
        url_variable: Environment variable that may override the address.
        key_variable: Environment variable that usually holds the key.
        example: An example model name.
        path: The usual end of an endpoint's URL, for advice.
        unnamed: Model to use if a URL names none; "" if a URL must name one.
        calls: URL endings of single calls, which are cut off.
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
        """Return the endpoint's base URL, given that URL or the URL of a single call."""
        return (
            re.sub(rf"({self.calls})/*$", "", url, flags=re.IGNORECASE).rstrip("/") if self.calls else url.rstrip("/")
        )


@dataclass(slots=True, frozen=True)
class EndpointAddress:
    """Address of a model.

    `key` is None if no key is sent; no message contains a key. `headers` and `query` (encoded) are sent with each
    request; `secrets` are the values in them that come from the environment.
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
    """Build endpoint models without their keys: they can be inspected, but cannot answer."""
    token = _keyless.set(True)
    try:
        yield
    finally:
        _keyless.reset(token)


def resolve_endpoint(spec: ModelSpec, service: ProviderApi) -> EndpointAddress:
    """Return the address of a model, using the options `key_env`, `header.KEY` and `query.KEY`."""
    base_url, model, usual = _split_name(spec, service)
    variable = spec.take("key_env", usual)
    key = (permissions().variable(variable) or "").strip() or None if variable else None
    if variable and key is None and (variable != usual or base_url == service.url) and not _keyless.get():
        raise ConfigurationError(f"model '{spec.text}': no key in the environment variable {variable}; set it")
    if key is not None and not is_usable_key(key):
        raise ConfigurationError(
            f"the key in the environment variable {variable} is not plain text: a header takes printable ASCII "
            "characters without a backslash; set it again (typographic quotes, line breaks?)"
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
    """Replace `$NAME` and `${NAME}` in an option's value from the environment; add the values used to `secrets`."""
    if _keyless.get():
        return value
    filled, values = fill_from_environment(_REFERENCE.sub(r"${\1}", value), option, f"model '{spec.text}'")
    secrets += values
    return filled


def _split_name(spec: ModelSpec, service: ProviderApi) -> tuple[str, str, str | None]:
    """Return the URL, the model, and the environment variable that usually holds its key."""
    kind = service.kind
    if "#" in spec.text.partition("?")[2]:
        raise ConfigurationError(
            f"model '{spec.text}': a '#' after the '?'; the model comes before the options: "
            f"{kind}:URL#name?option=value (a '#' in a value is written %23)"
        )
    if spec.where.lower().startswith(("http://", "https://")):
        model = spec.fragment or service.unnamed
        if not model:
            raise ConfigurationError(f"model '{spec.text}': name the model after the URL: {kind}:{spec.where}#name")
        # A key for one endpoint is never sent to another: a URL has only the key that `key_env` names.
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
    """Refuse credentials in a URL from an environment variable, as parsing does for URLs in model names."""
    if has_url_credentials(base_url) or "?" in base_url or "#" in base_url:
        raise ConfigurationError(
            f"{service.url_variable} must not contain a password, or anything after '?' or '#', because it "
            f"appears in messages and records; put the key into {service.key_variable}"
        )
    if not base_url.lower().startswith(("http://", "https://")):
        raise ConfigurationError(f"{service.url_variable}={base_url}: a URL begins with http:// or https://")
