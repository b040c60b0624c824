"""The lab models' vocabulary: a small byte-level BPE, in which any text can be spelled.

Merges are learnt here; texts are cut into tokens by llama.cpp, in training as in use, so that nothing can differ. What
never belongs here: tokenising, and the GGUF (``export``).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

BOS, EOS = "<s>", "</s>"
CONTROL = (BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>")
# GPT-2's way of cutting text into words, for the ASCII that the world is written in.
_WORDS = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s")


@dataclass(frozen=True, slots=True)
class WordVocabulary:
    """``tokens`` in the order of their ids: control tokens, the 256 bytes, then one for each merge.

    Bytes are written as GPT-2 writes them, one printable character each; a merge is its two parts with a blank between.
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)


def learn(text: str, size: int) -> WordVocabulary:
    """Byte-pair encoding (Sennrich et al. 2016): again and again the most frequent pair becomes a token.

    Ends at ``size`` tokens, or when no pair occurs twice. Of equally frequent pairs the first in alphabetical order is
    taken, so that the same text always gives the same vocabulary.
    """
    spelled = _byte_characters()
    counts = Counter(_WORDS.findall(text))
    words = {tuple(spelled[byte] for byte in word.encode()): count for word, count in counts.items()}
    tokens, merges = [*CONTROL, *spelled], list[str]()
    while len(tokens) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        pair, count = min(pairs.items(), key=lambda one: (-one[1], one[0]))
        if count < 2:
            break
        tokens.append("".join(pair))
        merges.append(" ".join(pair))
        words = {_merged(word, pair): count for word, count in words.items()}
    return WordVocabulary(tuple(tokens), tuple(merges))


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    parts: list[str] = []
    for part in word:
        # A part that has just been merged cannot be the first of the next: it is longer than the pair's first.
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)


def _byte_characters() -> list[str]:
    """GPT-2's character for each byte: itself where it is printable, else one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
