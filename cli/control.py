"""`viva control`: steer a run that goes on in another process, through the socket in its folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from viva.engine.errors import ConfigurationError, did_you_mean

from .app import command
from .options import Json, Selected, selected_keys

_VERBS = "status, pause [MODEL], resume [MODEL], drain, stop, set MODEL NAME=VALUE…, cancel KEY…, requeue [KEY…], add"
_LONGEST_NUMBER = 18  # digits
_MAX_NAMED_CELLS = 6


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
        typer.Option("--reason", metavar="TEXT", help="Requeue failures that mention it; with cancel: the reason."),
    ] = None,
    select: Selected = None,
    json: Json = False,
) -> None:
    """Steer a run that goes on: pause it, change limits, cancel, repeat or add conversations.

    Limits: concurrency, rpm, rps, tpm; 0 is no limit.

    drain ends the run after the conversations that have begun; stop ends it after the calls in flight.
    """
    from viva.orchestration.control import ControlRequest
    from viva.orchestration.control_socket import NotRunning, ask
    from viva.reports.tables import one_line

    from .output import print_json, print_text

    _check_folder(run, words or [])
    fields = _fields(words or ["status"]) | _options(n=n, failed=failed, reason=reason)
    if select is not None:
        fields["keys"] = [*dict.fromkeys([*fields.get("keys", ()), *selected_keys(select)])]
    request = ControlRequest.read(fields)
    try:
        answer = ask(run, request)
    except NotRunning:
        if text := _finished_text(run):
            raise ConfigurationError(text) from None
        raise
    if json:
        print_json(answer)
        return
    print_text(f"{one_line(answer['message'])}\n")
    if request.do == "status":
        for label, model in answer["status"]["models"].items():
            parts = ["paused"] if model.pop("paused") else []
            parts += [f"{name.replace('_', ' ')} {value}" for name, value in model.items() if value is not None]
            print_text(f"{one_line(label)}: {', '.join(parts) or 'no limits'}\n")


def _check_folder(run: Path, words: list[str]) -> None:
    """Raise ConfigurationError if this is no run; the message names the runs of a sweep, and the right order."""
    from viva.orchestration.control import VERBS
    from viva.sweeps.sweep_folder import is_sweep

    if (run / "manifest.json").exists():
        return
    if is_sweep(run):
        raise ConfigurationError(_describe_cells(run))
    named = next((word for word in words if (Path(word) / "manifest.json").exists()), None)
    if str(run) in VERBS and named is not None:
        rest = [str(run), *(word for word in words if word != named)]
        right = shlex.join(["viva", "control", named, *rest])
        raise ConfigurationError(f"'{run}' is a request and '{named}' a run: name the run first, `{right}`")
    raise ConfigurationError(f"{run}: not a run folder")


def _finished_text(run: Path) -> str:
    """Return that all conversations of a run have ended; "" if some have not, or their number is unknown."""
    from viva.engine.journal_reader import History
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.completeness import planned_in_total

    folder = RunFolder.open(run)
    planned = planned_in_total(folder)
    with History(folder.journal) as history:
        ended, finished = len(history.ended_numbers()), len(history.ended_numbers(failed=False))
    if planned is None or ended < planned:
        return ""
    failed, quoted = ended - finished, shlex.quote(str(run))
    advice = f"; {failed:,} failed, which `viva resume --retry-failed {quoted}` repeats" if failed else ""
    return f"{run}: this run has ended, with all {planned:,} conversations{advice}"


def _describe_cells(sweep: Path) -> str:
    """Return a message that names the cells, and the shards of cells, that this machine is running."""
    from viva.engine.files import shell_path
    from viva.engine.run_folder import is_running
    from viva.sweeps.recorded_sweep import read_sweep
    from viva.sweeps.sweep_folder import shards_of

    folders: list[Path] = []
    for cell in read_sweep(sweep).cells:
        folders += [sweep / cell.name, *(path for _, path in shards_of(sweep / cell.name))]
    running = [f"`viva control {shell_path(path)}`" for path in folders if is_running(path)]
    more = f", and {len(running) - _MAX_NAMED_CELLS:,} more" if len(running) > _MAX_NAMED_CELLS else ""
    names = ", ".join(running[:_MAX_NAMED_CELLS]) + more
    now = f"these go on now: {names}" if running else "none of them goes on now on this machine"
    return f"{sweep}: a sweep, whose cells are steered one by one; {now}"


def _fields(words: list[str]) -> dict[str, Any]:
    """Return the fields of a request from its words.

    Raises:
        ConfigurationError: A word is missing or superfluous.
    """
    from viva.orchestration.control import LIMIT_NAMES, VERBS

    verb, *rest = words
    fields: dict[str, Any] = {"do": verb}
    if verb in ("cancel", "requeue"):
        return fields | ({"keys": rest} if rest else {})
    if verb in ("pause", "resume", "set") and rest and rest[0].partition("=")[0] not in LIMIT_NAMES:
        fields["model"] = rest.pop(0)
    if not rest or verb not in VERBS:
        return fields
    if verb == "add":
        raise ConfigurationError(f"add: cannot read '{rest[0]}'; the number of items follows -n, such as add -n 50")
    if verb != "set":
        takes = "at most one model" if verb in ("pause", "resume") else "nothing more"
        raise ConfigurationError(f"{verb}: cannot read '{rest[0]}'; it takes {takes}")
    for word in rest:
        name, mark, value = word.partition("=")
        if not mark or name not in LIMIT_NAMES:
            hint = did_you_mean(name, LIMIT_NAMES, "limits")
            raise ConfigurationError(f"set: cannot read '{word}'; expected NAME=VALUE{hint}")
        if not (value.isascii() and value.isdigit()) or len(value) > _LONGEST_NUMBER:
            raise ConfigurationError(f"set: {name}: expected a whole number (0 is no limit), found '{value:.60}'")
        if name in fields:
            raise ConfigurationError(f"set: {name} is given twice")
        fields[name] = int(value)
    return fields


def _options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value is not False}
