"""What goes wrong in a model of the user's own: it fails as data or ends with a sentence, and harms nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from lessons import MODELS, TOPICS, Mine, lesson

import viva
from viva.engine.errors import Unavailable
from viva.orchestration.python_api import run_blocking


class Odd(viva.Backend):
    """Gives what it is told to, or raises it."""

    label = "odd"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def generate(self, request: viva.Request) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@case_table(
    ("answer", "message"),
    [
        ("text", "model 'odd': Odd.generate returned str; return viva.Completion(text)"),
        (None, "returned NoneType"),
        (viva.Completion(b"x"), "a Completion whose text is bytes"),  # type: ignore[arg-type]
        (viva.Completion("x", "stop", -1), "prompt_tokens=-1; expected a count of tokens"),
        (viva.Completion("x", "stop", 1, 1.5), "completion_tokens=1.5"),  # type: ignore[arg-type]
    ],
)
def test_a_model_whose_answer_is_none_ends_the_run_with_a_sentence(tmp_path: Path, answer: Any, message: str) -> None:
    with pytest.raises(viva.ConfigurationError) as caught:
        viva.run_sync(lesson, tasks=TOPICS, models={**MODELS, "pupil": Odd(answer)}, out=tmp_path / "run")
    assert message in str(caught.value)
    resumed = run_blocking(lambda: viva.resume(tmp_path / "run", models={"pupil": Odd(viva.Completion("better"))}))
    assert {result.value for result in resumed.results()} == {6.0}


@pytest.mark.parametrize("error", [KeyError("mine"), asyncio.CancelledError(), Unavailable("\ud800", model="odd")])
def test_a_model_that_raises_fails_conversations_as_data(tmp_path: Path, error: BaseException) -> None:
    run = viva.run_sync(lesson, tasks=TOPICS, models={**MODELS, "pupil": Odd(error)}, out=tmp_path / "run")
    assert run.outcome is not None
    assert (run.outcome.how, run.outcome.failed) == ("done", len(TOPICS))
    assert {result.error["type"] for result in run.results() if result.error} == {type(error).__name__}


def test_text_that_no_journal_can_hold_is_mended(tmp_path: Path) -> None:
    models = {**MODELS, "pupil": Odd(viva.Completion("half \ud800, whole \U0001f600"))}
    run = viva.run_sync(lesson, tasks=["tides"], models=models, out=tmp_path / "run")
    transcript = asyncio.run(run.transcript("odd/tides"))
    assert transcript.speeches[-1].text == "half \ufffd, whole \U0001f600"


@pytest.mark.parametrize("method", ["__aenter__", "check"])
def test_a_model_that_cannot_be_opened_raises_its_own_error_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def failing(self: Any) -> None:
        raise Mine

    monkeypatch.setattr(Odd, method, failing, raising=False)
    with pytest.raises(Mine):
        viva.run_sync(lesson, tasks=TOPICS, models={**MODELS, "pupil": Odd("")}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_model_raises_where_nothing_is_asked_of_it_harms_no_conversation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Loud(Odd):
        def ended(self, affinity: str) -> None:
            raise Mine("ended")

        def statistics(self) -> dict[str, Any]:
            raise Mine("counting")

        async def __aexit__(self, *exc: object) -> None:
            raise Mine("leaving")

    models = {**MODELS, "pupil": Loud(viva.Completion("fine"))}
    run = viva.run_sync(lesson, tasks=TOPICS, models=models, out=tmp_path / "run")
    assert run.outcome is not None
    assert (run.outcome.finished, run.outcome.failed) == (len(TOPICS), 0)
    for message in (
        "ended raised Mine: ended (",
        "statistics raised Mine: counting (",
        "closing it raised Mine: leaving (",
    ):
        assert caplog.text.count(f"model 'odd': {message}") == 1


FILES = {
    "lacks a method": ("class Model(viva.Backend): ...", "Model lacks `async def generate(self, request)`"),
    "wants arguments": (
        "class Model(viva.Backend):\n    def __init__(self, size): ...\n    async def generate(self, request): ...",
        "Model is made without arguments: missing a required argument: 'size'",
    ),
    "raises": (
        "class Model(viva.Backend):\n    def __init__(self): raise KeyError('mine')\n"
        "    async def generate(self, request): ...",
        "creating Model raised KeyError: 'mine' (at ",
    ),
    "is not async": (
        "class Model(viva.Backend):\n    def generate(self, request): return viva.Completion('x')",
        "Model.generate is no coroutine function; write `async def generate`",
    ),
    "has none": ("", "expected a subclass of viva.Backend in "),
    "fails": ("raise ValueError('mine')", "model.py: ValueError: mine (at "),
}


@case_table("what", FILES)
def test_a_file_without_a_usable_model_is_told_what_it_lacks(tmp_path: Path, what: str) -> None:
    text, message = FILES[what]
    (tmp_path / "model.py").write_text(f"import viva\n{text}\n")
    models = {**MODELS, "pupil": f"python:{tmp_path / 'model.py'}"}
    with pytest.raises(viva.ConfigurationError) as caught:
        viva.run_sync(lesson, tasks=TOPICS, models=models, out=tmp_path / "run")
    assert message in str(caught.value)
