"""One request on its way through the inference thread: its prompt, its output so far, and whom to notify."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import ContextTooLong
from .native import SavedState
from .outputs.continuations import ContinuationReading
from .outputs.generation import Generation
from .scheduler import Job
from .segment import Segment


@dataclass(slots=True)
class PendingRequest:
    """A prompt as segments, followed by either a ``generation`` or a ``reading`` of given continuations.

    ``on_done`` is called on the inference thread. ``conversation`` owns the KV that is kept after the request;
    ``ongoing`` says that it has had requests before. ``shared_prefixes``, ascending, are the numbers of leading
    segments that other requests begin with too: KV up to there is stored for everybody. ``stable_segments``,
    ``may_continue`` and ``continues_from_answer`` say what the conversation's next prompt will begin with
    (``chat.prefix_reuse``); the last is called on the inference thread, None means yes. All other fields belong to the
    inference thread.
    """

    segments: list[Segment]
    on_done: Callable[[PendingRequest], None]
    generation: Generation | None = None
    reading: ContinuationReading | None = None
    conversation: str = ""
    ongoing: bool = False
    shared_prefixes: tuple[int, ...] = ()
    stable_segments: int = 0
    may_continue: bool = True
    continues_from_answer: Callable[[], bool] | None = None
    error: Exception | None = None
    cancelled: bool = False
    withdrawn: bool = False  # to be given up, with ``RunStopping``, if it has no lane yet
    prompt_tokens: int = 0
    restored: int = 0  # leading segments whose KV came from the host cache
    forced_opening: Segment | None = None
    job: Job = field(default_factory=lambda: Job(-1, deque()))
    computed: list[Segment] = field(default_factory=list)
    decode_failures: int = 0
    checkpoint: SavedState | None = None  # of a recurrent state, where a reading's continuations begin

    @property
    def prompt_length(self) -> int:
        """The most tokens that the lane holds before anything is generated."""
        total = sum(len(segment.tokens) for segment in self.segments)
        if self.reading is not None:
            total += max(len(tokens) for tokens in self.reading.continuations) - 1
        return total

    def answer_room(self, context: int, spare: int, model: str) -> int:
        """How many tokens of a lane of ``context`` tokens are left for the answer; ``spare`` of them are never used.

        :raises ContextTooLong: the lane cannot hold the request.
        """
        total = self.prompt_length
        room = context - total - spare - 1
        if room < 0 or not self.segments or (self.generation is not None and room < 1):
            raise ContextTooLong(
                f"the {'text' if self.reading else 'prompt'} has {total:,} tokens and leaves no room"
                f"{'' if self.reading else ' for an answer'}: a lane holds {context:,}; raise ?ctx=",
                model=model,
            )
        return room

    def reset(self) -> None:
        """Forget what was computed, before the first token is generated, to start over."""
        self.computed = []
        if self.reading is not None:
            self.reading = ContinuationReading(self.reading.continuations, self.reading.moments)

    def pending_prefix(self) -> tuple[tuple[bool, bytes], ...] | None:
        """The key of the next shared prefix to compute; None if only the request's own segments are left."""
        for count in self.shared_prefixes:
            if count > len(self.computed):
                return tuple(segment.key() for segment in self.segments[:count])
        return None
