"""One request on its way through the inference thread.

What never belongs here: what is done with it (``loop``, ``lanes``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import ContextTooLong, VivaError
from .native import State
from .outputs.continuations import ContinuationReading
from .outputs.generation import Generation
from .scheduler import Job
from .segment import Segment


@dataclass(slots=True)
class Ask:
    """What to compute, how to go on, and whom to tell: ``done`` is called on the inference thread.

    ``segments`` are the prompt's runs; then either a ``generation`` grows or a ``reading`` is read. ``shared`` holds
    how many leading segments other requests begin with too, ascending: their KV is kept for them. ``kept`` and
    ``continued`` say what the talk's next request begins with (``turns``), and ``goes_on`` whether with the generation
    that has ended, too (None: it does); it is asked on the inference thread. ``begun`` says that the request belongs to
    a conversation under way, ``talk`` whose KV it is. The rest is the thread's own.
    """

    segments: list[Segment]
    done: Callable[[Ask], None]
    generation: Generation | None = None
    reading: ContinuationReading | None = None
    talk: str = ""
    begun: bool = False
    shared: tuple[int, ...] = ()
    kept: int = 0
    continued: bool = True
    goes_on: Callable[[], bool] | None = None
    error: VivaError | None = None
    cancelled: bool = False
    prompt_tokens: int = 0
    found: int = 0  # leading segments whose KV came from the store
    opening: Segment | None = None
    job: Job = field(default_factory=lambda: Job(-1, deque()))
    computed: list[Segment] = field(default_factory=list)
    decode_failures: int = 0
    mark: State | None = None  # of a lane that cannot simply be cut, where a reading's continuations begin

    @property
    def longest(self) -> int:
        """The most tokens the lane will hold before anything is generated."""
        total = sum(len(segment.tokens) for segment in self.segments)
        if self.reading is not None:
            total += max(len(tokens) for tokens in self.reading.continuations) - 1
        return total

    def room(self, context: int, spare: int, model: str) -> int:
        """How many tokens a lane of ``context`` tokens has left for an answer, ``spare`` of them never used.

        :raises ContextTooLong: it does not hold the request.
        """
        total = self.longest
        room = context - total - spare - 1
        if room < 0 or not self.segments or (self.generation is not None and room < 1):
            raise ContextTooLong(
                f"the {'text' if self.reading else 'prompt'} has {total:,} tokens and leaves no room"
                f"{'' if self.reading else ' for an answer'}: a lane holds {context:,}; raise ?ctx=",
                model=model,
            )
        return room

    def begin_again(self) -> None:
        """Forget what was computed; nothing has been said yet."""
        self.computed = []
        if self.reading is not None:
            self.reading = ContinuationReading(self.reading.continuations, self.reading.moments)

    def common(self) -> tuple[tuple[bool, bytes], ...] | None:
        """What names the shared prefix that the request is computing now; None where it computes its own."""
        for count in self.shared:
            if count > len(self.computed):
                return tuple(segment.key() for segment in self.segments[:count])
        return None
