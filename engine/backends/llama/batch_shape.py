"""Batch shapes for which a row's result does not depend on the other rows: what strict mode rests on.

llama.cpp's CPU kernels depend on the number of rows in a batch, and some compute the rows after the last multiple of
four differently. Measured on x86-64 by comparing logits and KV bit for bit (a test repeats this for each weight type):
with float and Q8_0 weights, rows are equal in all batches of two rows or more; with all other types tried (Q4_0, Q4_K,
Q5_K, Q6_K, IQ4_NL), in batches of eight rows or more whose number is a multiple of four. The same holds for the number
of rows whose logits are requested. Several sequences may share a batch if each contributes equally many tokens and
their lanes are neighbours: llama.cpp then computes them as one block, each in the shape that it would have alone.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

_ROW_INVARIANT = {"F32", "F16", "BF16", "Q8_0"}


@dataclass(slots=True, frozen=True)
class BatchShape:
    """Batches, and the rows with logits in them, have a multiple of ``multiple`` rows and at least ``minimum``."""

    minimum: int
    multiple: int

    def padded_rows(self, count: int) -> int:
        """The smallest allowed number of rows that is not below ``count``."""
        return -(-max(count, self.minimum) // self.multiple) * self.multiple

    def with_spare_rows(self, wanted: list[int]) -> list[int]:
        """Which rows to request logits of (1): those wanted, and others from the end until their number is allowed."""
        count = sum(wanted)
        missing = self.padded_rows(count) - count
        spare = [index for index, one in enumerate(wanted) if not one][-missing:] if missing else []
        if not spare:
            return wanted
        asked = list(wanted)
        for index in spare:
            asked[index] = 1
        return asked

    def fits(self, lanes: int) -> bool:
        """Whether decode batches of up to ``lanes`` rows can keep the shape. A single lane always does."""
        return lanes == 1 or self.padded_rows(lanes) == lanes


UNCONSTRAINED = BatchShape(1, 1)
AT_LEAST_TWO = BatchShape(2, 1)
MULTIPLES_OF_FOUR = BatchShape(8, 4)


def shape_for_weights(weight_types: frozenset[str]) -> BatchShape:
    """The shape that weights of these types (GGUF names) need. Machines other than x86-64 get the strictest shape."""
    return (
        AT_LEAST_TWO
        if weight_types <= _ROW_INVARIANT and platform.machine().lower() in ("x86_64", "amd64")
        else MULTIPLES_OF_FOUR
    )
