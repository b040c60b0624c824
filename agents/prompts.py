"""Prompt packs: templates of prompts, as YAML data that a user may replace.

A pack has a name, a version and sections of templates. `{placeholder}` marks a value to fill in; `{{` and `}}` are
literal braces. Filled-in values are never read as templates. Each protocol declares which templates it needs and which
placeholders each template may use, and a pack is checked against this declaration when it is loaded. A pack with `base:
NAME` inherits that pack's templates except for those that it defines itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from string import Formatter

import yaml

from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.imports import load_entry_points
from viva.engine.yaml_file import parse_yaml, read_text

_PACKS = "viva.packs"  # entry points: each has a pack's name, and the package whose folder `prompts` has its file
# template name "section.name" -> its allowed placeholders
Signature = Mapping[str, frozenset[str]]
_NO_PLACEHOLDERS: Signature = {}


class Template:
    """A compiled template: literal pieces and placeholders, joined at each rendering."""

    __slots__ = ("_constant", "_fields", "_pieces", "placeholders")

    def __init__(self, text: str) -> None:
        """Compile a template.

        Raises:
            ValueError: Braces are unbalanced, or a placeholder is not a plain name.
        """
        self._pieces: list[str] = []  # literals, with an empty text at each position in `_fields`
        self._fields: list[tuple[int, str]] = []
        for literal, name, spec, conversion in Formatter().parse(text):
            if name is not None and (spec or conversion or not name.isidentifier()):
                raise ValueError(f"'{{{name}}}' is not a plain placeholder (literal braces are written {{{{ and }}}})")
            self._pieces.append(literal)
            if name is not None:
                self._fields.append((len(self._pieces), name))
                self._pieces.append("")
        self.placeholders = frozenset(name for _, name in self._fields)
        # Without placeholders every conversation shares one string instead of rendering its own copy.
        self._constant = None if self._fields else "".join(self._pieces)

    def render(self, values: Mapping[str, str]) -> str:
        """Return the text with its placeholders filled in."""
        if self._constant is not None:
            return self._constant
        pieces = self._pieces.copy()
        for index, name in self._fields:
            pieces[index] = values[name]
        return "".join(pieces)


@dataclass(slots=True)
class PromptPack:
    """A checked pack. `digest` identifies `text` in manifests, which is the file's text merged with its `base`."""

    name: str
    version: str
    digest: str
    text: str
    templates: dict[str, Template]

    def render(self, template: str, **values: str) -> str:
        """Fill in the template called `section.name`."""
        return self.templates[template].render(values)

    def __contains__(self, template: str) -> bool:
        """Return True if the pack has this optional template."""
        return template in self.templates


def load_pack(source: str, signature: Signature, optional: Signature = _NO_PLACEHOLDERS) -> PromptPack:
    """Load a shipped pack by name, or a file, and check that it has all templates of `signature`.

    Raises:
        ConfigurationError: The pack cannot be read, lacks a template, has one that is neither in `signature` nor in
            `optional`, or uses an unknown placeholder.
    """
    path = _shipped_path(source) if is_shipped_pack(source) else Path(source)
    try:
        text = read_text(path, "a prompt pack (YAML)")
    except ConfigurationError as error:
        near = did_you_mean(source, load_entry_points(_PACKS), "shipped packs")
        raise ConfigurationError(f"prompt pack '{source}': {error}{near}") from None
    return read_pack(_merge_base(text, str(source)), str(source), signature, optional)


@dataclass(frozen=True, slots=True)
class PackTemplates:
    """Templates of a system's packs, required and optional, with the placeholders that each may use.

    `check`, if given, raises `ConfigurationError` for a pack that is invalid for another reason.
    """

    needed: Signature
    optional: Signature = field(default_factory=dict)
    check: Callable[[PromptPack], None] | None = None

    def open(self, source: str, recorded: str | None = None) -> PromptPack:
        """Load a pack by the name of a shipped one or by a file's path.

        `recorded` is the pack's text in the manifest of a resumed run. A shipped pack is read from `recorded`, because
        its text differs between versions of viva. A user's file is read as it is now, and the run compares both texts.
        """
        if recorded is not None and is_shipped_pack(source):
            return self.read(recorded, source)
        return self._check(load_pack(source, self.needed, self.optional))

    def read(self, text: str, source: str) -> PromptPack:
        """Read a pack from its text. `source` is its name in errors."""
        return self._check(read_pack(text, source, self.needed, self.optional))

    def _check(self, pack: PromptPack) -> PromptPack:
        if self.check is not None:
            self.check(pack)
        return pack


def is_shipped_pack(source: str) -> bool:
    """Return True if this is the name of a shipped pack, not a file's path."""
    return source in load_entry_points(_PACKS)


def shipped_packs() -> dict[str, str]:
    """Return the shipped packs by name, each with the comment at the beginning of its file."""
    descriptions = {}
    for name in load_entry_points(_PACKS):
        lines = takewhile(lambda line: line.startswith("#"), read_text(_shipped_path(name)).splitlines())
        descriptions[name] = " ".join(line.removeprefix("#").strip() for line in lines)
    return descriptions


def _merge_base(text: str, source: str) -> str:
    """Return a pack's text, merged with the templates of its `base`, if any.

    Raises:
        ConfigurationError: The base is no shipped pack.
    """
    data = parse_yaml(text, f"prompt pack {source}")
    if not isinstance(data, dict) or "base" not in data:
        return text
    base = data.pop("base")
    if not isinstance(base, str) or not is_shipped_pack(base):
        names = ", ".join(load_entry_points(_PACKS))
        raise ConfigurationError(f"prompt pack '{source}': base: found {base!r}, expected a shipped pack: {names}")
    merged = parse_yaml(read_text(_shipped_path(base)), f"prompt pack {base}")
    for section, content in data.items():
        mergeable = isinstance(content, dict) and isinstance(merged.get(section), dict)
        merged[section] = merged[section] | content if mergeable else content
    merged["name"] = data.get("name", Path(source).stem)
    return yaml.safe_dump(merged, allow_unicode=True, sort_keys=False, width=1_000_000)


def _shipped_path(name: str) -> Path:
    package = import_module(load_entry_points(_PACKS)[name].value)
    file = Path(*package.__path__) / "prompts" / f"{name}.yaml"
    # Packages for earlier versions call the folder `packs`.
    return file if file.exists() else file.parents[1] / "packs" / file.name


def read_pack(text: str, source: str, signature: Signature, optional: Signature = _NO_PLACEHOLDERS) -> PromptPack:
    """Read and check a pack from its text (as stored in manifests). `source` is its name in errors."""
    data = parse_yaml(text, f"prompt pack {source}")
    if not isinstance(data, dict):
        raise ConfigurationError(f"prompt pack '{source}': expected a mapping with name, version and sections")
    templates = {
        f"{section}.{name}": body
        for section, content in data.items()
        if isinstance(content, dict)
        for name, body in content.items()
    }
    missing = sorted(signature.keys() - templates.keys())
    unknown = sorted(templates.keys() - signature.keys() - optional.keys())
    if missing or unknown:
        problem = f"lacks {', '.join(missing)}" if missing else f"has unused templates: {', '.join(unknown)}"
        raise ConfigurationError(f"prompt pack '{source}': {problem}")
    allowed = {**optional, **signature}
    compiled = {name: _compile(source, name, body, allowed[name]) for name, body in templates.items()}
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return PromptPack(str(data.get("name", source)), str(data.get("version", "")), digest, text, compiled)


def _compile(source: str, name: str, body: object, allowed: frozenset[str]) -> Template:
    location = f"prompt pack '{source}', {name}"
    if not isinstance(body, str):
        raise ConfigurationError(f"{location}: expected text, found {type(body).__name__}")
    try:
        template = Template(body.strip())
    except ValueError as error:
        raise ConfigurationError(f"{location}: {error}") from None
    unknown = sorted(template.placeholders - allowed)
    if unknown:
        names = ", ".join(f"{{{placeholder}}}" for placeholder in sorted(allowed)) or "no placeholders"
        raise ConfigurationError(f"{location}: unknown placeholder {{{unknown[0]}}}; this template allows {names}")
    return template
