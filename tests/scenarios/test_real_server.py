"""KIEval through HTTP against the packaged server of llama-cpp-python, in its own process, on a model made here."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from tiny_gguf import make_model

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
# Short prompts: the model reads a token per byte or so, and understands none of it.
PACK = """
name: short
candidate: {system: Answer., question: "{question} {choices}"}
interactor: {system: Ask., opening: "{question} {reply}", reply: "{reply}"}
evaluator:
  system: Grade the answer as JSON.
  opening: "{question} {reply}"
  exchange: "{question} {reply}"
  right: Correct.
  wrong: Wrong.
  repair: "Not a verdict: {problem}. Again."
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    model = make_model(tmp_path / "tiny.gguf", quote_bias=3.0, quantised=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port)]
    command += ["--n_ctx", "8192", "--n_threads", "2", "--verbose", "false"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _when_up(f"http://127.0.0.1:{port}/v1", process, tmp_path / "server.log")
        finally:
            process.terminate()
            process.wait()


def _when_up(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/models"):
                return url
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    raise AssertionError(f"the server did not come up: {log.read_text()}")


def test_twenty_interviews_end_scored_unscored_or_failed(server: str, tmp_path: Path) -> None:
    (tmp_path / "pack.yaml").write_text(PACK)
    model = f"openai:{server}#tiny?concurrency=4"
    command = [sys.executable, "-m", "viva", "run", "kieval", "--dataset", str(ITEMS), "-n", "20", "--rounds", "2"]
    command += ["--candidate", f"{model}&label=tiny", "--interactor", model, "--evaluator", model, "--json"]
    command += ["--pack", str(tmp_path / "pack.yaml"), "--out", str(tmp_path / "run"), "--max-failures", "20"]
    command += ["--candidate-tokens", "24", "--interactor-tokens", "16", "--evaluator-tokens", "700"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    one = orjson.loads(done.stdout)["candidates"]["tiny"]
    assert one["interviews"] + one["failed"] == 20
    assert one["scored"] + one["unscored_interviews"] == one["interviews"]
    # The grammar held: verdicts of a model of random weights are readable unless they hit their token limit.
    assert one["scored"] > 0
    assert one["verdicts"] - one["unscored_rounds"] > 0
    assert sum(one["failures"].values()) == one["failed"]
