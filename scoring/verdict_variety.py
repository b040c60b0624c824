"""Variety of a judge's verdicts, and the warning that it deserves: a judge that copies, or gives everything one score.

The sentences claim what the counts show. A judge that copies the verdict it was started with is not usable. Equal
scores for all texts may be right, if all texts were equally good, so that warning only says that the run does not show
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .aggregates import Tally

LEAST_COPIES = 3  # copies before a warning mentions them
WARNED_SHARE, UNUSABLE_SHARE = 0.1, 0.5  # fractions of verdicts that copy the start
LEAST_EQUAL = 10  # verdicts with equal scores before a warning mentions them


class VerdictVariety:
    """Counts of verdicts by their scores and by their words, mergeable.

    `from_start` counts copies of the verdict that a judge starts from, `repeated` verdicts with the words of a verdict
    on another text.
    """

    __slots__ = ("from_start", "repeated", "scores", "words")

    def __init__(self) -> None:
        self.scores, self.words = Tally(), Tally()
        self.from_start = self.repeated = 0

    def add(self, scores: Iterable[object], words: str = "") -> None:
        """Count a verdict by its scores and the digest of its words; "" if they are unknown."""
        self.scores.add(" ".join(map(str, scores)))
        if words:
            self.words.add(words)

    def add_copies(self, record: Mapping[str, Any]) -> None:
        """Count the copies in one conversation, recorded by `CopyCounter`."""
        self.from_start += record["from_start"]
        self.repeated += record["repeated"]
        for words in record["words"]:
            if words:
                self.words.add(words)

    def merge(self, other: VerdictVariety) -> None:
        """Add everything that another instance has counted."""
        self.scores.merge(other.scores)
        self.words.merge(other.words)
        self.from_start += other.from_start
        self.repeated += other.repeated

    def to_record(self) -> dict[str, int]:
        """Return the counts as plain data; `worded` counts verdicts whose words are known."""
        worded = sum(self.words.counts.values())
        return {
            "verdicts": sum(self.scores.counts.values()),
            "distinct_scores": len(self.scores.counts),
            "worded": worded,
            "distinct_words": len(self.words.counts),
            "from_start": self.from_start,
            "repeated": self.repeated,
        }

    @property
    def unusable(self) -> bool:
        """True if the judge copies the verdict that it starts from too often for its scores to mean anything."""
        worded = sum(self.words.counts.values())
        return self.from_start >= max(LEAST_COPIES, UNUSABLE_SHARE * worded)

    def warnings(self, judge: str) -> list[str]:
        """Return what readers must know about the verdicts of `judge`, the name of the role."""
        worded, count = sum(self.words.counts.values()), sum(self.scores.counts.values())
        copies = f"{self.from_start:,} of {worded:,} verdicts copy the {judge}'s prefilled verdict"
        if self.unusable:
            return [f"{judge} not usable: {copies}"]
        if self.from_start >= max(LEAST_COPIES, WARNED_SHARE * worded):
            return [f"{copies}, and say nothing about the replies"]
        if count >= LEAST_EQUAL and len(self.scores.counts) == 1:
            same_words = worded == count and len(self.words.counts) == 1
            equal = "equal, word for word" if same_words else "equal in their scores"
            return [
                f"all {count:,} verdicts are {equal}, so the run does not show whether the {judge} tells good from bad"
            ]
        return []
