"""Human reviews of verdicts: graded outputs as a table, and the corrections that come back (paper, section 5)."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from viva.data.items import FieldError, preview, text_field
from viva.data.record_files import located_errors, read_records, sound_records
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.engine.tools import ToolCall
from viva.reports.spreadsheet import read_spreadsheet, unescape_cell, write_spreadsheet

from ..contract import ReviewOutcome
from .turns import DialogTurn, output_text, readable_json

CORRECTIONS_FILE = "corrections.jsonl"
_ID, CORRECTED, REVIEWER, REASON = "id", "corrected verdict", "reviewer", "reason"
COLUMNS = (
    *(_ID, "subset", "type", "query", "tools", "ground truth", "acceptable", "output"),
    *("verdict", "decided by", "reasoning", CORRECTED, REVIEWER, REASON),
)
_VERDICT_WORDS = {"pass": True, "fail": False}


@dataclass(slots=True, frozen=True)
class ReviewItem:
    """A graded output, decided by rules or by the judge.

    `id` is the conversation's key, unique in the run. `verdict` is None if the judge gave none. `reasoning` is the
    judge's, or the findings of the rules.
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
    """A reviewer's verdict on an output, with the reason; it may confirm the recorded verdict."""

    id: str
    passed: bool
    reviewer: str
    reason: str

    def to_record(self) -> dict[str, Any]:
        return {"id": self.id, "verdict": verdict_word(self.passed), "reviewer": self.reviewer, "reason": self.reason}


def verdict_word(passed: bool | None) -> str:
    return "unscored" if passed is None else "pass" if passed else "fail"


def export_rows(outputs: Iterable[ReviewItem]) -> Iterator[list[str]]:
    """Yield a row of `COLUMNS` for each output; the last three cells are for the reviewer and empty."""
    for item in outputs:
        turn = item.turn
        expected = output_text(turn.ground_truth.get("content") or "", turn.expected())
        yield [
            *(item.id, turn.subset, turn.type, turn.query(), readable_json(turn.tools), expected, turn.acceptable.text),
            *(output_text(item.content, item.calls), verdict_word(item.verdict), item.decided_by, item.reasoning),
            *("", "", ""),
        ]


def read_corrections(path: Path, known_ids: Collection[str]) -> list[Correction]:
    """Read the corrections of a filled-in table; `known_ids` are the ids of the outputs in the run.

    Rows without a corrected verdict are left out. Reviewers' texts are kept, without surrounding spaces.

    Raises:
        DatasetError: The file is no such table; an id is unknown; a corrected verdict is neither pass nor fail, has
            no reviewer or no reason, or is missing although there is a reason; or a reviewer contradicts himself.
            The error names file, line and column.
    """
    corrections: dict[tuple[str, str], Correction] = {}
    for line, row in read_spreadsheet(path, (_ID, CORRECTED, REVIEWER, REASON)):
        with located_errors(path, line):
            correction = _read_correction(row, known_ids)
            if correction is None:
                continue
            before = corrections.setdefault((correction.id, correction.reviewer), correction)
            if before.passed is not correction.passed:
                raise FieldError(
                    CORRECTED, f"{correction.reviewer} says both pass and fail of {preview(correction.id)}; keep one"
                )
        corrections[correction.id, correction.reviewer] = correction
    return list(corrections.values())


def _read_correction(row: Mapping[str, str], known_ids: Collection[str]) -> Correction | None:
    """Parse one row; None if it has no corrected verdict. A wrong row raises `FieldError`."""
    id_, verdict = unescape_cell(row[_ID].strip()), row[CORRECTED].strip().lower()
    reviewer, reason = row[REVIEWER].strip(), row[REASON].strip()
    if id_ not in known_ids:
        raise FieldError(_ID, f"{preview(id_)} is not a graded output of this run; keep the exported ids")
    if not verdict:
        if reason:
            raise FieldError(CORRECTED, "is empty, but a reason is given; write pass or fail, or clear the reason")
        return None
    if verdict not in _VERDICT_WORDS:
        raise FieldError(CORRECTED, f"expected pass or fail, found {preview(verdict)}")
    for column, text in ((REVIEWER, reviewer), (REASON, reason)):
        if not text:
            raise FieldError(column, "is empty; a corrected verdict needs a reviewer and a reason")
        text_field({column: text}, column)  # otherwise it could be recorded but not read back
    return Correction(id_, _VERDICT_WORDS[verdict], reviewer, reason)


def add_corrections(folder: Path, corrections: Iterable[Correction]) -> list[Correction]:
    """Add corrections to a run's folder, and return the new ones.

    A correction that equals the same reviewer's last one on that output is not added again.

    Raises:
        ConfigurationError: The file cannot be written.
        DatasetError: The existing file cannot be read.
    """
    last = {(correction.id, correction.reviewer): correction for correction in recorded_corrections(folder)}
    added = [correction for correction in corrections if last.get((correction.id, correction.reviewer)) != correction]
    if added:
        text = "".join(json.dumps(correction.to_record(), ensure_ascii=False) + "\n" for correction in added)
        try:
            with (folder / CORRECTIONS_FILE).open("a+b") as file:
                file.seek(0)
                content = file.read()
                file.write((b"" if content.endswith(b"\n") or not content else b"\n") + text.encode("utf-8", "replace"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigurationError(f"{folder / CORRECTIONS_FILE}: cannot be written: {error.strerror}") from None
    return added


def recorded_corrections(folder: Path) -> list[Correction]:
    """Return all corrections of a run's folder, oldest first; none if it has no such file.

    Raises:
        DatasetError: A line is no correction; the error names it.
    """
    path = folder / CORRECTIONS_FILE
    corrections = []
    for line, raw in sound_records(read_records(path)) if path.exists() else ():
        with located_errors(path, line):
            id_, verdict, reviewer, reason = (text_field(raw, name) for name in ("id", "verdict", "reviewer", "reason"))
            if verdict not in _VERDICT_WORDS:
                raise FieldError("verdict", f"expected pass or fail, found {preview(verdict)}")
        corrections.append(Correction(id_, _VERDICT_WORDS[verdict], reviewer, reason))
    return corrections


def effective_corrections(corrections: Iterable[Correction]) -> dict[str, Correction]:
    """Return the effective correction of each output: the last one of all reviewers."""
    return {correction.id: correction for correction in corrections}


def disputed_outputs(corrections: Iterable[Correction]) -> list[str]:
    """Return the sorted ids of outputs on which reviewers' last verdicts differ."""
    last = {(correction.id, correction.reviewer): correction.passed for correction in corrections}
    verdicts: dict[str, set[bool]] = {}
    for (id_, _), passed in last.items():
        verdicts.setdefault(id_, set()).add(passed)
    return sorted(id_ for id_, several in verdicts.items() if len(several) > 1)


class TurnReview:
    """The review sheet of graded turns (FunctionChat-Bench, section 5)."""

    columns = (CORRECTED, REVIEWER, REASON)

    def write(self, run: RunFolder, file: Path) -> int:
        return write_spreadsheet(file, COLUMNS, export_rows(graded_outputs(run)))

    def apply(self, run: RunFolder, file: Path) -> ReviewOutcome:
        known_ids = {item.id for item in graded_outputs(run)}
        read = read_corrections(file, known_ids)
        added = add_corrections(run.path, read)
        notes = [
            f"reviewers disagree on {id_}; the latest correction counts"
            for id_ in disputed_outputs(recorded_corrections(run.path))
        ]
        return ReviewOutcome(len(added), len(read) - len(added), notes)


def graded_outputs(folder: RunFolder) -> Iterator[ReviewItem]:
    """Yield all outputs graded by rules or the judge, in the order of the run, whose manifest has been checked.

    Raises:
        ConfigurationError: The run has no judge.
        JournalError: The journal cannot be read.
    """
    if folder.manifest["settings"]["mode"] != "turns":
        raise ConfigurationError(f"{folder.path}: nothing to review: mode user has no verdicts on single outputs")
    with History(folder.journal) as history:
        for ended in history.ended():
            if ended.failed or ended.item is None or ended.result["grade"] is None:
                continue
            output, grade, judge = (ended.result[name] for name in ("output", "grade", "judge"))
            if grade["passed"] is None and judge is None:  # stopped before the judge was called
                continue
            calls = [ToolCall.from_record(call) for call in output["calls"]]
            turn = DialogTurn.from_record(ended.item)
            if judge is None:
                yield ReviewItem(ended.key, turn, output["content"], calls, grade["passed"], "rule", grade["why"])
            else:
                reasoning = judge["reasoning"]
                yield ReviewItem(ended.key, turn, output["content"], calls, judge["passed"], "judge", reasoning)
