"""`viva control`: steer a run that goes on in another process, through the socket in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from viva.engine.errors import ConfigurationError

from .app import command
from .options import Json

_VERBS = "status, pause [MODEL], resume [MODEL], drain, stop, set MODEL NAME=VALUE…, cancel KEY…, requeue [KEY…], add"


@command(
    "control",
    "viva control runs/a",
    "viva control runs/a set gpt-4o concurrency=20 rpm=500",
    "viva control runs/a requeue --failed",
)
def _control(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="REQUEST", help=f"One of: {_VERBS}.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Number of items to add.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Requeue all failed conversations.")] = False,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Requeue failures that mention it; with cancel: why."),
    ] = None,
    json: Json = False,
) -> None:
    """Steer a run that goes on: pause it, change limits, cancel, repeat or add conversations.

    Limits: concurrency, rpm, tpm; 0 is no limit. drain finishes the conversations in flight, stop the calls in flight.
    """
    from viva.orchestration.control import ControlRequest
    from viva.orchestration.control_socket import ask

    from .output import print_json, print_text

    if not (run / "manifest.json").exists():
        raise ConfigurationError(f"{run}: not a run folder")
    request = ControlRequest.read(_fields(words or ["status"]) | _options(n=n, failed=failed, reason=reason))
    answer = ask(run, request)
    if json:
        print_json(answer)
        return
    print_text(f"{answer['message']}\n")
    if request.do == "status":
        for label, model in answer["status"]["models"].items():
            parts = ["paused"] if model.pop("paused") else []
            parts += [f"{name} {value}" for name, value in model.items() if value is not None]
            print_text(f"{label}: {', '.join(parts) or 'no limits'}\n")


def _fields(words: list[str]) -> dict[str, Any]:
    """Return the fields of a request from its words.

    Raises:
        ConfigurationError: A word is missing or superfluous.
    """
    verb, *rest = words
    fields: dict[str, Any] = {"do": verb}
    if verb in ("cancel", "requeue"):
        return fields | ({"keys": rest} if rest else {})
    if verb in ("pause", "resume", "set") and rest:
        fields["model"] = rest.pop(0)
    for word in rest:
        name, mark, value = word.partition("=")
        if verb != "set" or not mark or not value.isdecimal():
            raise ConfigurationError(f"{verb}: cannot read '{word}'; expected {_VERBS}")
        fields[name] = int(value)
    return fields


def _options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, False)}
