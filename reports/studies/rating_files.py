"""Files of ratings and scores: their records (CSV, TSV, JSON, Parquet), flattened, and the meaning of their fields.

Nested objects are flattened (`scores.fluency`), lists numbered from 1 (`annotators.2`). Fields are named by the user or
recognised by name; the report states what was recognised, so that users see wrong guesses.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from viva.data.dataset import wrapped_records_hint
from viva.data.record_files import read_records
from viva.engine.errors import DatasetError

FlatRecord: TypeAlias = dict[str, Any]
MAX_LIST = 64  # entries up to which a list is read as ratings
_MAX_TEXT = 4_000  # characters up to which a text is parsed as a list
MISSING_VALUES = ("", "nan", "none", "null", "n/a", "n.a.", "na", "#n/a")  # texts that mean no rating, in lower case
_RATING = re.compile(
    r"""["']?(?:[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|none|null|n/?a)["']?""", re.IGNORECASE
)
_ARRAY = re.compile(r"(?:np\.|numpy\.)?array\((\[.*\])(?:, dtype=\S+)?\)")
_RATINGS = re.compile(rf"\s*(?:{_RATING.pattern}(?:\s*[,;]\s*|\s+|\s*$))*", re.IGNORECASE)


def raw_records(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the records of a file, each with the line in which it begins.

    Raises:
        DatasetError: if the file or a record cannot be read; the message names the line.
        ConfigurationError: if the file is a Parquet file, and the library for it is not installed.
    """
    records: list[tuple[int, Mapping[str, Any]]] = []
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        records.append((line, raw))
    if not records:
        raise DatasetError("contains no records", path=str(path))
    return records


def flat_records(raws: Iterable[tuple[int, Mapping[str, Any]]], path: Path) -> list[tuple[int, FlatRecord]]:
    """Return a file's records with flattened fields.

    Raises:
        DatasetError: if the file's only record has a column in each field.
    """
    records = [(line, dict(flatten(raw))) for line, raw in raws]
    if len(records) == 1 and _are_columns(records[0][1]):
        message = "has a column in each field; save one record per row (pandas: to_json(..., orient='records'))"
        raise DatasetError(message, path=str(path))
    return records


def form_hint(path: Path) -> str:
    """Return what to save instead of a file that is one object around all records; empty for other files."""
    _, raw = next(read_records(path))
    return "" if isinstance(raw, DatasetError) else wrapped_records_hint(raw)


def _are_columns(record: FlatRecord) -> bool:
    """Return True if a file's only record has the same indices, three or more, in each of its fields."""
    places: dict[str, list[str]] = {}
    for name in record:
        field, _, suffix = name.partition(".")
        places.setdefault(field, []).append(suffix)
    first = next(iter(places.values()))
    numbered = len(first) > 2 and all(map(str.isdecimal, first))
    return len(places) > 1 and numbered and all(suffixes == first for suffixes in places.values())


def parse_ratings(text: str) -> Any:
    """Parse a list or object of ratings or labels, in JSON, Python or numpy syntax; None for other texts."""
    text = text.strip()
    text = match[1] if (match := _ARRAY.fullmatch(text)) is not None else text
    if not 2 <= len(text) <= _MAX_TEXT or text[0] + text[-1] not in ("[]", "()", "{}"):
        return None
    if text[0] != "{" and (inner := _RATINGS.fullmatch(text[1:-1])) is not None:
        return [_parse_literal(literal) for literal in _RATING.findall(inner[0])]
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        value = list(value) if isinstance(value, tuple) else value
        return value if isinstance(value, list | dict) and _are_ratings(value) else None
    return None


def _parse_literal(text: str) -> Any:
    text = text.strip("\"'")
    return None if text.lower() in MISSING_VALUES else float(text)


def _are_ratings(value: Any) -> bool:
    """Return True if a list or object contains only numbers, labels and texts."""
    if isinstance(value, dict):
        return bool(value) and all(map(_are_ratings, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_are_ratings, value))
    return value is None or isinstance(value, int | float | str)


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a nested value's fields, each with its full name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and 0 < len(value) <= MAX_LIST:
        for number, inner in enumerate(value, 1):
            yield from flatten(inner, f"{name}.{number}")
    else:
        yield name, value


_KEY_COLUMNS = {  # what a field tells about a row, with the names of such fields; the first match wins
    "item": ("id", "item", "item_id", "idx", "example_id", "question_id", "uid", "key"),
    "group": ("group", "source", "source_id", "doc_id", "document", "question_id", "dialog_id", "dialogue_id",
              "instruction", "prompt", "question", "input"),
    "system": ("system", "system_id", "model", "model_id", "candidate", "generator"),
    "turn": ("turn", "round"),
    "judge": ("judge", "evaluator", "judge_model", "judge_name", "judge_id", "evaluator_model", "evaluator_name"),
    "criterion": ("criterion", "criteria", "aspect", "dimension"),
    "annotator": ("annotator", "annotator_id", "annotator_name", "rater", "rater_id", "rater_name", "worker",
                  "worker_id", "labeler", "reviewer", "grader_id"),
}  # fmt: skip
_ANNOTATOR_FIELDS = (
    *_KEY_COLUMNS["annotator"],
    "id",
    "name",
    "time",
    "timestamp",
)  # fields that describe the rater or the rating, and are no ratings
_REMARKS = ("comment", "comments", "explanation", "justification", "note", "notes", "rationale", "reason", "reasoning")
_ANNOTATOR = re.compile(r"(?:annotator|rater|human|expert|grader|labell?er|reviewer)s?[ _.-]?\d+", re.IGNORECASE)
# The criterion after or before its rater: human_fluency, fluency_annotator_2, judge_fluency.
_RATER = r"(?P<{0}>(?:annotator|rater|human|expert|grader|labell?er|reviewer|judge|metric|auto|pred(?:icted)?)s?_?\d*)"
_COMPOUND = re.compile(f"{_RATER.format('first')}_(?P<last>.+)|(?P<start>.+)_{_RATER.format('end')}")
_MACHINE_RATER = re.compile(r"(?:judge|metric|auto|pred)", re.IGNORECASE)
_HUMAN_NAMES = ("human", "humans", "human_score", "human_scores", "human_rating", "human_ratings", "human_label",
          "rating", "ratings", "gold", "label", "expert", "annotation", "annotations", "expert_annotations",
          "annotators")  # fmt: skip
_JUDGE_NAMES = ("predict_scores", "prediction", "predictions", "predicted", "judge_score", "judge_scores", "judges",
           "metric", "metrics", "verdict", "auto", "evaluators")  # fmt: skip
_JUDGE_PREFIX = re.compile(r"(?:judge|pred|predicted|metric|auto)[_ -].+", re.IGNORECASE)
_SCORE_NAMES = ("score", "scores")  # people's scores if other fields have a judge's; else a judge's


@dataclass(slots=True)
class NamedColumns:
    """Fields that the user names; None or empty if they are to be recognised.

    `human`, `score` and `annotator` may name one field or all fields of an object.
    """

    item: str | None = None
    group: str | None = None
    system: str | None = None
    turn: str | None = None
    judge: str | None = None
    human: Sequence[str] = ()
    annotator: Sequence[str] = ()
    score: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """True if no field is named."""
        return not any(getattr(self, field.name) for field in fields(self))

    def of_scores(self) -> NamedColumns:
        """Return the names for a file of scores whose ratings are in another file."""
        return replace(self, human=(), annotator=())

    def of_people(self) -> NamedColumns:
        """Return the names for the file of ratings by people."""
        return replace(self, score=(), judge=None)


@dataclass(slots=True)
class Columns:
    """Meaning of a file's fields.

    `human` has the annotators' fields by criterion, `scores` one field by (judge, criterion). The criterion is empty if
    no field's name mentions a criterion.
    """

    item: str | None = None
    group: str | None = None
    system: str | None = None
    turn: str | None = None
    criterion: str | None = None
    annotator: str | None = None
    judge: list[str] = field(default_factory=list)
    human: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[tuple[str, str], str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Describe in one line as what each field was read."""
        parts = [f"{key} {name}" for key in ("item", "group", "system", "turn", "criterion", "annotator")
                 if (name := getattr(self, key)) is not None]  # fmt: skip
        parts += [f"judge {', '.join(self.judge)}"] if self.judge else []
        human = [name for names in self.human.values() for name in names]
        parts += [f"human ratings {_list_some(human)}"] if human else []
        parts += [f"scores {_list_some(list(self.scores.values()))}"] if self.scores else []
        parts += [f"not a score: {_list_some(self.left_out)} (texts that are not labels)"] if self.left_out else []
        return "; ".join(parts)


def is_rating_name(name: str, options: NamedColumns) -> bool:
    """Return True if a field may hold ratings or scores, by its name."""
    fields = (*options.human, *options.annotator, *options.score)
    if any(name == prefix or name.startswith(f"{prefix}.") for prefix in fields):
        return True
    compound = _COMPOUND.fullmatch(_normalize_name(name)) is not None
    return (
        _is_human(name) or _is_judged(name) or compound or _first_part(name) in (*_SCORE_NAMES, *_KEY_COLUMNS["judge"])
    )


def find_columns(
    names: Iterable[str],
    options: NamedColumns,
    path: str,
    numeric: Collection[str] = (),
    unvaried: Collection[str] = (),
) -> Columns:
    """Recognise the fields of a file.

    Args:
        names: All fields.
        options: Fields that the user names.
        path: The file, for messages.
        numeric: Fields that hold only numbers.
        unvaried: Fields of texts that cannot be labels: the same in every row, or too many different ones.

    Raises:
        DatasetError: if a named field does not exist, is no rating, or is named twice with different meanings.
    """
    all_names = list(names)
    columns = Columns()
    keys = {_normalize_name(column): column for column in reversed(all_names)}
    texts = [column for column in all_names if column not in numeric]
    for key, candidates in _KEY_COLUMNS.items():
        option = getattr(options, key) if key not in ("criterion", "annotator") else None
        if (
            option is not None
            and option not in all_names
            and not (key == "judge" and _nested_fields(option, all_names))
        ):
            raise _unknown_field(option, all_names, path)
        name = option or next((keys[column] for column in candidates if column in keys), None)
        if key == "judge":
            columns.judge = (
                [option]
                if option in all_names
                else _nested_fields(option, all_names)
                if option
                else _judge_fields(texts)
            )
        elif key != "criterion" or (name in texts and name not in unvaried):
            setattr(columns, key, name)
    people = _chosen_fields([*options.human, *options.annotator], all_names, path)
    judged = _chosen_fields(options.score, all_names, path)
    if options.annotator:
        columns.annotator = None
    if constant := [column for column in judged if column in unvaried]:
        message = "contains texts that cannot be scores: the same in every row, or too many different ones"
        raise DatasetError(message, path=path, field=constant[0])
    places = {
        columns.item,
        columns.group,
        columns.system,
        columns.turn,
        columns.criterion,
        columns.annotator,
        *columns.judge,
    }
    spelled = _respell([column for column in all_names if column not in places and column not in unvaried])
    spelled |= {
        field: _respell_annotator(field, name)
        for name in options.annotator
        for field in _chosen_fields([name], all_names, path)
    }

    def is_human(name: str) -> bool:
        last = _normalize_name(name.rpartition(".")[2])
        if last in _ANNOTATOR_FIELDS or (last in _REMARKS and name not in numeric):
            return False
        return _is_human(name) if name not in spelled else not _MACHINE_RATER.match(spelled[name])

    def is_judged(name: str) -> bool:
        if name in spelled:
            return _MACHINE_RATER.match(spelled[name]) is not None
        parts = name.split(".")[1:2]  # a criterion; an index belongs to a list [judge, prompt]
        of_judge = (
            _first_part(name) in _KEY_COLUMNS["judge"] and name in numeric and parts != [] and not parts[0].isdecimal()
        )
        return _is_judged(name) or of_judge

    if not options.human and not options.annotator:
        people = [column for column in all_names if column not in places and column not in judged and is_human(column)]
        if not people:
            people = [
                column
                for column in numeric
                if column not in places and column not in judged and _is_compound_human(column)
            ]
            spelled |= _respell(people, alone=True)
        if not people and (judged or any(map(is_judged, all_names)) or columns.annotator is not None):
            people = [
                column
                for column in all_names
                if _first_part(column) in _SCORE_NAMES and column not in judged and column not in places
            ]
        plain = [
            column for column in people if column in unvaried and "." not in column and not _ANNOTATOR.fullmatch(column)
        ]
        if len(plain) < len(people):  # a name or a note beside the ratings
            people = [column for column in people if column not in plain]
    if not options.score:
        columns.left_out = [
            column for column in all_names if column in unvaried and column not in places and is_judged(column)
        ]
        places |= set(unvaried)
        judged = [column for column in all_names if column not in places and column not in people and is_judged(column)]
        if not judged:
            judged = [column for column in all_names if column not in places and column not in people
                      and (_first_part(column) in _SCORE_NAMES or column in _KEY_COLUMNS["judge"])]  # fmt: skip
    if both := [column for column in judged if column in people]:
        raise DatasetError(
            "is named as a human rating and as a judge's score; name two different fields",
            path=path,
            field=both[0],
        )
    columns.human = _group_by_criterion(people, spelled, path)
    columns.scores = _group_by_judge(judged, spelled, columns.human)
    if not columns.human or any(len(fields) > 1 for fields in columns.human.values()):
        columns.annotator = None  # rows do not belong to a single annotator
    return columns


def _normalize_name(name: str) -> str:
    """Normalise a field's name: `Human Rating` and `humanRating` become `human_rating`."""
    return re.sub(r"[ _-]+|(?<=[a-z0-9])(?=[A-Z])", "_", name.strip()).lower()


def _is_compound_human(name: str) -> bool:
    match = _COMPOUND.fullmatch(_normalize_name(name))
    return (
        match is not None
        and not _MACHINE_RATER.match(match["first"] or match["end"])
        and _normalize_name(name) not in _ANNOTATOR_FIELDS
    )


def _respell(names: Sequence[str], *, alone: bool = False) -> dict[str, str]:
    """Return `rater.criterion` for fields that name rater and criterion in one word.

    A field is renamed only if a judge and people, or several people, rated that criterion; with `alone`, always.
    """
    raters: dict[str, dict[str, str]] = {}
    for name in names:
        if "." not in name and (match := _COMPOUND.fullmatch(_normalize_name(name))) is not None:
            rater, criterion = (match["first"], match["last"]) if match["first"] else (match["end"], match["start"])
            if (
                _normalize_name(name) not in (*_HUMAN_NAMES, *_JUDGE_NAMES, *_ANNOTATOR_FIELDS)
                and not criterion.isdecimal()
            ):
                raters.setdefault(criterion, {})[name] = rater
    both = {name: f"{rater}.{criterion}" for criterion, fields in raters.items() for name, rater in fields.items()
            if alone or (len(set(fields.values())) > 1 and not all(map(_MACHINE_RATER.match,
                fields.values())))}  # fmt: skip
    return {name: both[name] for name in names if name in both}


def _respell_annotator(field: str, annotator: str) -> str:
    """Return a field of one annotator in the spelling of `annotators.1.fluency`."""
    return f"annotators.1{field.removeprefix(annotator)}"


def _chosen_fields(requested: Sequence[str], all_names: Sequence[str], path: str) -> list[str]:
    chosen = []
    for name in requested:
        fields = [name] if name in all_names else _nested_fields(name, all_names)
        if not fields:
            raise _unknown_field(name, all_names, path)
        chosen += fields
    return list(dict.fromkeys(chosen))


def _unknown_field(name: str, all_names: Sequence[str], path: str) -> DatasetError:
    return DatasetError(f"no record has this field; the fields are: {_list_some(all_names, 30)}", path=path, field=name)


def _nested_fields(name: str, all_names: Iterable[str]) -> list[str]:
    """Return the fields of an object or a list."""
    return [column for column in all_names if column.startswith(f"{name}.")]


def _judge_fields(all_names: Sequence[str]) -> list[str]:
    keys = {_normalize_name(column): column for column in reversed(all_names)}
    plain = next((keys[name] for name in _KEY_COLUMNS["judge"] if name in keys), None)
    if plain is not None:
        return [plain]
    # A list as in MT-Bench: the model, then its prompt.
    return [f"{family}.1" for family in _KEY_COLUMNS["judge"] if f"{family}.1" in all_names][:1]


def _first_part(name: str) -> str:
    return _normalize_name(name.partition(".")[0])


def _is_human(name: str) -> bool:
    return _first_part(name) in _HUMAN_NAMES or _ANNOTATOR.fullmatch(_first_part(name)) is not None


def _is_judged(name: str) -> bool:
    return _first_part(name) in _JUDGE_NAMES or _JUDGE_PREFIX.fullmatch(_first_part(name)) is not None


def _group_by_criterion(fields: Sequence[str], spelled: Mapping[str, str], path: str) -> dict[str, list[str]]:
    """Return the fields of each criterion, one for each annotator.

    The criterion is what remains of a field's name without the container of all ratings and the marks of annotators:
    `annotators.2` and `annotator2` rate the unnamed criterion; `expert.2.fluency`, `human.fluency` and
    `annotations.fluency.2` rate fluency. Several lists (`coherence.2`) are separate criteria.

    Raises:
        DatasetError: if a field has lists within lists, so that raters are ambiguous.
    """
    groups: dict[str, list[str]] = {}
    for name in fields:
        parts = spelled.get(name, name).split(".")[1:]
        marks = [part for part in parts if _is_annotator_part(part)]
        if len(marks) > 1:
            message = (
                "has nested lists, so annotators and outputs cannot be distinguished; make one record per output, with "
                "one list of ratings per criterion"
            )
            raise DatasetError(message, path=path, field=name)
        groups.setdefault(".".join(part for part in parts if not _is_annotator_part(part)), []).append(name)
    unnamed = groups.get("", [])
    families = list(dict.fromkeys(_first_part(spelled.get(name, name)) for name in unnamed))
    if len(families) > 1 and not all(_ANNOTATOR.fullmatch(part) for part in families):
        del groups[""]  # several plain fields or lists are separate criteria
        for name in unnamed:
            groups.setdefault(name.partition(".")[0], []).append(name)
    elif unnamed and len(groups) > 1 and len(unnamed) == 1 and not _ANNOTATOR.fullmatch(families[0]):
        del groups[""]
        groups[unnamed[0]] = unnamed
    return groups


def _is_annotator_part(part: str) -> bool:
    """Return True if a part of a field's name identifies an annotator: an index, or a name for annotators."""
    return part.isdecimal() or _ANNOTATOR.fullmatch(part) is not None


def _group_by_judge(
    fields: Iterable[str], spelled: Mapping[str, str], human: Mapping[str, list[str]]
) -> dict[tuple[str, str], str]:
    """Return the field of each judge and criterion.

    The criterion is the longest part of a name that people have rated, too; each index of a list is a separate judge,
    because a judge may have been asked several times.
    """
    scores = {}
    for name in fields:
        parts = spelled.get(name, name).split(".")
        positions = [at for at in range(1, len(parts)) if not parts[at].isdecimal()]
        spans = [positions[low:high] for low in range(len(positions)) for high in range(len(positions), low, -1)]
        matches = [span for span in spans if ".".join(parts[at] for at in span) in human]
        if matches:
            span = max(matches, key=lambda match: (len(match), match[-1]))
            judge = ".".join(part for at, part in enumerate(parts) if at not in span)
            scores[judge, ".".join(parts[at] for at in span)] = name
        else:
            scores[name, name if name in human else ""] = name
    return scores


def _list_some(names: Sequence[str], limit: int = 8) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
