"""Findings and report of a folder in processes: one at a time, bounded, and never longer than the viewer."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from study_runs import dataset, interviewed

from viva.reports.studies.study import Study
from viva.web.view import findings
from viva.web.view.findings import AnswerUpdater, ReportPieces, StudyAnswer, _print_page, study_answer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    return interviewed(
        root / "run", "simulated:one", "simulated:two", dataset=str(dataset(root / "quiz.jsonl", 4)), rounds=1
    )


@asynccontextmanager
async def updater(root: Path, page: Path) -> AsyncIterator[AnswerUpdater]:
    answers = AnswerUpdater(root, page)
    try:
        yield answers
    finally:
        await answers.close()


async def whole(report: str | ReportPieces) -> str:
    return report if isinstance(report, str) else b"".join([piece async for piece in report.read()]).decode()


def answer(root: Path, page: Path) -> StudyAnswer:
    """The findings, and the report's page as its readers get it."""

    async def compute() -> StudyAnswer:
        async with updater(root, page) as answers:
            await answers.compute()
            assert answers.answer is not None
            return answers.answer

    return asyncio.run(compute())


def test_one_report_is_computed_at_a_time_and_the_next_one_knows_what_has_changed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, starts = tmp_path / "viewed", []
    shutil.copytree(run.parent, root)
    start = asyncio.create_subprocess_exec

    async def counted(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        starts.append(command)
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)

    async def main() -> None:
        async with updater(root, tmp_path / "report.html") as answers:
            reports = []
            for _ in range(4):
                os.utime(root / "run" / "journal.sqlite")  # as a run in progress does
                reports.append(await answers.report())
            pages = [await whole(report) for report in reports]
            assert (len(starts), len(set(pages))) == (1, 1)
            assert "<h1" in pages[0]
            assert isinstance(await answers.report(), ReportPieces), "the journal has changed since"
            later = await whole(await answers.report())
            assert (len(starts), "<h1" in later) == (2, True)
            assert isinstance(await answers.report(), str)

    asyncio.run(main())


def test_a_computation_that_takes_too_long_is_ended(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_MOST_SECONDS", 0.01)
    assert "takes longer than" in answer(run.parent, tmp_path / "a.html").problem

    async def main() -> None:
        async with updater(run.parent, tmp_path / "a.html") as answers:
            report = await answers.report()
            text = await whole(report)
            assert (f"viva report {run.parent} --html" in text, report.cut) == (True, False)

    asyncio.run(main())


def test_a_process_that_cannot_start_is_no_report_with_a_reason(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "No such file" in answer(run.parent, tmp_path / "a.html").problem


def test_unusable_runs_take_no_findings_from_others(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "viewed"
    shutil.copytree(run.parent, root)
    for number in range(2):
        (root / f"bad{number}").mkdir()
        (root / f"bad{number}" / "manifest.json").write_text("[" * 10)
    found = answer(root, tmp_path / "a.html")
    assert found.problem == ""
    assert [finding["about"] for finding in found.findings] == ["quiz"]
    assert sum("left out" in note for note in found.notes) == 2


def test_an_unexpected_error_is_shown_with_the_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Study, "report", lambda study: {}["cells"])
    assert study_answer([run]).problem == f"cannot create the report of {run}: KeyError: 'cells'"
    _print_page([run], tmp_path / "a.html", run, "key")
    shown = capsys.readouterr().out
    assert f"cannot create the report of {run}: KeyError" in shown
    assert not (tmp_path / "a.html").exists()


def test_names_of_folders_may_be_longer_than_a_command(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["x" * 240] * 4)
    for number in range(os.sysconf("SC_ARG_MAX") // 960 + 100):
        (deep / f"{number}").mkdir(parents=True)
        (deep / f"{number}" / "manifest.json").write_text("{")
    assert "manifest.json: cannot be read" in answer(deep, tmp_path / "a.html").problem


def test_a_computation_ends_with_its_parent() -> None:
    program = (
        "import threading\n"
        "from viva.web.view.findings import _read_folders\n"
        "print(*_read_folders(), flush=True)\n"
        "threading.Event().wait()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"8\nruns\0two")
        child.stdin.flush()
        assert child.stdout.readline() == b"runs two\n"
        child.stdin.close()  # as the end of the parent does
        assert child.wait(30) == 1


def test_a_signal_ends_the_server_whatever_its_threads_do() -> None:
    program = (
        "import asyncio, contextlib, threading\n"
        "from viva.web.application import serve_until_signal\n"
        "@contextlib.asynccontextmanager\n"
        "async def server():\n"
        "    yield ''\n"
        "    await asyncio.to_thread(threading.Event().wait)\n"
        "asyncio.run(serve_until_signal(server(), lambda _: print(1, flush=True), stop_seconds=0.05))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
