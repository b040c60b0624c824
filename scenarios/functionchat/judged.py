"""The judged outputs of a run folder, for reviewers and for the report.

What never belongs here: what reviewers say (``review``).
"""

from __future__ import annotations

from collections.abc import Iterator

from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.tools import ToolCall

from .review import Judged
from .turns import Turn


def judged_outputs(folder: RunFolder) -> Iterator[Judged]:
    """What the judge was asked about, in the order of the run, whose manifest has been checked.

    :raises ConfigurationError: the run has no judge; :raises JournalError: the journal cannot be read.
    """
    if folder.manifest["scenario"] != "functionchat" or folder.manifest["settings"]["mode"] != "turns":
        raise ConfigurationError(f"{folder.path}: only judged turns of functionchat can be reviewed")
    with History(folder.journal) as history:
        for ended in history.ended():
            if ended.failed or ended.item is None or ended.result["judge"] is None:
                continue
            output, judge = ended.result["output"], ended.result["judge"]
            calls = [ToolCall.from_record(call) for call in output["calls"]]
            turn = Turn.from_record(ended.item)
            yield Judged(ended.key, turn, output["content"], calls, judge["passed"], judge["reasoning"])
