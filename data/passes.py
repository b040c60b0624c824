"""One reading of a source from end to end: its items, one at a time, and what was wrong on the way.

What never belongs here: choosing items (``selection``), and counting what they are like (``statistics``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Literal

from viva.engine.errors import DatasetError

from .fields import AnyCase, FieldError, Raw, equal_choices
from .forms import Where
from .items import Item, letter
from .reading import Record
from .sources import Source, SourcePart

KEPT = 20
_ADVICE = "mend the line, or skip such lines with --skip-bad-items"
_LINES = 2**40
# A choice behind its letter: "A. the moon", "(a) the moon", "B、the moon".
_LETTERED = re.compile(r"\s*[(（]?([A-Za-z])(?:[.):．）：、]\s*|\s+[-–—]\s+)(.*)", re.DOTALL)


class Pass:
    """Iterate over it once; what it counts is complete when the iteration is.

    ``bad`` holds the first ``KEPT`` errors of lines that are not items, and ``bad_count`` says how many there are;
    ``repeats`` and ``repeat_count`` likewise tell of exact repeats, which are dropped where the form says so.
    ``lettered_count``: of so many items the letters before the choices were taken off, for prompts have their own.
    ``equals`` and ``equal_count`` tell of items with equal choices, and ``equal_answers`` in how many of these one of
    the equals is the right answer.
    ``path`` and ``line`` say where the item given last stands. Of each item eight bytes of hash are kept, to know it
    again, and its place.

    :param tolerance: ``nothing``: what is wrong is raised as a ``DatasetError`` that names path, line and field.
        ``lines``: a bad line is noted and passed over. ``files``: so is the rest of a file that cannot be read on.
    """

    def __init__(self, source: Source, tolerance: Literal["nothing", "lines", "files"] = "nothing") -> None:
        self.source, self.tolerance = source, tolerance
        self.bad: list[DatasetError] = []
        self.repeats: list[DatasetError] = []
        self.equals: list[DatasetError] = []
        self.bad_count = self.repeat_count = self.equal_count = self.equal_answers = self.lettered_count = 0
        self.path, self.line = source.path, 0
        self._seen: dict[int, int] = {}

    def __iter__(self) -> Iterator[Item]:
        row = 0
        for number, part in enumerate(self.source.parts):
            where = Where(0, row, part.subject, part.split)
            for line, raw in self._records(part):
                item = self._item(number, line, raw, where)
                where.place += 1
                where.row = row = row + 1
                if item is not None:
                    self.path, self.line = part.path, line
                    self._compare_choices(item)
                    yield item
            if where.place == 0 and len(self.source.parts) > 1:
                self._pass_over(DatasetError("holds no record", path=part.path))

    def _records(self, part: SourcePart) -> Iterator[Record]:
        try:
            yield from part.read()
        except DatasetError as error:
            if self.tolerance != "files":
                raise
            self._note(error)

    def _item(self, number: int, line: int, raw: Raw | DatasetError, where: Where) -> Item | None:
        if isinstance(raw, DatasetError):
            self._pass_over(raw)
            return None
        path, form = self.source.parts[number].path, self.source.form
        try:
            record = AnyCase(raw)
            item = form.read(record, where)
            if not self.source.takes(item):
                return None
            first = self._seen_before(str(record[form.unique]) if form.unique else item.id, number, line)
            if first is None:
                if item.choices and _LETTERED.match(item.choices[0]):
                    self._take_letters_off(item)
                return item
            problem = DatasetError(f"the same item as in {first} ('{item.id}')", path=path, line=line, field="id")
        except FieldError as error:
            problem = DatasetError(f"{error}{missing_hint(raw, error.field)}", path=path, line=line, field=error.field)
        else:
            if form.drops_repeats:
                self.repeat_count += 1
                self.repeats += [problem] if len(self.repeats) < KEPT else []
                return None
        self._pass_over(problem)
        return None

    def _take_letters_off(self, item: Item) -> None:
        """Take ``A. ``, ``B) ``, … off the choices if all have their own; the item's id stays that of the file."""
        bare = [
            found[2] if (found := _LETTERED.match(choice)) is not None and found[1].upper() == letter(place) else ""
            for place, choice in enumerate(item.choices)
        ]
        if all(map(str.strip, bare)):
            item.choices = bare
            self.lettered_count += 1

    def _seen_before(self, identity: str, number: int, line: int) -> str | None:
        """Where an item of this id stood earlier; None, and the id is remembered, if there was none."""
        key = int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")
        here = number * _LINES + line
        before, first = divmod(self._seen.setdefault(key, here), _LINES)
        if (before, first) == (number, line):
            return None
        return f"line {first}" if before == number else f"{self.source.parts[before].path}:{first}"

    def _compare_choices(self, item: Item) -> None:
        groups = equal_choices(item.choices)
        if not groups:
            return
        self.equal_count += 1
        right = any(item.answer in places for places in groups)
        self.equal_answers += right
        if len(self.equals) < KEPT:
            which = "; ".join(f"the choices {', '.join(map(letter, places))} are equal" for places in groups)
            more = f"; the right answer is {letter(item.answer)}" if right else ""
            self.equals.append(DatasetError(f"{which} ('{item.id}'){more}", path=self.path, line=self.line))

    def _pass_over(self, problem: DatasetError) -> None:
        if self.tolerance == "nothing":
            message = problem.message if problem.line is None else f"{problem.message}; {_ADVICE}"
            raise DatasetError(message, path=problem.path, line=problem.line, field=problem.field)
        self._note(problem)

    def _note(self, problem: DatasetError) -> None:
        self.bad_count += 1
        if len(self.bad) < KEPT:
            self.bad.append(problem)


def missing_hint(raw: Raw, field: str) -> str:
    """Say what may be meant where a record lacks a field: one of nearly that name, or a list that it wraps."""
    if field in raw or "." in field:
        return ""
    names = {str(name).casefold(): str(name) for name in raw}
    if near := get_close_matches(field.casefold(), names, 1, 0.75):
        return f"; unknown field '{names[near[0]]}': did you mean '{field}'?"
    return wrapping_hint(raw)


def wrapping_hint(raw: Raw) -> str:
    """Return what to save instead of an object that holds all records of a file; empty where it seems to be one."""
    lists = [name for name, value in raw.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(lists) > 1:
        return f"; the object holds several lists of objects ({', '.join(lists)}): save one of them alone as the file"
    if len(raw) > 1 and all(isinstance(value, dict) for value in raw.values()):
        return f"; the object holds {len(raw):,} objects by name: save them as a list, or one on each line"
    if lists:
        count = len(raw[lists[0]])
        return f"; the object holds a list, '{lists[0]}', of {count:,} objects: save that list alone as the file"
    return ""
