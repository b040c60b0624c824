"""`viva list` and `viva data`: names that the command line and files accept; checks of benchmark files.

Lists come from the code that accepts the names. No model is called.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import command, command_group
from .exit_codes import DONE, FAILED
from .options import Html, Json

DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATASET", help="NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    ),
]


@command("check", "viva data check items.jsonl", group=command_group("data", "Check benchmark files."))
def _check_data(source: DatasetArgument, json: Json = False, html: Html = None) -> None:
    """Read a whole dataset; print its counts, right answers, lengths and repeated items. Exit code 1: bad lines."""
    from viva.data.statistics import DatasetStatistics

    from .output import print_report
    from .output_files import check_output_files, write_tables_page

    check_output_files({"--html": html}, [Path(source)])
    check = DatasetStatistics(source)
    print_report(check, json=json)
    if html is not None:
        write_tables_page(html, source, [], check.tables())
    sys.exit(DONE if check.sound else FAILED)


Record = dict[str, Any]
_DATASET_FACTS = frozenset(
    ("title", "language", "licence", "citation", "url", "hub", "splits", "evaluated", "examples", "listed")
)
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z`])")
_HINTS = {
    "scenarios": "viva run NAME",
    "datasets": "--dataset NAME, NAME/SUBJECT, NAME:SPLIT, NAME:FOLDER:SPLIT",
    "forms": "--dataset FORM:FILE, FORM:FOLDER:SPLIT",
    "packs": "--pack NAME, or a file",
    "detectors": "--detectors NAME",
    "contamination": "always computed with --method loss",
    "assistants": "--assistant NAME",
    "devices": "llama:…?device=NAME",
    "models": "KIND:…; `viva list KIND` lists the options of a kind",
    "gguf": "models on this machine (hub cache, packages, Ollama, LM Studio)",
}


@command("list", "viva list", "viva list datasets", "viva list datasets --json", "viva list llama")
def _list_command(
    kind: Annotated[
        str | None, typer.Argument(help="scenarios, datasets, packs, devices, …, or a kind of model (default: all).")
    ] = None,
    json: Json = False,
) -> None:
    """List available scenarios, datasets, prompt packs, scorers, detectors, assistants, metrics and models."""
    from viva.engine.backends.registry import described_kinds
    from viva.engine.errors import ConfigurationError, did_you_mean

    from .output import print_json, print_tables

    if kind in described_kinds():
        names = {kind: _options(kind)}
    elif kind == "devices":
        names = {kind: _devices()}
    elif kind == "models":
        names = {kind: _models(), "gguf": _installed_models()}
    else:
        names = list_names()
        if kind is not None and kind not in names:
            near = did_you_mean(kind, [*names, "devices", *described_kinds()], "expected one of")
            raise ConfigurationError(f"'{kind}' cannot be listed{near}")
        names = names if kind is None else {kind: names[kind]}
    if json:
        print_json(names)
    else:
        print_tables(_table(name, records) for name, records in names.items())
        if kind == "devices" and all(record["kind"] == "CPU" for record in names[kind]):
            print(f"No GPU: {_missing_gpu_reason()}.")
        if names.get("gguf") == []:
            print("GGUF models on this machine: none found (hub cache, packages, Ollama, LM Studio)")


def list_names() -> dict[str, list[Record]]:
    """Return the accepted names by kind, as records with `name` and `summary`; some kinds have further fields."""
    from viva.agents.assistants.registry import describe_names
    from viva.agents.prompts import shipped_packs
    from viva.engine.detectors import DETECTORS
    from viva.scenarios.contract import SupportsPlugins
    from viva.scenarios.registry import installed_scenarios

    scenarios = list(installed_scenarios())
    names = {
        "scenarios": _name_records({scenario.name: scenario.summary for scenario in scenarios}),
        "datasets": _datasets(),
        "forms": _forms(),
        "packs": _name_records(shipped_packs()),
        "detectors": _name_records({name: detector.__doc__ or "" for name, detector in DETECTORS.items()}),
        "contamination": _contamination(),
        "assistants": _name_records(describe_names()),
        "models": _models(),
        "gguf": _installed_models(),
    }
    for scenario in scenarios:
        for kind, lines in (scenario.plugins() if isinstance(scenario, SupportsPlugins) else {}).items():
            records = [{**record, "scenario": scenario.name} for record in _name_records(lines)]
            names.setdefault(kind, []).extend(records)
    return names


def _name_records(lines: Mapping[str, str]) -> list[Record]:
    return [{"name": name, "summary": _first_sentence(text)} for name, text in lines.items()]


def _datasets() -> list[Record]:
    from viva.data.benchmark import benchmark_names, load_benchmark

    records = []
    for benchmark in map(load_benchmark, benchmark_names()):
        facts = benchmark.model_dump(mode="json", include=set(_DATASET_FACTS))
        records.append(
            {"name": benchmark.name, "summary": benchmark.summary, **facts, "subjects": list(benchmark.subjects)}
        )
    return records


def _forms() -> list[Record]:
    from viva.data.forms import FORMS
    from viva.data.sources import HUB

    own = {form.name: form.summary for form in FORMS.values()}
    return _name_records(own | {HUB: "A dataset of the Hugging Face hub: hf:owner/name, with /config and :split."})


def _contamination() -> list[Record]:
    from viva.scoring import contamination

    formulas: dict[str, Callable[..., Any]] = {name: getattr(contamination, name) for name in contamination.DIRECTIONS}
    return _name_records({name: formula.__doc__ or "" for name, formula in formulas.items()})


def _models() -> list[Record]:
    from viva.engine.backends.registry import ENTRY_POINT_GROUP, KINDS
    from viva.engine.imports import load_entry_points

    builders = KINDS | {name: point.value for name, point in load_entry_points(ENTRY_POINT_GROUP).items()}
    return _name_records({kind: _read_docstring(*builder.split(":")) for kind, builder in builders.items()})


def _installed_models() -> list[Record]:
    from viva.engine.backends.llama.model_files import list_installed

    return [
        {"name": model.name, "summary": f"{model.size / 1e6:,.1f} MB", "size": model.size} for model in list_installed()
    ]


def _devices() -> list[Record]:
    from viva.engine.backends.llama.library import all_devices

    return [
        {
            "name": device.name,
            "summary": device.description,
            "kind": device.kind,
            "backend": device.backend,
            "free": device.free,
            "total": device.total,
        }
        for device in all_devices()
    ]


def _missing_gpu_reason() -> str:
    from viva.engine.backends.llama.library import missing_gpu_reason

    return missing_gpu_reason()


def _options(kind: str) -> list[Record]:
    from viva.engine.backends.registry import describe_options

    options = describe_options(kind).items()
    return [{"name": name, "summary": meaning, "default": default} for name, (default, meaning) in options]


def _read_docstring(module: str, builder: str = "") -> str:
    """Return what a module's function says that it builds, or the module's docstring.

    The module is not imported: some are slow, others need missing packages.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == builder]
    for text in filter(None, map(ast.get_docstring, functions)):
        if text.startswith("Build a"):
            return "A" + text.removeprefix("Build a")
    return ast.get_docstring(tree) or ""


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split()).replace("``", "`")
    return _SENTENCE_END.split(paragraph)[0]


def _table(kind: str, records: list[Record]) -> tuple[str, list[str], list[list[str]]]:
    title = (kind.upper() if kind == "gguf" else kind.capitalize()) + (f": {_HINTS[kind]}" if kind in _HINTS else "")
    if kind == "devices":
        rows = [
            [
                record["name"],
                record["summary"],
                record["kind"],
                record["backend"],
                *(f"{record[key] / 1e9:.1f} GB" for key in ("free", "total")),
            ]
            for record in records
        ]
        return title, ["name", "description", "kind", "backend", "free", "total"], rows
    if kind == "gguf":
        return title, ["name", "size"], [[record["name"], record["summary"]] for record in records]
    if any("default" in record for record in records):
        title = f"Options of {kind}: {kind}:…?NAME=VALUE&…"
    if kind != "datasets":
        more = [column for column in ("default", "scenario") if any(column in record for record in records)]
        rows = [[record["name"], record["summary"], *(record.get(column, "") for column in more)] for record in records]
        return title, ["name", "description", *more], rows
    rows = []
    for record in records:
        size = f"{record['splits'][record['evaluated']]:,}"
        texts = [record[column] for column in ("name", "summary", "evaluated", "language", "licence")]
        rows.append([*texts[:3], size, *texts[3:]])
    return title, ["name", "description", "split", "records", "language", "licence"], rows
