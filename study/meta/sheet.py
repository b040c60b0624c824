"""Rows of human ratings and judges' scores, read from files and joined: what a meta-evaluation computes on.

A score of -1 where no other is negative stands for a judgment that could not be parsed (MT-Bench writes it so): it is
counted and never averaged. What never belongs here: figures (``figures``).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from viva.data.fields import shown
from viva.engine.errors import ConfigurationError, DatasetError
from viva.scoring.agreement import Rating

from .columns import Columns, Named, find_columns, may_rate
from .records import NOTHING, Flat, flat_records, flattened, form_hint, unfolded

Place: TypeAlias = tuple[str, str | None, str | None]  # item, system, turn
UNPARSED = -1.0
MOST_LABELS = 12  # so many distinct values are labels, which kappa compares
_SEVERAL = re.compile(r"[-+]?\d+(?:\.\d+)?(?:\s*[,;|/]\s*[-+]?\d+(?:\.\d+)?|\s+[-+]?\d+(?:\.\d+)?)+")


@dataclass(slots=True)
class SheetRow:
    """One output: ``human`` has by criterion the ratings of its annotators, ``scores`` by judge and criterion a score;
    None where somebody said nothing, or nothing that could be read.
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
    def place(self) -> Place:
        """What tells it from other rows."""
        return self.item, self.system, self.turn


@dataclass(slots=True)
class Sheet:
    """``annotators`` has by criterion their names; ``told`` says which fields were read as what; ``texts`` of rows are
    there where outputs themselves are known.
    """

    source: str
    rows: list[SheetRow]
    annotators: dict[str, list[str]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def judges(self) -> list[str]:
        """The judges, in the order in which they first appear."""
        return list(dict.fromkeys(judge for row in self.rows for judge, _ in row.scores))

    def criteria_of(self, judge: str) -> list[str]:
        """What a judge has scored."""
        return list(dict.fromkeys(one for row in self.rows for name, one in row.scores if name == judge))


def read_sheet(path: Path, named: Named | None = None, unscored: Sequence[str] = ()) -> Sheet:
    """The rows of a file. ``unscored``: values that stand for no score besides empty ones.

    :raises DatasetError: naming file, line and field.
    """
    records = flat_records(path)
    named = named or Named()
    _unfold(records, named, path)
    names = dict.fromkeys(name for _, record in records for name in record)
    numeric = {name for name in names if _all_numbers(record.get(name) for _, record in records)}
    unvaried = {
        name for name in names if name not in numeric and _is_unvaried(record.get(name) for _, record in records)
    }
    columns = find_columns(names, named, str(path), numeric, unvaried)
    if not columns.human and not columns.scores:
        have = ", ".join(list(names)[:30])
        hint = form_hint(path) if len(records) == 1 else ""
        raise DatasetError(
            f"neither human ratings nor scores were found among its fields ({have}); name them with --human, "
            f"--annotator and --score{hint}",
            path=str(path),
        )
    # What annotators say of one criterion is of one kind, and so is what each judge says.
    together = [*columns.human.values(), *([one] for one in columns.scores.values())]
    values = {name: column for names_ in together for name, column in _columns(path, names_, records, unscored).items()}
    spelling: dict[str, str] = {}
    values = {name: _spelled_alike(column, spelling) for name, column in values.items()}
    raters = _raters(records, columns)
    rows = [_row(place, line, record, columns, values, raters) for place, (line, record) in enumerate(records)]
    rows = _by_place(rows, columns, str(path))
    _group_by_item(rows, columns)
    annotators = {_criterion(record, columns, criterion): raters or names
                  for _, record in records for criterion, names in columns.human.items()}  # fmt: skip
    sheet = Sheet(str(path), rows, annotators, [columns.told()])
    if columns.group is None and any(row.group is not None for row in rows):
        sheet.told.append(f"rows of one {columns.item} are one group")
    return sheet


def joined(scores: Sheet, ratings: Sheet) -> Sheet:
    """The rows of ``scores`` with the human ratings of ``ratings`` on the same item, system and turn.

    A rating without a system or turn is for the only one there is.

    :raises DatasetError: a rating is for a row that ``scores`` does not have, or for several of them.
    """
    if not ratings.annotators:
        raise DatasetError("holds no human ratings; name their fields with --human", path=ratings.source)
    by_place: dict[Place, list[SheetRow]] = {}
    for row in scores.rows:
        item, system, turn = row.place
        for key in {(item, system, turn), (item, None, turn), (item, system, None), (item, None, None)}:
            by_place.setdefault(key, []).append(row)
    whole = {row.place for row in scores.rows if row.turn is None}
    met: dict[int, int] = {}
    spelling = {one.casefold(): one for row in scores.rows for one in row.scores.values() if isinstance(one, str)}
    for rating in ratings.rows:
        found = by_place.get(rating.place, [])
        if rating.turn is None and whole:  # rated as a whole
            found = [row for row in found if row.turn is None]
        if len(found) != 1:
            raise _unjoined(rating, found, scores, ratings)
        row = found[0]
        if id(row) in met:
            message = f"rates {_told(row)} once more (line {met[id(row)]} does already); keep one of them"
            raise DatasetError(message, path=ratings.source, line=rating.line)
        met[id(row)] = rating.line
        row.human = {name: _spelled_alike(ratings_, spelling) for name, ratings_ in rating.human.items()}
        row.texts = rating.texts | row.texts
        row.group = row.group or rating.group
    rated = [row for row in scores.rows if id(row) in met]
    notes = [*scores.notes, *ratings.notes]
    if left := len(scores.rows) - len(rated):
        notes.append(f"{left:,} of {len(scores.rows):,} scored rows have no human rating and are left out")
    return Sheet(scores.source, rated, ratings.annotators, [*scores.told, *ratings.told], notes)


def _unjoined(rating: SheetRow, found: Sequence[SheetRow], scores: Sheet, ratings: Sheet) -> DatasetError:
    told = _told(rating)
    if found:
        message = f"{told} is {len(found)} rows of {scores.source}, such as {_told(found[0])}; name system and turn"
    else:
        near = [row for row in scores.rows if row.item == rating.item]
        known = _told(near[0]) if near else ", ".join(dict.fromkeys(row.item for row in scores.rows[:3]))
        message = f"{told} is not in {scores.source}, which has {known}"
    return DatasetError(message, path=ratings.source, line=rating.line)


def _told(row: SheetRow) -> str:
    parts = [f"item '{row.item}'"] + ([f"system '{row.system}'"] if row.system is not None else [])
    return ", ".join([*parts, *([f"turn {row.turn}"] if row.turn is not None else [])])


# -- values -----------------------------------------------------------------------------------------------------------


def _raters(records: Sequence[tuple[int, Flat]], columns: Columns) -> list[str]:
    """Return the annotators whom a field names, where each row is what one of them said."""
    if columns.annotator is None:
        return []
    return list(dict.fromkeys(_text(record.get(columns.annotator)) or "" for _, record in records))


def _criterion(record: Flat, columns: Columns, named: str) -> str:
    """Return the criterion of a rating: what its field names, within what the row is about."""
    about = _text(record.get(columns.criterion)) if columns.criterion is not None else None
    return ".".join(one for one in (about, named) if one)


def _row(
    number: int,
    line: int,
    record: Flat,
    columns: Columns,
    values: dict[str, list[Rating | None]],
    raters: Sequence[str],
) -> SheetRow:
    item = _text(record.get(columns.item)) if columns.item is not None else None
    row = SheetRow(line, item or str(line))
    row.system, row.turn, row.group = (_text(record.get(name)) if name is not None else None
                                       for name in (columns.system, columns.turn, columns.group))  # fmt: skip
    rater = _text(record.get(columns.annotator)) or "" if columns.annotator is not None else ""
    for criterion, names in columns.human.items():
        ratings = [values[name][number] for name in names]
        if raters:
            ratings = [ratings[0] if one == rater else None for one in raters]
        row.human[_criterion(record, columns, criterion)] = ratings
    said = "/".join(text for name in columns.judge if (text := _text(record.get(name))))
    alone = Counter(criterion for _, criterion in columns.scores)
    for (judge, criterion), name in columns.scores.items():
        whose = judge if not said else said if alone[criterion] == 1 else f"{said}: {judge}"
        row.scores[(whose, _criterion(record, columns, criterion))] = values[name][number]
    row.texts = {name: value for name, value in record.items() if isinstance(value, str)}
    return row


def _group_by_item(rows: Sequence[SheetRow], columns: Columns) -> None:
    """Where no field names groups, rows of the same item are one."""
    if columns.group is None and columns.item is not None and len({row.item for row in rows}) < len(rows):
        for row in rows:
            row.group = row.item


def _by_place(rows: Sequence[SheetRow], columns: Columns, path: str) -> list[SheetRow]:
    """One row for each place where a field names the judge, the criterion or the annotator: what several rows say of
    one output comes together.
    """
    if not columns.judge and columns.criterion is None and columns.annotator is None:
        return list(rows)
    found: dict[Place, SheetRow] = {}
    for row in rows:
        before = found.setdefault(row.place, row)
        if before is not row:
            _take_in(before, row, columns, path)
    return list(found.values())


def _take_in(before: SheetRow, row: SheetRow, columns: Columns, path: str) -> None:
    """:raises DatasetError: both say something of the same, by the same judge or annotator."""
    for criterion, ratings in row.human.items():
        known = before.human.setdefault(criterion, [None] * len(ratings))
        for at, rating in enumerate(ratings):
            if rating is None or (columns.judge and known[at] == rating):
                continue
            if known[at] is not None:
                message = f"people have rated {_told(row)} in line {before.line} already; keep one of them, or name"
                raise DatasetError(f"{message} what tells the two apart (--system, --turn)", path=path, line=row.line)
            known[at] = rating
    for key, score in row.scores.items():
        if key in before.scores and (columns.judge or (score is not None and before.scores[key] not in (None, score))):
            message = f"{key[0]} has scored {_told(row)} in line {before.line} already; keep one of them"
            raise DatasetError(message, path=path, line=row.line)
        if before.scores.get(key) is None:
            before.scores[key] = score


def _unfold(records: Sequence[tuple[int, Flat]], named: Named, path: Path) -> None:
    """Make fields of lists and objects of ratings that stand in texts (``"[4, 5]"``), and ``NAME.1`` of a single rating
    where other records have a list.

    :raises DatasetError: a field is a single value in one record and an object in another; the message names the line.
    """
    for _, record in records:
        for name in [name for name, value in record.items() if isinstance(value, str) and may_rate(name, named)]:
            inner = unfolded(record[name])
            if inner is not None:
                del record[name]
                record |= flattened(inner, name)
    lists = {name.rpartition(".")[0] for _, record in records for name in record if name.endswith(".1")}
    for _, record in records:
        for name in [one for one in record if one in lists and f"{one}.1" not in record and may_rate(one, named)]:
            value = record.pop(name)
            if value != [] and not _is_nothing(value, ()):
                record[f"{name}.1"] = value
    families: dict[str, int] = {}
    for line, record in records:
        for name in record:
            for at, sign in enumerate(name):
                if sign == ".":
                    families.setdefault(name[:at], line)
    for line, record in records:
        for name in families.keys() & record.keys():
            apart = not any(one.startswith(f"{name}.") for one in record)
            if apart and may_rate(name, named) and not _is_nothing(record[name], ()):
                message = f"found {shown(record[name])} here, and a list or an object in line {families[name]}"
                raise DatasetError(message, path=str(path), line=line, field=name)


def _columns(
    path: Path, names: Sequence[str], records: Sequence[tuple[int, Flat]], unscored: Sequence[str]
) -> dict[str, list[Rating | None]]:
    """The values of fields that belong together: numbers, or labels where no value is a number.

    :raises DatasetError: some are numbers and one is not, or a value is several ratings; the message names the line.
    """
    found = {
        name: [_rating(path, line, name, record.get(name), unscored) for line, record in records] for name in names
    }
    if any(isinstance(value, float) for column in found.values() for value in column):
        for name, column in found.items():
            for (line, _), one in zip(records, column, strict=True):
                if isinstance(one, str):
                    message = (
                        f"expected a number as in the other lines, found {shown(one)}; leave it empty if there is "
                        "none, or name it with --unscored"
                    )
                    raise DatasetError(message, path=str(path), line=line, field=name)
    for name, column in found.items():
        numbers = [one for one in column if isinstance(one, float)]
        if numbers and min(numbers) == UNPARSED and all(one >= 0 for one in numbers if one != UNPARSED):
            found[name] = [None if one == UNPARSED else one for one in column]
    return found


def _spelled_alike(ratings: Iterable[Rating | None], spelling: dict[str, str]) -> list[Rating | None]:
    """Return labels as they were first spelled: "Pass" and "pass" are one."""
    return [spelling.setdefault(one.casefold(), one) if isinstance(one, str) else one for one in ratings]


def _rating(path: Path, line: int, name: str, value: Any, unscored: Sequence[str]) -> Rating | None:
    """:raises DatasetError: it is a list, an object, or a text of several numbers."""
    if isinstance(value, list | dict):
        if not value:
            return None
        raise DatasetError(f"expected a number or a label, found {shown(value)}", path=str(path), line=line, field=name)
    if _is_nothing(value, unscored):
        return None
    number = _number(value)
    if number is not None:
        return number
    text = _text(value)
    if text is not None and _SEVERAL.fullmatch(text):
        message = f"expected one number or a label, found {shown(text)}; write several ratings as a list: [4, 5]"
        raise DatasetError(message, path=str(path), line=line, field=name)
    return text


def _is_nothing(value: Any, unscored: Sequence[str]) -> bool:
    text = _text(value)
    return not isinstance(value, list | dict) and (text is None or text.lower() in NOTHING or text in unscored)


def _is_unvaried(values: Iterable[Any]) -> bool:
    """Return True for texts that can be no ratings: the same in every row, or so many that they are no labels."""
    known = [value for value in values if not _is_nothing(value, ())]
    texts = {value for value in known if isinstance(value, str)}
    if (
        not texts
        or len(texts) != len({_text(value) for value in known})
        or any(_number(one) is not None for one in texts)
    ):
        return False
    return len(texts) == 1 or len(texts) > MOST_LABELS


def _all_numbers(values: Iterable[Any]) -> bool:
    known = [value for value in values if not _is_nothing(value, ())]
    return bool(known) and all(_number(value) is not None for value in known)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, list | dict):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return text or None


def check_scored(sheet: Sheet) -> None:
    """:raises ConfigurationError: there is nothing to compare."""
    if not sheet.judges and all(len(names) < 2 for names in sheet.annotators.values()):
        raise ConfigurationError(
            f"{sheet.source}: human ratings of one annotator and no score beside them; name scores with --score"
        )
