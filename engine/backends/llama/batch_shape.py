"""The shape of calls in which a row's result does not depend on the rows beside it: the ground under the strict mode.

llama.cpp's CPU kernels choose their way by the number of rows of a call, and some compute the rows left over behind
the last four in another way than the rest. What was found on x86-64, by comparing logits and KV bit for bit (a test
repeats it for each kind of weights): with float and Q8_0 weights every row of a call of two rows or more is the same;
with all other kinds tried (Q4_0, Q4_K, Q5_K, Q6_K, IQ4_NL) if the call has eight rows or more and a multiple of four.
The same holds for the rows whose logits are wanted. Sequences may share a call where each gives it equally many tokens
and their lanes are neighbours: llama.cpp then computes them as one block, each in the shape it would have alone.

What never belongs here: llama.cpp itself, which tokens a call holds (``scheduler``).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

_EVEN = {"F32", "F16", "BF16", "Q8_0"}


@dataclass(slots=True, frozen=True)
class Shape:
    """Calls and wanted rows come in multiples of ``unit``, ``least`` of them or more."""

    least: int
    unit: int

    def rows(self, count: int) -> int:
        """The fewest rows, ``count`` or more, that a call may have."""
        return -(-max(count, self.least) // self.unit) * self.unit

    def filled(self, wanted: list[int]) -> list[int]:
        """The rows whose logits to ask for (1) when these are wanted: the same, or with more of them from the end."""
        count = sum(wanted)
        missing = self.rows(count) - count
        spare = [index for index, one in enumerate(wanted) if not one][-missing:] if missing else []
        if not spare:
            return wanted
        asked = list(wanted)
        for index in spare:
            asked[index] = 1
        return asked

    def fits(self, lanes: int) -> bool:
        """Whether decode calls of up to ``lanes`` rows can keep the shape. A single lane always has the same one."""
        return lanes == 1 or self.rows(lanes) == lanes


ANY = Shape(1, 1)
PAIRS = Shape(2, 1)
FOURS = Shape(8, 4)


def shape_for(kinds: frozenset[str]) -> Shape:
    """The shape that weights of these kinds want (by their GGUF names). Other machines than x86-64 were not tried."""
    return PAIRS if kinds <= _EVEN and platform.machine().lower() in ("x86_64", "amd64") else FOURS
