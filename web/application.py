"""Application of ``viva serve``: HTTP API and OpenAI endpoint in one aiohttp application, from start to shutdown.

At shutdown runs are stopped first, while clients may still watch them; then answers in flight get the same
grace period, and models are closed last.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from viva.engine.backends.registry import BackendPool
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.permissions import Client, Endpoints, Permissions, permissions

from .api.endpoints import Api
from .api.hosted_runs import RunHost
from .auth import TOKENS_VARIABLE, Access, add_headers, guard
from .listening import is_loopback, listen
from .openai.endpoints import OpenAIEndpoints as ModelEndpoints
from .openai.served_models import open_models


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server runs. ``models``: full names by served names. ``port`` 0 takes any free one. ``max_body``: bytes.
    ``most_tokens``: of an answer to a client that sets no bound. ``grace``: seconds for calls under way at the end.
    ``endpoints``: those that clients may name besides the models.
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
    """Serve while entered; gives the server's address.

    :raises ConfigurationError, BackendError: the options are wrong, the port is taken, or a model cannot be used.
    """
    options.check()
    async with BackendPool(RealClock()) as pool:
        models = await open_models(pool, options.models)
        host = RunHost(options.runs, models.texts)
        folders = (Path.cwd(), host.folder)
        client = Client(permissions(), frozenset(models.texts.values()), folders, options.endpoints)
        access = guard(options.access, Permissions(client=client))
        app = web.Application(middlewares=[access], client_max_size=options.max_body)
        app.on_response_prepare.append(add_headers(options.access))
        app.add_routes(Api(host, with_tokens=bool(options.access.tokens)).routes())
        app.add_routes(ModelEndpoints(models, options.most_tokens).routes())
        # Without it the generation of a client that has gone would go on to its end.
        runner = web.AppRunner(
            app,
            auto_decompress=False,  # little could become much in one step; packed bodies are refused
            handler_cancellation=True,
            access_log=None,
            logger=_quiet_logger(),
            shutdown_timeout=options.grace,
        )
        await runner.setup()
        try:
            yield await listen(runner, options.host, options.port)
        finally:
            await host.close(options.grace)
            await runner.cleanup()


def _quiet_logger() -> logging.Logger:
    """aiohttp logs requests that are no HTTP with tracebacks; faults of handlers are logged by ``problem_of``."""
    logger = logging.getLogger("viva.http")
    logger.setLevel(logging.CRITICAL)
    return logger
