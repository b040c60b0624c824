"""``viva show``: the conversations of a run, what was said in them, and what each model was sent.

What never belongs here: how a transcript is made (``orchestration.transcripts``).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from .failing import guarded

if TYPE_CHECKING:
    from viva.orchestration.transcripts import Speech

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
_COLOURS = {"candidate": "green", "interactor": "cyan", "evaluator": "yellow", "failed": "red"}


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command("show")(guarded(_show))


def _show(
    run: Annotated[Path, typer.Argument(help="Folder of the run, or of a sweep.")],
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="Number, key, or the end of a key that only one has.")
    ] = None,
    thoughts: Annotated[bool, typer.Option("--thoughts", help="Show the thoughts before each answer.")] = False,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Show before each answer all that the model was sent for it.")
    ] = False,
    json: Json = False,
) -> None:
    """List a run's conversations (a sweep's cells), or print the transcript of one (with --json: all, one a line)."""
    from viva.engine.errors import ConfigurationError
    from viva.engine.folder import RunFolder
    from viva.engine.history import History
    from viva.orchestration.sweep.place import is_sweep
    from viva.orchestration.transcripts import Speech, Transcripts
    from viva.scoring.failures import reason_of

    from .output import print_json, print_tables

    if is_sweep(run):
        _show_sweep(run, conversation, json)
        return
    folder = RunFolder.open(run)
    transcripts = Transcripts(folder)
    with History(folder.journal) as history:
        if conversation is None and not json:
            ended = {one.number: reason_of(one.result) if one.failed else "" for one in history.ended()}
            rows = [
                [str(number), started[0], _state(ended.get(number)), ended.get(number, "")]
                for number in history.numbers()
                if (started := history.started(number)) is not None
            ]
            shown = 4 if any(ended.values()) else 3
            header = ["number", "key", "state", "reason"][:shown]
            print_tables([(f"{len(rows)} conversations", header, [row[:shown] for row in rows])])
            return
        failed = {one.number: one.result for one in history.ended() if one.failed}
        if conversation is None:
            numbers = list(history.numbers())
        else:
            is_number = conversation.isascii() and conversation.isdigit() and len(conversation) < 18
            number = int(conversation) if is_number else history.number_of(conversation)
            if number is None or history.started(number) is None:
                raise ConfigurationError(f"{run}: no conversation '{conversation}'; `viva show {run}` lists them")
            numbers = [number]
        for number in numbers:
            key, _ = history.started(number) or ("", None)
            told = anyio.run(partial(transcripts.of, history, number, thoughts=thoughts))
            if json:
                line = {"number": number, "key": key, "talk": [_record(one, prompts) for one in told.speeches]}
                line |= {"prompts_unknown": told.problem} if prompts and told.problem else {}
                line |= {"failed": failed[number]} if number in failed else {}
                line |= {"damaged": True} if number in history.broken else {}  # it ends before a damaged call
                print_json(line, line=conversation is None)
            else:
                end = [Speech("failed", reason_of(failed[number]))] if number in failed else []
                _print_conversation(number, key, [*told.speeches, *end], prompts)
                if prompts and told.problem:
                    print(f"viva: note: {key}: not all prompts are known: {told.problem}", file=sys.stderr)


def _record(one: Speech, prompts: bool) -> dict[str, Any]:
    return {"party": one.party, "text": one.text} | ({"prompt": one.prompt} if prompts and one.prompt else {})


def _show_sweep(sweep: Path, conversation: str | None, json: bool) -> None:
    """List the cells of a sweep, each a run of its own.

    :raises ConfigurationError: a conversation is asked for: it is one of a cell's.
    """
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.sweep.results import cells_of

    from .output import print_json, print_tables

    cells = cells_of(sweep)
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


def _state(reason: str | None) -> str:
    """Of a conversation: None stands for one that has not ended, "" for one that did not fail."""
    return "interrupted" if reason is None else "failed" if reason else "finished"


def _print_conversation(number: int, key: str, speeches: list[Speech], prompts: bool) -> None:
    from rich.rule import Rule
    from rich.text import Text

    from viva.reports.controls import harmless

    from .output import print_rich

    parts: list[Rule | Text] = [Rule(Text(harmless(f"{number}: {key}")), align="left")]
    for one in speeches:
        for sent in _sent(one.prompt) if prompts else ():
            parts.append(Text(harmless(f"  to {one.party}, {sent[0]}:"), style="dim bold"))
            parts.append(Text(harmless("  " + sent[1].replace("\n", "\n  ") + "\n"), style="dim"))
        parts.append(Text(f"[{one.party}]", style=f"bold {_COLOURS.get(one.party, 'white')}"))
        parts.append(Text(harmless(one.text) + "\n"))
    print_rich(*parts, width=120)


def _sent(prompt: Any) -> Iterator[tuple[str, str]]:
    """What a model was sent, as (kind, text)."""
    if prompt is None:
        return
    if "messages" not in prompt:
        yield "context", prompt["context"]
        for text in prompt["continuations"]:
            yield "continuation", text
        return
    for message in prompt["messages"]:
        calls = [f"{call['function']['name']}({call['function']['arguments']})"
                 for call in message.get("tool_calls", ())]  # fmt: skip
        yield message["role"], "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])
    if prompt.get("tools"):
        yield "tools", ", ".join(tool["function"]["name"] for tool in prompt["tools"])
