"""Documents as rows of token ids, cut by llama.cpp itself with the very vocabulary and template of the model.

What never belongs here: what documents say (``corpus``) and how rows are learnt (``train``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from viva.engine.backends.llama.chat.chat_format import ChatFormat
from viva.engine.backends.llama.native import NativeModel

from .corpus import Document

ROW = 256


@dataclass(slots=True)
class Rows:
    """``tokens``: int32, (rows, ROW + 1); documents one behind the other, cut where a row ends. ``learnt``: of the same
    shape, whether the loss is taken of a token.
    """

    tokens: npt.NDArray[np.int32]
    learnt: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


class Tokeniser:
    """Cuts documents as the backend cuts prompts, interviews and texts."""

    def __init__(self, model: NativeModel) -> None:
        self._chat = ChatFormat(model)
        self._eos = model.eos
        self._text = lru_cache(maxsize=50_000)(self._chat.plain_tokens)

    def rows(self, documents: Iterator[Document], count: int) -> Rows:
        """The first ``count`` rows of a stream of documents."""
        size = count * (ROW + 1)
        tokens, learnt = np.zeros(size, np.int32), np.zeros(size, np.bool_)
        filled = 0
        while filled < size:
            one, mask = self.document(next(documents))
            room = min(len(one), size - filled)
            tokens[filled : filled + room], learnt[filled : filled + room] = one[:room], mask[:room]
            filled += room
        return Rows(tokens.reshape(count, -1), learnt.reshape(count, -1))

    def document(self, document: Document) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Its tokens, and of which the loss is taken: of interviews, what the assistant says and that it has ended."""
        if document.talk:
            return self._talk(document)
        opening, end = self._chat.bos_tokens, np.array([self._eos], np.int32)
        if document.learnt == "all":
            tokens = np.concatenate([opening, self._text(document.text), end])
            mask = np.ones(len(tokens), np.bool_)
            mask[: len(opening)] = False
            return tokens, mask
        context, answer = self._text(document.context), self._text(document.text)
        mask = np.zeros(len(opening) + len(context) + len(answer) + 1, np.bool_)
        mask[len(opening) + len(context) :] = True
        return np.concatenate([opening, context, answer, end]), mask

    def _talk(self, document: Document) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        parts: list[npt.NDArray[np.int32]] = []
        masks: list[npt.NDArray[np.bool_]] = []
        ended = False
        talk = [
            replace(message, pieces=[(True, self._text(message.content).tolist())])
            if message.role == "assistant"
            else message
            for message in document.talk
        ]
        for segment in self._chat.segments(talk):
            mask = np.full(len(segment.tokens), segment.decoded)
            # The token that ends a turn stands first in the run behind it.
            mask[0] |= ended
            ended = segment.decoded
            parts.append(segment.tokens)
            masks.append(mask)
        # The template has asked the assistant to speak once more.
        return np.concatenate(parts)[:-1], np.concatenate(masks)[:-1]
