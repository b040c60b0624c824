"""Rating sheet: rows of human ratings and judges' scores, read from files or a recorded run, and joined.

A score of -1 in a column without other negative scores is a judgment that could not be parsed, as in MT-Bench: it is
counted and never averaged.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from viva.data.items import preview
from viva.engine.conversation_replay import Exchange
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import empty_results, recorded_settings
from viva.orchestration.transcripts import Transcripts
from viva.scenarios.contract import RecordedReply, compared_role, judge_role, turn_scores
from viva.scenarios.models import label_of_key, lineup_labels
from viva.scoring.agreement import Rating

from .rating_files import (
    MISSING_VALUES,
    Columns,
    FlatRecord,
    NamedColumns,
    find_columns,
    flat_records,
    flatten,
    form_hint,
    is_rating_name,
    parse_ratings,
    raw_records,
)
from .rating_forms import PLAIN, convert_published

RatingKey: TypeAlias = tuple[str, str | None, str | None]  # item, system, turn
UNPARSED = -1.0
MOST_LABELS = 12  # with more distinct values, ratings are not labels
_SEVERAL_NUMBERS = re.compile(r"[-+]?\d+(?:\.\d+)?(?:\s*[,;|/]\s*[-+]?\d+(?:\.\d+)?|\s+[-+]?\d+(?:\.\d+)?)+")


_EXPLAINED = re.compile(r"(?<=n/a) \(.*\)\Z", re.DOTALL)  # why there is no rating, as in FED


@dataclass(slots=True)
class SheetRow:
    """Output with its ratings and scores.

    `human` has each annotator's rating by criterion, `scores` one score by judge and criterion. Missing and unreadable
    ones are None.
    """

    line: int
    item: str
    system: str | None = None
    turn: str | None = None
    group: str | None = None
    human: dict[str, list[Rating | None]] = field(default_factory=dict)
    scores: dict[tuple[str, str], Rating | None] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> RatingKey:
        """Key that distinguishes the row from other rows."""
        return self.item, self.system, self.turn


@dataclass(slots=True)
class Sheet:
    """Rows of ratings and scores.

    `annotators` has the annotators' names by criterion; `fields` describes as what each field was read; rows have
    `texts` if the outputs themselves are known. With `one_judge`, the judges are scorers of one judge's verdicts, which
    are no jury.
    """

    source: str
    rows: list[SheetRow]
    annotators: dict[str, list[str]] = field(default_factory=dict)
    fields: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    one_judge: bool = False

    @property
    def judges(self) -> list[str]:
        """Judges, in order of first appearance."""
        return list(dict.fromkeys(judge for row in self.rows for judge, _ in row.scores))

    def criteria_of(self, judge: str) -> list[str]:
        """Return the criteria that a judge has scored."""
        return list(dict.fromkeys(criterion for row in self.rows for name, criterion in row.scores if name == judge))


def read_rating_sheet(
    path: Path,
    options: NamedColumns | None = None,
    unscored: Sequence[str] = (),
    form: str | None = None,
    *,
    of_people: bool = False,
) -> Sheet:
    """Read the rows of a file.

    Args:
        path: The file.
        options: Fields that the user names. A published form is then not recognised.
        unscored: Values that mean no score, besides empty ones.
        form: Name of a published form, or `plain`; None to recognise it.
        of_people: The file is known to hold human ratings.

    Raises:
        ConfigurationError: if there is no such form.
        DatasetError: if the file cannot be read, has neither ratings nor scores, or has an unusable value; the error
            names file, line and field.
    """
    options = options or NamedColumns()
    raws = raw_records(path)
    raws, published = convert_published(raws, path, form or (None if options.is_empty else PLAIN), of_people=of_people)
    records = flat_records(raws, path)
    _unfold_ratings(records, options, path)
    names = dict.fromkeys(name for _, record in records for name in record)
    numeric = {name for name in names if _all_numbers(record.get(name) for _, record in records)}
    unvaried = {
        name for name in names if name not in numeric and _is_unvaried(record.get(name) for _, record in records)
    }
    columns = find_columns(names, options, str(path), numeric, unvaried)
    if not columns.human and not columns.scores:
        have = ", ".join(list(names)[:30])
        hint = form_hint(path) if len(records) == 1 else ""
        raise DatasetError(
            f"neither human ratings nor scores were found among its fields ({have}); name them with --human, "
            f"--annotator and --score{hint}",
            path=str(path),
        )
    # The annotators of one criterion share a kind of rating, and so do the scores of a judge.
    related = [*columns.human.values(), *([column_name] for column_name in columns.scores.values())]
    values = {
        name: column for names_ in related for name, column in _column_values(path, names_, records, unscored).items()
    }
    spelling: dict[str, str] = {}
    values = {name: _unify_spelling(column, spelling) for name, column in values.items()}
    raters = _named_raters(records, columns)
    rows = [_make_row(index, line, record, columns, values, raters) for index, (line, record) in enumerate(records)]
    rows = _merge_rows(rows, columns, str(path))
    _group_by_item(rows, columns)
    annotators = {_row_criterion(record, columns, criterion): raters or names
                  for _, record in records for criterion, names in columns.human.items()}  # fmt: skip
    sheet = Sheet(str(path), rows, annotators, [columns.describe()])
    if published:
        sheet.fields.append(f"read in the form of {published} (--form plain: by its fields' names alone)")
    if columns.group is None and any(row.group is not None for row in rows):
        sheet.fields.append(f"rows with the same {columns.item} form a group")
    return sheet


def join_ratings(scores: Sheet, ratings: Sheet, *, keep_unrated: bool = False) -> Sheet:
    """Return the rows of `scores` that have human ratings, joined with them by item, system and turn.

    A rating without a system, a turn or both must agree with exactly one row in what it has. If some rows have no turn,
    a rating without a turn is compared only with these. Rows without a rating are left out, and a note counts them,
    unless `keep_unrated`.

    Raises:
        DatasetError: if a rating matches no row, or several.
    """
    if not ratings.annotators:
        raise DatasetError(
            "no human ratings found; if the file has some, name their fields with --human", path=ratings.source
        )
    by_key: dict[RatingKey, list[SheetRow]] = {}
    for row in scores.rows:
        item, system, turn = row.key
        for key in {(item, system, turn), (item, None, turn), (item, system, None), (item, None, None)}:
            by_key.setdefault(key, []).append(row)
    complete = {row.key for row in scores.rows if row.turn is None}
    rated_lines: dict[int, int] = {}
    spelling = {
        label.casefold(): label for row in scores.rows for label in row.scores.values() if isinstance(label, str)
    }
    for rating in ratings.rows:
        matches = by_key.get(rating.key, [])
        if rating.turn is None and complete:  # rated as a whole
            matches = [row for row in matches if row.turn is None]
        if len(matches) != 1:
            raise _join_error(rating, matches, scores, ratings)
        row = matches[0]
        if id(row) in rated_lines:
            message = f"rates {_describe_row(row)} again (first in line {rated_lines[id(row)]}); keep one of them"
            raise DatasetError(message, path=ratings.source, line=rating.line)
        rated_lines[id(row)] = rating.line
        row.human = {name: _unify_spelling(ratings_, spelling) for name, ratings_ in rating.human.items()}
        row.texts = rating.texts | row.texts
        row.group = row.group or rating.group
    rated = [row for row in scores.rows if keep_unrated or id(row) in rated_lines]
    notes = [*scores.notes, *ratings.notes]
    if unrated := len(scores.rows) - len(rated):
        notes.append(f"{unrated:,} of {len(scores.rows):,} scored rows have no human rating and are left out")
    fields = [*scores.fields, *ratings.fields]
    return Sheet(scores.source, rated, ratings.annotators, fields, notes, scores.one_judge)


def _join_error(rating: SheetRow, matches: Sequence[SheetRow], scores: Sheet, ratings: Sheet) -> DatasetError:
    description = _describe_row(rating)
    if matches:
        example = _describe_row(matches[0])
        message = (
            f"{description} matches {len(matches)} rows of {scores.source}, such as {example}; add the rating's system "
            "or turn"
        )
    else:
        same_item = [row for row in scores.rows if row.item == rating.item]
        examples = (
            _describe_row(same_item[0]) if same_item else ", ".join(dict.fromkeys(row.item for row in scores.rows[:3]))
        )
        message = f"{description} is not in {scores.source}, which has, for example, {examples}"
    return DatasetError(message, path=ratings.source, line=rating.line)


def _describe_row(row: SheetRow) -> str:
    parts = [f"item '{row.item}'"] + ([f"system '{row.system}'"] if row.system is not None else [])
    return ", ".join([*parts, *([f"turn {row.turn}"] if row.turn is not None else [])])


# -- values -----------------------------------------------------------------------------------------------------------


def _named_raters(records: Sequence[tuple[int, FlatRecord]], columns: Columns) -> list[str]:
    """Return the annotators of a field that names one for each row."""
    if columns.annotator is None:
        return []
    return list(dict.fromkeys(_to_text(record.get(columns.annotator)) or "" for _, record in records))


def _row_criterion(record: FlatRecord, columns: Columns, name: str) -> str:
    """Return the criterion of a rating: the row's criterion, then the field's, joined by a dot."""
    about = _to_text(record.get(columns.criterion)) if columns.criterion is not None else None
    return ".".join(part for part in (about, name) if part)


def _make_row(
    number: int,
    line: int,
    record: FlatRecord,
    columns: Columns,
    values: dict[str, list[Rating | None]],
    raters: Sequence[str],
) -> SheetRow:
    item = _to_text(record.get(columns.item)) if columns.item is not None else None
    row = SheetRow(line, item or str(line))
    row.system, row.turn, row.group = (_to_text(record.get(name)) if name is not None else None
                                       for name in (columns.system, columns.turn, columns.group))  # fmt: skip
    rater = _to_text(record.get(columns.annotator)) or "" if columns.annotator is not None else ""
    for criterion, names in columns.human.items():
        ratings = [values[name][number] for name in names]
        if raters:
            ratings = [ratings[0] if annotator == rater else None for annotator in raters]
        row.human[_row_criterion(record, columns, criterion)] = ratings
    judge_name = "/".join(text for name in columns.judge if (text := _to_text(record.get(name))))
    alone = Counter(criterion for _, criterion in columns.scores)
    for (judge, criterion), name in columns.scores.items():
        label = judge if not judge_name else judge_name if alone[criterion] == 1 else f"{judge_name}: {judge}"
        row.scores[(label, _row_criterion(record, columns, criterion))] = values[name][number]
    row.texts = {name: value for name, value in record.items() if isinstance(value, str)}
    return row


def _group_by_item(rows: Sequence[SheetRow], columns: Columns) -> None:
    """Make rows of the same item a group if no field names groups."""
    if columns.group is None and columns.item is not None and len({row.item for row in rows}) < len(rows):
        for row in rows:
            row.group = row.item


def _merge_rows(rows: Sequence[SheetRow], columns: Columns, path: str) -> list[SheetRow]:
    """Merge rows about the same output if a field names the judge, the criterion or the annotator."""
    if not columns.judge and columns.criterion is None and columns.annotator is None:
        return list(rows)
    merged: dict[RatingKey, SheetRow] = {}
    for row in rows:
        before = merged.setdefault(row.key, row)
        if before is not row:
            _merge_row(before, row, columns, path)
    return list(merged.values())


def _merge_row(before: SheetRow, row: SheetRow, columns: Columns, path: str) -> None:
    """Merge a row into an earlier one.

    Raises:
        DatasetError: if both hold a rating by the same judge or annotator.
    """
    for criterion, ratings in row.human.items():
        merged = before.human.setdefault(criterion, [None] * len(ratings))
        for at, rating in enumerate(ratings):
            if rating is None or (columns.judge and merged[at] == rating):
                continue
            if merged[at] is not None:
                message = (
                    f"people have already rated {_describe_row(row)} in line {before.line}; keep one of them, or name"
                )
                raise DatasetError(f"{message} what distinguishes the two (--system, --turn)", path=path, line=row.line)
            merged[at] = rating
    for key, score in row.scores.items():
        if key in before.scores and (columns.judge or (score is not None and before.scores[key] not in (None, score))):
            message = f"{key[0]} has already scored {_describe_row(row)} in line {before.line}; keep one of them"
            raise DatasetError(message, path=path, line=row.line)
        if before.scores.get(key) is None:
            before.scores[key] = score


def _unfold_ratings(records: Sequence[tuple[int, FlatRecord]], options: NamedColumns, path: Path) -> None:
    """Split texts of lists and objects (`"[4, 5]"`) into fields; rename single ratings `NAME.1` if others have a list.

    Raises:
        DatasetError: if a field is a single value in one record and an object in another; the message names the line.
    """
    for _, record in records:
        for name in [
            name for name, value in record.items() if isinstance(value, str) and is_rating_name(name, options)
        ]:
            inner = parse_ratings(record[name])
            if inner is not None:
                del record[name]
                record |= flatten(inner, name)
    lists = {name.rpartition(".")[0] for _, record in records for name in record if name.endswith(".1")}
    for _, record in records:
        for name in [
            key for key in record if key in lists and f"{key}.1" not in record and is_rating_name(key, options)
        ]:
            value = record.pop(name)
            if value != [] and not _is_missing(value, ()):
                record[f"{name}.1"] = value
    families: dict[str, int] = {}
    for line, record in records:
        for name in record:
            for at, sign in enumerate(name):
                if sign == ".":
                    families.setdefault(name[:at], line)
    for line, record in records:
        for name in families.keys() & record.keys():
            is_single = not any(key.startswith(f"{name}.") for key in record)
            if is_single and is_rating_name(name, options) and not _is_missing(record[name], ()):
                message = f"found {preview(record[name])} here, and a list or an object in line {families[name]}"
                raise DatasetError(message, path=str(path), line=line, field=name)


def _column_values(
    path: Path, names: Sequence[str], records: Sequence[tuple[int, FlatRecord]], unscored: Sequence[str]
) -> dict[str, list[Rating | None]]:
    """Return the values of related fields: numbers, or labels if no value is a number.

    Raises:
        DatasetError: if numbers and texts are mixed, or a value is several ratings; the message names the line.
    """
    columns = {
        name: [_parse_rating(path, line, name, record.get(name), unscored) for line, record in records]
        for name in names
    }
    if any(isinstance(value, float) for column in columns.values() for value in column):
        for name, column in columns.items():
            for (line, _), rating in zip(records, column, strict=True):
                if isinstance(rating, str):
                    message = (
                        f"expected a number as in the other lines, found {preview(rating)}; leave it empty if there is "
                        "none, or name it with --unscored"
                    )
                    raise DatasetError(message, path=str(path), line=line, field=name)
    for name, column in columns.items():
        numbers = [rating for rating in column if isinstance(rating, float)]
        if numbers and min(numbers) == UNPARSED and all(rating >= 0 for rating in numbers if rating != UNPARSED):
            columns[name] = [None if rating == UNPARSED else rating for rating in column]
    return columns


def _unify_spelling(ratings: Iterable[Rating | None], spelling: dict[str, str]) -> list[Rating | None]:
    """Return labels as first spelled: "Pass" and "pass" are the same."""
    return [spelling.setdefault(rating.casefold(), rating) if isinstance(rating, str) else rating for rating in ratings]


def _parse_rating(path: Path, line: int, name: str, value: Any, unscored: Sequence[str]) -> Rating | None:
    """Parse a number or label; None if missing.

    Raises:
        DatasetError: if the value is a list, an object, or a text of several numbers.
    """
    if isinstance(value, list | dict):
        if not value:
            return None
        raise DatasetError(
            f"expected a number or a label, found {preview(value)}", path=str(path), line=line, field=name
        )
    if _is_missing(value, unscored):
        return None
    number = _to_number(value)
    if number is not None:
        return number
    text = _to_text(value)
    if text is not None and _SEVERAL_NUMBERS.fullmatch(text):
        message = f"expected one number or a label, found {preview(text)}; write several ratings as a list: [4, 5]"
        raise DatasetError(message, path=str(path), line=line, field=name)
    return text


def _is_missing(value: Any, unscored: Sequence[str]) -> bool:
    text = _to_text(value)
    if isinstance(value, list | dict):
        return False
    return text is None or text in unscored or _EXPLAINED.sub("", text.lower()) in MISSING_VALUES


def _is_unvaried(values: Iterable[Any]) -> bool:
    """Return True for texts that cannot be ratings: the same in every row, or too many for labels."""
    present = [value for value in values if not _is_missing(value, ())]
    texts = {value for value in present if isinstance(value, str)}
    if (
        not texts
        or len(texts) != len({_to_text(value) for value in present})
        or any(_to_number(text) is not None for text in texts)
    ):
        return False
    return len(texts) == 1 or len(texts) > MOST_LABELS


def _all_numbers(values: Iterable[Any]) -> bool:
    present = [value for value in values if not _is_missing(value, ())]
    return bool(present) and all(_to_number(value) is not None for value in present)


def _to_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _to_text(value: Any) -> str | None:
    if value is None or isinstance(value, list | dict):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return text or None


def check_scored(sheet: Sheet) -> None:
    """Raise ConfigurationError if there are neither scores nor two annotators of one criterion."""
    if not sheet.judges and all(len(names) < 2 for names in sheet.annotators.values()):
        raise ConfigurationError(
            f"{sheet.source}: human ratings of one annotator and no scores; name the scores with --score"
        )


def is_run_folder(path: Path) -> bool:
    """Return True for a folder, False for a file; whether the folder holds a run is not checked."""
    return path.is_dir()


def run_sheet(path: Path, scorers: Sequence[str] = ()) -> Sheet:
    """Return a row for each conversation as a whole (no turn) and for each of its scored turns.

    The judge of the sheet is the label of the judge model, or the scenario itself if there is no judge model. With
    several `scorers` (`Scoring.parse`), each is a judge of its own.

    Raises:
        ConfigurationError: if the folder holds no readable run, or its scenario has no such scorer.
        JournalError: if its journal is damaged.
    """
    folder = RunFolder.open(path)
    scenario, settings = recorded_settings(folder)
    folder.require_journal()
    chosen = {text: scenario.scoring.parse(text) for text in scorers}
    roles = scenario.roles_of(settings)
    labels = lineup_labels(roles, folder.manifest)
    judge = scenario.name
    if (role := judge_role(roles)) is not None and not role.many:
        judge = f"{scenario.name}: {_model_label(folder.manifest['models'][role.name])}"
    scores_of = {
        f"{judge} ({text})" if len(chosen) > 1 else judge: turn_scores(
            scenario, settings.model_copy(update=scoring.model_dump(exclude_none=True))
        )
        for text, scoring in chosen.items()
    } or {judge: turn_scores(scenario, settings)}
    rows: list[SheetRow] = []
    failed = 0
    with History(folder.journal) as history:
        for ended in history.ended():
            failed += ended.failed
            if ended.failed:
                continue
            label = label_of_key(ended.key, labels)
            item = ended.key.removeprefix(f"{label}/")
            own: dict[str | None, SheetRow] = {}
            for name, read in scores_of.items():
                for entry in read(ended.result):
                    turn = None if entry.turn is None else str(entry.turn)
                    row = own.setdefault(turn, SheetRow(len(rows) + len(own) + 1, item, label, turn, group=item))
                    row.scores |= {(name, criterion): score for criterion, score in entry.scores.items()}
            rows += own.values()
    notes = [f"{failed:,} conversations failed and have no score"] if failed else []
    compared = " and ".join(role.name for role in roles if role.many)
    description = f"the run's {scenario.plural or 'conversations'} by item, {compared} and turn"
    for scoring in chosen.values():
        note = scoring.note(empty_results(folder).report())
        notes += [note] if note is not None and note not in notes else []
    description += f", scored by {next(iter(chosen))}" if len(chosen) == 1 else ""
    return Sheet(str(path), rows, fields=[description], notes=notes, one_judge=len(chosen) > 1)


async def read_replies(path: Path) -> list[RecordedReply]:
    """Return the replies of the compared models in a run, in order, by replaying its conversations."""
    folder = RunFolder.open(path)
    scenario, settings = recorded_settings(folder)
    folder.require_journal()
    role = compared_role(scenario.roles_of(settings)).name
    transcripts, replies = Transcripts(folder), list[RecordedReply]()
    with History(folder.journal) as history:
        for number in list(history.numbers()):
            key = (history.started(number) or ("", None))[0]
            if not key:
                continue
            label = transcripts.label_of(key)
            lines = (await transcripts.replay(history, number)).lines
            replies += _conversation_replies(lines, role, label, key.removeprefix(f"{label}/"))
    return replies


def _conversation_replies(lines: list[Any], role: str, label: str, item: str) -> Iterator[RecordedReply]:
    exchanges = (exchange for exchange in lines if isinstance(exchange, Exchange) and exchange.role == role)
    answers = ((exchange, exchange.completion) for exchange in exchanges if exchange.completion is not None)
    for turn, (exchange, completion) in enumerate(answers):  # ordinals start anew in each branch
        question = exchange.messages[-1].content if exchange.messages else ""
        yield RecordedReply(label, item, turn, question, completion.text)


def _model_label(model: Any) -> str:
    from viva.engine.backends.base import ModelSpec

    return ModelSpec.parse(str(model)).label if model is not None else ""
