"""Runs in notebooks: HTML of runs, results and tables, data frames, and progress.

Jupyter calls an object's `_repr_html_`. The HTML has no script and no foreign address, and texts of models, endpoints
and datasets are escaped. pandas and Polars are imported when they are asked for.
"""

from __future__ import annotations

import math
import re
import reprlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple, TypeAlias

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.events import Event, RunStarted
from viva.engine.imports import import_under_lock
from viva.engine.journal_reader import History
from viva.engine.json_data import strip_surrogates
from viva.engine.run_folder import RunFolder
from viva.reports.tables import DASH, Table, escape_controls, is_numeric_column, money
from viva.scenarios.models import label_of_key, lineup_labels
from viva.scenarios.rendering import ResultSummary, set_function
from viva.scoring.aggregates import failure_reason

from .launch import recorded_settings
from .run_progress import RemainingTime, RunProgress

Columns: TypeAlias = dict[str, list[Any]]
_SHOWN_ROWS = 50  # of a table
_SHOWN_CHARACTERS = 2_000  # of a text
_UPDATE_SECONDS = 0.5
_LONGEST_NUMBER = 18  # digits that a column of 64-bit integers can hold
_NUMBER = re.compile(r"(?P<whole>[+-]?([0-9]{1,3}(,[0-9]{3})+|[0-9]+))(?P<rest>\.[0-9]+|)(e[+-]?[0-9]{1,3})?%?")
_CELL = "text-align:{};padding:2px 8px"
_PARTS = re.compile(
    r"(?P<value>[^ /]+)(?: ± (?P<error>\S+)| of (?P<of>\S+)|/(?P<per>\S+)| \((?P<low>\S+) to (?P<high>\S+)\))?"
)
_PART_NAMES = {"error": "{} ±", "of": "of {}", "per": "of {}", "low": "{} low", "high": "{} high"}


class ReportTable(NamedTuple):
    """A table of a report: its title, its header, and rows of formatted texts."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def _repr_html_(self) -> str:
        return html_table(self)

    def columns(self) -> Columns:
        """Return the columns by name.

        Columns of figures hold numbers, rounded as in the table: `71.2 ± 3.1` becomes two columns, `NAME` and `NAME ±`;
        `71.2 (65.0 to 77.4)` becomes `NAME`, `NAME low` and `NAME high`. Percentages stay per cent, and a dash is None.
        Repeated names get a number. The first column stays text, because it has names.
        """
        columns: Columns = {}
        for position, name in enumerate(self.header):
            cells = [row[position] for row in self.rows]
            own = _parsed_column(cells) if position and is_numeric_column(self.rows, position) else {"value": cells}
            for part_name, values in own.items():
                columns[_free_name(_PART_NAMES.get(part_name, "{}").format(name), columns)] = values
        return columns

    def to_pandas(self) -> Any:
        """Return the table as a pandas data frame; its columns are those of `columns`.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return to_pandas(self.columns())

    def to_polars(self) -> Any:
        """Return the table as a Polars data frame; its columns are those of `columns`.

        Raises:
            ConfigurationError: Polars is not installed.
        """
        return to_polars(self.columns())


def to_pandas(columns: Columns) -> Any:
    """Return columns as a pandas data frame."""
    return _package("pandas").DataFrame(columns)


def to_polars(columns: Columns) -> Any:
    """Return columns as a Polars data frame."""
    return _package("polars").DataFrame(columns, infer_schema_length=None)


def _package(name: str) -> Any:
    try:
        return import_under_lock(name)
    except ImportError:
        raise ConfigurationError(f"data frames need the package {name}; install it with: pip install {name}") from None


def _free_name(name: str, columns: Columns) -> str:
    free, number = name, 2
    while free in columns:
        free, number = f"{name} {number}", number + 1
    return free


def _parsed_column(cells: list[str]) -> Columns:
    """Return the parts of a column's cells that occur, as numbers; the cells themselves if one is no number."""
    matches = [_PARTS.fullmatch(cell) for cell in cells]
    parts = [{} if match is None else match.groupdict() for match in matches]
    try:
        return {
            name: [_number(part.get(name)) for part in parts]
            for name in ("value", *_PART_NAMES)
            if name == "value" or any(part.get(name) is not None for part in parts)
        }
    except ValueError:
        return {"value": cells}


def _number(text: str | None) -> float | int | None:
    """Return the number that a cell shows; raise ValueError if it shows none."""
    if text is None or text == DASH:
        return None
    plain = text.replace("−", "-")
    if plain.removesuffix("%").lstrip("+-") == "∞":
        return -math.inf if plain.startswith("-") else math.inf
    match = _NUMBER.fullmatch(plain)
    if match is None:
        raise ValueError(f"no number: {text:.20}")
    plain = plain.removesuffix("%").replace(",", "")
    is_whole = plain == match["whole"].replace(",", "") and len(plain) <= _LONGEST_NUMBER
    return int(plain) if is_whole else float(plain)


def conversation_columns(folder: RunFolder) -> Columns:
    """Return the ended conversations of a run as columns, in run order.

    `key`, `candidate` and `task` name the conversation, `state` is finished or failed, `score` is None if unscored, and
    `end` says how it ended; `error` is the reason of a failure. Further columns are the scenario's other figures. If
    the run has a second set, `set` is that of a finished conversation (`SETS`).
    """
    scenario, settings = recorded_settings(folder)
    summarise, set_of = scenario.summary_of(settings), set_function(scenario, folder.manifest)
    labels = lineup_labels(scenario.roles_of(settings), folder.manifest)
    sets = [] if set_of is None else ["set"]
    columns: Columns = {name: [] for name in ("key", "candidate", "task", *sets, "state", "score", "end", "error")}
    aspects: Columns = {}
    with History(folder.journal) as history:
        for count, ended in enumerate(history.ended()):
            candidate = label_of_key(ended.key, labels)
            summary, of_set = None, None
            if not ended.failed:
                try:
                    summary = summarise(ended.result)
                    of_set = None if set_of is None else set_of(ended.result)
                except Exception:  # another version has recorded the result in another form
                    summary = ResultSummary(end="from another version")
            columns["key"].append(ended.key)
            columns["candidate"].append(candidate)
            columns["task"].append(ended.key.removeprefix(f"{candidate}/"))
            if set_of is not None:
                columns["set"].append(of_set)
            columns["state"].append("failed" if ended.failed else "finished")
            columns["score"].append(None if summary is None else _figure(summary.score))
            columns["end"].append("" if summary is None else summary.end)
            columns["error"].append(failure_reason(ended.result) if ended.failed else None)
            figures = {} if summary is None else summary.aspects
            for name in figures.keys() - aspects.keys():
                aspects[name] = [None] * count
            for name, values in aspects.items():
                values.append(_figure(figures.get(name)))
    for name in sorted(aspects):
        columns[_free_name(name, columns)] = aspects[name]
    return columns


def _figure(value: Any) -> float | int | None:
    """Return a figure that a column of numbers can hold; None for what another version recorded instead."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return math.copysign(math.inf, value)
    return value if isinstance(value, int | float) else None


def html_table(table: Table) -> str:
    """Return a table as HTML; of a long one, the first rows."""
    title, header, rows = table
    aligned = ["right" if is_numeric_column(rows, at) else "left" for at in range(len(header))]

    def row(tag: str, cells: Sequence[str]) -> str:
        styled = zip(aligned, cells, strict=True)
        return "".join(f'<{tag} style="{_CELL.format(side)}">{_html(cell)}</{tag}>' for side, cell in styled)

    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows[:_SHOWN_ROWS])
    rest = f"<p>and {len(rows) - _SHOWN_ROWS:,} more rows</p>" if len(rows) > _SHOWN_ROWS else ""
    caption = f'<caption style="text-align:left;font-weight:bold">{_html(title)}</caption>'
    return f"<table>{caption}<thead><tr>{row('th', header)}</tr></thead><tbody>{body}</tbody></table>{rest}"


class ReportTables(list[ReportTable]):
    """The tables of a report that have rows; a notebook shows them one below the other."""

    def _repr_html_(self) -> str:
        return "".join(map(html_table, self))


def html_run(title: str, lines: Iterable[str], filled: Sequence[Table]) -> str:
    """Return a run as HTML: its first table, and the other ones behind a fold."""
    parts = [
        f"<p><b>{_html(title)}</b></p>",
        *(f"<p>{_html(line)}</p>" for line in lines),
        *map(html_table, filled[:1]),
    ]
    if filled[1:]:
        rest = "".join(map(html_table, filled[1:]))
        parts.append(f"<details><summary>{len(filled) - 1:,} more tables</summary>{rest}</details>")
    return f"<div>{''.join(parts)}</div>"


def html_record(title: str, record: Mapping[str, Any]) -> str:
    """Return fields and their values as HTML; values that are neither text nor number are shown as JSON."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL.format("left")};vertical-align:top">{_html(str(name))}</th>'
        f'<td style="{_CELL.format("left")};white-space:pre-wrap">{_html(_to_text(value))}</td></tr>'
        for name, value in record.items()
    )
    return f'<table><caption style="text-align:left;font-weight:bold">{_html(title)}</caption>{rows}</table>'


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_INDENT_2).decode()
    except Exception:  # nested too deeply, or with other values than JSON has
        return reprlib.repr(value)


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else str(value)


def _html(text: str) -> str:
    text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return escape(escape_controls(strip_surrogates(text)))


def in_notebook() -> bool:
    """Return True if this program is the kernel of a notebook, which can update what it has shown."""
    shell = sys.modules.get("IPython")
    current = None if shell is None else shell.get_ipython()
    return current is not None and hasattr(current, "kernel")


@dataclass
class NotebookProgress:
    """Progress of a run below the cell that runs it: one line that is updated, at most twice a second.

    Args:
        show: Shows or updates the line's HTML.
    """

    show: Callable[[str], None]

    def __post_init__(self) -> None:
        self._tally, self._estimate = RunProgress(), RemainingTime()
        self._total: int | None = None
        self._began = self._updated = time.monotonic()

    @classmethod
    def below_cell(cls) -> NotebookProgress:
        """Return progress that is shown below the current cell."""
        display = import_under_lock("IPython.display")
        handle = display.display(display.HTML("<p>starting</p>"), display_id=True)
        return cls(lambda html: handle.update(display.HTML(html)))

    def hear(self, event: Event) -> None:
        """Count an event of the run."""
        self._tally.hear(event)
        self._estimate.hear(event)
        if isinstance(event, RunStarted):
            self._total = event.total
        if time.monotonic() - self._updated >= _UPDATE_SECONDS:
            self.update()

    def update(self) -> None:
        """Show the counts as they are now."""
        self._updated = time.monotonic()
        share = self._estimate.fraction_done()
        bar = "" if share is None else f'<progress max="1" value="{share:.3f}" aria-label="run"></progress> '
        self.show(f"<p>{bar}{_html(', '.join(self._counts()))}</p>")

    def _counts(self) -> Iterator[str]:
        tally = self._tally
        yield f"{tally.done:,} of {'?' if self._total is None else f'{self._total:,}'} conversations ended"
        if tally.failed:
            yield f"{tally.failed:,} failed"
        if tally.in_flight:
            yield f"{tally.in_flight:,} in flight"
            if (seconds := self._estimate.seconds(self._updated - self._began)) is not None:
                yield f"about {seconds / 60:,.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
        yield f"{tally.calls:,} calls"
        if tally.cost:
            yield f"cost {money(tally.cost)}"
