"""Applications of our servers: every one is made here, guarded by its ``Access``, and listens until a signal.

``viva serve`` is the HTTP API and the OpenAI endpoint in one application. At its shutdown runs are stopped first,
while clients may still watch them; then answers in flight get the same grace period, and models are closed last.
"""

from __future__ import annotations

import asyncio
import logging
import signal
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
    """Make an application that lets in what ``access`` does and answers every error in its own form.

    Args:
        access: Which requests are let in.
        routes: What is served.
        answer_error: Makes the answer to a request that failed or is refused.
        most_bytes: Size of a body at most.
        headers: Those of every answer that differ from ``SECURITY_HEADERS``.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.method == "OPTIONS" and request.headers.get(hdrs.ORIGIN) in access.origins:
                return web.Response(status=204, headers=_PREFLIGHT)
            access.check(request)
            return await handler(request)
        except ConnectionError:  # the client has gone
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


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, grace: float = 2.0, cancels: bool = False
) -> AsyncIterator[str]:
    """Serve an application while entered; gives its address as ``http://HOST:PORT``. Port 0 takes a free one.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on.
        grace: Seconds for requests under way at the end.
        cancels: A handler is cancelled when its client goes away.

    Raises:
        ConfigurationError: Nobody can listen there.
    """
    logger = logging.getLogger("viva.http")
    logger.setLevel(logging.CRITICAL)  # requests that are no HTTP would be logged with tracebacks; our faults are
    runner = web.AppRunner(
        app,
        auto_decompress=False,  # little could become much in one step; packed bodies are refused
        handler_cancellation=cancels,
        access_log=None,
        logger=logger,
        shutdown_timeout=grace,
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"--host {host} --port {port}: cannot listen there: {reason}; name another port, or --port 0 for a "
                "free one"
            ) from None
        name, bound = runner.addresses[0][:2]
        yield f"http://[{name}]:{bound}" if ":" in name else f"http://{name}:{bound}"
    finally:
        await runner.cleanup()


async def serve_until_signal(
    server: AbstractAsyncContextManager[str],
    announce: Callable[[str], None],
    on_stop: Callable[[], None] | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; ``announce`` gets the address as soon as it answers.

    With ``on_stop``, which is called then, a second signal ends the process at once.

    Raises:
        ConfigurationError: Nobody can listen there.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    async with server as address:
        announce(address)
        await stop.wait()
        if on_stop is not None:
            for number in signals:
                loop.remove_signal_handler(number)
            on_stop()


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How ``viva serve`` runs. ``models``: full names by served names. ``port`` 0 takes any free one. ``max_body``:
    bytes. ``most_tokens``: of an answer to a client that sets no bound. ``grace``: seconds for calls under way at the
    end. ``endpoints``: those that clients may name besides the models.
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
        """:raises ConfigurationError: others could reach the server, and no token would be asked of them."""
        if not is_loopback(self.host) and not self.access.tokens:
            raise ConfigurationError(
                f"--host {self.host}: other machines can reach this, so clients must be asked for a token: name a "
                f"--token-file, or set {TOKENS_VARIABLE}"
            )


@asynccontextmanager
async def serving(options: ServerOptions) -> AsyncIterator[str]:
    """Serve runs and models while entered; gives the server's address.

    Raises:
        ConfigurationError: The options are wrong, or the port is taken.
        BackendError: A model cannot be used.
    """
    # Servers of pages do without these.
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
            with bound_permissions(granted):  # what a request names means no more, for all that follows from it
                return await handler(request)

        async def refuse(request: web.Request, error: Exception) -> web.Response:
            return problem_of(error).answer(request.path)

        routes = Api(host, with_tokens=bool(options.access.tokens)).routes()
        routes += OpenAIEndpoints(models, options.most_tokens).routes()
        app = guarded_application(options.access, routes, refuse, most_bytes=options.max_body)
        app.middlewares.append(with_permissions)
        # The generation of a client that has gone would go on to its end otherwise.
        async with listening(app, options.host, options.port, grace=options.grace, cancels=True) as address:
            try:
                yield address
            finally:
                await host.close(options.grace)
