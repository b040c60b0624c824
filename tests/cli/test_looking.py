"""``viva report``, ``score`` and ``show``: looking at finished and unfinished runs, and calling no model for it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from case_tables import case_table
from command import viva
from typer.testing import CliRunner, Result

from viva.cli.main import app
from viva.cli.transcript import print_conversation
from viva.orchestration.transcripts import Speech

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_NOTE = "interviews of this run ended at their stop flags"


def _command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "viva", *map(str, arguments)]


def _json(*arguments: str | Path) -> Any:
    done = viva(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return orjson.loads(done.stdout)


def _made(out: Path, *options: str) -> Path:
    models = ["--interactor", "simulated:i", "--evaluator", "simulated:e"]
    done = viva("run", "kieval", "--dataset", ITEMS, *models, *options, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def _titles(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.partition(", reproducible")[0] for line in done.stdout.splitlines() if line.startswith("KIEval on ")]


def _rows(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The main table, without title and header."""
    rows = done.stdout.split("\n\n")[1].splitlines()[2:4]
    assert len(rows) == 2
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two candidates on six items, talks ended at their stop flags."""
    folder = tmp_path_factory.mktemp("run") / "weak"
    return _made(folder, "--candidate", "simulated:weak?knowledge=0.1", "--candidate", "simulated:good", "-n", "6")


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but no talk was ended."""
    folder = tmp_path_factory.mktemp("run") / "long"
    models = ["--candidate", "simulated:weak?knowledge=0.1", "--candidate", "simulated:good"]
    return _made(folder, *models, "-n", "6", "--no-early-stop")


@pytest.fixture(scope="module")
def official_rows(run: Path) -> list[str]:
    """How the run scored when it was run."""
    return _rows(viva("report", run))


def _interrupted_run(server: Server, out: Path, sign: signal.Signals) -> tuple[int, str]:
    """A run of two talks at a time that is sent a signal when about half of it is done."""
    models = [text for role in ("candidate", "interactor", "evaluator") for text in (f"--{role}", server.model(role))]
    small = ["-n", "12", "--rounds", "1", "--concurrency", "2"]
    command = _command("run", "kieval", "--dataset", ITEMS, *small, *models, "--out", out)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        server.log(requests=21)
        process.send_signal(sign)
        _, said = process.communicate()
    return process.returncode, said


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_an_unfinished_run_is_reported_as_far_as_it_came(
    chaos: StartChaos, tmp_path: Path, sign: signal.Signals, code: int
) -> None:
    run = tmp_path / "run"
    server = chaos({"default": {"do": "slow", "delay": 0.03}})
    assert _interrupted_run(server, run, sign)[0] == code
    calls = len(server.log())
    one = _json("report", run)["candidates"]["candidate"]
    assert 0 < one["interviews"] == one["scored"] < 12
    states = [line.split()[-1] for line in viva("show", run).stdout.splitlines() if "candidate/" in line]
    assert states.count("finished") == one["interviews"]
    assert states.count("interrupted") == len(states) - one["interviews"]
    assert len(server.log()) == calls


@pytest.mark.parametrize(
    ("options", "scorer", "same"),
    [
        (["--scorer", "corrected"], "corrected", False),
        (["--scorer", "linear"], "linear", False),
        (["--no-decay"], "official (no decay)", False),
        (["--no-early-stop"], "official (no early stop)", True),  # the rounds it would add were never held
        (["--early-stop"], "official", True),
        (["--scorer", "linear", "--no-decay", "--no-early-stop"], "linear (no decay, no early stop)", False),
    ],
)
def test_another_scorer_is_named_and_scores(
    run: Path, official_rows: list[str], options: list[str], scorer: str, same: bool
) -> None:
    done = viva("score", run, *options)
    assert _titles(done) == [f"KIEval on science, scorer {scorer}, seed 7"]
    assert (_NOTE in done.stderr) == ("--no-early-stop" in options)
    assert (_rows(done) == official_rows) == same


def test_scoring_calls_no_model_and_writes_nothing(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({})
    models = {role: server.model(role) for role in ("candidate", "interactor", "evaluator")}
    options = [text for role, model in models.items() for text in (f"--{role}", model)]
    run = _made(tmp_path / "run", *options, "-n", "4", "--rounds", "2")
    calls, files = len(server.log()), {path.name: path.read_bytes() for path in run.iterdir()}
    assert calls == 4 * 7
    for scoring in (["--scorer", "corrected"], ["--scorer", "linear"], ["--no-decay"], ["--no-early-stop"]):
        assert viva("score", run, *scoring).returncode == 0
    assert len(server.log()) == calls
    assert files.items() <= {path.name: path.read_bytes() for path in run.iterdir()}.items()


def test_talks_that_went_on_can_be_cut_at_their_flags(run: Path, long_run: Path) -> None:
    for scorer in ("official", "linear", "corrected"):
        cut = viva("score", long_run, "--early-stop", "--scorer", scorer, "--json")
        assert cut.stderr == ""
        ended = _json("score", run, "--scorer", scorer)["candidates"]
        for label, one in orjson.loads(cut.stdout)["candidates"].items():
            for name in ("score", "aspects", "rounds", "verdicts", "stop_reasons", "accuracy"):
                assert one[name] == ended[label][name], (scorer, label, name)
    whole = viva("score", long_run, "--no-early-stop")
    assert (whole.returncode, whole.stderr) == (0, ""), "no note: these talks did go on"


def test_a_wrong_way_of_scoring_is_refused(run: Path) -> None:
    done = viva("score", run, "--scorer", "generous")
    assert (done.returncode, done.stdout) == (2, "")
    assert "generous" in done.stderr


def test_show_lists_the_conversations(run: Path) -> None:
    lines = [line.split() for line in viva("show", run).stdout.splitlines()]
    assert lines[0] == ["12", "conversations"]
    rows = [line for line in lines if line and line[0].isdigit()][1:]
    assert [int(row[0]) for row in rows] == list(range(12))
    assert [row[1].split("/")[0] for row in rows] == ["weak", "good"] * 6
    scores = [float(row[2]) for row in rows]
    for label, place in (("weak", 0), ("good", 1)):  # the mean of the list is the report's
        mean = _json("report", run)["candidates"][label]["score"]["mean"]
        assert sum(scores[place::2]) / 6 == pytest.approx(mean, abs=0.05)
    assert {row[3] for row in rows} == {"finished"}


def test_a_conversation_is_found_by_number_key_or_end_of_key(run: Path) -> None:
    keys = [line.split()[1] for line in viva("show", run).stdout.splitlines() if "/" in line]
    number, key = 3, keys[3]
    talk = _json("show", run, "--conversation", str(number))
    assert (talk["number"], talk["key"]) == (number, key)
    parties = [said["party"] for said in talk["talk"]]
    assert parties[:5] == ["benchmark", "candidate", "interactor", "candidate", "evaluator"]
    assert _json("show", run, "--conversation", key) == talk
    assert _json("show", run, "--conversation", key.removeprefix("go")) == talk
    shown = viva("show", run, "--conversation", key).stdout
    assert shown.startswith(f"{number}: {key} ")
    everything = "".join(f"[{said['party']}]{said['text']}" for said in talk["talk"] if said["party"] != "evaluator")
    spoken = re.sub(r"\[evaluator\]\n(.+\n)+", "", shown.split("\n", 1)[1])
    assert "".join(spoken.split()) == "".join(everything.split())
    verdict = orjson.loads(talk["talk"][4]["text"])
    first = "{score}, {comment}".format(**verdict["accuracy"])
    assert f"[evaluator]\naccuracy: {first}\nlogic: " in shown
    assert f"\noverall_score: {verdict['overall_score']}\nstop_conversation: false\n" in shown


@case_table(
    ("text", "shown"),
    [
        ("It is\nright.", "It is\nright."),
        ('{"score": 3', '{"score": 3'),
        ("[3]", "[3]"),
        ('{"logic": {"comment": "a\\nb", "score": 3}, "why": null}', "logic: 3, a b\nwhy: –"),
        ('{"grades": [1, {"a": 2}], "right": true, "note": {"x": {"y": 1}}}',
         'grades: [1,{"a":2}]\nright: true\nnote: {"x":{"y":1}}'),
    ],
)  # fmt: skip
def test_a_verdict_is_shown_in_lines_and_any_other_answer_as_it_is(
    capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    for party, expected in (("judge", shown), ("pupil", text)):
        print_conversation(0, "a/b", [Speech(party, text)], ["judge"], prompts=False, is_whole=False)
        assert capsys.readouterr().out.split("\n", 1)[1] == f"[{party}]\n{expected}\n\n"


def _shown(*arguments: str | Path) -> Result:
    """``viva show`` in this process."""
    return CliRunner().invoke(app, ["show", *map(str, arguments)])


def _blocks(printed: str) -> list[str]:
    """A printed transcript's entries: prompts and answers."""
    return re.split(r"^(?=  to |\[)", printed, flags=re.MULTILINE)[1:]


def test_each_prompt_stands_behind_a_bar_with_what_is_new_in_it(long_run: Path) -> None:
    plain, new, whole, data = (
        _shown(long_run, "--conversation", "0", *options).stdout
        for options in ([], ["--prompts"], ["--whole-prompts"], ["--json", "--prompts"])
    )
    answers = [block for block in _blocks(plain) if not block.startswith("[benchmark]")]
    for shown in (new, whole):
        without = "\n".join(line for line in shown.split("\n") if not line.startswith(("  │", "  to ")))
        assert without == plain, "answers stand as without prompts"
        asked = [block.splitlines()[0] for block in _blocks(shown) if block.startswith("  to ")]
        assert asked == [f"  to {answer[1 : answer.index(']')]}:" for answer in answers]
    talk = orjson.loads(data)["talk"]
    spoken = [said for said in talk if said["party"] == "candidate"]
    told = [block.splitlines()[1:] for block in _blocks(new) if block.startswith("  to candidate:")]
    assert told[0][0].startswith("  │ system: ")
    for number, (lines, said) in enumerate(zip(told[2:], spoken[2:], strict=True), 2):
        messages = said["prompt"]["messages"]
        assert len(messages) == 2 + 2 * number
        assert lines[0] == f"  │ … {len(messages) - 1} messages as before"
        assert (
            " ".join(" ".join(lines[1:]).replace("│", "").split())
            == f"user: {' '.join(messages[-1]['content'].split())}"
        )
    assert len(whole) > 2 * len(new)
    assert "as before" not in whole
    assert len([line for line in whole.splitlines() if line.startswith("  │ assistant: ")]) > len(talk)


def test_prompts_fit_a_terminal_of_80_columns(run: Path) -> None:
    shown = _in_terminal("show", str(run), "--conversation", "0", "--prompts")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    barred = [number for number, line in enumerate(lines) if line.startswith("  │ ")]
    assert len(barred) > 20
    for number in barred:
        assert lines[number - 1].startswith(("  │", "  to ")), "no line of a prompt stands without its bar"


def _in_terminal(*arguments: str) -> str:
    """What a command prints on a terminal of 80 columns, without its colours."""
    mine, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(_command(*arguments), stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        read = bytearray()
        try:
            while piece := os.read(mine, 1 << 16):
                read += piece
        except OSError:  # the other end is closed
            pass
        os.close(mine)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    return re.sub(r"\x1b\[[0-9;]*m", "", read.decode())


def test_the_list_is_followed_by_the_command_of_such_a_run(run: Path) -> None:
    done = _shown(run)
    assert done.stderr.startswith("# the command of such a run:\nviva run ")
    assert "--candidate" in done.stderr
    assert "viva run" not in done.stdout


def test_prompts_of_no_conversation_in_particular_are_a_matter_for_json(run: Path) -> None:
    done = _shown(run, "--prompts")
    assert done.stdout == _shown(run).stdout
    assert done.stderr == "viva: note: --prompts and --thoughts: name a --conversation, or add --json\n"


@pytest.mark.parametrize("name", ["99", "99999999999999999999", "²", "good/none", ""])
def test_an_unknown_conversation_is_refused(run: Path, name: str) -> None:
    done = viva("show", run, "--conversation", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no conversation '{name}'" in done.stderr


def test_an_end_that_two_keys_share_names_neither(run: Path) -> None:
    item = _json("show", run, "--conversation", "0")["key"].partition("/")[2]
    done = viva("show", run, "--conversation", item)
    assert done.returncode == 2
    assert f"several conversations end with '{item}', such as weak/{item} and good/{item}" in done.stderr


def test_a_reader_that_takes_one_line_gets_it(tmp_path: Path) -> None:
    run = _made(tmp_path / "run", "--candidate", "simulated:c")
    # Far more than a pipe holds: the command is still writing when its reader goes.
    with subprocess.Popen(
        _command("show", run, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"number":0,')
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("command", ["report", "score", "show"])
def test_what_is_no_run_folder_is_refused(tmp_path: Path, command: str) -> None:
    path = tmp_path if command == "report" else tmp_path / "none"
    done = viva(command, path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}: not a run folder" in done.stderr


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    run = tmp_path / "seed-1" / "kieval"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    said = viva("show", tmp_path).stderr
    assert f"{tmp_path}: not a run folder (it has no manifest.json); these subfolders have one: {run}" in said
    assert "/x: not a run folder: no such folder" in viva("report", tmp_path / "x").stderr


def test_a_folder_of_runs_is_reported_as_its_runs_are(tmp_path: Path) -> None:
    models = ["--interactor", "simulated:i", "--evaluator", "simulated:e", "-n", "3", "--rounds", "1"]
    for name in ("day/seed-1/one", "two"):
        out = tmp_path / "demo" / name
        done = viva("run", "kieval", "--dataset", ITEMS, "--candidate", f"simulated:{out.name}", *models, "--out", out)
        assert done.returncode == 0, done.stderr
    shutil.copytree(out, tmp_path / "demo" / ".trash" / "two")
    both = viva("report", tmp_path / "demo" / "day" / "seed-1" / "one", tmp_path / "demo" / "two")
    whole = viva("report", tmp_path / "demo")
    assert whole.stdout == both.stdout
    assert "contains 2 runs" in whole.stderr
