"""Parser of multiple-choice answers: the choice that a model's answer affirms last, or none.

A text becomes a row of word classes (`choice_words`): `M` is a mention of a choice by its letter, number or whole text,
`A` a noun such as "answer", `B` a form of "to be", `N` a negation, `W` "wrong". Sentences are split into clauses. The
words left and right of a mention in its clause tell how plainly the choice is affirmed, or that it is denied, or only
mentioned. Of the affirmed choices the last one counts, unless the answer contradicts itself:

- A denied choice never counts: "not A", "A is wrong", "the wrong answer is A", "rule out A".
- A statement ("the answer is B", "I choose B", "B is the answer") outranks a letter by itself and "B is right"; both
  outrank a letter that opens the text. A choice that is only mentioned ranks last, and counts only if it stands alone.
- Two statements that differ are a contradiction, unless a word between them takes the first one back or turns away from
  it ("wait", "but"), or only the later one is final. An answer that contradicts itself names no choice.
- Languages: English, Chinese, Korean, Japanese, German, French, Spanish, Russian, Portuguese and Italian.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .choice_words import (
    CHECK_MARKS,
    COUNTED,
    CYRILLIC,
    EAST_ASIAN,
    EASTERN,
    FIRST_MARK,
    KINDS,
    NUMBERS,
    PHRASE,
    SEVERAL,
    SINGLE,
    TEXT_MARK,
    mark_ordinals,
    to_plain_lines,
    word_classes,
)
from .forms import readable_text

_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OPERATORS = frozenset("+*^°#~%×÷<>")  # next to these, a letter is a quantity
_MAX_MENTIONS = 4000  # a text with more mentions of choices names no choice
# Weights: how plainly a choice is affirmed or mentioned; below 0: a statement on it is denied, or it is called wrong.
_FINAL, _STATEMENT, _PLAIN, _NOUN, _WEAK, _QUESTION, _MENTION = 4.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.0
_CONTENT_DENIED, _CALLED_FALSE, _CALLED_WRONG = -1.0, -2.0, -3.0


def read_choice(text: str, choices: Sequence[str], *, cut: bool = False) -> int | None:
    """Return the index of the choice that the text names; None if it names none, or several, or contradicts itself.

    Args:
        text: The model's answer.
        choices: The texts of the choices, in the order of their letters.
        cut: The text ended at its token limit, so a choice that it only mentions does not count.
    """
    plainly = _PLAINLY.fullmatch(text)
    if plainly is not None:
        index = _index(plainly[1], len(choices))
        words = (plainly[2] or "").strip()
        if index is not None and (not words or words.removesuffix(".") == choices[index].strip().removesuffix(".")):
            return index
    answer = readable_text(text)
    question = _NEXT_QUESTION.search(answer)
    if question is not None:  # a base model may write the next question
        choice = _read(answer[: question.start()], choices)
        if choice is not None:
            return choice
    return _read(answer, choices, cut=cut)


def _read(answer: str, choices: Sequence[str], *, cut: bool = False) -> int | None:
    marks = [f" {TEXT_MARK}{chr(FIRST_MARK + index)} " for index in range(len(choices))]
    marked = mark_ordinals(_with_marks(to_plain_lines(answer), choices), marks)
    if not _may_mention(marked):  # most replies in a conversation; parsing them would take ten times as long
        return None
    reader = _Reader(len(choices))
    for sentence in _sentences(marked, choices):
        reader.take(sentence)
    return reader.choice(cut=cut)


def _may_mention(marked: str) -> bool:
    """Return False if no choice can be mentioned: there are no marks, and all single letters are articles."""
    return not marked.isascii() or any(
        not match[1].islower() or not match[2] or _first_class(match[2]) in _FOLLOWS
        for match in _ALONE.finditer(marked)
    )


# A line with which a base model begins the next question after its answer.
_NEXT_QUESTION = re.compile(
    r"(?<=\S)\s{0,20}\n[#* \t]{0,9}(?:Question|Q|Human|User|Instruction|Frage|问题|質問|문제)\s?\d{0,4}\s?[*:：]",
    re.IGNORECASE,
)
_ALONE = re.compile(r"(?<![A-Za-z0-9])([A-Za-z0-9])(?![A-Za-z0-9])(?: ([A-Za-z]{2,}))?")


# The usual answer to a request for a letter; only texts of this form are read without parsing.
_PLAINLY = re.compile(
    r"\s{0,9}(?:(?:The )?(?:[Cc]orrect )?[Aa]nswer(?: is|:|: | is: ))?\s?"
    r"\(?([A-Z])(?:[.):][ \n]?([^\n]{0,200}))?\s{0,9}"
)


def _index(letter: str, count: int) -> int | None:
    return index if (index := ord(letter) - 65) < count else None


# --- from lines to classes


@dataclass(slots=True)
class _Sentence:
    """Word classes of a sentence, with `M` for each mention of a choice.

    `choices` has the choice of each mention, in order, -1 for a letter of no choice; `unsure` tells if the mention may
    be a mere word. `entry`: the sentence begins with a label, as in a list of choices ("A) …").
    """

    classes: str
    choices: list[int]
    unsure: list[bool]
    line: int
    asks: bool
    entry: bool


def _sentences(text: str, choices: Sequence[str]) -> Iterator[_Sentence]:
    """Yield the sentences of a text with marks (`_with_marks`)."""
    count = len(choices)
    numbered = 1 < count < 10 and not any(NUMBERS.search(choice) for choice in choices)
    for number, line in enumerate(text.split("\n")):
        yield from _Line(line, number, count, numbered=numbered).sentences()


def _with_marks(text: str, choices: Sequence[str]) -> str:
    """Replace the choices' texts with marks, the longest text first, so that no text is found inside another."""
    for words, index, article in _wordings(tuple(choices)):
        lowered = _lower_case(text)
        pieces, end_of_last = [], 0
        start = lowered.find(words)
        while start >= 0:
            end = start + len(words)
            if _stands_alone(text, start, end, words):
                if article and lowered.endswith(article, end_of_last, start):
                    start -= len(article)
                pieces.append(f"{text[end_of_last:start]} {TEXT_MARK}{chr(FIRST_MARK + index)} ")
                end_of_last = end
            start = lowered.find(words, end)
        if pieces:
            text = "".join([*pieces, text[end_of_last:]])
    return text


_ARTICLE = re.compile(r"(?:(?:the|an?|l[ae]s?|el|los|il|lo|gli|d(?:er|ie|as)|une?|una|eine?|os?|as?)\s|l')(?=\S\S)")


@lru_cache(maxsize=256)
def _wordings(choices: tuple[str, ...]) -> list[tuple[str, int, str]]:
    """Return (words, index, article) of each choice whose words no other choice has, the longest words first."""
    plain = [_lower_case(" ".join(to_plain_lines(choice).split())).strip(" .,;:!") for choice in choices]
    cores = [_ARTICLE.sub("", words, count=1) if _ARTICLE.match(words) else words for words in plain]
    wordings = [core if cores.count(core) == 1 else words for core, words in zip(cores, plain, strict=True)]
    usable = [
        (words, index, plain[index].removesuffix(words))
        for index, words in enumerate(wordings)
        if words and wordings.count(words) == 1 and not (len(words) == 1 and words in _LABELS.lower())
    ]
    return sorted(usable, key=lambda entry: -len(entry[0]))


def _lower_case(text: str) -> str:
    """Return the text in lower case, with each character at its position."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(character.lower() if len(character.lower()) == 1 else character for character in text)


def _stands_alone(text: str, start: int, end: int, words: str) -> bool:
    """Return True if the words at a position are not part of longer words or numbers."""
    before, after = text[start - 1 : start], text[end : end + 1]
    first, last = words[0], words[-1]
    if word_classes(words) in ("N", "Y"):  # "no" and "yes" are choices only by themselves
        return not before.strip() or before in ':"(' or text[max(0, start - 3) : start] in ("is ", ": ")
    if "\uac00" <= first <= "\ud7af":
        return not "\uac00" <= before <= "\ud7af"
    if _is_east(first):
        part = (_is_east(before) and before not in "是为為选選は、が") or "\u4e00" <= after <= "\u9fff"
        return len(words) > 1 or not part
    if first.isalnum() and (_is_west(before) or _is_tied(text, start, -1)):
        return False
    if first.isdigit() and len(words) == 1 and COUNTED.search(text, max(0, start - 20), start):
        return False  # "option 2" of 2, 4, 8, 16 may be the second choice, or the choice "2"
    return not (last.isalnum() and (_is_west(after) or _is_tied(text, end - 1, 1)))


def _is_tied(text: str, position: int, step: int) -> bool:
    """Return True if a hyphen, sign or decimal point beside a character ties it to the character beyond."""
    tie = text[position + step] if 0 <= position + step < len(text) else ""
    beyond = text[position + 2 * step] if 0 <= position + 2 * step < len(text) else ""
    if tie in (".", ","):
        return text[position].isdigit() and beyond.isdigit()
    if tie == "-" and text[position].isdigit() and step < 0:
        return not beyond.strip() or beyond in "(="
    return tie == "-" and beyond.isalnum()


def _is_west(character: str) -> bool:
    return character.isalnum() and not _is_east(character)


def _is_east(character: str) -> bool:
    return character > "\u3004" and _EASTERN_CHARACTER.match(character) is not None


_EASTERN_CHARACTER = re.compile(f"[{EAST_ASIAN}]")
_TOKEN = re.compile(
    rf"{TEXT_MARK}.|[{EAST_ASIAN}]+|\d+(?:[.,]\d+)+|[^\W_{EAST_ASIAN}]+(?:['-][^\W_{EAST_ASIAN}]+)*|\.{{2,}}|\S",
    re.DOTALL,
)
_VERDICTS = re.compile(r"M:?[Bi]*[NYRWft](?:.*[NYRWft])?\(M")
_PUNCTUATION = {",": ",", ";": ";", ":": ":", "-": ":", "|": ":", "(": "(", "、": "J"}
_CLOSING = frozenset(".,;:!?)]\"'|-")
# Classes that make a single letter a label: of the words before it, or of the word after it.
_LEADS = re.compile(r"(?:[AC:]|[ARF].{0,6}B)[BniPS]{0,2}$|n$|iT$|^PB$")
_FOLLOWS = frozenset("BNWRfJskSZYh")


class _Line:
    """A line of a text, converted to sentences of word classes."""

    def __init__(self, line: str, number: int, count: int, *, numbered: bool) -> None:
        self._number, self._count, self._numbered = number, count, numbered
        parts: list[tuple[str, str]] = []  # tokens, and the classes of known phrases
        position = 0
        for phrase in PHRASE.finditer(_lower_case(line)):
            parts += ((token, "") for token in _TOKEN.findall(line, position, phrase.start()))
            parts.append((phrase[0], SEVERAL[phrase[0]]))
            position = phrase.end()
        parts += ((token, "") for token in _TOKEN.findall(line, position))
        self._parts = parts
        words = [at for at, (token, _) in enumerate(parts) if token[0].isalnum() or token[0] == TEXT_MARK]
        self._single = len(words) == 1
        signs = [at for at, (token, _) in enumerate(parts) if token in CHECK_MARKS]
        # If the line begins with a sign (a tick or cross), the choice is after it.
        self._sign = ";{}" if signs and words and signs[0] < words[0] else "{};"
        self._start()

    def _start(self) -> None:
        self._row, self._bracket = "", False  # classes so far; True inside a bracket
        self._choices: list[int] = []
        self._unsure: list[bool] = []
        self._entry = False

    def sentences(self) -> Iterator[_Sentence]:
        """Yield the line's sentences that are not empty."""
        for at, (token, classes) in enumerate(self._parts):
            is_end = self._add_token(at, token, classes)
            if (is_end or at == len(self._parts) - 1) and self._row:
                yield _Sentence(self._row, self._choices, self._unsure, self._number, token == "?", self._entry)
                self._start()

    def _add_token(self, at: int, token: str, classes: str) -> bool:
        """Add a token's classes to the row, and return True if it ends the sentence."""
        if classes:
            self._row += classes
        elif token[0] == TEXT_MARK:
            choice = ord(token[1]) - FIRST_MARK
            if self._row.endswith("MB") and self._choices[-1] == choice:
                self._row += "w"  # "B is Mars" explains the label
            else:
                self._add_mention(choice, unsure=False)
        elif _is_east(token[0]):
            self._add_run(token)
        elif token in CHECK_MARKS:
            self._row += self._sign.format(SINGLE[token])
        elif token[0].isalnum():
            label = self._choice_of_label(at, token) if len(token) == 1 else None
            if label is not None:
                self._add_mention(label, unsure=self._may_be_word(at))
            else:
                self._row += self._class_of_word(at, token)
        elif self._row in ("M", "nM") and token in ").:-" and self._next_token(at):
            self._entry, self._row = True, "M:"
            return token == "." and self._begins_anew(at + 1)
        elif token == ")":
            if self._bracket:
                if self._row.endswith("(M"):  # "(A) no (B) yes": the verdict before "(B" belongs to A
                    self._row = f"{self._row[:-2]}{';' * (_VERDICTS.fullmatch(self._row) is not None)}M"
                else:
                    self._row += ")"
            self._bracket = False
        elif token == "." and self._row.endswith("M") and self._is_mark(self._next_token(at), self._choices[-1]):
            pass  # "not B. Mars": the label's own words
        elif token[0] in ".!?":
            return True
        else:
            self._bracket = self._bracket or token == "("
            self._row += _PUNCTUATION.get(token, SINGLE.get(token, ""))
        return False

    def _next_token(self, at: int) -> str:
        return self._parts[at + 1][0] if at + 1 < len(self._parts) else ""

    def _begins_anew(self, at: int) -> bool:
        """Return True if a label and its predicate begin here: "B. A is too hot"."""
        label, after = self._parts[at][0], self._next_token(at)
        is_letter = label.isascii() and label.isupper() and len(label) == 1
        return is_letter and after[:1].isalpha() and (_is_east(after[0]) or _first_class(after) in _FOLLOWS)

    @staticmethod
    def _is_mark(token: str, choice: int) -> bool:
        return token[:1] == TEXT_MARK and ord(token[1]) - FIRST_MARK == choice

    def _add_mention(self, choice: int, *, unsure: bool) -> None:
        if self._choices and self._choices[-1] == choice:
            last = self._row.rfind("M")
            if not self._row[last + 1 :].strip(":(,n"):  # "B) Mars" is one mention
                self._bracket = self._bracket and "(" not in self._row[last:]
                self._row = self._row[: last + 1] + (":" if self._entry else "")
                return
        self._row += "M"
        self._choices.append(choice)
        self._unsure.append(unsure)

    def _add_run(self, run: str) -> None:
        """Add the classes of words that are written without blanks; a particle after a mention has none."""
        position = 1 if run[0] in "가이" and self._row[-1:] in ("M", "n") and EASTERN.match(run) is None else 0
        while position < len(run):
            match = EASTERN.match(run, position)
            if match is not None:
                self._row += SEVERAL[match[0]]
                position = match.end()
                continue
            if not self._row.endswith("w"):
                self._row += "w"
            position += 1

    def _choice_of_label(self, at: int, letter: str) -> int | None:
        """Return the choice of a letter or digit, -1 if no choice has it; None if it is a word."""
        before, after = self._parts[at - 1][0] if at else "", self._next_token(at)
        if before in _OPERATORS or after in _OPERATORS or after == "=":
            return None
        leads = _LEADS.search(self._row[-12:]) is not None
        bracketed = before in ("(", "[", '"', "'") and after in (")", "]", '"', "'")
        ends = not after or after in _CLOSING or (not after[0].isalnum() and after not in ("/", "&"))
        if letter in "Aa" and after[:1] == TEXT_MARK and not self._is_mark(after, 0):
            return None  # an article
        marked = self._single or bracketed or (ends and leads)
        if letter.isdigit():
            if not self._numbered or not 1 <= int(letter) <= self._count:
                return None
            marked = marked or after[:1] in ("번", "番")
            return int(letter) - 1 if marked and not self._row.endswith("w:") else None
        marked = marked or (after == ")" and not self._bracket) or (at == 0 and after in (".", ":"))
        follows = not after[:1].isalnum() or _first_class(after) in _FOLLOWS
        marked = marked or (follows and (self._row.endswith("n") or after in ("/", "&")))
        if self._single:
            letter = letter.upper()
        if letter in CYRILLIC:
            return min(CYRILLIC[letter], self._count - 1 if CYRILLIC[letter] < self._count else -1) if marked else None
        if letter not in _LABELS:
            return _index(letter.upper(), self._count) if marked and letter.upper() in _LABELS else None
        noun = self._parts[at - 2][0] if before == ":" and at > 1 else before
        if noun.lower() in KINDS:
            return None
        if (
            letter in "AEIO"
            and not (letter == "A" and self._row.endswith("n"))
            and after[:1].isalpha()
            and not _is_east(after[0])
            and (letter == "I" or not follows)
        ):
            return None  # an article, a pronoun, or the like
        index = _index(letter, self._count)
        if index is None and (letter == "I" or not marked):
            return None
        return -1 if index is None else index

    def _class_of_word(self, at: int, word: str) -> str:
        if len(word) > 1 or not word.isascii() or word == "I":
            return word_classes(word.lower())
        if word == "a":
            return "" if self._row.endswith("k") and self._next_token(at)[:1] == TEXT_MARK else "w"
        return word_classes(word) if word.islower() else "w"

    def _may_be_word(self, at: int) -> bool:
        """Return True if a letter is among words, with no verb and no end of a clause after it."""
        after = self._next_token(at)
        if not after[:1].isalpha() or _is_east(after[0]) or self._row.endswith(("n", ":", "C")):
            return False
        return _first_class(after) not in _FOLLOWS


def _first_class(word: str) -> str:
    return (word_classes(word.lower()) or "w")[0]


# --- from classes to statements about choices


# Joined mentions ("A, C and D") are one group; the second of two may begin a new clause ("it is B, A is wrong").
_GROUP = re.compile(r"M(?:[n()]*(?:[,J]{1,3}[n(hi]*)?M)*")
_PREDICATE_BEGINS = re.compile(r"[:Bb]*(?:B|[NWRYZ])")
_SEPARATOR = re.compile(r"([,;()skJ])")
_INSERTED = re.compile(r"^M,(?:[^MBbJ,;:k]{1,9}),(?=B)")  # "Venus, by contrast, is white"
_SUPPOSED = re.compile(r"^H[^M,;k]{1,12},")  # "if it is about size, the answer is A"
_ASIDE = re.compile(r"\(([^()M]{0,60})\)?")
# Left context of a mention, up to the mention, which states, chooses, concludes, excepts or denies the choice.
_STATED = re.compile(
    r"(?P<head>(?:[RWftFZ][niwPNFqJ]{0,4})?A[nwiPNFTqhZ]{0,6}|[RWftZF][nF]{0,2}[PiwN]{0,2}|n)[Bb:]+"
    r"(?P<tail>[ABbinPSNh:]*(?:w[ABbinPSNh:]*){0,2})$"
)
_CALLED = re.compile(r"(?P<head>[RWfFt]?[nFi]?(?=A)|[RWf](?=n))(?:A[n:]?|n)(?P<tail>)$")
_CHOSEN = re.compile(r"C[nPbi:qBA]*(?:w[nPbi:qBA]*){0,2}$")
_CONCLUDED = re.compile(r"[SZ][nPBbiYST:]*(?:w[nPBbiYST:]*){0,2}$")
_EXCEPTED = re.compile(r"X[wni]?$")
_DENIED = re.compile(r"(?:[W]|(?P<false>f))[wniPB:A]{0,3}$|[ND]B?[bwniPT:fAthC]{0,3}$")
_LEFTS = (_STATED, _CALLED, _CHOSEN, _CONCLUDED, _EXCEPTED, _DENIED)
_NEGATED = re.compile(r"NB?[^B]*$|N.*T.*$|T.?N.*$|Nq.*$")
_IDENTIFIED = re.compile(r"[SPinwYkJTZF]*[B:h][BbinPh:]*w?$")
_BARE = re.compile(r"[iYSPT:n]*|R")
# Right context of a mention: a predicate, "yes" or "no", a negation, or nothing.
_PREDICATE = re.compile(
    r"(?P<head>[:BbPinShTqNYZ]*?(?:w[:BbPinSh]*N?[Bbi]*){0,2}?)(?P<what>[WRftC]|Z(?![BbinwP]*[WNf])|A)"
    r"(?P<tail>[BbinwPA]{0,2}N|(?<=C)[BbiP]{1,2}W)?"
)
_CALLED_RIGHT = re.compile(r"[:BbPinSh]*[RA]")
_CLAIM = re.compile(r"(B[BbinPN]*[RWft]):")
_LONE = re.compile(r"[:iBPn]*(?P<what>[NY])[iP]*")
_DENIED_BEHIND = re.compile(r"[BbiwnP]{0,3}N[BbPi]{0,2}")
_CONTENT = re.compile(r"[:BPihn]*w?[Bi]*N")
_NOTHING = re.compile(r"[:BbPinqYh]*")
# A line above a list of choices ("Wrong answers:"), and a line of such a list.
_HEADING = re.compile(r"F?(?:(?P<wrong>[Wf])|R|(?P<other>w))?F?(?:RA|An?|n)(?:R|(?P<behind>[Wf]))?B?:?|R:")
_LISTED = re.compile(r"n?M[^MBRNWft]*")
# A clause without a mention that judges the previous one: "No", "That's wrong", "so it is out".
_REMARK = re.compile(r"[SiYJ:]*?(?:P[Bbih]*|B)?i*(?P<no>N?)[Bbi]*(?P<what>[WRftY]?)[nA]{0,2}[i:]*")


def _weigh(left: str, right: str) -> float:
    """Return how plainly the context in a clause affirms a mention (above 0) or denies it (below 0)."""
    before, _, explained = left.rpartition(":")
    if set("BSC") & set(explained) and not set("Wf") & set(before):  # "it is no organ at all: it is the skin"
        left = explained
    if _EXCEPTED.search(left):
        around = set(left + right)
        return _STATEMENT if {"W", "N"} & around else _NOUN if "f" in around else _CALLED_WRONG
    negated, supposed = _NEGATED.search(left) is not None, "H" in left
    verdict = _PREDICATE.match(right)
    if verdict is not None and (verdict["what"] not in "AC" or "w" not in verdict["head"]):
        supposed = supposed or ("h" in verdict["head"] and "H" in right[verdict.end() :])  # "C would be right if …"
        weight = _weigh_predicate(verdict, right, negated=negated)
        return _MENTION if supposed else min(weight, _WEAK) if left.endswith("hB") else weight  # "wäre A richtig"
    lone = _LONE.fullmatch(right)
    if lone is not None:
        return _CALLED_WRONG if lone["what"] == "N" else _PLAIN
    silent = _NOTHING.fullmatch(right) is not None
    stated = _STATED.search(left) or (_CALLED.search(left) if silent else None)
    if stated is not None:
        return _CALLED_WRONG if _DENIED_BEHIND.fullmatch(right) else _weigh_statement(stated, left, silent=silent)
    chosen = _CHOSEN.search(left)
    if chosen is not None:
        before = left[max(0, chosen.start() - 4) : chosen.start()]
        if {"N", "W"} & set(before):
            return _CALLED_WRONG
        return _MENTION if supposed else _WEAK if "h" in before else _STATEMENT
    denied = _DENIED.search(left)
    if denied is not None or negated:
        return _CALLED_FALSE if denied is not None and denied["false"] else _CALLED_WRONG
    if _CONTENT.match(right):
        return _CONTENT_DENIED
    if supposed:
        return _MENTION
    if _CONCLUDED.search(left):
        return _STATEMENT if silent else _WEAK
    if _IDENTIFIED.fullmatch(left):
        if "h" in left or (not silent and "P" in left):
            return _WEAK
        return _MENTION if not silent else _NOUN if "w" in left else _PLAIN
    return _MENTION if not silent or not _BARE.fullmatch(left) else _WEAK if "h" in right else _PLAIN


def _weigh_predicate(verdict: re.Match[str], right: str, *, negated: bool) -> float:
    """Return the weight of a mention that is called right, wrong, true, false, the answer, or chosen."""
    word = verdict["what"]
    negative = "N" in verdict["head"] or verdict["tail"] is not None
    if negative or word in "Wf":
        if negated or (negative and word in "Wf"):
            return _MENTION  # not wrong is not right
        return _CALLED_FALSE if word in "ft" else _CALLED_WRONG
    if negated:
        return _CALLED_WRONG
    if "h" in verdict["head"]:
        return _WEAK
    behind = right[verdict.end() : verdict.end() + 2].strip("i")
    if word in "AC" or (word == "R" and behind[:1] in ("A", "n")):
        return _STATEMENT
    return _NOUN if word == "t" else _PLAIN


def _weigh_statement(stated: re.Match[str], left: str, *, silent: bool) -> float:
    """Return the weight of a mention after "the answer is" and the like."""
    head, tail, before = stated["head"], stated["tail"], left[: stated.start()]
    if (head == "n" and not silent) or "H" in before:
        return _MENTION
    wrong = bool({"W", "f"} & set(head))
    negative = "N" in head + tail or re.search(r"N[^B]{0,3}T[^B]*$", before) is not None
    negative = negative or (stated.re is _CALLED and "N" in before[-4:])
    if wrong or negative:
        return _MENTION if wrong and negative else _CALLED_FALSE if "f" in head else _CALLED_WRONG
    if "h" in before[-3:] + head + tail:
        return _WEAK
    if "t" in head and "A" not in head:
        return _NOUN
    if "F" in head:
        return _FINAL
    return _STATEMENT if stated.re is _STATED or head else _PLAIN


# --- from statements to the choice


@dataclass(slots=True, eq=False)
class _Event:
    """A statement about a group of choices at one position. `turn` counts earlier words that reject another choice.

    `bare`: nothing else is in the sentence. `right`: the choice is called right, or replaces another one.
    """

    choices: frozenset[int]
    weight: float
    turn: int
    line: int
    bare: bool = False
    right: bool = False
    sure: bool = True


_Group = tuple[frozenset[int], bool]


class _Reader:
    """Reader that collects sentences and then returns the choice that they name."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._events: list[_Event] = []
        self._turn = 0
        self._affirmed: dict[int, int] = {}  # by choice: the position of the last event that affirms it
        self._withdrawn: dict[int, tuple[int, float]] = {}  # by choice: what withdraws earlier, lesser events
        self._fallen = -1  # the last position of a withdrawn event
        self._subject: _Event | None = None
        self._entries: list[tuple[int, int]] = []  # choice and line of each label that begins a list entry
        self._opening: _Event | None = None
        self._heading: float | None = None  # the weight of the choices listed below the last line
        self._heading_line = 0
        self._last_line = 0
        self._begun = False

    def take(self, sentence: _Sentence) -> None:
        """Record what a sentence says of choices."""
        if len(self._events) > _MAX_MENTIONS:
            return
        self._last_line = sentence.line
        row, groups = self._group_mentions(sentence)
        if sentence.entry:
            self._entries.append((sentence.choices[0], sentence.line))
        if self._heading is not None and self._is_listed(sentence):
            right = self._heading > 0
            listed = frozenset(sentence.choices[:1])
            self._add(_Event(listed, self._heading, self._turn, sentence.line, bare=right, right=right))
            self._heading = None if right else self._heading
            return
        heading = None if groups else _HEADING.fullmatch(row)
        self._heading_line = sentence.line
        self._heading = None
        if heading is not None:
            self._heading = (
                _CALLED_WRONG if heading["wrong"] or heading["behind"] else _MENTION if heading["other"] else _STATEMENT
            )
        bare = row.strip(":,") in ("G", "nG")
        opens, before, at = not self._begun, "", 0
        for clause in _SEPARATOR.split(row):
            if len(clause) == 1 and clause in ",;()skJ":
                self._turn += clause == "k"
                before = before if before == "k" and clause in ",J" else clause
                continue
            mentions = clause.count("G")
            if mentions:
                self._take_clause(clause, groups[at : at + mentions], sentence, before, bare=bare, opens=opens)
                at += mentions
            elif clause:
                self._take_remark(clause, sentence.line)
            opens, before = False, "" if clause else before
        self._begun = True

    def _is_begun_list(self, sentence: _Sentence) -> bool:
        """Return True if an entry's label names no choice, or the entry may begin a list that stays incomplete."""
        return sentence.choices[0] < 0 or (sentence.choices[0] == 0 and self._begun)

    def _is_listed(self, sentence: _Sentence) -> bool:
        """Return True if a line begins with a choice and is below a heading that classifies the choices."""
        begins = sentence.line > self._heading_line and (sentence.entry or sentence.classes in ("M", "nM"))
        if not begins or _LISTED.fullmatch(sentence.classes) is None:
            return False
        self._heading_line = sentence.line
        return True

    def _group_mentions(self, sentence: _Sentence) -> tuple[str, list[_Group]]:
        """Return the classes with `G` for each group of mentions, and the groups."""
        groups: list[_Group] = []
        classes = sentence.classes
        if "(" in classes:  # a verdict in brackets belongs to the text before them; other asides are dropped
            classes = _ASIDE.sub(
                lambda aside: f"B{aside[1]}" if len(aside[1]) < 5 and set("WRftNY") & set(aside[1]) else "", classes
            )
        classes = re.sub(r"([Si]),", r"\1", classes).replace(",q", "q")
        classes = _SUPPOSED.sub("h", _INSERTED.sub("M", classes)).replace("(NM", ",NM")
        used = 0

        def group(match: re.Match[str]) -> str:
            nonlocal used
            count = match[0].count("M")
            choices, unsure = sentence.choices[used : used + count], sentence.unsure[used : used + count]
            used += count
            apart = count == 2 and "J" not in match[0] and "," in match[0] and choices[0] != choices[1]
            apart = apart and _PREDICATE_BEGINS.match(classes, match.end()) is not None
            if apart and _STATED.search(classes[max(0, match.start() - 60) : match.start()]):
                groups.extend((frozenset((choice,)), word) for choice, word in zip(choices, unsure, strict=True))
                return "G,G"
            groups.append((frozenset(choices), any(unsure)))
            return "G"

        return _GROUP.sub(group, classes), groups

    def _take_clause(
        self, clause: str, groups: list[_Group], sentence: _Sentence, before: str, *, bare: bool, opens: bool
    ) -> None:
        """Record what a clause says of its groups; `before` is what separates it from the previous clause."""
        for position, ((choices, unsure), left, right) in enumerate(zip(groups, *_sides(clause), strict=True)):
            if position == 0 and before == "k":
                left = left.removeprefix("N:")  # "but no: C"
            weight = _weigh(left, right) if "L" not in left else self._subject_weight()
            first, last = position == 0, position == len(groups) - 1
            begins = opens and first and last and not left and not unsure and len(choices) == 1
            if weight == _PLAIN and not last and right and _NOTHING.fullmatch(right):
                weight = _CONTENT_DENIED if "N" in clause else _MENTION  # "the Moon is not the Sun"; "A. Moon B. Mars"
            if first and before == "J" and weight == _PLAIN and _BARE.fullmatch(left):
                choices, weight = self._joined_with_subject(choices, sentence.line)
            if len(choices) > 1 and left == "n:":
                weight = _MENTION
            if sentence.asks and weight > 0:
                weight = _QUESTION if _BARE.fullmatch(left) else _MENTION
            sure = not (unsure or sentence.asks or "H" in left or (sentence.entry and self._is_begun_list(sentence)))
            event = _Event(choices, weight, self._turn, sentence.line, bare, sure=sure)
            if weight >= _PLAIN:
                replaces = first and before == "k" and weight == _PLAIN
                event.right = replaces or _CALLED_RIGHT.match(right) is not None
            elif weight == _MENTION and begins and (sentence.entry or right[:1] == ":"):
                event.weight, self._opening = _WEAK, event
            self._add(event)
            self._subject = event

    def _add(self, event: _Event) -> None:
        if event.weight <= _CALLED_FALSE:
            below = _STATEMENT if event.weight == _CALLED_FALSE else _FINAL + 1
            for choice in event.choices:
                self._withdrawn[choice] = (len(self._events), below)
                position = self._affirmed.get(choice, -1)
                if position >= 0 and self._events[position].weight < below:
                    self._fallen = max(self._fallen, self._affirmed.pop(choice))
        elif event.weight >= _PLAIN:
            self._affirmed.update(dict.fromkeys(event.choices, len(self._events)))
        self._events.append(event)

    def _joined_with_subject(self, choices: frozenset[int], line: int) -> tuple[frozenset[int], float]:
        """Return the choices and weight of "…, or perhaps B", joined with the choices affirmed before."""
        subject = self._subject
        if subject is None or subject.line != line or subject.weight <= 0:
            return choices, _MENTION
        return choices | subject.choices, subject.weight

    def _subject_weight(self) -> float:
        return self._subject.weight if self._subject is not None and self._subject.weight < 0 else _MENTION

    def _take_remark(self, clause: str, line: int) -> None:
        """Record what a clause without a mention says of the previous mention."""
        subject, match = self._subject, _REMARK.fullmatch(clause)
        if subject is None or match is None:
            return
        no, word = bool(match["no"]), match["what"]
        if not word and (not no or clause.strip("SiYJ:") != "N"):
            return
        if no != (word in ("W", "f")):
            self._add(_Event(subject.choices, _CALLED_WRONG, self._turn, line))
        elif not no and len(subject.choices) == 1 and subject.line == line and subject.weight > _CALLED_FALSE:
            self._add(_Event(subject.choices, _PLAIN, self._turn, line, right=True))

    def choice(self, *, cut: bool) -> int | None:
        """Return the choice that is named, or None; in a `cut` text a choice that is only mentioned does not count."""
        if len(self._events) > _MAX_MENTIONS:
            return None
        self._weigh_places()
        positions = {event: position for position, event in enumerate(self._events)}
        valid = [event for event in self._events if not self._is_withdrawn(event, positions[event])]
        for weight in (_STATEMENT, _PLAIN, _NOUN, _WEAK, _QUESTION):
            tier = [event for event in valid if event.weight >= weight and (weight > _QUESTION or not cut)]
            if tier:
                last = self._last(tier, valid)
                return None if last is None or self._fallen > positions[last] else min(last.choices)
        return None if cut else self._only_mentioned_choice()

    def _is_withdrawn(self, event: _Event, position: int) -> bool:
        if len(event.choices) > 1:
            return False
        before, below = self._withdrawn.get(min(event.choices), (0, 0.0))
        return position < before and event.weight < below

    def _last(self, tier: list[_Event], valid: list[_Event]) -> _Event | None:
        """Return the last of the events that affirm most plainly; None if other events contradict it."""
        last = tier[-1]
        later = [event for event in valid[valid.index(last) :] if event.right and event.choices != last.choices]
        if later:
            if any(event.turn == last.turn and not event.choices < last.choices for event in later):
                return None
            tier, last = later, later[-1]
        for event in tier[:-1]:
            agrees = last.choices <= event.choices
            turned = event.turn != last.turn and last.weight > _WEAK
            if not agrees and not turned and event.weight >= last.weight:
                return None
        return last if len(last.choices) == 1 and min(last.choices) >= 0 else None

    def _weigh_places(self) -> None:
        """Weigh mentions by place: an entry of a list of choices is no answer, but a letter alone at the end is."""
        bare = [event for event in self._events if event.bare and len(event.choices) == 1 and event.weight > 0]
        lettered = {line for _, line in self._entries}
        unlettered = [(min(event.choices), event.line) for event in bare if event.line not in lettered]
        for labels in (self._entries, unlettered):
            listed: set[int] = set()
            run: list[int] = []
            window: list[tuple[int, int]] = []
            for choice, line in labels:
                if choice != len(run):
                    run = []
                if choice == len(run):
                    run.append(line)
                    listed.update(run if len(run) == 2 else run[-1:] if len(run) > 2 else ())
                window.append((choice, line))
                if self._count > 2 and len({choice for choice, _ in window[-self._count :]}) == self._count:
                    listed.update(line for _, line in window[-self._count :])  # the whole list in another order
            for event in bare:
                if event.line in listed:
                    event.weight = _MENTION
        if bare and bare[-1] is self._events[-1] and bare[-1].line == self._last_line and bare[-1].weight == _PLAIN:
            bare[-1].weight = _STATEMENT
        if self._opening is not None and 0 in self._opening.choices and any(choice == 1 for choice, _ in self._entries):
            self._opening.weight = _MENTION

    def _only_mentioned_choice(self) -> int | None:
        """Return the only choice that is mentioned and not denied, or the only choice left if all others are denied."""
        denied = {choice for event in self._events if event.weight < 0 for choice in event.choices}
        wrong = {choice for event in self._events if event.weight <= _CALLED_FALSE for choice in event.choices}
        candidates = {choice for event in self._events if event.sure for choice in event.choices} - denied - {-1}
        unsure = {choice for event in self._events for choice in event.choices} - denied - candidates - {-1}
        implied = len(wrong) == self._count - 1
        if implied and not candidates and not unsure:  # "it is not true", "wrong answers: A, C, D"
            return min(set(range(self._count)) - wrong - denied, default=None)
        if len(candidates) != 1 or not (implied or (not unsure and self._fallen < 0)):
            return None
        return candidates.pop()


def _sides(clause: str) -> tuple[list[str], list[str]]:
    """Return what is left and right of each group in a clause.

    In the text between two groups, the words that introduce the second group and all after them belong to the second
    group; the words before belong to the first.
    """
    parts = clause.split("G")
    lefts, rights = [parts[0][-60:]], []
    for between in parts[1:-1]:
        lead = None
        alone = _PREDICATE.fullmatch(between) or _LONE.fullmatch(between)
        claim = _CLAIM.fullmatch(between)  # "A is right: the heart …"
        if claim is not None:
            rights.append(claim[1])
            lefts.append(":")
            continue
        if not alone or not _PREDICATE.match(parts[-1]):
            lead = next((match for pattern in _LEFTS if (match := pattern.search(between[-60:]))), None)
        cut = len(between) if lead is None else max(0, len(between) - 60) + lead.start()
        rights.append(between[:cut][:40])
        supposed = "H" if "H" in between else ""  # "a common mistake is C"
        lefts.append(between[cut:] or supposed + ("B" if between.endswith("B") else "w"))
    return lefts, [*rights, parts[-1][:40]]
