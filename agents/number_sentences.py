"""The number that one sentence of a free answer says, or none.

- A number in the unit that the question asks for counts, if it is the only quantity of this unit that is new.
- Else the number after the last "=" counts; else the number in bold; else the only one that is not denied, bracketed, a
  label ("step 3", "the 2nd") or part of a circumstance ("out of 5", "for 3 days").
- One quantity in two units is one number: "155 minutes, or 2 hours and 35 minutes".
- Clauses about somebody else, and what only adds to a sentence ("for a total of …"), do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

from .answer_text import BOLD, BOX, BOX_END, MONTH, WORD_MARK
from .number_tasks import NumberTask, factor_of, quantities, same_quantity
from .written_numbers import Mention, Number, number_words_as_digits, numbers_in


class Unclear:
    """A sentence with several numbers of which none is the claimed one."""


UNCLEAR = Unclear()
Value = Number | Unclear | None
_EQUALS = re.compile(
    r"(?<![<>!=])=(?!=)|\b(?:equals|is equal to|equal to|is equivalent to|which (?:is|equals|makes|gives"
    r"|comes to|leaves)"
    r"|i\.e\.,?|in other words,?|gives(?: us)?|we get|you get|yields|leaves(?: us)?|results in|amounts to"
    r"|rounds? (?:up |down |off )?to(?= [$€£]?\d)(?! \d+ (?:decimal|place|digit|significant))|comes (?:out )?to"
    r"|works out to|totals|totaling|totalling|-?> )|->|→|⇒|=>",
    re.IGNORECASE,
)  # fmt: skip
SO = re.compile(
    r"(?:^|[,;:]\s|\s-\s)\s?(?:and\s|but\s)?(?:so|thus|therefore|hence|making|leaving|giving|meaning|which means"
    r"|that leaves|this leaves|for a (?:grand )?total of|totaling|totalling|or a total of)\b",
    re.IGNORECASE,
)  # fmt: skip
_OPERATOR = re.compile(r"[^\W\d]{0,12}[%)\s]{0,2}(?:\s?[*/^+x]\s?|\s-\s)[$(\s]{0,2}")  # between two numbers
_CLOCK = re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b|\b\d+\s?:\s?\d+\b|\b\d{1,4}/\d{1,2}/\d{1,4}\b|\b\d{4}-\d\d-\d\d\b")
_RANGE = re.compile(
    r"\b[Bb]etween\s[^.]{0,30}?\d[^.]{0,20}?\sand\s|(?<![\w.])[$€£]?\d[\d,.]*\s?(?:-|to|through)\s?[$€£]?\d[\d,.]*(?!\s?=)(?![\w/])"
    r"|\b(?:less|fewer|more|greater) than (?=[$\d])|(?<![=-])[<>≤≥]\s?[$-]?\d[\d.,]*|(?<![\w.,])\d[\d.,]*\s?[<>≤≥]"
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


def sentence_value(text: str, task: NumberTask) -> Value:
    """Return the number that a sentence, or the rest of one after "the answer is", claims."""
    text = _CLOCK.sub(lambda match: "\ue004" * len(match[0]), text.replace(BOX, " ").replace(BOX_END, " "))
    text = _remainder_removed(_chances_as_fractions(text, task), task)
    if "(" in text and "=" in text and "=" not in (outside := _without_brackets(text)) and numbers_of(outside):
        text = outside  # "81 loaves (96 - 14.4 = 81.6, rounded down)"
    if re.search(r"\beither\b.*\bor\b.*\bdepending\b", text, re.IGNORECASE):
        return UNCLEAR
    if "\ue004" in text and not numbers_of(text):
        return UNCLEAR
    if (rest := _AND_THE_REST.search(text)) is not None and task.asks_for(rest["verb"]):
        return UNCLEAR if rest["verb"] not in rest["other"].split() else sentence_value(rest["other"], task)
    text = _ADDED_TOTAL.sub("", text) if task.asks_each else text
    if not task.compares and (doubted := _DOUBTED.search(text)) is not None and numbers_of(text[: doubted.start()]):
        text = text[: doubted.start()]
    text = _without_others(text, task)
    clauses = [text[match.end() :] for match in SO.finditer(text) if numbers_of(text[match.end() :])]
    for part in (*clauses[-1:], text):
        if (number := _number_in_unit(part, task)) is not None:
            return number
        digits = number_words_as_digits(part)
        if any(is_main(digits, each) and not task.names_other_unit(digits, each) for each in numbers_in(digits)):
            break  # "24 slices, 20 of them eaten, so 4 are left"
    text = clauses[-1] if clauses else text
    variables = re.findall(r"(?<![\w.])(?<![-+*/]\s)([a-zA-Z])\s?=\s?[-$]?\d", text)
    if len(set(variables)) > 1 or _SOLUTIONS.search(text):
        return UNCLEAR  # x = 15 and y = 20; x = 2 or x = 3
    main = _subordinate_removed(text)
    if main != text and (number := _number_in_unit(main, task)) is not None:
        return number
    text = main
    if (
        (aside := re.match(r"(.+?),\s(?:which (?:is|equals|means)|i\.e\.|that is)\s(.+)", text)) is not None
        and not computes(aside[1])
        and "=" not in text
    ):
        first = _main_number(aside[1], task)
        if isinstance(first, Number) and _is_quantity_of(text, first):
            return first
        if (
            not task.asks_each
            and isinstance(first, Number)
            and re.search(
                r"\d\s?(?:\w+\s){0,2}?(?:each|per|every|a|an|more|less|fewer)\b|\bthe (?:same|total)\b", aside[2]
            )
        ):
            return first
    if (copula := _LAST_COPULA.match(text)) is not None and numbers_of(copula[1]) and not _HAS_VERB.search(copula[1]):
        text = copula[2]
    if (
        result := re.match(r"(.*[\d)]\W*)\s(?:is|are|makes?)\s(?=[$€£]?-?\d)", _operators(text))
    ) is not None and computes(result[1]):
        text = _operators(text)[result.end() :]
    sides = _sides(text)
    if len(sides) > 1:
        last = sides[-1]
        if computes(last) and not computes(sides[-2]) and len(numbers_of(sides[-2])) == 1:
            last = sides[-2]  # 42 = 6 * 7
        text = last
    elif computes(_without_brackets(text)):
        return UNCLEAR
    return _main_number(text, task)


_SOLUTIONS = re.compile(r"(?<![\w.])([a-z])\s?=\s?-?[\d./]+,?\s(?:and|or)\s\1\s?=")
# What a sentence adds about its number: "101, which may not be possible if the maximum is 100".
_DOUBTED = re.compile(
    r",\s(?:which\s(?:may|might|could|would|should|is not|isn't|cannot|seems)"
    r"|(?:including|excluding|not counting|compared (?:to|with)|up from|down from|the others?(?= (?:being|are|is)\b))\b"
    r"|[$€£]?\d[\d.,]*%?(?:\s[a-z]+){0,2}\s(?:more|less|fewer) than\b)"
)
_ADDED_TOTAL = re.compile(r"(?<=\d),\s(?:for a (?:grand )?total of|totall?ing|or a total of)\s.*$", re.IGNORECASE)
# "30 pupils passed and the rest failed": how many failed is not said.
_AND_THE_REST = re.compile(
    r"(?P<other>.*\d[^=]*)\band the (?:rest|others|remainder)\s"
    r"(?P<verb>(?!are\b|were\b|was\b|have\b)[a-z]{4,})\b[^=\d]*$"
)
_LAST_COPULA = re.compile(r"(.*?)\s(?:is|are|was|makes)\s([$€£]?-?\d[\d.,/]*%?(?:\s[a-z]+){0,3}\W*)$", re.IGNORECASE)
_HAS_VERB = re.compile(r"\b(?:gets?|there|is|are|was|were|has|have|had|and (?:she|he|it|they)|=)\b|=")


def _without_others(text: str, task: NumberTask) -> str:
    """Return a sentence without its clauses about another person than the question asks about, if a number is left."""
    parts = _CLAUSES.split(text)
    kept = [part for part in parts if not (numbers_of(part) and task.is_of_other(part))]
    labels = [_CLAUSE_LABEL.match(part) for part in kept]
    fits = [label is not None and task.asks_for(label[1]) for label in labels]
    if any(fits):
        kept = [part for part, label, fit in zip(kept, labels, fits, strict=True) if fit or label is None]
    return ", ".join(kept) if len(kept) < len(parts) and any(map(numbers_of, kept)) else text


_CLAUSE_LABEL = re.compile(
    r"\W*(?:the|its|his|her|their)\s((?:[a-z]+\s){1,3}?)(?:of\s[\w\s]{1,40}?\s)?(?:is|are|was|were)\s", re.I
)
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
    if computes(text) or _has_range(text, task):
        return None
    mentions = [
        each
        for each in quantities(text, task)
        if not (is_label(text, each) or _is_denied(text, each) or _is_in_unknown(text, each))
    ]
    if task.compares and (more := [each for each in mentions if _MORE_AFTER.match(text[each.end :])]):
        return more[0].number if len({each.number.value for each in more}) == 1 else None
    mentions = [each for each in mentions if not _MORE_AFTER.match(text[each.end :])]
    new = [each for each in mentions if not task.is_given(each)]
    words = max((task.unit_words(text, each) for each in new), default=0)
    named = [each for each in new if words and task.unit_words(text, each) == words]
    named = _prefer(named, lambda each: is_main(text, each))
    named = _prefer(named, lambda each: _OUT_OF.search(text[max(0, each.start - 40) : each.start]) is None)
    if not named and len(asides) == 1 and new and all(task.names_other_unit(text, each) for each in new):
        return _number_in_unit(asides[0], task)
    rest = [each for each in new if not task.names_unit(text, each) and not task.names_other_unit(text, each)]
    rest = [each for each in rest if each.number.value >= 1 or not _PART_OF_THING.match(text[each.end :])]
    rest = [each for each in rest if is_main(text, each) and not (named and same_quantity(text, [named[0], each]))]
    if named and not rest and all(same_quantity(text, [named[0], each]) for each in named[1:]):
        return named[0].number
    explained = _ADDS.split(text, maxsplit=1)
    return _number_in_unit(explained[0], task) if named and len(explained) > 1 else None


def _is_quantity_of(text: str, first: Number) -> bool:
    """Return True if a text has two numbers, which are one quantity, and the first is this one."""
    text = number_words_as_digits(text)
    mentions = list(numbers_in(text))
    return len(mentions) == 2 and mentions[0].number == first and same_quantity(text, mentions)


_PART_OF_THING = re.compile(r"\sof (?:the|his|her|its|their|all)\b")
_QUANTITY_ASIDE = re.compile(r"\(([$€£]?\d[\d.,/]*\s?[A-Za-z%]*)\)")
# Before what explains or completes a sentence that is complete without it.
_ADDS = re.compile(r"(?<=[A-Za-z\d])(?::|;| -)\s(?!.*\b(?:or|rather)\b)|,\s(?=[$\d][^,]*\s(?:having|being)\s)")


def _has_range(text: str, task: NumberTask) -> bool:
    """Return True if a text has a range of numbers that are not all the question's: "40 to 50"."""
    return any(
        not (limits := list(numbers_in(match[0]))) or not all(map(task.is_given, limits))
        for match in _RANGE.finditer(text)
    )


def _side_in_unit(sides: Sequence[str], task: NumberTask) -> Number | None:
    """Return the number of "155 minutes" in "155 minutes = 2 hours and 35 minutes" if the question asks for minutes."""
    last = list(quantities(sides[-1], task))
    if len(last) == 1 and not computes(" ".join(sides)) and (number := _number_in_unit(sides[-1], task)) is not None:
        return number
    if not last or not all(task.names_other_unit(sides[-1], each) for each in last):
        return None
    return next(
        (
            number
            for side in reversed(sides[:-1])
            for part in reversed(_CLAUSES.split(side))
            if (number := _number_in_unit(part, task))
        ),
        None,
    )


def _operators(text: str) -> str:
    """Return the text with numbers as digits, and signs for "times" and "plus" between them."""
    digits = number_words_as_digits(text).replace(WORD_MARK, "")
    return re.sub(r"(?<=[\d)])\s(?:times|multiplied by|plus|minus|divided by)\s(?=[$(]?\d)", " * ", digits)


SUBORDINATE = re.compile(
    r"\W*(?:after|with|since|when|because|given|once|as|by|for|at|out of|of|if|\w+ing)\s[^=]*?,\s(?:then\s)?",
    re.IGNORECASE,
)


def _subordinate_removed(text: str) -> str:
    """Return a sentence without "After selling 30 cards, …" before its main clause, if that has a number."""
    match = SUBORDINATE.match(text)
    return text[match.end() :] if match is not None and numbers_of(text[match.end() :]) else text


def computes(text: str) -> bool:
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
    return [side for side in _EQUALS.split(text) if side and numbers_of(side)]


def numbers_of(text: str) -> list[Mention]:
    return list(numbers_in(number_words_as_digits(text)))


def _without_brackets(text: str) -> str:
    return re.sub(r"\([^()]{0,200}\)", lambda match: " " * len(match[0]), text)


def _main_number(text: str, task: NumberTask) -> Value:
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
    allowed = _prefer(allowed, lambda each: not is_label(text, each))
    bold = [each for each in allowed if text[: each.start].count(BOLD) % 2]
    if bold and len({each.number.value for each in bold}) == 1:
        return bold[-1].number
    if _has_range(outside, task) or "\ue004" in outside:
        return UNCLEAR
    kept = _prefer(allowed, lambda each: not each.word)
    kept = _prefer(kept, lambda each: not _ORDINAL.match(text[each.end :]))
    if len({each.number.value for each in kept}) > 1 and not _are_alternatives(text, kept):
        kept = _prefer(kept, lambda each: is_main(text, each))
        if task.are_parts(text, kept):
            return UNCLEAR
        kept = _prefer(kept, lambda each: task.asks_for(_label(text, each)))
        if task.negated:
            kept = _prefer(kept, lambda each: _NEGATES.search(_clause_after(text, each)) is not None)
        kept = _prefer(kept, lambda each: task.names_predicate(_clause_after(text, each)))
        kept = _prefer(kept, lambda each: task.names_predicate(_clause_before(text, each)))
        kept = _prefer(kept, lambda each: not task.is_of_other(_clause_before(text, each)))
        if any(task.names_unit(text, each) for each in kept):
            kept = [each for each in kept if task.names_unit(text, each)]
        else:
            kept = _prefer(kept, lambda each: not task.is_given(each))
        kept = _prefer(kept, lambda each: _TOTAL_AFTER.match(text[each.end :]) is not None)
        kept = _prefer(kept, lambda each: _OUT_OF.search(text[max(0, each.start - 30) : each.start]) is None)
    elif task.units and "percent" not in task.units:
        kept = _prefer(kept, lambda each: each.number.scale != Fraction(1, 100))  # "20 voters, or 25%"
    values = {each.number.value for each in kept}
    if len(values) > 1 and len(kept) == 2 and same_quantity(text, kept):
        return kept[0].number
    return kept[-1].number if len(values) == 1 else UNCLEAR


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


_NEGATES = re.compile(r"\bnot\b|n't\b")
_OUT_OF = re.compile(r"\b(?:out of(?:\s\w+){0,4}|of (?:the|these|those)(?:\s\w+)?)\s[$€£]?$", re.IGNORECASE)
_TOTAL_AFTER = re.compile(
    r"(?:\s[A-Za-z]+){0,2}\s(?:in total|altogether|in all|all together|combined)\b",
    re.IGNORECASE,
)


def _prefer(mentions: list[Mention], condition: Callable[[Mention], bool]) -> list[Mention]:
    """Return the numbers that meet the condition, or all of them if none does."""
    return [each for each in mentions if condition(each)] or mentions


_MORE_AFTER = re.compile(r"\s(?:\w+\s){0,2}?(?:more\b|fewer\b|less\b|[a-z]{2,12}er than\b)")


def is_main(text: str, each: Mention) -> bool:
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
    if re.match(r"(?:\s?[/*]\s?)?[xyzn]\b|\s?\(\s?[a-z]\s?[-+]", text[each.end :]):
        return True
    return re.search(r"\b[a-z]\s?[-+*/]\s?$", text[max(0, each.start - 6) : each.start]) is not None


def is_label(text: str, each: Mention) -> bool:
    before = text[max(0, each.start - 14) : each.start]
    return (
        _LABEL_BEFORE.search(before) is not None or _DAY_BEFORE_MONTH.match(text[each.end : each.end + 20]) is not None
    )


def _are_alternatives(text: str, kept: Sequence[Mention]) -> bool:
    return any(
        re.fullmatch(
            r"[^.;]{0,30}?\b(?:or|and/or)\s(?:about\s|maybe\s|perhaps\s|possibly\s|even\s)?[$€£]?",
            text[first.end : second.start],
        )
        and not same_quantity(text, [first, second])
        for first, second in pairwise(kept)
    )


def _compound(text: str, mentions: Sequence[Mention]) -> Number | None:
    """Return a quantity in two units (2 hours 30 minutes) in the larger unit, with the smaller one as its scale."""
    for first, second in pairwise(mentions):
        factor = factor_of(text, first, second)
        if factor is not None and all(each in (first, second) or not is_main(text, each) for each in mentions):
            return Number(first.number.value + second.number.value / factor, 0, factor)
    return None
