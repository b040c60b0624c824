"""docs/serve.md: every command and program in it does what it says, against a real server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving import serving
from tiny_gguf import make_model

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", (ROOT / "docs" / "serve.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_every_example_of_the_page_works(tmp_path: Path) -> None:
    make_model(tmp_path / "model.gguf", seed=3, quantised=True, quote_bias=3.0)
    shutil.copy(ROOT / "scenarios" / "kieval" / "items" / "science.jsonl", tmp_path / "items.jsonl")
    commands = [text for _, text in BLOCKS if text.startswith("viva serve")]
    [models] = [re.findall(r"--model '?([^\s']+)'?", text) for text in commands if "--model" in text]
    [token] = [text for text in commands if "--new-token" in text]
    said = subprocess.run(
        ["bash", "-euc", token.replace("viva", f"{sys.executable} -m viva", 1)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert len(said.strip()) > 40
    assert said.strip() not in (tmp_path / "tokens.txt").read_text()
    with serving(tmp_path, *(option for model in models for option in ("--model", model))) as server:
        printed = []
        for kind, text in BLOCKS:
            if not text.startswith("viva serve"):
                program = ["bash", "-euo", "pipefail", "-c"] if kind == "sh" else [sys.executable, "-c"]
                command = [*program, text.replace("http://127.0.0.1:8000", server.url)]
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
                printed.append(done.stdout)
    chat, program, run = printed
    assert '"chat.completion"' in chat
    assert program.startswith('{"grade": ')
    assert "event: End" in run
    assert '"transcripts":[{"number":0' in run
    assert '"state":"done"' in run
