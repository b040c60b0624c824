"""The review of a run: its graded outputs go out as a sheet, and what people say of them comes back.

What never belongs here: what a row or a correction is (``review``), and what corrections change (``figures``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.tools import ToolCall

from ..review import Applied
from .review import (
    CORRECTED,
    REASON,
    REVIEWER,
    ReviewItem,
    apply,
    disputed,
    read_corrections,
    recorded,
    write_tsv,
)
from .turns import DialogTurn


class TurnReview:
    """The review sheet of graded turns (FunctionChat-Bench, section 5)."""

    columns = (CORRECTED, REVIEWER, REASON)

    def write(self, run: RunFolder, file: Path) -> int:
        """As ``ReviewSheet.write``."""
        return write_tsv(file, graded_outputs(run))

    def apply(self, run: RunFolder, file: Path) -> Applied:
        """As ``ReviewSheet.apply``."""
        known = {one.id for one in graded_outputs(run)}
        read = read_corrections(file, known)
        added = apply(run.path, read)
        notes = [f"reviewers disagree on {id_}; the latest correction counts" for id_ in disputed(recorded(run.path))]
        return Applied(len(added), len(read) - len(added), notes)


def graded_outputs(folder: RunFolder) -> Iterator[ReviewItem]:
    """Yield all outputs that rules or the judge graded, in the order of the run, whose manifest has been checked.

    :raises ConfigurationError: the run has no judge; :raises JournalError: the journal cannot be read.
    """
    if folder.manifest["settings"]["mode"] != "turns":
        raise ConfigurationError(
            f"{folder.path}: there is nothing to review: mode user has no verdicts on single outputs"
        )
    with History(folder.journal) as history:
        for ended in history.ended():
            if ended.failed or ended.item is None or ended.result["grade"] is None:
                continue
            output, grade, judge = (ended.result[name] for name in ("output", "grade", "judge"))
            if grade["passed"] is None and judge is None:  # the conversation was stopped before the judge was asked
                continue
            calls = [ToolCall.from_record(call) for call in output["calls"]]
            turn = DialogTurn.from_record(ended.item)
            if judge is None:
                yield ReviewItem(ended.key, turn, output["content"], calls, grade["passed"], "rule", grade["why"])
            else:
                reasoning = judge["reasoning"]
                yield ReviewItem(ended.key, turn, output["content"], calls, judge["passed"], "judge", reasoning)
