"""A reviewer's look at verdicts: rows to look at, and corrections that come back (paper, section 5).

Corrections are lines in a file of their own in the run's folder. It only ever grows, and verdicts in the journal stay
what they were. What never belongs here: how tables are saved (``sheet``), and the figures that corrections
change (``figures``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from viva.data.fields import FieldError, shown, text_field
from viva.data.reading import read_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.tools import ToolCall
from viva.reports.sheet import read_sheet, unescape, write_sheet

from .turns import DialogTurn, said, shown_json

FILE = "corrections.jsonl"
_ID, CORRECTED, REVIEWER, REASON = "id", "corrected verdict", "reviewer", "reason"
COLUMNS = (
    _ID,
    "subset",
    "type",
    "query",
    "tools",
    "ground truth",
    "acceptable",
    "output",
    "verdict",
    "decided by",
    "reasoning",
    CORRECTED,
    REVIEWER,
    REASON,
)
_VERDICTS = {"pass": True, "fail": False}


@dataclass(slots=True, frozen=True)
class ReviewItem:
    """A graded output, whether rules decided on it or the judge.

    ``id``: unique in the run (the conversation's key). ``verdict``: None where the judge gave none. ``reasoning``: the
    judge's, or what the rules found.
    """

    id: str
    turn: DialogTurn
    content: str
    calls: Sequence[ToolCall]
    verdict: bool | None
    decided_by: Literal["rule", "judge"]
    reasoning: str


@dataclass(slots=True, frozen=True)
class Correction:
    """A reviewer's verdict on an output, which may be the recorded one if that is right, and why."""

    id: str
    passed: bool
    reviewer: str
    reason: str

    def to_record(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"id": self.id, "verdict": word(self.passed), "reviewer": self.reviewer, "reason": self.reason}


def word(passed: bool | None) -> str:
    """A verdict in a word."""
    return "unscored" if passed is None else "pass" if passed else "fail"


def export_rows(outputs: Iterable[ReviewItem]) -> Iterator[list[str]]:
    """Yield a row of ``COLUMNS`` for each output; the last three cells are the reviewer's and empty."""
    for one in outputs:
        turn = one.turn
        expected = said(turn.ground_truth.get("content") or "", turn.expected())
        given = [one.id, turn.subset, turn.type, turn.query(), shown_json(turn.tools), expected, turn.acceptable.text]
        yield [*given, said(one.content, one.calls), word(one.verdict), one.decided_by, one.reasoning, "", "", ""]


def write_tsv(path: Path, outputs: Iterable[ReviewItem]) -> int:
    """Write what reviewers are to look at; gives the number of rows.

    :raises ConfigurationError: the file cannot be written.
    """
    return write_sheet(path, COLUMNS, export_rows(outputs))


def read_corrections(path: Path, known: Collection[str]) -> list[Correction]:
    """The corrections in a table that came back; ``known``: the ids of the outputs that may be corrected.

    Rows without a corrected verdict are left out. What reviewers wrote is taken as they wrote it, without the spaces
    around it.

    :raises DatasetError: the file is no such table; an id is unknown; a corrected verdict is neither pass nor fail,
        has no reviewer or no reason, or is missing where there is a reason; or a reviewer says both of one output. The
        error names file, line and column.
    """
    found: dict[tuple[str, str], Correction] = {}
    for line, row in read_sheet(path, (_ID, CORRECTED, REVIEWER, REASON)):

        def refuse(column: str, problem: str, line: int = line) -> DatasetError:
            return DatasetError(problem, path=str(path), line=line, field=column)

        id_, verdict = unescape(row[_ID].strip()), row[CORRECTED].strip().lower()
        reviewer, reason = row[REVIEWER].strip(), row[REASON].strip()
        if id_ not in known:
            raise refuse(_ID, f"{shown(id_)} is no graded output of this run; keep the ids as they were exported")
        if not verdict:
            if reason:
                raise refuse(CORRECTED, "is empty, but a reason is given; write pass or fail, or clear the reason")
            continue
        if verdict not in _VERDICTS:
            raise refuse(CORRECTED, f"expected pass or fail, found {shown(verdict)}")
        for column, text in ((REVIEWER, reviewer), (REASON, reason)):
            if not text:
                raise refuse(column, "is empty; a corrected verdict needs a reviewer and a reason")
            try:
                text_field({column: text}, column)  # or it could be recorded and never be read again
            except FieldError as error:
                raise refuse(column, str(error)) from None
        before = found.get((id_, reviewer))
        if before is not None and before.passed is not _VERDICTS[verdict]:
            raise refuse(CORRECTED, f"{reviewer} says both pass and fail of {shown(id_)}; keep one")
        found[id_, reviewer] = Correction(id_, _VERDICTS[verdict], reviewer, reason)
    return list(found.values())


def apply(folder: Path, corrections: Iterable[Correction]) -> list[Correction]:
    """Add corrections to those of a run's folder; gives those that were added.

    One that says the same as its reviewer's last on that output is not added again.

    :raises ConfigurationError: the file cannot be written.
    :raises DatasetError: what stands in it already cannot be read.
    """
    last = {(one.id, one.reviewer): one for one in recorded(folder)}
    added = [one for one in corrections if last.get((one.id, one.reviewer)) != one]
    if added:
        text = "".join(json.dumps(one.to_record(), ensure_ascii=False) + "\n" for one in added)
        try:
            with (folder / FILE).open("a+b") as file:
                file.seek(0)
                whole = file.read()
                file.write((b"" if whole.endswith(b"\n") or not whole else b"\n") + text.encode("utf-8", "replace"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigurationError(f"{folder / FILE}: cannot be written: {error.strerror}") from None
    return added


def recorded(folder: Path) -> list[Correction]:
    """All corrections of a run's folder, oldest first; none if it has no such file.

    :raises DatasetError: a line is no correction; the error names it.
    """
    path = folder / FILE
    found = []
    for line, raw in read_records(path) if path.exists() else ():
        if isinstance(raw, DatasetError):
            raise raw
        try:
            texts = {name: text_field(raw, name) for name in ("id", "verdict", "reviewer", "reason")}
            if texts["verdict"] not in _VERDICTS:
                raise FieldError("verdict", f"expected pass or fail, found {shown(texts['verdict'])}")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
        found.append(Correction(texts["id"], _VERDICTS[texts["verdict"]], texts["reviewer"], texts["reason"]))
    return found


def standing(corrections: Iterable[Correction]) -> dict[str, Correction]:
    """By output the correction that counts: of each reviewer the last, and of several reviewers' the last of all."""
    return {one.id: one for one in corrections}


def disputed(corrections: Iterable[Correction]) -> list[str]:
    """The outputs of which reviewers' last words differ, sorted."""
    last = {(one.id, one.reviewer): one.passed for one in corrections}
    verdicts: dict[str, set[bool]] = {}
    for (id_, _), passed in last.items():
        verdicts.setdefault(id_, set()).add(passed)
    return sorted(id_ for id_, several in verdicts.items() if len(several) > 1)
