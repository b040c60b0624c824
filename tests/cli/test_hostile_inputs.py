"""Packs, tasks, suites and datasets by somebody else: nothing in them runs, and nothing is written elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml
from forked_viva import forked_viva
from small_dialogs import TOOLS

_ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
_PACK = Path(__file__).parents[2] / "scenarios" / "kieval" / "prompts" / "kieval.yaml"
_MODELS = ["--interactor", "simulated:i", "--evaluator", "simulated:e"]
_KIEVAL = ["run", "kieval", "--candidate", "simulated:c", *_MODELS, "-n", "6", "--rounds", "1"]
# What PyYAML's unsafe loaders would make of a tag.
_TAGS = [
    "!!python/object/apply:os.system ['touch MARK']",
    "!!python/object/new:subprocess.Popen [[touch, MARK]]",
]
_NAMES = [
    "../../../escaped", "/tmp/escaped-item", "a/../../escaped", "..", "~/escaped", "c:\\escaped", "x\ny", "x" * 300,
    "-rf", "$(touch MARK)", "`touch MARK`", "{x.__class__}", "%2e%2e%2fescaped",
]  # fmt: skip


def _hostile(work: Path, mark: Path) -> list[list[str]]:
    """Commands, each with a file that would run something if it could."""
    pack = _PACK.read_text()
    commands: list[list[str]] = []
    for number, tag in enumerate(tag.replace("MARK", str(mark)) for tag in _TAGS):
        written = {
            "pack": (pack + f"\nmore: {tag}\n", [*_KIEVAL, "--dataset", str(_ITEMS), "--pack"]),
            "tasks": (
                f"- id: {tag}\n",
                ["run", "functionchat", "--mode", "user", "--candidate", "simulated:c", "--data"],
            ),
            "suite": (f"name: {tag}\n", ["suite", "check"]),
            "sweep": (f"candidates: {tag}\n", ["sweep"]),
            "settings": (f"candidate: {tag}\n", ["run", "kieval", "--config"]),
            "project": (f"title: {tag}\n", ["grade", "check"]),
        }
        for name, (text, words) in written.items():
            path = work / f"{name}{number}.yaml"
            if name == "project":
                path = work / f"project{number}" / "project.yaml"
                path.parent.mkdir()
            path.write_text(text)
            commands.append([*words, str(path.parent if name == "project" else path)])
    for number, field in enumerate(["{question.__class__}", "{question!r}", "{question:>9}", "{0}", "{question[0]}"]):
        broken = yaml.safe_load(pack)
        section = next(value for value in broken.values() if isinstance(value, dict))
        section[next(iter(section))] = field
        (work / f"broken{number}.yaml").write_text(yaml.safe_dump(broken))
        commands.append([*_KIEVAL, "--dataset", str(_ITEMS), "--pack", str(work / f"broken{number}.yaml")])
    for number, place in enumerate(["builtins:eval", "os:system", "subprocess:Popen", "antigravity:fly"]):
        task = {
            "id": "t",
            "says": ["Go."],
            "tools": [TOOLS["add_note"]],
            "python": place,
            "forbidden": [{"name": "add_note"}],
        }
        (work / f"tool{number}.jsonl").write_text(json.dumps(task))
        commands.append(
            ["run", "functionchat", "--mode", "user", "--candidate", "simulated:c", "--data", f"tool{number}.jsonl"]
        )
    return commands


def _items(mark: Path) -> str:
    lines = []
    for number, line in enumerate(_ITEMS.read_text().splitlines()[: len(_NAMES)]):
        item: dict[str, Any] = json.loads(line)
        name = _NAMES[number].replace("MARK", str(mark))
        lines.append(json.dumps(item | {"id": name, "subject": name, "question": f"{name} {item['question']}"}))
    return "\n".join(lines) + "\n"


def test_what_others_wrote_runs_nothing_and_writes_nowhere_else(tmp_path: Path) -> None:
    work, home, mark = tmp_path / "far" / "below" / "work", tmp_path / "home", tmp_path / "mark"
    work.mkdir(parents=True)
    home.mkdir()
    environment = dict(os.environ) | dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"), str(home))
    before = set(tmp_path.iterdir())
    with forked_viva(tmp_path / "own", environment, work) as viva:
        for words in _hostile(work, mark):
            code, screen = viva.run(*words)
            said = screen.with_suffix(".err").read_text()
            assert (code, "Traceback" in said) == (2, False), (words, said)
        made = set(work.iterdir())
        (work / "items.jsonl").write_text(_items(mark))
        steps = [
            [*_KIEVAL, "--dataset", "items.jsonl", "-n", str(len(_NAMES)), "--out", "run"],
            ["report", "run", "--html", "report.html", "--csv", "report.csv"],
            ["view", "run", "--export", "pages"],
            ["show", "run", "--conversation", "1"],
            ["grade", "queue", "run", "--out", "queue"],
            ["judge", "certify", "run", "--select", "3", "--out", "next.csv"],
            [
                "validate",
                "--dataset",
                "items.jsonl",
                "--model",
                "simulated:v",
                "--out",
                "ids.txt",
                "--run",
                "validated",
            ],
            ["probe", "--dataset", "items.jsonl", "--candidate", "simulated:p", "--shots", "0", "--out", "probe"],
        ]
        for words in steps:
            code, screen = viva.run(*words)
            assert code == 0, (words, screen.with_suffix(".err").read_text())
        written, started = viva.audited()
    assert {path.name for path in made} & {"runs"} == set(), "refused files make no run"
    assert not mark.exists()
    assert [line for line in started if "touch" in line] == []
    within = {path for path in written if path.is_relative_to(work) or path.is_relative_to(home)}
    assert len(within) > 30
    own = {path for path in written - within if not path.is_relative_to(tmp_path / "own")}
    assert own <= {Path("/dev/null"), Path("/dev/tty")}
    assert set(tmp_path.iterdir()) - before == {tmp_path / "own"}
    assert set((tmp_path / "far").iterdir()) == {tmp_path / "far" / "below"}
    assert not any("escaped" in path.name and not path.is_relative_to(work) for path in Path("/tmp").glob("escaped*"))
