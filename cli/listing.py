"""``viva list``: what can be named on the command line and in files, one line each, from the registries themselves.

What never belongs here: names. Each kind asks whoever accepts the names, so what is listed is what is accepted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from .exit_codes import guarded
from .lazy_command import example_of

Record = dict[str, Any]
_END = re.compile(r"(?<=\.) (?=[A-Z`])")  # of a sentence
_HINTS = {
    "scenarios": "viva run NAME",
    "datasets": "--dataset NAME, NAME/SUBJECT, NAME:SPLIT, NAME:FOLDER:SPLIT",
    "forms": "--dataset FORM:FILE, FORM:FOLDER:SPLIT",
    "packs": "--pack NAME, or a file",
    "detectors": "--detectors NAME",
    "contamination": "method loss; computed for every text",
    "assistants": "--assistant NAME",
    "models": "KIND:…, see viva --help",
}


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    examples = ("viva list", "viva list datasets", "viva list datasets --json")
    app.command("list", epilog=example_of(*examples))(guarded(_list))


def _list(
    kind: Annotated[str | None, typer.Argument(help="scenarios, datasets, packs, … (all if not given).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List what can be named: scenarios, datasets, prompt packs, scorers, detectors, assistants, metrics, models."""
    from viva.engine.errors import ConfigurationError

    from .output import print_json, print_tables

    found = listed()
    if kind is not None:
        if kind not in found:
            raise ConfigurationError(f"'{kind}' is no kind of thing that is listed; there are {', '.join(found)}")
        found = {kind: found[kind]}
    if json:
        print_json(found)
    else:
        print_tables(_table(name, records) for name, records in found.items())


def listed() -> dict[str, list[Record]]:
    """All that is accepted by name, by kind; of each ``name`` and ``summary``, of datasets what is known of them."""
    from viva.agents.assistants.names import described
    from viva.agents.prompts import shipped_packs
    from viva.engine.detectors import DETECTORS
    from viva.scenarios.registry import scenarios

    known = list(scenarios())
    found = {
        "scenarios": _records({which.name: which.summary for which in known}),
        "datasets": _datasets(),
        "forms": _forms(),
        "packs": _records(shipped_packs()),
        "detectors": _records({name: made.__doc__ or "" for name, made in DETECTORS.items()}),
        "contamination": _contamination(),
        "assistants": _records(described()),
        "models": _models(),
    }
    for which in known:
        for kind, lines in which.offers().items():
            records = [{**one, "scenario": which.name} for one in _records(lines)]
            found.setdefault(kind, []).extend(records)
    return found


def _records(lines: Mapping[str, str]) -> list[Record]:
    return [{"name": name, "summary": _first(text)} for name, text in lines.items()]


def _datasets() -> list[Record]:
    from viva.data.benchmark import benchmark, names

    found = []
    for of in map(benchmark, names()):
        facts = of.model_dump(
            mode="json",
            include={
                "title",
                "language",
                "licence",
                "citation",
                "url",
                "hub",
                "splits",
                "evaluated",
                "examples",
                "listed",
            },
        )
        found.append({"name": of.name, "summary": of.summary, **facts, "subjects": list(of.subjects)})
    return found


def _forms() -> list[Record]:
    from viva.data.forms import FORMS
    from viva.data.sources import HUB

    own = {form.name: form.summary for form in FORMS.values()}
    return _records(own | {HUB: "A dataset of the Hugging Face hub: hf:owner/name, with /config and :split."})


def _contamination() -> list[Record]:
    from viva.scoring import contamination

    formulas: dict[str, Callable[..., Any]] = {name: getattr(contamination, name) for name in contamination.DIRECTIONS}
    return _records({name: formula.__doc__ or "" for name, formula in formulas.items()})


def _models() -> list[Record]:
    from viva.engine.backends.registry import GROUP, KINDS
    from viva.engine.plugins import registered

    modules = KINDS | {name: point.value.partition(":")[0] for name, point in registered(GROUP).items()}
    return _records({kind: _docstring(module) for kind, module in modules.items()})


def _docstring(module: str) -> str:
    """A module's docstring, without importing it: some need packages that are not installed, or seconds."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def _first(text: str) -> str:
    """The first sentence of a docstring or comment."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split()).replace("``", "`")
    return _END.split(paragraph)[0]


def _table(kind: str, records: list[Record]) -> tuple[str, list[str], list[list[str]]]:
    title = kind.capitalize() + (f": {_HINTS[kind]}" if kind in _HINTS else "")
    if kind != "datasets":
        header = ["name", "what it is", *(["scenario"] if any("scenario" in one for one in records) else [])]
        return title, header, [[one["name"], one["summary"], *filter(None, [one.get("scenario")])] for one in records]
    rows = []
    for one in records:
        size = f"{one['splits'][one['evaluated']]:,}"
        rows.append([one["name"], one["summary"], one["evaluated"], size, one["language"], one["licence"]])
    return title, ["name", "what it is", "split", "records", "language", "licence"], rows
