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
from itertools import pairwise, zip_longest

from .answer_kinds import NumberTask, unit_name, units_of
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
    REFUSES,
    RETRACTS,
    WORD_MARK,
    answer_pieces,
    own_answer,
)
from .written_numbers import Mention, Number, number_words_as_digits, numbers_in, rounded_to


class _Unclear:
    """A sentence with several numbers of which none is the claimed one."""


_UNCLEAR = _Unclear()
_Value = Number | _Unclear | None
_EQUALS = re.compile(
    r"(?<![<>!=])=(?!=)|\b(?:equals|is equal to|equal to|is equivalent to|which (?:is|equals|makes|gives"
    r"|comes to|leaves)"
    r"|i\.e\.,?|in other words,?|gives(?: us)?|we get|you get|yields|leaves(?: us)?|results in|amounts to"
    r"|rounds? (?:up |down |off )?to(?= [$€£]?\d)(?! \d+ (?:decimal|place|digit|significant))|comes (?:out )?to"
    r"|works out to|totals|totaling|totalling|-?> )|->|→|⇒|=>",
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
    r"\b[Bb]etween\s[^.]{0,30}?\d[^.]{0,20}?\sand\s|(?<![\w.])[$€£]?\d[\d,.]*\s?(?:-|to|through)\s?[$€£]?\d[\d,.]*(?!\s?=)(?![\w/])"
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
_NOTHING = re.compile(
    r"\b(?:none|nothing|zero)\b(?! of (?:these|those|the|them))|\bno \w+(?: \w+)? (?:left|remain|remaining"
    r"|at all)\b|^\s*(?:is\s)?no (?:more )?(?!answer|idea|solution|information|clue|way|data|one)\w+[\s.]*$",
    re.IGNORECASE,
)


def _value(text: str, task: NumberTask) -> _Value:
    """Return the number that a sentence, or the rest of one after "the answer is", claims."""
    text = _CLOCK.sub(lambda match: "\ue004" * len(match[0]), text.replace(BOX, " ").replace(BOX_END, " "))
    text = _remainder_removed(_chances_as_fractions(text, task), task)
    if "(" in text and "=" in text and "=" not in (outside := _without_brackets(text)) and _numbers_of(outside):
        text = outside  # "81 loaves (96 - 14.4 = 81.6, rounded down)"
    if "\ue004" in text and not _numbers_of(text):
        return _UNCLEAR
    if not task.compares and (doubted := _DOUBTED.search(text)) is not None and _numbers_of(text[: doubted.start()]):
        text = text[: doubted.start()]
    text = _without_others(text, task)
    clauses = [text[match.end() :] for match in _SO.finditer(text) if _numbers_of(text[match.end() :])]
    for part in (*clauses[-1:], text):
        if (number := _number_in_unit(part, task)) is not None:
            return number
    text = clauses[-1] if clauses else text
    variables = re.findall(r"(?<![\w.])(?<![-+*/]\s)([a-zA-Z])\s?=\s?[-$]?\d", text)
    if len(set(variables)) > 1:
        return _UNCLEAR  # x = 15 and y = 20
    text = _subordinate_removed(text)
    if (
        (aside := re.match(r"(.+?),\s(?:which (?:is|equals|means)|i\.e\.|that is)\s(.+)", text)) is not None
        and not _computes(aside[1])
        and "=" not in text
    ):
        first = _main_number(aside[1], task)
        if isinstance(first, Number) and _is_quantity_of(text, first):
            return first
        if isinstance(first, Number) and re.search(
            r"\d\s?(?:\w+\s){0,2}?(?:each|per|every|a|an|more|less|fewer)\b|\bthe (?:same|total)\b", aside[2]
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
    return _main_number(text, task)


# What a sentence adds about its number: "101, which may not be possible if the maximum is 100".
_DOUBTED = re.compile(
    r",\s(?:which\s(?:may|might|could|would|should|is not|isn't|cannot|seems)"
    r"|(?:including|excluding|not counting|compared (?:to|with)|up from|down from)\b"
    r"|[$€£]?\d[\d.,]*%?(?:\s[a-z]+){0,2}\s(?:more|less|fewer) than\b)"
)
_LAST_COPULA = re.compile(r"(.*?)\s(?:is|are|was|makes)\s([$€£]?-?\d[\d.,/]*%?(?:\s[a-z]+){0,3}\W*)$", re.IGNORECASE)
_HAS_VERB = re.compile(r"\b(?:gets?|there|is|are|was|were|has|have|had|and (?:she|he|it|they)|=)\b|=")


def _without_others(text: str, task: NumberTask) -> str:
    """Return a sentence without its clauses about another person than the question asks about, if a number is left."""
    parts = _CLAUSES.split(text)
    kept = [part for part in parts if not (_numbers_of(part) and task.is_of_other(part))]
    return ", ".join(kept) if len(kept) < len(parts) and any(map(_numbers_of, kept)) else text


_CLAUSES = re.compile(r",?\s(?:and|while|whereas|but|when)\s|;\s|,\s(?=the other)")


def _chances_as_fractions(text: str, task: NumberTask) -> str:
    """Return the text with "1 in 6" and "1 out of 6" as 1/6 if the question asks for a probability."""
    return re.sub(r"(?<![\d.,/])(\d+) (?:in|out of) (\d+)(?![\d/]|[.,]\d)", r"\1/\2", text) if task.is_chance else text


def _remainder_removed(text: str, task: NumberTask) -> str:
    """Return the text without the remainder in "90 / 7 = 12 remainder 6", unless the question asks for it."""
    return text if task.asks_remainder else _REMAINDER.sub(r"\1", text)


_REMAINDER = re.compile(r"(\d),?\s?(?:with (?:a )?)?(?:remainder|rem\.?|[Rr](?=\s?\d))\s?(?:of )?\d+\b")


def _number_in_unit(text: str, task: NumberTask) -> Number | None:
    """Return the one quantity in the unit that the question asks for, if no number beside it may be the answer.

    "After 7 full days, Dan will have 4 eggs left", to "After how many full days will he have 4 eggs left?", says 7.
    """
    if not task.units and not task.compares:
        return None
    text = number_words_as_digits(text)
    sides = _sides(_without_brackets(text))
    if len(sides) > 1:
        return _side_in_unit(sides, task)
    asides = _QUANTITY_ASIDE.findall(text)
    text = _without_brackets(text)
    if _computes(text) or _RANGE.search(text):
        return None
    mentions = [each for each in _quantities(text, task) if not _is_label(text, each) and not _is_denied(text, each)]
    if task.compares and (more := [each for each in mentions if _MORE_AFTER.match(text[each.end :])]):
        return more[0].number if len({each.number.value for each in more}) == 1 else None
    mentions = [each for each in mentions if not _MORE_AFTER.match(text[each.end :])]
    new = [each for each in mentions if not task.is_given(each)]
    most = max((task.unit_words(text, each) for each in new), default=0)
    named = [each for each in new if most and task.unit_words(text, each) == most]
    named = _prefer(named, lambda each: _is_main(text, each))
    named = _prefer(named, lambda each: _OUT_OF.search(text[max(0, each.start - 40) : each.start]) is None)
    if not named and len(asides) == 1 and new and all(task.names_other_unit(text, each) for each in new):
        return _number_in_unit(asides[0], task)
    rest = [each for each in new if not task.names_unit(text, each) and not task.names_other_unit(text, each)]
    rest = [each for each in rest if _is_main(text, each) and not (named and _same_quantity(text, [named[0], each]))]
    if named and not rest and all(_same_quantity(text, [named[0], each]) for each in named[1:]):
        return named[0].number
    explained = _ADDS.split(text, maxsplit=1)
    return _number_in_unit(explained[0], task) if named and len(explained) > 1 else None


def _is_quantity_of(text: str, first: Number) -> bool:
    """Return True if a text has two numbers, which are one quantity, and the first is this one."""
    text = number_words_as_digits(text)
    mentions = list(numbers_in(text))
    return len(mentions) == 2 and mentions[0].number == first and _same_quantity(text, mentions)


_QUANTITY_ASIDE = re.compile(r"\(([$€£]?\d[\d.,/]*\s?[A-Za-z%]*)\)")
# Before what explains or completes a sentence that is complete without it.
_ADDS = re.compile(r"(?<=[A-Za-z\d])(?::|;| -)\s(?!.*\b(?:or|rather)\b)|,\s(?=[$\d][^,]*\s(?:having|being)\s)")


def _side_in_unit(sides: Sequence[str], task: NumberTask) -> Number | None:
    """Return the number of "155 minutes" in "155 minutes = 2 hours and 35 minutes" if the question asks for minutes."""
    last = list(_quantities(sides[-1], task))
    if len(last) == 1 and not _computes(" ".join(sides)) and (number := _number_in_unit(sides[-1], task)) is not None:
        return number
    if not last or not all(task.names_other_unit(sides[-1], each) for each in last):
        return None
    return next((number for side in reversed(sides[:-1]) if (number := _number_in_unit(side, task))), None)


def _quantities(text: str, task: NumberTask) -> Iterator[Mention]:
    """Yield the numbers of a text in digits; a quantity in two units is one number, in the unit asked for."""
    mentions = list(numbers_in(text))
    skipped = False
    for first, second in zip_longest(mentions, mentions[1:]):
        if skipped:
            skipped = False
        elif second is not None and (factor := _factor(text, first, second)) is not None:
            skipped = True
            value = first.number.value + second.number.value / factor
            if task.names_unit(text, second):
                yield Mention(Number(value * factor, 0, 1 / factor), second.start, second.end, first.word)
            else:
                yield Mention(Number(value, 0, factor), first.start, first.end, first.word)
        else:
            yield first


def _operators(text: str) -> str:
    """Return the text with numbers as digits, and signs for "times" and "plus" between them."""
    digits = number_words_as_digits(text).replace(WORD_MARK, "")
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
    mentions = list(numbers_in(text))
    return any(
        _OPERATOR.fullmatch(text[first.end : second.start])
        or re.match(r"\s?[-+]\s(?![A-Za-z])", text[first.end : second.start + 3])
        for first, second in pairwise(mentions)
    )


def _sides(text: str) -> list[str]:
    """Return the parts of a text between signs of equality that have numbers."""
    return [side for side in _EQUALS.split(text) if side and _numbers_of(side)]


def _numbers_of(text: str) -> list[Mention]:
    return list(numbers_in(number_words_as_digits(text)))


def _without_brackets(text: str) -> str:
    return re.sub(r"\([^()]{0,200}\)", lambda match: " " * len(match[0]), text)


def _main_number(text: str, task: NumberTask) -> _Value:
    text = number_words_as_digits(text)
    mentions = list(numbers_in(text))
    if not mentions:
        return Number(Fraction(0)) if _NOTHING.search(text) else None
    if (compound := _compound(text, mentions)) is not None:
        return compound
    outside = _without_brackets(text)
    kept = _prefer(mentions, lambda each: bool(outside[each.start : each.end].strip()))
    allowed = [each for each in kept if not _is_denied(text, each) and not _is_in_unknown(text, each)]
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
        kept = _prefer(kept, lambda each: _is_main(text, each))
        kept = _prefer(kept, lambda each: task.asks_for(_label(text, each)))
        kept = _prefer(kept, lambda each: task.names_predicate(_clause_after(text, each)))
        kept = _prefer(kept, lambda each: task.names_subject(_clause_before(text, each)))
        if any(task.names_unit(text, each) for each in kept):
            kept = [each for each in kept if task.names_unit(text, each)]
        else:
            kept = _prefer(kept, lambda each: not task.is_given(each))
        kept = _prefer(kept, lambda each: _TOTAL_AFTER.match(text[each.end :]) is not None)
        kept = _prefer(kept, lambda each: _OUT_OF.search(text[max(0, each.start - 30) : each.start]) is None)
    elif task.units and "percent" not in task.units:
        kept = _prefer(kept, lambda each: each.number.scale != Fraction(1, 100))  # "20 voters, or 25%"
    values = {each.number.value for each in kept}
    if len(values) > 1 and len(kept) == 2 and _same_quantity(text, kept):
        return kept[0].number
    return kept[-1].number if len(values) == 1 else _UNCLEAR


def _label(text: str, each: Mention) -> str:
    """Return the subject of a number: "larger number" in "the larger number is 40"."""
    before = text[max(0, each.start - 60) : each.start]
    match = re.search(
        r"(?:\b(?:the|his|her|its|their)|'s)\s((?:[A-Za-z'-]{1,20}\s){1,4}?)(?:is|are|was|were)\s\W?$",
        before,
        re.IGNORECASE,
    )
    return match[1] if match is not None else ""


_CLAUSE_BREAK = re.compile(r"[,;.]\s|\s(?:and|but|while|after|because|since|so|which)\s", re.IGNORECASE)


def _clause_after(text: str, each: Mention) -> str:
    return _CLAUSE_BREAK.split(f"{text[each.end : each.end + 60]} ", maxsplit=1)[0]


def _clause_before(text: str, each: Mention) -> str:
    return _CLAUSE_BREAK.split(text[max(0, each.start - 60) : each.start])[-1]


_OUT_OF = re.compile(r"\b(?:out of(?:\s\w+){0,4}|of (?:the|these|those)(?:\s\w+)?)\s[$€£]?$", re.IGNORECASE)
_TOTAL_AFTER = re.compile(
    r"(?:\s[A-Za-z]+){0,2}\s(?:in total|altogether|in all|all together|combined)\b",
    re.IGNORECASE,
)


def _prefer(mentions: list[Mention], condition: Callable[[Mention], bool]) -> list[Mention]:
    """Return the numbers that meet the condition, or all of them if none does."""
    return [each for each in mentions if condition(each)] or mentions


_MORE_AFTER = re.compile(r"\s(?:\w+\s){0,2}?(?:more\b|fewer\b|less\b|[a-z]{2,12}er than\b)")


def _is_main(text: str, each: Mention) -> bool:
    before = text[max(0, each.start - 60) : each.start]
    if _MORE_AFTER.match(text[each.end :]) and before.rstrip().endswith(","):
        return False
    if re.match(r"[^,.]{0,20}?\sof (?:which|whom|them|these|those)\b", text[each.end :]):
        return False
    if re.fullmatch(r"\W*(?:\w+\s)?(?:the|all)\s", before, re.IGNORECASE) and each.end < len(text) - 3:
        return False  # "the 5 friends pay …"
    return _CIRCUMSTANCE.search(before) is None or _MAIN_OF.search(before) is not None


def _is_denied(text: str, each: Mention) -> bool:
    before = text[max(0, each.start - 40) : each.start]
    return _DENIED.search(before) is not None or _WRONG_AFTER.match(text[each.end : each.end + 60]) is not None


def _is_in_unknown(text: str, each: Mention) -> bool:
    """Return True if the number is part of an expression in an unknown: 3x, x + 14, 2(x + 14)."""
    if re.match(r"[xyzn]\b|\s?\(\s?[a-z]\s?[-+]", text[each.end :]):
        return True
    return re.search(r"\b[a-z]\s?[-+*/]\s?$", text[max(0, each.start - 6) : each.start]) is not None


def _is_label(text: str, each: Mention) -> bool:
    before = text[max(0, each.start - 14) : each.start]
    return (
        _LABEL_BEFORE.search(before) is not None or _DAY_BEFORE_MONTH.match(text[each.end : each.end + 20]) is not None
    )


def _are_alternatives(text: str, kept: Sequence[Mention]) -> bool:
    return any(
        re.fullmatch(r"[^.;]{0,25}?\b(?:or|and/or)\s[$€£]?", text[first.end : second.start])
        for first, second in pairwise(kept)
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


def _same_quantity(text: str, pair: Sequence[Mention]) -> bool:
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
    values = tuple(each.number.value * base[1] for each, base in zip(pair, bases, strict=True) if base is not None)
    converted = values[0] / bases[1][1]
    return values[0] == values[1] or (second.decimals > 0 and rounded_to(converted, second.decimals) == second.value)


def _factor(text: str, first: Mention, second: Mention) -> Fraction | None:
    """Return the ratio of the units in "2 hours 30 minutes", or None if it is no such quantity."""
    between = re.fullmatch(r"\s?-?([A-Za-z]+),?\s?(?:and\s)?", text[first.end : second.start])
    if between is None:
        return None
    larger, smaller = _IN_BASE.get(unit_name(between[1])), _base(text, second)
    if larger is None or smaller is None or larger[0] != smaller[0] or larger[1] <= smaller[1]:
        return None
    return Fraction(larger[1], smaller[1])


def _compound(text: str, mentions: Sequence[Mention]) -> Number | None:
    """Return a quantity in two units (2 hours 30 minutes) in the larger unit, with the smaller one as its scale."""
    for first, second in pairwise(mentions):
        factor = _factor(text, first, second)
        if factor is not None and all(each in (first, second) or not _is_main(text, each) for each in mentions):
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
_CONFIRMS = re.compile(r"\bthat(?:'s| is| was) (?:right|correct)|\blet me (?:double[- ]?check|verify)\b", re.IGNORECASE)
_CHECKS = re.compile(
    rf"^[\s{BOLD}(]*(?:(?:hmm+|now|okay|ok)[,.]?\s)?(?:check|checking|verification|verify|to verify|to check"
    rf"|let's (?:check|verify)|double[- ]?check"
    rf"|let me (?:verify|check|double[- ]?check)|plugging"
    rf"|proof|note|p\.?s\.?|explanation|reasoning|because|this is because"
    rf"|here's (?:how|why|the)|since|recall|remember|let me know|if you|feel free|i hope|hope this|would you"
    rf"|confidence|i am \d)\b",
    re.IGNORECASE,
)
_EXPLAINS = re.compile(
    r"^(?:that|this|it)(?:'s| is| was| means| includes| comes from| can| represents)\b|^(?:which|because"
    r"|since|as|where|note)\b",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"[(]|(?:with (?:that|this)|for (?:comparison|reference|context))\b", re.IGNORECASE)
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
    explains: bool = False
    numbers: frozenset[Fraction] = frozenset()  # all numbers of the sentence
    computes: bool = False
    rounds: bool = False  # says that its number is rounded
    conditional: bool = False
    relevance: int = 1  # to the question, see `_relevance`
    restates: bool = False  # says a number in the unit asked for, and nothing else
    supposes: bool = False  # says what would be so, without a condition
    refuses: bool = False  # says that the question cannot be answered
    opens: bool = False  # begins with "Answer:", and more sentences may belong to it

    def uses(self, value: Fraction) -> bool:
        """Return True if the sentence computes something with the value."""
        return self.computes and value in self.numbers


def read_number(text: str, question: str = "", *, cut: bool = False) -> Number | None:
    """Return the number that the text claims; None if it claims none, or several, or takes back the only one.

    Args:
        text: The model's answer.
        question: The question. It names the unit of the answer, and its own numbers are seldom the answer.
        cut: The text ended at its token limit.
    """
    answer, cut = own_answer(text, cut=cut)
    pieces = answer_pieces(answer)
    task = NumberTask.from_question(question)
    claims = _resolve_headings(pieces, task, cut=cut)
    if not any(claim.value is not None for claim in claims):
        return None
    if not cut and all(claim.rank < _CONCLUSION for claim in claims):
        if (
            _DEPENDS.search(answer)
            and len({claim.value.value for claim in claims if isinstance(claim.value, Number)}) > 1
        ):
            return None
        if _lists_parts(pieces, task):
            return None
        opening = claims[0].value
        if _BARE.fullmatch(pieces[0]) and isinstance(opening, Number) and "=" not in answer:
            return opening if not any(claim.retracts for claim in claims) else None
    return _decide(claims, cut=cut)


# A number alone, with at most three words of a unit.
_BARE = re.compile(rf"[\s{BOLD}]*[-$€£]?\s?\d[\d.,/]*%?(?:\s[A-Za-z]+){{0,3}}[\s.!{BOLD}]*")
_PART = re.compile(
    rf"^[\s{BOLD}]*(?:\(?[a-h][).]\s|\d[).]\s+(?=[$\d][^=]*$)|(?!she|he|it|this|that|there|each)(?-i:[A-Z])[a-z]+\s(?!(?:is|was|has)\b)[a-z]+s\s(?=[$\d])|(?:[-*•]\s*)?{BOLD}?(?!(?:step|day|week|month|year)\b)"
    rf"[A-Z][\w' ]{{0,30}}{BOLD}?:{BOLD}?\s)",
    re.IGNORECASE,
)


def _lists_parts(pieces: Sequence[str], task: NumberTask) -> bool:
    """Return True if the text ends with a list whose entries have different numbers: "a) 12", "b) 18"."""
    parts, texts = [], []
    for piece in reversed(pieces):
        match = _PART.match(piece)
        if match is None:
            break
        texts.append(piece)
        parts.append(_value(piece[match.end() :], task))
    values = {part.value for part in parts if isinstance(part, Number)}
    if len(values) < 2:
        return False
    labels = [text.partition(":")[0] for text in texts]
    if sum(map(task.names_label, labels)) == 1:
        return False
    rest = texts[0].partition(":")[2]
    used = {each.number.value for each in _numbers_of(rest)}
    earlier = {part.value for part in parts[1:] if isinstance(part, Number)}
    if re.search(r"\b[a-z]\s?=", rest):
        return False  # "Divide by 3: x = 11"
    in_bold = _BOLD_NUMBER.search(rest) is not None and not any(map(_BOLD_NUMBER.search, texts[1:]))
    named = re.match(r"\W*\w\w", labels[0]) is not None  # not "b)"
    return not ((in_bold or named) and "=" in rest and used & earlier)


_BOLD_NUMBER = re.compile(rf"{BOLD}[^{BOLD}:]{{0,20}}\d[^{BOLD}:]{{0,40}}{BOLD}")


def _resolve_headings(pieces: Sequence[str], task: NumberTask, *, cut: bool) -> list[_Claim]:
    """Return each piece as a claim; a heading "Answer:" makes the next piece a statement."""
    claims: list[_Claim] = []
    heading: re.Match[str] | None = None
    checking = False
    for at, piece in enumerate(pieces):
        if (match := ANSWER_HEADING.match(piece)) is not None:
            heading = match if match["final"] or _SOLUTION.search(piece) is None else None
            continue
        claim = _claim(piece, task)
        claim.relevance = _relevance(piece, claim.value, task)
        claim.refuses = REFUSES.search(piece) is not None
        if (
            claim.rank <= _PLAINLY
            and isinstance(claim.value, Number)
            and _repeats_question(piece, task, is_last=at == len(pieces) - 1)
        ):
            claim.value = None
        if claim.rank == _CONCLUSION and claim.relevance == _BESIDE:
            claim.rank = _PLAINLY
        claim.opens = _OPENS.match(piece) is not None and not claims
        if heading is not None and claim.value is not None:
            claim.rank = max(claim.rank, _FINAL if heading["final"] else _STATEMENT)
            claim.opens = not heading["final"]
            heading = None
        if claim.rank < _CONCLUSION and _CHECKS.match(piece) and not _SUBORDINATE.match(_PLUGGING.sub("", piece)):
            checking = any(each.value is not None for each in claims)
        checking = checking and claim.rank < _STATEMENT and not claim.retracts
        # An explanation may end in another answer than the one that it explains: then both are claims.
        ends = at == len(pieces) - 1 and claim.rank == _CONCLUSION
        corrects = claim.relevance == _IN_UNIT and _SO_IT_IS.search(piece) is not None
        if corrects and claim.rank == _PLAINLY:
            claim.rank = _CONCLUSION
            earlier = [each for each in claims if isinstance(each.value, Number) and each.rank >= _PLAINLY]
            if checking and earlier and _agreed([earlier[-1], claim]) is None:
                claim.value = _UNCLEAR
        if checking and claims and not ends and not corrects:
            claim.rank = _EXPLANATION
        if cut and at == len(pieces) - 1 and claim.value is not None and re.search(r"[\d,.]$", piece):
            claim.value = None  # its last number may be cut off
        operands = re.split(r"/|(?<=\d)x(?=\d)", number_words_as_digits(piece))  # 342/4 has two
        claim.numbers = frozenset(each.number.value for part in operands for each in numbers_in(part))
        claim.computes = "=" in piece or _SO.search(piece) is not None
        claim.rounds = _ROUNDS.search(piece) is not None
        claim.supposes = _SUPPOSES.match(piece) is not None
        claim.conditional = _CONDITIONAL.search(piece) is not None
        claim.restates = (
            claim.rank == _PLAINLY
            and claim.relevance == _IN_UNIT
            and not (claim.explains or claim.supposes or claim.conditional or claim.computes)
            and len(claim.numbers) == 1
        )
        claims.append(claim)
    _set_labels_aside(claims, [piece for piece in pieces if ANSWER_HEADING.match(piece) is None], task)
    for at, claim in enumerate(claims):
        if claim.opens and _goes_on(claim, claims[at + 1 :]):
            claim.rank = _PLAINLY
            break
    return claims


_IN_UNIT, _NEUTRAL, _BESIDE = 2, 1, 0
_LINE_LABEL = re.compile(rf"^[\s{BOLD}*•-]*(?P<label>[A-Z][\w' ]{{0,40}}?){BOLD}?\s?:")
_PERIOD = re.compile(r"\b(?:a|an|per|each|every|one)\s(day|week|month|year|hour|minute)\b", re.IGNORECASE)


def _relevance(piece: str, value: _Value, task: NumberTask) -> int:
    """Return how well a sentence's number fits the question: it has the unit asked for, none, or another.

    A number of another person, or of another period ("a year" for "each month"), has another unit.
    """
    if not isinstance(value, Number):
        return _NEUTRAL
    if task.is_of_other(piece):
        return _BESIDE
    periods = {match[1].lower() for match in _PERIOD.finditer(piece)}
    if task.periods and periods and not periods & task.periods:
        return _BESIDE
    text = number_words_as_digits(piece)
    mentions = [each for each in _quantities(text, task) if each.number.value == value.value]
    if any(task.names_unit(text, each) for each in mentions):
        return _IN_UNIT
    return _BESIDE if mentions and all(task.names_other_unit(text, each) for each in mentions) else _NEUTRAL


def _set_labels_aside(claims: Sequence[_Claim], pieces: Sequence[str], task: NumberTask) -> None:
    """Let the line whose label the question asks for ("Money left: $39") outrank lines with other labels."""
    labels = [_LINE_LABEL.match(piece) for piece in pieces]
    asked = [label is not None and task.names_label(label["label"]) for label in labels]
    if sum(asked) != 1:
        return
    for claim, label, is_asked in zip(claims, labels, asked, strict=True):
        if is_asked:
            claim.relevance = _IN_UNIT
        elif label is not None and not claim.computes and not claim.rounds and claim.rank <= _CONCLUSION:
            claim.rank, claim.relevance = min(claim.rank, _PLAINLY), _BESIDE


_PLUGGING = re.compile(r"^(?:plugging|checking|verifying)\b[^,]*,", re.IGNORECASE)
_SO_IT_IS = re.compile(r",\sso\s(?:it|the answer|that)(?:'s| is| should be| must be)\s", re.IGNORECASE)
_SOLUTION = re.compile(r"\bsolution\b", re.IGNORECASE)  # a heading above all steps
_OPENS = re.compile(rf"^[#\s>*{BOLD}]*(?:A|Ans|Answer|Solution|Sol)\.?\s?:", re.IGNORECASE)
_ROUNDS = re.compile(r"\b(?:round(?:ed|ing|s)?|nearest|approximately|about|roughly)\b|=", re.IGNORECASE)
_CONDITIONAL = re.compile(
    r"^\W*(?:(?:and|but|however|or),?\s)?(?:if|otherwise|unless|when|assuming)\b|\sif\s", re.IGNORECASE
)
_SUPPOSES = re.compile(
    r"(?!.*\b(?:if|however|but|unless|otherwise|assuming)\b).*\b(?:would|could|might)\b", re.IGNORECASE
)
_DEPENDS = re.compile(r"\bdepend(?:s|ing) on\b", re.IGNORECASE)


def _goes_on(opening: _Claim, later: Sequence[_Claim]) -> bool:
    """Return True if the text after "Answer: 5 * 24 = 120" computes further, with that number, or claims a result."""
    for claim in later:
        if not isinstance(claim.value, Number) or claim.rank == _EXPLANATION:
            continue
        if claim.value.value in opening.numbers:
            continue
        if opening.computes and isinstance(opening.value, Number) and claim.uses(opening.value.value):
            return True
        if not opening.computes and claim.computes and claim.numbers & opening.numbers:
            return any(each.rank >= _STATEMENT and isinstance(each.value, Number) for each in later)
    return False


def _claim(piece: str, task: NumberTask) -> _Claim:
    retracts = RETRACTS.search(piece) is not None and _CONFIRMS.search(piece) is None
    piece = re.sub(r"^[#>\s]*(?=[^#\s])", "", piece) if not _is_hash_value(piece) else piece
    if (hashes := _HASHES.match(piece)) is not None:
        return _Claim(_FINAL, _value(hashes["rest"], task), retracts)
    boxes = re.findall(f"{BOX}([^{BOX_END}]*)(?:{BOX_END}|$)", piece)
    if boxes:
        values = [_value(box, task) for box in boxes]
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
        value = _value_of_claim(claimed["rest"], task)
        if value is not None or claimed.re is not _CLAIM:
            return _Claim(rank, value, retracts)
    shortened = _EXPLANATION_CUT.sub("", body)
    value = _value(body, task)
    if isinstance(value, _Unclear) and _numbers_of(shortened):
        value = _value(shortened, task)
    if retracts:
        bare = re.sub(
            r"^(?:no|it|it's|that|should|be|is|the|make|,|\s|:)+", "", RETRACTS.sub("", body), flags=re.IGNORECASE
        )
        if (value is not None and _BARE.fullmatch(number_words_as_digits(bare).replace(WORD_MARK, ""))) or re.search(
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
        _PLAINLY,
        value,
        retracts,
        explains=_ASIDE.match(body) is not None
        or (_EXPLAINS.match(body) is not None and _SUBORDINATE.match(body) is None),
    )


def _repeats_question(body: str, task: NumberTask, *, is_last: bool) -> bool:
    """Return True if a sentence has several numbers, all of them the question's, or one in a circumstance.

    "Ann has 3 boxes of 12 eggs.", "Subtract it from 150.", "To get an average of 20, he must score more."
    """
    text = number_words_as_digits(body)
    mentions = list(numbers_in(text))
    if not mentions or _computes(text) or BOLD in body or not all(map(task.is_given, mentions)):
        return False
    if len({each.number.value for each in mentions}) > 1:
        return not is_last
    opening = _PURPOSE.match(text)
    if opening is not None and mentions[-1].end <= opening.end():
        return True
    return len(text[: mentions[0].start].split()) > 3 and not any(_is_main(text, each) for each in mentions)


_PURPOSE = re.compile(r"(?:in order )?to \w+ [^,]*,", re.IGNORECASE)


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


def _value_of_claim(rest: str, task: NumberTask) -> _Value:
    if re.search(r"\b(?:if|unless|depending|assuming)\b", rest) and _numbers_of(rest):
        return _UNCLEAR
    first = re.match(r"(.+?),\s(?:which|i\.e\.|meaning|that is)\b", rest)
    if first is not None and isinstance(value := _value(first[1], task), Number):
        return value
    shortened = _EXPLANATION_CUT.sub("", rest)
    value = _value(shortened, task) if shortened.strip() else None
    return value if value is not None else _value(rest, task)


def _decide(claims: Sequence[_Claim], *, cut: bool) -> Number | None:
    refusal = max((at for at, claim in enumerate(claims) if claim.refuses), default=-1)
    after = [claim for claim in claims[refusal + 1 :] if claim.rank >= _CONCLUSION and claim.value is not None]
    if refusal >= 0 and not after:
        return None
    retraction = max((at for at, claim in enumerate(claims) if claim.retracts), default=-1)
    after = [claim for claim in claims[retraction:] if claim.value is not None] if retraction >= 0 else []
    if any(claim.rank >= _CONCLUSION for claim in after):
        claims = claims[retraction:]
    elif after and retraction > 0:
        earlier = _decide(claims[:retraction], cut=False)
        later = after[-1].value if after[-1].rank >= _PLAINLY else None
        if cut:
            return None
        if after[-1].relevance == _IN_UNIT and after[-1].computes and isinstance(later, Number):
            return later
        if earlier is None or (isinstance(later, Number) and later.value == earlier.value):
            return later if isinstance(later, Number) else None
        return None
    elif retraction > 0 and not after:
        return None if not _only_polite(claims[retraction]) else _decide(claims[:retraction], cut=cut)
    statements = [claim for claim in claims if claim.rank >= _STATEMENT and claim.value is not None]
    if statements:
        last = max(at for at, claim in enumerate(claims) if claim.rank >= _STATEMENT and claim.value is not None)
        statements += [claim for claim in claims[last:] if claim.rank == _CONCLUSION and claim.value is not None]
        statements += [claim for claim in claims[last + 1 :] if claim.restates]
        return _agreed(statements)
    if cut:
        return None
    conclusions = [at for at, claim in enumerate(claims) if claim.rank == _CONCLUSION and claim.value is not None]
    if conclusions:
        conclusion = claims[conclusions[-1]]
        for at, claim in enumerate(claims[conclusions[-1] + 1 :], conclusions[-1] + 1):
            if claim.value is None or claim.rank != _PLAINLY or claim.explains:
                continue
            value = conclusion.value
            if claim.supposes and not conclusion.supposes and claim.relevance <= conclusion.relevance:
                continue
            if not claim.conditional and not claim.computes and _is_whole_of(claim.value, value):
                conclusion = claim
                continue
            if isinstance(value, Number) and claim.uses(value.value):
                conclusion = claim  # continues with the conclusion's number
            elif isinstance(value, Number) and any(
                each.uses(value.value)
                for each in claims[at + 1 :]
                if each.value is not None and each.rank == _PLAINLY and not each.explains
            ):
                continue  # a step beside it, before both are used
            elif claim.relevance < conclusion.relevance:
                continue
            elif claim.relevance > conclusion.relevance:
                conclusion = claim
            elif _agreed([conclusion, claim]) is None:
                return None
            elif claim.rounds:
                conclusion = claim
        return _agreed([conclusion])
    plain = [claim for claim in claims if claim.rank == _PLAINLY and claim.value is not None]
    sure = [claim for claim in plain if not claim.explains] or plain
    if any(claim.relevance == _IN_UNIT for claim in sure):
        sure = [claim for claim in sure if claim.relevance != _BESIDE]
    if len(sure) > 1 and sure[-1].conditional and not sure[-1].computes and sure[-2].conditional:
        return _agreed(sure[-2:])  # "If …, you get 24. If …, you get 25."
    return _agreed(sure[-1:]) if sure else None


def _is_whole_of(value: _Value, exact: _Value) -> bool:
    """Return True if the value is the whole number below or above an exact one: 34 pizzas of 33.75."""
    if not isinstance(value, Number) or not isinstance(exact, Number):
        return False
    return value.value.denominator == 1 and exact.value.denominator > 1 and abs(value.value - exact.value) < 1


def _only_polite(claim: _Claim) -> bool:
    return claim.value is None and not claim.retracts


def _agreed(claims: Sequence[_Claim]) -> Number | None:
    values = [claim.value for claim in claims]
    if any(isinstance(value, _Unclear) for value in values):
        return None
    numbers = [value for value in values if isinstance(value, Number)]
    last = numbers[-1]
    rounded = claims[-1].rounds
    return last if all(_agree(number, last, rounded=rounded) for number in numbers) else None


def _agree(number: Number, last: Number, *, rounded: bool) -> bool:
    """Return True if two numbers are the same, or the last one is the other, rounded as it says."""
    if number.matches(last) or last.matches(number):
        return True
    return rounded and number.decimals > last.decimals and rounded_to(number.value, last.decimals) == last.value
