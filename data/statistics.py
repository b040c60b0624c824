"""Statistics of a dataset: counts, answers, lengths, subjects, repeats and bad lines, from one pass over it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from viva.engine.errors import DatasetError

from .dataset import DatasetReader
from .items import choice_letter
from .sources import open_source

Table = tuple[str, list[str], list[list[str]]]
_MAX_SUBJECTS = 100


class LengthStatistics:
    """Lengths in characters, counted by value, so that every statistic is exact and no text is kept."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, text: str) -> None:
        self._counts[len(text)] += 1

    def summary(self) -> dict[str, float | int] | None:
        """Return `min`, `median`, `mean` (two decimals) and `max`; None if nothing was counted."""
        total = self._counts.total()
        if not total:
            return None
        middle = (self._at((total - 1) // 2) + self._at(total // 2)) / 2
        mean = sum(length * count for length, count in self._counts.items()) / total
        return {
            "min": min(self._counts),
            "median": int(middle) if middle.is_integer() else middle,
            "mean": round(mean, 2),
            "max": max(self._counts),
        }

    def _at(self, rank: int) -> int:
        """Return the length at 0-based `rank` in ascending order."""
        for length in sorted(self._counts):
            rank -= self._counts[length]
            if rank < 0:
                return length
        raise IndexError(rank)


class DatasetStatistics:
    """Statistics of a source. Per item, only a hash of its id is kept in memory."""

    def __init__(self, text: str) -> None:
        """Read a source. Errors inside a file are counted.

        Raises:
            DatasetError: There is no such file, folder or split.
            ConfigurationError: The form is unknown, or a package is missing.
        """
        self.text = text
        self.source = open_source(text)
        self.items = 0
        self.answers: Counter[int] = Counter()
        self.widths: Counter[int] = Counter()
        self.subjects: Counter[str] = Counter()
        self.lengths = {"question": LengthStatistics(), "choice": LengthStatistics(), "answer": LengthStatistics()}
        reading = self.reading = DatasetReader(self.source, "files")
        for item in reading:
            self.items += 1
            if item.free:
                self.lengths["answer"].add(item.reference)
            else:
                self.answers[item.answer] += 1
            self.widths[len(item.choices)] += 1
            self.subjects[item.subject] += 1
            self.lengths["question"].add(item.question)
            for choice in item.choices:
                self.lengths["choice"].add(choice)
        if not self.items and not reading.bad_count:
            reading.bad.append(DatasetError("contains no record", path=self.source.path))
            reading.bad_count = 1

    @property
    def sound(self) -> bool:
        """True if no line is bad."""
        return self.reading.bad_count == 0

    def report(self) -> dict[str, Any]:
        """Return all statistics as plain data."""
        reading = self.reading
        return {
            "source": self.text,
            "name": self.source.name,
            "form": self.source.form.name,
            **self._published(),
            "files": len(self.source.parts),
            "digest": self._digest(),
            "items": self.items,
            "answers": {choice_letter(index): count for index, count in sorted(self.answers.items())},
            "choices": {str(width): count for width, count in sorted(self.widths.items())},
            "characters": {
                text: summary
                for text, lengths in self.lengths.items()
                if (summary := lengths.summary()) is not None or text != "answer"
            },
            "subjects": {subject: count for subject, count in sorted(self.subjects.items()) if subject},
            "repeats": {
                "count": reading.repeat_count,
                "first": [_problem_record(problem) for problem in reading.repeats],
            },
            "equal_choices": {
                "count": reading.equal_count,
                "answers": reading.equal_answers,
                "first": [_problem_record(problem) for problem in reading.equals],
            },
            "lettered_choices": reading.lettered_count,
            "bad": {"count": reading.bad_count, "first": [_problem_record(problem) for problem in reading.bad]},
        }

    def _published(self) -> dict[str, Any]:
        """Return a published benchmark's facts and its published number of records."""
        benchmark = self.source.published
        if benchmark is None:
            return {}
        split = self.source.parts[0].split
        records = benchmark.records(split, self.source.subject) if split else None
        facts = {name: getattr(benchmark, name) for name in ("name", "title", "licence", "language", "citation")}
        return {"benchmark": facts | {"revision": self.source.revision or None, "records": records}}

    def _digest(self) -> str:
        try:
            return self.source.digest()
        except DatasetError:  # unreadable files are already counted as bad
            return ""

    def tables(self) -> list[Table]:
        """Return the report as titled tables: title, header, rows."""
        report, reading = self.report(), self.reading
        rows = [
            [name, f"{report[name]:,}" if isinstance(report[name], int) else report[name]]
            for name in ("form", "files", "digest", "items")
        ]
        if (published := report.get("benchmark")) is not None:
            rows[:0] = [["benchmark", published["title"]], ["licence", published["licence"]]]
            if published["records"] is not None:
                rows += [["records as published", f"{published['records']:,}"]]
        rows += [["repeats", f"{reading.repeat_count:,}"], ["equal choices", f"{reading.equal_count:,}"]]
        if reading.lettered_count:
            rows += [["letters removed from choices", f"{reading.lettered_count:,}"]]
        rows += [["bad lines", f"{reading.bad_count:,}"]]
        lengths = [
            [text, *(f"{value:,}" for value in summary.values())]
            for text, summary in report["characters"].items()
            if summary is not None
        ]
        subjects = [[subject, f"{count:,}"] for subject, count in report["subjects"].items()]
        hidden = len(subjects) - _MAX_SUBJECTS
        return [
            (self.source.name, ["property", "value"], rows),
            ("Answers", ["answer", "items", "share"], _share_rows(report["answers"], self.items)),
            ("Choices", ["choices", "items", "share"], _share_rows(report["choices"], self.items)),
            ("Characters", ["text", "min", "median", "mean", "max"], lengths),
            (
                f"{len(subjects)} subjects" + (f", the first {_MAX_SUBJECTS}" if hidden > 0 else ""),
                ["subject", "items"],
                subjects[:_MAX_SUBJECTS],
            ),
            _problem_table("dropped repeats", reading.repeat_count, reading.repeats),
            _problem_table("items with equal choices", reading.equal_count, reading.equals),
            _problem_table("bad line" if reading.bad_count == 1 else "bad lines", reading.bad_count, reading.bad),
        ]


def _share_rows(counts: dict[str, int], total: int) -> list[list[str]]:
    return [[name, f"{count:,}", f"{count / total:.1%}"] for name, count in counts.items()]


def _problem_table(label: str, count: int, first: list[DatasetError]) -> Table:
    title = f"{count:,} {label}" + (f", the first {len(first)}" if count > len(first) else "")
    return title, ["problem"], [[str(problem)] for problem in first]


def _problem_record(problem: DatasetError) -> dict[str, Any]:
    return {"path": problem.path, "line": problem.line, "field": problem.field, "message": problem.message}
