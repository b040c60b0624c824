"""The command line that makes a run, from its recorded settings.

A manifest has the settings and not the command, because runs are also started from Python, files and sweeps. The
command has the settings that differ from their defaults, and parses to equal settings. Settings hold no keys: a model's
name that contains one is refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from viva.scenarios.registry import AnyScenario
    from viva.scenarios.run_settings import RunSettings

# Options whose name differs from that of their setting.
_OPTION_NAMES = {"patience": "--wait-for-endpoint", "by": "--group-by"}
_MOST_NAMED = 5
_PLAIN = frozenset(" _-+=./:,@%")  # characters of remarks besides letters and digits
_WIDTH = 76  # characters of a line, unless one option is longer


def option_name(name: str) -> str:
    """Return the option of a setting: `max_cost` is `--max-cost`, `n` is `-n`."""
    return _OPTION_NAMES.get(name) or (f"-{name}" if len(name) == 1 else "--" + name.replace("_", "-"))


def is_argument(setting: FieldInfo) -> bool:
    """Return True if a setting is the command's argument, without an option's name."""
    from viva.scenarios.run_settings import ARGUMENT

    return setting.json_schema_extra == ARGUMENT


def shell_word(text: str) -> str:
    """Quote a word for a shell; characters that a terminal does not print become escapes in `$'…'`."""
    if text.isprintable():
        return shlex.quote(text)
    letters = (
        ("\\" + letter if letter in "\\'" else letter)
        if letter.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "replace"))
        for letter in text
    )
    return f"$'{''.join(letters)}'"


def different_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, as plain data."""
    fields = type(settings).model_fields
    values = settings.model_dump(mode="json")
    return {
        name: values[name]
        for name, setting in fields.items()
        if name in values  # a permission is not recorded
        and (setting.is_required() or values[name] != setting.get_default(call_default_factory=True))
    }


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command as options with their values, and remarks on what it does not say; without `parts`, there is none."""

    parts: list[list[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """The words of the command, unquoted."""
        return [word for part in self.parts for word in part]

    def __str__(self) -> str:
        """Return the remarks as comment lines, then the command in lines of moderate length."""
        lines: list[str] = []
        for part in self.parts:
            text = " ".join(map(shell_word, part))
            if lines and len(lines[-1]) + len(text) < _WIDTH:
                lines[-1] += f" {text}"
            else:
                lines.append(f"  {text}" if lines else text)
        return "\n".join([*(f"# {remark}" for remark in self.remarks), *([" \\\n".join(lines)] if lines else [])])


def run_command(scenario: AnyScenario, settings: RunSettings, manifest: Mapping[str, Any]) -> RunCommand:
    """Return the command that makes a run with these settings; `manifest` is that of the recorded run.

    Raises:
        ConfigurationError: A model's name contains a key.
    """
    from viva.engine.backends.model_name import refuse_credentials

    from .manifest import code_file

    if (imported := manifest.get("imported")) is not None:
        source = imported.get("from") if isinstance(imported, Mapping) else None
        return RunCommand(remarks=[f"imported from {_one_line(source)}: no command of viva made this run"])
    file = code_file(manifest)
    name = scenario.name if file is None else f"{file}#{scenario.name}"
    different = different_settings(settings)
    for role in scenario.roles:  # somebody may have written a key into the manifest
        models = different.get(role.setting) or []
        for model in models if isinstance(models, list) else [models]:
            refuse_credentials(model)
    parts, arguments, remarks = [["viva", "run", name]], list[str](), list(_remarks(scenario, different, manifest))
    values = settings.model_dump(mode="json", include={*settings.defaults_in_data})
    chosen = {name: value for name, value in values.items() if value not in (None, [])} | different
    for setting, value in chosen.items():
        if is_argument(type(settings).model_fields[setting]):
            arguments += map(str, value if isinstance(value, list) else [value])
        elif value is None or value == []:
            text = "null" if value is None else "[]"
            remarks.append(
                f"{setting} is {text}, which no option says: put `{setting}: {text}` into a file for --config"
            )
        elif isinstance(value, bool):
            option = option_name(setting)
            parts.append([option if value else f"--no-{option[2:]}"])
        else:
            entries = value if isinstance(value, list) else [value]
            parts += [[option_name(setting), _text(entry)] for entry in entries]
    if arguments:
        parts.append(["--", *arguments] if any(word.startswith("-") for word in arguments) else arguments)
    return RunCommand(parts, remarks)


def recorded_command(manifest: dict[str, Any], file: Path) -> RunCommand:
    """Return the command that makes a recorded run; `file` is the manifest's, for messages.

    Raises:
        ConfigurationError: The manifest is invalid, or its scenario is not available; the message says which.
    """
    from viva.engine.permissions import sealed_code

    from .manifest import code_file, read_manifest_settings

    scenario, settings = read_manifest_settings(manifest, file)
    command = run_command(scenario, settings, manifest)
    code = [word for word in command.words if word.startswith("python:")]
    if (code or code_file(manifest) is not None) and not sealed_code(manifest):
        # Whoever pastes a command that names code permits it.
        named = _one_line(code[0] if code else code_file(manifest))
        return RunCommand(remarks=[f"no command: it would run Python code that you have not permitted, {named}"])
    return command


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _remarks(scenario: AnyScenario, values: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the command line cannot say, and what happened to the run besides its command."""
    from viva.engine.backends.registry import OBJECT_KIND
    from viva.engine.imports import load_entry_points
    from viva.engine.permissions import PYTHON_TOOLS_OPTION, SEAL
    from viva.scenarios.registry import GROUP

    from .manifest import code_file

    if code_file(manifest) is None and scenario.name not in load_entry_points(GROUP):
        yield f"the scenario {scenario.name} was made in Python without a file: put it into FILE.py and name that"
    for setting, value in values.items():
        for model in value if isinstance(value, list) else [value]:
            if isinstance(model, str) and model.startswith(f"{OBJECT_KIND}:"):
                yield f"{setting}: {_one_line(model)} is an object of a Python program: name a model in its place"
    granted = manifest.get(SEAL)
    code = granted.get("code") if isinstance(granted, Mapping) else None
    others = [name for name in code if name != str(code_file(manifest))] if isinstance(code, list) else []
    if others:
        names = ", ".join(map(_one_line, others[:_MOST_NAMED]))
        yield f"it was permitted to run Python code ({names}): if its files name it, add {PYTHON_TOOLS_OPTION} NAME"
    if isinstance(shard := manifest.get("shard"), Mapping):
        number, total = (_one_line(shard.get(name)) for name in ("index", "of"))
        yield f"this run is shard {number} of {total}; the command runs the conversations of all shards"
    if manifest.get("added"):
        yield "conversations were added while it ran (viva control); the command runs those of its start"


def _one_line(value: Any) -> str:
    """Return a recorded value as one short line without signs that mean something to a shell.

    An interactive zsh does not know comments.
    """
    text = str(value)[:200]
    return " ".join("".join(letter if letter.isalnum() or letter in _PLAIN else " " for letter in text).split())
