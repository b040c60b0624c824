"""Messages, a role's growing view of its conversation, requests and completions.

These are hot-path records: slotted, built thousands of times a second, never mutated after they are handed on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from .likelihood import Likelihood
from .tools import Toolbox, ToolCall

# Runs of token ids, each either generated one by one (True) or computed at once (False).
Pieces = list[tuple[bool, list[int]]]
Party = Literal["system", "user", "assistant", "tool"]
_DIGEST_BYTES = 16
_PARTY_BYTES: dict[Party, bytes] = {"system": b"s", "user": b"u", "assistant": b"a", "tool": b"t"}


@dataclass(slots=True)
class Message:
    """One message as a chat model takes it.

    ``pieces`` are the tokens of the model's own reply, as it was computed, where they are known; only a local model
    reads its own back.
    ``calls`` are an assistant's; ``call_id`` (which call it answers) and ``name`` (of the function) a tool's result's.
    """

    role: Party
    content: str
    pieces: Pieces | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""

    def to_openai(self) -> dict[str, Any]:
        """The message as chat endpoints take it."""
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
    """One role's view of the conversation: it only grows; its digest is a hash chain over the messages.

    Appending costs one hash of the new text; a request's identity therefore costs the same in the last round as in
    the first.
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
        """Add a message at the end; all as in ``Message`` (``pieces`` are no part of the digest: they stand for the
        text).
        """
        if calls or call_id or name:
            message = Message(role, content, pieces, tuple(calls), call_id, name)
            # The capital letter keeps such a message apart from one that merely says the same bytes.
            data = self._digest + role[0].upper().encode() + _with_tools(message)
        else:
            message = Message(role, content, pieces)
            data = (
                self._digest + (_PARTY_BYTES.get(role) or role[0].encode()) + content.encode("utf-8", "surrogatepass")
            )
        self._messages.append(message)
        self._digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()

    def branch(self) -> View:
        """A view that starts with these messages and grows on its own (a repair request is one)."""
        view = View()
        view._messages = self._messages.copy()
        view._digest = self._digest
        return view

    def without_last(self) -> View:
        """A view of its own of all messages but the last; hashes them anew."""
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
        """The messages so far, safe to hand to a backend while the view grows."""
        return tuple(self._messages)

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for the whole sequence of roles and texts."""
        return self._digest

    def __len__(self) -> int:
        return len(self._messages)


@dataclass(slots=True, frozen=True)
class Sampling:
    """How a model is to answer. Made once per role and shared by all of its requests.

    ``schema`` is a JSON schema the answer must follow, None for free text; ``logprobs`` the number of alternatives
    wanted with each token's log-probability, None for no report; ``expected`` asks for the probability-weighted mean
    at every place of the schema where an integer is chosen from a list (backends that cannot know it leave it out).
    ``top_k``, ``min_p`` and the three penalties are off at 0, 0, 1, 0 and 0; endpoints are told of them only when on.
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
    digest: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # 0 and 0.0 are the same temperature and must be the same digest.
        parts = [float(self.temperature), float(self.top_p), self.max_tokens, self.stop, self.schema, self.logprobs]
        parts += [self.top_k, float(self.min_p), float(self.repeat_penalty), float(self.frequency_penalty)]
        parts += [float(self.presence_penalty), self.expected]
        digest = hashlib.blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=_DIGEST_BYTES)
        object.__setattr__(self, "digest", digest.digest())


@dataclass(slots=True)
class Request:
    """One model call.

    ``digest`` identifies what is asked (messages, sampling, seed; not the model, which the manifest names).
    ``on_text`` is called with each piece of text by backends that stream; what it raises ends the call at once;
    ``on_restart`` is called before a failed attempt is repeated: text received so far is discarded.
    ``hint`` is what a simulated or oracle model may know of the item; real backends never read it. ``tools`` are the
    functions that the model may call. ``affinity`` identifies the conversation in this process, where parallel runs may
    have conversations of the same name: backends keep KV and contexts by it. ``prompt``, in place of messages, is text
    to go on with as it stands, without a chat template (only for backends with ``continues_text``). ``branch`` is the
    path of the branch that asks, "" for the conversation itself; requests of one role may overlap between branches.
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

    @property
    def characters(self) -> int:
        """How long the prompt is, tools included, for estimates where nobody has counted tokens."""
        count = sum(len(message.content) for message in self.messages) + len(self.prompt or "")
        if self.tools is not None:
            count += self.tools.characters
            count += sum(len(call.name) + len(call.arguments) for message in self.messages for call in message.calls)
        return count


@dataclass(slots=True)
class Completion:
    """A model's answer. Latencies are seconds; ``attempts`` counts tries including the one that succeeded.

    ``text`` is the answer; what a reasoning model thought before it stands in ``thoughts`` (see ``thoughts``).
    ``finish``: ``stop``, ``length`` (hit ``max_tokens``), ``watch:REASON`` when a detector ended the stream, or the
    endpoint's own word (``content_filter``, ``refusal``, ``tool_calls`` where none were offered, …).
    ``usage_note``: a count of tokens that was of no use, as given; an estimate stands in its place.
    ``cached_tokens``: how many of the prompt's came from the endpoint's cache, where it says so.
    ``logprobs``: per token ``[text, logprob, {alternative: logprob}]`` where it was asked for; ``pieces`` as in
    ``Message``; ``expected``: the mean of each score as the model weighs its digits, where that was asked for;
    ``likelihoods``: the answer to a ``Reading``; ``calls``: the functions to call, None where the model asked for none.
    ``versions``: of a model that is trained meanwhile, the versions of its weights that computed this answer, oldest
    first; None where nobody says.
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
        """Why nothing was said that could be judged as an answer; None where something was, or silence is the answer.

        ``refusal``, ``content_filter`` or another word of the endpoint, ``tool_calls`` where none were offered, or
        ``cut_while_thinking`` where thoughts took all of the tokens.
        """
        if self.text.strip() or self.finish == "stop":
            return None
        if self.finish == "length":
            return "cut_while_thinking" if self.thoughts and not self.calls else None
        return self.finish


def fold_system_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation for a model that takes no system messages: what they say stands before the user message
    that follows, or where none does, behind the one before or as the user's own.
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
            _say_as_user(folded, pending)
        pending = []
        folded.append(message)
    if pending:
        _say_as_user(folded, pending)
    return folded


def _say_as_user(folded: list[Message], pending: list[str]) -> None:
    previous = [folded.pop().content] if folded and folded[-1].role == "user" else []
    folded.append(Message("user", "\n\n".join([*previous, *pending])))


def request_digest(view: View, sampling: Sampling, seed: int, tools: Toolbox | None = None) -> bytes:
    """The identity of a call: the view's chain, the sampling, the seed and the tools offered."""
    data = b"%b%b%d" % (view.digest, sampling.digest, seed)
    if tools is not None:
        data = b"%b/%b" % (data, tools.digest)
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _with_tools(message: Message) -> bytes:
    """A message's texts, each behind its length, so that no two messages read the same."""
    texts = [message.content, message.call_id, message.name]
    for call in message.calls:
        texts += call.to_record()
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(b"%d:%b" % (len(text), text) for text in encoded)
