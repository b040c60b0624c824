"""Scenarios of other packages: found by entry point, also as a class; one that cannot be used harms no other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import viva
from viva.cli.options import read_settings, settings_example
from viva.engine.imports import load_entry_points
from viva.scenarios.registry import get_scenario, installed_scenarios
from viva.sweeps.sweep_file import parts

MODULE = """
import viva

@viva.scenario(many="voice", judge="ear")
async def echo(conversation, word):
    return 1

class Lecture(viva.Scenario):
    name = "lecture"
    roles = (viva.Role("speaker", many=True),)
    settings = viva.RunSettings
    prepare = protocol = task = aggregate = lambda self, *arguments: None

class Nameless(viva.Scenario):
    pass
"""
POINTS = """[viva.scenarios]
echo = talking_viva:echo
lecture = talking_viva:Lecture
missing = talking_viva.nothing:echo
misnamed = talking_viva:echo
nameless = talking_viva:Nameless
no-scenario = talking_viva:viva
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    about = tmp_path / "talking_viva-1.dist-info"
    about.mkdir()
    (tmp_path / "talking_viva.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: talking-viva\nVersion: 1\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (load_entry_points, parts):
        cached.cache_clear()
    yield
    for cached in (load_entry_points, parts):
        cached.cache_clear()


@pytest.mark.usefixtures("package")
def test_one_that_cannot_be_used_says_why_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    said = {
        "missing": "ModuleNotFoundError: No module named 'talking_viva.nothing'",
        "misnamed": "the scenario 'misnamed' of the entry point 'talking_viva:echo': its name is 'echo'; give the",
        "nameless": "Can't instantiate abstract class Nameless",
        "no-scenario": "expected a viva.Scenario, found module",
    }
    for name, message in said.items():
        with pytest.raises(viva.ConfigurationError) as caught:
            get_scenario(name)
        assert message in str(caught.value)
    with caplog.at_level(logging.WARNING, "viva"):
        names = [which.name for which in installed_scenarios()]
    assert {"echo", "lecture", "kieval"} <= set(names)
    assert not said.keys() & set(names)
    assert len(caplog.records) == len(said)
    assert "echo" in parts()


@pytest.mark.usefixtures("package")
def test_a_command_line_is_made_from_whatever_a_scenario_calls_its_roles(tmp_path: Path) -> None:
    echo = get_scenario("echo")
    shown = settings_example("viva run echo", echo.settings, [role.name for role in echo.roles])
    for needed in ("--tasks tasks.jsonl", "--voice openai:gpt-4o", "--ear openai:gpt-4o"):
        assert needed in shown
    (tmp_path / "settings.yaml").write_text("voice: simulated:a\near: simulated:e\n")
    settings = read_settings(echo.settings, {}, tmp_path / "settings.yaml")
    assert settings.model_dump(include={"voice", "ear"}) == {"voice": ["simulated:a"], "ear": "simulated:e"}
