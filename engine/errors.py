"""The tree of error types, and the line of user code that raised an error. Code decides by type, never by text.

VivaError
├── ConfigurationError        an option, pack, manifest or model name is wrong: the run cannot start
│   ├── ChecksumMismatch      a model file does not have the checksum of its store
│   └── DatasetError          a benchmark file or one of its lines is wrong (carries path, line, field)
├── BackendError              a model call failed (carries the model's label)
│   ├── Rejected              the endpoint understood and refused: never retried
│   │   ├── Unauthorized      wrong or missing key: stops the run, because every other call would fail too
│   │   ├── Forbidden         401 or 403 although the key is good: only this request is forbidden
│   │   ├── Redirected        the endpoint redirects elsewhere; neither key nor prompt is sent there
│   │   ├── FormRefused       unsupported form of structured output: retried in a simpler form
│   │   └── ContextTooLong    the conversation no longer fits the model's context
│   ├── Throttled             429: retried, after `retry_after` seconds if the endpoint names them
│   ├── Unavailable           5xx, refused or reset connection, truncated stream: retried
│   │   └── NoDescriptor      this process has too many open files: waits; no failed attempt
│   ├── Unreachable           unreachable for longer than the patience: stops the run, because every call would wait
│   ├── AccountBlocked        no credit, a closed account, or a pause beyond the patience: stops the run, resumable
│   ├── AnswerTooLarge        an answer with too many bytes
│   ├── TimedOut              no answer in time: retried
│   │   └── Unanswered        no person answered in time: not retried
│   └── TranscriptEnded       a replayed conversation has no further recorded turn
├── TaskError                 one task of a run cannot be used; the others can
├── ConversationCancelled     this conversation was cancelled during its run
├── MalformedOutput           a model answered, but not in the requested form
├── LimitReached              a budget of a conversation or of the run is used up
├── ClusterError              a cluster could not run a shard of a sweep
│   └── NotScheduled          no machine had the resources for a shard in time
└── JournalError              the run folder cannot be written or read (disk full, corrupt, other run)
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from types import TracebackType
from typing import Any


class VivaError(Exception):
    """Base class of all errors that the project raises on purpose."""

    retryable = False

    def to_record(self) -> dict[str, Any]:
        """Return the journal's record of a failure: type and message, no secrets, nothing specific to this machine."""
        return {"type": type(self).__name__, "message": error_text(self)}

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of an uncaught error: the lines of the user's own code, and the message."""
        frames = [entry[1] for entry in _frames_of_error(self.__traceback__)
                  if entry[0] == "__main__" or _frame_rank(entry) == 0]  # fmt: skip
        lines = "".join(traceback.format_list(frames)).splitlines()
        return [*lines, f"{type(self).__name__}: {error_text(self)}", *getattr(self, "__notes__", ())]


class ConfigurationError(VivaError):
    """Something that the user wrote is wrong; the message names the mistake and says what to do."""


class SettingRefused(ConfigurationError):
    """An endpoint refuses a model's name or option, or an option of the run; a resumed run would be refused too."""


class ChecksumMismatch(ConfigurationError):
    """A model file does not have the SHA-256 that its store states; the message names the file and both sums."""


class DatasetError(ConfigurationError):
    """A benchmark file cannot be used.

    `message` is the message as given; the error's text puts path, line and field before it.

    Args:
        message: What is wrong.
        path: The file.
        line: 1-based line; None for the whole file.
        field: The field at fault.
    """

    def __init__(self, message: str, *, path: str, line: int | None = None, field: str | None = None) -> None:
        location = path if line is None else f"{path}:{line}"
        prefix = f"field '{field}': " if field else ""
        super().__init__(f"{location}: {prefix}{message}")
        self.message, self.path, self.line, self.field = message, path, line, field


class TaskError(VivaError):
    """The task of a conversation cannot be used: the conversation fails, and the run continues."""


class ConversationCancelled(VivaError):
    """The conversation was cancelled during its run; the message is the reason."""


class BackendError(VivaError):
    """A model call failed.

    `model` is the model's label; `retry_after` is in seconds, None if the endpoint named no time. `absent` means that
    the endpoint seems to be unreachable.
    """

    absent = False

    def __init__(
        self, message: str, *, model: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{model}: {message}")
        self.model, self.status, self.retry_after = model, status, retry_after


class Rejected(BackendError):
    """The endpoint refused the request itself (400, 404, 422, …); a retry cannot help."""


class Unauthorized(Rejected):
    """401 or 403, and no request with this key was ever answered: the key is missing or wrong."""


class Forbidden(Rejected):
    """401 or 403 for one request, while other requests with the same key are answered."""


class Redirected(Rejected):
    """The endpoint redirects to another host, or to another kind of request. The redirect was not followed."""


class FormRefused(Rejected):
    """The endpoint refused a request for a form of structured output; the next try uses a simpler form."""


class ContextTooLong(Rejected):
    """The prompt no longer fits the model's context."""


class Throttled(BackendError):
    """429: too many requests."""

    retryable = True


class Unavailable(BackendError):
    """The endpoint could not serve the request now: 5xx, connection refused or reset, truncated answer."""

    retryable = True


class NoDescriptor(Unavailable):
    """No connection could be opened: this process, or the system, has no free file descriptor."""


class Unreachable(BackendError):
    """The endpoint became unreachable and did not become reachable again while calls waited."""


class AccountBlocked(BackendError):
    """The endpoint answers no call of this account until somebody acts, or for longer than the patience."""


class AnswerTooLarge(BackendError):
    """The unpacked answer has more bytes than allowed (`answer_mb`)."""


class TimedOut(BackendError):
    """The endpoint did not answer within the timeout, or returned 408."""

    retryable = True


class Unanswered(TimedOut):
    """A person did not answer a question in time."""

    retryable = False


class TranscriptEnded(BackendError):
    """A replayed conversation has no further recorded turn."""


class MalformedOutput(VivaError):
    """A model's text does not have the requested form. `truncated` means that it hit its token limit."""

    def __init__(self, message: str, *, truncated: bool = False) -> None:
        super().__init__(message)
        self.truncated = truncated


class LimitReached(VivaError):
    """A budget is used up. `limit` names it: tokens, calls, cost or seconds."""

    def __init__(self, limit: str, allowed: float, scope: str) -> None:
        super().__init__(f"the {scope}'s {budget_text(limit, allowed)} is used up")
        self.limit, self.allowed, self.scope = limit, allowed, scope


def budget_text(limit: str, allowed: float) -> str:
    """Return a budget in words: `budget of 50 calls`, or `cost budget of 0.5`."""
    return f"cost budget of {allowed:g}" if limit == "cost" else f"budget of {allowed:g} {limit}"


class ClusterError(VivaError):
    """A shard of a sweep failed on a cluster: its workers died, or another attempt took it over."""


class NotScheduled(ClusterError):
    """No machine of the cluster had the resources that a shard needs; the message names them."""


class JournalNotice(UserWarning):
    """Warning about a journal that the user must see although the work continues; shown by Python's `warnings`."""


class JournalError(VivaError):
    """The run folder cannot be written or read; everything committed before stays readable."""


def replace_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode; lone surrogates stay readable."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_text(error: BaseException) -> str:
    """Return an error's message as text that a journal can store."""
    try:
        return replace_surrogates(str(error))
    except Exception:  # raised by the error's own __str__
        return "(its message cannot be shown)"


def did_you_mean(name: str, candidates: Iterable[str], known: str = "", *, cutoff: float = 0.6) -> str:
    """Return `; did you mean 'rounds'?` for a misspelt name; "" if no candidate is close and `known` is empty.

    Args:
        name: The name that was found.
        candidates: The names that are accepted.
        known: A heading such as `known kinds`, under which all candidates are listed.
        cutoff: The similarity from which a candidate is close.
    """
    from difflib import get_close_matches  # needed only for errors

    names = {candidate.casefold(): candidate for candidate in candidates}
    matches = get_close_matches(name.casefold(), names, 1, cutoff)
    hint = f"; did you mean '{names[matches[0]]}'?" if matches else ""
    return hint + (f"{'' if hint else ';'} {known}: {', '.join(names.values()) or 'none'}" if known else "")


def choice_hint(detail: Mapping[str, Any]) -> str:
    """Return `did_you_mean` for a pydantic error about a text that is not an accepted value."""
    value = detail.get("input")
    if detail["type"] not in ("literal_error", "enum") or not isinstance(value, str):
        return ""
    return did_you_mean(value, re.findall(r"'([^']*)'", detail["ctx"]["expected"]))


_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


@cache
def _library_folders() -> tuple[str, ...]:
    import sysconfig  # takes milliseconds; needed only for errors

    return tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def user_frame(error: BaseException) -> str:
    """Return `FILE:LINE in FUNCTION` of the innermost frame of the user's own code.

    If it has no frame, the innermost frame of viva is returned, else that of a package or the standard library.
    """
    while isinstance(error, BaseExceptionGroup):  # raised together in a task group: the first counts
        error = error.exceptions[0]
    frames = {_frame_rank(entry): entry for entry in _frames_of_error(error.__traceback__)}  # the innermost per rank
    return "nowhere" if not frames else "{0.filename}:{0.lineno} in {0.name}".format(frames[min(frames)][1])


def _frames_of_error(trace: TracebackType | None) -> list[tuple[str, traceback.FrameSummary]]:
    return [
        (
            str(frame.f_globals.get("__name__", "")),
            traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False),
        )
        for frame, line in traceback.walk_tb(trace)
    ]


def _frame_rank(entry: tuple[str, traceback.FrameSummary]) -> int:
    module, frame = entry
    if module == "viva" or module.startswith("viva."):
        return 1
    foreign = frame.filename.startswith(("<", *_library_folders())) or any(
        part in frame.filename for part in _PACKAGE_FOLDERS
    )
    return 2 if foreign else 0
