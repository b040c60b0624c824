"""Plain lines of a model's text: one form for each character, no marks of layout, no empty lines.

Ticked and crossed lines keep their signs, elements become lines with their names, LaTeX its words.
"""

from __future__ import annotations

import re
import unicodedata

from .answer_words import class_of

_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# What stands in place of a choice's words, and the mark of the first choice: no text has these characters afterwards.
TEXT_MARK, FIRST_MARK = "\ue000", 0xE100
_TABLE: dict[int, str | None] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width forms
_TABLE.update({0x24B6 + place: letter for place, letter in enumerate(_LABELS)})  # letters and digits in circles
_TABLE.update({0x24D0 + place: letter.lower() for place, letter in enumerate(_LABELS)})
_TABLE.update({0x2460 + place: f" ({place + 1}) " for place in range(9)})
for _characters, _plain_one in (
    ("\u00a0\u1680\u2007\u202f\u205f\u3000\t\v\f\x1c\x1d\x1e\x1f\x85·", " "),
    ("\r\u2028\u2029", "\n"),
    ("‘’‚‛ʼ´′", "'"),
    ("“”„‟«»‹›「」『』《》″", '"'),
    ("‐‑‒–—―−﹣", "-"),
    ("【", "["),
    ("】", "]"),
    ("。", ". "),
    ("…", ".."),
    ("⇒➔➜➡⟶", "→"),
    ("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0e\ufe0f\u00ad\u202a\u202b\u202c\u202d\u202e", None),
    ("\u2066\u2067\u2068\u2069", None),
):
    _TABLE.update(dict.fromkeys(map(ord, _characters), _plain_one))
_TABLE.update({0x2080 + digit: str(digit) for digit in range(10)})  # CO₂
_TABLE.update(dict.fromkeys(range(0xE000, 0xE200), " "))
_MATHEMATICAL = re.compile("[\U0001d400-\U0001d7ff]+")  # 𝐁
_STRUCK = re.compile(r"~~[^~\n]{1,200}~~")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s?\{")
_FUNCTION = re.compile(r"\\(?=(?:log|ln|sin|cos|tan|exp|max|min)(?![A-Za-z]))")
_LATEX = re.compile(r"\\[()\[\]]|\\[A-Za-z]{2,20}\b|\\")
_CONTROL = re.compile(r"<\|[^<>|\n]{1,40}\|>|\[/?INST\]")  # what a template writes: <|im_end|>
_TAG = re.compile(r"<(/?)([A-Za-z][\w:-]{0,30})(?:\s[\w-]{1,20}=[^<>\n]{0,200})?\s?/?>")
_APOSTROPHE = re.compile(r"(?<=\w)`(?=\w)")
_ARROW = re.compile("[-=]{1,3}>")
_CROSS = re.compile(r"×(?!\s?\w)")  # a sign where no product is meant
_MARKDOWN = re.compile(r"[*`#$_{}]")
_MARKED = re.compile(r"[^\n -~]|[*`#$_{}\\~<]")  # what ``_without_marks`` may change; most short replies have none
SIGNS = frozenset("✓✔✅☑✗✘❌✖")
_MARKED_LINE = re.compile(r"^\W{0,4}?([✓✔✅☑✗✘❌✖☐]|\[[xX ]\])(.*)$")
_LINE_START = re.compile(r"^(?:[\s>|•]|-+\s)+")
_BOXES = {"[x]": "✓", "[X]": "✓", "[ ]": "✗", "☐": "✗"}
_NUMBERED = re.compile(r"^(?:step\s)?\d{1,2}[.)]\s+(?=\S)", re.IGNORECASE)


def plain_lines(text: str) -> str:
    """Return the text without marks of layout, in one form for each character and without empty lines."""
    text = text if _MARKED.search(text) is None else _without_marks(text)
    text = _ARROW.sub("→", text)
    lines = []
    for line in text.split("\n"):
        marked = _MARKED_LINE.match(line)
        if marked is not None and marked[2].strip() and not SIGNS & set(marked[2]):
            line = f"{marked[2]} : {_BOXES.get(marked[1], marked[1])}"
        line = _NUMBERED.sub("", " ".join(_LINE_START.sub("", line).split()))
        if line:
            lines.append(line)
    return "\n".join(lines)


def _without_marks(text: str) -> str:
    text = unicodedata.normalize("NFC", text).translate(_TABLE)
    text = _CONTROL.sub("\n", text)
    text = _MATHEMATICAL.sub(lambda letters: unicodedata.normalize("NFKC", letters[0]), text)
    if "<" in text:
        text = _without_tags(text)
    text = _BOXED.sub(" boxed: ", _STRUCK.sub(" ", text)).replace("\\n", "\n")
    text = _CROSS.sub("✗", _APOSTROPHE.sub("'", _LATEX.sub(" ", _FUNCTION.sub("", text))))
    return _MARKDOWN.sub(lambda mark: " " if mark[0] in "_{}" else "", text)


def _without_tags(text: str) -> str:
    """Return elements as lines with their names (``answer: B``), and a tag that is one letter as that letter."""
    closed = {match[2] for match in _TAG.finditer(text) if match[1]}

    def shown(match: re.Match[str]) -> str:
        name = match[2].lower()
        if len(name) == 1:
            return "" if match[2] in closed else f" ({match[2]}) "
        if name in ("em", "strong", "span", "code", "sub", "sup", "font"):
            return ""
        return "\n" if match[1] or not {"A", "n"} & set(class_of(name.rpartition("_")[2])) else f"\n{name}: "

    return _TAG.sub(shown, text)
