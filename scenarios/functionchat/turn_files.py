"""Files of turns: FunctionChat-Bench's, and files of the same three forms in any language.

From a folder or a file to the turns of a run, and their manifest record.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import Any

from viva.data.dataset import ChangeDetector
from viva.data.items import FieldError, Raw, preview, record_id, text_field
from viva.data.record_files import read_records, sound_records
from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError, MalformedOutput
from viva.engine.tools import Toolbox, ToolCall

from .call_matching import fits_schema, required_parameters, type_names, unicode_scripts
from .functionchat_settings import Subsets
from .turns import OUTPUT_TYPES, TOOL_LISTS, Acceptable, DialogTurn, OutputType, Subset, readable_json

__all__ = ["DialogTurn", "OutputType", "read_common", "read_dialogs", "read_singlecall"]

# By the first word of the letters' Unicode names; kana come before Han characters, because Japanese uses both.
_SCRIPT_LANGUAGES = {
    "HANGUL": "Korean",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "CJK": "Chinese",
    "THAI": "Thai",
    "GREEK": "Greek",
    "HEBREW": "Hebrew",
}


def written_language(texts: Iterable[str | None]) -> str:
    """Return the English name of the language of the texts' script; empty if many languages use it, like Latin."""
    scripts = unicode_scripts("".join(text or "" for text in texts))
    return next((language for script, language in _SCRIPT_LANGUAGES.items() if script in scripts), "")


_ONLY_TRUTH = "only ground truth is allowed"


def truth_message(raw: Any, kind: OutputType, path: str) -> dict[str, Any]:
    """Parse a ground truth given as a message; it must have calls if and only if its type is `call`."""
    if not isinstance(raw, dict) or raw.get("role") != "assistant":
        raise FieldError(path, f"expected an assistant message, found {preview(raw)}")
    truth = history_message(raw, f"{path}.")
    if kind == "call" and not truth.get("tool_calls"):
        raise FieldError(f"{path}.tool_calls", "is missing, but 'type_of_output' is 'call'")
    if kind != "call" and truth.get("tool_calls"):
        raise FieldError(f"{path}.tool_calls", f"holds a call, but 'type_of_output' is '{kind}'")
    return truth


def history_message(raw: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Parse a message of a dialog's history, keeping the relevant fields; it must not be empty."""
    role = raw.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise FieldError(f"{path}role", f"expected system, user, assistant or tool, found {preview(role)}")
    calls = parse_message_calls(raw.get("tool_calls"), f"{path}tool_calls") if role == "assistant" else []
    content = raw.get("content")
    if calls and (content is None or (isinstance(content, str) and not content.strip())):
        return {"role": role, "content": None, "tool_calls": [call.to_openai() for call in calls]}
    if role == "tool" and content == "":  # a tool may return nothing
        message: dict[str, Any] = {"role": role, "content": ""}
    else:
        message = {"role": role, "content": text_field(raw, "content", path)}
    if calls:
        message["tool_calls"] = [call.to_openai() for call in calls]
    if role == "tool":
        message["tool_call_id"] = record_id(raw, "tool_call_id") or ""
        if raw.get("name") is not None:
            message["name"] = text_field(raw, "name", path)
    return message


def parse_message_calls(raw: Any, path: str) -> list[ToolCall]:
    """Parse the calls of an assistant message; arguments may also be objects instead of JSON text."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise FieldError(path, f"expected a list of calls, found {preview(raw)}")
    calls = []
    for index, entry in enumerate(raw):
        entry_path = f"{path}[{index}]"
        function = entry.get("function") if isinstance(entry, dict) else None
        if not isinstance(function, dict):
            raise FieldError(entry_path, f"expected an object with 'function', found {preview(entry)}")
        calls.append(_parse_call(function, entry.get("id"), index, f"{entry_path}.function."))
    return calls


def parse_calls(raw: Any, path: str) -> list[ToolCall]:
    """Parse the calls of a single-call ground truth: `{"name", "arguments"}` or a list of such, also as JSON text."""
    value = _parse_json(raw, path) if isinstance(raw, str) else raw
    entries = value if isinstance(value, list) else [value]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise FieldError(path, f"expected a call, or a list of calls, found {preview(raw)}")
    return [_parse_call(entry, None, index, f"{path}.") for index, entry in enumerate(entries)]


def _parse_call(function: Mapping[str, Any], raw_id: Any, index: int, path: str) -> ToolCall:
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = readable_json(arguments)
    if not isinstance(arguments, str):
        raise FieldError(f"{path}arguments", f"expected a JSON object as text, found {preview(arguments)}")
    name = text_field(function, "name", path)
    call = ToolCall(raw_id if isinstance(raw_id, str) and raw_id else f"call-{index + 1}", name, arguments)
    try:
        call.parsed()
    except MalformedOutput as error:
        raise FieldError(f"{path}arguments", str(error)) from None
    return call


def check_calls(calls: Sequence[ToolCall], box: Toolbox, path: str) -> None:
    """Check that calls name offered functions with arguments of the specified types; raise `FieldError` otherwise."""
    for call in calls:
        if call.name not in box.names:
            raise FieldError(path, f"the function '{call.name}' is not among the tools: {', '.join(box.names)}")
        for name, value in call.parsed().items():
            _check_value(call.name, name, value, box, path)
        schemas = parameter_schemas(box, call.name)
        for name in required_parameters(box.parameters(call.name)):
            if name in schemas and name not in call.parsed():  # a parameter without a schema cannot be given
                raise FieldError(path, f"{call.name} requires '{name}', which the ground truth lacks")


def _check_value(function: str, name: str, value: Any, box: Toolbox, path: str) -> None:
    schema = parameter_schemas(box, function).get(name)
    if schema is None:
        raise FieldError(path, f"{function} has no parameter '{name}'")
    if not fits_schema(value, schema):
        raise FieldError(path, f"{function}: '{name}' is specified as {type_names(schema)}, found {preview(value)}")


def parameter_schemas(box: Toolbox, function: str) -> Mapping[str, Any]:
    """Return the schemas of a function's parameters."""
    schemas: Mapping[str, Any] = (box.parameters(function) or {}).get("properties", {})
    return schemas


def acceptable_values(raw: Any, calls: Sequence[ToolCall], box: Toolbox, path: str) -> Acceptable:
    """Parse further acceptable values: none, a sentence, or an object (a list of objects or nulls for several calls).

    For an array parameter a list is one value, and a list of lists has several. A sentence in place of a number, list
    or boolean is no value: the judge reads it and decides.
    """
    if raw is None:
        return Acceptable()
    text = raw if isinstance(raw, str) else readable_json(raw)
    if isinstance(raw, str):
        if raw.strip().rstrip(".").lower() == _ONLY_TRUTH:
            return Acceptable("only", text=text)
        if not raw.lstrip().startswith(("{", "[")):
            text_field({"text": raw}, "text", f"{path}: ")
            return Acceptable("remark", text=text)
        raw = _parse_json(raw, path)
    entries = raw if isinstance(raw, list) else [raw]
    if len(entries) != len(calls) or not all(entry is None or isinstance(entry, dict) for entry in entries):
        expected = "an object" if len(calls) == 1 else f"a list of {len(calls)} objects, one for each call"
        raise FieldError(path, f"expected a sentence, or {expected if calls else 'nothing'}, found {preview(raw)}")
    values, remarked = [], False
    for call, entry in zip(calls, entries, strict=True):
        schemas = parameter_schemas(box, call.name)
        listed = {name: value for name, value in (entry or {}).items() if not _is_sentence(value, schemas.get(name))}
        remarked |= len(listed) < len(entry or {})
        values.append({name: _alternatives(value, schemas.get(name, {})) for name, value in listed.items()})
        for name, several in values[-1].items():
            if not several:
                raise FieldError(path, f"'{name}' has an empty list of values")
            for value in several:
                _check_value(call.name, name, value, box, path)
    return Acceptable("remark" if remarked else "values", tuple(values), text)


def _is_sentence(value: Any, schema: Any) -> bool:
    """Return True if the value is a remark about values of a known parameter that takes no text."""
    return isinstance(value, str) and len(value.split()) > 1 and schema is not None and not fits_schema(value, schema)


def acceptable_of_calls(raw_calls: Sequence[Any], calls: Sequence[ToolCall], box: Toolbox, path: str) -> Acceptable:
    """Parse acceptable values given with each call of the ground truth, as `function.acceptable_arguments`.

    If some of several calls have a sentence, the judge reads all of it and decides.
    """
    remarks = [(call.get("function") or {}).get("acceptable_arguments") for call in raw_calls]
    rules = [
        acceptable_values(remark, [call], box, f"{path}[{index}].function.acceptable_arguments")
        for index, (remark, call) in enumerate(zip(remarks, calls, strict=True))
    ]
    kinds = {rule.kind for rule in rules}
    if kinds <= {"unsaid"}:
        return Acceptable()
    if len(rules) == 1:
        return rules[0]
    text = readable_json(remarks)
    values = tuple(rule.values[0] if rule.values else {} for rule in rules)
    if kinds == {"only"}:
        return Acceptable("only", text=rules[0].text)
    if kinds <= {"unsaid", "values"}:
        return Acceptable("values", values, text)
    return Acceptable("remark", values, text)


def _alternatives(value: Any, schema: Any) -> tuple[Any, ...]:
    several = isinstance(value, list) and all(fits_schema(entry, schema) for entry in value)
    return tuple(value) if several else (value,)


def parse_toolbox(raw: Any, path: str) -> Toolbox:
    if not isinstance(raw, list):
        raise FieldError(path, f"expected a list of tools, found {preview(raw)}")
    try:
        return Toolbox(raw)
    except ConfigurationError as error:
        raise FieldError(path, str(error)) from None


def object_list(raw: Raw, name: str, within: str = "") -> list[dict[str, Any]]:
    value = raw.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(entry, dict) for entry in value):
        raise FieldError(within + name, f"expected a list of at least one object, found {preview(value)}")
    return value


def _parse_json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise FieldError(path, f"looks like JSON but is invalid ({error}): {preview(text)}") from None


_SKIP_ADVICE = "fix the line, or skip such lines with --skip-bad-items"
TurnIterator = Iterator[DialogTurn]
OnSkipped = Callable[[DatasetError], None]


def read_singlecall(path: Path, skipped: OnSkipped | None = None) -> TurnIterator:
    """Read the turns of a file of single calls: one function per line, with its queries and tool lists.

    A line has `query`, `ground_truth` and `acceptable_arguments` (lists of `{"serial_num", "content"}` joined by their
    serial numbers; `acceptable_arguments` may be missing) and `tools` (a list of `{"type", "content"}`, the type one of
    `TOOL_LISTS`). Each query is a turn under each tool list.

    Args:
        path: The file.
        skipped: Callback for unusable lines, which are skipped; without it, the error is raised.

    Raises:
        DatasetError: The file or a field cannot be used; the error names file, line and field.
    """
    return _read_turns(path, _singlecall_turns, skipped)


def read_dialogs(path: Path, skipped: OnSkipped | None = None) -> TurnIterator:
    """Read the turns of a file of dialogs, one dialog per line (docs/functionchat.md)."""
    return _read_turns(path, _dialog_turns, skipped)


def read_common(path: Path, subset: Subset = "common", skipped: OnSkipped | None = None) -> TurnIterator:
    """Read the turns of a file of the common form, one turn per line.

    A line has `serial_num` (unique within its category), `category`, `input_messages` (the messages before the turn,
    usually with its own system message), `input_tools`, `type_of_output`, `ground_truth` (an assistant message; for a
    call, `name` and `arguments`) and `acceptable_arguments` (optional; may be in the ground truth's calls instead).

    `skipped` and errors are as in `read_singlecall`.
    """
    return _read_turns(path, lambda raw: _common_turn(raw, subset), skipped)


def _read_turns(path: Path, turns: Callable[[Raw], TurnIterator], skipped: OnSkipped | None) -> TurnIterator:
    lines_by_id: dict[str, int] = {}
    for line, raw in read_records(path):
        new_turns: list[DialogTurn] = []
        problem: DatasetError | None = None
        if isinstance(raw, DatasetError):
            problem = raw
        else:
            try:
                new_turns = list(turns(raw))
                line_ids: set[str] = set()
                for turn in new_turns:
                    first = line if turn.id in line_ids else lines_by_id.get(turn.id)
                    if first is not None:
                        raise FieldError("serial_num", f"'{turn.id}' is already in line {first}; renumber")
                    line_ids.add(turn.id)
            except FieldError as error:
                advice = "" if skipped else f"; {_SKIP_ADVICE}"
                problem = DatasetError(f"{error}{advice}", path=str(path), line=line, field=error.field)
        if problem is None:
            lines_by_id.update((turn.id, line) for turn in new_turns)
            yield from new_turns
        elif skipped is None:
            raise problem
        else:
            skipped(problem)
    if not lines_by_id:
        raise DatasetError("has no turns", path=str(path))


def _singlecall_turns(raw: Raw) -> TurnIterator:
    lists = {}
    for index, entry in enumerate(object_list(raw, "tools")):
        name = entry.get("type")
        if name not in TOOL_LISTS or name in lists:
            problem = "occurs twice" if name in lists else f"is not one of {', '.join(TOOL_LISTS)}"
            raise FieldError(f"tools[{index}].type", f"{preview(name)} {problem}")
        lists[name] = parse_toolbox(entry.get("content"), f"tools[{index}].content")
    queries, truths = _by_serial(raw, "query"), _by_serial(raw, "ground_truth")
    rules = _by_serial(raw, "acceptable_arguments") if raw.get("acceptable_arguments") is not None else {}
    for name, entries in (("ground_truth", truths), *([("acceptable_arguments", rules)] if rules else [])):
        if entries.keys() != queries.keys():
            odd = sorted(entries.keys() ^ queries.keys())
            raise FieldError(name, f"has other serial numbers than 'query': {', '.join(odd)}")
    for serial, (query_path, query) in queries.items():
        messages = [{"role": "user", "content": text_field(query, "content", query_path)}]
        truth_path, truth = truths[serial]
        calls = parse_calls(truth.get("content"), f"{truth_path}content")
        message = {"role": "assistant", "content": None, "tool_calls": [call.to_openai() for call in calls]}
        for name, box in lists.items():
            rule_path, rule = rules.get(serial, ("", {}))
            check_calls(calls, box, f"{truth_path}content")
            acceptable = acceptable_values(rule.get("content"), calls, box, f"{rule_path}content")
            turn_id = f"singlecall/{serial}/{name}"
            yield DialogTurn(turn_id, "singlecall", "call", box.specs, messages, message, acceptable, name)


def _dialog_turns(raw: Raw) -> TurnIterator:
    dialog = record_id(raw, "dialog_num")
    if dialog is None:
        raise FieldError("dialog_num", "is missing")
    box = parse_toolbox(raw.get("tools"), "tools")
    count = raw.get("tools_count", len(box))
    if count != len(box):
        raise FieldError("tools_count", f"says {preview(count)}, but 'tools' holds {len(box)}")
    for index, entry in enumerate(object_list(raw, "turns")):
        path = f"turns[{index}]."
        serial = record_id(entry, "serial_num") or record_id(entry, "turn_num") or str(index + 1)
        kind = _output_type(entry.get("type_of_output"), f"{path}type_of_output")
        messages = [
            history_message(message, f"{path}query[{position}].")
            for position, message in enumerate(object_list(entry, "query", path))
        ]
        truth = truth_message(entry.get("ground_truth"), kind, f"{path}ground_truth")
        calls = parse_message_calls(truth.get("tool_calls"), f"{path}ground_truth.tool_calls")
        check_calls(calls, box, f"{path}ground_truth.tool_calls")
        acceptable = acceptable_values(entry.get("acceptable_arguments"), calls, box, f"{path}acceptable_arguments")
        yield DialogTurn(f"dialog/{dialog}/{serial}", "dialog", kind, box.specs, messages, truth, acceptable)


def _common_turn(raw: Raw, subset: Subset) -> TurnIterator:
    serial, category = record_id(raw, "serial_num"), text_field(raw, "category")
    if serial is None:
        raise FieldError("serial_num", "is missing")
    kind = _output_type(raw.get("type_of_output"), "type_of_output")
    box = parse_toolbox(raw.get("input_tools"), "input_tools")
    messages = [
        history_message(message, f"input_messages[{position}].")
        for position, message in enumerate(object_list(raw, "input_messages"))
    ]
    truth = raw.get("ground_truth")
    if kind == "call" and isinstance(truth, dict) and "tool_calls" not in truth and "role" not in truth:
        calls = parse_calls(truth, "ground_truth")
        answer = {"role": "assistant", "content": None, "tool_calls": [call.to_openai() for call in calls]}
        path = "ground_truth"
    else:
        answer = truth_message(truth, kind, "ground_truth")
        path = "ground_truth.tool_calls"
        calls = parse_message_calls(answer.get("tool_calls"), path)
    check_calls(calls, box, path)
    within = truth.get("tool_calls") if isinstance(truth, dict) else None
    if raw.get("acceptable_arguments") is None and within:
        rule = acceptable_of_calls(within, calls, box, path)
    else:
        rule = acceptable_values(raw.get("acceptable_arguments"), calls, box, "acceptable_arguments")
    yield DialogTurn(
        f"{subset}/{category}/{serial}", subset, kind, box.specs, messages, answer, rule, category=category
    )


def _output_type(kind: Any, path: str) -> OutputType:
    if kind not in OUTPUT_TYPES:
        raise FieldError(path, f"{preview(kind)} is not one of {', '.join(OUTPUT_TYPES)}")
    output_type: OutputType = kind
    return output_type


def _by_serial(raw: Raw, name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    entries: dict[str, tuple[str, dict[str, Any]]] = {}
    for index, entry in enumerate(object_list(raw, name)):
        path = f"{name}[{index}]."
        serial = record_id(entry, "serial_num")
        if serial is None or serial in entries:
            problem = "is missing" if serial is None else f"{serial} occurs twice"
            raise FieldError(f"{path}serial_num", problem)
        entries[serial] = (path, entry)
    return entries


FILES: dict[Subset, str] = {
    "singlecall": "FunctionChat-Singlecall.jsonl",
    "dialog": "FunctionChat-Dialog.jsonl",
    "calldecision": "FunctionChat-CallDecision.jsonl",
    "parallel": "FunctionChat-Parallel.jsonl",
    "sequential": "FunctionChat-Sequential.jsonl",
}
_PAPER_SUBSETS: tuple[Subset, ...] = ("singlecall", "dialog")
_MAX_NAMED = 20  # skipped lines that are named; all are counted


@dataclass(slots=True)
class TurnSource:
    """A checked source of turns.

    Attributes:
        counts: Number of turns by subset, then by tool list, type or category.
        unread: Files in the same folder that are named like the benchmark's but are not in `FILES`.
        language: The language of the users of most turns if the script identifies it, else empty.
        skipped: Number of skipped lines.
        bad: The errors of the first skipped lines.
    """

    name: str
    digest: str
    files: list[tuple[Subset, Path]]
    unread: list[str] = field(default_factory=list)
    skip_bad: bool = False
    total: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    language: str = ""
    skipped: int = 0
    bad: list[DatasetError] = field(default_factory=list)
    _chosen: frozenset[str] | None = None
    _first: ChangeDetector = field(default_factory=ChangeDetector)

    def __len__(self) -> int:
        return self.total if self._chosen is None else len(self._chosen)

    def __iter__(self) -> Iterator[DialogTurn]:
        """Yield the chosen turns in the files' order, read lazily.

        Raises:
            DatasetError: A file has changed since it was checked.
        """
        count = 0
        for position, (path, turn) in enumerate(self._read(lambda problem: None)):
            if self._chosen is None or turn.id in self._chosen:
                self._first.check(position, turn.to_record(), turn.id, str(path))
                count += 1
                yield turn
        self._first.check_end(count, len(self), self.name)

    def _read(self, skipped: OnSkipped) -> Iterator[tuple[Path, DialogTurn]]:
        for subset, path in self.files:
            for turn in _read_subset(subset, path, skipped if self.skip_bad else None):
                yield path, turn

    def check(self, limit: int | None, seed: int) -> None:
        """Read everything, and sample `limit` turns by the seed, independently of their order in the files.

        Raises:
            DatasetError: A line is wrong, or an id contains a #.
        """
        ranked: dict[str, float] = {}
        languages: Counter[str] = Counter()
        for _, turn in self._read(self._pass_over):
            self._first.add(turn.to_record())
            if "#" in turn.id:  # in keys, `#` precedes the number of the repeat
                raise DatasetError(f"the id {turn.id} holds '#'; number dialogs and turns without it", path=self.name)
            ranked[turn.id] = seeds.uniform(seed, "sample", turn.id)
            parts = self.counts.setdefault(turn.subset, {})
            part = turn.category or turn.tool_list or turn.type
            parts[part] = parts.get(part, 0) + 1
            languages[
                written_language(message["content"] for message in turn.messages if message["role"] == "user")
            ] += 1
        self.total = len(ranked)
        language, count = languages.most_common(1)[0]
        self.language = language if 2 * count > self.total else ""
        if limit is not None and limit < self.total:
            self._chosen = frozenset(nsmallest(limit, ranked, key=lambda id_: (ranked[id_], id_)))

    def _pass_over(self, problem: DatasetError) -> None:
        self.skipped += 1
        if len(self.bad) < _MAX_NAMED:
            self.bad.append(problem)

    @property
    def notes(self) -> list[str]:
        """Notes on files and lines that were left out, a sentence each."""
        notes = [
            f"{name} is not a known file of the benchmark and was not read; to read it, name it with --data"
            for name in self.unread
        ]
        if self.skipped:
            first = "; ".join(map(str, self.bad[:3]))
            notes.append(f"{self.skipped} unusable lines were skipped, the first: {first}")
        return notes

    def to_record(self) -> dict[str, Any]:
        """Return the manifest's record of the turns, with skipped files and lines only if there are any."""
        record: dict[str, Any] = {
            "name": self.name,
            "digest": self.digest,
            "turns": self.total,
            "chosen": len(self),
            "counts": self.counts,
        }
        if self.unread:
            record["unread_files"] = self.unread
        if self.skipped:
            lines = [
                {"file": Path(error.path).name, "line": error.line, "problem": error.message} for error in self.bad
            ]
            record["skipped_lines"] = {"count": self.skipped, "first": lines}
        return record


def open_turns(data: str, subset: Subsets, *, limit: int | None, seed: int, skip_bad: bool = False) -> TurnSource:
    """Find the files of `data` (a folder, or one JSONL file of a known form), check them, and sample turns.

    Args:
        data: The folder or file.
        subset: `both` means the paper's two subsets; `all` adds the benchmark's other files in the folder.
        limit: Number of turns to sample, None for all.
        seed: Seed of the sample.
        skip_bad: Skip unusable lines, and count them.

    Raises:
        DatasetError: A file is missing, a line is wrong, or the subset is not in the data.
    """
    path = Path(data)
    unread: list[str] = []
    if path.is_dir():
        subsets = [name for name in FILES if subset in (name, "all") or (subset == "both" and name in _PAPER_SUBSETS)]
        if subset == "all":
            subsets = [name for name in subsets if name in _PAPER_SUBSETS or (path / FILES[name]).is_file()]
            unread = sorted({file.name for file in path.glob("FunctionChat-*.jsonl")} - set(FILES.values()))
        if not subsets:
            raise DatasetError(f"this folder has no file of the subset {subset}; name the file with --data", path=data)
        files = [(name, path / FILES[name]) for name in subsets]
        missing = [file.name for _, file in files if not file.is_file()]
        if missing:
            raise DatasetError(f"has no {' and no '.join(missing)}; name a file with --data, or a --subset", path=data)
    else:
        form = _detect_form(path)
        files = [(form, path)]
        if subset not in ("both", "all", form):
            raise DatasetError(f"has turns of the form {form}, not {subset}; omit --subset", path=data)
    digest = file_digest([file for _, file in files])
    turns = TurnSource(path.resolve().name, digest, files, unread, skip_bad)
    turns.check(limit, seed)
    return turns


def _read_subset(subset: Subset, path: Path, skipped: OnSkipped | None) -> Iterator[DialogTurn]:
    match subset:
        case "singlecall":
            return read_singlecall(path, skipped)
        case "dialog":
            return read_dialogs(path, skipped)
        case _:
            return read_common(path, subset, skipped)


def file_digest(files: list[Path]) -> str:
    """Return a digest of the contents of files.

    Raises:
        DatasetError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", path=str(file)) from None
    return digest.hexdigest()[:16]


def _detect_form(path: Path) -> Subset:
    """Return the form of a file by its first record's fields, or the subset of a benchmark file of the common form."""
    for number, raw in sound_records(read_records(path)):
        if "turns" in raw:
            return "dialog"
        if "query" in raw:
            return "singlecall"
        if "input_messages" in raw:
            return next((name for name, file in FILES.items() if file == path.name), "common")
        message = (
            "no dialog (it has no 'turns'), no single call ('query'), and not of the common form ('input_messages')"
        )
        raise DatasetError(message, path=str(path), line=number)
    raise DatasetError("is empty", path=str(path))
