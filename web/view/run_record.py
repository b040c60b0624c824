"""Facts from a run's manifest for its page, as bounded texts: data, models, settings, prices, and the command.

A manifest may be anybody's: large, deeply nested, of wrong types. What cannot be read is a sentence on the page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_settings
from viva.orchestration.run_command import different_settings, run_command
from viva.reports.page import TIER_NAMES
from viva.scenarios.fitness import FITNESS_FILE, fitness_warnings
from viva.scenarios.models import lineups, recorded_price
from viva.scenarios.registry import AnyScenario
from viva.scenarios.run_settings import RunSettings

from .live import clip_text

_MOST_BYTES = 16 << 20  # of a manifest that a page reads
_MOST_FITNESS_BYTES = 1 << 20
_LONGEST_COMMAND = 20_000  # characters
_LONGEST_NAME = 300
_MOST_LINES = 60  # models, and settings
_MOST_PARTS = 12  # versions, datasets, and reasons
# Objects in a manifest that are described by themselves.
_KNOWN = ("dataset", "against", "pack", "settings", "models", "prices", "files", "versions", "shard", "granted")
_PROGRAMS = {"python": "Python", "platform": "on"}
_DATA_NAMES = {"dataset": "Dataset", "against": "Second set"}


def manifest_part(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object in a manifest; {} if it has none."""
    part = manifest.get(name)
    return part if isinstance(part, dict) else {}


def name_of(value: Any) -> str:
    """Return a name in a manifest, "" if it is no text."""
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


def json_text(value: Any) -> str:
    """Return a part of a manifest as JSON; one that is nested too deeply to be written is as good as none."""
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:
        return "{}"


# Settings that change which items are run, when, or by whom they are started, but no conversation about an item.
_OF_RUNS_ALONE = {
    *("seed", "concurrency", "max_tokens_total", "max_calls", "max_cost", "max_seconds", "patience", "durability"),
    *(
        "n",
        "ids",
        "in_order",
        "shuffled",
        "skip_bad_items",
        "qualify",
        "repeats",
        "strict",
        "wave",
        "until",
        "adaptive",
    ),
}


def likeness_of(manifest: dict[str, Any], settings: dict[str, Any], skipped: Collection[str]) -> dict[str, Any]:
    """Return what two runs must have in common for their scores to be compared item by item.

    `skipped` are the settings that name the compared models and the data; the data's digest stands for its name.
    """
    common = {name: value for name, value in settings.items() if name not in _OF_RUNS_ALONE and name not in skipped}
    models, pack = manifest_part(manifest, "models"), manifest_part(manifest, "pack")
    common |= {role: model for role, model in models.items() if isinstance(model, str) and role not in skipped}
    return common | ({"pack": f"{pack.get('name')} {pack.get('digest')}"} if pack else {})


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A model of a role; `label` is "" unless several are compared, `version` what was recorded of its files."""

    role: str
    label: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class SettingLine:
    """A setting and its default, "" if it is unknown."""

    name: str
    value: str
    default: str


@dataclass(slots=True)
class RunRecord:
    """Facts from a run's manifest, as texts. `problem` says why some are missing; `hidden` counts those left out.

    `differing`: the settings are those that differ from their defaults; otherwise they are all recorded ones. `prices`
    are for a million tokens of a role in conversations of a candidate, None if unknown.
    """

    problem: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    models: list[ModelLine] = field(default_factory=list)
    settings: list[SettingLine] = field(default_factory=list)
    imported: bool = False
    differing: bool = False
    hidden_models: int = 0
    hidden_settings: int = 0
    command: str = ""
    warnings: list[str] = field(default_factory=list)
    model_names: dict[str, Any] = field(default_factory=dict)
    lineups: dict[str, dict[str, str]] = field(default_factory=dict)
    prices: dict[str, list[float] | None] = field(default_factory=dict)

    def model_of(self, role: str, candidate: str) -> str:
        """Return the name of the model that had a role in conversations of a candidate; "" if unknown."""
        named = self.model_names.get(role)
        if isinstance(named, dict):
            named = named.get(self.lineups.get(candidate, {}).get(role, candidate))
        return named if isinstance(named, str) else ""


def record_state(path: Path) -> tuple[Any, ...]:
    """Return a value that changes when the record of a run has to be read again."""
    state: list[Any] = []
    for name in ("manifest.json", FITNESS_FILE):
        try:
            status = (path / name).stat()
            state.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            state.append(None)
    return tuple(state)


def read_record(path: Path) -> RunRecord:
    """Return the record of the run in this folder; its field `problem` says what could not be read."""
    record = RunRecord()
    try:
        size = (path / "manifest.json").stat().st_size
        if size > _MOST_BYTES:
            record.problem = f"Its manifest is too large to be shown here: {size / 1e6:,.0f} MB."
            return record
        folder = RunFolder.open(path)
    except Exception as error:
        record.problem = f"Its manifest cannot be read: {clip_text(error)}"
        return record
    scenario, settings = None, None
    try:
        scenario, settings = recorded_settings(folder)
    except Exception as error:  # the scenario is not installed, or another version recorded the run
        record.problem = f"Its scenario or its settings are not known here: {clip_text(error)}"
    manifest = folder.manifest
    record.imported = manifest.get("imported") is not None
    record.facts = [(clip_text(term, 60), text) for term, text in _facts(manifest, scenario) if text]
    models = list(_models(manifest))
    record.models, record.hidden_models = models[:_MOST_LINES], max(0, len(models) - _MOST_LINES)
    lines = list(_all_settings(manifest) if settings is None else _settings(scenario, settings))
    record.settings, record.hidden_settings = lines[:_MOST_LINES], max(0, len(lines) - _MOST_LINES)
    record.model_names = manifest_part(manifest, "models")
    if scenario is not None and settings is not None:
        record.differing = True
        _add_known(record, scenario, settings, manifest)
    try:
        file = path / FITNESS_FILE
        if file.is_file() and file.stat().st_size <= _MOST_FITNESS_BYTES:
            record.warnings = [clip_text(warning) for warning in fitness_warnings(path)[:_MOST_PARTS]]
    except Exception as error:
        record.warnings = [clip_text(error)]
    return record


def _add_known(record: RunRecord, scenario: AnyScenario, settings: RunSettings, manifest: dict[str, Any]) -> None:
    """Add what only the scenario tells: the command, the models of each conversation, and their prices."""
    try:
        text = str(run_command(scenario, settings, manifest))
        if len(text) > _LONGEST_COMMAND:
            text = f"# The command has {len(text):,} characters: `viva show` of the run's folder prints it."
        record.command = text
        record.lineups = lineups(scenario.roles_of(settings), record.model_names)
        record.prices = {model: recorded_price(manifest, model) for model in manifest["prices"]}
    except Exception as error:  # such as a model's name that cannot be parsed
        record.problem = record.problem or f"Not everything about it is known: {clip_text(error)}"


def _facts(manifest: Mapping[str, Any], scenario: AnyScenario | None) -> Iterator[tuple[str, str]]:
    """Yield terms and texts; an empty text says nothing."""
    name = clip_text(name_of(manifest.get("scenario")))
    code = name_of(manifest_part(manifest, "code").get("file"))
    summary = "" if scenario is None else scenario.summary.split("\n", 1)[0]
    yield "Scenario", ": ".join(part for part in (name, summary.rstrip(".")) if part) + (f" ({code})" if code else "")
    imported = manifest_part(manifest, "imported")
    yield "Imported from", value_text(imported.get("from")) if imported else ""
    source = manifest_part(manifest, "settings").get("dataset" if scenario is None else scenario.data)
    for part, term in _DATA_NAMES.items():
        yield term, _data_text(manifest_part(manifest, part), source if part == "dataset" else None)
    others = [key for key, value in manifest.items() if isinstance(value, dict) and "digest" in value]
    for key in [key for key in others if key not in _KNOWN][:_MOST_PARTS]:
        yield key.replace("_", " ").capitalize(), _data_text(manifest[key], None)
    pack = manifest_part(manifest, "pack")
    yield "Prompt pack", _version_text(pack)
    seed = manifest.get("seed")
    yield "Seed", value_text(seed) if seed is not None else ""
    shard = manifest_part(manifest, "shard")
    yield "Shard", f"{value_text(shard.get('index'))} of {value_text(shard.get('of'))}" if shard else ""
    tier = name_of(manifest.get("tier"))
    reasons = manifest.get("not_identical")
    yield "Reproducibility", TIER_NAMES.get(tier, clip_text(tier))
    why = [clip_text(reason) for reason in reasons[:_MOST_PARTS]] if isinstance(reasons, list) else []
    yield "Not identical", "; ".join(why)
    versions = manifest_part(manifest, "versions")
    yield (
        "Versions",
        ", ".join(
            f"{_PROGRAMS.get(name, clip_text(name, 40))} {value_text(version, 80)}"
            for name, version in list(versions.items())[:_MOST_PARTS]
        ),
    )


def _data_text(part: Mapping[str, Any], source: Any) -> str:
    """Return a dataset as its name, digest, counts, form and source."""
    if not part:
        return ""
    texts = [_version_text(part)]
    chosen, items = part.get("chosen"), part.get("items")
    if isinstance(chosen, int):
        of_all = f" of {items:,}" if isinstance(items, int) and items != chosen else ""
        texts.append(f"{chosen:,}{of_all} item{'s' * (chosen != 1)}")
    texts += [
        f"{part[name]:,} {name}" for name in ("skipped", "repeats") if isinstance(part.get(name), int) and part[name]
    ]
    texts += [f"form {value_text(part['form'], 80)}"] if isinstance(part.get("form"), str) else []
    texts += [f"from {value_text(source)}"] if isinstance(source, str) and source != part.get("name") else []
    return ", ".join(text for text in texts if text)


def _version_text(part: Mapping[str, Any]) -> str:
    """Return name, version and digest of a part of the manifest."""
    if not part:
        return ""
    name, version, digest = (part.get(key) for key in ("name", "version", "digest"))
    texts = [value_text(name, 120) if name else "", f"version {value_text(version, 40)}" if version else ""]
    return " ".join(text for text in texts if text) + (f" ({value_text(digest, 80)})" if digest else "")


def _models(manifest: Mapping[str, Any]) -> Iterator[ModelLine]:
    files, attention = manifest_part(manifest, "files"), manifest_part(manifest, "flash_attention")

    def line(role: str, label: str, model: Any) -> ModelLine:
        name = model if isinstance(model, str) else ""
        version = value_text(files[name], 160) if name in files else ""
        if name in attention:
            version += f"{', ' if version else ''}flash attention {value_text(attention[name], 10)}"
        return ModelLine(clip_text(role, 80), clip_text(label, 120), value_text(model), version)

    for role, named in manifest_part(manifest, "models").items():
        if isinstance(named, dict):
            yield from (line(role, label, model) for label, model in named.items())
        elif named is not None:
            yield line(role, "", named)


def _settings(scenario: AnyScenario | None, settings: RunSettings) -> Iterator[SettingLine]:
    """Yield the settings that differ from their defaults, except models, dataset and seed."""
    assert scenario is not None
    elsewhere = {"seed", scenario.data, *(role.setting for role in scenario.roles)}
    for name, value in different_settings(settings).items():
        if name not in elsewhere:
            setting = type(settings).model_fields[name]
            default = "" if setting.is_required() else value_text(setting.get_default(call_default_factory=True))
            yield SettingLine(name, value_text(value), default)


def _all_settings(manifest: Mapping[str, Any]) -> Iterator[SettingLine]:
    for name, value in manifest_part(manifest, "settings").items():
        yield SettingLine(clip_text(name, 80), value_text(value), "")


def value_text(value: Any, limit: int = 300) -> str:
    """Return a value of a manifest as a line of at most `limit` characters; objects are not written out."""
    if isinstance(value, str):
        return clip_text(value, limit) if value else "“”"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, dict):
        return f"an object of {len(value):,}"
    if isinstance(value, list | tuple):
        texts = [
            f"a list of {len(entry):,}" if isinstance(entry, list) else value_text(entry, 120) for entry in value[:20]
        ]
        more = f", … ({len(value):,} in all)" if len(value) > len(texts) else ""
        return clip_text(", ".join(texts), limit) + more if texts else "none"
    return clip_text(value, limit)
