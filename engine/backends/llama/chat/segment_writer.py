"""A rendered conversation to runs of tokens: template text and contents are tokenised in one go between two marks.

Token ids are those of the whole rendering. Borders between runs fall behind marks; a border inside plain text stands
only where the text on both sides gives the same tokens apart as together.

What never belongs here: rendering (``chat``, ``toolchat``), KV, sampling.
"""

from __future__ import annotations

import numpy as np

from ....messages import Pieces
from ..native import Tokens
from ..segment import Segment
from .tokenizer import Vocabulary, stripped


class Runs:
    """Takes a rendering part by part, in order; ``segments`` are its runs."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._done: list[Segment] = []
        self._run: list[Tokens] = []
        self._texts: list[str] = [""]  # plain text since the last mark; a wanted border stands between two
        self._marked = False  # the template's text written last holds a mark
        self._behind_text = False
        self._strip = False  # blanks behind the last mark are no text

    def template(self, text: str) -> None:
        """The template's own text, in which marks count."""
        parts = self._vocabulary.literal(text)
        self._marked = any(isinstance(part, int) for part in parts)
        for part in parts:
            if isinstance(part, int):
                self.mark(part)
            else:
                self._texts[-1] += part

    def plain(self, text: str) -> None:
        """Something said: plain text whatever it looks like."""
        self._texts[-1] += text

    def mark(self, token: int) -> None:
        """One token that is a mark."""
        self._flush(strip=self._vocabulary.strips_left(token))
        self._run.append(self._vocabulary.single(token))
        self._behind_text = False
        self._strip = self._vocabulary.strips_right(token)

    def border(self, *, behind_mark: bool = False) -> None:
        """A run may end here. ``behind_mark``: rather behind the last mark of the template's text just written."""
        if not any(self._texts) or (behind_mark and self._marked):
            self._close()
        else:
            self._texts.append("")

    def said(self, pieces: Pieces) -> None:
        """What was generated, in runs as it was computed."""
        self._flush()
        self._close()
        self._done += [Segment(np.array(ids, dtype=np.int32), decoded) for decoded, ids in pieces]
        self._behind_text, self._strip = True, False

    def segments(self) -> list[Segment]:
        """The runs, none empty."""
        self._flush()
        self._close()
        return [segment for segment in self._done if len(segment.tokens)]

    def _close(self) -> None:
        if self._run:
            self._done.append(Segment(np.concatenate(self._run)))
            self._run = []

    def _flush(self, *, strip: bool = False) -> None:
        """The plain text since the last mark to tokens."""
        texts, self._texts = self._texts, [""]
        while self._strip and texts and not stripped(texts[0], left=True, right=False):
            del texts[0]
            if texts:
                self._close()
        if self._strip and texts:
            texts[0] = stripped(texts[0], left=True, right=False)
        while strip and texts:
            texts[-1] = stripped(texts[-1], left=False, right=True)
            if texts[-1] or len(texts) == 1:
                break
            texts.pop()
        if not texts:
            return
        kept = self._kept([text for text in texts if text])
        for index, text in enumerate(kept):
            if index:
                self._close()
            self._run.append(self._vocabulary.plain(text, behind_text=self._behind_text))
            self._behind_text = True
        if len(texts) > 1 and not texts[-1]:
            self._close()

    def _kept(self, texts: list[str]) -> list[str]:
        """The texts between wanted borders, put together where they give other tokens apart than together."""
        if len(texts) < 2:
            return texts
        kept = texts[:1]
        for text in texts[1:]:
            if self._apart([kept[-1], text], self._behind_text or len(kept) > 1):
                kept.append(text)
            else:
                kept[-1] += text
        return kept if self._apart(kept, self._behind_text) else ["".join(kept)]

    def _apart(self, texts: list[str], behind_text: bool) -> bool:
        plain = self._vocabulary.plain
        apart = [plain(text, behind_text=behind_text or index > 0) for index, text in enumerate(texts)]
        return np.array_equal(np.concatenate(apart), plain("".join(texts), behind_text=behind_text))
