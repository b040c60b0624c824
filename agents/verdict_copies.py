"""Copies among a judge's verdicts: copies of the verdict that it starts from, or of its own verdict on another text.

Such a verdict would be the same whatever the text said, and its scores do not show that. A verdict counts as a copy
only if both scores and words are equal, because a sound judge gives equal scores to equally good texts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_WORDS = re.compile(r"\w+")
_LEAST_COMMENTS = 2  # least number of equal comments in a copy; the next line has their least share of all comments
_COPIED_SHARE = 0.5


def normalize_words(text: str) -> str:
    """Return the words of a text in lower case, without punctuation and line breaks."""
    return " ".join(_WORDS.findall(text.casefold()))


def words_digest(comments: Mapping[str, str]) -> str:
    """Return a short digest of comments by name, equal for equal words; "" if there are no words."""
    return WordedVerdict.from_texts((), comments).digest()


@dataclass(frozen=True, slots=True)
class WordedVerdict:
    """A verdict's scores and its comments by name, normalised."""

    scores: tuple[object, ...]
    comments: Mapping[str, str]

    @classmethod
    def from_texts(cls, scores: Sequence[object], comments: Mapping[str, str]) -> WordedVerdict:
        return cls(tuple(scores), {name: normalize_words(text) for name, text in comments.items()})

    def digest(self) -> str:
        """Return a short digest of the comments, equal for equal words; "" if there are no words."""
        words = [f"{name}: {text}" for name, text in sorted(self.comments.items()) if text]
        return hashlib.blake2b("\n".join(words).encode("utf-8", "replace"), digest_size=6).hexdigest() if words else ""

    def copies(self, other: WordedVerdict) -> bool:
        """Return True if all scores are equal, and of this verdict's comments at least half and at least two."""
        if self.scores != other.scores:
            return False
        worded = {name: text for name, text in self.comments.items() if text}
        equal = sum(other.comments.get(name) == text for name, text in worded.items())
        return equal >= max(_LEAST_COMMENTS, _COPIED_SHARE * len(worded))


@dataclass(slots=True)
class CopyCounter:
    """Counter of copies in one conversation of a judge.

    `start` is the verdict that the judge did not write and starts from, if any; `digests` identify the words of its
    verdicts; `from_start` counts copies of `start`, and `repeated` copies of its own verdict on another text.
    """

    start: WordedVerdict | None = None
    digests: list[str] = field(default_factory=list)
    from_start: int = 0
    repeated: int = 0
    _earlier: list[tuple[str, WordedVerdict]] = field(default_factory=list)

    def add(self, scores: Sequence[object], comments: Mapping[str, str], judged: str) -> None:
        """Count a verdict on the text `judged`."""
        verdict, text = WordedVerdict.from_texts(scores, comments), normalize_words(judged)
        self.digests.append(verdict.digest())
        if self.start is not None and verdict.copies(self.start):
            self.from_start += 1
        elif any(verdict.copies(other) for earlier, other in self._earlier if earlier != text):
            self.repeated += 1
        self._earlier.append((text, verdict))

    def to_record(self) -> dict[str, object]:
        """Return plain data for `VerdictVariety.add_copies`."""
        return {"words": self.digests, "from_start": self.from_start, "repeated": self.repeated}
