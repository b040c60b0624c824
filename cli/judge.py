"""`viva judge audit`, `certify` and `advise`: biases, scores corrected by human grades, advice on panels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.engine.errors import ConfigurationError

from .app import add_lazy_command, command, command_group
from .exit_codes import handle_errors, print_note
from .options import Config, Csv, Html, Json, MaxFailures, Out, Plot
from .run import compared_setting, exit_with, run_launch, write_run_page

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch
    from viva.scenarios.audit.audit_cases import AuditSettings
    from viva.scenarios.registry import AnyScenario

_AUDIT_SCENARIO, _CASES_FILE = "audit", "cases.jsonl"
_AUDIT_SUMMARY = "Audit judges: position, verbosity, format, self-preference, labels, test-retest."
judge = command_group("judge", "Check a judge: audit, certify, compare with people, advise on panels, load-test.")


def _audit_example() -> str:
    from viva.scenarios.registry import get_scenario

    from .options import settings_example

    return settings_example("viva judge audit", get_scenario(_AUDIT_SCENARIO).settings, ["judge"])


def _audit_command() -> Any:
    from viva.scenarios.registry import get_scenario

    from .options import read_settings, with_settings

    scenario = get_scenario(_AUDIT_SCENARIO)

    def command(
        options: dict[str, Any],
        run: Annotated[
            Path | None,
            typer.Option("--run", metavar="RUN", help="Use pairs of this run's answers as cases."),
        ] = None,
        plot: Plot = None,
        config: Config = None,
        out: Out = None,
        json: Json = False,
        html: Html = None,
        max_failures: MaxFailures = 0,
    ) -> None:
        from .output_files import check_output_files, check_plot_file

        check_output_files({"--plot": plot, "--html": html})
        if plot is not None:
            check_plot_file(plot)
        settings = read_settings(scenario.settings, options, config)
        _audit(_audit_launch(scenario, settings, run, out), plot, json, html, max_failures)

    command.__doc__ = _AUDIT_SUMMARY
    return handle_errors(with_settings(command, scenario.settings, compared=compared_setting(scenario)))


def _audit_launch(scenario: AnyScenario, settings: AuditSettings, run: Path | None, out: Path | None) -> Launch:
    """Prepare the audit; cases taken from another run are copied into the audit's folder."""
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.launch import new_run

    folder = (out or fresh_folder(_AUDIT_SCENARIO)).absolute()
    if run is None:
        return new_run(scenario, settings, folder)
    import asyncio

    from viva.reports.studies.rating_sheet import read_replies
    from viva.scenarios.audit.audit_cases import EXAMPLES, case_lines, reply_cases, sample_cases
    from viva.scenarios.audit.scenario import Audit

    if settings.cases != EXAMPLES:
        raise ConfigurationError("--run and --cases exclude each other: each supplies the cases")
    cases = reply_cases(asyncio.run(read_replies(run)))
    if not cases:
        raise ConfigurationError(
            f"--run {run}: no two of its models answered the same question; name a run with several candidates"
        )
    cases = sample_cases(cases, settings.n, settings.seed)
    changed = settings.model_copy(update={"cases": str(folder / _CASES_FILE), "n": None})
    return new_run(Audit(cases), changed, folder, files={_CASES_FILE: case_lines(cases)})


def _audit(launch: Launch, plot: Path | None, json: bool, html: Path | None, max_failures: int) -> None:
    from .output import print_json, print_paragraphs, print_tables

    for note in launch.prepared.notes:
        print_note(note)
    result = run_launch(launch)
    report = result.aggregate.report()
    if plot is not None:
        from viva.reports.row_plots import NamedBar

        from .output_files import write_forest_plot

        is_several = len(report["answer"]) > 1
        rows = [
            NamedBar(_judge_name(finding, is_several), effect["value"], effect["low"], effect["high"], finding["found"])
            for finding in report["findings"]
            if (effect := finding["effect"])["value"] is not None
        ]
        write_forest_plot(plot, "Audit of judges", rows, "effect (95%)")
    if json:
        print_json(report)
    else:
        print_paragraphs(report["answer"])
        print_tables(result.aggregate.tables())
    write_run_page(result, launch, html)
    exit_with(launch, result, max_failures)


def _judge_name(finding: dict[str, Any], several: bool) -> str:
    audit = f"{finding['audit']} {finding['scale']}" if finding["audit"] == "labels" else str(finding["audit"])
    return f"{finding['judge']}, {audit}" if several else audit


add_lazy_command(judge, "audit", _AUDIT_SUMMARY, _audit_command, _audit_example)


@command(
    "certify",
    "viva judge certify runs/sweep --select 40 --out first.csv",
    "viva judge certify runs/sweep --labels first.csv",
    group=judge,
)
def _certify(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE", help="Folder of a run, or a CSV, TSV or JSONL file with the fields key and score."
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            help="File of human grades: the filled-in file from --select, or a CSV, TSV or JSONL file with the fields "
            "key and grade.",
        ),
    ] = None,
    select: Annotated[
        int | None,
        typer.Option(
            "--select", metavar="N", help="Choose the N most informative answers to grade next; --out names the file."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Write the answers to grade to this file.")
    ] = None,
    by_round: Annotated[
        bool, typer.Option("--rounds", help="Without --labels: draw rounds instead of whole conversations.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed for drawing answers with --select.")] = 0,
    correlate: Annotated[
        list[str] | None,
        typer.Option(
            "--correlate",
            metavar="NAME",
            help="Also estimate the corrected correlation of grades with this column of the answers.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="File with earlier pairs of score and grade, to test for drift."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", metavar="LOW:HIGH", help="Ends of the scale, if the scores do not define them."),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="SHARE", help="Confidence level of intervals.")
    ] = 0.95,
    csv: Csv = None,
    json: Json = False,
    html: Html = None,
) -> None:
    """Correct a judge's means, rates and differences, based on human grades of some answers.

    Without --labels, --select N --out FILE draws the first answers to grade.
    """
    from viva.grading.human_grades import (
        HumanGrades,
        calibration_pairs,
        has_rounds,
        key_file,
        read_graded_answers,
        read_grades,
        write_grading_list,
    )
    from viva.grading.run_answers import answer_texts
    from viva.reports.studies.judge_certificate import (
        certificate_notes,
        certificate_record,
        certificate_sentences,
        certificate_tables,
        choose_next_answers,
        match_grades,
        write_certificate_csv,
    )

    from .output import print_json, print_paragraphs, print_tables
    from .output_files import check_output_files, print_file, write_tables_page

    if not 0.0 < confidence < 1.0:
        raise ConfigurationError(f"--confidence {confidence:g}: expected a share between 0 and 1, such as 0.95")
    if (select is None) != (out is None):
        raise ConfigurationError(
            "--select N and --out FILE.csv need each other: how many answers, and where to write them"
        )
    if labels is None and select is None:
        raise ConfigurationError("give --labels FILE, or --select N --out FILE.csv for the first answers to grade")
    read = [path for path in (labels, calibration, run if run.is_file() else None) if path is not None]
    read += [] if labels is None else [key_file(labels)]
    keys = None if out is None else key_file(out)
    check_output_files({"--out": out, "--csv": csv, "--html": html, "the key file of --out": keys}, read)
    for existing in (out, keys):
        if existing is not None and existing.exists():
            raise ConfigurationError(f"--out {out}: {existing} exists and may hold grades; choose another name")
    if labels is not None:
        by_round = has_rounds(labels)
    answers = read_graded_answers(run, by_round=by_round, scale=_parse_scale(scale))
    grades = HumanGrades() if labels is None else read_grades(labels, answers)
    matched = match_grades(answers, grades)
    if select is not None and out is not None:
        chosen, probabilities = choose_next_answers(matched, select, seed)
        texts = answer_texts(answers, chosen)
        write_grading_list(out, answers, grades, chosen, probabilities, texts, seed)
        is_bounded = math.isfinite(answers.high - answers.low)
        scale_words = (
            "pass or fail" if answers.passes else f"{answers.low:g} to {answers.high:g}" if is_bounded else "numbers"
        )
        print_note(
            f"{out}: {len(chosen)} answers to grade; scores and candidates are hidden. Fill in the column 'grade' "
            f"({scale_words}) and pass the file to --labels. {key_file(out).name} names the candidate of each answer: "
            "keep it in the same folder, and do not show it to graders"
        )
    if labels is None:
        return
    pairs = None if calibration is None else calibration_pairs(calibration, answers.passes, answers.low, answers.high)
    record = certificate_record(matched, level=confidence, correlate=correlate or (), calibration=pairs)
    if csv is not None:
        write_certificate_csv(record, csv)
        print_file("table", csv)
    if json:
        print_json(record)
    else:
        print_paragraphs(certificate_sentences(record))
        print_tables(certificate_tables(record))
    if html is not None:
        heading = f"Certified scores of {run.name}"
        write_tables_page(html, heading, certificate_sentences(record), certificate_tables(record))
    for note in certificate_notes(record):
        print_note(note)


@command(
    "advise",
    "viva judge advise votes.csv",
    "viva judge advise runs/a runs/b runs/c --ratings people.csv --out next.csv",
    "viva judge advise votes.csv --panel gpt-4o --label-price 0.5",
    group=judge,
)
def _advise(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|RUN...",
            help="Votes of several judges: files as for `viva judge compare`, outputs of pairwise judges, runs.",
        ),
    ],
    ratings: Annotated[
        list[Path] | None, typer.Option("--ratings", help="People's labels of some of the same items.")
    ] = None,
    panel: Annotated[
        list[str] | None,
        typer.Option("--panel", metavar="JUDGE", help="Judge of the present panel (default: the best single judge)."),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="JUDGE=USD", help="Price of one vote (default: known from runs, else 1 vote)."),
    ] = None,
    label_price: Annotated[
        float | None, typer.Option("--label-price", metavar="USD", min=0.0, help="Price of one label by people.")
    ] = None,
    items: Annotated[
        int | None, typer.Option("--items", min=1, help="Items that the panel will judge (default: those with votes).")
    ] = None,
    criterion: Annotated[
        str | None, typer.Option("--criterion", help="Criterion of the labels, if there are several.")
    ] = None,
    human: Annotated[
        list[str] | None, typer.Option("--human", metavar="FIELD", help="Field with people's labels.")
    ] = None,
    score: Annotated[
        list[str] | None, typer.Option("--score", metavar="FIELD", help="Field with a judge's votes.")
    ] = None,
    item: Annotated[str | None, typer.Option("--item", metavar="FIELD", help="Field that identifies the item.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="FIELD", help="Field with the group of a row, e.g. its question.")
    ] = None,
    judge_field: Annotated[
        str | None, typer.Option("--judge-field", metavar="FIELD", help="Field with the judge's name.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Write the items to label next to this file.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")] = 7,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="SHARE", help="Confidence level of intervals.")
    ] = 0.95,
    json: Json = False,
    html: Html = None,
) -> None:
    """Advise which judges to add to a panel next, or which items to label first.

    The advised panel is never below the best single judge, as far as the labels can tell.
    """
    from viva.reports.studies.judge_advice import (
        AdviceOptions,
        advice_record,
        advice_tables,
        items_to_label,
        label_file,
        read_votes,
        vote_prices,
    )
    from viva.reports.studies.rating_files import NamedColumns

    from .output import print_json, print_paragraphs, print_tables
    from .output_files import check_output_files, print_file, write_tables_page

    if not 0.0 < confidence < 1.0:
        raise ConfigurationError(f"--confidence {confidence:g}: expected a share between 0 and 1, such as 0.95")
    read = [path for path in (*sources, *(ratings or ())) if path.is_file()]
    check_output_files({"--out": out, "--html": html}, read)
    if out is not None and out.exists():
        raise ConfigurationError(f"--out {out}: it exists and may hold labels; choose another name")
    prices = _parse_prices(price or [])
    options = AdviceOptions(
        tuple(panel or ()), prices, label_price, items, criterion, seed, level=confidence
    )  # fmt: skip
    columns = NamedColumns(item, group, judge=judge_field, human=human or [], score=score or [])
    sheet = read_votes(sources, ratings or [], columns)
    record = advice_record(sheet, options, vote_prices(sources))
    if out is not None:
        chosen = items_to_label(sheet, options, (record["labels"] or {"items": 0})["items"])
        if chosen:
            out.write_bytes(label_file(chosen, record["criterion"]))
            print_file("items to label", out)
        else:
            why = "the advice needs no labels" if record["labels"] is None else "no contested item is without a label"
            print_note(f"--out {out}: not written, because {why}")
    if json:
        print_json(record)
    else:
        print_paragraphs(record["answer"])
        print_tables(advice_tables(record))
    if html is not None:
        write_tables_page(html, "Advice on a panel of judges", record["answer"], advice_tables(record))
    for note in (*(f"how the input was read: {field}" for field in record["fields"]), *record["notes"]):
        print_note(note)


def _parse_prices(texts: list[str]) -> dict[str, float]:
    """Parse JUDGE=USD."""
    from viva.grading.human_grades import finite_number

    prices = {}
    for text in texts:
        name, sign, amount = text.rpartition("=")
        price = finite_number(amount)
        if not (name and sign) or price is None or price <= 0:
            raise ConfigurationError(f"--price {text}: expected JUDGE=USD with a price above 0, such as gpt-4o=0.002")
        prices[name] = price
    return prices


def _parse_scale(text: str | None) -> tuple[float, float] | None:
    """Parse LOW:HIGH."""
    from viva.grading.human_grades import finite_number

    if text is None:
        return None
    low, _, high = text.partition(":")
    ends = finite_number(low), finite_number(high)
    if ends[0] is None or ends[1] is None or not ends[0] < ends[1]:
        raise ConfigurationError(f"--scale {text}: expected LOW:HIGH, such as 1:5")
    return ends[0], ends[1]
