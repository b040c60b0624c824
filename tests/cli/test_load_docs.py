"""docs/load.md: its files and its first command do what it says, and each option that it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import typer
from viva_process import ended, started

from viva.cli.main import app

_TEXT = (Path(__file__).parents[2] / "docs" / "load.md").read_text()
_BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```$", _TEXT, re.MULTILINE | re.DOTALL)


def test_the_first_test_of_the_page_finds_the_judge_that_tires(tmp_path: Path) -> None:
    for kind, text in _BLOCKS:
        if kind == "python":
            (tmp_path / text.split()[1]).write_text(text)
    command = next(text for kind, text in _BLOCKS if kind == "sh" and "--rates 10,40,160" in text)
    made, asked = command.split("\n", 1)
    assert made == "python questions.py > requests.jsonl"
    with (tmp_path / "requests.jsonl").open("w") as lines:
        subprocess.run([sys.executable, "questions.py"], cwd=tmp_path, stdout=lines, check=True)
    # Twenty of its sixty requests, at two rates, take some seconds instead of half a minute.
    words = asked.replace("\\\n", " ").replace("10,40,160", "30,160").replace("--requests 60", "--requests 20")
    options = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", words)][1:]
    assert options[:2] == ["bench", "judge"]
    code, printed, said = ended(started(*options, "--limit", "20", "--json", cwd=tmp_path))
    assert code == 3, said
    record = orjson.loads(printed)
    flagged = {judge["judge"]: [step["judgement"]["flagged"] for step in judge["steps"]] for judge in record["judges"]}
    assert flagged["Steady"] == [False, False]
    assert flagged["Tiring"][1]
    assert os.path.getsize(tmp_path / "two.html") > 10_000


def test_every_option_of_the_page_exists() -> None:
    group = typer.main.get_command(app).commands["bench"].commands["judge"]  # type: ignore[attr-defined]
    known = {name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)}
    others = "".join(text for kind, text in _BLOCKS if kind == "sh" and "viva run" in text).split("viva bench")[0]
    option = r"(?<![\w-])--[a-z][a-z-]+"
    named = set(re.findall(option, _TEXT)) - set(re.findall(option, others))
    assert named <= known, named - known
    assert {"--rates", "--slo", "--resume", "--baseline"} <= named
