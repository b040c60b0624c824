"""Logged model calls with their full prompts, joined into dialogs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import orjson

from ..dialog import Dialog, Message

_DIGEST_BYTES = 8


@dataclass(slots=True)
class LoggedCall:
    """A logged call: its prompt and answer; the answer has latency, token counts and metadata.

    `conversation` is the id shared by calls of a conversation, or empty; `id` is the call's id, or empty. `metadata`
    belongs to the dialog.
    """

    conversation: str
    id: str
    prompt: Sequence[Message]
    answer: Sequence[Message]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class JoinedCalls:
    """Calls that form one dialog.

    `digests` has a digest of each prefix, one per message. `frame` is a digest of the dialog without the text of
    answers. `measurements` has latency, tokens and metadata of answers by position, not counting system messages.
    `latest` is the position of the call that contains the whole dialog.
    """

    id: str
    digests: bytes = b""
    frame: bytes = b""
    measurements: dict[int, tuple[float | None, Mapping[str, int], Mapping[str, Any]]] = field(default_factory=dict)
    latest: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.digests) // _DIGEST_BYTES

    def dialog(self, call: LoggedCall) -> Dialog:
        """Return the dialog; `call` must be its latest call."""
        messages, position = [], 0
        for message in (*call.prompt, *call.answer):
            if message.role != "system":
                if position in self.measurements:
                    latency, tokens, metadata = self.measurements[position]
                    metadata = {**message.metadata, **metadata}
                    message = replace(message, latency=latency, tokens=tokens, metadata=metadata)
                position += 1
            messages.append(message)
        return Dialog.from_messages(self.id, messages, call.metadata)


class CallIndex:
    """Index that joins calls into dialogs.

    It remembers the latest `capacity` conversations (None: all); a forgotten conversation starts a new dialog.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._conversations: OrderedDict[str, list[JoinedCalls]] = OrderedDict()

    def __iter__(self) -> Iterator[JoinedCalls]:
        return (joined for dialogs in self._conversations.values() for joined in dialogs)

    def add(self, call: LoggedCall, position: tuple[int, int], name: str) -> tuple[JoinedCalls, int] | None:
        """Add the next call.

        Args:
            call: The call.
            position: Tuple (line of the call, number of the call in the line).
            name: Id of the dialog if the log has none.

        Returns:
            The dialog and its number of known messages without system messages; None if the call has nothing new.
        """
        messages = [message for message in (*call.prompt, *call.answer) if message.role != "system"]
        if not messages:
            return None
        digests, frames = _prefix_digests(messages), _prefix_digests(messages, answers=False)
        answer_at = len(messages) - sum(message.role != "system" for message in call.answer)
        joined = self._related(call, messages, digests, frames, answer_at)
        known_count = 0 if joined is None else len(joined)
        if joined is None:
            joined = self._begin(call, name)
        elif known_count >= len(messages):
            self._measure(joined, messages, answer_at)
            return None
        joined.digests, joined.frame, joined.latest = digests, frames[-_DIGEST_BYTES:], position
        self._measure(joined, messages, answer_at)
        if not call.conversation:
            self._conversations[_last_digest_key(digests)] = [
                *self._conversations.get(_last_digest_key(digests), ()),
                joined,
            ]
        self._forget()
        return joined, known_count

    def _related(
        self, call: LoggedCall, messages: Sequence[Message], digests: bytes, frames: bytes, answer_at: int
    ) -> JoinedCalls | None:
        """Return the dialog that the call continues, or that already contains it."""
        if not call.conversation:
            # Only the texts show that two calls belong together, so a dialog only continues after an answer.
            for end in range(answer_at, 0, -1):
                if messages[end - 1].role == "assistant":
                    key = _last_digest_key(digests[: end * _DIGEST_BYTES])
                    if matches := self._conversations.pop(key, None):
                        if matches[1:]:
                            self._conversations[key] = matches[1:]
                        return matches[0]
            return None
        match = edited = None
        for candidate in self._conversations.get(call.conversation, ()):
            shared = min(len(candidate.digests), len(digests))
            if candidate.digests[shared - _DIGEST_BYTES : shared] == digests[shared - _DIGEST_BYTES : shared]:
                if len(candidate.digests) >= len(digests):
                    return candidate
                if match is None or len(candidate) > len(match):
                    match = candidate
            # Applications trim or rewrite answers before sending them back; the latest of repeated answers counts.
            elif (
                len(candidate) <= answer_at
                and frames[len(candidate.digests) - _DIGEST_BYTES : len(candidate.digests)] == candidate.frame
            ):
                edited = candidate if edited is None or len(candidate) >= len(edited) else edited
        if match is None or (edited is not None and len(edited) > len(match)):
            match = edited
        if match is not None:
            self._conversations.move_to_end(call.conversation)
        return match

    def _begin(self, call: LoggedCall, name: str) -> JoinedCalls:
        if not call.conversation:
            return JoinedCalls(call.id or name)
        dialogs = self._conversations.setdefault(call.conversation, [])
        id_ = call.conversation if not dialogs else f"{call.conversation}:{len(dialogs) + 1}"
        dialogs.append(JoinedCalls(id_))
        self._conversations.move_to_end(call.conversation)
        return dialogs[-1]

    def _measure(self, joined: JoinedCalls, messages: Sequence[Message], answer_at: int) -> None:
        for position, message in enumerate(messages[answer_at:], answer_at):
            if position not in joined.measurements and (
                message.latency is not None or message.tokens or message.metadata
            ):
                joined.measurements[position] = (message.latency, message.tokens, message.metadata)

    def _forget(self) -> None:
        while self._capacity is not None and len(self._conversations) > self._capacity:
            self._conversations.popitem(last=False)


def _last_digest_key(digests: bytes) -> str:
    """Return the key of a dialog without a conversation id: a NUL, with which no id begins, and the last digest."""
    return "\0" + digests[-_DIGEST_BYTES:].hex()


def _prefix_digests(messages: Sequence[Message], answers: bool = True) -> bytes:
    """Return a digest of every prefix of the messages, one per message; without `answers`, skip assistants' texts."""
    digests, chain = bytearray(), b""
    for message in messages:
        parts: list[Any] = [message.role]
        if answers or message.role != "assistant":
            parts.append(message.content.strip().encode("utf-8", "replace").decode())
        parts += [(call.name, _canonical_json(call.arguments)) for call in message.tool_calls]
        data = orjson.dumps(parts)
        chain = blake2b(chain + data, digest_size=_DIGEST_BYTES).digest()
        digests += chain
    return bytes(digests)


def _canonical_json(arguments: str) -> str:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments.strip()
