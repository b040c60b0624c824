"""Messages, a role's growing view of its conversation, requests and completions.

These are hot-path records: slotted, built thousands of times a second, never mutated after they are handed on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from .likelihood import Likelihood
from .tools import Toolbox, ToolCall

# Runs of token ids, each either generated one by one (True) or prefilled (False).
Pieces = list[tuple[bool, list[int]]]
Party = Literal["system", "user", "assistant", "tool"]
_DIGEST_BYTES = 16
_PARTY_BYTES: dict[Party, bytes] = {"system": b"s", "user": b"u", "assistant": b"a", "tool": b"t"}


@dataclass(slots=True)
class Message:
    """A message of a chat.

    `pieces` are the tokens of the model's own reply as computed, if known; only a local model uses its own tokens
    again. `calls` belong to an assistant's message; `call_id` (the answered call) and `name` (of the function) to a
    tool's result.
    """

    role: Party
    content: str
    pieces: Pieces | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""

    def to_openai(self) -> dict[str, Any]:
        """Return the message in the format of chat endpoints."""
        record: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.role == "tool":
            record["tool_call_id"] = self.call_id
            if self.name:
                record["name"] = self.name
        elif self.calls:
            record["content"] = self.content or None
            record["tool_calls"] = [call.to_openai() for call in self.calls]
        return record


class View:
    """A role's view of the conversation: it only grows; its digest is a hash chain over the messages.

    Appending costs one hash of the new text, so identifying a request costs the same in the last round as in the first.
    """

    __slots__ = ("_digest", "_messages")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._digest = b""

    def append(
        self,
        role: Party,
        content: str,
        pieces: Pieces | None = None,
        *,
        calls: Sequence[ToolCall] = (),
        call_id: str = "",
        name: str = "",
    ) -> None:
        """Add a message at the end; arguments as in `Message`.

        `pieces` are not part of the digest, because they spell the same text as `content`.
        """
        if calls or call_id or name:
            message = Message(role, content, pieces, tuple(calls), call_id, name)
            # The capital letter distinguishes a message with tools from a text of the same bytes.
            data = self._digest + role[0].upper().encode() + _encode_with_tools(message)
        else:
            message = Message(role, content, pieces)
            data = (
                self._digest + (_PARTY_BYTES.get(role) or role[0].encode()) + content.encode("utf-8", "surrogatepass")
            )
        self._messages.append(message)
        self._digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()

    def branch(self) -> View:
        """Return a view that starts with these messages and grows separately (a repair request is one)."""
        view = View()
        view._messages = self._messages.copy()
        view._digest = self._digest
        return view

    def without_last(self) -> View:
        """Return a separate view without the last message; all other messages are hashed again."""
        view = View()
        for message in self._messages[:-1]:
            view.append(
                message.role,
                message.content,
                message.pieces,
                calls=message.calls,
                call_id=message.call_id,
                name=message.name,
            )
        return view

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages so far, safe to pass to a backend while the view grows."""
        return tuple(self._messages)

    @property
    def digest(self) -> bytes:
        """16 bytes that identify the whole sequence of roles and texts."""
        return self._digest

    def __len__(self) -> int:
        return len(self._messages)


@dataclass(slots=True, frozen=True)
class Sampling:
    """Options of a model's answers. Created once per role and shared by all of its requests.

    `schema` is a JSON schema that the answer must follow, None for free text; `logprobs` the number of alternatives to
    return with each token's log-probability, None for none; `expected` requests the probability-weighted mean wherever
    the schema has an integer from a list (backends that cannot compute it omit it). `top_k`, `min_p` and the three
    penalties are off at their defaults, and are sent to endpoints only if on. `seed` replaces the seed that follows
    from the run's seed and the call's position.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    logprobs: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    expected: bool = False
    seed: int | None = None
    digest: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # 0 and 0.0 are the same temperature and must have the same digest.
        parts = [float(self.temperature), float(self.top_p), self.max_tokens, self.stop, self.schema, self.logprobs]
        parts += [self.top_k, float(self.min_p), float(self.repeat_penalty), float(self.frequency_penalty)]
        parts += [float(self.presence_penalty), self.expected]
        parts += [] if self.seed is None else [self.seed]  # calls without it keep the digests of earlier versions
        digest = hashlib.blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=_DIGEST_BYTES)
        object.__setattr__(self, "digest", digest.digest())


@dataclass(slots=True)
class Request:
    """A model call.

    `digest` identifies the request (messages, sampling, seed; not the model, which the manifest names). `on_text` is
    called with each piece of text by backends that stream; an exception that it raises ends the call at once;
    `on_restart` is called before a failed attempt is repeated: text received so far is discarded. `hint` is what a
    simulated or oracle model may know of the item; real backends never read it. `tools` are the functions that the
    model may call. `affinity` identifies the conversation in this process, because parallel runs may have conversations
    of the same name: backends keep KV and contexts by it. `prompt`, in place of messages, is text to continue as is,
    without a chat template (only for backends with `continues_text`). `branch` is the path of the branch that makes
    the request, "" for the conversation itself; requests of one role may overlap between branches. `run` is the run's
    folder.
    """

    messages: Sequence[Message]
    sampling: Sampling
    seed: int
    digest: bytes
    conversation: str = ""
    role: str = ""
    ordinal: int = 0
    hint: Any = None
    on_text: Callable[[str], None] | None = None
    on_restart: Callable[[], None] | None = None
    tools: Toolbox | None = None
    affinity: str = ""
    prompt: str | None = None
    branch: str = ""
    run: Path | None = None

    @property
    def characters(self) -> int:
        """Length of the prompt, including tools, for estimates without token counts."""
        count = sum(len(message.content) for message in self.messages) + len(self.prompt or "")
        if self.tools is not None:
            count += self.tools.characters
            count += sum(len(call.name) + len(call.arguments) for message in self.messages for call in message.calls)
        return count


@dataclass(slots=True)
class Completion:
    """A model's answer. Latencies are in seconds; `attempts` counts all tries, including the successful one.

    `text` is the answer; the reasoning before it is in `thoughts`. `finish` is `stop`, `length` (hit `max_tokens`),
    `watch:REASON` if a detector ended the stream, or the endpoint's own word (`content_filter`, `refusal`, `tool_calls`
    if no tools were offered, …). `usage_note` is an unusable token count as received; an estimate replaces it.
    `cached_tokens` are the prompt tokens served from the endpoint's cache, if reported. `logprobs` has per token
    `[text, logprob, {alternative: logprob}]`, if requested; `pieces` are as in `Message`; `expected` is the mean of
    each score, weighted by the probabilities of its digits, if requested; `likelihoods` answer a `Reading`; `calls` are
    the functions to call, None if there are none. `versions` are the versions of the weights that computed this answer,
    oldest first, if the model is trained meanwhile; None if unknown.
    """

    text: str
    finish: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency: float = 0.0
    first_token: float | None = None
    attempts: int = 1
    logprobs: list[list[Any]] | None = None
    pieces: Pieces | None = None
    expected: list[float] | None = None
    likelihoods: list[Likelihood] | None = None
    calls: list[ToolCall] | None = None
    thoughts: str = ""
    usage_note: str = ""
    versions: list[str] | None = None
    cached_tokens: int = 0

    @property
    def refusal_reason(self) -> str | None:
        """Reason for a missing answer text; None if there is a text, or if silence is the answer.

        `refusal`, `content_filter` or another word of the endpoint, `tool_calls` if no tools were offered, or
        `cut_while_thinking` if the reasoning took all of the tokens.
        """
        if self.text.strip() or self.finish == "stop":
            return None
        if self.finish == "length":
            return "cut_while_thinking" if self.thoughts and not self.calls else None
        return self.finish


def fold_system_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation for a model without system messages.

    Their text is put before a user message that directly follows, else after one that directly precedes, else in a new
    user message.
    """
    folded: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message.role == "system":
            pending.append(message.content)
            continue
        if pending and message.role == "user":
            message = Message("user", "\n\n".join([*pending, message.content]))
        elif pending:
            _append_as_user(folded, pending)
        pending = []
        folded.append(message)
    if pending:
        _append_as_user(folded, pending)
    return folded


def _append_as_user(folded: list[Message], pending: list[str]) -> None:
    previous = [folded.pop().content] if folded and folded[-1].role == "user" else []
    folded.append(Message("user", "\n\n".join([*previous, *pending])))


def request_digest(view: View, sampling: Sampling, seed: int, tools: Toolbox | None = None) -> bytes:
    """Return the identity of a call: the view's hash chain, the sampling, the seed and the offered tools."""
    data = b"%b%b%d" % (view.digest, sampling.digest, seed)
    if tools is not None:
        data = b"%b/%b" % (data, tools.digest)
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _encode_with_tools(message: Message) -> bytes:
    """Return a message's texts, each prefixed by its length, so that no two messages have the same bytes."""
    texts = [message.content, message.call_id, message.name]
    for call in message.calls:
        texts += call.to_record()
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(b"%d:%b" % (len(text), text) for text in encoded)
