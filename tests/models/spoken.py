"""Transcripts of recorded runs as tests read them: (party, text) for each conversation, from the run's folder alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.transcripts import Transcript, Transcripts


def transcripts_of(folder: Path) -> dict[str, Transcript]:
    """The transcript of each conversation, by key."""
    run = RunFolder.open(folder)
    transcripts = Transcripts(run)
    found: dict[str, Transcript] = {}
    with History(run.journal) as history:
        for number in history.numbers():
            transcript = asyncio.run(transcripts.read(history, number))
            found[transcript.key] = transcript
    return found


def speeches_of(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """What was said in each conversation, by key; every prompt of it is known."""
    transcripts = transcripts_of(folder)
    assert [one.problem for one in transcripts.values()] == [None] * len(transcripts)
    return {key: [(one.party, one.text) for one in told.speeches] for key, told in transcripts.items()}
