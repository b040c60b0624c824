"""Tables of reports: formatted figures, escaped texts, rows in long form, LaTeX, and Markdown.

Control characters in texts of models, endpoints and datasets are made visible. LaTeX and Markdown in names is escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

# Characters that could move the cursor, set a title, hide text or change its direction in a terminal.
_VISIBLE_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r")  # starts of cells that spreadsheets compute


def escape_controls(text: str) -> str:
    """Make control characters visible, including those that change the writing direction."""
    return _VISIBLE_CONTROLS.sub(lambda match: _visible_code(ord(match.group())), text)


def one_line(text: str) -> str:
    """Make a text harmless and keep it on one line, so that a model's text cannot imitate a line of ours."""
    return escape_controls(text).replace("\n", "\\n")


def spreadsheet_cell(text: str, *, lines: bool = False) -> str:
    """Return text that a spreadsheet does not compute and a terminal can show; `lines` keeps line ends."""
    visible = escape_controls(text) if lines else one_line(text)
    return f"'{visible}" if text.startswith(_FORMULA_STARTS) else visible


def _visible_code(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


Table: TypeAlias = tuple[str, list[str], list[list[str]]]
DASH = "–"


def number(value: float | None, digits: int = 1) -> str:
    """Format a number; a dash for None."""
    return DASH if value is None else f"{value:z,.{digits}f}"


def money(value: float | None) -> str:
    """Format a cost: two decimals, or more if a smaller cost would become 0; a dash for None."""
    digits = 2 if not value or value >= 0.1 else 1 - math.floor(math.log10(value))
    return number(value, digits)


def signed(value: float | None, digits: int = 1) -> str:
    """Format a number with its sign."""
    return DASH if value is None else f"{value:+z,.{digits}f}"


def percent(fraction: float | None) -> str:
    """Format a fraction, 0–1, in per cent."""
    return DASH if fraction is None else f"{100 * fraction:z.1f}%"


def p_value(p: float | None) -> str:
    """Format a p-value: three decimals, or the power of ten."""
    return DASH if p is None else f"{p:.3f}" if p >= 0.0005 else f"{p:.1e}"


def standard_error(value: float | None, digits: int = 1) -> str:
    """Format a standard error; a dash for None, and for 0, because equal values say nothing about unseen ones."""
    return number(value or None, digits)


def mean_and_error(record: Mapping[str, Any] | None, digits: int = 1) -> tuple[str, str]:
    """Format a mean and its standard error."""
    return number((record or {}).get("mean"), digits), standard_error((record or {}).get("se"), digits)


def mean(record: Mapping[str, Any] | None, digits: int = 1) -> str:
    """Format a mean with its standard error in one cell; a single dash if there is neither."""
    value, error = mean_and_error(record, digits)
    return value if value == DASH else f"{value} ± {error}"


def interval(record: Mapping[str, Any] | None, digits: int = 1) -> str:
    """Format a value with the ends of its interval."""
    if record is None or record.get("value") is None:
        return DASH
    if record["low"] is None:
        return number(record["value"], digits)
    return f"{number(record['value'], digits)} ({number(record['low'], digits)} to {number(record['high'], digits)})"


def mean_and_interval(record: Mapping[str, Any] | None, digits: int = 1) -> str:
    """Format a mean with the ends of its interval."""
    return interval(None if record is None else {**record, "value": record["mean"]}, digits)


_NUMBER = r"(?:[-−+]?(?:\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|∞)%?|–)"
_NUMERIC = re.compile(rf"{_NUMBER}(?: ± {_NUMBER}| of {_NUMBER}|/{_NUMBER}| \({_NUMBER} to {_NUMBER}\))?")


def is_numeric_column(table: Sequence[Sequence[str]], column: int) -> bool:
    """Return True if each cell of a column is a dash or a number, with or without an error or interval."""
    return all(_NUMERIC.fullmatch(row[column]) for row in table)


FIGURE_COLUMNS = (
    *("scenario", "candidate", "dataset", "seed", "evaluator", "scorer"),
    *("measure", "value", "se", "low", "high", "n"),
)
TEXT_COLUMNS = ("scenario", "candidate", "dataset", "evaluator", "scorer", "measure")
INTEGER_COLUMNS = ("seed", "n")
Row: TypeAlias = dict[str, Any]
# Fields of records whose numbers are no figures.
_NO_MEASURES = frozenset({"n_items", "n_observations"})


def figure_row(columns: Row, measure: str, **figures: Any) -> Row:
    """Return the row of one figure: `columns` are the first columns, `figures` the last; missing figures are None."""
    return dict.fromkeys(FIGURE_COLUMNS) | columns | {"measure": measure} | figures


def mean_row(record: Mapping[str, Any]) -> Row:
    """Return the last columns of the row for the record of a mean."""
    return {
        "value": record["mean"],
        "se": record.get("se"),
        "low": record.get("low"),
        "high": record.get("high"),
        "n": record["n"],
    }


def record_rows(columns: Row, measure: str, record: Any) -> Iterator[Row]:
    """Yield the figures of a record: a mean or an estimate is one row; other records are searched for figures.

    A figure's measure is its path in the record, joined by dots.
    """
    if isinstance(record, Mapping):
        if "mean" in record and "n" in record:
            yield figure_row(columns, measure, **mean_row(record))
        elif {"value", "low", "high"} <= record.keys():
            yield figure_row(columns, measure, **{field: record[field] for field in ("value", "low", "high")})
            remaining = {field: value for field, value in record.items() if field not in ("value", "low", "high")}
            yield from record_rows(columns, measure, remaining)
        else:
            for field, value in record.items():
                if field not in _NO_MEASURES:
                    yield from record_rows(columns, f"{measure}.{field}" if measure else field, value)
    elif isinstance(record, int | float) and not isinstance(record, bool):
        yield figure_row(columns, measure, value=record)


_MARKUP_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "Δ": r"$\Delta$",
    "α": r"$\alpha$",
    "θ": r"$\theta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "φ": r"$\phi$",
    "∞": r"$\infty$",
}
_LATEX_SPECIAL = re.compile("|".join([*map(re.escape, _LATEX), "-(?=-)"]))
_LATEX["-"] = "-{}"  # before another hyphen, which would form a dash
_MARKDOWN_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$!&]|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", ":": "&#58;", ".": "&#46;"}


def to_latex(tables: Iterable[Table]) -> str:
    r"""Format each table as a `table` environment with its title as caption; needs `\usepackage{booktabs}`.

    `\textquotedbl` needs the T1 encoding (`\usepackage[T1]{fontenc}`, or XeLaTeX or LuaLaTeX).
    """
    parts = ["% \\usepackage{booktabs}\n% \\usepackage[T1]{fontenc}\n% names in other scripts: XeLaTeX or LuaLaTeX\n"]
    for title, header, rows in tables:
        columns = "".join("r" if right else "l" for right in _numeric_columns(header, rows))
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(title)}}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(header), r"\midrule"]
        lines += [*map(_latex_row, rows), r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def to_markdown(tables: Iterable[Table]) -> str:
    """Format each table as a heading and a pipe table (GitHub's Markdown)."""
    parts = []
    for title, header, rows in tables:
        rule = ["---:" if right else ":---" for right in _numeric_columns(header, rows)]
        lines = [f"### {markdown_text(title)}", "", _markdown_row([markdown_text(name) for name in header])]
        lines += [_markdown_row(rule), *(_markdown_row([markdown_text(cell) for cell in row]) for row in rows), ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def latex_text(text: str) -> str:
    """Escape text for LaTeX; control characters and line ends become spaces."""
    return _LATEX_SPECIAL.sub(lambda match: _LATEX[match.group()], escape_controls(_MARKUP_CONTROLS.sub(" ", text)))


def markdown_text(text: str) -> str:
    """Escape text for Markdown, also in a table cell: no HTML, no link, no picture."""
    plain = escape_controls(_MARKUP_CONTROLS.sub(" ", text))
    return _MARKDOWN_SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), plain)


def _latex_row(cells: Sequence[str]) -> str:
    # A cell that begins with a bracket would be read as an option of the preceding line end.
    texts = [latex_text(cell) for cell in cells]
    return " & ".join(f"{{}}{text}" if text.startswith(("[", "*")) else text for text in texts) + r" \\"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numeric_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return True for each column that holds numbers, to be right-aligned."""
    return [is_numeric_column(rows, index) for index in range(len(header))]
