r"""Reader of free answers to questions for a number: the number that a model's answer claims, or none.

A text is read by its sentences. A sentence may be a *claim*: `#### 42`, `\boxed{42}`, "the answer is 42", "Answer: 42"
or, weaker, a conclusion ("So she has 42 left", "Total: 42"). Rules:

- Claims outrank conclusions, and conclusions outrank other sentences, of which only the last one with a number counts.
- Two claims of different values are unclear, and so are "40 or 50" and "40 to 50", unless words between them take the
  first one back ("wait", "I made a mistake"). An unclear answer is read as None, never as one of its values.
- In a sentence, the number after the last "=" counts; else the number in bold; else the only one that is not denied,
  bracketed, a label ("step 3", "the 2nd") or part of a circumstance ("out of 5", "for 3 days").
- An answer that ended at its token limit counts only if it makes a claim before its last word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from .answer_text import (
    ANSWER_HEADING,
    ANSWER_LINE,
    ANSWER_NOUN,
    BOLD,
    BOX,
    BOX_END,
    CONCLUDES,
    FIRST_TRY,
    IS_ANSWER,
    LIST_MARK,
    MONTH,
    RETRACTS,
    WORD_MARK,
    answer_pieces,
    own_answer,
    plain_answer,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as written: `decimals` after its point, and the `scale` of its unit (1/100 for %, 12 for a dozen)."""

    value: Fraction
    decimals: int = 0
    scale: Fraction = Fraction(1)

    def matches(self, reference: Number) -> bool:
        """Return True if the number is the reference, in its own unit or in the reference's.

        Decimals may be rounded: to the reference's decimals if it has some, and else to two or more.
        """
        return any(self._equals(value, reference) for value in {self.value, self.value * self.scale})

    def _equals(self, value: Fraction, reference: Number) -> bool:
        if value in (reference.value, reference.value * reference.scale):
            return True
        if reference.decimals and self.decimals > reference.decimals:
            return _rounded(value, reference.decimals) == reference.value
        return self.decimals >= 2 and _rounded(reference.value, self.decimals) == value

    def __str__(self) -> str:
        if self.value.denominator == 1:
            return str(self.value.numerator)
        decimal = f"{float(self.value):.{max(self.decimals, 1)}f}"
        return decimal if Fraction(decimal) == self.value else str(self.value)


def _rounded(value: Fraction, decimals: int) -> Fraction:
    """Return the value rounded to decimals, halves away from zero."""
    scaled = abs(value) * 10**decimals + Fraction(1, 2)
    return Fraction(scaled.numerator // scaled.denominator, 10**decimals) * (1 if value >= 0 else -1)


def final_reference(reference: str) -> str:
    """Return the part of a reference after its last `####`, as in GSM8K; else all of it."""
    return reference.rpartition("####")[2].strip()


def reference_number(reference: str) -> Number | None:
    """Return a reference as a number, or None if it is more than a number with the sign of a unit."""
    text = _number_words_as_digits(plain_answer(final_reference(reference))).replace(WORD_MARK, "").strip(" .")
    mentions = list(_numbers(text))
    if len(mentions) != 1 or re.sub(r"[\s$€£¥]", "", text[: mentions[0].start] + text[mentions[0].end :]):
        return None
    return mentions[0].number


@dataclass(slots=True)
class _Mention:
    number: Number
    start: int
    end: int
    word: bool = False  # written as a word


_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_UNITS = {word: number for number, word in enumerate(_SMALL)} | {word: 10 * at for at, word in enumerate(_TENS, 2)}
_POWERS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "half": 2,
    "third": 3,
    "quarter": 4,
    "fifth": 5,
    "halves": 2,
    "thirds": 3,
    "quarters": 4,
    "fourths": 4,
    "fourth": 4,
    "sixth": 6,
    "eighth": 8,
    "fifths": 5,
    "tenth": 10,
    "tenths": 10,
    "sixths": 6,
    "eighths": 8,
}
_NUMBER_WORD = "|".join(sorted([*_UNITS, *_POWERS], key=len, reverse=True))
_WORDS_RUN = re.compile(
    rf"(?<!\d )(?<!\d)\b(?:(?:an?|{_NUMBER_WORD})"
    rf"(?:(?:[\s-]+|(?:(?<=dred)|(?<=sand)|(?<=lion))\s+and\s+)(?:{_NUMBER_WORD})\b)+"
    rf"|(?:{_NUMBER_WORD}))\b"
    rf"(?P<half>\s+and\s+(?:a\s+|one[\s-])half)?(?:[\s-](?P<part>{'|'.join(_PARTS)})\b)?",
    re.IGNORECASE,
)
_HALF = re.compile(r"\b(?:(?:a|one)[\s-])?(?P<part>half|quarter|third)\b(?=\s(?:of|an?|the)\b|[.\s]*$)", re.IGNORECASE)
_WHOLE_AND_PART = re.compile(
    rf"\b({'|'.join(_UNITS)}) and ({'|'.join(_UNITS)}|a)[ -]({'|'.join(_PARTS)})\b",
    re.IGNORECASE,
)


def _number_words_as_digits(text: str) -> str:
    """Return the text with numbers in words as digits, each after a mark."""
    text = re.sub(r"\b(?:negative|minus) (?=[\d$a-z])", "-", text, flags=re.IGNORECASE)
    text = _WHOLE_AND_PART.sub(_digits_of_mixed, text)
    text = re.sub(r"\ba dozen\b", f"{WORD_MARK}12", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<=\d) and (?:a|one)[ -]half\b", " 1/2", text, flags=re.IGNORECASE)
    text = _WORDS_RUN.sub(_digits_of_words, text).replace(f"-{WORD_MARK}", f"{WORD_MARK}-")
    return _HALF.sub(lambda match: f"{WORD_MARK}1/{_PARTS[match['part'].lower()]}", text)


def _digits_of_mixed(match: re.Match[str]) -> str:
    whole, over, part = (match[number].lower() for number in (1, 2, 3))
    return f"{WORD_MARK}{_UNITS[whole]} {_UNITS.get(over, 1)}/{_PARTS[part]}"


def _digits_of_words(match: re.Match[str]) -> str:
    words = re.findall(r"[a-z]+", match[0].lower())
    half = match["half"] is not None
    part = _PARTS[match["part"].lower()] if match["part"] else 0
    total = group = 0
    for word in words:
        if word in _UNITS:
            group += _UNITS[word]
        elif word == "hundred":
            group = max(group, 1) * 100
        elif word in _POWERS:
            total, group = total + max(group, 1) * _POWERS[word], 0
        if half and word == "and" and words[-1] == "half":
            continue
    value = total + group - (1 if half and words[-2] == "one" else 0)
    if re.fullmatch(r"(?:an?)", words[0]) and len(words) == 1:
        return match[0]
    return f"{WORD_MARK}{value}{' 1/2' if half else f'/{part}' if part else ''}"


_DIGITS = (
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d])|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d)"
    r"|\d{1,3}(?:['_]\d{3})+(?!\d)"
    r"|\d{1,3}(?: \d{3})+(?:\.\d+)?(?![\d,])|\d+,\d{1,2}(?![\d,])|\d+(?:\.\d+)?|\.\d+"
)
_UNIT_AFTER = r"(?:\s?(?P<unit>%|percent\b|per cent\b|cents?\b|¢|dozens?\b))?"
_NUMBER = re.compile(
    rf"(?<![\w.,{WORD_MARK}])(?<!\d')(?P<word>{WORD_MARK})?(?P<sign>-(?:[$€£¥]\s?)?|(?<=[=(:]\s)-\s|[$€£¥]\s?-"
    rf"|\+)?(?:[$€£¥]\s?)?"
    rf"(?P<whole>{_DIGITS})(?:[\s-](?:and\s)?(?P<over>\d{{1,3}})/(?P<under>\d{{1,3}})(?![\d/])|/(?P<below>{_DIGITS})(?![\d/]))?"
    r"(?:[eE](?P<exponent>[+-]?\d{1,2})\b|\s?\*\s?10\s?\^\s?\(?(?P<ten>-?\d{1,2})\)?|\^\(?(?P<power>\d{1,2})\)?)?"
    rf"(?:(?P<k>k|K|M)\b(?!\w)|\s?(?P<scale>hundred|thousand|million|billion|trillion)\b)?(?:/100\b)?{_UNIT_AFTER}",
)
_MAX_NUMBER = 60  # characters
_UNIT_SCALES = {
    "%": Fraction(1, 100),
    "p": Fraction(1, 100),
    "c": Fraction(1, 100),
    "¢": Fraction(1, 100),
    "d": Fraction(12),
}


def _numbers(text: str) -> Iterator[_Mention]:
    for match in _NUMBER.finditer(text):
        after = text[match.end() : match.end() + 1]
        whole = match["whole"]
        if after == "," and text[match.end() + 1 : match.end() + 2].isdigit():
            continue  # malformed: 1,23,4
        if match.end() - match.start() > _MAX_NUMBER:
            continue
        value, decimals = _digits_value(whole)
        if match["under"]:
            if not int(match["under"]):
                continue
            value, decimals = value + Fraction(int(match["over"]), int(match["under"])), 0
        elif match["below"]:
            below, _ = _digits_value(match["below"])
            if not below:
                continue
            value, decimals = value / below, 0
        exponent = int(match["exponent"] or match["ten"] or 0)
        value *= Fraction(10) ** exponent
        if match["power"]:
            value **= int(match["power"])
        value *= {"k": 1000, "K": 1000, "M": 10**6}.get(match["k"] or "", 1) * _POWERS.get(match["scale"] or "", 1)
        sign = match["sign"] or ""
        if "-" in sign and not re.search(r"[\d)%]\s?$|[A-Za-z)]$", text[: match.start("sign")]):
            value = -value
        unit = (match["unit"] or "").lower()
        scale = _UNIT_SCALES.get(unit[:1], Fraction(1))
        yield _Mention(Number(value, decimals, scale), match.start(), match.end(), bool(match["word"]))


def _digits_value(digits: str) -> tuple[Fraction, int]:
    """Return the value and the number of decimals of digits with separators."""
    if re.fullmatch(r"\d+,\d{1,2}", digits):
        digits = digits.replace(",", ".")
    elif re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}", digits):
        digits = digits.replace(".", "").replace(",", ".")
    digits = re.sub(r"[,' _]", "", digits)
    return Fraction(digits), len(digits.partition(".")[2])


class _Unclear:
    """A sentence with several numbers of which none is the claimed one."""


_UNCLEAR = _Unclear()
_Value = Number | _Unclear | None
_EQUALS = re.compile(
    r"(?<![<>!=])=(?!=)|\b(?:equals|is equal to|equal to|is equivalent to|which (?:is|equals|makes|gives"
    r"|comes to|leaves)"
    r"|gives(?: us)?|we get|you get|yields|leaves(?: us)?|results in|amounts to|comes (?:out )?to|works out to|totals"
    r"|totaling|totalling|-?> )|->|→|⇒|=>",
    re.IGNORECASE,
)  # fmt: skip
_SO = re.compile(
    r"(?:^|[,;:]\s|\s-\s)\s?(?:and\s|but\s)?(?:so|thus|therefore|hence|making|leaving|giving|meaning|which means"
    r"|that leaves|this leaves|for a (?:grand )?total of|totaling|totalling|or a total of)\b",
    re.IGNORECASE,
)  # fmt: skip
_OPERATOR = re.compile(r"[^\W\d]{0,12}[%)\s]{0,2}(?:\s?[*/^+x]\s?|\s-\s)[$(\s]{0,2}")  # between two numbers
_CLOCK = re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b|\b\d+\s?:\s?\d+\b|\b\d{1,4}/\d{1,2}/\d{1,4}\b|\b\d{4}-\d\d-\d\d\b")
_RANGE = re.compile(
    r"\bbetween\s[^.]{0,30}?\d[^.]{0,20}?\sand\s|(?<![\w.])[$€£]?\d[\d,.]*\s?(?:-|to|through)\s?[$€£]?\d[\d,.]*(?!\s?=)(?![\w/])"
    r"|\b(?:less|fewer|more|greater) than (?=[$\d])|(?<![=-])[<>≤≥]\s?[$-]?\d|\d\s?[<>≤≥]"
)
_ORDINAL = re.compile(r"^(?:st|nd|rd|th)\b")
_LABEL_BEFORE = re.compile(
    rf"(?:\b(?:step|part|day|week|month|year|question|problem|case|method|option|equation|chapter|page|room"
    rf"|number|no\.|grade|round"
    rf"|figure|table|answer|item|quarter|level|line|{MONTH}|#)\s?[#(]?)$",
    re.IGNORECASE,
)
_DAY_BEFORE_MONTH = re.compile(rf"^(?:st|nd|rd|th)?\s(?:of\s)?{MONTH}\b")
_CIRCUMSTANCE = re.compile(
    r"\b(?:out of|of|in|for|after|from|with|per|every|each|than|over|within|by|at|on|until|during|to|among"
    r"|across|between"
    r"|throughout|before|under|using|through|both|into|given|if|when|since|all|these|those)"
    r"(?:\s(?:the|a|an|[A-Z]\w+'s|about|only|just|all|his|her|their|its|our|your|my|these|those|each|every"
    r"|first|last|next|past|remaining|other|another|exactly|initial|original|reach|[a-z]+ing|(?:he|she|it|they|we)\s[a-z]+))*\s[$€£]?$",
    re.IGNORECASE,
)
_MAIN_OF = re.compile(
    r"\b(?:total|sum|average|mean|profit|cost|price|amount|value|balance|rate|number|count|grand total"
    r"|loss|weight|length|distance|speed"
    r"|salary|discount|change|remainder|score|maximum|minimum|area|volume|age|height|revenue|income|product"
    r"|difference)s? of\s(?:about\s|only\s)?[$€£]?$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\bnot|n't|\bcannot|\brather than|\binstead of|\bnever|\bisn't|\bwithout|≠|!=)"
    r"\s(?:(?!but\b)[A-Za-z]+\s){0,2}[$€£\"']?$",
    re.IGNORECASE,
)
_WRONG_AFTER = re.compile(
    r"^[^.,;]{0,20}\b(?:is|was|would be)\s(?:wrong|incorrect|not (?:right|correct|the answer)|a mistake)",
    re.IGNORECASE,
)
_UNIT_WORD = re.compile(r"^\s?-?([A-Za-z]+)")
_NOTHING = re.compile(
    r"\b(?:none|nothing|zero)\b(?! of (?:these|those|the|them))|\bno \w+(?: \w+)? (?:left|remain|remaining"
    r"|at all)\b|^\s*(?:is\s)?no (?:more )?(?!answer|idea|solution|information|clue|way|data|one)\w+[\s.]*$",
    re.IGNORECASE,
)


def _value(text: str) -> _Value:
    """Return the number that a sentence, or the rest of one after "the answer is", claims."""
    text = _CLOCK.sub(lambda match: "\ue004" * len(match[0]), text.replace(BOX, " ").replace(BOX_END, " "))
    if "\ue004" in text and not _numbers_of(text):
        return _UNCLEAR
    clauses = list(_SO.finditer(text))
    if clauses and _numbers_of(text[clauses[-1].end() :]):
        text = text[clauses[-1].end() :]
    variables = re.findall(r"(?<![\w.])([a-zA-Z])\s?=\s?[-$]?\d", text)
    if len(set(variables)) > 1:
        return _UNCLEAR  # x = 15 and y = 20
    text = _subordinate_removed(text)
    if (
        (aside := re.match(r"(.+?),\s(?:which (?:is|equals|means)|i\.e\.|that is)\s(.+)", text)) is not None
        and not _computes(aside[1])
        and "=" not in text
    ):
        first = _main_number(aside[1])
        if isinstance(first, Number) and re.search(
            r"\d\s?(?:\w+\s){1,2}?(?:each|per|every|a|an|more|less|fewer)\b|\bthe (?:same|total)\b", aside[2]
        ):
            return first
    if (copula := _LAST_COPULA.match(text)) is not None and _numbers_of(copula[1]) and not _HAS_VERB.search(copula[1]):
        text = copula[2]
    if (
        result := re.match(r"(.*[\d)]\W*)\s(?:is|are|makes?)\s(?=[$€£]?-?\d)", _operators(text))
    ) is not None and _computes(result[1]):
        text = _operators(text)[result.end() :]
    sides = _sides(text)
    if len(sides) > 1:
        last = sides[-1]
        if _computes(last) and not _computes(sides[-2]) and len(_numbers_of(sides[-2])) == 1:
            last = sides[-2]  # 42 = 6 * 7
        text = last
    elif _computes(_without_brackets(text)):
        return _UNCLEAR
    return _main_number(text)


_LAST_COPULA = re.compile(r"(.*?)\s(?:is|are|was|makes)\s([$€£]?-?\d[\d.,/]*%?(?:\s[a-z]+){0,3}\W*)$", re.IGNORECASE)
_HAS_VERB = re.compile(r"\b(?:gets?|there|is|are|was|were|has|have|had|and (?:she|he|it|they)|=)\b|=")


def _operators(text: str) -> str:
    """Return the text with numbers as digits, and signs for "times" and "plus" between them."""
    digits = _number_words_as_digits(text).replace(WORD_MARK, "")
    return re.sub(r"(?<=[\d)])\s(?:times|multiplied by|plus|minus|divided by)\s(?=[$(]?\d)", " * ", digits)


_SUBORDINATE = re.compile(
    r"\W*(?:after|with|since|when|because|given|once|as|by|for|at|out of|of|if|\w+ing)\s[^=]*?,\s(?:then\s)?",
    re.IGNORECASE,
)


def _subordinate_removed(text: str) -> str:
    """Return a sentence without "After selling 30 cards, …" before its main clause, if that has a number."""
    match = _SUBORDINATE.match(text)
    return text[match.end() :] if match is not None and _numbers_of(text[match.end() :]) else text


def _computes(text: str) -> bool:
    """Return True if two numbers are joined by an operator, as in 6 * 7; a fraction is one number."""
    text = _operators(text)
    mentions = list(_numbers(text))
    return any(
        _OPERATOR.fullmatch(text[first.end : second.start])
        or re.match(r"\s?[-+]\s", text[first.end : second.start + 3])
        for first, second in pairwise(mentions)
    )


def _sides(text: str) -> list[str]:
    """Return the parts of a text between signs of equality that have numbers."""
    return [side for side in _EQUALS.split(text) if side and _numbers_of(side)]


def _numbers_of(text: str) -> list[_Mention]:
    return list(_numbers(_number_words_as_digits(text)))


def _without_brackets(text: str) -> str:
    return re.sub(r"\([^()]{0,200}\)", lambda match: " " * len(match[0]), text)


def _main_number(text: str) -> _Value:
    text = _number_words_as_digits(text)
    mentions = list(_numbers(text))
    if not mentions:
        return Number(Fraction(0)) if _NOTHING.search(text) else None
    if (compound := _compound(text, mentions)) is not None:
        return compound
    outside = _without_brackets(text)
    kept = _prefer(mentions, lambda each: bool(outside[each.start : each.end].strip()))
    allowed = [each for each in kept if not _is_denied(text, each)]
    if not allowed:
        return None
    allowed = _prefer(allowed, lambda each: not _is_label(text, each))
    bold = [each for each in allowed if text[: each.start].count(BOLD) % 2]
    if bold and len({each.number.value for each in bold}) == 1:
        return bold[-1].number
    if _RANGE.search(outside) or "\ue004" in outside:
        return _UNCLEAR
    kept = _prefer(allowed, lambda each: not each.word)
    kept = _prefer(kept, lambda each: not _ORDINAL.match(text[each.end :]))
    if len({each.number.value for each in kept}) > 1 and not _are_alternatives(text, kept):
        kept = _prefer(kept, lambda each: _TOTAL_AFTER.match(text[each.end :]) is not None)
        kept = _prefer(kept, lambda each: _is_main(text, each))
    values = {each.number.value for each in kept}
    if len(values) > 1 and len(kept) == 2 and _same_quantity(text, kept):
        return kept[0].number
    return kept[-1].number if len(values) == 1 else _UNCLEAR


_TOTAL_AFTER = re.compile(
    r"(?:\s[A-Za-z]+){0,2}\s(?:in total|altogether|in all|all together|combined)\b",
    re.IGNORECASE,
)


def _prefer(mentions: list[_Mention], condition: Callable[[_Mention], bool]) -> list[_Mention]:
    """Return the numbers that meet the condition, or all of them if none does."""
    return [each for each in mentions if condition(each)] or mentions


def _is_main(text: str, each: _Mention) -> bool:
    before = text[max(0, each.start - 60) : each.start]
    if re.match(r"\s(?:\w+\s)?(?:more|fewer|less)\b", text[each.end :]) and before.rstrip().endswith(","):
        return False
    if re.match(r"[^,.]{0,20}?\sof (?:which|whom|them|these|those)\b", text[each.end :]):
        return False
    if re.fullmatch(r"\W*(?:\w+\s)?(?:the|all)\s", before, re.IGNORECASE) and each.end < len(text) - 3:
        return False  # "the 5 friends pay …"
    return _CIRCUMSTANCE.search(before) is None or _MAIN_OF.search(before) is not None


def _is_denied(text: str, each: _Mention) -> bool:
    before = text[max(0, each.start - 40) : each.start]
    return _DENIED.search(before) is not None or _WRONG_AFTER.match(text[each.end : each.end + 60]) is not None


def _is_label(text: str, each: _Mention) -> bool:
    before = text[max(0, each.start - 14) : each.start]
    if re.match(r"[xyzn]\b", text[each.end :]):
        return True  # 3x
    return (
        _LABEL_BEFORE.search(before) is not None or _DAY_BEFORE_MONTH.match(text[each.end : each.end + 20]) is not None
    )


def _are_alternatives(text: str, kept: Sequence[_Mention]) -> bool:
    return any(
        re.fullmatch(r"[^.;]{0,25}?\b(?:or|and/or)\s[$€£]?", text[first.end : second.start])
        for first, second in pairwise(kept)
    )


# The kind of each unit, and how many of the kind's smallest unit it has.
_IN_BASE = {
    unit: (kind, int(size))
    for kind, units in enumerate(
        (
            "week 604800 day 86400 hour 3600 hr 3600 h 3600 minute 60 min 60 second 1 sec 1",
            "dollar 100 cent 1",
            "yard 36 foot 12 feet 12 ft 12 inch 1 inche 1 in 1",
            "year 12 month 1",
            "pound 16 lb 16 ounce 1 oz 1",
            "kilogram 1000 kg 1000 gram 1 g 1",
            "kilometer 100000 km 100000 meter 100 m 100 centimeter 1 cm 1",
        )
    )
    for unit, size in zip(units.split()[::2], units.split()[1::2], strict=True)
}


def _unit(text: str, each: _Mention) -> str:
    if "cent" in text[each.start : each.end]:
        return "cent"
    match = _UNIT_WORD.match(text[each.end : each.end + 20])
    if match is not None:
        return match[1].lower().removesuffix("s")
    return "dollar" if "$" in text[each.start : each.end] else ""


def _same_quantity(text: str, kept: Sequence[_Mention]) -> bool:
    """Return True if two numbers are one quantity in two units: "2 hours or 120 minutes", "50% or 0.5"."""
    first, second = (each.number for each in kept)
    if first.value * first.scale == second.value * second.scale:
        return True
    bases = [_IN_BASE.get(_unit(text, each)) for each in kept]
    if bases[0] is None or bases[1] is None or bases[0][0] != bases[1][0]:
        return False
    return first.value * bases[0][1] == second.value * bases[1][1]


def _compound(text: str, mentions: Sequence[_Mention]) -> Number | None:
    """Return a quantity in two units (2 hours 30 minutes) in the larger unit, with the smaller one as its scale."""
    for first, second in pairwise(mentions):
        between = text[first.end : second.start]
        match = re.fullmatch(r"\s?-?([A-Za-z]+?)s?,?\s?(?:and\s)?", between)
        if match is None:
            continue
        larger, smaller = _IN_BASE.get(match[1].lower(), (-1, 1)), _IN_BASE.get(_unit(text, second), (-2, 1))
        if larger[0] != smaller[0] or larger[1] <= smaller[1]:
            continue
        factor = Fraction(larger[1], smaller[1])
        if all(each in (first, second) or not _is_main(text, each) for each in mentions):
            return Number(first.number.value + second.number.value / factor, 0, factor)
    return None


_FINAL, _STATEMENT, _CONCLUSION, _PLAINLY, _EXPLANATION = 3, 2, 1, 0, -1
_CLAIM = re.compile(
    rf"(?P<final>final\s)?{ANSWER_NOUN}{BOLD}?(?P<qualifier>\s(?:to|for|of|in|is therefore|would therefore be)"
    rf"\s[^:=.]{{0,80}}?|\s\([^()]{{0,40}}\))??{BOLD}?"
    rf"(?:\s?[:=是为]|\s?(?:,\s)?(?:therefore|thus|then|so|hence|in \w+)?,?\s?\b(?:is|are|was|would be|should be"
    rf"|must be|will be|comes (?:out )?to|equals|ist|es|est|è|é)\b)(?P<rest>.*)$",
    re.IGNORECASE,
)
_HASHES = re.compile(rf"^{BOLD}?####\s?{BOLD}?(?P<rest>.*)$")
_HASH_VALUE = re.compile(rf"^[-+(\"'{BOLD}{BOX}]*\s?(?:=\s?)?[$€£¥]?\s?-?[.\d]|^\S{{1,20}}$")
_LABELLED = re.compile(
    rf"^[\s{BOLD}-]*(?:[A-Z][\w' ]{{0,40}}\s)?(?:total|grand total|conclusion|sum|remaining|profit)"
    rf"(?:\s[\w' ]{{0,30}})?{BOLD}?\s?[:=]",
    re.IGNORECASE,
)
_CONFIRMS = re.compile(r"\bthat(?:'s| is| was) (?:right|correct)|\blet me (?:double-?check|verify)\b", re.IGNORECASE)
_CHECKS = re.compile(
    rf"^[\s{BOLD}(]*(?:check|checking|verification|verify|to verify|to check|let's (?:check|verify)|double-?check"
    rf"|let me (?:verify|check|double-?check)|proof|note|p\.?s\.?|explanation|reasoning|because|this is because"
    rf"|here's (?:how|why|the)|since|recall|remember|let me know|if you|feel free|i hope|hope this|would you"
    rf"|confidence|i am \d)\b",
    re.IGNORECASE,
)
_EXPLAINS = re.compile(
    r"^(?:that|this|it)(?:'s| is| was| means| includes| comes from| can| represents)\b|^(?:which|because"
    r"|since|as|where|note)\b|^[(]",
    re.IGNORECASE,
)
_PREMISE = re.compile(
    r"^(?:if|suppose|assume|assuming|given|let|we know|we need|to find|first|next|then|step|originally"
    r"|initially|start|at first|let's|now)\b",
    re.IGNORECASE,
)
_EXPLANATION_CUT = re.compile(
    r"\s?(?:,|;|\s-)?\s(?:because|since|according to|though|although|even though|as (?:there|he|she|it|they|we|each"
    r"|the|[$\d(])|given that|where|assuming|after (?:sub|add|mult|div)\w+ing)\b.*$|;.*$",
    re.IGNORECASE,
)
_IT_IS = re.compile(
    r"^(?:(?:it|that)(?:'s| is| should be| would be)|(?:i|we) (?:get|got))\s[-$€£]?\d[\d.,]*(?:\s[a-z]+){0,2}[.!]?$",
    re.IGNORECASE,
)
_PART_OF = re.compile(
    r"^\s(?:to|for|of|in)\s(?:the\s)?(?:first|second|part|step|sub|previous|\(?[a-d]\))",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Claim:
    rank: int
    value: _Value
    retracts: bool = False
    end: int = 0  # position in the text after its last number
    explains: bool = False
    uses: frozenset[Fraction] = frozenset()  # all numbers of the sentence, if it computes something


def read_number(text: str, *, cut: bool = False) -> Number | None:
    """Return the number that the text claims; None if it claims none, or several, or takes back the only one.

    Args:
        text: The model's answer.
        cut: The text ended at its token limit.
    """
    answer, cut = own_answer(text, cut=cut)
    pieces = answer_pieces(answer)
    claims = _resolve_headings(pieces, cut=cut)
    if not any(claim.value is not None for claim in claims):
        return None
    if not cut and all(claim.rank < _CONCLUSION for claim in claims):
        if _lists_parts(pieces):
            return None
        opening = claims[0].value
        if _BARE.fullmatch(pieces[0]) and isinstance(opening, Number) and "=" not in answer:
            return opening if not any(claim.retracts for claim in claims) else None
    return _decide(claims, cut=cut)


# A number alone, with at most three words of a unit.
_BARE = re.compile(rf"[\s{BOLD}]*[-$€£]?\s?\d[\d.,/]*%?(?:\s[A-Za-z]+){{0,3}}[\s.!{BOLD}]*")
_PART = re.compile(
    rf"^[\s{BOLD}]*(?:\(?[a-h][).]\s|\d[).]\s+(?=[$\d][^=]*$)|(?!she|he|it|this|that|there|each)(?-i:[A-Z])[a-z]+\s[a-z]+s\s(?=[$\d])|(?:[-*•]\s*)?{BOLD}?(?!(?:step|day|week|month|year)\b)"
    rf"[A-Z][\w' ]{{0,30}}{BOLD}?:{BOLD}?\s)",
    re.IGNORECASE,
)


def _lists_parts(pieces: Sequence[str]) -> bool:
    """Return True if the text ends with a list whose entries have different numbers: "a) 12", "b) 18"."""
    parts = []
    for piece in reversed(pieces):
        match = _PART.match(piece)
        if match is None:
            break
        parts.append(_value(piece[match.end() :]))
    values = {part.value for part in parts if isinstance(part, Number)}
    return len(values) > 1


def _resolve_headings(pieces: Sequence[str], *, cut: bool) -> list[_Claim]:
    """Return each piece as a claim; a heading "Answer:" makes the next piece a statement."""
    claims: list[_Claim] = []
    heading: re.Match[str] | None = None
    checking = False
    for at, piece in enumerate(pieces):
        if (match := ANSWER_HEADING.match(piece)) is not None:
            heading = match
            continue
        claim = _claim(piece)
        if heading is not None and claim.value is not None:
            claim.rank = max(claim.rank, _FINAL if heading["final"] else _STATEMENT)
            heading = None
        if claim.rank < _CONCLUSION and _CHECKS.match(piece) and not _SUBORDINATE.match(piece):
            checking = True
        checking = checking and claim.rank < _STATEMENT and not claim.retracts
        if checking and claims:
            claim.rank = _EXPLANATION
        if cut and at == len(pieces) - 1 and claim.value is not None and re.search(r"[\d,.]$", piece):
            claim.value = None  # its last number may be cut off
        if "=" in piece or _SO.search(piece):
            claim.uses = frozenset(each.number.value for each in _numbers_of(piece))
        claims.append(claim)
    return claims


def _claim(piece: str) -> _Claim:
    retracts = RETRACTS.search(piece) is not None and _CONFIRMS.search(piece) is None
    piece = re.sub(r"^[#>\s]*(?=[^#\s])", "", piece) if not _is_hash_value(piece) else piece
    if (hashes := _HASHES.match(piece)) is not None:
        return _Claim(_FINAL, _value(hashes["rest"]), retracts)
    boxes = re.findall(f"{BOX}([^{BOX_END}]*)(?:{BOX_END}|$)", piece)
    if boxes:
        values = [_value(box) for box in boxes]
        distinct = {value.value for value in values if isinstance(value, Number)}
        if len(distinct) == 1 and not any(isinstance(value, _Unclear) for value in values):
            return _Claim(_FINAL, next(value for value in values if isinstance(value, Number)), retracts)
        return _Claim(_FINAL, _UNCLEAR if any(value is not None for value in values) else None, retracts)
    body = re.sub(LIST_MARK, "", piece, count=1)
    if body.rstrip(f"\"') {BOLD}").endswith("?") and "." not in body and "!" not in body:
        return _Claim(_EXPLANATION, None, retracts)
    if (claimed := _last_claim(body)) is not None:
        if re.match(r"(?:if|unless|assuming)\b", body, re.IGNORECASE):
            return _Claim(_STATEMENT, _UNCLEAR, retracts)
        rank = _FINAL if claimed.groupdict().get("final") else _STATEMENT
        if FIRST_TRY.search(body) or _PART_OF.match(claimed.groupdict().get("qualifier") or ""):
            rank = _EXPLANATION
        value = _value_of_claim(claimed["rest"])
        if value is not None or claimed.re is not _CLAIM:
            return _Claim(rank, value, retracts)
    shortened = _EXPLANATION_CUT.sub("", body)
    value = _value(body)
    if isinstance(value, _Unclear) and _numbers_of(shortened):
        value = _value(shortened)
    if retracts:
        bare = re.sub(
            r"^(?:no|it|it's|that|should|be|is|the|make|,|\s|:)+", "", RETRACTS.sub("", body), flags=re.IGNORECASE
        )
        if (value is not None and _BARE.fullmatch(_number_words_as_digits(bare).replace(WORD_MARK, ""))) or re.search(
            r"\bit(?:'s| is| should be| would be)\s[$]?\d", body
        ):
            return _Claim(_STATEMENT, value, retracts)
    if re.match(r"(?:if not|otherwise)\b", body, re.IGNORECASE) and value is not None:
        return _Claim(_PLAINLY, _UNCLEAR, retracts)
    if CONCLUDES.match(body) or _LABELLED.match(body):
        return _Claim(_CONCLUSION, value, retracts)
    if _IT_IS.match(body):
        return _Claim(_CONCLUSION, value, retracts)
    if _PREMISE.match(body):
        return _Claim(_PLAINLY, value, retracts)
    return _Claim(
        _PLAINLY, value, retracts, explains=_EXPLAINS.match(body) is not None and _SUBORDINATE.match(body) is None
    )


def _is_hash_value(piece: str) -> bool:
    match = _HASHES.match(piece)
    return match is not None and _HASH_VALUE.match(match["rest"].strip()) is not None


def _last_claim(body: str) -> re.Match[str] | None:
    for pattern in (IS_ANSWER, ANSWER_LINE):
        if (match := pattern.search(body)) is not None:
            return match
    last = None
    match = _CLAIM.search(body)
    while match is not None:
        last = match
        match = _CLAIM.search(body, match.start("rest"))
    return last


def _value_of_claim(rest: str) -> _Value:
    if re.search(r"\b(?:if|unless|depending|assuming)\b", rest) and _numbers_of(rest):
        return _UNCLEAR
    first = re.match(r"(.+?),\s(?:which|i\.e\.|meaning|that is)\b", rest)
    if first is not None and isinstance(value := _value(first[1]), Number):
        return value
    shortened = _EXPLANATION_CUT.sub("", rest)
    value = _value(shortened) if shortened.strip() else None
    return value if value is not None else _value(rest)


def _decide(claims: Sequence[_Claim], *, cut: bool) -> Number | None:
    retraction = max((at for at, claim in enumerate(claims) if claim.retracts), default=-1)
    after = [claim for claim in claims[retraction:] if claim.value is not None] if retraction >= 0 else []
    if any(claim.rank >= _CONCLUSION for claim in after):
        claims = claims[retraction:]
    elif after and retraction > 0:
        earlier = _decide(claims[:retraction], cut=False)
        later = after[-1].value if after[-1].rank >= _PLAINLY else None
        if cut:
            return None
        if earlier is None or (isinstance(later, Number) and later.value == earlier.value):
            return later if isinstance(later, Number) else None
        return None
    elif retraction > 0 and not after:
        return None if not _only_polite(claims[retraction]) else _decide(claims[:retraction], cut=cut)
    statements = [claim for claim in claims if claim.rank >= _STATEMENT and claim.value is not None]
    if statements:
        last = max(at for at, claim in enumerate(claims) if claim.rank >= _STATEMENT and claim.value is not None)
        statements += [claim for claim in claims[last:] if claim.rank == _CONCLUSION and claim.value is not None]
        return _agreed(statements)
    if cut:
        return None
    conclusions = [at for at, claim in enumerate(claims) if claim.rank == _CONCLUSION and claim.value is not None]
    if conclusions:
        conclusion = claims[conclusions[-1]]
        for claim in claims[conclusions[-1] + 1 :]:
            if claim.value is None or claim.rank != _PLAINLY or claim.explains:
                continue
            if isinstance(conclusion.value, Number) and conclusion.value.value in claim.uses:
                conclusion = claim  # continues with the conclusion's number
            elif _agreed([conclusion, claim]) is None:
                return None
        return _agreed([conclusion])
    plain = [claim for claim in claims if claim.rank == _PLAINLY and claim.value is not None]
    sure = [claim for claim in plain if not claim.explains] or plain
    return _agreed(sure[-1:]) if sure else None


def _only_polite(claim: _Claim) -> bool:
    return claim.value is None and not claim.retracts


def _agreed(claims: Sequence[_Claim]) -> Number | None:
    values = [claim.value for claim in claims]
    if any(isinstance(value, _Unclear) for value in values):
        return None
    numbers = [value for value in values if isinstance(value, Number)]
    last = numbers[-1]
    return last if all(number.matches(last) or last.matches(number) for number in numbers) else None
