"""From a rendered conversation to segments. Text between two special tokens is tokenised as one.

Token ids are those of the whole rendering. Boundaries between segments are after special tokens; inside plain text
there is one only where the text on both sides gives the same tokens separately as together.
"""

from __future__ import annotations

import numpy as np

from ....messages import Pieces
from ..native import Tokens
from ..segment import Segment
from .tokenizer import ChatTokenizer, strip_blanks


class SegmentWriter:
    """Takes a rendering part by part, in order; ``segments`` returns its segments."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._finished: list[Segment] = []
        self._current: list[Tokens] = []
        self._texts: list[str] = [""]  # plain text since the last special token; an allowed boundary is between two
        self._has_special = False  # the template text added last contains a special token
        self._after_text = False
        self._strip = False  # whitespace after the last special token is stripped

    def template(self, text: str) -> None:
        """Add the template's own text, in which special tokens are parsed."""
        parts = self._tokenizer.split_template(text)
        self._has_special = any(isinstance(part, int) for part in parts)
        for part in parts:
            if isinstance(part, int):
                self.special_token(part)
            else:
                self._texts[-1] += part

    def plain(self, text: str) -> None:
        """Add a content: plain text, whatever it looks like."""
        self._texts[-1] += text

    def special_token(self, token: int) -> None:
        """Add one special token."""
        self._flush(strip=self._tokenizer.strips_left(token))
        self._current.append(self._tokenizer.single(token))
        self._after_text = False
        self._strip = self._tokenizer.strips_right(token)

    def boundary(self, *, after_special: bool = False) -> None:
        """Allow a segment to end here; with ``after_special`` rather after the template text's last special token."""
        if not any(self._texts) or (after_special and self._has_special):
            self._end_segment()
        else:
            self._texts.append("")

    def generated(self, pieces: Pieces) -> None:
        """Add generated tokens, in the runs in which they were computed."""
        self._flush()
        self._end_segment()
        self._finished += [Segment(np.array(ids, dtype=np.int32), decoded) for decoded, ids in pieces]
        self._after_text, self._strip = True, False

    def segments(self) -> list[Segment]:
        """The segments, none of them empty."""
        self._flush()
        self._end_segment()
        return [segment for segment in self._finished if len(segment.tokens)]

    def _end_segment(self) -> None:
        if self._current:
            self._finished.append(Segment(np.concatenate(self._current)))
            self._current = []

    def _flush(self, *, strip: bool = False) -> None:
        """Tokenise the plain text since the last special token."""
        texts, self._texts = self._texts, [""]
        while self._strip and texts and not strip_blanks(texts[0], left=True, right=False):
            del texts[0]
            if texts:
                self._end_segment()
        if self._strip and texts:
            texts[0] = strip_blanks(texts[0], left=True, right=False)
        while strip and texts:
            texts[-1] = strip_blanks(texts[-1], left=False, right=True)
            if texts[-1] or len(texts) == 1:
                break
            texts.pop()
        if not texts:
            return
        joined = self._joined([text for text in texts if text])
        for index, text in enumerate(joined):
            if index:
                self._end_segment()
            self._current.append(self._tokenizer.plain(text, after_text=self._after_text))
            self._after_text = True
        if len(texts) > 1 and not texts[-1]:
            self._end_segment()

    def _joined(self, texts: list[str]) -> list[str]:
        """The texts between allowed boundaries, joined where they give other tokens separately than together."""
        if len(texts) < 2:
            return texts
        joined = texts[:1]
        for text in texts[1:]:
            if self._splits_alike([joined[-1], text], self._after_text or len(joined) > 1):
                joined.append(text)
            else:
                joined[-1] += text
        return joined if self._splits_alike(joined, self._after_text) else ["".join(joined)]

    def _splits_alike(self, texts: list[str], after_text: bool) -> bool:
        plain = self._tokenizer.plain
        separate = [plain(text, after_text=after_text or index > 0) for index, text in enumerate(texts)]
        return np.array_equal(np.concatenate(separate), plain("".join(texts), after_text=after_text))
