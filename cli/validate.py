"""``viva validate``: finds the items that the models of an examination answer correctly themselves.

Underneath it is a run of a scenario that can tell right answers, with a run folder like any other.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from viva.orchestration.folders import fresh_folder

from .app import add_lazy_command, app, example_epilog
from .exit_codes import handle_errors
from .options import Html, Json, MaxFailures
from .run import exit_with, run_launch, warn_if_short, write_run_page

if TYPE_CHECKING:
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.launch import Launch
    from viva.scenarios.contract import Validation
    from viva.scenarios.registry import AnyScenario
    from viva.scenarios.run_settings import RunSettings

_EXAMPLE = "viva validate --dataset items.jsonl --model llama:model.gguf --out ids.txt"


def _validate_command() -> Any:
    from .options import read_settings, with_settings

    which, validation = _validating_scenario()
    from viva.scenarios.contract import compared_role

    candidate = compared_role(which.roles).name
    unused = (candidate, *validation.decided, *validation.unused)

    def command(
        given: dict[str, Any],
        model: Annotated[list[str], typer.Option("--model", metavar="MODEL", help="Model to answer.")],
        out: Annotated[Path, typer.Option("--out", help="File to write the ids to, one a line, as --ids takes them.")],
        run: Annotated[
            Path | None,
            typer.Option("--run", metavar="FOLDER", help="Run folder to make or to resume (default: runs/NAME-TIME)."),
        ] = None,
        json: Json = False,
        html: Html = None,
        max_failures: MaxFailures = 0,
    ) -> None:
        """List the items that all of the named models answer correctly: their ids go to a file for --ids."""
        decided = validation.decided | {candidate: model}
        settings = read_settings(which.settings, given | decided, None)
        _validate(which, settings, out, run, json, html, max_failures)

    return handle_errors(with_settings(command, which.settings, without=unused))


def _validating_scenario() -> tuple[AnyScenario, Validation]:
    """The scenario that tells which answers are right."""
    from viva.engine.errors import ConfigurationError
    from viva.scenarios.contract import SupportsValidation
    from viva.scenarios.registry import installed_scenarios

    for which in installed_scenarios():
        if isinstance(which, SupportsValidation):
            return which, which.validation
    raise ConfigurationError("no installed scenario can validate items")


def _validate(
    which: AnyScenario,
    settings: RunSettings,
    out: Path,
    run: Path | None,
    json: bool,
    html: Path | None,
    max_failures: int,
) -> None:
    from .output import print_json, print_tables
    from .output_files import check_output_files

    source = str(getattr(settings, which.data))
    read = (source, source.partition(":")[2])  # with its form before it, or without
    check_output_files({"--out": out, "--html": html}, read=[Path(name) for name in read if name])
    launch = _launch(which, settings, run or fresh_folder("validate"))
    warn_if_short(launch)
    held = run_launch(launch)
    if held.outcome.how == "done":
        ids, total = _ids_answered_by_all(launch)
        _write_ids(out, ids, launch.folder)
        told = {"items": total, "correct": len(ids), "file": str(out)}
        models = f"every model ({len(launch.prepared.lineups)})"
        verdict = f"{len(ids):,} of {total:,} items were answered correctly by {models}; their ids are in {out}"
    else:
        told, verdict = None, f"no list was written; go on with --run {launch.folder.path}"
    if json:
        print_json(held.aggregate.report() | {"validated": told})
    else:
        print_tables(held.aggregate.tables())
    write_run_page(held, launch, html)
    print(verdict, file=sys.stderr if json or told is None else sys.stdout)
    exit_with(launch, held, max_failures)


def _launch(which: AnyScenario, settings: RunSettings, folder: Path) -> Launch:
    """A new run, or the same one once more: what is recorded is not asked again, what failed is."""
    from viva.engine.errors import ConfigurationError
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.launch import new_run, recorded_settings, resumed_run

    if not (folder / "manifest.json").exists():
        return new_run(which, settings, folder)
    held, recorded = recorded_settings(RunFolder.open(folder))
    now, then = settings.model_dump(), recorded.model_dump()
    different = [name for name in now if name not in settings.circumstances and now[name] != then.get(name)]
    if held.name != which.name or different:
        from viva.scenarios.contract import compared_role

        candidate = compared_role(which.roles).name
        what = ", ".join("model" if name == candidate else name for name in different) or "scenario"
        raise ConfigurationError(f"--run {folder}: holds another run (different: {what}); name another folder")
    changes = {name: now[name] for name in settings.circumstances}
    return resumed_run(folder, retry_failed=True, changes=changes)


def _ids_answered_by_all(launch: Launch) -> tuple[list[str], int]:
    """The ids that every model answered correctly, in the order of the dataset; and how many were asked."""
    from viva.engine.journal_reader import History
    from viva.scenarios.contract import SupportsValidation

    assert isinstance(launch.scenario, SupportsValidation)
    validation = launch.scenario.validation
    right: Counter[str] = Counter()
    with History(launch.folder.journal) as history:
        for ended in history.ended():
            if ended.item is None:  # its record is damaged; the note on stderr names it
                continue
            right[ended.item["id"]] += not ended.failed and validation.right(ended.result)
    models = len(launch.prepared.lineups)
    return [name for name, count in right.items() if count == models], len(right)


def _write_ids(file: Path, ids: list[str], folder: RunFolder) -> None:
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


_SUMMARY = "List the items that all of the named models answer correctly."
add_lazy_command(app, "validate", _SUMMARY, _validate_command, lambda: example_epilog(_EXAMPLE, models=True))
