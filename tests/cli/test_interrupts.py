"""Ctrl-C once, Ctrl-C twice, SIGTERM: how a run stops when asked to, and that going on afterwards loses nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from case_tables import case_table
from viva_process import ended, started

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_TALKS, _WIDTH, _ROUNDS = 10, 4, 2
_CALLS = 1 + 3 * _ROUNDS  # of one talk
_WAIT = {"do": "slow", "delay": 0.5}


def _run(server: Server, out: Path, **options: object) -> subprocess.Popen[bytes]:
    roles = ("candidate", "interactor", "evaluator")
    models = [text for role in roles for text in (f"--{role}", server.model(role, **options))]
    size = ["-n", str(_TALKS), "--rounds", str(_ROUNDS), "--concurrency", str(_WIDTH)]
    return started("run", "kieval", "--dataset", ITEMS, *size, *models, "--json", "--out", out)


def _printed(command: str, run: Path) -> bytes:
    code, printed, said = ended(started(command, run, "--json"))
    assert code == 0, said
    return printed


def _goes_on_as_if_nothing_had_been(server: Server, run: Path, whole: Path, unanswered: int) -> None:
    """Resume the run; compare it with one that nobody stopped; count that no answered call was made again."""
    code, resumed, said = ended(started("resume", run, "--json"))
    assert code == 0, said
    assert len(server.log()) == _TALKS * _CALLS + unanswered
    code, uninterrupted, said = ended(_run(server, whole))
    assert code == 0, said
    assert resumed == uninterrupted == _printed("report", run)
    assert _printed("show", run) == _printed("show", whole)


def _interviews(report: bytes) -> int:
    one: dict[str, Any] = orjson.loads(report)["candidates"]["candidate"]
    return int(one["interviews"])


def test_line_10_asked_once_it_finishes_the_calls_under_way(chaos: StartChaos, tmp_path: Path) -> None:
    # The first four calls take long enough for the signal to come while no talk has ended.
    server = chaos({"schedule": {str(number): _WAIT for number in range(_WIDTH)}})
    run = tmp_path / "run"
    process = _run(server, run)
    server.log(requests=_WIDTH)
    process.send_signal(signal.SIGINT)
    code, report, said = ended(process)
    assert code == 130
    assert f"viva resume {run}" in said
    assert f"{_WIDTH} conversations were interrupted; resume with: viva resume {run}" in said
    log = server.log()
    assert len(log) == _WIDTH, "no further call begins, and those under way are waited for"
    assert not any(entry["left"] for entry in log)
    assert _interviews(report) == 0
    assert report == _printed("report", run)
    _goes_on_as_if_nothing_had_been(server, run, tmp_path / "whole", unanswered=0)


def test_line_10_a_call_that_waits_for_its_turn_is_not_under_way(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"schedule": {"0": _WAIT}})
    run = tmp_path / "run"
    process = _run(server, run, concurrency=1)
    server.log(requests=1)
    process.send_signal(signal.SIGINT)
    code, _, said = ended(process)
    assert code == 130
    assert f"{_WIDTH} conversations were interrupted; resume with: viva resume {run}" in said
    assert [entry["left"] for entry in server.log()] == [False]
    assert ended(started("resume", run))[0] == 0
    assert len(server.log()) == _TALKS * _CALLS


def test_line_10_a_call_that_waits_for_its_next_try_is_not_under_way(chaos: StartChaos, tmp_path: Path) -> None:
    overloaded = {"do": "503", "retry_after": 600, "delay": 0.1}
    server = chaos({"schedule": {str(number): overloaded for number in range(_WIDTH)}})
    run = tmp_path / "run"
    process = _run(server, run)
    server.log(requests=_WIDTH)
    process.send_signal(signal.SIGINT)
    code, report, said = ended(process)
    assert code == 130
    assert f"{_WIDTH} conversations were interrupted; resume with: viva resume {run}" in said
    assert orjson.loads(report)["candidates"]["candidate"]["failed"] == 0
    assert ended(started("resume", run))[0] == 0
    assert len(server.log()) == _TALKS * _CALLS + _WIDTH


def test_asked_twice_it_stops_at_once(chaos: StartChaos, tmp_path: Path) -> None:
    # The first four are never answered, so that only stopping ends the run.
    server = chaos({"schedule": {str(number): "never" for number in range(_WIDTH)}})
    run = tmp_path / "run"
    process = _run(server, run)
    server.log(requests=_WIDTH)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == b"finishing the calls in flight (Ctrl-C again to stop now)\n"
    process.send_signal(signal.SIGINT)
    code, report, said = ended(process)
    assert code == 130
    assert f"{_WIDTH} conversations were interrupted; resume with: viva resume {run}" in said
    assert len(server.log(left=_WIDTH)) == _WIDTH
    assert _interviews(report) == 0
    _goes_on_as_if_nothing_had_been(server, run, tmp_path / "whole", unanswered=_WIDTH)


def test_line_10_asked_once_when_nothing_is_left_to_begin_it_is_done(chaos: StartChaos, tmp_path: Path) -> None:
    # All talks are in flight, and in each the call under way is its last.
    server = chaos({"default": {"do": "slow", "delay": 1.0}})
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", server.model("evaluator")]
    size = ["-n", str(_TALKS), "--rounds", "1"]
    process = started("run", "kieval", "--dataset", ITEMS, *size, *models, "--json", "--out", tmp_path / "run")
    server.log(requests=_TALKS)
    process.send_signal(signal.SIGINT)
    code, report, said = ended(process)
    assert code == 0, said
    assert "resume" not in said
    assert orjson.loads(report)["candidates"]["c"]["interviews"] == _TALKS


def test_terminated_it_stops_at_once(chaos: StartChaos, tmp_path: Path) -> None:
    # Two talks have ended by the time that all four places are stuck.
    first = 3 * _WIDTH + _CALLS
    server = chaos({"schedule": {str(number): "never" for number in range(first, first + _WIDTH)}})
    run = tmp_path / "run"
    process = _run(server, run)
    server.log(requests=first + _WIDTH)
    process.send_signal(signal.SIGTERM)
    code, report, said = ended(process)
    assert code == 130
    assert f"{_WIDTH} conversations were interrupted; resume with: viva resume {run}" in said
    assert len(server.log(left=_WIDTH)) == first + _WIDTH
    assert _interviews(report) < _TALKS
    _goes_on_as_if_nothing_had_been(server, run, tmp_path / "whole", unanswered=_WIDTH)


def test_a_resumed_run_can_be_stopped_like_a_new_one(chaos: StartChaos, tmp_path: Path) -> None:
    stops = (5, 20)
    stuck = {str(number): "never" for stop in stops for number in range(stop, stop + _WIDTH)}
    server = chaos({"schedule": stuck})
    run = tmp_path / "run"
    process = _run(server, run)
    for stop in stops:
        server.log(requests=stop + _WIDTH)
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 130
        process = started("resume", run)
    assert ended(process)[0] == 0
    _goes_on_as_if_nothing_had_been(server, run, tmp_path / "whole", unanswered=2 * _WIDTH)


def test_while_it_runs_nobody_else_may_go_on_with_it(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"schedule": {str(number): "never" for number in range(_CALLS, _CALLS + _WIDTH)}})
    process = _run(server, tmp_path / "run")
    server.log(requests=_CALLS + _WIDTH)
    code, printed, said = ended(started("resume", tmp_path / "run"))
    assert (code, printed) == (2, b"")
    assert "another process is running this run" in said
    assert _interviews(_printed("report", tmp_path / "run")) < _TALKS  # looking on is allowed
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 130


_AT_IMPORT = """
class Interrupting:
    seen = 0
    def find_spec(self, name, *others):
        self.seen += name not in ("viva.__main__", "viva", "viva.cli", "viva.cli.start", "__future__")
        if self.seen == NUMBER:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
_AT_EXIT = "import atexit; atexit.register(signal.raise_signal, signal.SIGINT)"
_LOADING = [(_AT_IMPORT.replace("NUMBER", str(number)), 130) for number in (1, 3, 20, 250, 310, 500)]


@case_table(("when", "code"), [*_LOADING, (_AT_EXIT, -signal.SIGINT)])
def test_ctrl_c_at_any_import_shows_one_line_and_no_traceback(when: str, code: int) -> None:
    # As in a terminal, also where whoever runs the tests ignores the signal.
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = ["--version"] if code < 0 else ["list", "datasets"]
    program = f"import signal, sys\n{heard}\n{when}\nsys.argv = {['viva', *command]}\nimport viva.__main__"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"viva: interrupted\n" if code > 0 else b"")


def test_nothing_loads_before_ctrl_c_is_heard() -> None:
    program = "import sys; before = set(sys.modules); import viva.cli.start; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    # An editable install has loaded `__future__` for its own sake.
    assert done.stdout.split() in (names := ["__future__", "viva", "viva.cli", "viva.cli.start"], names[1:])


def test_ctrl_c_before_the_first_call_ends_without_a_word_of_python(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        others = ["--interactor", "simulated:i", "--evaluator", "simulated:e", "--out", str(tmp_path / "run")]
        process = started("run", "kieval", "--dataset", ITEMS, "--candidate", f"openai:{url}#c", *others)
        connection, _ = silent.accept()  # it asks whether the model is there, and nobody answers
        with connection:
            process.send_signal(signal.SIGINT)
            code, printed, said = ended(process)
    assert (code, printed) == (130, b""), said
    assert not (tmp_path / "run").exists()  # the name is free for the next try
