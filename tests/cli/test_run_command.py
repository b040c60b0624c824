"""The command reconstructed from a run's settings: the command line parses it to equal settings, for every scenario."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import orjson
import pytest
import typer
from case_tables import case_table
from earlier_folders import earlier_folder
from pydantic import ValidationError
from small_suites import write_suite

import viva
from viva.cli.run import _scenario_command
from viva.engine.errors import ConfigurationError, VivaError
from viva.orchestration import launch
from viva.orchestration.run_command import RunCommand, different_settings, recorded_command, run_command, shell_word
from viva.scenarios.registry import AnyScenario, installed_scenarios
from viva.scenarios.run_settings import RunSettings

_MODELS = ['simulated:a?knowledge=0.5&label=it\'s a "$HOME" `b`', "openai:m?base_url=http://h:1/v1&key_env=KEY"]
_TEXTS = ["", "-x", "--seed=3", "two words", "a'b\"c$(d)`e`\\", "line\nbreak\x1b[201~\u202e", "模型"]
# What some scenarios need besides their required settings: settings that exclude each other are tried apart.
_NEEDED: dict[str, list[dict[str, Any]]] = {
    "functionchat": [{"judge": _MODELS[0]}, {"mode": "user", "interactor": _MODELS[1]}],
    "fusion": [{"assistant": ["bleu"], "plan": "plan.yaml"}, {"assistant": ["bleu", "meteor"], "mode": "noplan"}],
    "flexeval": [{"candidate": _MODELS}],
}
_UNTRIED = {"python_tools"}  # a permission, which no manifest has
_NUMBERS: list[Any] = [3, 1, 0.1, 1e-7, 12345678901, -5, 1.5]


class _ParsedError(Exception):
    """Carries the settings that the command line made, in place of a run."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_run(scenario: Any, settings: RunSettings, path: Path) -> None:
        raise _ParsedError(settings)

    monkeypatch.setattr(launch, "new_run", new_run)


def _command_of(name: str) -> Any:
    app = typer.Typer(add_completion=False)
    app.command(name)(_scenario_command(name))
    return typer.main.get_command(app)


def _parsed(command: Any, words: list[str]) -> RunSettings:
    with pytest.raises(_ParsedError) as raised:
        command.main(words, standalone_mode=False)
    return raised.value.settings


def _base(scenario: AnyScenario) -> dict[str, Any]:
    """The required settings; roles get models."""
    fields, roles = scenario.settings.model_fields, {role.setting: role for role in scenario.roles}
    base: dict[str, Any] = {}
    for name, setting in fields.items():
        if setting.is_required():
            model = _MODELS[0]
            listed = get_origin(setting.annotation) is list
            base[name] = (
                ([*_MODELS] if listed else model) if name in roles else scenario.settings.examples.get(name, "x")
            )
    return base


def _values(name: str, annotation: Any) -> Iterator[Any]:
    """Values worth trying for a setting: each choice, both switches, numbers, and texts that a shell would change."""
    text = str(annotation)
    choices = [choice for part in _literals(annotation) for choice in get_args(part)]
    if "list" in text:
        yield from ([choices, choices[:1]] if choices else [_TEXTS[1:], ["bleu", "rouge-l"], _MODELS[:1], _MODELS])
        yield []
    elif choices:
        yield from choices
    elif "bool" in text:
        yield from (True, False)
    elif "int" in text or "float" in text:
        yield from _NUMBERS
    else:
        yield from (*_TEXTS, "half_width=2.5", "baseline:a b", "learn")
    if "None" in text or "Optional" in text:
        yield None


def _literals(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield annotation
    for part in get_args(annotation):
        yield from _literals(part)


def _variants(scenario: AnyScenario) -> Iterator[RunSettings]:
    """Settings that together have every valid value of `_values`, many of them at once."""
    for needed in _NEEDED.get(scenario.name, [{}]):
        yield from _variants_of(scenario, _base(scenario) | needed)


def _variants_of(scenario: AnyScenario, base: dict[str, Any]) -> Iterator[RunSettings]:
    left = [(name, value) for name, setting in scenario.settings.model_fields.items()
            for value in _values(name, setting.annotation)]  # fmt: skip
    yield scenario.settings.model_validate(base)
    while left:
        chosen, later, made = dict(base), [], None
        used: set[str] = set()
        for name, value in left:
            if name in used:
                later.append((name, value))
                continue
            try:
                made = scenario.settings.model_validate(chosen | {name: value})
            except (ValidationError, VivaError):
                if used:  # it may be valid without the others
                    later.append((name, value))
                continue
            chosen[name] = value
            used.add(name)
        if made is not None:
            yield scenario.settings.model_validate(chosen)
        left = later


@pytest.mark.parametrize("scenario", installed_scenarios(), ids=lambda scenario: scenario.name)
def test_the_command_is_parsed_to_equal_settings(
    scenario: AnyScenario, caught: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_suite(
        tmp_path, [[("user", "Hello?")]], metrics=[{"function": "words"}], repeats=3, seed=5
    )  # its values are defaults of `flexeval`
    command, changed = _command_of(scenario.name), set[str]()
    for settings in _variants(scenario):
        made = run_command(scenario, settings, {"scenario": scenario.name})
        assert made.words[:3] == ["viva", "run", scenario.name]
        parsed = _parsed(command, made.words[3:])
        different = different_settings(settings)
        changed |= different.keys()
        # What no option says, the remarks say.
        unsaid = {name for name, value in different.items() if value is None or value == []}
        assert all(any(remark.startswith(f"{name} is ") for remark in made.remarks) for name in unsaid)
        told, kept = parsed.model_dump(mode="json"), settings.model_dump(mode="json")
        assert {name: told[name] for name in told if name not in unsaid} == {
            name: kept[name] for name in kept if name not in unsaid
        }
    never = scenario.settings.model_fields.keys() - changed
    assert never <= _UNTRIED


def test_a_shell_reads_the_words_that_were_quoted() -> None:
    words = [*_TEXTS, *_MODELS, "tab\tand 'quotes' \\ \x7f"]
    command = RunCommand([["printf", r"%s\0"], *([word] for word in words)], ["a remark"])
    text = str(command)
    assert "\x1b" not in text, "a terminal obeys no character of it"
    assert text.startswith("# a remark\n")
    said = subprocess.run(["bash", "-c", text], capture_output=True, check=True).stdout.decode().split("\0")[:-1]
    assert said == words
    assert shell_word("plain") == "plain"


@case_table(
    "manifest, values, remark",
    [
        ({"imported": {"from": "inspect\n# rm"}}, {}, "imported from inspect rm: no command of viva made this run"),
        ({"shard": {"index": 2, "of": 8, "attempt": "x"}}, {}, "this run is shard 2 of 8"),
        ({"shard": [1]}, {}, ""),
        ({"added": [{"n": 3, "tasks": 3}]}, {}, "conversations were added while it ran"),
        (
            {"granted": {"code": ["tools"], "seal": ""}},
            {},
            "permitted to run Python code (tools): if its files name it, add --py",
        ),
        ({"granted": "yes"}, {}, ""),
        ({}, {"candidate": ["object:mine"]}, "candidate: object:mine is an object of a Python program"),
        ({}, {"max_cost": 2.5}, ""),
        ({}, {"method": []}, "method is [], which no option says: put `method: []` into a file for --config"),
    ],
)
def test_what_no_command_says_is_in_a_remark(manifest: dict[str, Any], values: dict[str, Any], remark: str) -> None:
    scenario = next(one for one in installed_scenarios() if one.name == "probe")
    settings = scenario.settings.model_construct(**{"candidate": _MODELS, "dataset": "d", **values})
    command = run_command(scenario, settings, manifest)
    assert [remark in said for said in command.remarks] == [True] * bool(remark)
    assert (str(command).count("\n# ") + str(command).startswith("# ")) == len(command.remarks)
    assert bool(command.parts) == ("imported" not in manifest)


def test_the_command_of_a_recorded_run_is_that_of_its_settings(caught: None, tmp_path: Path) -> None:
    @viva.scenario(compare="pupil")
    async def talk(conversation: viva.Conversation, task: str) -> float:
        """One question."""
        return 1.0

    earlier_folder("contract", tmp_path)
    file = tmp_path / "part" / "manifest.json"
    manifest = orjson.loads(file.read_bytes())
    made = recorded_command(manifest, file)
    name = made.words[2]
    assert name == manifest["scenario"]
    parsed = _parsed(_command_of(name), made.words[3:]).model_dump(mode="json")
    assert {setting: parsed[setting] for setting in manifest["settings"]} == manifest["settings"]
    own = run_command(talk, talk.settings.model_validate({"pupil": ["simulated:x"], "tasks": "t.jsonl"}), {})
    assert own.words == ["viva", "run", "talk", "--pupil", "simulated:x", "--tasks", "t.jsonl"]
    assert "made in Python without a file" in own.remarks[0]
    code = {"code": {"file": "/a b/mine.py"}}
    of_file = run_command(talk, talk.settings.model_validate({"pupil": ["simulated:x"], "tasks": "t.jsonl"}), code)
    assert str(of_file).startswith("viva run '/a b/mine.py#talk' --pupil")
    # A key that somebody wrote into a manifest is refused, and no message has it.
    key = "sk-planted-0123456789"
    edited = str(file.read_text()).replace("simulated:", f"openai:x?api_key={key}&label=")
    with pytest.raises(ConfigurationError) as refused:
        recorded_command(orjson.loads(edited), file)
    assert key not in str(refused.value)


@pytest.mark.parametrize("sign", [*";&|<>()$`\\\"'*?[]{}~!^#\n\x1b"])
def test_what_a_manifest_says_in_remarks_has_no_signs_of_a_shell(sign: str) -> None:
    """An interactive zsh takes comment lines for commands."""
    scenario = next(each for each in installed_scenarios() if each.name == "kieval")
    settings = scenario.settings.model_validate(_base(scenario))
    for manifest in ({"imported": {"from": f"x{sign}y"}}, {"shard": {"index": f"x{sign}y", "of": 3}}):
        [remark] = [text for text in run_command(scenario, settings, manifest).remarks if "x" in text]
        assert "x y" in remark


@pytest.mark.parametrize("model", ["simulated:m", "python:/tmp/theirs.py#model"])
def test_a_command_never_names_code_that_this_user_has_not_permitted(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever pastes a command that names code permits that code."""
    scenario = next(each for each in installed_scenarios() if each.name == "kieval")
    settings = scenario.settings.model_validate(_base(scenario) | {"candidate": [model]})
    monkeypatch.setattr("viva.orchestration.manifest.read_manifest_settings", lambda *_: (scenario, settings))
    command = recorded_command({"granted": {"code": ["/tmp/theirs.py"], "seal": "0"}}, tmp_path)
    assert bool(command.words) == ("python:" not in model)
    assert ("you have not permitted" in str(command)) == ("python:" in model)
