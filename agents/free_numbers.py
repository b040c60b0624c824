r"""Reader of free answers to questions for a number: the number that a model's answer claims, or none.

A text is read by its sentences. A sentence may be a *claim*: `#### 42`, `\boxed{42}`, "the answer is 42", "Answer: 42"
or, weaker, a conclusion ("So she has 42 left", "Total: 42"). Rules:

- Claims outrank conclusions, and conclusions outrank other sentences, of which only the last one with a number counts.
- Two claims of different values are unclear, and so are "40 or 50" and "40 to 50", unless words between them take the
  first one back ("wait", "I made a mistake"). An unclear answer is read as None, never as one of its values.
- A sentence whose number has the unit that the question asks for outranks one of the same class with another unit, or
  about somebody else. Sentences that repeat the question, explain, check or suppose do not count beside others.
- An answer that says it cannot be determined, or has no solution, is none, unless a claim follows.
- A sentence with a quantity of the question's last sentence ("In 13 years, it grows 26 inches") outranks one without.
- An answer that ended at its token limit counts only if it makes a claim before its last word, or ends in a conclusion
  with such a quantity.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

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
    REFUSES,
    RETRACTS,
    WORD_MARK,
    answer_pieces,
    own_answer,
)
from .number_sentences import (
    SO,
    SUBORDINATE,
    UNCLEAR,
    Unclear,
    Value,
    computes,
    is_main,
    numbers_of,
    sentence_value,
)
from .number_tasks import NumberTask, quantities, unit_name
from .written_numbers import Number, number_words_as_digits, numbers_in, rounded_to

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
_IF = re.compile(r"(?:(?:however|but|and|or|alternatively),?\s)?(?:if|unless|assuming)\b", re.IGNORECASE)
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
    value: Value
    retracts: bool = False
    explains: bool = False
    numbers: frozenset[Fraction] = frozenset()  # all numbers of the sentence
    computes: bool = False
    rounds: bool = False  # says that its number is rounded
    conditional: bool = False
    relevance: int = 1  # to the question, see `_relevance`
    restates: bool = False  # says a number in the unit asked for, and nothing else
    repeats: bool = False  # its only number is one of the question's
    supposes: bool = False  # says what would be so, without a condition
    otherwise: bool = False  # "But if …, it would be": says what is not so
    refuses: bool = False  # says that the question cannot be answered
    plans: bool = False  # says which numbers to compute with, and no result
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
    answer, cut = own_answer(text, question, cut=cut)
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
    return _as_percentage(_decide(claims, cut=cut), answer, question)


_AS_PERCENTAGE = re.compile(r"\b(?:as|in) an? percentage\b|\bin percent\b", re.IGNORECASE)


def _as_percentage(number: Number | None, answer: str, question: str) -> Number | None:
    """Return 40 for 0.4 if the question asks for a percentage and the answer says "0.4, which is 40%"."""
    if number is None or not 0 < number.value < 1 or _AS_PERCENTAGE.search(question) is None:
        return number
    for match in _IS_PERCENT.finditer(answer):
        share, percent = (next(iter(numbers_in(part)), None) for part in (match[1], match[2]))
        if share and percent and share.number.value == number.value and percent.number.value == 100 * number.value:
            return percent.number
    return number


_IS_PERCENT = re.compile(
    r"(?<![\w.])(0?\.\d+),?\s(?:which is|which equals|that is|or|=|is)\s(\d[\d.]*)\s?(?:%|percent)"
)
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
        parts.append(sentence_value(piece[match.end() :], task))
    values = {part.value for part in parts if isinstance(part, Number)}
    if len(values) < 2:
        return False
    labels = [text.partition(":")[0] for text in texts]
    if sum(map(task.names_label, labels)) == 1:
        return False
    is_as_asked = [any(task.is_asked_with(label, each) for each in numbers_in(label)) for label in labels]
    if is_as_asked[0] and sum(is_as_asked) == 1:
        return False  # "In 2 weeks: 28", "In 3 weeks: 42"
    rest = texts[0].partition(":")[2]
    used = {each.number.value for each in numbers_of(rest)}
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
        if _NO_SOLUTION.search(piece) is not None:
            counted = bool(task.units & _SOLUTIONS)
            claim.refuses = claim.refuses or not counted
            claim.value = Number(Fraction(0)) if counted else claim.value
        if (
            claim.rank <= _PLAINLY
            and isinstance(claim.value, Number)
            and _repeats_question(piece, task, is_last=at == len(pieces) - 1)
        ):
            claim.value = None
        if claim.rank <= _CONCLUSION and _is_part_of_thing(piece, claim.value, task):
            claim.value = None
        if claim.rank == _CONCLUSION and claim.relevance == _BESIDE:
            claim.rank = _PLAINLY
        claim.opens = _OPENS.match(piece) is not None and not claims
        if heading is not None and claim.value is not None:
            claim.rank = max(claim.rank, _FINAL if heading["final"] else _STATEMENT)
            claim.opens = not heading["final"]
            heading = None
        if claim.rank < _CONCLUSION and _CHECKS.match(piece) and not SUBORDINATE.match(_PLUGGING.sub("", piece)):
            checking = any(each.value is not None for each in claims)
        checking = checking and claim.rank < _STATEMENT and not claim.retracts
        # An explanation may end in another answer than the one that it explains: then both are claims.
        ends = at == len(pieces) - 1 and claim.rank == _CONCLUSION
        corrects = claim.relevance >= _IN_UNIT and _SO_IT_IS.search(piece) is not None
        if corrects and claim.rank == _PLAINLY:
            claim.rank = _CONCLUSION
            earlier = [each for each in claims if isinstance(each.value, Number) and each.rank >= _PLAINLY]
            if checking and earlier and _agreed([earlier[-1], claim]) is None:
                claim.value = UNCLEAR
        if checking and claims and not ends and not corrects:
            claim.rank = _EXPLANATION
        if cut and at == len(pieces) - 1 and claim.value is not None and re.search(r"[\d,.%]\s*$", piece):
            claim.value = None  # its last number may be cut off
        operands = re.split(r"/|(?<=\d)x(?=\d)", number_words_as_digits(piece))  # 342/4 has two
        claim.numbers = frozenset(each.number.value for part in operands for each in numbers_in(part))
        claim.computes = "=" in piece or SO.search(piece) is not None
        claim.plans = isinstance(claim.value, Unclear) and "=" not in piece and computes(piece)
        claim.rounds = _ROUNDS.search(piece) is not None
        claim.supposes = _SUPPOSES.match(piece) is not None
        claim.conditional = _CONDITIONAL.search(task.without_conditions(piece)) is not None
        claim.otherwise = _OTHERWISE.match(piece) is not None
        claim.repeats = not claim.computes and BOLD not in piece and _is_given_only(piece, task)
        claim.restates = (
            claim.rank == _PLAINLY
            and claim.relevance >= _IN_UNIT
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


_AS_ASKED, _IN_UNIT, _NEUTRAL, _BESIDE = 3, 2, 1, 0
_LINE_LABEL = re.compile(
    rf"^[\s{BOLD}*•-]*(?P<label>[A-Za-z][\w' ]{{0,40}}?){BOLD}?\s?[:=]"
    rf"(?P<says>[\s{BOLD}]*[-$€£]*\d[\d.,]*%?(?:\s[a-z]+)?\W*$)?"
)
_PERIOD = re.compile(r"\b(?:a|an|per|each|every|one)\s(day|week|month|year|hour|minute)\b", re.IGNORECASE)


def _relevance(piece: str, value: Value, task: NumberTask) -> int:
    """Return how well a sentence's number fits the question: it has the unit asked for, none, or another.

    A number of another person, or of another period ("a year" for "each month"), has another unit. One in the unit
    fits best beside a quantity of the question's last sentence: "In 13 years, …" to "How many … in 13 years?".
    """
    if not isinstance(value, Number):
        return _NEUTRAL
    if task.is_of_other(piece):
        return _BESIDE
    periods = {match[1].lower() for match in _PERIOD.finditer(piece)}
    if task.periods and periods and not periods & task.periods:
        return _BESIDE
    text = number_words_as_digits(piece)
    mentions = [each for each in quantities(text, task) if each.number.value == value.value]
    is_given = "=" not in piece and task.is_given_value(value)
    if any(task.names_unit(text, each) for each in mentions):
        is_as_asked = any(task.is_asked_with(text, each) for each in quantities(text, task))
        return _NEUTRAL if is_given else _AS_ASKED if is_as_asked else _IN_UNIT
    if is_given and task.units:
        return _BESIDE
    return _BESIDE if mentions and all(task.names_other_unit(text, each) for each in mentions) else _NEUTRAL


def _is_part_of_thing(piece: str, value: Value, task: NumberTask) -> bool:
    """Return True if a value is a part of something, and the question asks for another unit: "1/2 of the house"."""
    text = number_words_as_digits(piece)
    if not isinstance(value, Number) or not 0 < value.value < 1 or not task.units - {"percent"}:
        return False
    after = [text[each.end :] for each in numbers_in(text) if each.number.value == value.value]
    things = [re.match(r"\sof (?:an?|the) ([a-z]+)", rest) for rest in after]
    return bool(things) and all(thing is not None and unit_name(thing[1]) not in task.units for thing in things)


def _set_labels_aside(claims: Sequence[_Claim], pieces: Sequence[str], task: NumberTask) -> None:
    """Let the line whose label the question asks for ("Money left: $39") outrank lines with other labels."""
    labels = [_LINE_LABEL.match(piece) for piece in pieces]
    fits = [label is not None and task.names_label(label["label"]) for label in labels]
    if sum(fits) != 1:
        return
    for claim, label, fit in zip(claims, labels, fits, strict=True):
        if fit:
            claim.relevance = _IN_UNIT
        elif label is not None and label["says"] and claim.rank <= _CONCLUSION and not _ROUNDED.search(label["label"]):
            claim.rank, claim.relevance = min(claim.rank, _PLAINLY), _BESIDE


_PLUGGING = re.compile(r"^(?:plugging|checking|verifying)\b[^,]*,", re.IGNORECASE)
_SO_IT_IS = re.compile(r",\sso\s(?:it|the answer|that)(?:'s| is| should be| must be)\s", re.IGNORECASE)
_SOLUTION = re.compile(r"\bsolution\b", re.IGNORECASE)  # a heading above all steps
_OPENS = re.compile(rf"^[#\s>*{BOLD}]*(?:A|Ans|Answer|Solution|Sol)\.?\s?:", re.IGNORECASE)
_ROUNDS = re.compile(r"\b(?:round(?:ed|ing|s)?|nearest|approximately|about|roughly)\b|=", re.IGNORECASE)
_ROUNDED = re.compile(r"\bround|\bnearest\b", re.IGNORECASE)
_CONDITIONAL = re.compile(
    r"^\W*(?:(?:and|but|however|or),?\s)?(?:if|otherwise|unless|when|assuming)\b|\sif\s", re.IGNORECASE
)
_SUPPOSES = re.compile(
    r"(?!.*\b(?:if|however|but|unless|otherwise|assuming)\b).*\b(?:would|could|might)\b", re.IGNORECASE
)
_OTHERWISE = re.compile(r"\W*(?:but|however),? if\b.*\bwould\b", re.IGNORECASE)
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
        return _Claim(_FINAL, sentence_value(hashes["rest"], task), retracts)
    boxes = re.findall(f"{BOX}([^{BOX_END}]*)(?:{BOX_END}|$)", piece)
    if boxes:
        values = [sentence_value(box, task) for box in boxes]
        distinct = {value.value for value in values if isinstance(value, Number)}
        if len(distinct) == 1 and not any(isinstance(value, Unclear) for value in values):
            return _Claim(_FINAL, next(value for value in values if isinstance(value, Number)), retracts)
        return _Claim(_FINAL, UNCLEAR if any(value is not None for value in values) else None, retracts)
    body = re.sub(LIST_MARK, "", piece, count=1)
    if body.rstrip(f"\"') {BOLD}").endswith("?") and "." not in body and "!" not in body:
        return _Claim(_EXPLANATION, None, retracts)
    if (claimed := _last_claim(body)) is not None:
        if _IF.match(task.without_conditions(body)):
            return _Claim(_STATEMENT, UNCLEAR, retracts)
        rank = _FINAL if claimed.groupdict().get("final") else _STATEMENT
        if (
            FIRST_TRY.search(body)
            or _DEFINES.search(body[: claimed.start("rest")])
            or _PART_OF.match(claimed.groupdict().get("qualifier") or "")
        ):
            rank = _EXPLANATION
        value = _value_of_claim(claimed["rest"], task) if not _QUALITY.match(claimed["rest"]) else None
        if rank >= _STATEMENT and _FIRST_STEP.match(claimed["rest"]):
            rank = _PLAINLY  # "Final answer: First, add 3 and 4."
        if value is not None or claimed.re is not _CLAIM:
            return _Claim(rank, value, retracts)
    shortened = _EXPLANATION_CUT.sub("", body)
    value = sentence_value(shortened, task) if numbers_of(shortened) and not SO.search(body[len(shortened) :]) else None
    if not isinstance(value, Number):
        value = sentence_value(body, task)
    if retracts:
        bare = re.sub(
            r"^(?:no|it|it's|that|should|be|is|the|make|,|\s|:)+", "", RETRACTS.sub("", body), flags=re.IGNORECASE
        )
        if (value is not None and _BARE.fullmatch(number_words_as_digits(bare).replace(WORD_MARK, ""))) or re.search(
            r"\bit(?:'s| is| should be| would be)\s[$]?\d", body
        ):
            return _Claim(_STATEMENT, value, retracts)
    if re.match(r"(?:if not|otherwise)\b", body, re.IGNORECASE) and value is not None:
        return _Claim(_PLAINLY, UNCLEAR, retracts)
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
        or (_EXPLAINS.match(body) is not None and SUBORDINATE.match(body) is None),
    )


def _repeats_question(body: str, task: NumberTask, *, is_last: bool) -> bool:
    """Return True if a sentence has several numbers, all of them the question's, or one in a circumstance.

    "Ann has 3 boxes of 12 eggs.", "Subtract it from 150.", "To get an average of 20, he must score more."
    """
    text = number_words_as_digits(body)
    mentions = list(numbers_in(text))
    if not mentions or computes(text) or BOLD in body or not all(map(task.is_given, mentions)):
        return False
    if len({each.number.value for each in mentions}) > 1:
        return not is_last
    opening = _PURPOSE.match(text)
    if opening is not None and mentions[-1].end <= opening.end():
        return True
    return len(text[: mentions[0].start].split()) > 3 and not any(is_main(text, each) for each in mentions)


def _is_given_only(piece: str, task: NumberTask) -> bool:
    """Return True if a sentence's only number is the question's, and not in the unit asked for."""
    text = number_words_as_digits(piece)
    mentions = list(numbers_in(text))
    return len({each.number.value for each in mentions}) == 1 and not any(
        task.names_unit(text, each) or not task.is_given(each) for each in mentions
    )


_FIRST_STEP = re.compile(
    rf"[\s{BOLD}\"]*(?:first(?:ly)?,|step 1\b|to (?:find|calculate|determine|solve|get)\b)", re.IGNORECASE
)
# "A number that, if you square it, the result is …"
_DEFINES = re.compile(r"\b(?:is|are) (?:an? )?[a-z]+s? (?:that|which|for which),? (?:when|if) you\b", re.IGNORECASE)
# "The result is negative, so …" says no number.
_QUALITY = re.compile(
    r"\s*(?:not\s)?(?:an?\s)?(?:negative|positive|correct|right|reasonable|whole|integer|odd|even)"
    r"(?:\s(?:number|integer|value|amount))?(?:[,;.]|$)",
    re.IGNORECASE,
)
_NO_SOLUTION = re.compile(
    r"\b(?:has|have|is|are) no (?:such )?(?:real |integer |possible |valid )?(?:value|solution|number|way)s?\b",
    re.IGNORECASE,
)
_SOLUTIONS = frozenset(["solution", "value", "number", "way", "root", "integer"])
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


def _value_of_claim(rest: str, task: NumberTask) -> Value:
    rest = task.without_conditions(rest)
    if re.search(r"\b(?:if|unless|depending|assuming)\b", rest) and numbers_of(rest):
        return UNCLEAR
    first = re.match(r"(.+?),\s(?:which|i\.e\.|meaning|that is)\b", rest)
    if first is not None and isinstance(value := sentence_value(first[1], task), Number):
        return value
    shortened = _EXPLANATION_CUT.sub("", rest)
    value = sentence_value(shortened, task) if shortened.strip() else None
    return value if value is not None else sentence_value(rest, task)


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
        if after[-1].relevance >= _IN_UNIT and not after[-1].conditional and isinstance(later, Number):
            return later
        if earlier is None or (isinstance(later, Number) and later.value == earlier.value):
            return later if isinstance(later, Number) else None
        return None
    elif retraction > 0 and not after:
        return None if not _only_polite(claims[retraction]) else _decide(claims[:retraction], cut=cut)
    statements = [claim for claim in claims if claim.rank >= _STATEMENT and claim.value is not None]
    if statements:
        last = max(at for at, claim in enumerate(claims) if claim.rank >= _STATEMENT and claim.value is not None)
        after = [claim for claim in claims[last:] if claim.rank == _CONCLUSION and claim.value is not None]
        rest = claims[last + 1 :]
        if after and _agreed([claims[last], after[-1]]) is not None:
            # The others are steps of an explanation that ends in the same.
            end = max(at for at, claim in enumerate(claims) if claim is after[-1])
            after, rest = after[-1:], claims[end + 1 :]
        statements += after
        statements += [claim for claim in rest if claim.restates]
        return _agreed(statements)
    if cut:
        ending = claims[-1]
        return _agreed([ending]) if ending.rank == _CONCLUSION and ending.relevance == _AS_ASKED else None
    conclusions = [at for at, claim in enumerate(claims) if claim.rank == _CONCLUSION and claim.value is not None]
    if conclusions:
        conclusion = claims[conclusions[-1]]
        for at, claim in enumerate(claims[conclusions[-1] + 1 :], conclusions[-1] + 1):
            if claim.value is None or claim.rank != _PLAINLY or claim.explains:
                continue
            value = conclusion.value
            if conclusion.plans and claim.computes and isinstance(claim.value, Number):
                conclusion = claim
                continue
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
    if any(not claim.repeats for claim in sure):
        sure = [claim for claim in sure if not claim.repeats]
    if any(claim.relevance >= _IN_UNIT for claim in sure):
        sure = [claim for claim in sure if claim.relevance != _BESIDE]
    while (
        len(sure) > 1
        and sure[-1].otherwise
        and any(not claim.conditional and claim.relevance >= sure[-1].relevance for claim in sure)
    ):
        sure = sure[:-1]
    before = sure[-2].value if len(sure) > 1 else None
    continues = isinstance(before, Number) and before.value in sure[-1].numbers
    if len(sure) > 1 and sure[-1].conditional and not sure[-1].computes and sure[-2].conditional and not continues:
        return _agreed(sure[-2:])  # "If …, you get 24. If …, you get 25."
    if sure and sure[-1].supposes and any(claim.relevance == _AS_ASKED and not claim.supposes for claim in sure):
        sure = [claim for claim in sure if claim.relevance == _AS_ASKED and not claim.supposes]
    return _agreed(sure[-1:]) if sure else None


def _is_whole_of(value: Value, exact: Value) -> bool:
    """Return True if the value is the whole number below or above an exact one: 34 pizzas of 33.75."""
    if not isinstance(value, Number) or not isinstance(exact, Number):
        return False
    return value.value.denominator == 1 and exact.value.denominator > 1 and abs(value.value - exact.value) < 1


def _only_polite(claim: _Claim) -> bool:
    return claim.value is None and not claim.retracts


def _agreed(claims: Sequence[_Claim]) -> Number | None:
    values = [claim.value for claim in claims]
    if any(isinstance(value, Unclear) for value in values):
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
