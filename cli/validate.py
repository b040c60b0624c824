"""``viva validate``: which items do the models of an examination answer correctly themselves?

Underneath it is a probe run by generation, with a run folder like any other. What never belongs here: asking and
reading answers (``scenarios.probes``).
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from .failing import guarded
from .late import add_late
from .run import fresh_folder, hold, leave, note_few

if TYPE_CHECKING:
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import Launch
    from viva.scenarios.probes.settings import ProbeSettings

# What validation decides on itself: each item is put as an interview puts it, without examples, and answered freely.
_DECIDED = ("candidate", "method", "shots", "shots_from", "against", "against_n", "members")


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    add_late(app, "validate", "List the items that all of the named models answer correctly.", _command)


def _command() -> Any:
    from viva.scenarios.probes.settings import ProbeSettings

    from .options import read_settings, with_settings

    def command(
        given: dict[str, Any],
        model: Annotated[list[str], typer.Option("--model", help="Model to answer; may be given several times.")],
        out: Annotated[Path, typer.Option("--out", help="File to write the ids to, one a line, as --ids takes them.")],
        run: Annotated[
            Path | None, typer.Option("--run", help="Run folder to make or to go on with (default: runs/NAME-TIME).")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")] = False,
        max_failures: Annotated[
            int, typer.Option("--max-failures", min=0, help="Failed answers that still count as success.")
        ] = 0,
    ) -> None:
        """List the items that all of the named models answer correctly: their ids go to a file for --ids."""
        decided = {"candidate": model, "method": ["generate"], "shots": 0}
        _validate(read_settings(ProbeSettings, given | decided, None), out, run, json, max_failures)

    return guarded(with_settings(command, ProbeSettings, without=_DECIDED))


def _validate(settings: ProbeSettings, out: Path, run: Path | None, json: bool, max_failures: int) -> None:
    from viva.engine.errors import ConfigurationError

    from .output import print_json, print_tables
    from .targets import check_targets

    read = (settings.dataset, settings.dataset.partition(":")[2])  # with its form before it, or without
    check_targets({"--out": out}, read=[Path(name) for name in read if name])
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigurationError(f"--out {out}: the ids cannot be written there; name a file in a folder that exists")
    launch = _launch(settings, run or fresh_folder("validate"))
    note_few(launch)
    held = hold(launch)
    if held.outcome.how == "done":
        ids, total = _answered_by_all(launch.folder)
        _write(out, ids, launch.folder)
        told = {"items": total, "correct": len(ids), "file": str(out)}
        models = f"every model ({len(settings.candidate)})"
        verdict = f"{len(ids):,} of {total:,} items were answered correctly by {models}; their ids are in {out}"
    else:
        told, verdict = None, f"no list was written; go on with --run {launch.folder.path}"
    if json:
        print_json(held.aggregate.report() | {"validated": told})
    else:
        print_tables(held.aggregate.tables())
    print(verdict, file=sys.stderr if json or told is None else sys.stdout)
    leave(launch, held, max_failures)


def _launch(settings: ProbeSettings, folder: Path) -> Launch:
    """A new run, or the same one once more: what is recorded is not asked again, what failed is."""
    from viva.engine.errors import ConfigurationError
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import new_run, recorded_settings, resumed_run

    if not (folder / "manifest.json").exists():
        return new_run("probe", settings, folder)
    which, recorded = recorded_settings(RunFolder.open(folder))
    now, then = settings.model_dump(), recorded.model_dump()
    different = [name for name in now if name not in settings.circumstances and now[name] != then.get(name)]
    if which.name != "probe" or different:
        what = ", ".join("model" if name == "candidate" else name for name in different) or "scenario"
        raise ConfigurationError(f"--run {folder}: holds another run (different: {what}); name another folder")
    changes = {name: now[name] for name in settings.circumstances}
    return resumed_run(folder, retry_failed=True, changes=changes)


def _answered_by_all(folder: RunFolder) -> tuple[list[str], int]:
    """The ids that every model answered correctly, in the order of the dataset; and how many were asked."""
    from viva.engine.history import History

    right: Counter[str] = Counter()
    with History(folder.journal) as history:
        for ended in history.ended():
            if ended.item is None:  # its record is damaged; the note on stderr names it
                continue
            right[ended.item["id"]] += not ended.failed and bool(ended.result.get("generate", {}).get("right"))
    models = len(folder.manifest["models"]["candidate"])
    return [name for name, count in right.items() if count == models], len(right)


def _write(file: Path, ids: list[str], folder: RunFolder) -> None:
    from viva.engine.errors import ConfigurationError
    from viva.engine.files import write_atomically

    # Ids of a user's own may be anything that is text; those that no line can hold go into a list of JSON.
    plain = all(name == name.strip() and len(name.splitlines()) == 1 and name[0] not in "[{" for name in ids)
    lines = "".join(f"{name}\n" for name in ids)
    try:
        write_atomically(file, lines.encode() if plain else orjson.dumps(ids, option=orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise ConfigurationError(
            f"{file}: cannot be written: {error.strerror}; the answers are recorded: name another file, and give "
            f"--run {folder.path}"
        ) from None
