"""Pages of the site that are made when it is built: commands from the app, options of models, fields of files, tags,
public names, figures of the benches.

mkdocs calls the functions by their names (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_RESULTS = ROOT / "benches" / "results"
_OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:benches|engine|scenarios|CONTRIBUTING|README|CHANGELOG)[^)#]*)(#[^)]*)?\)")
# Files of the repository that a generated page shows.
_INCLUDED = {
    "engine/backends/options.yaml": "reference/models.md",
    "engine/backends/http_application_mapping.py": "reference/fields.md#applications",
    "scenarios/functionchat/rule_grading.py": "reference/fields.md#tags-of-tool-use-dialogs",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that the navigation does not name stand in it at the end."""
    assert config.nav is not None
    named = set(re.findall(r"[\w./-]+\.md", json.dumps(config.nav)))
    pages = sorted(Path(config.docs_dir).rglob("*.md"))
    unnamed = [name for page in pages if (name := str(page.relative_to(config.docs_dir))) not in named]
    if unnamed:
        config.nav.append({"More": unnamed})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that nobody writes."""
    pages = {"commands": commands(), "models": models(), "fields": fields(), "names": names(), "figures": figures()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to results of benches lead to the page of figures; other files of the repository are not on the site."""

    def link_target(link: re.Match[str]) -> str:
        up = "../" * page.file.src_uri.count("/")
        if link[1] in _INCLUDED:
            return f"]({up}{_INCLUDED[link[1]]})"
        if not link[1].startswith("benches/results"):
            raise ValueError(f"{page.file.src_uri}: {link[0]} leads out of the site")
        stem = Path(link[1]).stem if link[1].endswith(".json") else ""
        return f"]({up}reference/figures.md#{stem})" if stem else f"]({up}reference/figures.md)"

    return _OUTSIDE.sub(link_target, markdown)


def commands() -> str:
    """Help of every verb, in the order of ``viva --help``."""
    from viva.cli.main import app

    lines = ["# Commands", "", "What `viva VERB --help` prints."]
    for path in _verbs(typer.main.get_command(app), []):
        lines += ["", f"## viva {' '.join(path)}", "", "```text", _help(path), "```"]
    return "\n".join(lines)


def _verbs(command: Any, path: list[str]) -> Iterator[list[str]]:
    context = click.Context(command)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else []:
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield [*path, name]
            yield from _verbs(below, [*path, name])
    if path == ["run"]:
        from viva.engine.imports import load_entry_points

        known = set(command.list_commands(context))
        yield from (["run", name] for name in load_entry_points("viva.scenarios") if name not in known)


def _help(path: list[str]) -> str:
    from click.testing import CliRunner

    from viva.cli.main import app

    if path == ["score"]:  # its options are those of the run that is named
        return "viva score RUN [OPTIONS]: `viva score RUN --help` names the options of that run's scenario."
    done = CliRunner().invoke(typer.main.get_command(app), [*path, "--help"], prog_name="viva", terminal_width=100)
    if done.exit_code:
        raise ValueError(f"viva {' '.join(path)} --help: {done.output}")
    return done.output.rstrip()


def models() -> str:
    """Return the options of each kind of model."""
    from viva.engine.backends.registry import describe_options, described_kinds

    lines = ["# Options of models", "", "What `viva list KIND` prints; [models](../models.md) explains the kinds."]
    for kind in described_kinds():
        rows = [[f"`{name}`", default, meaning] for name, (default, meaning) in describe_options(kind).items()]
        lines += ["", f"## {kind}", "", *_table(["option", "default", "meaning"], rows)]
    return "\n".join(lines)


def fields() -> str:
    """Return the fields of suite files and of mappings of applications, and the tags of tool-use dialogs."""
    from viva.engine.backends.http_application_mapping import Application
    from viva.scenarios.flexeval.spec import Suite
    from viva.scenarios.functionchat.rule_grading import tag_rows

    lines = ["# Fields and tags"]
    for title, page, model in (("Suite files", "suites", Suite), ("Applications", "models", Application)):
        lines += ["", f"## {title}", "", f"See [{page}](../{page}.md)."]
        schema = model.model_json_schema()
        for name, part in {"": schema, **schema.get("$defs", {})}.items():
            rows = [
                [f"`{field}`", f"`{facts['default']}`" if facts.get("default") else "", facts.get("description", "")]
                for field, facts in part.get("properties", {}).items()
            ]
            if rows:
                lines += ["", *([f"### {name}", ""] if name else []), *_table(["field", "default", "meaning"], rows)]
    lines += ["", "## Tags of tool-use dialogs", "", "See [tool-use dialogs](../functionchat.md#errors).", ""]
    lines += _table(["tag", "kind", "meaning"], [[f"`{name}`", *rest] for name, *rest in tag_rows()])
    return "\n".join(lines)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    cells = [[_text(cell) for cell in row] for row in [header, ["---"] * len(header), *rows]]
    return [f"| {' | '.join(row)} |" for row in cells]


def names() -> str:
    """The public names with their docstrings."""
    import viva

    lines = [
        "# Public names",
        "",
        "Promised names of `viva`; [the Python API](../api.md) shows them at work.",
    ]
    for home, these in viva._HOMES.items():
        for name in these:
            lines += ["", f"## viva.{name}", "", f"::: {home}.{name}", "    options: {show_root_heading: false}"]
    return "\n".join(lines)


def figures() -> str:
    """What the benches measured last: figures and the bounds that they should keep, with machine and date."""
    lines = ["# Figures", "", "What `make bench` measured last, and the bounds that are set."]
    for path in sorted(_RESULTS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if not record.get("figures"):
            continue
        machine = record.get("machine", {})
        text = ", ".join(
            f"{name} {machine[name]}" for name in ("cpu", "cores", "memory_gb", "python") if name in machine
        )
        lines += [
            "",
            f"## {path.stem}",
            "",
            f"{_date(path)}; {text}",
            "",
            "| figure | value | bound |",
            "|---|---|---|",
        ]
        reach = record.get("reach", {})
        lines += [f"| `{name}` | {_text(value)} | {' '.join(map(str, reach.get(name, [])))} |"
                  for name, value in record["figures"].items() if not isinstance(value, dict | list)]  # fmt: skip
    return "\n".join(lines)


def _date(path: Path) -> str:
    done = subprocess.run(
        ["git", "log", "-1", "--format=%cs", "--", str(path)], cwd=ROOT, capture_output=True, text=True
    )
    return f"measured up to {done.stdout.strip()}" if done.stdout.strip() else "not dated"


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
