"""What the command says of itself: its version, its commands, and for each what it needs, in 80 columns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import pytest
from case_tables import case_table
from command import viva
from typer.testing import CliRunner

from viva.cli.main import app
from viva.cli.options import option_name
from viva.scenarios.registry import get_scenario


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
    assert sections["More"] == ["resume", "probe", "score", "list"]
    assert not re.search(r"\w\.\.\.$", said, re.MULTILINE)  # summaries stand there whole


@case_table("command", ["sweep", "lab run", "judge compare", "validate", "judge audit"])
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


def test_mistyped_commands_and_options_are_answered_with_what_was_meant() -> None:
    for words, meant in (("demoo", "demo"), ("report --htlm a", "--html"), ("run kieval --evalutor e", "--evaluator")):
        done = viva(*words.split())
        assert done.returncode == 2
        assert re.search(rf"(Did you mean|Possible options:).*{meant}", done.stderr), done.stderr


@case_table("command", [[], ["run"], ["suite"], ["grade"], ["grade", "bank"], ["judge"], ["sweep"],
                                     ["data"], ["lab"]], ids=" ".join)  # fmt: skip
def test_no_line_of_help_is_cut(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"], terminal_width=80)
    assert done.exit_code == 0
    assert "\n  " in done.stdout
    assert not re.search(r"\w(\.\.\.|…)$", done.stdout, re.MULTILINE)


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
