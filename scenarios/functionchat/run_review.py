"""The review of a run: its judged outputs go out as a sheet, and what people say of them comes back.

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
    Judged,
    apply,
    disputed,
    read_corrections,
    recorded,
    write_tsv,
)
from .turns import DialogTurn


class TurnReview:
    """The review sheet of judged turns (FunctionChat-Bench, section 5)."""

    columns = (CORRECTED, REVIEWER, REASON)

    def write(self, run: RunFolder, file: Path) -> int:
        """As ``ReviewSheet.write``."""
        return write_tsv(file, judged_outputs(run))

    def apply(self, run: RunFolder, file: Path) -> Applied:
        """As ``ReviewSheet.apply``."""
        known = {one.id for one in judged_outputs(run)}
        read = read_corrections(file, known)
        added = apply(run.path, read)
        notes = [f"reviewers disagree on {id_}; the latest correction counts" for id_ in disputed(recorded(run.path))]
        return Applied(len(added), len(read) - len(added), notes)


def judged_outputs(folder: RunFolder) -> Iterator[Judged]:
    """What the judge was asked about, in the order of the run, whose manifest has been checked.

    :raises ConfigurationError: the run has no judge; :raises JournalError: the journal cannot be read.
    """
    if folder.manifest["settings"]["mode"] != "turns":
        raise ConfigurationError(f"{folder.path}: nothing is judged in mode user, so there is nothing to review")
    with History(folder.journal) as history:
        for ended in history.ended():
            if ended.failed or ended.item is None or ended.result["judge"] is None:
                continue
            output, judge = ended.result["output"], ended.result["judge"]
            calls = [ToolCall.from_record(call) for call in output["calls"]]
            turn = DialogTurn.from_record(ended.item)
            yield Judged(ended.key, turn, output["content"], calls, judge["passed"], judge["reasoning"])
