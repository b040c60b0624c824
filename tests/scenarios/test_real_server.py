"""KIEval through HTTP against the packaged server of llama-cpp-python, in its own process, on a model made here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from packaged import packaged_server
from tiny_gguf import SHORT_PACK, make_model

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    model = make_model(tmp_path / "tiny.gguf", quote_bias=3.0, quantised=True)
    with packaged_server(model, tmp_path, "--n_ctx", "8192", "--n_threads", "2") as url:
        yield url


def test_ten_interviews_end_scored_unscored_or_failed(server: str, tmp_path: Path) -> None:
    (tmp_path / "pack.yaml").write_text(SHORT_PACK)
    model = f"openai:{server}#tiny?concurrency=4"
    command = [sys.executable, "-m", "viva", "run", "kieval", "--dataset", str(ITEMS), "-n", "10", "--rounds", "2"]
    command += ["--candidate", f"{model}&label=tiny", "--interactor", model, "--evaluator", model, "--json"]
    command += ["--pack", str(tmp_path / "pack.yaml"), "--out", str(tmp_path / "run"), "--max-failures", "10"]
    command += ["--candidate-tokens", "24", "--interactor-tokens", "16", "--evaluator-tokens", "700"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    one = orjson.loads(done.stdout)["candidates"]["tiny"]
    assert one["interviews"] + one["failed"] == 10
    assert one["scored"] + one["unscored_interviews"] == one["interviews"]
    # The grammar held: verdicts of a model of random weights are readable unless they hit their token limit.
    assert one["scored"] > 0
    assert one["verdicts"] - one["unscored_rounds"] > 0
    assert sum(one["failures"].values()) == one["failed"]
