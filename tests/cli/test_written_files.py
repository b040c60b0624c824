"""Files that reports are written to, and folders and streams that are not what they should be."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from study_runs import SCIENCE, interviewed
from typer.testing import CliRunner, Result
from viva_process import ended, started, started_afresh

from viva.cli.main import app
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import forked_run, recorded_results
from viva.scenarios.kieval.kieval_settings import KievalSettings

if TYPE_CHECKING:
    from collections.abc import Callable
from contextlib import suppress

PANEL = ["--interactor", "simulated:i", "--evaluator", "simulated:e", "--candidate", "simulated:c"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three talks."""
    return interviewed(tmp_path_factory.mktemp("runs") / "run", "simulated:c", n=3)


def _report(run: Path, *options: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", str(run), *map(str, options)])


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_line_25_a_fifo_and_a_link_stay_what_they_are(run: Path, tmp_path: Path, option: str) -> None:
    fifo, link, target = tmp_path / "fifo", tmp_path / "link", tmp_path / "target"
    os.mkfifo(fifo)
    target.write_text("before, and longer than nothing")
    link.symlink_to(target)
    assert _report(run, option, tmp_path / "plain").exit_code == 0
    expected = (tmp_path / "plain").read_bytes()
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    assert _report(run, option, fifo).exit_code == 0
    if not stat.S_ISFIFO(fifo.lstat().st_mode):  # let the reader go before this fails
        os.close(os.open(fifo, os.O_WRONLY))
    reader.join()
    assert read == [expected]
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert _report(run, option, link).exit_code == 0
    assert link.is_symlink()
    assert target.read_bytes() == expected


def test_line_25_a_file_of_the_users_beside_the_report_is_kept(run: Path, tmp_path: Path) -> None:
    page, part = tmp_path / "page.html", tmp_path / "page.html.part"
    part.write_text("mine")
    page.write_text("old")
    page.chmod(0o640)
    assert _report(run, "--html", page).exit_code == 0
    assert part.read_text() == "mine"
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == ["page.html", "page.html.part"]


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_line_29_a_report_cannot_be_written_over_a_folder(run: Path, tmp_path: Path, option: str) -> None:
    for place in (".", tmp_path):
        done = _report(run, option, place)
        assert done.exit_code == 2
        assert f"{option} {place}: cannot be written: it is a folder; name a file" in done.stderr


def test_line_29_a_run_cannot_be_made_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        code, _, said = ended(started("run", "kieval", "--dataset", SCIENCE, *PANEL, "-n", "1", "--out", out))
        assert code in (1, 2)
        assert f"viva: error: {out}" in said


@pytest.mark.parametrize("name", ["run?x=1", "run#2", "50%3F", "a b+c&d"])
def test_line_29_a_run_with_any_path_can_be_forked(run: Path, tmp_path: Path, name: str) -> None:
    source = interviewed(tmp_path / name, f"simulated:c?label={name.replace('?', '').replace('#', '')[:3]}", n=2)
    clock = VirtualClock()
    launch = forked_run(source, tmp_path / "fork", clock, changes={"evaluator": "simulated:e"})
    assert clock.run(launch.run).finished == 2
    before, after = (recorded_results(folder) for folder in (launch.folder.open(source), launch.folder))
    assert after.report()["candidates"] == before.report()["candidates"]


def test_line_29_a_hangup_stops_a_run_in_order_and_is_ignored_where_it_was(chaos: Any, tmp_path: Path) -> None:
    for ignored in (False, True):
        first = {"do": "slow", "delay": 0.3} if ignored else "never"
        server = chaos({"schedule": {str(number): first for number in range(2)}})
        roles = ("candidate", "interactor", "evaluator")
        models = [text for role in roles for text in (f"--{role}", server.model(role))]
        out = tmp_path / str(ignored)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        try:
            process = started_afresh("run", "kieval", "--dataset", SCIENCE, *models, "-n", "2", "--out", out)
        finally:
            signal.signal(signal.SIGHUP, before)
        server.log(requests=2)
        process.send_signal(signal.SIGHUP)
        code, _, said = ended(process)
        assert code == (0 if ignored else 130)
        assert (f"resume with: viva resume {out}" in said) == (not ignored)


@pytest.mark.parametrize("how", ["closed", "full", "left"])
def test_line_27_a_broken_stderr_does_not_end_a_run(tmp_path: Path, how: str) -> None:
    read, write = os.pipe()
    os.close(read)
    opened: dict[str, Callable[[], int]] = {
        "closed": lambda: os.open(os.devnull, os.O_WRONLY),
        "full": lambda: os.open("/dev/full", os.O_WRONLY),
        "left": lambda: os.dup(write),
    }
    stream = opened[how]()
    # "closed": the shell's 2>&- leaves no descriptor 2 at all.
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh"] if how == "closed" else []
    command += [sys.executable, "-m", "viva", "run", "kieval", "--dataset", str(SCIENCE), *PANEL, "-n", "3", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=stream, check=False
    )
    os.close(stream)
    os.close(write)
    assert done.returncode == 0
    assert done.stdout.decode() == _report(tmp_path / "run", "--json").stdout


def test_line_27_a_stderr_that_nobody_reads_does_not_stop_a_run(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    arguments = ["run", "kieval", "--dataset", str(SCIENCE), *PANEL, "-n", "3", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "viva", *arguments, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=write,
        check=False,
    )
    os.close(write)
    os.close(read)
    assert done.returncode == 0
    assert done.stdout.decode() == _report(tmp_path / "run", "--json").stdout


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_line_25_a_report_onto_stdout_or_stderr_stands_behind_what_is_there(
    run: Path, tmp_path: Path, option: str
) -> None:
    assert _report(run, option, tmp_path / "plain").exit_code == 0
    expected = (tmp_path / "plain").read_text()
    command = [sys.executable, "-m", "viva", "report", str(run), option]
    for device, log in (("/dev/stdout", tmp_path / "out"), ("/dev/stderr", tmp_path / "err")):
        log.write_text("before\n")
        with log.open("a") as file:
            streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            streams["stdout" if device == "/dev/stdout" else "stderr"] = file
            assert subprocess.run([*command, device], check=False, **streams).returncode == 0
        assert log.read_text().startswith(f"before\n{expected}")
        assert ("accuracy" in log.read_text()[len(f"before\n{expected}") :]) == (device == "/dev/stdout")


def test_line_25_a_linked_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("target")
    before = target.stat().st_ino
    write_atomically(link, b"new")
    assert (link.is_symlink(), target.read_text(), stat.S_IMODE(target.stat().st_mode)) == (True, "new", 0o640)
    assert target.stat().st_ino != before  # another file took its place: never half of one
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "target"]


def test_line_25_an_existing_file_that_cannot_be_replaced_is_written_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "replace", refuse)  # as of a single file that is mounted into a container
    mounted = tmp_path / "mounted"
    mounted.write_text("old, and longer")
    write_atomically(mounted, b"new")
    assert mounted.read_text() == "new"
    with pytest.raises(OSError, match="busy"):
        write_atomically(tmp_path / "none", b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["mounted"]


def test_line_25_two_results_do_not_share_a_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("one")
    for other in ("one", "link", f"../{tmp_path.name}/one"):
        done = _report(run, "--csv", tmp_path / "one", "--html", tmp_path / other)
        assert (done.exit_code, "--csv and --html name the same file" in done.stderr) == (2, True)
    assert not (tmp_path / "one").exists()
    assert _report(run, "--csv", "/dev/null", "--html", "/dev/null").exit_code == 0


def test_line_25_links_in_a_circle_are_said(run: Path, tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).symlink_to(other)
    done = _report(run, "--csv", tmp_path / "a")
    assert (done.exit_code, "cannot be written: Too many levels of symbolic links" in done.stderr) == (2, True)


def test_line_25_records_of_a_run_are_not_written_over(run: Path, tmp_path: Path) -> None:
    records = {file: file.read_bytes() for file in run.iterdir()}
    (tmp_path / "link").symlink_to(run / "manifest.json")
    for target in (*records, run / "journal.sqlite-wal", tmp_path / "link"):
        done = _report(run, "--html", target)
        assert (done.exit_code, "the run keeps a record in that file; name another one" in done.stderr) == (2, True)
    assert {file: file.read_bytes() for file in run.iterdir()} == records
    assert _report(run, "--html", run / "page.html").exit_code == 0
    (run / "page.html").unlink()


def test_line_29_a_run_folder_whose_name_is_not_utf8_is_reported_and_shown(run: Path, tmp_path: Path) -> None:
    folder = interviewed(tmp_path / os.fsdecode(b"run\xff"), "simulated:c", n=1)
    assert list(recorded_results(RunFolder.open(folder)).report()["candidates"]) == ["c"]
    code, printed, said = ended(started("report", folder, run, "--json"))
    assert (code, b"run\\\\udcff" in printed) == (0, True), said
    with pytest.raises(ConfigurationError, match="is not UTF-8; rename"):
        forked_run(folder, tmp_path / "fork", VirtualClock(), changes={"evaluator": "simulated:e"})
    assert not (tmp_path / "fork").exists()


def test_line_29_settings_that_no_manifest_can_hold_are_refused(tmp_path: Path) -> None:
    items = tmp_path / os.fsdecode(b"\xff.jsonl")
    items.write_bytes(SCIENCE.read_bytes())
    code, _, said = ended(started("run", "kieval", "--dataset", items, *PANEL, "--out", tmp_path / "run"))
    assert (code, "--dataset: found" in said, "which is not UTF-8; rename the file" in said) == (2, True, True)
    with pytest.raises(ValueError, match="which is not UTF-8"):
        KievalSettings(
            dataset=str(SCIENCE),
            candidate=["simulated:c?label=\ud800"],
            interactor="simulated:i",
            evaluator="simulated:e",
        )
    assert not (tmp_path / "run").exists()


def test_line_29_a_current_folder_that_was_removed_is_said(run: Path) -> None:
    gone = run.parent / "gone"
    gone.mkdir()
    viva = f'"{sys.executable}" -m viva'
    for command in ("report ../run", f"validate --dataset {SCIENCE} --model simulated:m --out ids"):
        shell = f'cd "{gone}" && rmdir "{gone}" && {viva} {command}'
        done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
        gone.mkdir()
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "viva: error: the current folder was removed; change to one that exists\n"


@pytest.mark.parametrize(
    ("place", "problem"), [("missing/gate.xml", "there is no folder"), (".", "it is a folder; name a file")]
)
def test_a_place_where_no_file_can_be_is_refused_before_anything_is_held(
    tmp_path: Path, place: str, problem: str
) -> None:
    (tmp_path / "suite.yaml").write_text("name: s\nmetrics: []\n")
    target, out = tmp_path / place, tmp_path / "out"
    words = ["suite", "run", tmp_path / "suite.yaml", "--candidate", "simulated:c", "--junit", target, "--out", out]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2
    assert f"--junit {target}: cannot be written: {problem}" in result.output
    assert not out.exists()
