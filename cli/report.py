"""``viva report`` and ``viva score``: what runs have come to. No model is ever called here.

What never belongs here: computing results.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .exit_codes import guarded, print_note
from .lazy_command import ALL_ARGUMENTS, example_of, run_late

_SCORE = "Score a run's recorded verdicts in another way."
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("report", epilog=example_of("viva report runs/sweep", "viva report runs/a runs/b --html report.html"))(
        guarded(_report)
    )
    app.command("score", help=_SCORE, add_help_option=False, context_settings=ALL_ARGUMENTS)(_score)


def _report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN|SWEEP...", help="Folders of runs and sweeps, or that hold them.")
    ],
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs) instead of tables.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write every figure to this CSV file.")] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Also write every figure to this Parquet file (extra `parquet`).")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML page.")] = None,
    scorer: Annotated[str | None, typer.Option("--scorer", help="official, linear or corrected.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Use nothing that an earlier report has kept of unchanged cells.")
    ] = False,
) -> None:
    """Print the tables of a run as far as it has come; of several, or of a sweep, a study of all together."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.sweep.results import is_sweep

    from .study import Wanted, show_study

    if json + markdown + latex > 1:
        raise ConfigurationError("--json, --markdown and --latex exclude each other: each prints on stdout")
    folders = [run for folder in folders for run in _runs_of(folder)]
    wanted = Wanted(json=json, markdown=markdown, latex=latex, csv=csv, parquet=parquet, html=html, fresh=fresh)
    # Of one run its own tables are shown, whatever files are written beside; markup and other scorers are a study's.
    alone = len(folders) == 1 and scorer is None and not (markdown or latex or is_sweep(folders[0]))
    if not alone or wanted.files:
        show_study(folders, scorer, wanted, print_it=not alone)
    if alone:
        _print(*_results(folders[0], {}), json)


_LEVELS = 3  # of folders below the one named, in which runs are looked for


def _runs_of(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run or a sweep, or if it holds none; else the runs and sweeps below it."""
    from viva.orchestration.sweep.results import is_sweep

    def is_one(path: Path) -> bool:
        return is_sweep(path) or (path / "manifest.json").is_file()

    def below(parent: Path, depth: int) -> list[Path]:
        runs: list[Path] = []
        for child in sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")):
            if is_one(child):
                runs.append(child)
            elif depth > 1 and os.access(child, os.R_OK | os.X_OK):
                runs += below(child, depth - 1)
        return runs

    if is_one(folder) or not folder.is_dir():
        return [folder]
    found = below(folder, _LEVELS)
    if found:
        print_note(f"{folder} holds {len(found)} runs: {', '.join(map(str, found))}")
    return found or [folder]


def _score(context: typer.Context) -> None:
    """The options are those of the scenario of the run that is named; of all scenarios where none is."""
    run_late(context, _score_command(context.args))


def _score_command(args: list[str]) -> Any:
    from pydantic import create_model

    from viva.scenarios.contract import Scoring
    from viva.scenarios.registry import scenarios

    from .options import with_settings

    kinds = [which.scoring for which in _scenarios_of(args) or scenarios()]
    fields: dict[str, Any] = {name: (field.annotation, field) for kind in kinds
                              for name, field in kind.model_fields.items()}  # fmt: skip

    def command(
        given: dict[str, Any], run: Annotated[Path, typer.Argument(help="Folder of the run.")], json: Json = False
    ) -> None:
        from viva.engine.folder import RunFolder
        from viva.orchestration.launch import recorded_settings, scoring_of

        results, damaged = _results(run, given)
        note = scoring_of(recorded_settings(RunFolder.open(run))[0], given).note(results.report())
        if note is not None:
            print_note(note)
        _print(results, damaged, json)

    command.__doc__ = _SCORE
    return guarded(with_settings(command, create_model("Choices", __base__=Scoring, **fields)))


def _scenarios_of(args: list[str]) -> list[Any]:
    """The scenario of the run that stands among the arguments, alone; empty where none does."""
    from viva.engine.errors import VivaError
    from viva.engine.folder import RunFolder
    from viva.scenarios.registry import recorded_scenario

    for one in args:
        if not one.startswith("-") and (Path(one) / "manifest.json").exists():
            try:
                return [recorded_scenario(RunFolder.open(Path(one)).manifest)]
            except VivaError:  # said when the run is read
                return []
    return []


def _results(run: Path, options: dict[str, Any]) -> tuple[Any, list[str]]:
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import results_and_damage

    return results_and_damage(RunFolder.open(run), options)


def _print(results: Any, damaged: list[str], json: bool) -> None:
    from .output import print_json, print_tables

    if json:
        print_json(results.report() | ({"damaged": damaged} if damaged else {}))
    else:
        print_tables(results.tables())
