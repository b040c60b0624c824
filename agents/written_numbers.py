"""Numbers as people and models write them: digits with separators, fractions, powers, units, and words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from .answer_text import WORD_MARK, plain_answer


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
            return rounded_to(value, reference.decimals) == reference.value
        return self.decimals >= 2 and rounded_to(reference.value, self.decimals) == value

    def __str__(self) -> str:
        if self.value.denominator == 1:
            return str(self.value.numerator)
        decimal = f"{float(self.value):.{max(self.decimals, 1)}f}"
        return decimal if Fraction(decimal) == self.value else str(self.value)


def rounded_to(value: Fraction, decimals: int) -> Fraction:
    """Return the value rounded to decimals, halves away from zero."""
    scaled = abs(value) * 10**decimals + Fraction(1, 2)
    return Fraction(scaled.numerator // scaled.denominator, 10**decimals) * (1 if value >= 0 else -1)


def final_reference(reference: str) -> str:
    """Return the part of a reference after its last `####`, as in GSM8K; else all of it."""
    return reference.rpartition("####")[2].strip()


def reference_number(reference: str) -> Number | None:
    """Return a reference as a number, or None if it is more than a number with the sign of a unit."""
    text = number_words_as_digits(plain_answer(final_reference(reference))).replace(WORD_MARK, "").strip(" .")
    mentions = list(numbers_in(text))
    if len(mentions) != 1 or re.sub(r"[\s$€£¥]", "", text[: mentions[0].start] + text[mentions[0].end :]):
        return None
    return mentions[0].number


@dataclass(slots=True)
class Mention:
    """A number at its position in a text in which `number_words_as_digits` has replaced words."""

    number: Number
    start: int
    end: int
    word: bool = False  # written as a word


_SMALL = [
    *["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
    *["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"],
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_UNITS = {word: number for number, word in enumerate(_SMALL)} | {word: 10 * at for at, word in enumerate(_TENS, 2)}
_POWERS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4} | {
    f"{word}{plural}": under
    for word, under in {"third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}.items()
    for plural in ("", "s")
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


_BELOW_ZERO = re.compile(
    r"\b([\w.-]+(?:\s?°\s?[CF]?| degrees?(?: Celsius| Fahrenheit)?)?) below (?:zero|freezing)\b", re.IGNORECASE
)


def number_words_as_digits(text: str) -> str:
    """Return the text with numbers in words as digits, each after a mark."""
    text = re.sub(r"\b(?:negative|minus) (?=[\d$a-z])", "-", text, flags=re.IGNORECASE)
    text = _BELOW_ZERO.sub(r"-\1", text)
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


def numbers_in(text: str) -> Iterator[Mention]:
    """Yield the numbers of a text in digits."""
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
        yield Mention(Number(value, decimals, scale), match.start(), match.end(), bool(match["word"]))


def _digits_value(digits: str) -> tuple[Fraction, int]:
    """Return the value and the number of decimals of digits with separators."""
    if re.fullmatch(r"\d+,\d{1,2}", digits):
        digits = digits.replace(",", ".")
    elif re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}", digits):
        digits = digits.replace(".", "").replace(",", ".")
    digits = re.sub(r"[,' _]", "", digits)
    return Fraction(digits), len(digits.partition(".")[2])
