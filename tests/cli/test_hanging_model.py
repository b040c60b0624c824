"""A local model that hangs within llama.cpp: a second signal ends the process all the same; a slow one stops early."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tiny_gguf import make_model
from viva_process import ended, started

from viva.engine.backends.llama.native import NativeContext, NativeModel
from viva.engine.errors import Unavailable

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
# The command line with a llama.cpp that never comes back from the first batch of a run.
HANGING = """
import os, sys, threading
from viva.engine.backends.llama import native

compute = native.NativeContext.decode

def decode(context, tokens, *rest):
    if context.lanes == 1:  # the two tokens computed when the model is loaded
        return compute(context, tokens, *rest)
    os.write(2, b"hanging\\n")
    threading.Event().wait()

native.NativeContext.decode = decode
from viva.cli.main import main
main()
"""


def test_line_36_a_second_signal_ends_a_process_whose_model_hangs(tmp_path: Path) -> None:
    model = f"llama:{make_model(tmp_path / 'model.gguf')}?ctx=1024&lanes=4"
    options = ["--dataset", ITEMS, "-n", "2", "--candidate", model, "--interactor", "simulated:i"]
    options += ["--evaluator", "simulated:e", "--out", tmp_path / "run"]
    command = [sys.executable, "-c", HANGING, "run", "kieval", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, b"")
        assert any(line == b"hanging\n" for line in lines)
        process.send_signal(signal.SIGINT)
        assert any(b"finishing" in line for line in lines)
        process.send_signal(signal.SIGINT)
        code, _, said = ended(process)
    assert code == 130
    assert "hangs" in said
    assert ended(started("report", tmp_path / "run"))[0] == 0


def test_line_36_a_batch_under_way_is_given_up_when_the_model_is_closed(tmp_path: Path) -> None:
    model = NativeModel(make_model(tmp_path / "model.gguf", layers=4))
    context = NativeContext(model, lanes=2, context=512, batch=512, threads=1)
    try:
        assert context.decode([5, 6], [0, 1], [0, 0], [0, 1]) is not None
        context.interrupt()
        failed: list[Unavailable] = []

        def compute() -> None:
            with pytest.raises(Unavailable) as raised:
                context.decode([5] * 500, range(500), [1] * 500, [0] * 499 + [1])
            failed.append(raised.value)

        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
        assert failed
    finally:
        context.close()
        model.close()
