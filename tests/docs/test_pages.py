"""README and docs as a reader follows them: each page's commands and programs run in order, in one folder, as written.

``doc_pages`` says how a page tells what the reader has, what is not run and why, and what is printed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import process
import pytest
import yaml
from doc_files import provide
from doc_output import compare
from doc_pages import ROOT, Block, blocks_of, code_spans, pages
from doc_words import unknown

_PATIENCE = 120.0  # far beyond what anything takes: what is stuck fails its test instead of hanging it
_SHELLS = ("sh", "bash")
_ADDRESSES = ("http://127.0.0.1:8000", "http://127.0.0.1:8080")
# What a command or a program refuses to make if it is there: `--out X`, `init X`, `out="X"` and `"out": "X"`.
_MADE = re.compile(r"""--out (\S+)| init (\S+)|\bout=['"]([^'"]+)|['"]out['"]: ['"]([^'"]+)""")
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "FIRST_KEY", "SECOND_KEY", "SHOP_KEY")


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """Where OpenAI's, Anthropic's and Google's APIs are answered."""
    with process.serving_port([sys.executable, str(Path(__file__).with_name("doc_endpoint.py"))]) as port:
        yield f"http://127.0.0.1:{port}"


class Reader:
    """Somebody in a folder, with a shell, an endpoint, and the page's files."""

    def __init__(self, folder: Path, commands: Path, endpoint: str, stack: ExitStack) -> None:
        self._folder, self._address, self._stack = folder, endpoint, stack
        self.printed = ""
        for name in ("scenarios", "lab", "examples", "docs"):
            if (ROOT / name).exists():
                (folder / name).symlink_to(ROOT / name)
        path = f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        bases = dict.fromkeys(("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"), endpoint)
        bases |= {"OPENAI_BASE_URL": f"{endpoint}/v1"}
        own = dict.fromkeys(_KEYS, "sk-a-key-of-nobody") | bases | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self._environment = {**os.environ, **own, "HOME": str(folder), "HF_HUB_OFFLINE": "1"}
        # matplotlib would look through all fonts anew in each home.
        self._environment.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))

    def follow(self, block: Block) -> None:
        """Do what the block says."""
        for name in block.needs:
            provide(self._folder, name)
        if block.skipped:
            return
        if block.file:
            path = self._folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._here(block))
        if block.output:
            compare(block, self.printed)
        elif block.kind == "python":
            self._run(block, [sys.executable, block.file] if block.file else [sys.executable, "-c", self._here(block)])
        elif block.kind in _SHELLS and not block.file:
            if block.terminals:
                *others, last = _separate(self._here(block))
                with self._terminals(others):
                    self._run(block, ["bash", "-euo", "pipefail", "-c", last])
            elif block.background:
                self._stand(self._here(block))
            else:
                self._run(block, ["bash", "-euo", "pipefail", "-c", self._here(block)])

    def _here(self, block: Block) -> str:
        text = block.as_run
        for address in _ADDRESSES:
            text = text.replace(address, self._address)
        return text

    def _run(self, block: Block, command: list[str]) -> None:
        with subprocess.Popen(
            command, cwd=self._folder, env=self._environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as running:  # fmt: skip
            try:
                self.printed, _ = running.communicate(timeout=_PATIENCE)
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGTERM)
        assert running.returncode in block.codes, f"line {block.line}: {running.returncode}\n{self.printed[-3000:]}"
        assert "Traceback" not in self.printed, f"line {block.line}:\n{self.printed[-3000:]}"

    def _started(self, command: str, **more: str) -> subprocess.Popen[str]:
        """A command in a terminal of its own, ended with the page."""
        started = subprocess.Popen(
            ["bash", "-euc", f"exec {command.strip()}"], cwd=self._folder, env=self._environment | more,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

        def end() -> None:
            started.send_signal(signal.SIGINT)
            printed, _ = started.communicate(timeout=_PATIENCE)
            assert started.returncode in (0, 130), f"{command}: {started.returncode}\n{printed[-3000:]}"

        self._stack.callback(end)
        return started

    def _stand(self, command: str) -> None:
        """A server: its address is from now on that of the page."""
        place = self._folder.parent / f"{self._folder.name}.address"
        started = self._started(command, STANDS=str(place))
        _until(lambda: place.exists() or started.poll() is not None)
        assert place.exists(), started.communicate()[0]
        self._address = re.match(r"http://[^/]+", place.read_text())[0]  # type: ignore[index]

    def _terminals(self, others: list[str]) -> ExitStack:
        for command in others:
            self._started(command)
        return ExitStack()


def _until(there: object) -> None:
    end = time.monotonic() + _PATIENCE
    while not there():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def _separate(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_on_the_page_works(page: Path, commands: Path, endpoint: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with ExitStack() as stack:
        reader = Reader(here, commands, endpoint, stack)
        for block in blocks_of(page):
            if block.kind in _SHELLS:
                assert unknown(block.text) == [], f"line {block.line}"
            parse(block)
            reader.follow(block)
    spans = [span for span in code_spans(page) if span.startswith("viva ")]
    assert [wrong for span in spans for wrong in unknown(span)] == []


def _made_by(page: Path) -> set[str]:
    """Return the files and folders that the commands and programs of a page make under a name of its own."""
    blocks = [block for block in blocks_of(page) if not block.skipped]
    made = {block.file for block in blocks if block.file}
    for block in blocks:
        if block.kind in (*_SHELLS, "python"):
            made |= {name for names in _MADE.findall(block.text) for name in names if name}
    return made


def test_who_follows_the_readme_and_then_the_howtos_in_one_folder_meets_no_name_twice() -> None:
    walk = [ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs/howto").glob("*.md"))]
    makers: dict[str, list[str]] = {}
    for page in walk:
        for name in _made_by(page):
            makers.setdefault(name, []).append(page.name)
    assert {"runs/first", "runs/embedded", "bot", "items.jsonl", "planets.jsonl"} <= makers.keys()
    assert {name: pages for name, pages in makers.items() if len(pages) > 1} == {}


def parse(block: Block) -> None:
    """Data on a page is of the form that it claims to have."""
    if "…" in block.text:
        return
    match block.kind:
        case "json":
            [json.loads(line) for line in block.text.splitlines()]
        case "yaml":
            yaml.safe_load(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "python":
            compile(block.text, "page", "exec")
