"""Tables as LaTeX (booktabs) and as Markdown, with everything in them shown as it is: names are text, never markup.

What never belongs here: what tables hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .controls import harmless
from .text import Table, numeric

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
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
    "Δ": r"$\Delta$",
    "α": r"$\alpha$",
    "κ": r"$\kappa$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "∞": r"$\infty$",
}
_LATEX_SPECIAL = re.compile("|".join([*map(re.escape, _LATEX), "-(?=-)"]))
_LATEX["-"] = "-{}"  # before another one, which would join with it into a dash
_MARKDOWN_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$!&]|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", ":": "&#58;", ".": "&#46;"}


def latex(tables: Iterable[Table]) -> str:
    r"""Each table as a ``table`` of its own, the title its caption; needs ``\usepackage{booktabs}``.

    ``\textquotedbl`` wants the T1 encoding (``\usepackage[T1]{fontenc}``, or XeLaTeX and LuaLaTeX as they are).
    """
    parts = ["% \\usepackage{booktabs}\n% \\usepackage[T1]{fontenc}\n"]
    for title, header, rows in tables:
        columns = "".join("r" if right else "l" for right in _numeric(header, rows))
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(title)}}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(header), r"\midrule"]
        lines += [*map(_latex_row, rows), r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def markdown(tables: Iterable[Table]) -> str:
    """Each table as a heading and a pipe table (GitHub's Markdown)."""
    parts = []
    for title, header, rows in tables:
        rule = ["---:" if right else ":---" for right in _numeric(header, rows)]
        lines = [f"### {markdown_text(title)}", "", _markdown_row([markdown_text(name) for name in header])]
        lines += [_markdown_row(rule), *(_markdown_row([markdown_text(cell) for cell in row]) for row in rows), ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def latex_text(text: str) -> str:
    """Text so that LaTeX prints it as it is; what controls a terminal, and ends of lines, become spaces."""
    return _LATEX_SPECIAL.sub(lambda found: _LATEX[found.group()], harmless(_CONTROLS.sub(" ", text)))


def markdown_text(text: str) -> str:
    """Text so that Markdown shows it as it is, also in a cell of a table: no HTML, no link, no picture.

    What HTML is made of becomes an entity, for a backslash is not enough where Markdown is not read by the standard.
    """
    plain = harmless(_CONTROLS.sub(" ", text))
    return _MARKDOWN_SPECIAL.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), plain)


def _latex_row(cells: Sequence[str]) -> str:
    # A cell that begins with a bracket would be read as an option of the line's end before it.
    texts = [latex_text(cell) for cell in cells]
    return " & ".join(f"{{}}{text}" if text.startswith(("[", "*")) else text for text in texts) + r" \\"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numeric(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns hold numbers, to be set flush right."""
    return [numeric(rows, index) for index in range(len(header))]
