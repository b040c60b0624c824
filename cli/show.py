"""``viva show`` and ``viva view``: conversations of a run in the terminal, and runs as pages in a browser."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from viva.engine.errors import ConfigurationError

from .app import command
from .exit_codes import print_note
from .options import Json

if TYPE_CHECKING:
    from viva.engine.journal_reader import History
    from viva.orchestration.transcripts import Speech, Transcript


@command("show", "viva show runs/sweep", "viva show runs/sweep --conversation MODEL/ITEM")
def _show(
    run: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of the run, or of a sweep.")],
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", metavar="KEY", help="Number, key, or the end of a key that only one has."),
    ] = None,
    thoughts: Annotated[bool, typer.Option("--thoughts", help="Show the thoughts before each answer.")] = False,
    prompts: Annotated[
        bool,
        typer.Option("--prompts", help="Show before each answer what was new in the prompt (with --json: all of it)."),
    ] = False,
    whole_prompts: Annotated[
        bool, typer.Option("--whole-prompts", help="Show before each answer the whole prompt.")
    ] = False,
    json: Json = False,
) -> None:
    """List a run's conversations (a sweep's cells), or print the transcript of one (with --json: all, one a line)."""
    from viva.engine.journal_reader import History
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.transcripts import Transcripts
    from viva.sweeps.sweep_folder import is_sweep

    from .output import print_json

    prompts = prompts or whole_prompts
    if is_sweep(run):
        _show_sweep(run, conversation, json)
        return
    folder = RunFolder.open(run)
    transcripts = Transcripts(folder)
    with History(folder.journal) as history:
        if conversation is None and not json:
            _list_conversations(history)
            if prompts or thoughts:
                print_note("prompts and thoughts: name a --conversation, or add --json")
            return
        numbers = list(history.numbers()) if conversation is None else [_find_number(history, run, conversation)]
        failed = {one.number: one.result for one in history.ended() if one.failed}

        async def show() -> None:
            for number in numbers:
                told, error = await transcripts.read(history, number, thoughts=thoughts), failed.get(number)
                if json:
                    record = _transcript_record(number, told, error, prompts)
                    # What is damaged ends before a damaged call.
                    record |= {"damaged": True} if number in history.broken else {}
                    print_json(record, line=conversation is None)
                else:
                    _print_transcript(number, told, error, prompts=prompts, whole=whole_prompts)

        anyio.run(show)


def _transcript_record(number: int, told: Transcript, error: Any, prompts: bool) -> dict[str, Any]:
    """A transcript as plain data; ``error`` is that of a conversation that failed."""
    record = {"number": number, "key": told.key, "talk": [_record(one, prompts) for one in told.speeches]}
    record |= {"prompts_unknown": told.problem} if prompts and told.problem else {}
    if error is not None:
        sent = [{"party": one.party, **_branch(one), "prompt": one.prompt} for one in told.unanswered]
        record |= ({"unanswered": sent} if prompts and sent else {}) | {"failed": error}
    return record


def _record(one: Speech, prompts: bool) -> dict[str, Any]:
    return {"party": one.party, **_branch(one), "text": one.text} | (
        {"prompt": one.prompt} if prompts and one.prompt else {}
    )


def _branch(one: Speech) -> dict[str, str]:
    return {"branch": one.branch} if one.branch else {}


def _print_transcript(number: int, told: Transcript, error: Any, *, prompts: bool, whole: bool) -> None:
    """Print a transcript; one of a failed conversation ends with what was sent and not answered, and the reason."""
    from viva.orchestration.transcripts import Speech
    from viva.scoring.aggregates import failure_reason

    from .transcript import print_conversation

    speeches = list(told.speeches)
    if error is not None:
        speeches += (
            [Speech(one.party, "(no answer)", one.prompt, one.branch) for one in told.unanswered] if prompts else []
        )
        speeches.append(Speech("failed", failure_reason(error)))
    print_conversation(number, told.key, speeches, prompts=prompts, whole=whole)
    if prompts and told.problem:
        print_note(f"{told.key or number}: not all prompts are known: {told.problem}")


def _list_conversations(history: History) -> None:
    from viva.scoring.aggregates import failure_reason

    from .output import print_tables

    ended = {one.number: failure_reason(one.result) if one.failed else "" for one in history.ended()}
    rows = [
        [str(number), started[0], _state_of(ended.get(number)), ended.get(number, "")]
        for number in history.numbers()
        if (started := history.started(number)) is not None
    ]
    shown = 4 if any(ended.values()) else 3
    header = ["number", "key", "state", "reason"][:shown]
    print_tables([(f"{len(rows)} conversations", header, [row[:shown] for row in rows])])


def _find_number(history: History, run: Path, conversation: str) -> int:
    """The number of the conversation that is asked for."""
    is_number = conversation.isascii() and conversation.isdigit() and len(conversation) < 18
    number = int(conversation) if is_number else history.number_of(conversation)
    # Of one whose start is damaged the calls may be whole.
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


def _show_sweep(sweep: Path, conversation: str | None, json: bool) -> None:
    """List the cells of a sweep, each a run of its own."""
    from viva.sweeps.recorded_sweep import recorded_cells

    from .output import print_json, print_tables

    cells = recorded_cells(sweep)
    begun = [cell for cell in cells if cell.folder is not None]
    example = f"viva show {shlex.quote(str(sweep / (begun or cells)[0].name))}"
    if conversation is not None:
        raise ConfigurationError(f"{sweep}: a sweep; its conversations are those of its cells, for example: {example}")
    if json:
        print_json([{"cell": cell.name, "planned": cell.planned, "begun": cell.folder is not None} for cell in cells])
        return
    rows = [[cell.name, "–" if cell.planned is None else str(cell.planned)] for cell in cells]
    print_tables([(f"{len(rows)} cells", ["cell", "conversations planned"], rows)])
    print(f"conversations of one: {example}", file=sys.stderr)


def _state_of(reason: str | None) -> str:
    """Of a conversation: None stands for one that has not ended, "" for one that did not fail."""
    return "interrupted" if reason is None else "failed" if reason else "finished"


VIEW_PORT = 7788


@command("view")
def _view(
    folder: Annotated[Path, typer.Argument(metavar="RUN|SWEEP|FOLDER", help="What to look at; a run may go on.")],
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FOLDER", help="Write the pages as files instead of serving them."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = VIEW_PORT,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Address to listen on. Whoever can reach it can read all transcripts."
        ),
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="A further host name by which pages may be asked for."),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="FOLDER", help="Folder of the viewer's own index; else in your cache."),
    ] = None,
) -> None:
    """Look at runs in a browser: what was found, every conversation, live while a run goes on.

    Nothing in the run's folder is changed. Examples: `viva view runs/sweep`, `viva view runs --port 0`,
    `viva view runs/sweep --export pages`.
    """
    if export is not None:
        from viva.web.view.export import export_pages

        from .output import print_text

        count = export_pages(folder, export, index=index)
        print_text(f"{export / 'index.html'}: {count:,} conversations\n")
        return
    from viva.web.page_server import PageServer
    from viva.web.view.server import serve

    serve(folder, PageServer(host, port, name or ()), index=index)
