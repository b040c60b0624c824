"""`viva validate`: the items that all named models answer correctly.

The command runs a scenario that recognises correct answers; its run folder is an ordinary one.
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

    scenario, validation = _validating_scenario()
    from viva.scenarios.contract import compared_role

    candidate = compared_role(scenario.roles).name
    unused = (candidate, *validation.decided, *validation.unused)

    def command(
        options: dict[str, Any],
        model: Annotated[list[str], typer.Option("--model", metavar="MODEL", help="Model that answers the items.")],
        out: Annotated[
            Path, typer.Option("--out", help="File to write the ids to, one per line, for `viva run … --ids`.")
        ],
        run: Annotated[
            Path | None,
            typer.Option("--run", metavar="FOLDER", help="Run folder to create or resume (default: runs/NAME-TIME)."),
        ] = None,
        json: Json = False,
        html: Html = None,
        max_failures: MaxFailures = 0,
    ) -> None:
        """Find the items that all named models answer correctly, and write their ids to a file for --ids."""
        decided = validation.decided | {candidate: model}
        settings = read_settings(scenario.settings, options | decided, None)
        _validate(scenario, settings, out, run, json, html, max_failures)

    return handle_errors(with_settings(command, scenario.settings, without=unused))


def _validating_scenario() -> tuple[AnyScenario, Validation]:
    """Return the scenario that recognises correct answers."""
    from viva.engine.errors import ConfigurationError
    from viva.scenarios.contract import SupportsValidation
    from viva.scenarios.registry import installed_scenarios

    for scenario in installed_scenarios():
        if isinstance(scenario, SupportsValidation):
            return scenario, scenario.validation
    raise ConfigurationError("no installed scenario can validate items")


def _validate(
    scenario: AnyScenario,
    settings: RunSettings,
    out: Path,
    run: Path | None,
    json: bool,
    html: Path | None,
    max_failures: int,
) -> None:
    from .output import print_json, print_tables
    from .output_files import check_output_files

    source = str(getattr(settings, scenario.data))
    read = (source, source.partition(":")[2])  # with or without a leading `FORMAT:`
    check_output_files({"--out": out, "--html": html}, read=[Path(name) for name in read if name])
    launch = _launch(scenario, settings, run or fresh_folder("validate"))
    warn_if_short(launch)
    result = run_launch(launch)
    if result.outcome.how == "done":
        ids, total = _ids_answered_by_all(launch)
        _write_ids(out, ids, launch.folder)
        counts = {"items": total, "correct": len(ids), "file": str(out)}
        models = f"every model ({len(launch.prepared.lineups)})"
        verdict = f"{len(ids):,} of {total:,} items were answered correctly by {models}; their ids are in {out}"
    else:
        counts, verdict = None, f"no list was written; resume with --run {launch.folder.path}"
    if json:
        print_json(result.aggregate.report() | {"validated": counts})
    else:
        print_tables(result.aggregate.tables())
    write_run_page(result, launch, html)
    print(verdict, file=sys.stderr if json or counts is None else sys.stdout)
    exit_with(launch, result, max_failures)


def _launch(scenario: AnyScenario, settings: RunSettings, folder: Path) -> Launch:
    """Return a new run or, if the folder has one, that run, to be resumed with its failed conversations."""
    from viva.engine.errors import ConfigurationError
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.launch import new_run, recorded_settings, resumed_run

    if not (folder / "manifest.json").exists():
        return new_run(scenario, settings, folder)
    recorded_scenario, recorded = recorded_settings(RunFolder.open(folder))
    now, then = settings.model_dump(), recorded.model_dump()
    different = [name for name in now if name not in settings.circumstances and now[name] != then.get(name)]
    if recorded_scenario.name != scenario.name or different:
        from viva.scenarios.contract import compared_role

        candidate = compared_role(scenario.roles).name
        names = ", ".join("model" if name == candidate else name for name in different) or "scenario"
        raise ConfigurationError(f"--run {folder}: contains a run with other settings ({names}); name another folder")
    changes = {name: now[name] for name in settings.circumstances}
    return resumed_run(folder, retry_failed=True, changes=changes)


def _ids_answered_by_all(launch: Launch) -> tuple[list[str], int]:
    """Return the ids that every model answered correctly, in the order of the dataset, and the number of items."""
    from viva.engine.journal_reader import History
    from viva.scenarios.contract import SupportsValidation

    assert isinstance(launch.scenario, SupportsValidation)
    validation = launch.scenario.validation
    right: Counter[str] = Counter()
    with History(launch.folder.journal) as history:
        for ended in history.ended():
            if ended.item is None:  # the record is damaged; a note on stderr names it
                continue
            right[ended.item["id"]] += not ended.failed and validation.right(ended.result)
    models = len(launch.prepared.lineups)
    return [name for name, count in right.items() if count == models], len(right)


def _write_ids(file: Path, ids: list[str], folder: RunFolder) -> None:
    from viva.engine.errors import ConfigurationError
    from viva.engine.files import write_atomically

    # Ids may be any text; if one of them does not fit on a line, the file is a JSON list.
    plain = all(name == name.strip() and len(name.splitlines()) == 1 and name[0] not in "[{" for name in ids)
    lines = "".join(f"{name}\n" for name in ids)
    try:
        write_atomically(file, lines.encode() if plain else orjson.dumps(ids, option=orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise ConfigurationError(
            f"{file}: cannot be written: {error.strerror}. The answers are recorded: name another file, with "
            f"--run {folder.path}"
        ) from None


_SUMMARY = "Find the items that all named models answer correctly."
add_lazy_command(app, "validate", _SUMMARY, _validate_command, lambda: example_epilog(_EXAMPLE, models=True))
