"""`viva serve`: runs over HTTP, and an OpenAI-compatible endpoint in front of models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from viva.engine.errors import ConfigurationError

from .app import command
from .options import Host


@command("serve", "viva serve --model llama:model.gguf", "curl http://127.0.0.1:8000/v1/models", models=True)
def _serve(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="MODEL", help="Model to serve under /v1."),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="FOLDER", help="Folder of the runs under /api/v1.")] = Path(
        "runs"
    ),
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on (0: any free one).")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="File with the hashes of accepted tokens. The variable VIVA_TOKENS may hold more.",
        ),
    ] = None,
    new_token: Annotated[
        str | None,
        typer.Option(
            "--new-token",
            metavar="NAME",
            help="Make a token of this name, add its hash to --token-file, print the token and exit.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="HOST", help="Host name that clients may use for this server."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin", metavar="URL", help="Site whose pages may send requests, e.g. https://example.org."
        ),
    ] = None,
    allow_endpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-endpoint",
            metavar="URL",
            help="Endpoint that clients may name in runs: https://HOST[:PORT][/PATH], an address, or a network such as "
            "10.0.0.0/8. viva sends no key there.",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Token limit of answers if the client sets none.")
    ] = 4096,
    max_body: Annotated[
        float, typer.Option("--max-body", metavar="MB", min=0.001, help="Largest request body, in MB.")
    ] = 16.0,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds to wait for calls in flight before exit.")
    ] = 10.0,
) -> None:
    """Serve runs over HTTP under /api/v1, and models to OpenAI clients under /v1."""
    import asyncio

    from viva.engine.backends.registry import with_absolute_path
    from viva.engine.event_loop import gc_tuned
    from viva.engine.permissions import Endpoints
    from viva.web.application import ServerOptions, serve_until_signal, serving
    from viva.web.auth import Access, add_token, read_tokens
    from viva.web.openai.served_models import served_names

    if new_token is not None:
        if token_file is None:
            raise ConfigurationError("--new-token: needs --token-file FILE for the token's hash")
        print(add_token(token_file, new_token))
        return
    hosts = [name.lower() for name in allow_host or []]
    access = Access(read_tokens(token_file), hosts, allow_origin or [])
    models = served_names(with_absolute_path(text) for text in model or [])
    options = ServerOptions(access, runs, models, host, port, int(max_body * 1e6), max_tokens, grace,
                            Endpoints.parse(allow_endpoint or []))  # fmt: skip

    def announce(address: str) -> None:
        names = ", ".join(models) or "none"
        print(f"viva serves {address} (API {address}/api/v1, models under {address}/v1: {names})", flush=True)

    def on_stop() -> None:
        print("stopping: runs can be resumed (Ctrl-C again to stop now)", file=sys.stderr, flush=True)

    with gc_tuned():
        asyncio.run(serve_until_signal(serving(options), announce, on_stop))
