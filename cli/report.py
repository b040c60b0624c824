"""`viva report`, `viva court`, `viva score` and `viva review`: results, rulings, other scorings, human corrections.

They call no model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.engine.errors import ConfigurationError

from .app import ALL_ARGUMENTS, app, command, run_lazy_command
from .exit_codes import handle_errors, print_note
from .options import Csv, Html, Json, RunArgument

if TYPE_CHECKING:
    from viva.reports.studies.study import Study


@dataclass(slots=True, frozen=True)
class ReportOutputs:
    """Options for what to print on stdout (tables by default) and which files to write.

    With `fresh`, the report is computed from the journals alone, without the cache of earlier reports.
    """

    json: bool = False
    markdown: bool = False
    latex: bool = False
    csv: Path | None = None
    parquet: Path | None = None
    html: Path | None = None
    fresh: bool = False

    @property
    def files(self) -> bool:
        return not (self.csv is None and self.parquet is None and self.html is None)


def _read_study(folders: Sequence[Path], scorer: str | None, *, fresh: bool, strict: bool) -> Study:
    """Return the study of several runs, with its report computed."""
    from viva.engine.event_loop import gc_tuned
    from viva.reports.studies.cache import users_report_cache
    from viva.reports.studies.study import Study

    with gc_tuned():  # a study has many columns and tables without reference cycles
        study = Study(folders, scorer, None if fresh else users_report_cache(), strict=strict)
        study.report()
    return study


def _print_verdicts(study: Study) -> None:
    """Print the sentences of a study; in a terminal, lines break between words."""
    from rich.text import Text

    from viva.reports.studies.study import study_sentences
    from viva.reports.tables import escape_controls

    from .output import print_rich

    groups = study_sentences(study.report())
    lines = [line for about, sentences in groups for line in ([f"{about}:"] if about else []) + sentences]
    print_rich(*(Text(escape_controls(line)) for line in lines))


def report_study(
    folders: Sequence[Path], scorer: str | None, outputs: ReportOutputs, *, print_it: bool = True, strict: bool = True
) -> Study:
    """Report several runs as one study, which is returned: print it and write its files.

    Without `strict`, runs that cannot be read are left out, and a warning names them.
    """
    from viva.reports.studies.export import check_parquet, write_csv, write_parquet
    from viva.reports.tables import escape_controls, to_latex, to_markdown

    from .output import print_json, print_tables, print_text
    from .output_files import check_output_files, print_file, write_page_file

    check_output_files({"--csv": outputs.csv, "--parquet": outputs.parquet, "--html": outputs.html})
    if outputs.parquet is not None:
        check_parquet()
    study = _read_study(folders, scorer, fresh=outputs.fresh, strict=strict)
    report = study.report()
    if outputs.csv is not None:
        write_csv(report, outputs.csv)
        print_file("table", outputs.csv)
    if outputs.parquet is not None:
        write_parquet(report, outputs.parquet)
        print_file("table", outputs.parquet)
    if outputs.html is not None:
        from viva.reports.studies.page import study_page

        write_page_file(study_page(report, study.provenance()), outputs.html)
    if not print_it:
        return study
    if outputs.json:
        print_json(report)
    elif outputs.latex:
        print_text(to_latex([*study.tables(), *study.run_tables("--latex")]))
    elif outputs.markdown:
        print_text(to_markdown([*study.tables(), *study.run_tables("--markdown")]))
    else:
        if report.get("warnings"):
            print_text(escape_controls("\n".join(report["warnings"])) + "\n\n")
        print_tables(study.tables())
        _print_verdicts(study)  # last, because a terminal shows the end of long tables
    notes = report["notes"]
    if outputs.latex or outputs.markdown:  # these formats contain only tables
        notes = [*report.get("warnings", ()), *notes]
    for note in notes:
        print_note(note)
    return study


_SCORE = "Score a run's recorded verdicts with other rules."


@command("report", "viva report runs/sweep", "viva report runs/a runs/b --html report.html")
def _report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|SWEEP...", help="Folders of runs and sweeps, or folders that contain some."),
    ],
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs) instead of tables.")] = False,
    csv: Csv = None,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", help="Also write every figure to this Parquet file (needs the extra `parquet`)."),
    ] = None,
    html: Html = None,
    scorer: Annotated[
        str | None,
        typer.Option(
            "--scorer",
            metavar="official|linear|corrected",
            help="How rounds are aggregated into a score, e.g. linear, or official,no-decay,early-stop.",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore the cache of unchanged cells.")] = False,
    times: Annotated[bool, typer.Option("--times", help="Add measured seconds, if the scenario has some.")] = False,
) -> None:
    """Print the results of a run so far, or a joint study of several runs or a sweep."""
    from viva.reports.studies.exam_study import are_exams
    from viva.sweeps.sweep_folder import is_sweep

    from .output import print_results

    if json + markdown + latex > 1:
        raise ConfigurationError("--json, --markdown and --latex exclude each other: each prints on stdout")
    named, folders = folders, [run for folder in folders for run in _runs_of(folder)]
    outputs = ReportOutputs(json=json, markdown=markdown, latex=latex, csv=csv, parquet=parquet, html=html, fresh=fresh)
    if are_exams(folders):
        if scorer or times or markdown or latex or outputs.files:
            raise ConfigurationError("adaptive runs are reported in tables or with --json; remove the other options")
        _report_exams(folders, json=json)
        return
    # A single run prints its own tables, even if files are written as well. Markup and other scorers need a study.
    alone = len(folders) == 1 and scorer is None and not (markdown or latex or is_sweep(folders[0]))
    study = None
    if not alone or outputs.files:  # whoever names a run wants it in the report
        study = report_study(folders, scorer, outputs, print_it=not alone, strict=folders == list(named))
    if times and not alone:
        raise ConfigurationError("--times adds to the tables of a single run; name one, without --scorer or a markup")
    if alone:
        results, missing, damaged = _results(folders[0], {})
        if times:
            _add_times(results, folders[0])
        print_results(results, folders[0], json=json, missing=missing, damaged=damaged)
        if not json and "adaptive" not in (report := results.report()):
            _print_run_verdicts(folders[0], len(report.get("candidates", ())), study, fresh=fresh)


def _report_exams(folders: Sequence[Path], *, json: bool) -> None:
    """Print what two adaptive runs say together."""
    from viva.reports.studies.exam_study import ExamStudy

    from .output import print_paragraphs, print_report

    study = ExamStudy(folders)
    print_report(study, json=json)
    if not json and (sentences := study.sentences()):
        print_paragraphs(sentences)


def _add_times(results: Any, run: Path) -> None:
    from viva.scenarios.run_aggregate import SupportsTimes

    if not isinstance(results, SupportsTimes):
        raise ConfigurationError(f"--times: the scenario of {run} has no measured times; leave the option out")
    results.add_times()


def _print_run_verdicts(run: Path, candidates: int, study: Study | None, *, fresh: bool) -> None:
    """Print what a study of a single run says beyond the run's own tables and remarks, if anything."""
    from viva.reports.studies.cells import find_cells
    from viva.reports.studies.court import gathers_evidence
    from viva.reports.studies.study import study_findings

    judged = any(map(gathers_evidence, find_cells([run])))
    if judged or candidates > 1:
        study = study or _read_study([run], None, fresh=fresh, strict=True)
        # Findings without a rule only repeat what the run says.
        if judged or any(finding.rule for finding in study_findings(study.report())):
            _print_verdicts(study)


@command("court", "viva court sweeps/mine", "viva court runs/probe runs/interviews --clean old-model")
def _court(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|SWEEP...", help="Runs and sweeps with probes, or folders that contain some."),
    ],
    clean: Annotated[
        list[str] | None,
        typer.Option("--clean", metavar="LABEL", help="Candidate that is known to be clean, and is not judged."),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option("--known", metavar="FILE", help="Models of known truth, asked about the same benchmark."),
    ] = None,
    level: Annotated[float, typer.Option("--level", help="Fraction of clean models that may be accused.")] = 0.05,
    json: Json = False,
    html: Html = None,
) -> None:
    """Rule whether models have seen a benchmark: contaminated, clean, or cannot tell.

    The evidence comes from `viva run probe --method court`; interviews of the same models add to it.
    """
    from viva.reports.studies.court import court

    from .output import print_paragraphs, print_report
    from .output_files import check_output_files, write_tables_page

    check_output_files({"--html": html}, [] if known is None else [known])
    runs = [run for folder in folders for run in _runs_of(folder)]
    report = court(*runs, clean=clean or (), known=known, level=level)
    if not json:
        print_paragraphs(report.sentences())
    print_report(report, json=json)
    if html is not None:
        write_tables_page(html, "Contamination court", [*report.sentences(), *report.notes], report.tables())
    for note in report.notes:
        print_note(note)


_MAX_LEVELS = 3  # of folders below the given folder that are searched for runs


def _runs_of(folder: Path) -> list[Path]:
    """Return the runs and sweeps below a folder; the folder itself if it is a run or sweep, or contains none."""
    from viva.sweeps.sweep_folder import is_sweep

    def is_run_or_sweep(path: Path) -> bool:
        return is_sweep(path) or (path / "manifest.json").is_file()

    def below(parent: Path, depth: int) -> list[Path]:
        runs: list[Path] = []
        for child in sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")):
            if is_run_or_sweep(child):
                runs.append(child)
            elif depth > 1 and os.access(child, os.R_OK | os.X_OK):
                runs += below(child, depth - 1)
        return runs

    if is_run_or_sweep(folder) or not folder.is_dir():
        return [folder]
    runs_below = below(folder, _MAX_LEVELS)
    if runs_below:
        count = f"{len(runs_below)} run" + "s" * (len(runs_below) > 1)
        print_note(f"{folder} contains {count}: {', '.join(map(str, runs_below))}")
    return runs_below or [folder]


@app.command("score", help=_SCORE, add_help_option=False, context_settings=ALL_ARGUMENTS)
def _score(context: typer.Context) -> None:
    """Score a run; its options come from the run's scenario, or from all scenarios if no run is named."""
    run_lazy_command(context, _score_command(context.args))


def _score_command(args: list[str]) -> Any:
    from pydantic import create_model

    from viva.scenarios.contract import Scoring
    from viva.scenarios.registry import installed_scenarios

    from .options import with_settings

    kinds = [scenario.scoring for scenario in _scenarios_of(args) or installed_scenarios()]
    fields: dict[str, Any] = {name: (field.annotation, field) for kind in kinds
                              for name, field in kind.model_fields.items()}  # fmt: skip

    def score(options: dict[str, Any], run: RunArgument, json: Json = False, html: Html = None) -> None:
        from viva.engine.run_folder import RunFolder
        from viva.orchestration.launch import recorded_settings, scoring_of

        from .output import print_results
        from .output_files import check_output_files, write_tables_page

        check_output_files({"--html": html})
        results, missing, damaged = _results(run, options)
        note = scoring_of(recorded_settings(RunFolder.open(run))[0], options).note(results.report())
        if note is not None:
            print_note(note)
        print_results(results, run, json=json, missing=missing, damaged=damaged)
        if html is not None:
            write_tables_page(html, f"Scores of {run.name}", [], results.tables())

    score.__doc__ = _SCORE
    return handle_errors(with_settings(score, create_model("Choices", __base__=Scoring, **fields)))


def _scenarios_of(args: list[str]) -> list[Any]:
    """Return the scenario of the run among the arguments, or an empty list."""
    from viva.engine.errors import VivaError
    from viva.engine.run_folder import RunFolder
    from viva.scenarios.registry import scenario_of_manifest

    for word in args:
        if not word.startswith("-") and (Path(word) / "manifest.json").exists():
            try:
                return [scenario_of_manifest(RunFolder.open(Path(word)).manifest)]
            except VivaError:  # the error is reported when the run is read
                return []
    return []


def _results(run: Path, options: dict[str, Any]) -> tuple[Any, Any, list[str]]:
    """Return a run's aggregate, its missing conversations, and its damaged records."""
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.completeness import missing_conversations
    from viva.orchestration.launch import results_and_damage

    folder = RunFolder.open(run)
    results, damaged = results_and_damage(folder, options)
    return results, missing_conversations(folder), damaged


@command("review")
def _review(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.tsv", help="Write all graded outputs to this table.")
    ] = None,
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="FILE.tsv", help="Apply the corrections in this table.")
    ] = None,
) -> None:
    """Export verdicts for people to check (--out), and apply their corrections (--apply)."""
    from viva.engine.run_folder import RunFolder
    from viva.orchestration.launch import recorded_settings
    from viva.scenarios.contract import SupportsReviewSheet

    from .output import print_text
    from .output_files import check_output_files

    if (out is None) == (apply is None):
        raise ConfigurationError("give either --out FILE.tsv (export) or --apply FILE.tsv (apply corrections)")
    folder = RunFolder.open(run)
    scenario, _ = recorded_settings(folder)
    if not isinstance(scenario, SupportsReviewSheet):
        raise ConfigurationError(f"{run}: a run of {scenario.name} has no verdicts to review")
    if out is not None:
        check_output_files({"--out": out})
        count = scenario.review.write(folder, out)
        *columns, last = (f"'{name}'" for name in scenario.review.columns)
        print_text(
            f"{out}: {count} graded outputs; fill in {', '.join(columns)} and {last}, then:\n"
            f"viva review {run} --apply {out}\n"
        )
        return
    assert apply is not None
    applied = scenario.review.apply(folder, apply)
    print_text(f"{run}: {applied.added} corrections added, {applied.known} already known\n")
    for note in applied.notes:
        print_note(note)
