"""What the command says of itself: its version, its commands, and for each what it needs, in 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from case_tables import case_table
from command import viva
from typer.main import get_command
from typer.testing import CliRunner

from viva.cli.exit_codes import print_note
from viva.cli.main import app
from viva.orchestration.run_command import option_name
from viva.scenarios.registry import get_scenario, installed_scenarios


def _viva(*arguments: str | Path) -> str:
    with patch.dict(os.environ, {"COLUMNS": "80", "TERM": "dumb"}):
        done = viva(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_line_15_the_command_says_its_version() -> None:
    assert _viva("--version") == f"viva {version('viva-exam')}\n"


def test_line_15_h_is_help_and_run_is_first_in_the_list() -> None:
    said = _viva("-h")
    assert said == _viva("--help")
    sections = {
        title: [line.split()[0] for line in lines.splitlines() if re.match(r"  \S", line)]
        for title, lines in re.findall(r"^(\w+):\n((?:  .*\n)+)", said, re.MULTILINE)
    }
    assert [*sections][1:] == ["Commands", "People", "Data", "Exchange", "More"]
    assert sections["Commands"] == ["run", "sweep", "report", "view", "show", "suite", "judge", "serve"]
    assert sections["People"] == ["grade", "review"]
    assert sections["More"] == [
        "resume",
        "probe",
        "qualify",
        "control",
        "verify",
        "score",
        "court",
        "invariance",
        "list",
    ]
    assert not re.search(r"\w\.\.\.$", said, re.MULTILINE)  # summaries stand there whole


@case_table("command", ["sweep", "lab run", "judge compare", "validate", "judge audit", "invariance"])
def test_where_models_are_named_help_says_how_with_an_example(command: str) -> None:
    said = _viva(*command.split(), "-h")
    assert re.search(rf"Examples?:\n +viva {command} ", said)
    assert "kind:where#name?option=value" in said


def test_the_shell_completes_commands_scenarios_and_their_options() -> None:
    for words, found in (("viva run func", "functionchat"), ("viva probe --sho", "--shots")):
        shell = {"_VIVA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        program = Path(sys.executable).with_name("viva")
        done = subprocess.run([program], capture_output=True, text=True, check=False, env=os.environ | shell)
        assert found in done.stdout.split(), done.stderr


def test_line_15_what_validate_needs_comes_first() -> None:
    shown = [line.split()[0] for line in _viva("validate", "-h").splitlines() if line.startswith("  -")]
    assert shown[:3] == ["--model", "--out", "--dataset"]


@pytest.mark.parametrize(
    ("command", "name"), [("run kieval", "kieval"), ("run functionchat", "functionchat"), ("probe", "probe")]
)
def test_line_15_what_a_command_needs_comes_first_with_an_example_and_how_models_are_named(
    command: str, name: str
) -> None:
    said = _viva(*command.split(), "-h")
    settings = get_scenario(name).settings.model_fields
    # Each name stands whole on a line of its own beginning, however long it is.
    shown = [line.split()[0].rstrip(",") for line in said.splitlines() if line.startswith("  -")]
    assert [option_name(one) for one in settings if option_name(one) not in shown] == []
    needed = [option_name(one) for one, field in settings.items() if field.is_required()]
    assert sorted(shown[: len(needed)]) == sorted(needed)
    example = said.split("Example:\n")[1].split("\n\n")[0]
    assert f"viva {command} \\" in example
    assert all(f"{option} " in example for option in needed)
    assert "kind:where#name?option=value" in said


_INTERVIEW = "run kieval --dataset items.jsonl --interactor simulated:i --evaluator simulated:e --out run"
_MISSPELT = [
    ("demoo", "no command 'demoo'", "demo"),
    ("suite chek suite.yaml", "no command 'chek'", "check"),
    ("report --htlm a", "no option '--htlm'", "--html"),
    ("run kieval --candidat simulated:c", "no option '--candidat'", "--candidate"),
    ("run kieval --evalutor e", "no option '--evalutor'", "--evaluator"),
    ("run kievl", "unknown scenario 'kievl'", "kieval"),
    ("run talks.py#tlak", "talks.py: has no scenario 'tlak'", "talk"),
    ("run talk.py", "talk.py: no such Python file", "talks.py"),
    ("list pakcs", "'pakcs' cannot be listed", "packs"),
    ("report rnus", "rnus: not a run folder: no such folder", "runs"),
    ("suite check siute.yaml", "siute.yaml: cannot be read: No such file or directory", "suite.yaml"),
    (f"{_INTERVIEW} --pack kievl --candidate simulated:c", "prompt pack 'kievl'", "kieval"),
    (f"{_INTERVIEW} --detectors emtpy --candidate simulated:c", "found 'emtpy'", "empty"),
    (f"{_INTERVIEW} --candidate opnai:gpt-4o", "unknown kind 'opnai'", "openai"),
    (f"{_INTERVIEW} --candidate simulated:x?knowlege=0.6", "unknown option knowlege", "knowledge"),
    (f"{_INTERVIEW} --candidate llama:m.gguf?cxt=8192", "unknown option cxt", "ctx"),
    (f"{_INTERVIEW} --candidate llama:n.gguf", "no file ", "m.gguf"),
    (f"{_INTERVIEW} --candidate python:mine.py#anser", "mine.py has no 'anser'", "answer"),
    (_INTERVIEW.replace("items", "itmes") + " --candidate simulated:c", "itmes.jsonl: cannot be read", "items.jsonl"),
    (_INTERVIEW.replace("items.jsonl", "mmul") + " --candidate simulated:c", "mmul: cannot be read", "mmlu"),
    ("run talks.py --tasks tasks.jsonl --pupil simulated:c --tutor simulated:t --out talk",
     "no model for the role 'tutr'", "tutor"),
]  # fmt: skip


@case_table("words, wrong, meant", _MISSPELT, ids=lambda case: str(case)[-30:])
def test_a_misspelt_name_is_answered_with_one_line_that_has_the_nearest_name(
    tmp_path: Path, words: str, wrong: str, meant: str
) -> None:
    (tmp_path / "items.jsonl").write_text('{"question": "q?", "choices": ["a", "b"], "answer": "A"}\n')
    (tmp_path / "tasks.jsonl").write_text('{"topic": "tides"}\n')
    (tmp_path / "mine.py").write_text("def answer(messages):\n    return 'yes'\n")
    (tmp_path / "talks.py").write_text(
        "import viva\n@viva.scenario(compare='pupil', one='tutor')\n"
        "async def talk(conversation, task):\n    await viva.Agent(conversation, 'tutr').ask('x')\n"
    )
    (tmp_path / "m.gguf").touch()
    (tmp_path / "suite.yaml").touch()
    (tmp_path / "runs").mkdir()
    done = viva(*words.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = [line for line in done.stderr.splitlines() if line.startswith("viva: error: ")]
    assert wrong in line
    assert f"; did you mean '{meant}'" in line


@case_table(
    ("more", "said"),
    [
        (
            ("--critic", "simulated:c"),
            'for a role of the scenario, add one="critic" or judge="critic" to its decorator',
        ),
        ((), "no model for the role 'critic'; roles with a model: pupil; a scenario has to declare its roles"),
    ],
)
def test_a_role_that_the_decorator_lacks_is_told_where_to_add_it(
    tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"topic": "tides"}\n')
    (tmp_path / "talks.py").write_text(
        "import viva\n@viva.scenario(compare='pupil')\n"
        "async def talk(conversation, task):\n    await viva.Agent(conversation, 'critic').ask('x')\n"
    )
    words = ["run", "talks.py", "--tasks", "tasks.jsonl", "--pupil", "simulated:p", "--out", "run", *more]
    done = viva(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_value_of_the_wrong_type_is_named() -> None:
    for words in (["--rounds", "tow"], ["--rounds=tow"]):
        done = viva("run", "kieval", *words)
        assert done.stderr.startswith("viva: error: invalid value for '--rounds': ")
        assert "found 'tow'; see viva run kieval -h" in done.stderr


@case_table(
    "name, found",
    [
        ("talks.jsonl", "JSON Lines with the fields id, messages"),
        ("scores.csv", "a CSV table"),
        ("metrics.py", "Python code"),
        ("model.gguf", "a model"),
        ("folder", "the folder of a run"),
    ],
)
@pytest.mark.parametrize(
    ("words", "expected"),
    [("suite check", "a suite (YAML"), ("sweep", "a sweep's file (YAML"), ("run kieval --config", "settings (YAML")],
)
def test_a_file_of_another_kind_is_named_as_what_it_is(
    tmp_path: Path, words: str, expected: str, name: str, found: str
) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    else:
        (tmp_path / name).write_text('{"id": "a", "messages": []}\n{"id": "b", "messages": []}\n')
    done = viva(*words.split(), name, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(rf"viva: error: {name}: expected {re.escape(expected)}.*\), found {found}\n", done.stderr)


def _commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, command in sorted(getattr(group, "commands", {}).items()):
        if not command.hidden:
            yield from _commands(command, (*words, name))


def test_no_line_of_any_help_is_cut_or_wider_than_a_terminal_or_names_a_type_of_python() -> None:
    every = [*_commands(get_command(app)), *(("run", scenario.name) for scenario in installed_scenarios())]
    assert {("run",), ("suite", "init"), ("grade", "bank"), ("judge", "load")} <= {*every}
    for command in every:
        done = CliRunner().invoke(app, [*command, "--help"], terminal_width=80)
        assert done.exit_code == 0, command
        assert "\n  " in done.stdout
        assert not re.search(r"[a-z](\.\.\.|…)$", done.stdout, re.MULTILINE), command
        assert [line for line in done.stdout.splitlines() if len(line) > 80] == [], command
        assert not re.search(r" (INTEGER|FLOAT|BOOLEAN|DIRECTORY)\b", done.stdout), command


def test_a_misspelt_setting_and_anothers_role_are_answered_with_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("rouns: 3\n")
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    done = viva("run", "kieval", "--dataset", "x.jsonl", *models, "--config", tmp_path / "c.yaml")
    assert "rouns: unknown setting; did you mean 'rounds'?" in done.stderr
    (tmp_path / "echoes.py").write_text(
        "import viva\n@viva.scenario(many='pupil', judge='ear')\n"
        "async def echo(conversation: viva.Conversation, word: str) -> float:\n    return 1.0\n"
    )
    assert "--pupil" in viva("run", tmp_path / "echoes.py", "--scholar", "simulated:c").stderr
    assert "did you mean 'kieval'" in viva("run", "kievl").stderr
    done = viva("run", tmp_path / "echoes.py", "--candidate", "simulated:c")
    assert "--pupil" in done.stderr
    assert "--ear" in done.stderr


_TALK = """import dataclasses, viva

@dataclasses.dataclass
class Topic:
    topic: str

@viva.scenario(compare="pupil", score=(0, 1))
async def talk(conversation, task):
    return {"scor": float(len(task["topic"]) > 1), "words": 3}

@viva.scenario(compare="pupil")
async def typed(conversation, task: Topic):
    return 1.0
"""


def _talk(folder: Path, scenario: str, *tasks: str) -> tuple[int, str]:
    (folder / "talks.py").write_text(_TALK)
    (folder / "tasks.jsonl").write_text("".join(f"{task}\n" for task in tasks))
    words = ["--tasks", "tasks.jsonl", "--pupil", "simulated:c", "--out", "talk"]
    done = viva("run", f"talks.py#{scenario}", *words, cwd=folder)
    return done.returncode, done.stderr


def test_a_misspelt_field_of_a_task_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    tasks = ['{"topic": "tides"}', '{"topc": "moon"}', '{"topc": "sun"}']
    code, text = _talk(tmp_path, "talk", *tasks)
    problem = "field 'topic': is missing; unknown field 'topc'; did you mean 'topic'?"
    assert code == 3
    assert f"2 × TaskError: {tmp_path}/tasks.jsonl:2 and 1 more line: {problem} (read at {tmp_path}/talks.py:9" in text
    code, text = _talk(tmp_path, "typed", *tasks)
    assert (code, text) == (2, f"viva: error: {tmp_path}/tasks.jsonl:2: {problem}\n")


def test_a_score_that_is_declared_and_never_returned_is_noted_in_run_and_report(tmp_path: Path) -> None:
    _, text = _talk(tmp_path, "talk", '{"topic": "tides"}', '{"topic": "moon"}')
    note = (
        "viva: note: no conversation returned 'score', whose range the scenario declares (score=…); 2 returned 'scor'; "
        "did you mean 'score'?\n"
    )
    assert text.count(note) == 1
    assert viva("report", tmp_path / "talk").stderr == note
    done = viva("report", tmp_path / "talk", "--html", tmp_path / "a.html", "--csv", tmp_path / "a.csv")
    assert done.stderr == f"table: {tmp_path}/a.csv\npage: {tmp_path}/a.html\n{note}"


def test_a_message_is_wrapped_at_words_in_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "unknown option 'knowlege'; did you mean 'knowledge'? simulated knows: " + ", ".join(["rpm"] * 40)
    print_note(text)
    assert capsys.readouterr().err == f"viva: note: {text}\n"
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(follower, "w") as terminal:
        tty.setraw(follower)  # line ends stay as they are
        monkeypatch.setattr(sys, "stderr", terminal)
        for columns in (80, 0):  # a terminal that does not know its size has 0
            fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            print_note(text)
            terminal.flush()
            data = b""
            while len(data.split()) < len(f"viva: note: {text}".split()) or not data.endswith(b"\n"):
                data += os.read(leader, 4096)  # what is written may come in pieces
            lines = data.decode().splitlines()
            assert len(lines) > 2
            assert max(map(len, lines)) <= 80
            assert " ".join(line.strip() for line in lines) == f"viva: note: {text}"


def test_lines_of_a_new_suite_fit_into_88_columns_and_what_its_check_prints_into_80(tmp_path: Path) -> None:
    assert viva("suite", "init", cwd=tmp_path).returncode == 0
    for name in ("suite.yaml", "metrics.py"):
        lines = (tmp_path / "suite" / name).read_text().splitlines()
        assert max(map(len, lines)) <= 88
    printed = viva("suite", "check", "suite/suite.yaml", cwd=tmp_path).stdout
    assert "depending on yeasayer" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80


@case_table(
    "words, problem",
    [
        (f"{_INTERVIEW} --durability", "option '--durability' requires an argument"),
        (f"{_INTERVIEW} --durability --json", "option '--durability' requires an argument, found the option '--json'"),
        ("resume run --durability --retry-failed",
         "option '--durability' requires an argument, found the option '--retry-failed'"),
        ("sweep grid.yaml --out --dry-run", "option '--out' requires an argument, found the option '--dry-run'"),
    ],
)  # fmt: skip
def test_an_option_without_its_value_is_named(words: str, problem: str) -> None:
    done = viva(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"viva: error: {problem}")


def test_a_data_file_of_viva_is_named_if_it_is_looked_for_outside_of_a_checkout(tmp_path: Path) -> None:
    name = "scenarios/kieval/items/science.jsonl"
    done = viva(*_INTERVIEW.replace("items.jsonl", name).split(), "--candidate", "simulated:c", cwd=tmp_path)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert f"{name}: cannot be read: No such file or directory; viva comes with " in said
    assert Path(said.partition("viva comes with ")[2]).is_file()
