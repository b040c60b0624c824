"""Recorded metric values as columns, added in the order in which conversations end: the input of all figures."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.engine.journal_reader import History

_MAX_REASON = 300  # characters of an error's message
ROLES = ("", "system", "user", "assistant", "tool")


class MetricSeries:
    """Values of one metric: numbers or categories, each with its test (conversation and repeat), role and unit.

    `errors` counts errors by reason, `skipped` counts conditions that did not hold, `empty` counts values that are
    None.
    """

    def __init__(self) -> None:
        self.numbers, self.choices = array("d"), array("i")  # nan for a category; -1 for a number
        self.tests, self.roles, self.units = array("i"), array("b"), array("i")
        self.categories: dict[str, int] = {}
        self.labels: dict[int, str] = {}  # by row
        self.errors: dict[str, int] = {}
        self.failed_tests = Counter[int]()
        self.skipped = self.empty = 0

    def add(self, test: int, unit: int, role: str, number: float | None, choice: str | None, label: str | None) -> None:
        """Add a value: a `number`, a category as `choice`, or a rubric's score and choice."""
        if label is not None:
            self.labels[len(self.tests)] = label
        self.numbers.append(float("nan") if number is None else number)
        self.choices.append(-1 if choice is None else self.categories.setdefault(choice, len(self.categories)))
        self.tests.append(test)
        self.roles.append(ROLES.index(role) if role in ROLES else 0)
        self.units.append(unit)

    def fail(self, test: int, reason: str) -> None:
        """Count a value that is an error."""
        self.errors[reason] = self.errors.get(reason, 0) + 1
        self.failed_tests[test] += 1

    def error_count(self, tests: NDArray[np.bool_] | None) -> int:
        """Count the values that are errors, optionally only of some tests."""
        return sum(count for test, count in self.failed_tests.items() if tests is None or tests[test])

    def select(self, role: str | None, tests: NDArray[np.bool_] | None) -> SeriesValues:
        """Return the values, optionally only of one role or of some tests."""
        rows = np.ones(len(self.tests), dtype=bool)
        if role is not None:
            rows &= np.frombuffer(self.roles, dtype=np.int8) == ROLES.index(role) if role in ROLES else False
        if tests is not None and len(rows):
            rows &= tests[np.frombuffer(self.tests, dtype=np.intc)]
        return SeriesValues(self, np.flatnonzero(rows))


@dataclass(frozen=True)
class SeriesValues:
    """Selected values of a series; a row is one value."""

    series: MetricSeries
    rows: NDArray[np.intp]

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """Numbers among the values."""
        column = self._column(self.series.numbers, np.float64)
        numbers: NDArray[np.float64] = column[~np.isnan(column)]
        return numbers

    @cached_property
    def number_tests(self) -> NDArray[np.int64]:
        """Test of each number."""
        column = self._column(self.series.numbers, np.float64)
        tests: NDArray[np.int64] = self._column(self.series.tests, np.intc)[~np.isnan(column)].astype(np.int64)
        return tests

    @property
    def units(self) -> NDArray[np.int64]:
        """Unit of each row."""
        return self._column(self.series.units, np.intc).astype(np.int64)

    @property
    def tests(self) -> NDArray[np.int64]:
        """Test of each row."""
        return self._column(self.series.tests, np.intc).astype(np.int64)

    @property
    def roles(self) -> list[str]:
        """Role of each row."""
        return [ROLES[code] for code in self._column(self.series.roles, np.int8)]

    def values(self) -> list[float | str | tuple[float, str]]:
        """Return each row's value: a number, a category, or a rubric's score with its choice."""
        names = list(self.series.categories)
        values: list[float | str | tuple[float, str]] = []
        for row in self.rows:
            number, choice = self.series.numbers[row], self.series.choices[row]
            if choice < 0:
                values.append(number)
            else:
                values.append(names[choice] if number != number else (number, names[choice]))
        return values

    def counts(self) -> dict[str, int]:
        """Return the number of rows per category."""
        codes = self._column(self.series.choices, np.intc)
        counted = np.bincount(codes[codes >= 0], minlength=len(self.series.categories))
        return {name: int(counted[code]) for name, code in sorted(self.series.categories.items()) if counted[code]}

    def labelled(self) -> list[tuple[str, str]]:
        """Return label and category of each row with a label; the category of a number is its shortest text."""
        names = list(self.series.categories)
        pairs = []
        for row in self.rows:
            label = self.series.labels.get(int(row))
            if label is not None:
                choice, number = self.series.choices[row], self.series.numbers[row]
                pairs.append((label, names[choice] if choice >= 0 else f"{number:g}"))
        return pairs

    def select_rows(self, keep: NDArray[np.bool_]) -> SeriesValues:
        """Return the rows that a mask keeps."""
        return SeriesValues(self.series, self.rows[keep])

    def _column(self, column: Any, kind: Any) -> NDArray[Any]:
        return np.frombuffer(column, dtype=kind)[self.rows] if len(column) else np.zeros(0, dtype=kind)


@dataclass(frozen=True, slots=True)
class DialogTest:
    """Test of a conversation at one repeat."""

    dialog: str
    metadata: Mapping[str, Any]


def read_values_by_system(journal: Path, labels: Collection[str]) -> dict[str, SystemValues]:
    """Read the values of these systems from a run's journal.

    Raises:
        JournalError: The journal cannot be read.
    """
    systems = {label: SystemValues() for label in labels}
    with History(journal) as history:
        for ended in history.ended():
            labels_of_key = (label for label in systems if ended.key.startswith(f"{label}/"))
            label = max(labels_of_key, key=len, default=None)
            if label is not None and not ended.failed and "dialog" in ended.result:
                systems[label].add(ended.result)
    return systems


class SystemValues:
    """Series of one system under test. `tests` are numbered by arrival."""

    def __init__(self) -> None:
        self.series: dict[str, MetricSeries] = {}
        self.tests: list[DialogTest] = []

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a conversation's record."""
        test = len(self.tests)
        self.tests.append(DialogTest(record["dialog"], record["metadata"]))
        for name, metric in record["metrics"].items():
            series = self._series(name)
            series.skipped += metric["skipped"]
            for error in metric["errors"]:
                message = " ".join(str(error[2]).split())  # the results have the full text
                message = message if len(message) <= _MAX_REASON else f"{message[:_MAX_REASON]}…"
                series.fail(test, f"{error[1]}: {message}" + (f" (at {error[3]})" if error[3] else ""))
            roles = _role_lookup(record["roles"], metric.get("level", ""))
            labels = dict(record["labels"].get(name, ()))
            for unit, value in metric["values"]:
                self._add(name, test, unit, roles(unit), value, labels.get(unit))

    def _add(self, name: str, test: int, unit: int, role: str, value: Any, label: str | None) -> None:
        if isinstance(value, Mapping) and "choice" in value:
            self._series(name).add(test, unit, role, float(value["score"]), value["choice"], label)
            if "expected" in value:
                self._series(f"{name}.expected").add(test, unit, role, value["expected"], None, None)
        elif isinstance(value, Mapping):
            for key, part in value.items():
                self._add(f"{name}.{key}", test, unit, role, part, None)
        elif value is None:
            self._series(name).empty += 1
        elif isinstance(value, str):
            self._series(name).add(test, unit, role, None, value, label)
        else:
            self._series(name).add(test, unit, role, float(value), None, label)

    def _series(self, name: str) -> MetricSeries:
        return self.series.setdefault(name, MetricSeries())

    def matching_tests(self, metadata: Mapping[str, Any]) -> NDArray[np.bool_] | None:
        """Return a mask of the tests with this metadata; None means all."""
        if not metadata:
            return None
        return np.array([all(str(test.metadata.get(key)) == str(value) for key, value in metadata.items())
                         for test in self.tests], dtype=bool)  # fmt: skip

    def means(self, tests: NDArray[np.int64], values: Iterable[float]) -> dict[str, float]:
        """Return the mean per conversation, over units and repeats, of values of these tests."""
        sums: dict[str, list[float]] = {}
        for dialog, value in zip(self.dialogs(tests), values, strict=True):
            sums.setdefault(dialog, []).append(value)
        return {dialog: own[0] if len(own) == 1 else math.fsum(own) / len(own) for dialog, own in sums.items()}

    def dialogs(self, tests: NDArray[np.int64]) -> list[str]:
        """Return the conversation of each test."""
        return [self.tests[test].dialog for test in tests]


def _role_lookup(roles: Mapping[str, Sequence[str]], level: str) -> Callable[[int], str]:
    unit_roles = roles.get(level, ())
    return lambda unit: unit_roles[unit] if unit is not None and unit < len(unit_roles) else ""
