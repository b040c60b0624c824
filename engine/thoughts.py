"""Thoughts of reasoning models: separating a model's reasoning from its answer.

Nothing reads a text with thoughts in it: no other role, no reader of choices or verdicts, no detector. They stay in the
record of the call (`Completion.thoughts`). Known marks: `<think>`, `<thinking>`, `<seed:think>`, `[THINK]`, `◁think▷`,
the channels of harmony (gpt-oss) and of Gemma 4, and the control tokens of other families; the elements `<thought>`,
`<reasoning>`, `<analysis>`, `<reflection>` and the like; and marks given in a model's name (`ThoughtMarks`).

- A closing mark without an opening one ends thoughts that began with the text: the chat template wrote the opening.
- If an opening mark at the beginning of a line is never closed, no answer follows it.
- A mark between quotation marks or backticks is text about marks. So is an opening mark in a code block, unless its
  closing mark is outside of the block; and so is every mark in an answer that is one JSON object, after thoughts or
  not.
- A closing mark at the very end, after thoughts have ended, is ignored.
- An element that answers have, too (`<analysis>`), contains thoughts only if it begins the text or follows other
  thoughts. Only its own name closes it.
- Words in place of marks ("Here is my thought process:") count at the beginning of a text once the text is complete.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable

import orjson

from .messages import Completion

_HEADER = r"<\|channel\|>\s{0,9}%s\b[^<]{0,200}<\|message\|>"
_OPENING = (
    r"<(?:longcat_|mm:)?think(?:ing)?\s?>|<seed:think>|\[THINK(?:ING)?\]|◁think▷|<\|channel>thought|<unused94>(?:thought)?"
    r"|<\|(?:begin_of_thought|begin_of_thinking|START_THINKING|think_start|thinking_start|begin_of_reasoning|think|thinking|reasoning|inner_prefix)\|>|"
    + _HEADER
    % "(?:analysis|commentary)"
)
_CLOSING = (
    r"</\s?(?:longcat_|mm:)?think(?:ing)?\s?>|</seed:think>|\[/THINK(?:ING)?\]|◁/think▷|<channel\|>|<unused95>"
    r"|<\|(?:end_of_thought|end_of_thinking|END_THINKING|think_end|end_think|thinking_end|end_of_reasoning|/think|/thinking|/reasoning|inner_suffix)\|>"
    r"|<\|channel>(?:response|final)|(?:<\|end\|>\s{0,9})?(?:<\|begin\|>assistant\s{0,9})?<\|content\|>"
    r"|(?:<\|end\|>\s{0,9})?(?:<\|start\|>assistant\s{0,9})?" + _HEADER % "final"
)
# Names of elements that also occur in answers.
_NAMES = (
    r"(?:[a-z]{1,12}[_-]?)?(?:thoughts?|thinking|reason(?:ing)?|reflection)(?:[_-]?[a-z]{1,12})?|analysis|scratchpad|cot"
    r"|inner[_-]monologue|internal[_-]monologue|chain[_-]of[_-]thought|deliberation|deep[_-]think"
)
# Words in place of marks, only at the beginning: Granite's, and harmony's if a server drops its tokens.
_PHRASES = (
    "Here is my thought process:",
    "Here's my thought process:",
    "Here’s my thought process:",
    "analysis",
    "assistantfinal",
)
_PHRASED = re.compile(
    r"\s*(?:Here(?: i|['’])s my thought process:(?P<thoughts>.*?)(?:Here(?: i|['’])s my response:|\Z)"
    r"|(?:analysis(?=\S)(?P<analysis>.*?))?assistantfinal(?![a-z]))",
    re.DOTALL,
)
_FENCE = re.compile(r"(?:^[ \t]{0,9}|(?<=[>\]▷]))(?:```|~~~)", re.MULTILINE)
_QUOTES = "`'\"“”‘’"
_OBJECT = re.compile(r"\s*(?:```json\s*)?\{")
_MAX_OBJECTS = 3  # attempts to parse the text after thoughts as an object; each reads all of it
_LINE = re.compile(r"\n[ \t]*$")
_END_OF_TURN = re.compile(r"<\|(?:end|return|call|flush|END_RESPONSE|END_TEXT|end_of_solution)\|>\s*$")
_BEGIN_OF_ANSWER = re.compile(r"\s*<\|(?:START_RESPONSE|START_TEXT|begin_of_solution)\|>")
_LONGEST = 300  # characters of the longest mark
_WORDS = (
    *("think", "channel", "thought", "reason", "analysis", "reflection"),
    *("unused9", "inner_", "monologue", "scratchpad", "deliberation", "<cot>", "</cot>", "<|content"),
)


class ThoughtMarks:
    """Marks of thoughts: the known ones and, optionally, an opening and a closing text of a model's own."""

    def __init__(self, opening: str = "", closing: str = "") -> None:
        self.own = (opening, closing)
        own_opening, own_closing = (f"|{re.escape(own)}" if own else "" for own in self.own)
        self.pattern = re.compile(
            rf"(?P<opening>{_OPENING}{own_opening}|<(?P<name>{_NAMES})>)"
            rf"|(?P<closing>{_CLOSING}{own_closing}|</(?P<end>{_NAMES})>)",
            re.IGNORECASE,
        )
        # First characters of marks.
        self.first = "".join(dict.fromkeys(f"<[◁{opening[:1]}{closing[:1]}"))

    @classmethod
    def from_option(cls, text: str) -> ThoughtMarks:
        """Return the marks of an option such as `<a>…</a>`.

        Raises:
            ValueError: It is not two different texts with `…` or `...` between them.
        """
        opening, dots, closing = text.replace("...", "…", 1).partition("…")
        opening, closing = opening.strip(), closing.strip()
        longest = max(len(opening), len(closing))
        if not (dots and opening and closing) or opening.lower() == closing.lower() or longest > _LONGEST:
            raise ValueError("expected the opening and the closing mark, such as <a>…</a>")
        return cls(opening, closing)

    def may_occur_in(self, text: str) -> bool:
        """Return True if a text may contain a mark; False is certain.

        In the hot path: searching for one character is a hundred times cheaper than for a word.
        """
        if self.own[0] and (self.own[0].lower() in (lowered := text.lower()) or self.own[1].lower() in lowered):
            return True
        if text.lstrip().startswith(_PHRASES):
            return True
        if not ("<" in text or "[" in text or "◁" in text):
            return False
        lowered = text.lower()
        return any(word in lowered for word in _WORDS)


_DEFAULT_MARKS = ThoughtMarks()


def has_marks(text: str, marks: ThoughtMarks = _DEFAULT_MARKS) -> bool:
    """Return True if a text may contain a mark of thoughts; False is certain."""
    return marks.may_occur_in(text)


def split_thoughts(text: str, marks: ThoughtMarks = _DEFAULT_MARKS) -> tuple[str, str]:
    """Return the thoughts in a model's text, and its answer, both stripped; linear in the length of the text.

    A text without marks is returned unchanged as the answer.
    """
    if not marks.may_occur_in(text):
        return "", text
    phrase = _PHRASED.match(text)
    if phrase is not None:
        thought = phrase["thoughts"] or phrase["analysis"] or ""
        return thought.strip(), text[phrase.end() :].strip()
    matches = _marks(text, marks)
    begin = len(text) - len(text.lstrip()) if matches else 0
    last_closing = max((mark.start() for mark in matches if mark["closing"]), default=-1)
    thoughts: list[str] = []
    answer: list[str] = []
    thinking, position, has_thoughts = False, 0, False
    end = len(text.rstrip()) if matches else 0
    for mark in matches:
        if mark["opening"]:
            if thinking:
                continue
            resumes = has_thoughts and not text[position : mark.start()].strip()
            if not (resumes or mark.start() < last_closing or _opens_line(text, mark.start(), begin)):
                continue
            answer.append(text[position : mark.start()])
            thinking = True
        else:
            if not thinking and has_thoughts and mark.end() >= end:
                answer.append(text[position : mark.start()])
                position = mark.end()
                break
            if not thinking:  # everything so far was thought
                thoughts += answer
                answer.clear()
            thoughts.append(text[position : mark.start()])
            thinking = False
        has_thoughts, position = True, mark.end()
    if not has_thoughts:
        return "", text
    (thoughts if thinking else answer).append(text[position:])
    reply = _END_OF_TURN.sub("", "".join(answer))
    start = _BEGIN_OF_ANSWER.match(reply)
    reply = reply if start is None else reply[start.end() :]
    return "\n\n".join(part.strip() for part in thoughts if part.strip()), reply.strip()


def separate_thoughts(completion: Completion, marks: ThoughtMarks = _DEFAULT_MARKS) -> None:
    """Move the thoughts in a new answer's text to `completion.thoughts`, after thoughts received separately.

    If there were thoughts, the reply's tokens (`pieces`) are dropped, so that later requests contain only the answer.
    """
    thoughts, answer = split_thoughts(completion.text, marks)
    if answer == completion.text:
        return
    completion.text, completion.pieces = answer, None
    completion.thoughts = "\n\n".join(part for part in (completion.thoughts, thoughts) if part)


def join_thoughts(completion: Completion) -> str:
    """Return thoughts and answer as one text that `split_thoughts` can separate again."""
    if not completion.thoughts:
        return completion.text
    return f"<think>\n{completion.thoughts}\n</think>\n\n{completion.text}"


class AnswerStream:
    """Passes on the pieces of a streamed text that belong to the answer; holds back what may become a mark.

    Thoughts whose opening mark the template wrote cannot be distinguished from an answer before they end: a backend
    that knows of the mark streams it first.
    """

    def __init__(self, hand_on: Callable[[str], None], marks: ThoughtMarks = _DEFAULT_MARKS) -> None:
        self._hand_on, self._marks = hand_on, marks
        self._pending = ""
        self._before = ""  # the character before the pending text
        self._thinking = False
        self._name = ""  # name of the element around the thoughts
        self._fresh = True  # no answer text since the beginning, or since the last thoughts

    def feed(self, piece: str) -> None:
        """Take the next piece; call `hand_on` with what certainly belongs to the answer."""
        if not self._pending and not self._thinking and not any(first in piece for first in self._marks.first):
            self._before = piece[-1:] or self._before
            self._emit(piece)
            return
        text = self._before + self._pending + piece
        position = len(self._before)
        for mark in self._marks.pattern.finditer(text, position):
            if mark.end() == len(text) and _is_behind_quote(text, mark):
                break  # the next piece shows if the mark is quoted
            if self._is_boundary(text, position, mark) and not _is_quoted(text, mark):
                if not self._thinking and mark.start() > position:
                    self._emit(text[position : mark.start()])
                self._thinking, position = not self._thinking, mark.end()
                self._name, self._fresh = (mark["name"] or "").lower(), True
            elif mark["closing"] and self._fresh and not self._thinking and not text[position : mark.start()].strip():
                position = mark.end()  # an answer without thoughts
        tail = text[position:]
        keep = self._partial_mark_start(tail)
        if not self._thinking and keep:
            self._emit(tail[:keep])
        self._pending = tail[keep:]
        self._before = text[: len(text) - len(self._pending)][-1:]

    def _emit(self, text: str) -> None:
        self._fresh = self._fresh and not text.strip()
        self._hand_on(text)

    def _is_boundary(self, text: str, position: int, mark: re.Match[str]) -> bool:
        """Return True if thoughts begin or end with this mark."""
        if self._thinking:
            return mark["closing"] is not None and (mark["end"] or "").lower() == self._name
        if mark["closing"] is not None:
            return False
        return mark["name"] is None or (self._fresh and not text[position : mark.start()].strip())

    def _partial_mark_start(self, text: str) -> int:
        """Return the earliest position at which an incomplete mark may begin; the text's length if none does."""
        start = max(0, len(text) - _LONGEST)
        positions = [position for position in (text.find(first, start) for first in self._marks.first) if position >= 0]
        return min(positions, default=len(text))


def _marks(text: str, patterns: ThoughtMarks) -> list[re.Match[str]]:
    """Return the marks in a text, except marks that it only mentions."""
    if _is_object(text):
        return []
    marks = _before_object(text, [mark for mark in patterns.pattern.finditer(text) if not _is_quoted(text, mark)])
    marks = _without_elements(text, marks)
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    selected: list[re.Match[str]] = []
    opened, within = 0, 0  # number of unclosed opening marks in the code block
    for mark in marks:
        block = bisect(fences, mark.start())
        if within != block:
            opened, within = 0, block if block % 2 and block < len(fences) else 0
        if within and mark["opening"]:
            opened += 1
        elif opened:
            del selected[-opened:]
            opened = 0
            continue
        selected.append(mark)
    return selected[: len(selected) - opened]


def _without_elements(text: str, marks: list[re.Match[str]]) -> list[re.Match[str]]:
    """Drop elements that are part of the answer, and all marks inside of an element with thoughts."""
    if not any(mark["name"] or mark["end"] for mark in marks):
        return marks
    closings: dict[str, list[int]] = {}
    for index, mark in enumerate(marks):
        if mark["end"]:
            closings.setdefault(mark["end"].lower(), []).append(index)
    selected: list[re.Match[str]] = []
    edge = 0  # end of the last thoughts
    thinking, index = False, 0
    opened: set[str] = set()
    while index < len(marks):
        mark = marks[index]
        name, end = (mark["name"] or "").lower(), (mark["end"] or "").lower()
        if name:
            if not thinking and not text[edge : mark.start()].strip():
                selected.append(mark)
                later = closings.get(name, [])
                ending = bisect(later, index)
                if ending == len(later):
                    break  # never closed: the rest is thought
                index = later[ending]
                selected.append(marks[index])
                edge = marks[index].end()
            opened.add(name)
        elif end:
            inline = (
                text[mark.start() - 1 : mark.start()].strip(" ") == text[mark.end() : mark.end() + 1].strip(" ") == ""
            )
            if not selected and not thinking and end not in opened and not (inline and mark.end() < len(text)):
                selected.append(mark)  # the template wrote the opening one
                edge = mark.end()
        else:
            selected.append(mark)
            thinking = bool(mark["opening"])
            edge = edge if thinking else mark.end()
        index += 1
    return selected


def _before_object(text: str, marks: list[re.Match[str]]) -> list[re.Match[str]]:
    """Drop marks within a JSON object that is the whole answer after the thoughts."""
    ends = [at for at, mark in enumerate(marks) if mark["closing"] and _OBJECT.match(text, mark.end())]
    for at in ends[:_MAX_OBJECTS]:
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


def _is_quoted(text: str, mark: re.Match[str]) -> bool:
    following = text[mark.end() : mark.end() + 1]
    return _is_behind_quote(text, mark) and bool(following and following in _QUOTES)


def _is_behind_quote(text: str, mark: re.Match[str]) -> bool:
    return mark.start() > 0 and text[mark.start() - 1] in _QUOTES


def _opens_line(text: str, position: int, begin: int) -> bool:
    return position <= begin or _LINE.search(text, max(0, position - 80), position) is not None
