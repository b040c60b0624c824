"""Permissions: what a file by others, and a client of a server, may name. All such decisions are made here.

Code runs only if the person at the command line has named it: as a word of the command, with `--python-tools`, or as an
argument of a Python program. A client of a server may name the operator's models and harmless models, but no code, no
environment variable, and no file outside of the operator's folders.

Everything that imports by name, opens a model by name or reads a variable that a name mentions asks `permissions()`.
Names in a file are also checked when the file is read, so that the error has file, line and field.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import orjson

from .errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from .backends.base import ModelSpec

PYTHON_TOOLS_OPTION = "--python-tools"
_SETTING = "python_tools"
SEAL = "granted"  # manifest field with the code that its run was permitted to import
# Kinds of models that use no network, read no variable and run no code.
_HARMLESS = ("fixed", "oracle", "recorded", "replay", "simulated")
_ENDPOINTS = ("openai", "anthropic", "gemini")
_PACKAGE = Path(__file__).resolve().parent.parent
_CODE = re.compile(r"^(?:[\w-]+=)?(?:\w+:)??(?:python:(?P<model>[^#?]+)|(?P<file>[^\s#?]+\.py)#\w+)")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Private addresses that `is_global` accepts, at least in some versions of Python.
_INNER: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("192.0.0.0/24", "100.64.0.0/10", "168.63.129.16/32", "fec0::/10", "64:ff9b:1::/48", "::/96"),
        *("::ffff:0:0:0/96", "3fff::/20", "5f00::/16"),  # IPv4-translated, documentation, segment routing
    )
)
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # NAT64: the last 32 bits are an IPv4 address


class NotPermitted(ConfigurationError):
    """A name that must not be used here. The message says who may permit it, and how."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints that clients may name: URL prefixes, up to a path segment, and networks in which any URL may be named.

    A URL entry does not allow other URLs at the same address.
    """

    urls: tuple[tuple[str, str, int, str], ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Endpoints:
        """Parse the operator's list: `https://host[:port][/path]`, an address, or a network in CIDR form.

        Raises:
            ConfigurationError: An entry is none of these.
        """
        urls, networks = [], []
        for entry in entries:
            if "://" in entry:
                parts = _url_parts(entry)
                if parts is None or any(sign in entry for sign in "?#*"):
                    raise ConfigurationError(f"--allow-endpoint {entry}: expected http(s)://HOST[:PORT][/PATH]")
                urls.append(parts)
                continue
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                raise ConfigurationError(
                    f"--allow-endpoint {entry}: expected a URL (https://HOST[:PORT][/PATH]), an address, or a network "
                    "such as 10.0.0.0/8"
                ) from None
        return cls(tuple(urls), tuple(networks))

    def has(self, url: str) -> bool:
        """Return True if a client may name this URL."""
        parts = _url_parts(url)
        if parts is None:
            return False
        scheme, host, port, path = parts
        for allowed in self.urls:
            if allowed[:3] == (scheme, host, port) and (path + "/").startswith(allowed[3].rstrip("/") + "/"):
                return True
        try:
            return self._is_in_network(ipaddress.ip_address(host))
        except ValueError:
            return False

    def check_address(self, text: str, url: str) -> None:
        """Raise `NotPermitted` for a private address that is neither the operator's nor the one in the URL itself."""
        address = ipaddress.ip_address(text.partition("%")[0])
        if not (is_public(address) or self._is_in_network(address) or _names_own_machine(url, address)):
            raise NotPermitted(
                f"{address} is not a public address; clients may use it only if the server was started with "
                f"--allow-endpoint {address}"
            )

    def _is_in_network(self, address: Address) -> bool:
        return any(embedded in network for embedded in _embedded_addresses(address) for network in self.networks)


@dataclass(frozen=True, slots=True)
class Client:
    """Limits on what a client may name.

    Attributes:
        operator: Permissions of the operator, under which the operator's models are opened.
        models: The operator's models by full name.
        folders: Folders that files may be in.
        endpoints: Further endpoints that may be named; they get no key.
    """

    operator: Permissions
    models: frozenset[str] = frozenset()
    folders: tuple[Path, ...] = ()
    endpoints: Endpoints = field(default_factory=Endpoints)

    def has_model(self, spec: ModelSpec) -> bool:
        """Return True if this is one of the operator's models, under any label."""
        from .backends.base import ModelSpec

        return any(_spec_identity(ModelSpec.parse(name)) == _spec_identity(spec) for name in self.models)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Allowed names: `code` has modules by name and Python files by full path; `client` restricts the rest."""

    code: frozenset[str] = frozenset()
    client: Client | None = None

    def check_code(self, name: str | Path, location: str = "") -> None:
        """Check that code may be imported; `location` (file, line and field) prefixes the error.

        Raises:
            NotPermitted: It was not granted.
            ConfigurationError: It is a Python file that does not exist.
        """
        text = str(name)
        if self.client is not None:
            raise NotPermitted(f"{location}{text}: is code, which a client must not name")
        if text in self.code or (is_python_file(text) and str(absolute_path(text)) in self.code):
            return
        if is_python_file(text) and not os.path.exists(absolute_path(text)):
            near = self.similar_name(Path(text))
            raise ConfigurationError(f"{location}{text}: no such Python file{near}")
        kind = "Python file" if is_python_file(text) else "Python module"
        raise NotPermitted(
            f"{location}the {kind} {text} is named in a file and would run as you; if you trust it, add "
            f"{PYTHON_TOOLS_OPTION} {text}"
        )

    def check_model(self, text: str, location: str = "") -> None:
        """Raise `NotPermitted` for a model that must not be opened here."""
        from .backends.base import ModelSpec

        if self.client is None and not text.startswith("python:"):
            return
        spec = ModelSpec.parse(text)
        if self.client is None:
            self.check_code(spec.where, f"{location}model '{text}': ")
            return
        if self.client.has_model(spec):
            return
        address = spec.where.lower()
        if spec.kind in _ENDPOINTS and address.startswith(("http://", "https://")):
            problem = self._endpoint_problem(spec)
        elif spec.kind in _HARMLESS:
            problem = ""
        else:
            problem = "is not one of the models that this server was started with (--model)"
        if problem:
            raise NotPermitted(f"{location}model '{spec.kind}:{_short_name(spec)}': {problem}")

    def _endpoint_problem(self, spec: ModelSpec) -> str:
        assert self.client is not None
        if "key_env" in spec.options:
            return "key_env: a client must not name a variable of the server; start the server with this --model"
        if not self.client.endpoints.has(spec.where):
            return "this server does not call this endpoint for clients (see --allow-endpoint, --model)"
        return ""

    def for_model(self, text: str) -> Permissions:
        """Return the permissions for opening a model: the operator's if the operator has listed the model."""
        from .backends.base import ModelSpec

        client = self.client
        return client.operator if client is not None and client.has_model(ModelSpec.parse(text)) else self

    def variable(self, name: str) -> str | None:
        """Return the value of an environment variable; raise `NotPermitted` for a client."""
        if self.client is not None:
            raise NotPermitted(f"{name}: a client must not name an environment variable of the server")
        return os.environ.get(name)

    def check_network(self, name: str) -> None:
        """Raise `NotPermitted` if a client requests access to another machine, other than for a model."""
        if self.client is not None:
            raise NotPermitted(f"{name}: needs another machine, which a client must not request")

    def check_writing(self, name: str) -> None:
        """Raise `NotPermitted` if a client requests to write a file outside of run folders."""
        if self.client is not None:
            raise NotPermitted(f"{name}: would be written, which a client must not request; name an existing file")

    def check_file(self, path: Path) -> None:
        """Raise `NotPermitted` for a file outside of the client's folders, without accessing it."""
        if self.client is None:
            return
        try:
            resolved = path.expanduser().resolve() if not str(path).startswith("~") else None
        except (OSError, RuntimeError, ValueError):  # too long, a NUL, or circular links: no file at all
            return
        if resolved is None or not any(resolved.is_relative_to(folder) for folder in (*self.client.folders, _PACKAGE)):
            raise NotPermitted(f"{str(path)[:100]!r} is outside of the folders that this server may read")

    def similar_name(self, path: Path) -> str:
        """Return `; did you mean 'items.jsonl'?` for a missing file, or ""; a client learns no names of files."""
        if self.client is not None:
            return ""
        try:
            return did_you_mean(path.name, os.listdir(path.expanduser().parent), cutoff=0.75)
        except (OSError, RuntimeError, ValueError):
            return ""

    @property
    def endpoints(self) -> Endpoints | None:
        """The allowed endpoints; None if all are allowed."""
        return None if self.client is None else self.client.endpoints


_granted = Permissions()
_bound: ContextVar[Permissions | None] = ContextVar("viva_permissions", default=None)


def permissions() -> Permissions:
    """Return the permissions of this context, else of this process."""
    return _bound.get() or _granted


@contextmanager
def bound_permissions(bounds: Permissions) -> Iterator[None]:
    """Apply these permissions while entered, in this context and the tasks that it starts."""
    token = _bound.set(bounds)
    try:
        yield
    finally:
        _bound.reset(token)


def grant(*names: str | Path) -> None:
    """Permit the import of modules and Python files in this process. A client's context cannot grant anything."""
    global _granted
    if permissions().client is None:
        _granted = replace(_granted, code=_granted.code | {_code_name(name) for name in names})


def begin_command(words: Sequence[str], tools: Sequence[str] = ()) -> None:
    """Permit the Python files among a command's words and the code of `--python-tools`, and nothing else."""
    global _granted
    _granted = Permissions()
    grant(*tools)
    grant_typed(*words)


def grant_typed(*words: str) -> None:
    """Permit the Python files among words that a person typed: of a command, or arguments of a program."""
    grant(*(path for word in words for path in _iter_typed_files(word)))


def is_python_file(name: str) -> bool:
    """Return True if a grant means a Python file, not a module."""
    return name.endswith(".py") or "/" in name


def absolute_path(name: str | Path) -> Path:
    """Return the full path of a file; raise `ConfigurationError` if it is no possible path."""
    try:
        return Path(name).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown home, a NUL
        raise ConfigurationError(f"{str(name)[:100]!r} is not a valid path: {error}") from None


def check_names(
    value: Any,
    name: str,
    folder: Path = Path(),
    line: Callable[[Sequence[str | int]], int] | None = None,
) -> None:
    """Check all texts in a file's value: none may name code that is not granted, and the file cannot grant any itself.

    Args:
        value: The parsed content of the file. Texts that are no names of code are ignored.
        name: Name of the file, for errors.
        folder: Base of relative paths in the file.
        line: Returns the line of a field, given its path of keys and indices.

    Raises:
        NotPermitted: A text names code that is not granted; the message has file, line and field.
    """
    for path, text in _iter_texts(value):
        match = _CODE.match(text)
        location = f"{name if line is None else f'{name}:{line(path)}'}: {'.'.join(map(str, path))}: "
        if _SETTING in path:
            raise NotPermitted(
                f"{location}a file cannot grant this; use {PYTHON_TOOLS_OPTION} {text} on the command line"
            )
        if match:
            code = match["model"] or match["file"]
            try:
                code = absolute_path(code) if code.startswith("~") else folder / code
                permissions().check_code(code, location)
            except NotPermitted:
                raise
            except ConfigurationError as error:
                raise ConfigurationError(f"{location}{error}") from None


def _iter_texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _iter_texts(entry, (*path, str(name)))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _iter_texts(entry, (*path, index))


def _iter_typed_files(word: str) -> Iterator[Path]:
    """Yield the Python files in a word of a command: `mine.py`, `python:mine.py#f`, `LABEL=mine.py#f`."""
    for end in re.finditer(r"\.py(?=$|[#?:@,=])", word):
        head = word[: end.end()]
        for start in (0, *(sign.end() for sign in re.finditer(r"[:=,]", head))):
            with suppress(ConfigurationError, OSError):
                path = absolute_path(head[start:])
                if path.is_file():
                    yield path


def _code_name(name: str | Path) -> str:
    return str(absolute_path(name)) if isinstance(name, Path) or is_python_file(name) else name


# -- permissions of a run, for its resume and report -------------------------------------------------------------------


def seal_manifest(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with the code granted now, sealed so that later reads by this user grant the same code.

    There is no seal if nothing is granted or no key can be stored.
    """
    plain = {name: value for name, value in record.items() if name != SEAL}
    code = sorted(permissions().code)
    key = _seal_key(make=True) if code else None
    return plain if key is None else plain | {SEAL: {"code": code, "seal": _seal(plain, code, key)}}


def grant_from_seal(record: Mapping[str, Any]) -> None:
    """Grant the code in a manifest's seal; a manifest by another user, or a modified one, grants nothing."""
    grant(*sealed_code(record))


def sealed_code(record: Mapping[str, Any]) -> list[str]:
    """Return the code that a manifest's seal grants: none if it is by another user, or was modified."""
    seal_record = record.get(SEAL)
    code = seal_record.get("code") if isinstance(seal_record, dict) else None
    seal = seal_record.get("seal") if isinstance(seal_record, dict) else None
    if not isinstance(code, list) or not isinstance(seal, str) or not all(isinstance(name, str) for name in code):
        return []
    key = _seal_key(make=False)
    with suppress(TypeError):  # nested too deeply to be written, so it is no manifest of ours
        if key is not None and hmac.compare_digest(_seal(record, code, key).encode(), seal.encode("utf-8", "replace")):
            return code
    return []


def _seal(record: Mapping[str, Any], code: list[str], key: bytes) -> str:
    plain = {name: value for name, value in record.items() if name != SEAL}
    data = orjson.dumps([plain, code], option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def _seal_key(*, make: bool) -> bytes | None:
    """Return this user's key; None if there is none, e.g. because it cannot be stored."""
    base = os.environ.get("XDG_STATE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".local" / "state") / "viva"
        file = folder / "seal.key"
        if make and not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "wb") as out:
                    out.write(secrets.token_bytes(32))
        key = file.read_bytes()
    except (OSError, RuntimeError):
        return None
    return key if len(key) == 32 else None


# -- endpoints ---------------------------------------------------------------------------------------------------------


def is_public(address: Address) -> bool:
    """Return True if an address, and every address embedded in it, is public."""
    return all(
        embedded.is_global and not embedded.is_multicast and not any(embedded in network for network in _INNER)
        for embedded in _embedded_addresses(address)
    )


def _embedded_addresses(address: Address) -> list[Address]:
    """Return an address, or the IPv4 addresses in it: mapped, 6to4, Teredo, NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    addresses: list[Address] = [address]
    if address.sixtofour is not None:
        addresses.append(address.sixtofour)
    if address.teredo is not None:
        addresses += address.teredo
    if address in _TRANSLATED:
        addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return addresses


def _url_parts(url: str) -> tuple[str, str, int, str] | None:
    """Return scheme, host, port and path of a URL; None if it cannot be compared."""
    try:
        parts = urlsplit(url)
        default_port = {"http": 80, "https": 443}[parts.scheme]
        port = default_port if parts.port is None else parts.port
    except (ValueError, KeyError):
        return None
    path = parts.path
    while (plain := unquote(path)) != path:
        path = plain
    steps = [step.partition(";")[0] for step in path.split("/")]  # some servers drop the part after the semicolon
    if not parts.hostname or "@" in parts.netloc or "\\" in url + path or "." in steps or ".." in steps:
        return None
    return parts.scheme, parts.hostname.rstrip("."), port, parts.path or "/"


def _names_own_machine(url: str, address: Address) -> bool:
    """Return True if a URL's host is this address, or localhost and the address one of this machine's own."""
    parts = _url_parts(url)
    if parts is None or parts[1] == "localhost":
        return parts is not None and all(embedded.is_loopback for embedded in _embedded_addresses(address))
    try:
        return _embedded_addresses(ipaddress.ip_address(parts[1])) == _embedded_addresses(address)
    except ValueError:
        return False


def _spec_identity(spec: ModelSpec) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
    options = sorted((name, value) for name, value in spec.options.items() if name != "label")
    return spec.kind, spec.where, spec.fragment, tuple(options)


def _short_name(spec: ModelSpec) -> str:
    return "{…}" if spec.where.startswith("{") else spec.where[:80]
