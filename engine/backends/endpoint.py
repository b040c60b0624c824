"""An HTTP endpoint: send a request and read an answer of any size, compressed or broken.

Every error raised here is one of our own types, without the key and without references to the exchange, because garbage
collection is rare during a run.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from ..errors import AnswerTooLarge, BackendError, ConfigurationError, Redirected, Rejected, Unavailable
from ..file_descriptors import ConnectionGate
from ..permissions import Endpoints, NotPermitted, permissions
from .base import OnRateLimit, parse_rate_limit_headers
from .endpoint_errors import Dialect, drop_traceback, error_from_response, transport_error
from .proxies import Proxies, Proxy, trusted_certificates
from .redaction import Redactor

T = TypeVar("T")

BYTE_ORDER_MARK = "\ufeff".encode()
_STEP = 1 << 18  # bytes decompressed at once
_LONGEST_PACKING = 20  # longer encoding names are not quoted, nor cut, because half a key could not be redacted
_LONGEST_ERROR = 1 << 16  # bytes read of an error answer
_HEADERS = {"Content-Type": "application/json", "User-Agent": "viva", "Accept-Encoding": "gzip, deflate"}
_NOT_PACKED = ("", "identity", "none", "chunked", "aws-chunked", "utf-8", "utf8", "7bit", "8bit", "binary")
_SUCCESS_STATUSES = (200, 201, 203)  # some frameworks answer every POST with 201
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_KEPT_METHOD = (307, 308)
_MOST_STALE = 3  # successive reused connections that the server had already closed


class AnswerBody:
    """An answer's body, decompressed piece by piece, of at most `longest` bytes."""

    def __init__(self, response: aiohttp.ClientResponse, longest: int, label: str) -> None:
        self.headers = response.headers
        self.status = response.status
        self.response = response
        self._content, self._longest, self._label = response.content, longest, label
        encodings = response.headers.get("Content-Encoding", "").lower().replace(" ", "").split(",")
        self._packing = ",".join(encoding for encoding in encodings if encoding not in _NOT_PACKED)
        self._unpack: Any = None
        self._rest = b""
        self._more = False  # True if the decompressor has more output from the last input
        self.bytes = 0

    @property
    def is_stream(self) -> bool:
        """Return True if this is an event stream. Some gateways stream without being asked."""
        return self.headers.get("Content-Type", "").lower().startswith("text/event-stream")

    async def piece(self) -> bytes:
        """Return the next bytes, b"" at the end. Raise if the body is too large, truncated or wrongly encoded."""
        while True:
            if self._rest or self._more:
                data, self._rest = self._rest, b""
                await asyncio.sleep(0)  # little input may expand a lot: let other tasks run
            else:
                data = await self._content.readany()
                if not data:
                    if self._unpack is not None and not self._unpack.eof:
                        raise Unavailable("the compressed answer was truncated", model=self._label)
                    return b""
            piece = self._unpacked(data) if self._packing else data
            self.bytes += len(piece)
            if self.bytes > self._longest:
                raise AnswerTooLarge(
                    f"the answer is longer than {self._longest / 1e6:g} MB (option answer_mb)", model=self._label
                )
            if piece:
                return piece

    async def read_all(self) -> bytes:
        """Return the whole body without the byte order mark that some endpoints send."""
        pieces = [await self.piece()]
        if self._unpack is None and self._content.at_eof():
            return pieces[0].removeprefix(BYTE_ORDER_MARK)  # the usual case
        while piece := await self.piece():
            pieces.append(piece)
        return b"".join(pieces).removeprefix(BYTE_ORDER_MARK)

    async def lines(self, longest: int, longest_body: int) -> AsyncIterator[bytes | None]:
        """Yield the non-empty lines of a body of at most `longest_body` bytes; None for a line of over `longest`."""
        self._longest = longest_body
        rest, is_cut = bytearray(), False
        while piece := await self.piece():
            *ends, tail = piece.split(b"\n")
            for end in ends:
                if not is_cut:
                    rest += end
                if is_cut or len(rest) > longest:
                    yield None
                elif rest.strip():
                    yield bytes(rest)
                rest, is_cut = bytearray(), False
            if not is_cut:
                rest += tail
            if len(rest) > longest:
                rest, is_cut = bytearray(), True
        if is_cut:
            yield None
        elif rest.strip():
            yield bytes(rest)

    async def head(self, longest: int = _LONGEST_ERROR) -> bytes:
        """Return the beginning of the body for an error message. The body may be truncated or broken."""
        self._longest = sys.maxsize
        pieces, count = [], 0
        try:
            while count < longest and (piece := await self.piece()):
                pieces.append(piece)
                count += len(piece)
        except BackendError:
            pass
        return b"".join(pieces)[:longest]

    def _unpacked(self, data: bytes) -> bytes:
        if self._unpack is None:
            self._unpack = self._unpacker(data)
        elif self._unpack.eof:
            if self._packing == "deflate" or not data.startswith(b"\x1f"):
                self._more = False
                return b""  # padding that some servers append
            self._unpack = self._unpacker(data)  # gzip data may have several members
        try:
            piece: bytes = self._unpack.decompress(data, _STEP)
        except zlib.error as error:
            raise Unavailable(f"the answer is not compressed as {self._packing}: {error}", model=self._label) from None
        self._more = len(piece) == _STEP
        self._rest = self._unpack.unconsumed_tail or self._unpack.unused_data
        return piece

    def _unpacker(self, data: bytes) -> Any:
        if self._packing in ("gzip", "x-gzip"):
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        if self._packing == "deflate":  # endpoints disagree on whether it has a zlib header
            return zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        named = f"'{self._packing}'" if len(self._packing) <= _LONGEST_PACKING else "an unknown encoding"
        raise Unavailable(f"the answer is compressed as {named}, which was not requested", model=self._label)


# True if this task's exchange reused an earlier connection.
_REUSED: ContextVar[bool] = ContextVar("reused")


class _Connector(aiohttp.TCPConnector):
    """A connector that reports new connections; cheaper per request than a trace."""

    async def _create_connection(self, *arguments: Any, **options: Any) -> Any:
        _REUSED.set(False)
        return await super()._create_connection(*arguments, **options)


class Endpoint:
    """An endpoint's HTTP session.

    Args:
        base_url: The URL that names the endpoint in errors; without secrets.
        headers: Sent with each request; `redact` knows the secrets in them.
        timeout: Seconds for one attempt, at most 10 of them to connect.
        longest: Maximum size of an answer in bytes, decompressed.
        key_advice: What to do about a refused key.
        dialect: How the endpoint words its errors.
        repeatable: True if a request may safely arrive twice.
        query: Encoded parameters added to each URL.
    """

    def __init__(
        self,
        base_url: str,
        redact: Redactor,
        timeout: float,
        longest: int,
        headers: Mapping[str, str],
        key_advice: str = "check the key (key_env=NAME names its variable)",
        dialect: Dialect | None = None,
        repeatable: bool = True,
        query: str = "",
    ) -> None:
        self.base_url, self.redact = base_url, redact
        self._dialect = dialect or Dialect()
        self._longest, self._key_advice, self._repeatable = longest, key_advice, repeatable
        self._query = query
        self._headers = CIMultiDict(_HEADERS)
        self._headers.update(headers)
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(10.0, timeout))
        self._session: aiohttp.ClientSession | None = None
        self._proxies: Proxies | None = None
        self._allowed = permissions().endpoints  # None: any endpoint is allowed
        self._refused = ""
        self._gate = ConnectionGate(base_url)
        self.on_rate_limit: OnRateLimit | None = None

    async def open(self) -> None:
        """Create the session."""
        # limit=0: the pool's default of 100 connections would silently cap concurrency, which the gate already limits.
        tls = trusted_certificates() if self.base_url[:5].lower() == "https" else None
        guarded = None if self._allowed is None else self._guarded_socket
        connector = _Connector(
            limit=0, ttl_dns_cache=300, keepalive_timeout=60, ssl=tls or True, socket_factory=guarded
        )
        proxies = Proxies()
        # A proxy would resolve the name itself, so endpoints named by a client are called directly.
        self._proxies = proxies if proxies and self._allowed is None else None
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers if self._proxies is None else None,  # a proxy would receive them, including keys
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # stored cookies would be sent later, and accumulate
        )
        self._gate.open()

    def _guarded_socket(self, address: Any) -> socket.socket:
        """Return a socket for this resolved address if clients may call it; the connection uses the same address."""
        family, kind, protocol, _, peer = address
        assert self._allowed is not None
        try:
            self._allowed.check_address(peer[0], self.base_url)
        except NotPermitted as error:
            self._refused = str(error)
            raise PermissionError(str(error)) from None  # expected by the connector, which tries the next address
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            self._gate.close()
            await self._session.close()

    @property
    def connections(self) -> int:
        """Maximum number of concurrent connections."""
        return self._gate.limit

    async def ask(
        self,
        label: str,
        url: str,
        data: bytes | None,
        receive: Callable[[AnswerBody], Awaitable[T]],
        *,
        accept: Callable[[int], bool] = _SUCCESS_STATUSES.__contains__,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send `data` by POST (None: GET) or by `method`, and pass an accepted answer to `receive`.

        Raises:
            BackendError: Any other answer or failure, as a typed error.
        """
        if self._query:
            url = f"{url}{'&' if '?' in url else '?'}{self._query}"
        try:
            async with self._gate:
                return await self._exchange(
                    label, url, method or ("GET" if data is None else "POST"), data, receive, accept, headers
                )
        except BackendError as error:
            # Messages that quote the endpoint are redacted before they are cut; this redacts all others.
            error.args = (self.redact(str(error)),)
            drop_traceback(
                error
            )  # a call that waits for its retry keeps the error; the error's frames would keep the whole answer
            error.__cause__ = error.__context__ = None
            failure = error
        except (TimeoutError, aiohttp.ClientError, OSError, UnicodeError) as error:  # UnicodeError: no valid host name
            proxy = None if self._proxies is None else self._proxies.for_url(url)
            failure = transport_error(label, self._error_url(url), error, self.redact, proxy)
            if self._refused:
                failure = Rejected(f"{self._error_url(url)}: {self._refused}", model=label)
            drop_traceback(error)
        try:
            raise failure  # outside the handler, so that the error does not reference its cause
        finally:
            del failure

    def error(self, label: str, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> BackendError:
        """Return the typed error for an unsuccessful answer, or for an error with this status in a stream."""
        return error_from_response(label, status, body, headers or {}, self.redact, self._key_advice, self._dialect)

    def _error_url(self, url: str) -> str:
        """Return the text that names this URL in errors."""
        return self.base_url if url.startswith(self.base_url) else self.redact(url.partition("?")[0])

    async def _exchange(
        self,
        label: str,
        url: str,
        method: str,
        data: bytes | None,
        receive: Callable[[AnswerBody], Awaitable[T]],
        accept: Callable[[int], bool],
        headers: Mapping[str, str] | None,
    ) -> T:
        """Send one request as in `ask`, raising untyped errors."""
        session = self._session
        if session is None:
            raise ConfigurationError(f"{label}: the backend is used outside its `async with`")
        hops = stale = 0
        through: dict[str, Any] = {}
        if self._proxies is not None:
            headers, through = self._through_proxy(self._proxies.for_url(url), url, headers)
        while True:
            answered = False
            _REUSED.set(True)
            try:
                async with session.request(
                    method, url, data=data, headers=headers, allow_redirects=False, **through
                ) as response:
                    answered = True
                    if self.on_rate_limit is not None:
                        for allowance in parse_rate_limit_headers(response.headers):
                            self.on_rate_limit(allowance)
                    if accept(response.status):
                        return await receive(AnswerBody(response, self._longest, label))
                    if response.status not in _REDIRECTS or "Location" not in response.headers:
                        body = await AnswerBody(response, self._longest, label).head()
                        raise self.error(label, response.status, body, response.headers)
                    url = _redirect_target(
                        response, method, label, self.redact, self._allowed, last=hops == _MOST_REDIRECTS
                    )
                hops += 1
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # Some servers close connections that they promised to keep (llama-server does after each stream). A
                # request sent on a closed connection reached nobody and is sent again at once on another one. If the
                # error has no errno, nothing was written; if it has one, the server might have read the request and
                # crashed on it.
                stale += 1
                written = not isinstance(error, aiohttp.ClientOSError) or error.errno is not None
                if not _REUSED.get() or answered or stale > _MOST_STALE or (written and not self._repeatable):
                    raise

    def _through_proxy(
        self, proxy: Proxy | None, url: str, headers: Mapping[str, str] | None
    ) -> tuple[Mapping[str, str], dict[str, Any]]:
        """Return a request's headers if proxies are in use, and aiohttp's arguments for this proxy."""
        whole = self._headers.copy()
        whole.update(headers or {})
        if proxy is None:
            return whole, {}
        login = {"Proxy-Authorization": proxy.login} if proxy.login else {}
        if url[:5].lower() == "https":
            return whole, {"proxy": proxy.url, "proxy_headers": login}
        whole.update(login)  # without TLS the proxy reads the request's headers
        return whole, {"proxy": proxy.url}


def _redirect_target(
    response: aiohttp.ClientResponse,
    method: str,
    label: str,
    redact: Redactor,
    allowed: Endpoints | None,
    *,
    last: bool,
) -> str:
    """Return the redirect's target; raise `Redirected` if the redirect must not be followed."""
    try:
        target = response.url.join(URL(response.headers["Location"]))
        same = target.origin() == response.url.origin() and (allowed is None or allowed.has(str(target)))
    except ValueError:
        target, same = URL(), False
    if same and not last and (method == "GET" or response.status in _KEPT_METHOD):
        return str(target)
    target_text = str(target.with_user(None).with_query(None)) if target.host else response.headers["Location"]
    reason = "in a loop" if same and last else f"to {redact.cut(target_text, 300)}"
    raise Redirected(
        f"HTTP {response.status}: {response.url.with_query(None)} redirects {reason}; nothing was sent there: "
        "use the right URL in the model's name",
        model=label,
        status=response.status,
    )
