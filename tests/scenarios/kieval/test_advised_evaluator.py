"""An evaluator that is told what assistants say of each reply: it alone, recorded, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import viva
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.kieval.scenario import SCENARIO

ITEMS = Path(__file__).parents[3] / "scenarios" / "kieval" / "items" / "science.jsonl"
_MODELS = {"candidate": ["simulated:c"], "interactor": "simulated:i", "evaluator": "simulated:e"}


def _run(out: Path, **settings: Any) -> viva.Run:
    return viva.run_sync(
        "kieval", models=_MODELS, out=out, clock=VirtualClock(), dataset=str(ITEMS), n=3, rounds=3, **settings
    )


def _prompts(run: viva.Run) -> dict[str, list[Any]]:
    """What each role was sent, in the first interview."""
    clock = VirtualClock()
    key = next(iter(run.results())).key
    talk = clock.run(lambda: run.transcript(key))
    assert talk.problem is None
    found: dict[str, list[Any]] = {}
    for speech in talk.speeches:
        if speech.prompt is not None:
            found.setdefault(speech.party, []).append(speech.prompt)
    return found


@pytest.mark.parametrize("overlap", [False, True])
def test_the_evaluator_alone_is_told_the_numbers(tmp_path: Path, overlap: bool) -> None:
    plain = _run(tmp_path / "plain", overlap=overlap)
    advised = _run(tmp_path / "advised", overlap=overlap, assistant=["bleu@question", "chrf", "lm=logprob:simulated:r"])
    before, after = _prompts(plain), _prompts(advised)
    assert after["interactor"] == before["interactor"]
    assert after["candidate"] == before["candidate"]
    first, then = (found["evaluator"][0]["messages"] for found in (before, after))
    assert first[:-1] == then[:-1]
    assert then[-1]["content"].startswith(first[-1]["content"] + "\n\nAssistants have measured this answer.")
    lines = then[-1]["content"].splitlines()[-3:]
    assert lines[0].startswith("- bleu@question: BLEU, the response with question; from 0 to 1, higher is better: 0")
    assert lines[1].startswith("- chrf: chrF, the response with answer; ")
    assert lines[2].startswith("- lm: token probability, how probable")
    assert advised.manifest["models"]["assistant-3"] == "simulated:r"
    assert [one["name"] for one in advised.manifest["assistants"]] == ["bleu@question", "chrf", "lm"]
    # The model that assists reads the talk so far and the question; the text before the first reply is the question.
    asked = after["assistant-3"]
    assert asked[0]["context"] == before["candidate"][1]["messages"][-1]["content"].strip() + "\n\n"
    assert asked[1]["context"].startswith(asked[0]["context"] + asked[0]["continuations"][0].strip())


def test_without_assistants_nothing_is_recorded_of_them(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    assert "assistants" not in run.manifest
    with History(run.path / "journal.sqlite") as history:
        assert {call.role for call in history.calls(0)} == {"candidate", "interactor", "evaluator"}


def test_a_fork_may_advise_another_evaluator(tmp_path: Path) -> None:
    plain = _run(tmp_path / "plain")
    clock = VirtualClock()
    forked = clock.run(
        lambda: viva.fork(plain.path, judge="simulated:other", out=tmp_path / "fork", clock=clock, assistant=["chrf"])
    )
    assert "- chrf: chrF" in _prompts(forked)["evaluator"][0]["messages"][-1]["content"]
    assert forked.manifest["models"]["candidate"]["c"].startswith("replay:")


def test_an_assistant_without_a_text_is_refused(tmp_path: Path) -> None:
    settings = KievalSettings.model_validate({**_MODELS, "dataset": str(ITEMS), "assistant": ["bleu@fact"]})
    with pytest.raises(ConfigurationError, match="has no text 'fact' besides the response; available: answer"):
        new_run(SCENARIO, settings, tmp_path / "run")
