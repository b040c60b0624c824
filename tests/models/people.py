"""People in a room, for tests: they look at what is asked and answer it, as the pages do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from viva.engine.backends.human_queue import AnswerQueue, PendingQuestion, QueueStatus

_LOOK_SECONDS = 0.005
_PATIENCE = 60.0
Said = str | list[tuple[str, str]]  # text, or calls


class Person:
    """Somebody in the room ``folder``, in the test's own thread."""

    def __init__(self, folder: Path) -> None:
        self.room = AnswerQueue(folder)

    def asked(self, count: int = 1) -> list[QueueStatus]:
        """What waits, as soon as there are so many."""
        never, seen = threading.Event(), 0.0
        while len(waiting := self.room.standings("waiting")) < count:
            assert seen < _PATIENCE, f"{len(waiting)} of {count} requests came"
            never.wait(_LOOK_SECONDS)
            seen += _LOOK_SECONDS
        return waiting

    def posed(self, standing: QueueStatus) -> PendingQuestion:
        """What a waiting request asks."""
        found = self.room.request(standing.name)
        assert found is not None
        return found[1]

    def says(self, standing: QueueStatus, said: Said, submission: str = "", who: str = "Ada") -> str:
        """Answer a request; the receipt."""
        text, calls = (said, []) if isinstance(said, str) else ("", said)
        return self.room.answer(standing.name, submission or f"form of {standing.name}", text, calls, who)


@contextmanager
def answering(folder: Path, reply: Callable[[PendingQuestion], Said]) -> Iterator[list[PendingQuestion]]:
    """Somebody who answers whatever waits, in a thread, while entered; yields what was answered so far."""
    done, answered = threading.Event(), list[PendingQuestion]()

    def answer() -> None:
        person = Person(folder)
        while not done.wait(_LOOK_SECONDS):
            for standing in person.room.standings("waiting"):
                posed = person.posed(standing)
                if person.says(standing, reply(posed)) == "taken":
                    answered.append(posed)
        person.room.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield answered
    finally:
        done.set()
        thread.join()
