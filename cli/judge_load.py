"""`viva judge load`: load tests of judges, which measure speed and changes of verdicts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from viva.engine.errors import ConfigurationError

from .app import command
from .exit_codes import DONE, FAILED, FAILURES, INTERRUPTED, print_error, print_note
from .judge import judge as judge_group
from .options import Csv, Html, Json

if TYPE_CHECKING:
    from viva.loadtest.run_load_test import LoadLaunch

_RESUMABLE = ("json", "html", "csv")  # options that are permitted beside --resume
# Options whose name differs from that of their setting.
_OPTIONS = {
    "search": "--rate-search", "seconds": "--duration", "warm_up": "--warm-up", "cool_down": "--cool-down",
    **{name: f"--{name}" for name in ("arrivals", "burst", "concurrency", "drain", "pause", "rates", "tolerance")},
}  # fmt: skip


@command(
    "load",
    "viva judge load runs/mine --judge openai:gpt-4o-mini --rates 1,2,4,8",
    "viva judge load requests.jsonl --judge llama:judge.gguf \\\n      --rate-search 0.5:32 "
    "--slo 'p95_e2e<3s, parse_fail<1%, drift<0.05'",
    "viva judge load --synthetic 'prompt=lognormal(800,0.5),output=100' \\\n      "
    "--judge 'openai:http://127.0.0.1:8000/v1#name' \\\n      --concurrency 1,4,16 --requests 200",
    "viva judge load --resume runs/load-20260101-120000",
    models=True,
    group=judge_group,
)
def _judge(
    context: typer.Context,
    work: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|FILE",
            help="Run or file with the requests to send; for a file of tasks, SCENARIO:FILE names the scenario.",
        ),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option("--synthetic", metavar="LENGTHS", help="Send synthetic requests of random lengths instead."),
    ] = None,
    judge: Annotated[
        list[str] | None, typer.Option("--judge", "--compare", metavar="MODEL", help="Judge to test.")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option("--rates", metavar="R,R,…", help="Requests per second of each step (open loop)."),
    ] = None,
    rate_search: Annotated[
        str | None,
        typer.Option("--rate-search", metavar="LOW:HIGH", help="Search for the highest rate that meets --slo."),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option("--concurrency", metavar="N,N,…", help="Requests in flight of each step (closed loop)."),
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals", metavar="poisson|constant|bursty|replay", help="When requests of an open loop arrive."
        ),
    ] = "poisson",
    burst: Annotated[
        float,
        typer.Option("--burst", help="Burstiness: squared coefficient of variation of the gaps between requests."),
    ] = 4.0,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Requests per step and judge.")] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration", metavar="SECONDS", help="Length of a step (default: 60, or no limit with --requests)."
        ),
    ] = None,
    warm_up: Annotated[
        float | None,
        typer.Option(
            "--warm-up", metavar="SECONDS", help="Seconds to ignore at the start of a step (default: detected)."
        ),
    ] = None,
    cool_down: Annotated[
        float | None,
        typer.Option(
            "--cool-down", metavar="SECONDS", help="Seconds to ignore at the end of a step (default: detected)."
        ),
    ] = None,
    pause: Annotated[float, typer.Option("--pause", metavar="SECONDS", help="Pause between steps.")] = 0.0,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", help="Maximum wait for the last answers of a step.")
    ] = 60.0,
    baseline: Annotated[
        int, typer.Option("--baseline", min=0, help="Maximum number of requests of each unloaded pass (0: no passes).")
    ] = 200,
    slo: Annotated[
        str | None, typer.Option("--slo", metavar="TERMS", help="Objective: 'p95_e2e<3s, parse_fail<1%, drift<0.05'.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Relative precision of a rate search (0.05: within 5%).")
    ] = 0.05,
    together: Annotated[
        bool, typer.Option("--together", help="Load all judges together instead of one after the other.")
    ] = False,
    retries: Annotated[int, typer.Option("--retries", min=0, help="Retries after a transient failure.")] = 0,
    stop: Annotated[bool, typer.Option("--stop/--no-stop", help="End a step if its queue keeps growing.")] = True,
    role: Annotated[
        str | None,
        typer.Option("--role", help="Send the requests that this role of the run received (default: the judge)."),
    ] = None,
    reader: Annotated[
        str | None, typer.Option("--reader", metavar="NAME", help="Parser of the answers (default: detected).")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum number of distinct requests, sampled with the seed.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="File with the judge's system prompts, if FILE has MT-Bench judgments."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Token limit of answers, instead of the requests' own.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Sampling temperature, instead of the requests' own."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of arrival times, samples and answers.")] = 7,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to create (default: runs/load-TIME).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Resume the load test in this folder.")
    ] = None,
    json: Json = False,
    html: Html = None,
    csv: Csv = None,
) -> None:
    """Load-test judges: throughput, latency, and whether verdicts change.

    Two unloaded passes come first; every step is compared with them. Latencies count from the intended start of a
    request. Exit code 3: the objective was missed.
    """
    from viva.loadtest.load_settings import check_load_settings, judges_by_label
    from viva.loadtest.run_load_test import new_load_test, reopen_load_test
    from viva.loadtest.synthetic_requests import SYNTHETIC_PREFIX
    from viva.loadtest.workload import WorkloadOptions
    from viva.orchestration.folders import fresh_folder

    from .output_files import check_output_files

    check_output_files(
        {"--html": html, "--csv": csv}, [Path(work)] if work is not None and Path(work).is_file() else []
    )
    if resume is not None:
        _refuse_beside_resume(context)
        _run_test(reopen_load_test(resume), json, html, csv)
    if (work is None) == (synthetic is None):
        raise ConfigurationError("name the requests to send: the folder of a run, a file, or --synthetic LENGTHS")
    if not judge:
        raise ConfigurationError("name at least one judge with --judge MODEL")
    if rate_search is not None and slo is None:
        raise ConfigurationError("--rate-search looks for the highest rate that meets an objective; also give --slo")
    fields: dict[str, Any] = {
        "judges": judges_by_label(judge),
        "arrivals": arrivals,
        "rates": _parse_numbers("--rates", rates, float),
        "concurrency": _parse_numbers("--concurrency", concurrency, int),
        "search": _parse_ends(rate_search),
        "tolerance": tolerance,
        "objective": slo,
        "requests": requests,
        "seconds": duration,
        "baseline": baseline,
        "warm_up": warm_up,
        "cool_down": cool_down,
        "pause": pause,
        "drain": drain,
        "burst": burst,
        "retries": retries,
        "stop_at_saturation": stop,
        "together": together,
        "seed": seed,
    }
    options = WorkloadOptions(role, reader, limit, seed, {}, prompts, max_tokens, temperature)
    source = work if work is not None else SYNTHETIC_PREFIX + (synthetic or "").removeprefix(SYNTHETIC_PREFIX)
    _run_test(
        new_load_test(out or fresh_folder("load"), source, options, check_load_settings(fields, _OPTIONS)),
        json,
        html,
        csv,
    )


def _run_test(launch: LoadLaunch, json: bool, html: Path | None, csv: Path | None) -> NoReturn:
    """Run, show progress, print the report, and exit with a code that says if the objective was met."""
    from viva.engine.errors import SettingRefused
    from viva.loadtest.load_report import report_of_test

    from .progress import BenchProgress
    from .signals import run_in_foreground

    progress = BenchProgress(launch)
    for note in (*launch.work.notes, *launch.unloaded_notes()):
        print_note(note)
    try:
        test = run_in_foreground(launch.clock, launch.run, progress)
    except Exception as error:
        if not isinstance(error, SettingRefused) and launch.test is not None and launch.test.results:
            print(f"resume with: viva judge load --resume {launch.folder.path}", file=sys.stderr)
        raise
    record = report_of_test(test, launch.work)
    _print_report(record, json, html, csv)
    print(f"load test folder: {launch.folder.path}", file=sys.stderr)
    if test.interrupted:
        print(f"resume with: viva judge load --resume {launch.folder.path}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    speeds = [step["speed"] for judge in record["judges"] for step in judge["steps"] if step["speed"] is not None]
    if not any(speed["answered"] for speed in speeds):
        print_error("no request was answered, so there is nothing to report about judges under load")
        sys.exit(FAILED)
    objective = record["objective"]
    sys.exit(DONE if objective is None or objective["met"] else FAILURES)


def _print_report(record: dict[str, Any], json: bool, html: Path | None, csv: Path | None) -> None:
    from viva.loadtest.load_page import CSV_COLUMNS, CSV_TEXTS, csv_rows, load_page
    from viva.loadtest.load_sentences import conclusions, report_notes
    from viva.loadtest.load_tables import load_tables
    from viva.reports.studies.export import write_rows

    from .output import print_json, print_paragraphs, print_tables
    from .output_files import print_file, write_page_file

    if csv is not None:
        write_rows(csv_rows(record), CSV_COLUMNS, CSV_TEXTS, csv)
        print_file("table", csv)
    if html is not None:
        write_page_file(load_page(record), html)
    if json:
        print_json(record)
    else:
        print_paragraphs(conclusions(record))
        print_tables(load_tables(record, brief=True))
    for note in report_notes(record):
        print_note(note)


def _refuse_beside_resume(context: typer.Context) -> None:
    """Raise ConfigurationError for options that would change the resumed test."""
    foreign = [
        name.replace("_", "-")
        for name in context.params
        if name not in ("resume", *_RESUMABLE)
        and getattr(context.get_parameter_source(name), "name", "DEFAULT") not in ("DEFAULT", "DEFAULT_MAP")
    ]
    if foreign:
        raise ConfigurationError(
            f"--resume keeps the settings of the test; leave out {', '.join(f'--{name}' for name in foreign)}"
        )


def _parse_numbers(option: str, text: str | None, kind: type[int] | type[float]) -> tuple[float, ...]:
    """Parse numbers with commas between them."""
    try:
        return tuple(kind(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise ConfigurationError(f"{option} {text}: expected numbers with commas between them, such as 1,2,4") from None


def _parse_ends(text: str | None) -> tuple[float, float] | None:
    """Parse LOW:HIGH."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ConfigurationError(f"--rate-search {text}: expected LOW:HIGH, such as 0.5:32") from None
    return low, high
