"""Export of the viewer's pages as files that open from a disk or any web server (`viva view --export`).

The browser filters lists with an index in one JavaScript file, because a page opened from a disk may load no other
data.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError
from viva.scenarios.rendering import SETS

from ..problems import refusal_of
from .filters import Filter
from .findings import study_answer
from .index import FINISHED, index_file
from .index_figures import IndexAnalysis
from .indexer import Indexer
from .matrix import MARKS, Matrix, MatrixCell, MatrixView, read_cells, read_matrix
from .pages import TEMPLATES, PageContext, Pages, conversation_file
from .queries import IndexReader, ListedConversation
from .runs import check_root, study_folders

_log = logging.getLogger("viva")
_MARK_FILE = "viva-export.json"  # marks the folder of an export, so that a later export may replace it
_ASSETS = ("view.js", "table.js", "export.js", "matrix.js", "compare.js")
_ITEMS_AT_ONCE = 500  # items of a matrix in one query
_MARK_TEXT = b'{"made by": "viva view --export"}\n'


def export_pages(root: Path, out: Path, *, index: Path | None = None) -> int:
    """Write the pages of the runs below `root`; return how many conversations they show.

    Raises:
        ConfigurationError: There are no runs, or `out` contains other files or cannot be written.
    """
    check_root(root)
    _check_out(root, out)
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    reader = IndexReader(file)
    pages = Pages(root, reader, served=False)
    try:
        return _write(pages, reader, root, out)
    except OSError as error:
        raise ConfigurationError(f"--export {out}: cannot be written: {error.strerror or error}") from None
    finally:
        pages.close()


def _write(pages: Pages, reader: IndexReader, root: Path, out: Path) -> int:
    for old in ("c", "asset"):
        shutil.rmtree(out / old, ignore_errors=True)
    assets = out / "asset"
    assets.mkdir(parents=True, exist_ok=True)
    (out / _MARK_FILE).write_bytes(_MARK_TEXT)
    for name in _ASSETS:
        shutil.copyfile(TEMPLATES / name, assets / name)
    (assets / "view.css").write_text(pages.style(), encoding="utf-8")
    answer = study_answer(study_folders(root), (root, out / "report.html"))
    if answer.problem:
        _write_file(out / "report.html", pages.problem("Cannot create the report", answer.problem))
    _write_file(out / "index.html", pages.overview(PageContext(answer, figures=IndexAnalysis(reader).figures())))
    _write_file(out / "conversations.html", pages.conversations(Filter()))
    _write_file(out / "compare.html", pages.comparing())
    groups = reader.groups()
    _write_file(out / "matrix.html", pages.matrix(MatrixView()))
    with (assets / "matrices.js").open("wb") as data:
        data.write(b'"use strict";\nwindow.vivaMatrices = [\n')
        for group in groups:
            data.write(orjson.dumps(_matrix_record(read_matrix(reader, group), reader)) + b",\n")
        data.write(b"];\n")
    matrix_of = {(run.name, group.second): group.id for group in groups for run in group.runs}
    count = 0
    with (assets / "data.js").open("wb") as data:
        data.write(b'"use strict";\nwindow.vivaConversations = [\n')
        for conversation in reader.every():
            target = out / conversation_file(conversation)
            if count == 0 or not target.parent.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
            _write_file(target, _conversation_page(pages, conversation))
            data.write(_conversation_record(conversation, matrix_of) + b",\n")
            count += 1
        data.write(b"];\n")
    return count


def _conversation_page(pages: Pages, conversation: ListedConversation) -> str:
    """Return the page of a conversation; if it cannot be shown, a page that says why."""
    try:
        return pages.conversation(conversation.run, conversation.number, depth=2)
    except Exception as error:
        problem = refusal_of(error)
        _log.warning("viva view: conversation %d of %s: %s", conversation.number, conversation.run, problem.detail)
        return pages.problem("Cannot be shown", problem.detail, depth=2)


def _matrix_record(matrix: Matrix, reader: IndexReader) -> dict[str, Any]:
    """Return a matrix in the format of `matrix.js`; a cell is its level, text, number of conversations, and file."""
    names = [item.name for item in matrix.items]
    cells: dict[tuple[str, str], MatrixCell] = {}
    for at in range(0, len(names), _ITEMS_AT_ONCE):
        cells |= read_cells(reader, matrix, names[at : at + _ITEMS_AT_ONCE])

    def record(cell: MatrixCell | None) -> list[Any] | None:
        if cell is None:
            return None
        text = cell.state if cell.mean is None else f"{cell.mean:.{matrix.digits}f}"
        return [cell.level, text, cell.count, conversation_file(cell) if cell.count == 1 else ""]

    return {
        "id": matrix.group.id,
        "scale": matrix.scale,
        "digits": matrix.digits,
        "legend": matrix.legend(),
        "notes": matrix.notes,
        "counts": {name: [MARKS[name], count] for name, count in matrix.counts.items()},
        "candidates": [asdict(candidate) for candidate in matrix.candidates],
        "items": [asdict(item) for item in matrix.items],
        "byName": matrix.orders["item up"],
        "cells": [[record(cells.get((name, own.name))) for own in matrix.candidates] for name in names],
    }


def _conversation_record(conversation: ListedConversation, matrix_of: dict[tuple[str, bool], str]) -> bytes:
    """Return a conversation in the format of `export.js`."""
    return orjson.dumps(
        {
            "file": conversation_file(conversation),
            "run": conversation.run,
            "candidate": conversation.candidate,
            "scenario": conversation.scenario,
            "dataset": conversation.dataset,
            "set": SETS[conversation.second] if conversation.state == FINISHED else "",
            "item": conversation.item,
            "task": conversation.task,
            "matrix": matrix_of.get((conversation.run, conversation.second), ""),
            "state": conversation.state,
            "score": conversation.score,
            "scale": conversation.scale,
            "kind": conversation.kind.title,
            "high": conversation.high,
            "rounds": conversation.rounds,
            "end": conversation.end,
            "error": conversation.error,
            "reason": conversation.reason,
            "unscored": conversation.unscored,
            "tokens": conversation.prompt_tokens + conversation.completion_tokens,
            "seconds": round(conversation.seconds, 3),
            "retries": conversation.retries,
            "at": conversation.at,
            "when": conversation.when,
            "aspects": {name: round(value, 3) for name, value in conversation.aspects.items()},
        }
    )


def _write_file(file: Path, html: str) -> None:
    file.write_text(html, encoding="utf-8")


def _check_out(root: Path, out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--export {out}: not a folder; choose another folder")
    if out.exists() and not (out / _MARK_FILE).exists() and any(out.iterdir()):
        raise ConfigurationError(
            f"--export {out}: contains something other than an earlier export; choose another folder"
        )
    if (out / "manifest.json").exists() or out.resolve() == root.resolve():
        raise ConfigurationError(f"--export {out}: the folder of a run; choose another folder")
