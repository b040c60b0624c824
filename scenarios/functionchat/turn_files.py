"""Files of turns: FunctionChat-Bench's, and files of the same three forms in any language, parsed and selected.

From a folder or a file to the turns of a run, with what the manifest records of them.
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

# By the first word of the letters' Unicode names; kana before Han characters, which Japanese has as well.
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
    """Return the English name of the language whose script the texts hold; empty where none tells it (Latin, say)."""
    found = unicode_scripts("".join(text or "" for text in texts))
    return next((language for script, language in _SCRIPT_LANGUAGES.items() if script in found), "")


_ONLY_TRUTH = "only ground truth is allowed"


def truth_message(given: Any, kind: OutputType, where: str) -> dict[str, Any]:
    """A ground truth that is given as a message; it holds calls exactly where its type is ``call``."""
    if not isinstance(given, dict) or given.get("role") != "assistant":
        raise FieldError(where, f"expected an assistant message, found {preview(given)}")
    truth = history_message(given, f"{where}.")
    if kind == "call" and not truth.get("tool_calls"):
        raise FieldError(f"{where}.tool_calls", "is missing, but 'type_of_output' is 'call'")
    if kind != "call" and truth.get("tool_calls"):
        raise FieldError(f"{where}.tool_calls", f"holds a call, but 'type_of_output' is '{kind}'")
    return truth


def history_message(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message with the fields that count; of a role that may stand in a history, and with something in it."""
    role = given.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise FieldError(f"{where}role", f"expected system, user, assistant or tool, found {preview(role)}")
    calls = parse_message_calls(given.get("tool_calls"), f"{where}tool_calls") if role == "assistant" else []
    content = given.get("content")
    if calls and (content is None or (isinstance(content, str) and not content.strip())):
        return {"role": role, "content": None, "tool_calls": [call.to_openai() for call in calls]}
    if role == "tool" and content == "":  # a tool may have nothing to say
        message: dict[str, Any] = {"role": role, "content": ""}
    else:
        message = {"role": role, "content": text_field(given, "content", where)}
    if calls:
        message["tool_calls"] = [call.to_openai() for call in calls]
    if role == "tool":
        message["tool_call_id"] = record_id(given, "tool_call_id") or ""
        if given.get("name") is not None:
            message["name"] = text_field(given, "name", where)
    return message


def parse_message_calls(given: Any, where: str) -> list[ToolCall]:
    """The calls of an assistant message; arguments may also be given as an object instead of its text."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise FieldError(where, f"expected a list of calls, found {preview(given)}")
    found = []
    for index, one in enumerate(given):
        place = f"{where}[{index}]"
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict):
            raise FieldError(place, f"expected an object with 'function', found {preview(one)}")
        found.append(_parse_call(function, one.get("id"), index, f"{place}.function."))
    return found


def parse_calls(given: Any, where: str) -> list[ToolCall]:
    """The calls of a single-call ground truth: ``{"name", "arguments"}`` or a list of such, also as JSON text."""
    value = _parse_json(given, where) if isinstance(given, str) else given
    held = value if isinstance(value, list) else [value]
    if not held or not all(isinstance(one, dict) for one in held):
        raise FieldError(where, f"expected a call, or a list of calls, found {preview(given)}")
    return [_parse_call(one, None, index, f"{where}.") for index, one in enumerate(held)]


def _parse_call(function: Mapping[str, Any], given_id: Any, index: int, where: str) -> ToolCall:
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = readable_json(arguments)
    if not isinstance(arguments, str):
        raise FieldError(f"{where}arguments", f"expected a JSON object as text, found {preview(arguments)}")
    name = text_field(function, "name", where)
    call = ToolCall(given_id if isinstance(given_id, str) and given_id else f"call-{index + 1}", name, arguments)
    try:
        call.parsed()
    except MalformedOutput as error:
        raise FieldError(f"{where}arguments", str(error)) from None
    return call


def check_calls(calls: Sequence[ToolCall], box: Toolbox, where: str) -> None:
    """A right call names an offered function, and its arguments are of the types that are specified.

    :raises FieldError: one does not.
    """
    for call in calls:
        if call.name not in box.names:
            raise FieldError(where, f"the function '{call.name}' is not among the tools: {', '.join(box.names)}")
        for name, value in call.parsed().items():
            _check_value(call.name, name, value, box, where)
        known = parameter_schemas(box, call.name)
        for name in required_parameters(box.parameters(call.name)):
            if name in known and name not in call.parsed():  # what is required but not specified nobody can give
                raise FieldError(where, f"{call.name} requires '{name}', which the ground truth lacks")


def _check_value(function: str, name: str, value: Any, box: Toolbox, where: str) -> None:
    schema = parameter_schemas(box, function).get(name)
    if schema is None:
        raise FieldError(where, f"{function} has no parameter '{name}'")
    if not fits_schema(value, schema):
        raise FieldError(where, f"{function}: '{name}' is specified as {type_names(schema)}, found {preview(value)}")


def parameter_schemas(box: Toolbox, function: str) -> Mapping[str, Any]:
    """The parameters of a function, each with its schema."""
    held: Mapping[str, Any] = (box.parameters(function) or {}).get("properties", {})
    return held


def acceptable_values(given: Any, calls: Sequence[ToolCall], box: Toolbox, where: str) -> Acceptable:
    """What is said of further values: nothing, a sentence, or an object (for several calls a list of them, or null).

    Where a parameter is an array, a list is one value, and a list of lists gives several. A sentence in place of a
    number, list or truth value is no value: the judge is shown it and decides.
    """
    if given is None:
        return Acceptable()
    text = given if isinstance(given, str) else readable_json(given)
    if isinstance(given, str):
        if given.strip().rstrip(".").lower() == _ONLY_TRUTH:
            return Acceptable("only", text=text)
        if not given.lstrip().startswith(("{", "[")):
            text_field({"text": given}, "text", f"{where}: ")
            return Acceptable("remark", text=text)
        given = _parse_json(given, where)
    held = given if isinstance(given, list) else [given]
    if len(held) != len(calls) or not all(one is None or isinstance(one, dict) for one in held):
        many = "an object" if len(calls) == 1 else f"a list of {len(calls)} objects, one for each call"
        raise FieldError(where, f"expected a sentence, or {many if calls else 'nothing'}, found {preview(given)}")
    values, remarked = [], False
    for call, one in zip(calls, held, strict=True):
        known = parameter_schemas(box, call.name)
        given_of = {name: value for name, value in (one or {}).items() if not _is_sentence(value, known.get(name))}
        remarked |= len(given_of) < len(one or {})
        values.append({name: _alternatives(value, known.get(name, {})) for name, value in given_of.items()})
        for name, several in values[-1].items():
            if not several:
                raise FieldError(where, f"'{name}' has an empty list of values")
            for value in several:
                _check_value(call.name, name, value, box, where)
    return Acceptable("remark" if remarked else "values", tuple(values), text)


def _is_sentence(value: Any, schema: Any) -> bool:
    """Whether what stands in place of values is words about them, for a known parameter that takes no text."""
    return isinstance(value, str) and len(value.split()) > 1 and schema is not None and not fits_schema(value, schema)


def acceptable_of_calls(given: Sequence[Any], calls: Sequence[ToolCall], box: Toolbox, where: str) -> Acceptable:
    """The same where each call of the ground truth says it of itself, as ``function.acceptable_arguments``.

    Where that is a sentence for some of several calls, the judge is shown all of it and decides.
    """
    told = [(one.get("function") or {}).get("acceptable_arguments") for one in given]
    rules = [
        acceptable_values(one, [call], box, f"{where}[{index}].function.acceptable_arguments")
        for index, (one, call) in enumerate(zip(told, calls, strict=True))
    ]
    kinds = {rule.kind for rule in rules}
    if kinds <= {"unsaid"}:
        return Acceptable()
    if len(rules) == 1:
        return rules[0]
    text = readable_json(told)
    values = tuple(rule.values[0] if rule.values else {} for rule in rules)
    if kinds == {"only"}:
        return Acceptable("only", text=rules[0].text)
    if kinds <= {"unsaid", "values"}:
        return Acceptable("values", values, text)
    return Acceptable("remark", values, text)


def _alternatives(value: Any, schema: Any) -> tuple[Any, ...]:
    several = isinstance(value, list) and all(fits_schema(one, schema) for one in value)
    return tuple(value) if several else (value,)


def parse_toolbox(given: Any, where: str) -> Toolbox:
    if not isinstance(given, list):
        raise FieldError(where, f"expected a list of tools, found {preview(given)}")
    try:
        return Toolbox(given)
    except ConfigurationError as error:
        raise FieldError(where, str(error)) from None


def object_list(raw: Raw, name: str, within: str = "") -> list[dict[str, Any]]:
    value = raw.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise FieldError(within + name, f"expected a list of at least one object, found {preview(value)}")
    return value


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise FieldError(where, f"begins like JSON, but is none ({error}): {preview(text)}") from None


_SKIP_ADVICE = "mend the line, or skip such lines with --skip-bad-items"
TurnIterator = Iterator[DialogTurn]
OnSkipped = Callable[[DatasetError], None]


def read_singlecall(path: Path, skipped: OnSkipped | None = None) -> TurnIterator:
    """The turns of a file of single calls: a function a line, with its queries and tool lists.

    A line has ``query``, ``ground_truth`` and ``acceptable_arguments`` (lists of ``{"serial_num", "content"}`` that
    belong together by their serial numbers; the last may be missing) and ``tools`` (a list of ``{"type", "content"}``,
    the type one of ``TOOL_LISTS``). Each query is a turn under each tool list.

    :param skipped: is told of each line that cannot be used, and the line is passed over; without it, it is raised.
    :raises DatasetError: the file or a field cannot be used; the error names file, line and field.
    """
    return _read_turns(path, _singlecall_turns, skipped)


def read_dialogs(path: Path, skipped: OnSkipped | None = None) -> TurnIterator:
    """The turns of a file of dialogs: a dialog a line.

    A line has ``dialog_num``, ``tools`` and ``turns``; a turn has ``query`` (the messages before it), ``ground_truth``
    (an assistant message), ``type_of_output``, ``acceptable_arguments`` (may be missing) and ``serial_num`` (else
    ``turn_num``, else its place counts).

    ``skipped`` and errors as in ``read_singlecall``.
    """
    return _read_turns(path, _dialog_turns, skipped)


def read_common(path: Path, subset: Subset = "common", skipped: OnSkipped | None = None) -> TurnIterator:
    """The turns of a file of the common form: a turn a line.

    A line has ``serial_num`` (unique within its category), ``category``, ``input_messages`` (the messages before the
    turn, a system message of its own among them as a rule), ``input_tools``, ``type_of_output``, ``ground_truth`` (an
    assistant message; or, of a call, its ``name`` and ``arguments``) and ``acceptable_arguments`` (may be missing, and
    may stand in the ground truth's calls instead).

    ``skipped`` and errors as in ``read_singlecall``.
    """
    return _read_turns(path, lambda raw: _common_turn(raw, subset), skipped)


def _read_turns(path: Path, turns: Callable[[Raw], TurnIterator], skipped: OnSkipped | None) -> TurnIterator:
    seen: dict[str, int] = {}
    for line, raw in read_records(path):
        found: list[DialogTurn] = []
        problem: DatasetError | None = None
        if isinstance(raw, DatasetError):
            problem = raw
        else:
            try:
                found = list(turns(raw))
                here: set[str] = set()
                for turn in found:
                    first = line if turn.id in here else seen.get(turn.id)
                    if first is not None:
                        raise FieldError("serial_num", f"'{turn.id}' stands in line {first} already; number anew")
                    here.add(turn.id)
            except FieldError as error:
                advice = "" if skipped else f"; {_SKIP_ADVICE}"
                problem = DatasetError(f"{error}{advice}", path=str(path), line=line, field=error.field)
        if problem is None:
            seen.update((turn.id, line) for turn in found)
            yield from found
        elif skipped is None:
            raise problem
        else:
            skipped(problem)
    if not seen:
        raise DatasetError("holds no turn", path=str(path))


def _singlecall_turns(raw: Raw) -> TurnIterator:
    lists = {}
    for index, one in enumerate(object_list(raw, "tools")):
        name = one.get("type")
        if name not in TOOL_LISTS or name in lists:
            problem = "stands twice" if name in lists else f"is none of {', '.join(TOOL_LISTS)}"
            raise FieldError(f"tools[{index}].type", f"{preview(name)} {problem}")
        lists[name] = parse_toolbox(one.get("content"), f"tools[{index}].content")
    queries, truths = _by_serial(raw, "query"), _by_serial(raw, "ground_truth")
    rules = _by_serial(raw, "acceptable_arguments") if raw.get("acceptable_arguments") is not None else {}
    for name, held in (("ground_truth", truths), *([("acceptable_arguments", rules)] if rules else [])):
        if held.keys() != queries.keys():
            odd = sorted(held.keys() ^ queries.keys())
            raise FieldError(name, f"has other serial numbers than 'query': {', '.join(odd)}")
    for serial, (where, query) in queries.items():
        messages = [{"role": "user", "content": text_field(query, "content", where)}]
        place, truth = truths[serial]
        calls = parse_calls(truth.get("content"), f"{place}content")
        message = {"role": "assistant", "content": None, "tool_calls": [call.to_openai() for call in calls]}
        for name, box in lists.items():
            rule_at, rule = rules.get(serial, ("", {}))
            check_calls(calls, box, f"{place}content")
            acceptable = acceptable_values(rule.get("content"), calls, box, f"{rule_at}content")
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
    for index, one in enumerate(object_list(raw, "turns")):
        where = f"turns[{index}]."
        serial = record_id(one, "serial_num") or record_id(one, "turn_num") or str(index + 1)
        kind = _output_type(one.get("type_of_output"), f"{where}type_of_output")
        messages = [
            history_message(message, f"{where}query[{place}].")
            for place, message in enumerate(object_list(one, "query", where))
        ]
        truth = truth_message(one.get("ground_truth"), kind, f"{where}ground_truth")
        calls = parse_message_calls(truth.get("tool_calls"), f"{where}ground_truth.tool_calls")
        check_calls(calls, box, f"{where}ground_truth.tool_calls")
        acceptable = acceptable_values(one.get("acceptable_arguments"), calls, box, f"{where}acceptable_arguments")
        yield DialogTurn(f"dialog/{dialog}/{serial}", "dialog", kind, box.specs, messages, truth, acceptable)


def _common_turn(raw: Raw, subset: Subset) -> TurnIterator:
    serial, category = record_id(raw, "serial_num"), text_field(raw, "category")
    if serial is None:
        raise FieldError("serial_num", "is missing")
    kind = _output_type(raw.get("type_of_output"), "type_of_output")
    box = parse_toolbox(raw.get("input_tools"), "input_tools")
    messages = [
        history_message(message, f"input_messages[{place}].")
        for place, message in enumerate(object_list(raw, "input_messages"))
    ]
    truth = raw.get("ground_truth")
    if kind == "call" and isinstance(truth, dict) and "tool_calls" not in truth and "role" not in truth:
        calls = parse_calls(truth, "ground_truth")
        told = {"role": "assistant", "content": None, "tool_calls": [call.to_openai() for call in calls]}
        where = "ground_truth"
    else:
        told = truth_message(truth, kind, "ground_truth")
        where = "ground_truth.tool_calls"
        calls = parse_message_calls(told.get("tool_calls"), where)
    check_calls(calls, box, where)
    within = truth.get("tool_calls") if isinstance(truth, dict) else None
    if raw.get("acceptable_arguments") is None and within:
        rule = acceptable_of_calls(within, calls, box, where)
    else:
        rule = acceptable_values(raw.get("acceptable_arguments"), calls, box, "acceptable_arguments")
    yield DialogTurn(f"{subset}/{category}/{serial}", subset, kind, box.specs, messages, told, rule, category=category)


def _output_type(kind: Any, where: str) -> OutputType:
    if kind not in OUTPUT_TYPES:
        raise FieldError(where, f"{preview(kind)} is none of {', '.join(OUTPUT_TYPES)}")
    found: OutputType = kind
    return found


def _by_serial(raw: Raw, name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for index, one in enumerate(object_list(raw, name)):
        where = f"{name}[{index}]."
        serial = record_id(one, "serial_num")
        if serial is None or serial in found:
            problem = "is missing" if serial is None else f"{serial} stands twice"
            raise FieldError(f"{where}serial_num", problem)
        found[serial] = (where, one)
    return found


FILES: dict[Subset, str] = {
    "singlecall": "FunctionChat-Singlecall.jsonl",
    "dialog": "FunctionChat-Dialog.jsonl",
    "calldecision": "FunctionChat-CallDecision.jsonl",
    "parallel": "FunctionChat-Parallel.jsonl",
    "sequential": "FunctionChat-Sequential.jsonl",
}
_PAPER_SUBSETS: tuple[Subset, ...] = ("singlecall", "dialog")
_MAX_NAMED = 20  # lines that were passed over are counted, and so many of them named


@dataclass(slots=True)
class TurnSource:
    """A checked source of turns.

    ``counts``: subset, then tool list, type or category, to turns. ``unread``: files in the same folder that are named
    like the benchmark's and are none of ``FILES``. ``language``: that of most turns' users, where its script tells it,
    else empty. ``skipped`` and ``bad``: how many lines were passed over, and the errors of the first.
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
        """The chosen turns in the files' order, read as they are taken.

        :raises DatasetError: a file is no longer what it was when it was checked.
        """
        found = 0
        for place, (path, turn) in enumerate(self._read(lambda problem: None)):
            if self._chosen is None or turn.id in self._chosen:
                self._first.check(place, turn.to_record(), turn.id, str(path))
                found += 1
                yield turn
        self._first.check_end(found, len(self), self.name)

    def _read(self, skipped: OnSkipped) -> Iterator[tuple[Path, DialogTurn]]:
        for subset, path in self.files:
            for turn in _read_subset(subset, path, skipped if self.skip_bad else None):
                yield path, turn

    def check(self, limit: int | None, seed: int) -> None:
        """Read all of it, and choose ``limit`` turns by the seed, whatever their order in the files.

        :raises DatasetError: a line is wrong, or an id holds a #.
        """
        ranked: dict[str, float] = {}
        languages: Counter[str] = Counter()
        for _, turn in self._read(self._pass_over):
            self._first.add(turn.to_record())
            if "#" in turn.id:  # behind it a conversation's key has the number of the repeat
                raise DatasetError(f"the id {turn.id} holds '#'; number dialogs and turns without it", path=self.name)
            ranked[turn.id] = seeds.uniform(seed, "sample", turn.id)
            parts = self.counts.setdefault(turn.subset, {})
            part = turn.category or turn.tool_list or turn.type
            parts[part] = parts.get(part, 0) + 1
            languages[written_language(one["content"] for one in turn.messages if one["role"] == "user")] += 1
        self.total = len(ranked)
        most, count = languages.most_common(1)[0]
        self.language = most if 2 * count > self.total else ""
        if limit is not None and limit < self.total:
            self._chosen = frozenset(nsmallest(limit, ranked, key=lambda id_: (ranked[id_], id_)))

    def _pass_over(self, problem: DatasetError) -> None:
        self.skipped += 1
        if len(self.bad) < _MAX_NAMED:
            self.bad.append(problem)

    @property
    def notes(self) -> list[str]:
        """What was left out, a sentence each."""
        said = [
            f"{name} is no known file of the benchmark and was not read; name it with --data" for name in self.unread
        ]
        if self.skipped:
            first = "; ".join(map(str, self.bad[:3]))
            said.append(f"{self.skipped} lines that cannot be used were left out, the first: {first}")
        return said

    def to_record(self) -> dict[str, Any]:
        """What a run's manifest says of them; of what was left out only where something was."""
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
            where = [{"file": Path(one.path).name, "line": one.line, "problem": one.message} for one in self.bad]
            record["skipped_lines"] = {"count": self.skipped, "first": where}
        return record


def open_turns(data: str, subset: Subsets, *, limit: int | None, seed: int, skip_bad: bool = False) -> TurnSource:
    """Find the files of ``data`` (a folder, or one JSONL file of a known form), check them, choose turns.

    ``subset``: ``both`` are the paper's; ``all`` are these and whatever else of the benchmark the folder has.
    ``skip_bad``: pass over lines that cannot be used, and count them.

    :raises DatasetError: a file is missing, one of its lines is wrong, or it does not hold the subset.
    """
    path = Path(data)
    unread: list[str] = []
    if path.is_dir():
        wanted = [name for name in FILES if subset in (name, "all") or (subset == "both" and name in _PAPER_SUBSETS)]
        if subset == "all":
            wanted = [name for name in wanted if name in _PAPER_SUBSETS or (path / FILES[name]).is_file()]
            unread = sorted({file.name for file in path.glob("FunctionChat-*.jsonl")} - set(FILES.values()))
        if not wanted:
            raise DatasetError(f"is a folder, which has no file of the subset {subset}; name the file", path=data)
        files = [(name, path / FILES[name]) for name in wanted]
        missing = [file.name for _, file in files if not file.is_file()]
        if missing:
            raise DatasetError(f"has no {' and no '.join(missing)}; name one file, or a --subset", path=data)
    else:
        form = _detect_form(path)
        files = [(form, path)]
        if subset not in ("both", "all", form):
            raise DatasetError(f"holds turns of the form {form}, not {subset}; leave --subset out", path=data)
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
    """What tells these files from others of the same names.

    :raises DatasetError: one cannot be read.
    """
    whole = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                whole.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", path=str(file)) from None
    return whole.hexdigest()[:16]


def _detect_form(path: Path) -> Subset:
    """Which form a file has, by the fields of its first record; of the common form, which subset by its name."""
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
