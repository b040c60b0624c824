"""A folder of small runs for tests of the viewer: interviews and their fork, tool dialogs, probes, and a hostile
one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from small_dialogs import dialog_lines, write_lines

import viva
from viva.web.view.index import index_file
from viva.web.view.indexer import Indexer
from viva.web.view.pages import Pages
from viva.web.view.queries import IndexReader

SCIENCE = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
MARKUP = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'><b>bold</b> &amp; {{ 7 * 7 }}"
LINK = "http://foreign.example/pixel.png"
HOSTILE = (
    f"{MARKUP} [link](javascript:window.hurt=3) ![]({LINK}) <link rel=stylesheet href={LINK}>",
    "x" * 1_000_000,
    "مرحبا \u202eabc\u202c שלום 👩‍👩‍👧‍👦🏳️‍🌈 \x00\x07\x1b[31m\x9b \u200b\u2028 \ud83d lone",
    "wonderful" * 60 + "\n\n\t tabs\r\nlines" + "\u0301" * 300,
)


class Says(viva.Backend):
    """Says one hostile text after another; the fifth call fails."""

    def __init__(self, label: str, fails: bool = False) -> None:
        self.label = label
        self._fails = fails

    async def generate(self, request: viva.Request) -> viva.Completion:
        if self._fails and request.ordinal == 2:
            raise viva.BackendError(f"the endpoint said {MARKUP} and closed", model=self.label)
        text = HOSTILE[request.ordinal % len(HOSTILE)].encode("utf-8", "replace").decode()
        return viva.Completion(text, prompt_tokens=7, completion_tokens=11, latency=0.25)


@viva.scenario(many="pupil", judge="examiner")
async def hostile(conversation: viva.Conversation, task: str) -> dict[str, Any]:
    """Asks for as many answers as there are hostile texts, and has one judged."""
    view = viva.View()
    for number in range(len(HOSTILE)):
        view.append("user", f"{task} {MARKUP} {number}")
        said = await conversation.generate("pupil", view, viva.Sampling())
        view.append("assistant", said.text)
    await conversation.generate("examiner", view, viva.Sampling())
    return {"score": 50, "style": 3, "word": MARKUP}


def make_runs(root: Path) -> Path:
    """Make the folder: ``kieval`` and its ``fork``, ``tools``, ``dialogs``, ``probe``, ``hostile``."""
    kieval: Any = {
        "candidate": [f"simulated:{name}?knowledge={knowledge}" for name, knowledge in
                      (("expert", 0.95), ("student", 0.6), ("novice", 0.2))],
        "interactor": "simulated:asker",
        "evaluator": "simulated:strict",
    }  # fmt: skip
    viva.run_sync("kieval", models=kieval, dataset=str(SCIENCE), out=root / "kieval", n=25, rounds=3, seed=5)
    asyncio.run(viva.fork(root / "kieval", judge="simulated:lenient?noise=0.9", out=root / "fork"))
    names = {"candidate": ["simulated:expert?knowledge=0.9"]}
    viva.run_sync("probe", models=names, dataset=str(SCIENCE), out=root / "probe", n=4, shots=0)
    tools: Any = {"candidate": ["simulated:caller?knowledge=0.7"], "judge": "simulated:judge"}
    (root / "data").mkdir()
    data = write_lines(root / "data" / "FunctionChat-Dialog.jsonl", dialog_lines(2))
    viva.run_sync("functionchat", models=tools, data=str(data.parent), subset="dialog", out=root / "tools", seed=3)
    played: Any = {"candidate": ["simulated:caller?knowledge=1"], "interactor": "simulated:user"}
    viva.run_sync("functionchat", models=played, data="examples", mode="user", out=root / "dialogs")
    both: Any = {"pupil": [Says("<i>pupil</i>"), Says("failing", fails=True)], "examiner": Says("examiner")}
    viva.run_sync(hostile, models=both, tasks=[f"<u>task</u> {number}" for number in range(2)], out=root / "hostile")
    return root


_GATED = '''
import asyncio, sys, threading
import viva

LOCK = threading.Lock()  # two threads that read stdin at once may lose lines


def next_line():
    with LOCK:
        return sys.stdin.readline()


class Gated(viva.Backend):
    """Answers once for each line of stdin."""

    label = "gated"

    async def generate(self, request):
        line = await asyncio.to_thread(next_line)
        return viva.Completion(f"answer {line.strip()}", prompt_tokens=3, completion_tokens=2)


@viva.scenario(many="pupil")
async def talk(conversation, task: str):
    """One question."""
    view = viva.View()
    view.append("user", task)
    said = await conversation.generate("pupil", view, viva.Sampling())
    return float(len(said.text))


if __name__ == "__main__":
    tasks = [f"question {number}" for number in range(40)]
    viva.run_sync(talk, models={"pupil": [Gated()]}, tasks=tasks, out=sys.argv[1], concurrency=2)
'''


@contextmanager
def gated_run(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of 40 conversations in a process of its own, of which one ends with each line that it is sent."""
    file = out.with_name("gated.py")
    file.write_text(_GATED)
    with subprocess.Popen([sys.executable, file, out], stdin=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def viewer(root: Path, index: Path, folder: Path | None = None) -> Iterator[str]:
    """``viva view`` in a process of its own, started in ``folder``; gives its address."""
    with _viewer(root, index, folder) as (address,):
        yield address


@contextmanager
def steering_viewer(root: Path, index: Path) -> Iterator[tuple[str, str]]:
    """``viva view --control``: its address, and the secret link that it prints."""
    with _viewer(root, index, None, "--control") as (address, link):
        yield address, link


@contextmanager
def _viewer(root: Path, index: Path, folder: Path | None, *options: str) -> Iterator[list[str]]:
    from viva_process import ended, started  # not above: the viewer reads this file as a scenario's, alone

    process = started("view", root, "--port", "0", "--index", index, *options, cwd=folder)
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline().decode() for _ in ("address", *options)]
        assert all("http://" in line for line in lines), lines
        yield [word.rstrip("/") for line in lines for word in line.split() if word.startswith("http://")]
    finally:
        process.terminate()
        ended(process)


@contextmanager
def opened_pages(root: Path, index: Path) -> Iterator[Pages]:
    """The pages of the runs below a folder, indexed in this process."""
    file = index_file(root, index)
    Indexer(root, file).catch_up()
    pages = Pages(root, IndexReader(file))
    try:
        yield pages
    finally:
        pages.close()
