"""Applications of our servers: made here, guarded by an access object, and served until a signal.

`viva serve` is the HTTP API and the OpenAI endpoint in one application. At shutdown, runs are stopped first, while
clients can still watch them. Then requests in flight get the same grace period. Models are closed last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import hdrs, web

from viva.engine.errors import ConfigurationError
from viva.engine.permissions import Client, Endpoints, Permissions, bound_permissions, permissions

from .auth import SECURITY_HEADERS, TOKENS_VARIABLE, Access, is_loopback
from .problems import problem_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
    "Access-Control-Max-Age": "600",
}


def guarded_application(
    access: Access,
    routes: Iterable[web.RouteDef],
    answer_error: Callable[[web.Request, Exception], Awaitable[web.StreamResponse]],
    *,
    most_bytes: int,
    headers: Mapping[str, str] | None = None,
) -> web.Application:
    """Make an application that checks every request with `access` and answers every error with `answer_error`.

    Args:
        access: Decides which requests are accepted.
        routes: Routes to serve.
        answer_error: Makes the answer to a request that failed or was refused.
        most_bytes: Maximum size of a body.
        headers: Headers of every answer, besides `SECURITY_HEADERS` or instead of those with the same name.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.method == "OPTIONS" and request.headers.get(hdrs.ORIGIN) in access.origins:
                return web.Response(status=204, headers=_PREFLIGHT)
            access.check(request)
            return await handler(request)
        except ConnectionError:  # the client has disconnected
            raise
        except Exception as error:
            return await answer_error(request, error)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        for name, value in (SECURITY_HEADERS | dict(headers or {})).items():
            response.headers.setdefault(name, value)
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and origin in access.origins:
            response.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})

    app = web.Application(middlewares=[guard], client_max_size=most_bytes)
    app.on_response_prepare.append(add_headers)
    app.add_routes(routes)
    return app


_LONGEST_LINE = 32_768  # bytes of an address: a page of selected conversations with long names has up to 20,000


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, grace: float = 2.0, cancels: bool = False
) -> AsyncIterator[str]:
    """Serve an application while the context is entered; yield the address as `http://HOST:PORT`.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        grace: Seconds that requests in flight get at shutdown.
        cancels: True if a handler is cancelled when its client disconnects.

    Raises:
        ConfigurationError: The address or port is not available.
    """
    logger = logging.getLogger("viva.http")
    logger.setLevel(logging.CRITICAL)  # aiohttp would log malformed HTTP with tracebacks; we log our own errors
    runner = web.AppRunner(
        app,
        auto_decompress=False,  # compressed bodies are refused: a small one could expand to a large one in one step
        handler_cancellation=cancels,
        access_log=None,
        logger=logger,
        shutdown_timeout=grace,
        max_line_size=_LONGEST_LINE,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"--host {host} --port {port}: cannot listen: {reason}; use another port, or --port 0 for a free one"
            ) from None
        name, bound = runner.addresses[0][:2]
        yield f"http://[{name}]:{bound}" if ":" in name else f"http://{name}:{bound}"
    finally:
        await runner.cleanup()


async def serve_until_signal(
    server: AbstractAsyncContextManager[str],
    announce: Callable[[str], None],
    on_stop: Callable[[], None] | None = None,
    stop_seconds: float | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        server: The server to enter.
        announce: Gets the address as soon as the server answers.
        on_stop: Called at the first signal. If it is given, a second signal ends the process at once.
        stop_seconds: Seconds after the first signal in which the process ends, whatever its threads still do.

    Raises:
        ConfigurationError: The address or port is not available.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop_serving() -> None:
        if stop_seconds is not None and not stop.is_set():
            end = threading.Timer(stop_seconds, os._exit, (0,))
            end.daemon = True
            end.start()
        stop.set()

    for number in signals:
        loop.add_signal_handler(number, stop_serving)
    async with server as address:
        announce(address)
        await stop.wait()
        if on_stop is not None:
            for number in signals:
                loop.remove_signal_handler(number)
            on_stop()


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of `viva serve`.

    Attributes:
        models: Full model names by served name.
        port: Port to listen on; 0 picks a free one.
        max_body: Maximum size of a body in bytes.
        most_tokens: Maximum tokens of an answer if the client sets no limit.
        grace: Seconds that calls in flight get at shutdown.
        endpoints: Endpoints that clients may name besides the models.
    """

    access: Access
    runs: Path = Path("runs")
    models: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    max_body: int = 16_000_000
    most_tokens: int = 4096
    grace: float = 10.0
    endpoints: Endpoints = field(default_factory=Endpoints)

    def check(self) -> None:
        """Check that clients on other machines need a token.

        Raises:
            ConfigurationError: Clients on other machines could use the server without a token.
        """
        if not is_loopback(self.host) and not self.access.tokens:
            raise ConfigurationError(
                f"--host {self.host}: other machines can reach this server, so clients need a token: "
                f"pass --token-file, or set {TOKENS_VARIABLE}"
            )


@asynccontextmanager
async def serving(options: ServerOptions) -> AsyncIterator[str]:
    """Serve runs and models while the context is entered; yield the server's address.

    Raises:
        ConfigurationError: The options are wrong, or the port is not available.
        BackendError: A model cannot be used.
    """
    # Imported here, because servers of pages do not need these modules.
    from viva.engine.backends.registry import BackendPool
    from viva.engine.clock import RealClock

    from .api.endpoints import Api
    from .api.hosted_runs import RunHost
    from .openai.endpoints import OpenAIEndpoints
    from .openai.served_models import open_models

    options.check()
    async with BackendPool(RealClock()) as pool:
        models = await open_models(pool, options.models)
        host = RunHost(options.runs, models.texts)
        folders = (Path.cwd(), host.folder)
        granted = Permissions(
            client=Client(permissions(), frozenset(models.texts.values()), folders, options.endpoints)
        )

        @web.middleware
        async def with_permissions(request: web.Request, handler: Handler) -> web.StreamResponse:
            with bound_permissions(granted):  # naming a file or code in a request grants no permission
                return await handler(request)

        async def refuse(request: web.Request, error: Exception) -> web.Response:
            return problem_of(error).answer(request.path)

        routes = Api(host, with_tokens=bool(options.access.tokens)).routes()
        routes += OpenAIEndpoints(models, options.most_tokens).routes()
        app = guarded_application(options.access, routes, refuse, most_bytes=options.max_body)
        app.middlewares.append(with_permissions)
        # Otherwise an answer would be generated to its end after its client has disconnected.
        async with listening(app, options.host, options.port, grace=options.grace, cancels=True) as address:
            try:
                yield address
            finally:
                await host.close(options.grace)
