"""Logged model calls, each with all that was sent, joined into the dialogs that they are parts of."""

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
    """A call: what was sent and what came back, with latency, counts of tokens and metadata at the answer.

    ``conversation`` is the id under which calls belong together, empty where the log names none; ``id`` that of the
    call itself, empty where it has none. ``metadata`` is the dialog's.
    """

    conversation: str
    id: str
    prompt: Sequence[Message]
    answer: Sequence[Message]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class JoinedCalls:
    """The calls that make one dialog. ``digests`` are those of its beginnings, one a message; ``frame`` is that of all
    of it but the words of answers; ``measured`` is what was logged of the answers, by their place among the messages
    that are no system message; ``latest`` is where the call stands that holds the whole dialog.
    """

    id: str
    digests: bytes = b""
    frame: bytes = b""
    measured: dict[int, tuple[float | None, Mapping[str, int], Mapping[str, Any]]] = field(default_factory=dict)
    latest: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.digests) // _DIGEST_BYTES

    def dialog(self, call: LoggedCall) -> Dialog:
        """The dialog as its latest call holds it."""
        messages, position = [], 0
        for message in (*call.prompt, *call.answer):
            if message.role != "system":
                if position in self.measured:
                    latency, tokens, metadata = self.measured[position]
                    message = replace(
                        message, latency=latency, tokens=tokens, metadata={**message.metadata, **metadata}
                    )
                position += 1
            messages.append(message)
        return Dialog.from_messages(self.id, messages, call.metadata)


class CallIndex:
    """Which calls belong together.

    :param most: how many conversations are remembered, the latest; None: all. A dialog whose conversation was
        forgotten begins anew.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._conversations: OrderedDict[str, list[JoinedCalls]] = OrderedDict()

    def __iter__(self) -> Iterator[JoinedCalls]:
        return (joined for dialogs in self._conversations.values() for joined in dialogs)

    def add(self, call: LoggedCall, position: tuple[int, int], name: str) -> tuple[JoinedCalls, int] | None:
        """Take the next call in; ``place`` is its line and its number in the line, ``name`` the id of its dialog where
        the log gives none.

        Returns its dialog, and how many messages were known of it, system messages left out; None where nothing of the
        call is new, or it holds no message.
        """
        spoken = [message for message in (*call.prompt, *call.answer) if message.role != "system"]
        if not spoken:
            return None
        digests, frames = _prefix_digests(spoken), _prefix_digests(spoken, answers=False)
        answer_at = len(spoken) - sum(message.role != "system" for message in call.answer)
        joined = self._related(call, spoken, digests, frames, answer_at)
        known_count = 0 if joined is None else len(joined)
        if joined is None:
            joined = self._begin(call, name)
        elif known_count >= len(spoken):
            self._measure(joined, spoken, answer_at)
            return None
        joined.digests, joined.frame, joined.latest = digests, frames[-_DIGEST_BYTES:], position
        self._measure(joined, spoken, answer_at)
        if not call.conversation:
            self._conversations[_last_digest_key(digests)] = [
                *self._conversations.get(_last_digest_key(digests), ()),
                joined,
            ]
        self._forget()
        return joined, known_count

    def _related(
        self, call: LoggedCall, spoken: Sequence[Message], digests: bytes, frames: bytes, answer_at: int
    ) -> JoinedCalls | None:
        """The dialog that the call continues, or that already holds it."""
        if not call.conversation:
            # Nothing but the texts says that two calls belong together: a dialog is continued behind an answer alone.
            for end in range(answer_at, 0, -1):
                if spoken[end - 1].role == "assistant":
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
            # Applications trim and rewrite answers before they send them back; of answers given anew the latest counts.
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

    def _measure(self, joined: JoinedCalls, spoken: Sequence[Message], answer_at: int) -> None:
        for position, message in enumerate(spoken[answer_at:], answer_at):
            if position not in joined.measured and (message.latency is not None or message.tokens or message.metadata):
                joined.measured[position] = (message.latency, message.tokens, message.metadata)

    def _forget(self) -> None:
        while self._capacity is not None and len(self._conversations) > self._capacity:
            self._conversations.popitem(last=False)


def _last_digest_key(digests: bytes) -> str:
    """The key of a dialog without a conversation's id: what its last digest says. No id begins with NUL."""
    return "\0" + digests[-_DIGEST_BYTES:].hex()


def _prefix_digests(messages: Sequence[Message], answers: bool = True) -> bytes:
    """Of each message the digest of everything up to it; without ``answers`` the words of assistants left out."""
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
