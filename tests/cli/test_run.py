"""``viva run``, ``viva demo`` and an embedding program: what they print, refuse, record, and leave with."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from case_tables import case_table
from doc_output import compare
from doc_pages import ROOT, blocks_of
from viva_process import ended, started

from viva.engine.clock import VirtualClock
from viva.engine.events import CallFinished, ConversationFinished, Event, Noted, RunFinished, RunStarted
from viva.orchestration.launch import new_run, recorded_results
from viva.scenarios.kieval.kieval_settings import KievalSettings

_KIEVAL = Path(__file__).parents[2] / "scenarios" / "kieval"
ITEMS = _KIEVAL / "items" / "science.jsonl"
PACK = _KIEVAL / "prompts" / "kieval.yaml"
_JUDGE = "simulated:e?noise=0.2&malformed=0.1"
_PANEL = ["--interactor", "simulated:i", "--evaluator", _JUDGE]
_MODELS = ["--candidate", "simulated:c?knowledge=0.4", *_PANEL]


def _viva(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code, printed, said = ended(started(*arguments, cwd=cwd))
    return subprocess.CompletedProcess(arguments, code, printed.decode(), said)


def _run(out: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    return _viva("run", "kieval", "--dataset", ITEMS, *options, "--out", out)


def _recorded(*runs: Path) -> set[str]:
    """What reports and transcripts of the runs say: one text if they all say the same."""
    commands = [(command, run) for run in runs for command in ("report", "show")]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda command: _viva(*command, "--json"), commands))
    assert {one.returncode for one in done} == {0}
    return {report.stdout + show.stdout for report, show in zip(done[::2], done[1::2], strict=True)}


def _refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_the_demo_measures_knowledge_and_flags_exactly_the_cheaters(tmp_path: Path) -> None:
    done = _viva("demo", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = orjson.loads(done.stdout)
    assert (found["interviews"], found["failed"]) == (600, 0)
    assert found["correlation"]["official"]["r"] >= 0.95
    assert (sorted(found["regression"]["below"]), found["regression"]["above"]) == (["pt-cheater", "sft-cheater"], [])
    for cheater in ("pt-cheater", "sft-cheater"):
        gain = found["twins"][cheater]["gain"]
        assert gain["accuracy"]["mean"] >= 25
        assert abs(gain["kieval_official"]["mean"]) <= 5
    assert found["candidates"]["pt-cheater"]["auc"]["mean"] >= 0.85
    for other in ("clean-25", "clean-50", "clean-75", "clean-100", "sft-cheater"):
        assert 0.4 <= found["candidates"][other]["auc"]["mean"] <= 0.6
    [folder] = (tmp_path / "runs").iterdir()
    assert done.stderr.endswith(f"folder: runs/{folder.name}\n")
    again = _viva("demo", "--out", f"runs/{folder.name}", cwd=tmp_path)  # asks no model again
    [shown] = [block for block in blocks_of(ROOT / "README.md") if block.text.startswith("Contamination suspected")]
    shown.text, shown.output = shown.text.partition("\n600 interviews")[0], "figures vary"  # with the kind of machine
    compare(shown, again.stdout.replace(folder.name, "demo-…"))


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    done = _run(tmp_path / "run", *_MODELS, "--json")
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert report["candidates"]["c"]["interviews"] == report["dataset"]["chosen"] == 40
    assert done.stdout == _viva("report", tmp_path / "run", "--json").stdout


def test_the_width_of_a_run_changes_no_byte_of_it(tmp_path: Path) -> None:
    widths = ["1", "64", "2000"]
    for width in widths:
        done = _run(tmp_path / width, *_MODELS, "--seed", "11", "--concurrency", width)
        assert done.returncode == 0, done.stderr
    assert len(_recorded(*(tmp_path / width for width in widths))) == 1


def test_strict_refuses_models_that_break_byte_identity_and_a_manifest_names_them(tmp_path: Path) -> None:
    endpoint = "openai:http://127.0.0.1:9/v1#far"
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", endpoint]
    done = _run(tmp_path / "refused", *models, "--strict")
    assert done.returncode == 2
    assert f"strict: transcripts would not be byte-identical: {endpoint}: an endpoint" in done.stderr
    assert not (tmp_path / "refused").exists()
    done = _run(tmp_path / "run", *_MODELS, "--strict")
    assert done.returncode == 0, done.stderr
    manifest = orjson.loads((tmp_path / "run" / "manifest.json").read_bytes())
    assert (manifest["tier"], manifest["not_identical"]) == ("C", [])


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    one, other = (_run(tmp_path / seed, *_MODELS, "--seed", seed, "--json").stdout for seed in ("11", "12"))
    assert orjson.loads(one)["candidates"]["c"]["score"] != orjson.loads(other)["candidates"]["c"]["score"]


def _config(folder: Path, **changes: object) -> Path:
    settings: dict[str, object] = {"dataset": str(ITEMS), "n": 3, "rounds": 2, "candidate": "simulated:c"}
    settings |= {"interactor": "simulated:i", "evaluator": "simulated:e", **changes}
    file = folder / "settings.yaml"
    file.write_bytes(orjson.dumps(settings))  # JSON is YAML
    return file


def test_settings_come_from_a_file_and_the_command_line_wins(tmp_path: Path) -> None:
    config = _config(tmp_path)
    one = _viva("run", "kieval", "--config", config, "--json", "--out", tmp_path / "one")
    other = _viva("run", "kieval", "--rounds", "4", "--config", config, "--json", "--out", tmp_path / "other")
    reports = [orjson.loads(done.stdout) for done in (one, other)]
    assert [report["rounds"] for report in reports] == [2, 4]
    assert {report["dataset"]["chosen"] for report in reports} == {3}
    # A single candidate may stand there as plain text.
    assert [report["models"]["candidate"] for report in reports] == [{"c": "simulated:c"}] * 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ruonds": 3}, "ruonds: unknown setting"),
        ({"rounds": "many"}, "rounds: Input should be a valid integer"),
        ({"evaluator": None}, "evaluator: Input should be a valid string, found None"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    config = _config(tmp_path, **changes)
    _refused(_viva("run", "kieval", "--config", config, "--out", tmp_path / "run"), f"{config}: {named}")


def test_a_file_that_holds_no_settings_is_named(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("- rounds\n")
    for name, words in (("list", "expected a mapping of settings"), ("none", "cannot be read")):
        _refused(_viva("run", "kieval", "--config", tmp_path / name), f"{tmp_path / name}: {words}")


def test_what_is_no_terminal_gets_plain_lines(tmp_path: Path) -> None:
    # The usual pause between two lines is longer than this run; only the pause is changed.
    hasty = "import viva.cli.progress as live; live._PLAIN_SECONDS = 0.02; from viva.cli.main import main; main()"
    slow = [f"--candidate=simulated:candidate-{name}?latency=0.03" for name in range(6)] + _PANEL
    command = [sys.executable, "-c", hasty, "run", "kieval", "--dataset", str(ITEMS), *slow, "--out"]
    done = subprocess.run([*command, str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    progress = [line for line in done.stderr.splitlines() if " done · " in line]
    assert len(progress) > 1
    assert progress[-1].startswith("240/240 done · ")
    assert max(map(len, done.stderr.split(str(tmp_path))[0].splitlines())) <= 80
    assert "scores so far: candidate-0 " in done.stderr
    assert not {"\x1b", "\r"} & {*done.stderr, *done.stdout}


def test_a_terminal_gets_a_live_line_and_stdout_stays_clean(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    command = [sys.executable, "-m", "viva", "run", "kieval", "--dataset", str(ITEMS), *_MODELS, "--out"]
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(
        [*command, str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=terminal, text=True, env=environment
    ) as process:
        os.close(terminal)
        seen = b""
        with os.fdopen(screen, "rb", buffering=0) as file, suppress(OSError):  # EIO: nobody holds the other end
            while piece := file.read(65536):
                seen += piece
        written, _ = process.communicate()
    assert process.returncode == 0, seen
    assert (
        seen.index(b"\x1b")
        < seen.index(b"starting: models are loaded")
        < seen.rindex(b"\x1b")
        < seen.rindex(b"40/40 done")
    )
    assert written.startswith("KIEval on science")
    assert "\x1b" not in written
    assert " done · " not in written


def test_missing_options_are_named() -> None:
    given = ["--dataset", str(ITEMS), "--candidate", "simulated:c", "--interactor", "simulated:i"]
    _refused(_viva("run", "kieval", *given), "viva: error: --evaluator is missing\n")
    _refused(_viva("run", "kieval"), *(f"--{name} is missing" for name in ("dataset", "candidate", "interactor")))


def test_an_unknown_scenario_is_named() -> None:
    _refused(_viva("run", "kaiveal", "--dataset", ITEMS), "'kaiveal'", "kieval")


@case_table(
    ("options", "words"),
    [
        (["--candidate", "augur:delphi"], ["'augur:delphi'", "unknown kind 'augur'", "simulated"]),
        (["--candidate", "simulated:c?knowlege=1"], ["unknown option knowlege", "knowledge"]),
        (["--candidate", "simulated:c", "--candidate", "simulated:c?noise=0"], ["two models", "'c'", "label="]),
        (["--candidate", "simulated:c", "--scorer", "generous"], ["--scorer", "'generous'", "official"]),
        (["--candidate", "simulated:c", "--rounds", "0"], ["--rounds", "found 0"]),
        (["--candidate", "simulated:c", "--verbosely"], ["--verbosely"]),
        (["--candidate", "simulated:c", "--dataset", "none.jsonl"], ["none.jsonl: cannot be read"]),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: list[str], words: list[str]) -> None:
    _refused(_run(tmp_path / "run", *options, *_PANEL), *words)


def test_a_broken_line_is_named_or_counted(tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    lines = ITEMS.read_text().splitlines()[:5]
    items.write_text("\n".join([*lines[:3], '{"id": "x", "question": "Why?", "answer": "A"}', lines[3], "{", lines[4]]))
    base = ["run", "kieval", "--dataset", str(items), *_MODELS, "--json", "--out", str(tmp_path / "run")]
    _refused(_viva(*base), f"{items}:4", "'choices'", "--skip-bad-items")
    skipping = _viva(*base, "--skip-bad-items")
    assert skipping.returncode == 0, skipping.stderr
    dataset = orjson.loads(skipping.stdout)["dataset"]
    assert [dataset[name] for name in ("items", "chosen", "skipped")] == [5, 5, 2]


def test_an_unknown_placeholder_in_a_pack_is_named(tmp_path: Path) -> None:
    pack = tmp_path / "pack.yaml"
    pack.write_text(PACK.read_text().replace("{reply}", "{replly}", 1))
    _refused(_run(tmp_path / "run", *_MODELS, "--pack", pack), str(pack), "interactor.opening", "{replly}", "{reply}")


@pytest.mark.parametrize(("allowed", "code"), [("2", 3), ("3", 0)])
def test_failed_conversations_count_against_max_failures(tmp_path: Path, allowed: str, code: int) -> None:
    options = ["--candidate", "simulated:c?fail=1&retries=0", *_PANEL, "-n", "3", "--json"]
    done = _run(tmp_path / "run", *options, "--max-failures", allowed)
    assert done.returncode == code, done.stderr
    one = orjson.loads(done.stdout)["candidates"]["c"]
    assert (one["failed"], one["failures"], one["interviews"]) == (3, {"Unavailable": 3}, 0)
    assert "3 failed" in done.stderr


def test_a_used_up_budget_stops_the_run_and_resume_completes_it(tmp_path: Path) -> None:
    options = [*_MODELS, "-n", "5", "--json"]
    whole = _run(tmp_path / "whole", *options)
    part = _run(tmp_path / "part", *options, "--max-calls", "50")
    assert part.returncode == 1
    assert "budget of 50 calls is used up" in part.stderr
    assert "0 in flight" in part.stderr
    assert f"viva resume {tmp_path / 'part'}" in part.stderr
    assert orjson.loads(part.stdout)["candidates"]["c"]["interviews"] < 5
    resumed = _viva("resume", tmp_path / "part", "--json")
    assert (resumed.returncode, resumed.stdout) == (0, whole.stdout)
    assert len(_recorded(tmp_path / "part", tmp_path / "whole")) == 1


def test_an_embedding_program_gets_what_the_command_prints(tmp_path: Path) -> None:
    candidate = "simulated:c?latency=0.002"
    models: dict[str, Any] = {"candidate": [candidate], "interactor": "simulated:i", "evaluator": _JUDGE}
    settings = KievalSettings(dataset=str(ITEMS), n=10, **models)
    clock = VirtualClock()
    launch = new_run("kieval", settings, tmp_path / "embedded", clock)
    heard: list[Event] = []
    launch.events.listen(heard.append)

    async def embed() -> str:
        return (await launch.run()).how

    assert clock.run(embed) == "done"
    report = recorded_results(launch.folder).report()
    done = _run(tmp_path / "command", "--candidate", candidate, *_PANEL, "-n", "10", "--json")
    assert orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE) == done.stdout.encode()

    assert [type(event) for event in (heard[0], heard[-1])] == [RunStarted, RunFinished]
    one = report["candidates"]["c"]
    assert sum(isinstance(event, ConversationFinished) for event in heard) == one["interviews"] == 10
    assert sum(isinstance(event, Noted) for event in heard) == one["verdicts"]
    assert sum(isinstance(event, CallFinished) for event in heard) == sum(u["calls"] for u in one["usage"].values())
