"""YAML files that a user wrote, read with limits on size, depth and aliases, and strict about keys.

Every YAML text is read here, so an error names file, line and column, and no file takes long. Dates and times of day
stay text: settings and tools use JSON, which has neither.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigurationError
from .permissions import permissions

LineOf = Callable[[Sequence[str | int]], int]  # the line of a field, by its path of keys and indices

MAX_BYTES = 2_000_000  # per file; PyYAML reads about 100 kB per second
MAX_LEVELS = 60  # of nested lists and mappings
MAX_REPEATED = 200_000  # characters and values that all aliases together may stand for
_MAX_FIRST_LINE = 100_000  # bytes of a JSON line to read for the names of its fields
_MAX_FIELDS = 100  # characters of these names in an error
MAX_DIGITS = 400  # per number; the longest float has 309 before its point
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(path: Path, expected: str = "a YAML file") -> Any:
    """Return the value in a YAML file, like `read_text` and `parse_yaml`."""
    return parse_yaml(read_text(path, expected), str(path))


# What files of other formats are, by the ends of their names.
_OTHER_FORMATS = {
    ".jsonl": "JSON Lines", ".csv": "a CSV table", ".tsv": "a TSV table", ".parquet": "a Parquet table",
    ".py": "Python code", ".md": "Markdown", ".html": "a web page", ".gguf": "a model", ".sqlite": "a database",
}  # fmt: skip


def _refuse_other_format(path: Path, expected: str) -> None:
    other = "a folder" if path.is_dir() else _OTHER_FORMATS.get(path.suffix.lower())
    if other is None:
        return
    if (path / "manifest.json").is_file():
        other = "the folder of a run"
    fields = _first_fields(path) if other == "JSON Lines" and path.is_file() else ""
    raise ConfigurationError(f"{path}: expected {expected}, found {other}{fields}")


def _first_fields(path: Path) -> str:
    """Return the names of the fields in the first line of JSON Lines, for an error."""
    try:
        with path.open("rb") as file:
            record = json.loads(file.readline(_MAX_FIRST_LINE))
    except (OSError, ValueError, RecursionError):
        return ""
    return f" with the fields {', '.join(record)[:_MAX_FIELDS]}" if isinstance(record, dict) and record else ""


def read_text(path: Path, expected: str = "a YAML file") -> str:
    """Return the text of a YAML file, without a byte order mark. `expected` says in errors what the file should be.

    Raises:
        ConfigurationError: It cannot be read, has another format, is larger than `MAX_BYTES`, or is not UTF-8.
    """
    permissions().check_file(path)
    if os.path.exists(path):
        _refuse_other_format(path, expected)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        near = permissions().similar_name(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigurationError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}{near}") from None
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{path}: larger than {MAX_BYTES // 1_000_000} MB, the limit for YAML files")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}:{line}: cannot be read: not UTF-8 ({error.reason})") from None


def parse_yaml(text: str, name: str) -> Any:
    """Parse a YAML text, None if empty; a ConfigurationError has `name`, line and column."""
    return _parse_document(text, name)[0]


def parse_list(text: str, name: str) -> tuple[Any, list[int]]:
    """Return a value like `parse_yaml`, and the 1-based lines at which the entries of a list begin."""
    value, node = _parse_document(text, name)
    entries = node.value if isinstance(node, yaml.SequenceNode) else []
    return value, [entry.start_mark.line + 1 for entry in entries]


def parse_with_lines(text: str, name: str) -> tuple[Any, LineOf]:
    """Return a value like `parse_yaml`, and a function from a field's path to its 1-based line.

    The path has keys and indices, as in pydantic's errors, and is followed until the text no longer has the next key.

    Raises:
        ConfigurationError: As for `parse_yaml`.
    """
    value, root = _parse_document(text, name)

    def line(path: Sequence[str | int]) -> int:
        node, number = root, 1 if root is None else root.start_mark.line + 1
        for step in path:
            if isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == str(step)), None)
                if pair is None:
                    continue  # pydantic includes the branches of unions
                number, node = pair[0].start_mark.line + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                number = node.start_mark.line + 1
        return number

    return value, line


def _parse_document(text: str, name: str) -> tuple[Any, yaml.Node | None]:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except yaml.reader.ReaderError as error:
        prefix = text[: error.position]
        position = f"{prefix.count(chr(10)) + 1}:{error.position - prefix.rfind(chr(10))}"
        raise ConfigurationError(
            f"{name}:{position}: cannot be read: the character U+{error.character:04X} is not allowed in YAML"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigurationError(_error_text(error, name)) from None


def _error_text(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    position = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
    context = error.context or ""
    if context and error.context_mark is not None and error.context_mark.line != getattr(mark, "line", None):
        context += f" that begins on line {error.context_mark.line + 1}"
    message = f"{name}{position}: cannot be read: {error.problem or context}"
    return f"{message} ({context})" if context and error.problem else message


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with limits.

    `_sizes` has the characters and values of each composed node, with its aliases resolved.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    # A date with an explicit tag (!!timestamp) is text, too.
    yaml_constructors = {  # noqa: RUF012
        **yaml.SafeLoader.yaml_constructors,
        "tag:yaml.org,2002:timestamp": yaml.SafeLoader.construct_yaml_str,
    }

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node. `21:05` is text: YAML 1.1 reads it as a number to the base of 60."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        plain = kind is yaml.ScalarNode and tag in _NUMBERS and ":" in value
        return "tag:yaml.org,2002:str" if plain else tag

    def __init__(self, text: str) -> None:
        self._level = self._repeated = 0
        self._sizes: dict[yaml.Node, int] = {}
        super().__init__(text)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            self._count(event)
        self._level += 1
        if self._level > MAX_LEVELS:
            raise _constructor_problem(f"lists and mappings nested deeper than {MAX_LEVELS} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self._level -= 1
        if node is not None and node not in self._sizes:
            self._sizes[node] = self._size(node)
        if isinstance(node, yaml.MappingNode) and not isinstance(event, yaml.AliasEvent):
            self._check_keys(node)
        return node

    def _count(self, event: yaml.AliasEvent) -> None:
        node = self.anchors.get(event.anchor)
        if node is None:
            return  # PyYAML reports the alias
        if node not in self._sizes:
            raise _constructor_problem(f"the alias *{event.anchor} contains itself", event.start_mark)
        self._repeated += self._sizes[node]
        if self._repeated > MAX_REPEATED:
            raise _constructor_problem(
                f"at the alias *{event.anchor}, aliases stand for more than {MAX_REPEATED:,} characters and values; "
                "write the values out",
                event.start_mark,
            )

    def _size(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value)
        if isinstance(node, yaml.MappingNode):
            return 1 + sum(self._sizes[key] + self._sizes[value] for key, value in node.value)
        return 1 + sum(self._sizes[entry] for entry in node.value)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        """Refuse a repeated key; keys merged by `<<` may be overridden."""
        first_keys: dict[Any, yaml.ScalarNode] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = "<<" if key.tag == _MERGE else self.construct_object(key)
                if name in first_keys:
                    first = first_keys[name]
                    spelling = f" as {first.value!r}" if first.value != key.value else ""
                    raise _constructor_problem(
                        f"the key {key.value!r} is given twice, first{spelling} on line {first.start_mark.line + 1}; "
                        "remove one of them",
                        key.start_mark,
                    )
                first_keys[name] = key

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise _constructor_problem(f"a number of {len(node.value):,} digits; put text in quotes", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, KeyError) as error:  # from explicit tags, as in !!int x
            raise _constructor_problem(f"not a value of {node.tag}: {error}", node.start_mark) from None


def _constructor_problem(text: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=mark)
