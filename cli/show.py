"""`viva show` and `viva view`: conversations of a run in the terminal, and runs as pages in a browser."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from viva.engine.errors import ConfigurationError

from .app import command
from .exit_codes import print_note
from .options import Json, Selected, selected_keys

if TYPE_CHECKING:
    from viva.engine.journal_reader import History
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.transcripts import Speech, Transcript
    from viva.scenarios.contract import Scenario

_LONG_SCALE = 10.0  # scores beyond it are shown with one decimal


@command("show", "viva show runs/sweep", "viva show runs/sweep --conversation MODEL/ITEM")
def _show(
    run: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of the run, or of a sweep.")],
    conversation: Annotated[
        str | None,
        typer.Option(
            "--conversation",
            metavar="KEY",
            help="Conversation to print: its number, its key, or a unique end of its key.",
        ),
    ] = None,
    thoughts: Annotated[bool, typer.Option("--thoughts", help="Show the reasoning before each answer.")] = False,
    prompts: Annotated[
        bool,
        typer.Option(
            "--prompts", help="Show the new part of the prompt before each answer (with --json: the whole prompt)."
        ),
    ] = False,
    whole_prompts: Annotated[
        bool, typer.Option("--whole-prompts", help="Show the whole prompt before each answer.")
    ] = False,
    select: Selected = None,
    json: Json = False,
) -> None:
    """List a run's conversations or a sweep's cells; with --conversation, print one transcript.

    --json without --conversation prints all transcripts of a run, one per line; --select prints those of a file.
    """
    from viva.engine.journal_reader import History
    from viva.engine.run_folder import RunFolder, is_running
    from viva.orchestration.completeness import missing_conversations
    from viva.orchestration.transcripts import Transcripts
    from viva.sweeps.sweep_folder import is_sweep

    from .output import print_json, print_unfinished

    prompts = prompts or whole_prompts
    if is_sweep(run):
        _show_sweep(run, conversation or (str(select) if select else None), json)
        return
    folder = RunFolder.open(run)
    transcripts = Transcripts(folder)
    with History(folder.journal) as history:
        if conversation is not None and select is not None:
            raise ConfigurationError("--conversation and --select: give only one of them")
        if conversation is None and select is None and not json:
            print_unfinished(run, missing_conversations(folder))
            _list_conversations(history, _recorded_scenario(folder), is_running=is_running(run))
            _print_command(folder)
            if prompts or thoughts:
                print_note("--prompts and --thoughts: name a --conversation, or add --json")
            return
        if select is not None:
            numbers = _selected_numbers(history, run, select)
        else:
            numbers = list(history.numbers()) if conversation is None else [_find_number(history, run, conversation)]
        failed = {
            conversation_end.number: conversation_end.result
            for conversation_end in history.ended()
            if conversation_end.failed
        }

        scenario = _recorded_scenario(folder)
        judges = [role.name for role in scenario[0].roles_of(scenario[1]) if role.judge] if scenario else []

        async def show() -> None:
            for number in numbers:
                transcript, error = await transcripts.read(history, number, thoughts=thoughts), failed.get(number)
                if json:
                    record = _transcript_record(number, transcript, error, prompts)
                    # A damaged transcript ends before the damaged call.
                    record |= {"damaged": True} if number in history.broken else {}
                    print_json(record, line=conversation is None)
                else:
                    _print_transcript(number, transcript, error, judges, prompts=prompts, is_whole=whole_prompts)

        anyio.run(show)


def _transcript_record(number: int, transcript: Transcript, error: Any, prompts: bool) -> dict[str, Any]:
    """Return a transcript as plain data; if the conversation failed, with its error."""
    record = {
        "number": number,
        "key": transcript.key,
        "talk": [_record(speech, prompts) for speech in transcript.speeches],
    }
    record |= {"prompts_unknown": transcript.problem} if prompts and transcript.problem else {}
    if error is not None:
        unanswered = [
            {"party": speech.party, **_branch(speech), "prompt": speech.prompt} for speech in transcript.unanswered
        ]
        record |= ({"unanswered": unanswered} if prompts and unanswered else {}) | {"failed": error}
    return record


def _record(speech: Speech, prompts: bool) -> dict[str, Any]:
    return {"party": speech.party, **_branch(speech), "text": speech.text} | (
        {"prompt": speech.prompt} if prompts and speech.prompt else {}
    )


def _branch(speech: Speech) -> dict[str, str]:
    return {"branch": speech.branch} if speech.branch else {}


def _print_transcript(
    number: int, transcript: Transcript, error: Any, judges: list[str], *, prompts: bool, is_whole: bool
) -> None:
    """Print a transcript; if the conversation failed, it ends with the unanswered prompt and the reason."""
    from viva.orchestration.transcripts import Speech
    from viva.scoring.aggregates import failure_reason

    from .transcript import print_conversation

    speeches = list(transcript.speeches)
    if error is not None:
        speeches += (
            [Speech(speech.party, "(no answer)", speech.prompt, speech.branch) for speech in transcript.unanswered]
            if prompts
            else []
        )
        speeches.append(Speech("failed", failure_reason(error)))
    print_conversation(number, transcript.key, speeches, judges, prompts=prompts, is_whole=is_whole)
    if prompts and transcript.problem:
        print_note(f"{transcript.key or number}: not all prompts are known: {transcript.problem}")


def _recorded_scenario(folder: RunFolder) -> tuple[Scenario[Any, Any], Any] | None:
    """Return a run's scenario and settings; None if it is not installed, or another version recorded the run."""
    from viva.orchestration.launch import recorded_settings

    try:
        return recorded_settings(folder)
    except ConfigurationError:
        return None


def _print_command(folder: RunFolder) -> None:
    """Print the command that makes such a run, unless the scenario is not available."""
    from viva.orchestration.run_command import recorded_command

    with suppress(ConfigurationError):
        command = recorded_command(folder.manifest, folder.path / "manifest.json")
        print(f"\n# the command of such a run:\n{command}")  # without control characters


def _list_conversations(history: History, scenario: tuple[Scenario[Any, Any], Any] | None, *, is_running: bool) -> None:
    from viva.reports.tables import number as decimal
    from viva.scoring.aggregates import failure_reason

    from .output import print_tables

    summary = scenario[0].summary_of(scenario[1]) if scenario else None
    reasons: dict[int, str] = {}
    scores: dict[int, float] = {}
    for conversation in history.ended():
        reasons[conversation.number] = failure_reason(conversation.result) if conversation.failed else ""
        if summary is not None and not conversation.failed:
            with suppress(Exception):  # another version recorded the result in another form
                if (score := summary(conversation.result).score) is not None:
                    scores[conversation.number] = score
    digits = 1 if max(map(abs, scores.values()), default=0.0) > _LONG_SCALE else 2
    rows = [
        [str(number), started[0], decimal(scores.get(number), digits), _state_of(reasons.get(number), is_running),
         reasons.get(number, "")]
        for number in history.numbers()
        if (started := history.started(number)) is not None
    ]  # fmt: skip
    header = ["number", "key", "score", "state", "reason"]
    columns = [0, 1, *([2] if scores else []), 3, *([4] if any(reasons.values()) else [])]
    table = [[row[column] for column in columns] for row in rows]
    print_tables([(f"{len(rows)} conversations", [header[column] for column in columns], table)])


def _find_number(history: History, run: Path, conversation: str) -> int:
    """Return the number of the conversation with this number, this key, or a key with this unique end."""
    is_number = conversation.isascii() and conversation.isdigit() and len(conversation) < 18
    number = int(conversation) if is_number else history.number_of(conversation)
    # The start record of a conversation may be damaged while its calls are readable.
    if number is None or not (history.started(number) or history.calls(number)):
        keys = history.keys()
        several = [key for key in keys if conversation and key.endswith(conversation)][:3]
        if several:
            raise ConfigurationError(
                f"{run}: several conversations end with '{conversation}', such as {' and '.join(several)}; "
                "name one by its key"
            )
        raise ConfigurationError(f"{run}: no conversation '{conversation}'; `viva show {run}` lists them")
    return number


def _selected_numbers(history: History, run: Path, select: Path) -> list[int]:
    """Return the numbers of the conversations that a file names."""
    from viva.engine.files import shell_path

    numbers = history.keys()
    keys = selected_keys(select)
    if unknown := [key for key in keys if key not in numbers]:
        advice = f"`viva show {shell_path(run)}` lists those of this run"
        raise ConfigurationError(f"{select}: {run} has no conversation '{unknown[0]}'; {advice}")
    return [numbers[key] for key in keys]


def _show_sweep(sweep: Path, conversation: str | None, json: bool) -> None:
    """List the cells of a sweep, each of which is a run."""
    from viva.engine.files import shell_path
    from viva.sweeps.recorded_sweep import recorded_cells

    from .output import print_json, print_tables

    cells = recorded_cells(sweep)
    begun = [cell for cell in cells if cell.folder is not None]
    example = f"viva show {shell_path(sweep / (begun or cells)[0].name)}"
    if conversation is not None:
        raise ConfigurationError(f"{sweep}: a sweep; name one of its cells instead, for example: {example}")
    if json:
        print_json([{"cell": cell.name, "planned": cell.planned, "begun": cell.folder is not None} for cell in cells])
        return
    rows = [[cell.name, "–" if cell.planned is None else str(cell.planned)] for cell in cells]
    print_tables([(f"{len(rows)} cells", ["cell", "conversations planned"], rows)])
    print(f"conversations of a cell: {example}", file=sys.stderr)


def _state_of(reason: str | None, is_running: bool) -> str:
    """Return the state of a conversation: None means not ended, "" means not failed."""
    if reason is None:
        return "in progress" if is_running else "interrupted"
    return "failed" if reason else "finished"


VIEW_PORT = 7788


@command("view", "viva view runs/sweep", "viva view runs --port 0", "viva view runs/sweep --export pages")
def _view(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|SWEEP|FOLDER", help="Folder to show; a run may be in progress.")
    ],
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FOLDER", help="Write the pages as files instead of serving them."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on (0: any free one).")
    ] = VIEW_PORT,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on. Everybody who can reach it can read all transcripts.",
        ),
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="Another host name that browsers may use for this server."),
    ] = None,
    control: Annotated[
        bool,
        typer.Option("--control", help="Let the holder of a secret link, which is printed, steer runs: pause, stop, …"),
    ] = False,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="FOLDER", help="Folder of the viewer's index (default: in your cache)."),
    ] = None,
) -> None:
    """Show runs in a browser: findings and every conversation, live during a run.

    Nothing in the run's folder is changed. With --control, a printed link opens pages with buttons that steer runs.
    """
    if export is not None and control:
        raise ConfigurationError("--export and --control: exported pages steer no run; leave out one of them")
    if export is not None:
        from viva.web.view.export import export_pages

        from .output import print_text

        count = export_pages(folder, export, index=index)
        print_text(f"{export / 'index.html'}: {count:,} conversations\n")
        return
    from viva.web.page_server import PageServer
    from viva.web.view.server import serve

    serve(folder, PageServer(host, port, name or ()), index=index, control=control)
