"""The tables and figures of the five papers: ``docs/papers.yaml`` and the page that is made of it.

As a program, it writes ``docs/papers.md`` (``make docs/papers.md``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[2] / "docs"
SOURCE, PAGE = DOCS / "papers.yaml", DOCS / "papers.md"


@dataclass(slots=True)
class Row:
    """One or several tables or figures of a paper: a command with what it shows, or why there is none."""

    of: str
    about: str
    run: str = ""
    shows: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)  # files that the command makes
    within: str = ""  # the file that has the texts, "" for what is printed
    missing: str = ""
    differs: str = ""


@dataclass(slots=True)
class Paper:
    """A paper: the files and commands that its rows need, and its rows."""

    title: str
    source: str
    page: str
    rows: list[Row]
    needs: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)


def papers() -> list[Paper]:
    """The papers of the file; what it may not hold raises ``TypeError``."""
    data = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return [Paper(**{**record, "rows": list(map(_row, record["rows"]))}) for record in data["papers"]]


def _row(record: dict[str, Any]) -> Row:
    return Row(**{"within" if name == "in" else name: value for name, value in record.items()})


def page() -> str:
    """The page, as it has to stand in docs/."""
    return "\n".join(_lines())


_ABOUT = """\
<!-- Made from papers.yaml by `make docs/papers.md`. -->
# Tables of the papers

Each table and figure of the five papers behind `viva`, the command whose output has its content, and how it differs.
The tests run every command, with simulated models and small files of the papers' forms: so they show that a table
comes out, not that the papers' figures do. For the latter, name the papers' models and data in the same commands.
[papers.yaml](papers.yaml) has the small files.
"""


def _lines() -> Iterator[str]:
    yield _ABOUT
    for paper in papers():
        yield f"## {paper.title}\n\n{paper.source}; [{paper.page}]({paper.page}). What the commands read is made by:\n"
        yield "<!-- test: skip, tests/docs/test_papers.py runs it -->\n```sh"
        yield from (_broken(command) for command in paper.before)
        yield "```\n\n| table or figure | command | what comes out | difference |\n|---|---|---|---|"
        for row in paper.rows:
            cells = [f"{row.of}: {row.about}", f"`{row.run}`" if row.run else "–", _outcome(row), row.differs]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""


def _outcome(row: Row) -> str:
    if row.missing:
        return f"not reproduced: {row.missing}"
    files = [f"`{name}`" for name in ([row.within] if row.within else row.made)]
    texts = [f"`{text}`" for text in row.shows if "<svg" not in text and "&#" not in text]
    return "; ".join(filter(None, [" and ".join(files), ", ".join(texts)]))


def _broken(command: str) -> str:
    """The command over several lines, each within 110 letters, broken before an option."""
    lines = [""]
    for part in command.replace(" --", "\n--").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > 110:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
