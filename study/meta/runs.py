"""A recorded run as a sheet: what each conversation was scored, whole and turn by turn, and what was said in it.

What never belongs here: joining ratings (``sheet``), calling models.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.rerun import Exchange
from viva.orchestration.launch import recorded_settings
from viva.orchestration.transcripts import Transcripts
from viva.scenarios.contract import judge_role, many_role
from viva.scenarios.models import label_of
from viva.scenarios.rated import RecordedReply

from .sheet import Sheet, SheetRow


def is_run(path: Path) -> bool:
    """Whether this is a run folder rather than a file."""
    return path.is_dir()


def run_sheet(path: Path) -> Sheet:
    """A row for each conversation as a whole (no turn) and for each scored turn of it.

    The judge of the sheet is the model that judged, by its label; where none did, the scenario itself.

    :raises ConfigurationError: the folder holds no run that can be read.
    :raises JournalError: its journal is damaged.
    """
    folder = RunFolder.open(path)
    which, settings = recorded_settings(folder)
    folder.require_journal()
    scores_of = which.turn_scores(settings)
    roles = which.roles_of(settings)
    labels = list(folder.manifest["models"][many_role(roles).name])
    judge = which.name
    if (role := judge_role(roles)) is not None and not role.many:
        judge = f"{which.name}: {_label(folder.manifest['models'][role.name])}"
    rows: list[SheetRow] = []
    failed = 0
    with History(folder.journal) as history:
        for ended in history.ended():
            failed += ended.failed
            if ended.failed:
                continue
            label = label_of(ended.key, labels)
            item = ended.key.removeprefix(f"{label}/")
            for one in scores_of(ended.result):
                turn = None if one.turn is None else str(one.turn)
                row = SheetRow(len(rows) + 1, item, label, turn, group=item)
                row.scores = {(judge, name): score for name, score in one.scores.items()}
                rows.append(row)
    notes = [f"{failed:,} conversations failed and have no score"] if failed else []
    told = f"the run's {which.plural or 'conversations'} by item, {many_role(roles).name} and turn"
    return Sheet(str(path), rows, told=[told], notes=notes)


async def recorded_replies(path: Path) -> list[RecordedReply]:
    """What the compared models said in a run, in the order of the run; conversations are held again against the record.

    :raises ConfigurationError, JournalError: as ``run_sheet``.
    """
    folder = RunFolder.open(path)
    which, settings = recorded_settings(folder)
    folder.require_journal()
    role = many_role(which.roles_of(settings)).name
    transcripts, found = Transcripts(folder), list[RecordedReply]()
    with History(folder.journal) as history:
        for number in list(history.numbers()):
            key = (history.started(number) or ("", None))[0]
            if not key:
                continue
            label = transcripts.label_of(key)
            lines = (await transcripts.rerun(history, number)).lines
            found += _replies(lines, role, label, key.removeprefix(f"{label}/"))
    return found


def _replies(lines: list[Any], role: str, label: str, item: str) -> Iterator[RecordedReply]:
    own = (one for one in lines if isinstance(one, Exchange) and one.role == role)
    said = ((one, one.completion) for one in own if one.completion is not None)
    for turn, (one, completion) in enumerate(said):  # ordinals count in branches
        asked = one.messages[-1].content if one.messages else ""
        yield RecordedReply(label, item, turn, asked, completion.text)


def _label(model: Any) -> str:
    from viva.engine.backends.base import ModelSpec

    return ModelSpec.parse(str(model)).label if model is not None else ""
