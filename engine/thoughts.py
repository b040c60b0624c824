"""Thoughts of reasoning models: splitting what a model thinks from what it answers.

Nobody reads a text with the thoughts in it: no other role, no reader of choices or verdicts, no detector. They stay in
the record of the call (``Completion.thoughts``). Known marks: ``<think>``, ``<thinking>``, ``<seed:think>``,
``[THINK]``, ``◁think▷``, the channels of harmony (gpt-oss) and of Gemma 4.

- A closing mark without an opening one ends thoughts that began with the text: the chat template wrote the opening.
- An opening mark at the beginning of a line that nothing closes leaves no answer after it.
- A mark between quotation marks or backticks is text about marks. So is an opening one in a code block with the closing
  one, if any closes it, in the same block; and each within an answer that is one JSON object, behind thoughts or not.
- A closing mark at the very end, after thoughts have ended, is a slip that ends nothing.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable

import orjson

from .messages import Completion

_HEADER = r"<\|channel\|>\s{0,9}%s\b[^<]{0,200}<\|message\|>"
_OPENING = "|".join(
    (
        r"<think(?:ing)?>|<seed:think>|\[THINK\]|◁think▷|<\|channel>thought",
        _HEADER % "(?:analysis|commentary)",
    )
)
_CLOSING = "|".join(
    (
        r"</think(?:ing)?>|</seed:think>|\[/THINK\]|◁/think▷|<channel\|>",
        r"(?:<\|end\|>\s{0,9})?(?:<\|start\|>assistant\s{0,9})?" + _HEADER % "final",
    )
)
_MARK = re.compile(rf"(?P<opening>{_OPENING})|(?P<closing>{_CLOSING})", re.IGNORECASE)
_FENCE = re.compile(r"(?:^[ \t]{0,9}|(?<=[>\]▷]))```", re.MULTILINE)
_QUOTES = "`'\"“”‘’"
_OBJECT = re.compile(r"\s*(?:```json\s*)?\{")
_MOST_OBJECTS = 3  # how often what follows thoughts is tried as an object, for each try reads all of it
_LINE = re.compile(r"\n[ \t]*$")
_END_OF_TURN = re.compile(r"<\|(?:end|return|call)\|>\s*$")
# Where a mark may begin, and how long the longest one is.
_FIRST = "<[◁"
_LONGEST = 300
_WORDS = ("think", "channel", "THINK", "Think")


def has_marks(text: str) -> bool:
    """Whether a text may hold a mark at all. In the hot path: searching for one character is a hundred times cheaper
    than for a word.
    """
    return ("<" in text or "[" in text or "◁" in text) and any(word in text for word in _WORDS)


def split_thoughts(text: str) -> tuple[str, str]:
    """The thoughts in a model's text, and its answer, both stripped; linear in the length of the text.

    A text without marks is its own answer, as it stands.
    """
    marks = _marks(text) if has_marks(text) else []
    begin = len(text) - len(text.lstrip()) if marks else 0
    last_closing = max((mark.start() for mark in marks if mark["closing"]), default=-1)
    thoughts: list[str] = []
    answer: list[str] = []
    thinking, position, found = False, 0, False
    end = len(text.rstrip()) if marks else 0
    for mark in marks:
        if mark["opening"]:
            if thinking or not (mark.start() < last_closing or _opens_line(text, mark.start(), begin)):
                continue
            answer.append(text[position : mark.start()])
            thinking = True
        else:
            if not thinking and found and mark.end() >= end:
                answer.append(text[position : mark.start()])
                position = mark.end()
                break
            if not thinking:  # all so far was thought
                thoughts += answer
                answer.clear()
            thoughts.append(text[position : mark.start()])
            thinking = False
        found, position = True, mark.end()
    if not found:
        return "", text
    (thoughts if thinking else answer).append(text[position:])
    said = _END_OF_TURN.sub("", "".join(answer))
    return "\n\n".join(part.strip() for part in thoughts if part.strip()), said.strip()


def separate_thoughts(completion: Completion) -> None:
    """Move the thoughts in a fresh answer's text to ``completion.thoughts``, behind those that came apart already.

    The reply's own tokens (``pieces``) go where thoughts went: later requests show the answer alone.
    """
    thoughts, answer = split_thoughts(completion.text)
    if answer == completion.text:
        return
    completion.text, completion.pieces = answer, None
    completion.thoughts = "\n\n".join(part for part in (completion.thoughts, thoughts) if part)


def with_thoughts(completion: Completion) -> str:
    """The answer behind its thoughts, as one text that ``split_thoughts`` parts again."""
    if not completion.thoughts:
        return completion.text
    return f"<think>\n{completion.thoughts}\n</think>\n\n{completion.text}"


class AnswerStream:
    """Hands on the pieces of a streamed text that belong to the answer; holds back what may become a mark.

    Thoughts whose opening mark the template wrote cannot be told from an answer before they end: a backend that knows
    streams the mark first.
    """

    def __init__(self, hand_on: Callable[[str], None]) -> None:
        self._hand_on = hand_on
        self._held = ""
        self._before = ""  # the character before what is held
        self._thinking = False

    def feed(self, piece: str) -> None:
        """Take the next piece; ``hand_on`` is called with what is sure to be answer."""
        if not self._held and not self._thinking and not any(first in piece for first in _FIRST):
            self._before = piece[-1:] or self._before
            self._hand_on(piece)
            return
        text = self._before + self._held + piece
        position = len(self._before)
        for mark in _MARK.finditer(text, position):
            if mark.end() == len(text) and _behind_quote(text, mark):
                break  # what comes next tells whether it is quoted
            if bool(mark["closing"]) == self._thinking and not _quoted(text, mark):
                if not self._thinking and mark.start() > position:
                    self._hand_on(text[position : mark.start()])
                self._thinking, position = not self._thinking, mark.end()
        rest = text[position:]
        keep = self._begun_mark(rest)
        if not self._thinking and keep:
            self._hand_on(rest[:keep])
        self._held = rest[keep:]
        self._before = text[: len(text) - len(self._held)][-1:]

    def _begun_mark(self, rest: str) -> int:
        """Where in ``rest`` the earliest mark may have begun that is not complete; its length if none has."""
        tail = max(0, len(rest) - _LONGEST)
        places = [place for place in (rest.find(first, tail) for first in _FIRST) if place >= 0]
        return min(places, default=len(rest))


def _marks(text: str) -> list[re.Match[str]]:
    """The marks in a text, those that it only speaks of left out."""
    if _is_object(text):
        return []
    marks = _before_object(text, [mark for mark in _MARK.finditer(text) if not _quoted(text, mark)])
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    kept: list[re.Match[str]] = []
    opened, within = 0, 0  # how many opening marks the code block holds that no closing one has followed yet
    for mark in marks:
        block = bisect(fences, mark.start())
        if within != block:
            opened, within = 0, block if block % 2 and block < len(fences) else 0
        if within and mark["opening"]:
            opened += 1
        elif opened:
            del kept[-opened:]
            opened = 0
            continue
        kept.append(mark)
    return kept[: len(kept) - opened]


def _before_object(text: str, marks: list[re.Match[str]]) -> list[re.Match[str]]:
    """The marks, without those within a JSON object that is all the answer behind the thoughts."""
    ends = [at for at, mark in enumerate(marks) if mark["closing"] and _OBJECT.match(text, mark.end())]
    for at in ends[:_MOST_OBJECTS]:
        if _is_object(text[marks[at].end() :]):
            return marks[: at + 1]
    return marks


def _is_object(text: str) -> bool:
    plain = text.strip().removeprefix("```json").removesuffix("```").strip()
    if not plain.startswith("{"):
        return False
    try:
        return isinstance(orjson.loads(plain), dict)
    except orjson.JSONDecodeError:
        return False


def _quoted(text: str, mark: re.Match[str]) -> bool:
    after = text[mark.end() : mark.end() + 1]
    return _behind_quote(text, mark) and bool(after and after in _QUOTES)


def _behind_quote(text: str, mark: re.Match[str]) -> bool:
    return mark.start() > 0 and text[mark.start() - 1] in _QUOTES


def _opens_line(text: str, place: int, begin: int) -> bool:
    return place <= begin or _LINE.search(text, max(0, place - 80), place) is not None
