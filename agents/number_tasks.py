"""Questions for a number, and quantities in the units that their answers may have.

A question names its own numbers, the unit of the answer ("how many minutes"), and whom or what it is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

from .answer_kinds import unit_stem
from .answer_text import BOLD, plain_answer
from .written_numbers import Mention, Number, number_words_as_digits, numbers_in, rounded_to

_MAX_QUESTION = 2_000


@dataclass(frozen=True, slots=True)
class NumberTask:
    """Numbers that a question gives, and stems of the units that it asks for ("how many children", "in dollars")."""

    givens: frozenset[Fraction] = frozenset()
    units: frozenset[str] = frozenset()
    last_words: frozenset[str] = frozenset()  # stems of the words of its last sentence
    predicate: frozenset[str] = frozenset()  # the very last of them, and words for the same
    subjects: frozenset[str] = frozenset()  # names in the last sentence
    compares: bool = False  # it asks for a difference: "how many more"
    is_chance: bool = False  # it asks for a probability, which may be "1 in 6"
    asks_remainder: bool = False
    others: frozenset[str] = frozenset()  # names in the sentences before the last one only
    given_units: frozenset[str] = frozenset()
    asks_each: bool = False  # "How much is each payment?"
    is_of_one: bool = False  # it asks about one person of several, and not what they have together
    negated: bool = False  # "How many do not take the bus?"
    periods: frozenset[str] = frozenset()  # "month" of "each month" in the last sentence
    quantities: frozenset[tuple[Fraction, str]] = frozenset()  # "13 years" in the last sentence
    stems: frozenset[str] = frozenset()  # of all its words
    asks_several: bool = False  # "How many cats and dogs?"

    @classmethod
    def from_question(cls, question: str) -> NumberTask:
        """Return the numbers and the unit of the question; of a long one, its end counts."""
        plain = _one_word_speeds(plain_answer(question[-_MAX_QUESTION:]))
        units: set[str] = set()
        for match in _UNIT_ASKED.finditer(plain):
            words = [word.lower() for word in re.findall(r"[A-Za-z]+", _AFTER_UNIT.split(match[1], maxsplit=1)[0])]
            units |= {unit_name(word) for word in words if word not in _NO_UNIT}
        last = re.split(r"[.!]\s", plain.strip())[-1]
        if _MONEY_ASKED.search(plain) or (
            not units and re.search(r"[$€£]|\bdollars?\b", plain) and _AMOUNT_ASKED.search(last)
        ):
            units.add("dollar")
        if not units:
            units |= {
                unit for words, kind in _KINDS_ASKED.items() if re.search(words, last, re.IGNORECASE) for unit in kind
            }
        if (named := _IN_UNIT.search(last)) is not None:
            units = {"percent" if named[1] == "percentage" else unit_name(named[1].lower())}
        if re.search(r"\bpercent", plain[-160:], re.IGNORECASE):
            units.add("percent")
        words = re.findall(r"[A-Za-z]{3,}", last)
        predicate = {unit_stem(word.lower()) for word in words[-1:]} - units - _NO_PREDICATE
        predicate |= _REMAINS if _REMAINS & set(words) else set()
        return cls(
            frozenset(each.number.value for each in numbers_in(number_words_as_digits(plain))),
            frozenset(units),
            frozenset(unit_stem(word.lower()) for word in words),
            frozenset(predicate),
            frozenset(word for word in words[1:] if word[0].isupper()),
            re.search(r"\bhow (?:many|much) (?:\w+ )?(?:more|fewer|less|longer|further)\b", last, re.IGNORECASE)
            is not None,
            re.search(r"\b(?:probability|chance|chances|odds|likelihood|fraction)\b", last, re.IGNORECASE) is not None,
            re.search(r"\bremainder\b|\bleft ?over\b", last) is not None,
            frozenset(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", plain)) - set(words),
            frozenset(unit for each in numbers_in(plain) for unit in units_of(plain, each)),
            re.search(r"\b(?:each|per|every|apiece)\b", last) is not None,
            re.search(r"\b[Hh]ow (?:many|much|old)\b[^?]*?\b(?:does|did|will|is|has) [A-Z][a-z]+ [a-z]", last)
            is not None
            and re.search(r"\b(?:they|together|total|all|their)\b", last) is None,
            re.search(r"\bnot\b|n't\b", last) is not None,
            frozenset(match[1].lower() for match in _EACH_PERIOD.finditer(last))
            | frozenset(period for word, period in _PERIODS.items() if word in last),
            frozenset((each.number.value, unit) for each in numbers_in(last) for unit in units_of(last, each)),
            frozenset(unit_stem(word.lower()) for word in re.findall(r"[A-Za-z]+", plain)),
            re.search(r"\bhow many (?:[a-z]+ ){1,2}and (?:how many )?[a-z]+", last, re.IGNORECASE) is not None,
        )

    def names_predicate(self, clause: str) -> bool:
        return any(unit_stem(word.lower()) in self.predicate for word in re.findall(r"[A-Za-z]{3,}", clause))

    def names_label(self, label: str) -> bool:
        """Return True if a line's label is what the last sentence asks for, or for whom: "Money left", "Lena"."""
        return self.asks_for(label) or label.strip() in self.subjects or label.strip().lower() in self.units

    def is_of_other(self, sentence: str) -> bool:
        """Return True if the sentence names another person of the question, and not the one it asks about."""
        names = set(re.findall(r"\b[A-Z][a-z]+", sentence))
        if re.search(r"\b(?:they|together)\b", sentence) and self.is_of_one and not names & self.others:
            return True
        if re.match(r"\W*the other (?!\d)", sentence, re.IGNORECASE) and not self.last_words & {"other", "rest"}:
            return True
        return bool(self.subjects and names & self.others) and not names & self.subjects

    def asks_for(self, label: str) -> bool:
        """Return True if the last sentence of the question has all words of the label of a number."""
        words = [unit_stem(word) for word in re.findall(r"[a-z]{3,}", label.lower())]
        return bool(words) and self.last_words.issuperset(words)

    def names_unit(self, text: str, each: Mention) -> bool:
        """Return True if the number has a unit that the question asks for: "$4", "4 dollars", "3 young children"."""
        return self.unit_words(text, each) > 0

    def unit_words(self, text: str, each: Mention) -> int:
        """Return how many words of the unit that the question asks for the number has."""
        return len(units_of(text, each) & self.units)

    def names_other_unit(self, text: str, each: Mention) -> bool:
        """Return True if the number has a unit, and the question asks for another."""
        units = units_of(text, each) - _NO_OTHER
        related = units & self.units or (
            units & self.last_words and not units & self.given_units and not self.is_given(each)
        )
        return bool(self.units and units) and not related

    def are_parts(self, text: str, numbers: Sequence[Mention]) -> bool:
        """Return True if numbers have different units of several that the question asks for: "5 cats and 8 dogs"."""
        units = [units_of(text, each) & self.units for each in numbers]
        return self.asks_several and all(units) and len({frozenset(each) for each in units}) == len(units) > 1

    def is_asked_with(self, text: str, each: Mention) -> bool:
        """Return True if a number has the value and a unit of one in the last sentence of the question."""
        return any((each.number.value, unit) in self.quantities for unit in units_of(text, each) - self.units)

    def without_conditions(self, sentence: str) -> str:
        """Return a sentence without the clauses with "if" that the question has too."""

        def kept(clause: re.Match[str]) -> str:
            return "" if self._has_clause(clause["rest"] or clause["end"]) else clause[0]

        return _CONDITION.sub(kept, sentence)

    def _has_clause(self, clause: str) -> bool:
        numbers = numbers_in(number_words_as_digits(clause))
        words = {unit_stem(word.lower()) for word in re.findall(r"[A-Za-z]+", clause)}
        return bool(words) and words <= self.stems and all(map(self.is_given, numbers))

    def is_given_value(self, number: Number) -> bool:
        return number.value in self.givens

    def is_given(self, each: Mention) -> bool:
        return each.number.value in self.givens


_CONDITION = re.compile(
    r"^(?:if|when|assuming)\s(?P<rest>[^,]{1,200}),\s|,?\s(?:if|when|assuming)\s(?P<end>.{1,200}?)(?=[.,!]?\s*$)",
    re.IGNORECASE,
)


def _one_word_speeds(text: str) -> str:
    return _SPEEDS.sub(lambda match: f"{match[1].lower()}ph", text)


def unit_name(word: str) -> str:
    """Return a word for a unit without its plural, and in full: "minute" for "min"."""
    return _FULL_UNITS.get(word, unit_stem(word.lower()))


def units_of(text: str, each: Mention) -> set[str]:
    """Return the words for the unit of a number: "dollar" of "$4", "child" and "young" of "3 young children"."""
    written = text[each.start : each.end]
    units = {"dollar"} if re.search("[$€£¥]", written) else set[str]()
    units |= {"percent"} if re.search("%|per ?cent", written) else set()
    units |= {"cent"} if re.search(r"(?<!per )(?<!per)cents?\b|¢", written) else set()
    after = re.match(rf"[{BOLD}\s-]{{0,3}}((?:[A-Za-z'°/-]{{1,25}}\s){{0,3}}[A-Za-z'°/-]{{1,25}})", text[each.end :])
    if after is None:
        return units
    words = re.sub(
        r"^(?:of (?:them|these|those|which|whom) )?(?:are|were|is|was) (?!\w+ed\b)", "", _one_word_speeds(after[1])
    )
    for word in re.findall(r"[A-Za-z]+", words)[:3]:
        if word.lower() in _ENDS_UNIT:
            break
        units.add(unit_name(word))
    return units


# Speeds have a unit of their own: 60 miles an hour are not 60 miles.
_SPEEDS = re.compile(r"\b([km])(?:iles?|i|ilomet\w+|m)?\s?(?:per|an|a|/|p)\s?(?:hour|hr|h)\b", re.IGNORECASE)
_FULL_UNITS = {
    **dict.fromkeys(["min", "mins"], "minute"),
    **dict.fromkeys(["h", "hr", "hrs"], "hour"),
    **dict.fromkeys(["s", "sec", "secs"], "second"),
    **dict.fromkeys(["m", "metre", "metres"], "meter"),
    **dict.fromkeys(["cm", "centimetre", "centimetres"], "centimeter"),
    **dict.fromkeys(["mm", "millimetre", "millimetres"], "millimeter"),
    **dict.fromkeys(["km", "kms", "kilometre", "kilometres"], "kilometer"),
    **dict.fromkeys(["kg", "kgs"], "kilogram"),
    **dict.fromkeys(["g"], "gram"),
    **dict.fromkeys(["l", "L", "litre", "litres"], "liter"),
    **dict.fromkeys(["ml", "mL", "millilitre", "millilitres"], "milliliter"),
    **dict.fromkeys(["lb", "lbs"], "pound"),
    **dict.fromkeys(["ft"], "foot"),
    **dict.fromkeys(["mi"], "mile"),
    **dict.fromkeys(["USD", "euro", "euros"], "dollar"),
}
# What follows a number without being its unit.
_NO_OTHER = frozenset(
    [
        *[
            "left",
            "remain",
            "remaining",
            "more",
            "fewer",
            "less",
            "total",
            "altogether",
            "together",
            "each",
            "only",
            "now",
        ],
        *["too", "also", "again", "instead", "exactly", "so", "thus", "therefore", "because", "since", "times", "time"],
        *["a", "an", "the", "this", "these", "those", "it", "he", "she", "they", "we", "you", "unit", "combined"],
        *["over", "rounded", "correct", "right", "here", "all", "as", "not", "overall", "units", "through", "until"],
    ]
)
_IN_UNIT = re.compile(
    r"\b(?:in|as an?) ([km]ph|percentage|minutes|hours|seconds|days|weeks|months|dollars|euros|cents|met(?:er|re)s"
    r"|centimet(?:er|re)s|kilomet(?:er|re)s|inches|feet|miles|lit(?:er|re)s|grams|kilograms|pounds|ounces|years|degrees)\b",
    re.IGNORECASE,
)
_AMOUNT_ASKED = re.compile(
    r"\bwhat (?:is|was|are|were|will)\b"
    r"|\bhow much (?:money|in total|does|did|do|will|would|should|must|can|could|has|have|had|is|was|are|were)\b",
    re.IGNORECASE,
)
_TIMES = ("second", "minute", "hour", "day", "week", "month", "year")
_LENGTHS = ("millimeter", "centimeter", "meter", "kilometer", "inch", "foot", "yard", "mile")
# Units that an answer may have, by how a question asks for it.
_KINDS_ASKED = {
    r"\bhow (?:long|much time) (?:does|do|did|will|would|has|have|had|must|should|can|could)\b": _TIMES,
    r"\bhow (?:long|wide|deep|tall|high) (?:is|are|was|were)\b|\bhow far\b": _LENGTHS,
    r"\bhow old\b": ("year",),
    r"\bhow fast\b|\bspeed\b": ("mph", "kph"),
}
_PERIODS = {"daily": "day", "weekly": "week", "monthly": "month", "annual": "year", "yearly": "year", "hourly": "hour"}
_EACH_PERIOD = re.compile(r"\b(?:a|an|per|each|every)\s(day|week|month|year|hour|minute)\b", re.IGNORECASE)
_REMAINS = frozenset(["left", "remain", "remaining"])
_NO_PREDICATE = frozenset(["total", "altogether", "all", "together", "now", "dollar", "cent", "hour", "day", "week"])
_UNIT_ASKED = re.compile(r"\b(?:how many|number of)\s((?:[\w'-]{1,25}\s?){1,5})", re.IGNORECASE)
_AFTER_UNIT = re.compile(
    r"\b(?:do|does|did|is|are|was|were|will|would|can|could|must|should|has|have|had|in|of|on|at|for|per|from|to|that"
    r"|it|he|she|they|there|remain\w*|left|before|after|each|the|a|an|his|her)\b",
    re.IGNORECASE,
)
_NO_UNIT = frozenset(
    [
        *["more", "total", "full", "whole", "fewer", "less", "additional", "extra", "other", "different", "new"],
        *["times", "and", "or", "how", "many", "number"],
    ]
)
_ENDS_UNIT = frozenset(
    [
        *["and", "or", "but", "in", "on", "at", "for", "to", "of", "from", "is", "are", "was", "were", "per", "with"],
        *["by", "after", "before", "than", "that", "which", "while", "if", "plus", "take", "takes", "need", "needs"],
        *["cost", "costs", "can", "will", "would"],
    ]
)
_MONEY_ASKED = re.compile(
    r"\bhow much (?:money|profit|change|did|does|do|will|would|is|more|was|should|must|can)\b"
    r"|\b(?:in|many) (?:dollars|euros)\b|\b(?:price|cost|revenue|profit"
    r"|income|earnings|salary|wages?|bill|fee|savings)\b[^.?]{0,40}\?",
    re.IGNORECASE,
)


# The kind of each unit, and how many of the kind's smallest unit it has.
_IN_BASE = {
    unit: (kind, int(size))
    for kind, units in enumerate(
        (
            "week 604800 day 86400 hour 3600 minute 60 second 1",
            "dollar 100 cent 1",
            "yard 36 foot 12 inch 1",
            "year 12 month 1",
            "pound 16 ounce 1",
            "kilogram 1000 gram 1",
            "kilometer 1000000 meter 1000 centimeter 10 millimeter 1",
            "liter 1000 milliliter 1",
        )
    )
    for unit, size in zip(units.split()[::2], units.split()[1::2], strict=True)
}


def _base(text: str, each: Mention) -> tuple[int, int] | None:
    return next((_IN_BASE[unit] for unit in sorted(units_of(text, each)) if unit in _IN_BASE), None)


def same_quantity(text: str, pair: Sequence[Mention]) -> bool:
    """Return True if two numbers are one quantity, perhaps rounded: "2 hours or 120 minutes", "1/6 or 17%"."""
    first, second = (each.number for each in pair)
    values = first.value * first.scale, second.value * second.scale
    if values[0] == values[1]:
        return True
    decimals = second.decimals + (2 if second.scale == Fraction(1, 100) else 0)
    if decimals >= 2 and rounded_to(values[0], decimals) == values[1]:
        return True
    bases = [_base(text, each) for each in pair]
    if bases[0] is None or bases[1] is None or bases[0][0] != bases[1][0]:
        return False
    # The scales of cents and of quantities in two units are in their values already.
    smallest = first.value * bases[0][1], second.value * bases[1][1]
    converted = smallest[0] / bases[1][1]
    return smallest[0] == smallest[1] or (
        second.decimals > 0 and rounded_to(converted, second.decimals) == second.value
    )


def factor_of(text: str, first: Mention, second: Mention) -> Fraction | None:
    """Return the ratio of the units in "2 hours 30 minutes", or None if it is no such quantity."""
    between = re.fullmatch(r"\s?-?([A-Za-z]+),?\s?(?:and\s)?", text[first.end : second.start])
    if between is None:
        return None
    larger, smaller = _IN_BASE.get(unit_name(between[1])), _base(text, second)
    if larger is None or smaller is None or larger[0] != smaller[0] or larger[1] <= smaller[1]:
        return None
    return Fraction(larger[1], smaller[1])


def quantities(text: str, task: NumberTask) -> Iterator[Mention]:
    """Yield the numbers of a text in digits; a quantity in two units is one number, in the unit asked for."""
    mentions = list(numbers_in(text))
    skipped = False
    for first, second in zip_longest(mentions, mentions[1:]):
        if skipped:
            skipped = False
        elif second is not None and (factor := factor_of(text, first, second)) is not None:
            skipped = True
            value = first.number.value + second.number.value / factor
            if task.names_unit(text, second):
                yield Mention(Number(value * factor, 0, 1 / factor), second.start, second.end, first.word)
            else:
                yield Mention(Number(value, 0, factor), first.start, first.end, first.word)
        else:
            yield first
