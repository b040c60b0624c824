"""Steps that are no model call, in the transcripts of a run: shown as entries of their own, from the folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import computed_functions as functions
import pytest
from spoken import transcripts_of
from viva_process import ended, started

from viva.engine.clock import VirtualClock
from viva.engine.conversation import Conversation
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.scenario import Kieval

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture
def with_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interviews that are measured before they begin."""
    whole = Kieval.protocol

    def protocol(self: Kieval, *arguments: Any) -> Any:
        interview = whole(self, *arguments)

        async def converse(conversation: Conversation, task: Any) -> Any:
            await conversation.compute("words", functions.whole, {"n": 7})
            await conversation.compute("greeting", functions.whole, "hello")
            await conversation.compute("ratio", functions.divide, 0)
            return await interview(conversation, task)

        return converse

    monkeypatch.setattr(Kieval, "protocol", protocol)


@pytest.mark.usefixtures("with_steps")
def test_steps_stand_in_the_transcript_also_where_the_code_that_made_them_is_gone(tmp_path: Path) -> None:
    roles = {"candidate": ["simulated:c"], "interactor": "simulated:i", "evaluator": "simulated:e"}
    settings = KievalSettings(dataset=str(ITEMS), n=1, rounds=1, **roles)  # type: ignore[arg-type]
    launch = new_run("kieval", settings, tmp_path / "run", VirtualClock())
    assert launch.clock.run(launch.run).finished == 1
    [told] = transcripts_of(tmp_path / "run").values()
    assert told.problem is None
    steps = [(one.party, one.text) for one in told.speeches if one.party in ("words", "greeting", "ratio")]
    at = f"{functions.__file__}:{functions.divide.__code__.co_firstlineno + 2} in divide"
    assert steps == [
        ("words", '{"n":7}'),
        ("greeting", "hello"),
        ("ratio", f"ZeroDivisionError: division by zero ({at})"),
    ]
    # In a process of its own the scenario knows nothing of the steps.
    code, printed, _ = ended(started("show", tmp_path / "run", "--conversation", "0"))
    assert code == 0
    assert all(text in printed.decode() for _, text in steps[:2])
