"""`viva invariance`: the test whether a model's answers depend on concurrent requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import command
from .exit_codes import print_note
from .options import Json

if TYPE_CHECKING:
    from viva.engine.clock import Clock
    from viva.orchestration.invariance import InvarianceTest


@command("invariance", "viva invariance 'openai:http://127.0.0.1:8000/v1#name'", models=True)
def _invariance(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models to test.")], json: Json = False
) -> None:
    """Test whether a model's answers depend on concurrent requests.

    32 short requests are asked one at a time, once more one at a time, and all together; the answers are compared byte
    for byte. Manifests of later runs with the model record the result.
    """
    from viva.engine.backends.registry import build, with_absolute_path
    from viva.engine.clock import RealClock
    from viva.orchestration.invariance import count_calls, token_limit
    from viva.scenarios.models import model_labels

    from .output import print_json, print_paragraphs

    clock = RealClock()
    labels = model_labels([with_absolute_path(model) for model in models])
    for model in labels.values():
        build(model, clock)  # refuse a wrong name before the first call
    results: list[dict[str, Any]] = []
    for label, model in labels.items():
        print_note(f"{label}: {count_calls()} calls of up to {token_limit(model)} tokens")
        test = _run_test(label, model, clock)
        results.append({"model": model, "label": label, **test.record(), "p": round(test.p_value, 6),
                        "compared": test.compared, "flaw": test.flaw or None, "text": test.sentences()})  # fmt: skip
        if not json:
            print_paragraphs([f"{label}: {test.sentences()}"])
    if json:
        print_json({"models": results})


def _run_test(label: str, model: str, clock: Clock) -> InvarianceTest:
    from viva.orchestration.invariance import count_calls, measure_invariance

    from .progress import CallProgress
    from .signals import run_in_foreground

    progress = CallProgress(label, count_calls())
    # Nothing is kept of a test that does not finish, so the first Ctrl-C cancels it.
    return run_in_foreground(
        clock, lambda ready: measure_invariance(model, clock, progress.count, progress.hear), progress
    )
