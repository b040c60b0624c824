"""Which talk is at home at which of a model's contexts: its KV lies there, so it comes back there.

What never belongs here: contexts, and what they compute (``loaded``, ``lanes``).
"""

from __future__ import annotations

from collections import OrderedDict

_REMEMBERED_TALKS = 50_000


class Seats:
    """The talks of one backend. ``taken`` counts seats per context, over all backends that share the contexts."""

    def __init__(self, taken: list[int]) -> None:
        self._taken = taken
        self._talks: OrderedDict[str, int] = OrderedDict()

    def take(self, talk: str) -> tuple[int, bool]:
        """The context of a talk, and whether the talk is under way; a new one goes where the fewest are.

        A request of no talk ("") is given a seat for itself, to ``leave`` when it is answered.
        """
        if (seat := self._talks.get(talk)) is not None:
            self._talks.move_to_end(talk)
            return seat, True
        seat = min(range(len(self._taken)), key=self._taken.__getitem__)
        self._taken[seat] += 1
        if not talk:
            return seat, True
        self._talks[talk] = seat
        if len(self._talks) > _REMEMBERED_TALKS:
            self.leave(self._talks.popitem(last=False)[1])
        return seat, False

    def leave(self, seat: int) -> None:
        """Who sat there has gone."""
        self._taken[seat] -= 1

    def end(self, talk: str) -> None:
        """A talk has ended; one that was never heard of changes nothing."""
        if (seat := self._talks.pop(talk, None)) is not None:
            self.leave(seat)

    def clear(self) -> None:
        """All have ended."""
        for seat in self._talks.values():
            self.leave(seat)
        self._talks.clear()
