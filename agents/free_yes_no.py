"""Reader of free answers to questions for yes or no: what a model's answer claims, or None.

A claim ("the answer is yes", "No, …") says it. Without one, a sentence may say or deny all that the question asks ("It
is unlikely that …", "so the coin is still heads up"), or imply it ("They are not in the same district"). What only
would be so, if something else is, is no claim.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .answer_kinds import are_related, content_stems, stem, unit_stem
from .answer_text import ANSWER_HEADING, ANSWER_NOUN, BOLD, BOX, BOX_END, CONCLUDES, RETRACTS, answer_pieces, own_answer
from .free_words import (
    FUNCTION_WORDS,
    NEGATED,
    OPPOSITES,
    UNKNOWN,
    bare_tokens,
    clean_words,
    last_words_claim,
    without_lead_ins,
)


def read_yes_no(text: str, question: str = "", *, cut: bool = False) -> str | None:
    """Return "yes" or "no" as the text claims; None if it claims neither, or both."""
    answer, _ = own_answer(text, question)
    readings: list[tuple[int, str]] = []
    retracted = -1
    heading: re.Match[str] | None = None
    hypothetical = False
    pieces = answer_pieces(answer)
    for at, piece in enumerate(pieces):
        if RETRACTS.match(piece):
            retracted = at
            piece = re.sub(rf"^[\W{BOLD}]+", "", RETRACTS.sub("", piece, count=1))
        if ANSWER_HEADING.match(piece):
            heading = ANSWER_HEADING.match(piece)
            continue
        plain = re.sub(f'[{BOLD}{BOX}{BOX_END}"`#]', "", piece)
        claimed = last_words_claim(plain)
        if "would be" in plain and _HYPOTHETICAL.search(plain) is not None:
            hypothetical = True
            heading = None
            continue
        part = claimed["rest"] if claimed is not None else without_lead_ins(plain, answers=False)
        match = re.match(
            r"[\s:,.(*-]*(yes|no|yeah|nope|true|false|(?:correct|indeed|absolutely|exactly|certainly)(?=[,.!]))\b(?!\s(?:one|other|idea|answer|clue|information|evidence|mention|matter|longer))",
            part,
            re.IGNORECASE,
        )
        strong = claimed is not None or heading is not None or BOX in piece
        if match is not None and (strong or not readings):
            word = "no" if match[1].lower() in ("no", "nope", "false") else "yes"
            if re.match(r"\W{0,3}\s?(?:or|and|/)\s?(?:yes|no)\b", part[match.end() :], re.IGNORECASE):
                return None
            readings.append((at, word))
        if RETRACTS.match(pieces[at]) and (so := re.search(r",\sso\s(yes|no)\W*$", plain, re.IGNORECASE)) is not None:
            readings.append((at, so[1].lower()))
        heading = None
    if not readings and retracted < 0 and not hypothetical:
        if (restated := _restated_yes_no(pieces, question, cut=cut)) is not None or cut:
            return restated
        return _closing_yes_no(answer) or _implied_yes_no(pieces, question)
    after = {word for at, word in readings if at >= retracted} if retracted >= 0 else set()
    if retracted >= 0 and not after:
        return None
    words = after or {word for _, word in readings}
    return words.pop() if len(words) == 1 else None


def _closing_yes_no(answer: str) -> str | None:
    closing = re.search(r"\b(yes|no)\W*$", answer, re.IGNORECASE)
    if closing is None or re.search(r"\b(?:yes|no)\b\W+(?:or|and|nor)\W", answer, re.IGNORECASE):
        return None
    return closing[1].lower()


_ELLIPSIS = re.compile(
    r"(?:they|it|he|she|we|both|that|this) (?:do|does|did|is|are|was|were|has|have|had|can|will|would|could)"
    r"(?P<not>n't| not)?(?: (?:both|so|indeed))?\W*",
    re.IGNORECASE,
)
_DIFFERS = re.compile(r"\b(?:different|differ|differs|differed)\b", re.IGNORECASE)
_BOTH = re.compile(r"\b(?:both|also|too|each|all)\b|^they\b", re.IGNORECASE)
_NOT_BOTH = re.compile(
    r"\bonly (?:one|the|[A-Z])|\bnot (?:both|all)\b|\bneither\b|\bnot\b.{0,40}\bboth\b|n't both\b", re.IGNORECASE
)
_CONTRASTS = re.compile(r"\b(?:but|while|whereas|however|although|though|only)\b", re.IGNORECASE)
_EXCLUDES = re.compile(
    r"(?:,|\bbut|\band|\bis|\bare|\bwas|\bwere)\s(?:not|rather than|instead of)\s(?P<rest>[^.;]{1,200})"
)
_COMPARES = re.compile(
    r"^(?:is|are|was|were|does|did|do|has|have|had)\s(?:the\s)?(?P<first>[^?]{1,80}?)\s(?-i:[a-z]+\s){0,3}?"
    rf"(?P<how>{'|'.join(OPPOSITES)})\s(?:[a-z]+\s){{0,4}}?(?:than\s)?(?:the\s)?(?P<second>[A-Z][^?]{{0,80}})\?",
    re.IGNORECASE,
)


# "If it is so, the answer would be yes."
_HYPOTHETICAL = re.compile(
    rf"\bif\b.*\b{ANSWER_NOUN}\b.{{0,60}}\bwould be\b|\b{ANSWER_NOUN}\b.{{0,60}}\bwould be\b.*\bif\b", re.IGNORECASE
)
# Comparisons other than those that `_COMPARES` reads: which thing is more than the other is in the order of words.
_COMPARED_WITH = re.compile(r"^(?:would|could|can|will|should|might)\b.*\bthan\b", re.IGNORECASE)
_STATEMENT = re.compile(
    r"\b(?:statement|claim|idea|notion|assertion)\b(?P<says>.{1,200}?)\bis\s(?:therefore\s|thus\s|indeed\s)?"
    r"(?P<truth>true|correct|accurate|false|incorrect|inaccurate|not true|not correct|not accurate|untrue)\W*$",
    re.IGNORECASE,
)
_HEDGES = re.compile(
    r"\b(?:may|might|could|possible|possibly|perhaps|chance|probability|depends|depending|partly|partially|some"
    r"|sometimes|whether|not necessarily|if|unless|although|though|while|whereas|but|only|or|nearly|almost|seems?"
    r"|would (?:take|need|require|cost)|appears?|suggests?|assum\w+|question|determine|ask\w*|believed|claim\w*|myth"
    r"|said)\b",
    re.IGNORECASE,
)
_DENIALS = re.compile(
    r"\b(?:not|never|neither|nor|no|none|cannot|unlikely|impossible|unable|false|incorrect|fails?|without|lacks?)\b|n't\b",
    re.IGNORECASE,
)
_STATES = {"heads": "tails", "tails": "heads"}
_LIGHT = frozenset(
    [
        *["still", "now", "also", "really", "actually", "ever", "possible", "likely", "able", "there"],
        *["normally", "generally", "usually", "typically", "you", "one", "someone", "person", "somebody"],
    ]
)


def _restated_yes_no(pieces: Sequence[str], question: str, *, cut: bool) -> str | None:
    """Return the yes or no of a last or concluding sentence that says or denies all that the question asks.

    "It is unlikely that a hare would …", "Therefore, the statement '…' is false", "so the coin is still heads up".
    """
    questions = re.findall(r"[^.?!]+\?", " ".join(question.split()))
    if len(questions) != 1:
        return None
    words = [re.sub(f"[{BOLD}{BOX}{BOX_END}]", "", piece) for piece in (pieces[:-1] if cut else pieces)]
    ends = [] if cut else words[-1:]
    saying = [piece for piece in words if CONCLUDES.match(piece) or _LIKELY.search(piece)] + ends
    readings = [_says(piece, questions[0]) for piece in dict.fromkeys(saying)]
    known = {each for each in readings if each is not None}
    return known.pop() if len(known) == 1 else None


_LIKELY = re.compile(r"\b(?:un)?likely that\b", re.IGNORECASE)


def _says(sentence: str, question: str) -> str | None:
    """Return "yes" if a sentence says what a question asks, "no" if it denies it, and None if it does neither."""
    if (statement := _STATEMENT.search(sentence)) is not None:
        if _DENIALS.search(statement["says"]) or not _follows(statement["says"], question, {}):
            return None
        return "yes" if statement["truth"].lower() in ("true", "correct", "accurate") else "no"
    clauses = re.split(r",\s(?:and\s)?(?:so|therefore|thus|hence|meaning(?: that)?|which means(?: that)?)\s", sentence)
    clause = re.sub(
        r"^(?:however|overall|in conclusion|therefore|so|thus|hence),?\s", "", clauses[-1], flags=re.IGNORECASE
    )
    likely = _LIKELIHOOD.match(clause)
    if likely is not None and not (_DENIALS.search(likely["before"]) or _CONDITION.search(likely["before"])):
        clause = clause[likely.end() :]
    ability = re.match(r"(?:could|can)\b", question.strip(), re.IGNORECASE) is not None  # "It is not possible to …"
    unhedged = _HEDGES.sub(
        lambda hedge: (
            ""
            if re.search(rf"\b{hedge[0]}\b", question, re.IGNORECASE) or (ability and hedge[0].lower() == "possible")
            else hedge[0]
        ),
        clause,
    )
    if _HEDGES.search(unhedged) or re.search(r"\?", clause):
        return None
    if (swapped := _swapped(clause, question)) is not None:
        return swapped
    if (predicated := _predicated(clause, question)) is not None:
        return predicated
    denials = len(_DENIALS.findall(clause)) - len(_DENIALS.findall(question))
    if not _follows(clause, question, {}):
        # "The coin is now tails up" denies that it is heads up.
        return "no" if denials == 0 and _follows(clause, question, _STATES) else None
    return {0: "yes", 1: "no"}.get(denials)


_CONDITION = re.compile(r"\b(?:if|unless|although|though|while|but|whether)\b", re.IGNORECASE)
# "Based on the research, it is likely that …"
_LIKELIHOOD = re.compile(r"^(?P<before>.{0,200}?)\bit(?: is|'s) (?=(?:[a-z]+ )?(?:un)?likely that\b)", re.IGNORECASE)


def _swapped(clause: str, question: str) -> str | None:
    """Return "no" of "a bear would live longer than a lion" to "Would a lion live longer than a bear?"."""
    sides = [
        [
            {stem(word) for word in bare_tokens(side) if word not in FUNCTION_WORDS | _LIGHT}
            for side in text.split(" than ")
        ]
        for text in (re.sub(r"^\W*\w+\s", "", question), clause)
    ]
    if any(len(each) != 2 for each in sides) or _DENIALS.search(clause) or _DENIALS.search(question):
        return None
    (question_side, question_than), (side, than) = sides
    first, second = question_side - side, side - question_side
    return "no" if first and second and first <= than and second <= question_than and question_side & side else None


def _predicated(clause: str, question: str) -> str | None:
    """Return "no" of "it is not a prime number" to "Is 51 a prime number?", "yes" without "not"; None for the rest."""
    claim = re.match(
        r"(?:it|he|she)\s(?P<verb>is|was)(?P<not>\snot|n't)?\s(?P<says>[^,;]{1,200})$", clause, re.IGNORECASE
    )
    if (
        claim is None
        or not re.match(rf"\W*{claim['verb']}\s", question, re.IGNORECASE)
        or _DENIALS.search(claim["says"])
    ):
        return None
    words = [
        [_SOMEBODY.get(word, word) for word in bare_tokens(text) if word not in FUNCTION_WORDS]
        for text in (claim["says"], re.sub(r"^\W*\w+\s", "", question))
    ]
    subject, predicate = words[1][: -len(words[0])], words[1][-len(words[0]) :]
    names = re.findall(r"\b(?:[A-Z]|\d)[\w'.-]*", question)[1 if question.strip()[0].isupper() else 0 :]
    named = {word.lower().strip(".") for word in names}
    if not words[0] or words[0] != predicate or not subject or not (len(subject) == 1 or named >= {*subject}):
        return None
    return "no" if claim["not"] else "yes"


_SOMEBODY = dict.fromkeys(["anybody", "someone", "somebody", "everyone", "everybody"], "anyone")


def _follows(clause: str, question: str, states: dict[str, str]) -> bool:
    """Return True if a clause has the words of a question in their order, or their opposites in `states`."""
    stems_left = iter([stem(word) for word in bare_tokens(re.sub(r"[-\"']", " ", clause))])
    question_words = [
        word
        for word in bare_tokens(re.sub(r"[-\"']", " ", question))[1:]
        if word not in FUNCTION_WORDS and word not in _LIGHT
    ]
    return len(question_words) > 1 and all(stem(states.get(word, word)) in stems_left for word in question_words)


def _implied_yes_no(pieces: Sequence[str], question: str) -> str | None:
    """Return the yes or no that sentences imply without the word; None if they imply neither, or both.

    "They are not in the same district" says no to "Are they in the same district?", and "Both were American" says yes
    to "Were they of the same nationality?".
    """
    question = " ".join(question.split())
    if not question.endswith("?") or _COMPARED_WITH.search(question) or UNKNOWN.search(" ".join(pieces)[:400]):
        return None
    plain = [re.sub(r"\([^()]*\)", "", clean_words(without_lead_ins(piece))) for piece in pieces]
    concluding = [words for words, piece in zip(plain, pieces, strict=True) if CONCLUDES.match(piece)]
    if concluding and re.match(r"(?:but|however)\b", pieces[-1], re.IGNORECASE):
        return None
    if plain and (elliptic := _ELLIPSIS.fullmatch(plain[0])) is not None:
        return "no" if elliptic["not"] else "yes"
    if plain and re.fullmatch(r"(?:he|she|they|it) \w+ both\W*", plain[0], re.IGNORECASE):
        return "yes"
    if plain and re.match(r"not (?:really|exactly|quite|at all)\b", plain[0], re.IGNORECASE):
        return "no"
    implied = {word for words in concluding or plain if (word := _implied_by(words, question)) is not None}
    return implied.pop() if len(implied) == 1 else None


def _implied_by(sentence: str, question: str) -> str | None:
    compares = _COMPARES.match(question)
    if compares is not None:
        return _implied_by_comparison(sentence, compares["first"], compares["how"].lower(), compares["second"])
    stems, negated = content_stems(sentence), NEGATED.search(sentence) is not None
    if re.search(r"\bsame\b", question):
        if _DIFFERS.search(sentence) or (negated and "same" in stems):
            return "no" if not (negated and _DIFFERS.search(sentence)) else None
        if negated or _CONTRASTS.search(sentence):
            return None
        return "yes" if "same" in stems or re.search(r"\b(?:both|also)\b", sentence, re.IGNORECASE) else None
    if _UNDER_CONDITION.search(sentence) and not _UNDER_CONDITION.search(question):
        return None
    if _denies_verb(sentence, question):
        return "no"
    numbers = [set(re.findall(r"\d+", text)) for text in (question, sentence)]
    if all(numbers) and not numbers[0] & numbers[1]:
        return None  # of another number
    several = re.search(r"\b(?:both|and)\b", question) is not None
    if several and _NOT_BOTH.search(sentence):
        return "no"
    if _MODAL.search(sentence) and not _MODAL.search(question):
        return None
    question_words = [word for word in bare_tokens(question)[1:] if word not in FUNCTION_WORDS]
    tokens = bare_tokens(sentence)
    ends = [tokens.index(word) for word in (*question_words[:1], *question_words[-1:]) if tokens.count(word) == 1]
    if len(ends) == 2 and ends[0] > ends[1]:
        return None  # "A snail would not beat a horse" to "Would a horse beat a snail?"
    predicate = {unit_stem(word) for word in _predicate_words(question)}
    stems |= {unit_stem(word) for word in bare_tokens(sentence)}
    if not predicate & stems:
        return None
    excludes = _EXCLUDES.search(sentence)
    if excludes is not None:
        excluded = {unit_stem(word) for word in bare_tokens(excludes["rest"])}
        return "no" if predicate & excluded else None
    if _NEARLY.search(sentence) and not _NEARLY.search(question):
        return None
    if _CONTRASTS.search(sentence):
        both = _BOTH.search(sentence) is not None
        return "no" if several and not both else None
    if (
        not predicate <= stems
        and not several
        and (negated or _COPULA.match(question))
        and not _MODAL_VERB.match(question)
    ):
        return None  # "An odd number" to "Is it an even number?"
    if negated:
        return "no"
    verb = _ASKED_VERB.match(question[:1].lower() + question[1:])
    objects = {unit_stem(word.lower()) for word in re.findall(r"\b[A-Z]\w+", question)}
    has_verb = any(are_related(verb["verb"], word) for word in tokens) if verb is not None else True
    if predicate <= objects and not has_verb:
        return None
    names = {stem(word) for word in re.findall(r"\b[A-Z][\w'-]+", question)[1:]}
    names -= {stem(word) for word in _predicate_words(question)}
    whole = bool(names) and len(names & stems) * 2 >= len(names) and (not several or " and " in sentence)
    if any(word[:1].isupper() and unit_stem(word.lower()) not in stems for word in _quality(question)):
        return None  # "A Canadian band" to "Is it an American band?"
    return "yes" if _BOTH.search(sentence) or whole or re.match(r"(?:he|she|it)\b", sentence, re.IGNORECASE) else None


_COPULA = re.compile(r"(?:is|are|was|were)\b", re.IGNORECASE)
_MODAL_VERB = re.compile(r"(?:would|could|can|should|will|might)\b", re.IGNORECASE)
_UNDER_CONDITION = re.compile(r"\b(?:if|unless|until|provided that|except)\b", re.IGNORECASE)
_ASKED_VERB = re.compile(
    r"(?:did|does|do|could|can|would)\s(?P<subject>(?:the\s)?[A-Z][\w'.-]*(?:\s[A-Z][\w'.-]*){0,5})\s(?P<verb>[a-z]+)\b",
)


def _denies_verb(sentence: str, question: str) -> bool:
    """Return True for "He could not have joined it" to "Did Ann Berg join the crusade?"."""
    verb = _ASKED_VERB.match(question[:1].lower() + question[1:])
    if verb is None:
        return False
    subject = content_stems(verb["subject"])
    instead = re.search(
        r"\b(?P<verb>[a-z]+)\sby\s[^,]{1,80},\s(?:and\s)?not\s(?:by\s)?(?P<other>[^,.;]{1,80})", sentence
    )
    if instead is not None and are_related(verb["verb"], instead["verb"]):
        return subject <= content_stems(instead["other"])
    denied = re.search(
        r"\b(?:could|did|can|would|does|do)(?:n't|\snot|not|\snever)\s(?:(?:have|possibly)\s){0,2}(?P<verb>[a-z]+)\b(?P<rest>.*)$",
        sentence,
    )
    if denied is None or stem(denied["verb"]) != stem(verb["verb"]):
        return False
    same = bool(subject & content_stems(sentence[: denied.start()])) or re.match(
        r"(?:he|she|it)\b", sentence, re.IGNORECASE
    )
    rest = content_stems(denied["rest"]) - {"them", "him", "me", "us", "ha", "any"}
    return bool(same) and rest <= content_stems(question[verb.end() :])


_NEARLY = re.compile(r"\b(?:near|nearly|close to|almost|partly|partially|border)\b", re.IGNORECASE)


_MODAL = re.compile(
    r"\b(?:(?:im)?possible|(?:un)?likely|unable|unclear|whether|would (?:take|need|require|cost))\b", re.IGNORECASE
)


def _quality(question: str) -> list[str]:
    """Return the last two words of a question as written, if the last one is in lower case."""
    words = question.rstrip(" ?").split()[-2:]
    return words if words[-1].islower() else []


def _predicate_words(question: str) -> list[str]:
    """Return the last two words of a question about a quality, or the name at its end: "independent countries"."""
    words = [word for word in bare_tokens(question) if word not in FUNCTION_WORDS]
    tokens = question.rstrip(" ?").split()
    return words[-1:] if tokens[-1][:1].isupper() or not tokens[-2:][0][:1].islower() else words[-2:]


def _implied_by_comparison(sentence: str, first: str, measure: str, second: str) -> str | None:
    """Return "no" to "Is A taller than B?" for "B is taller" and "A is shorter"."""
    match = re.search(rf"\b(?P<word>{'|'.join([measure, *OPPOSITES[measure]])})\b", sentence, re.IGNORECASE)
    if match is None or NEGATED.search(sentence[match.start() :]):
        return None
    clauses = re.split(r",\s(?:so|therefore|thus|hence|and|while|whereas|but)\s|;\s", sentence[: match.start()])
    if re.match(r"(?:it|he|she|they)\b", clauses[-1], re.IGNORECASE):
        clauses[-1] = f"{' '.join(clauses[0].split()[:4])} {clauses[-1]}"
    subject = content_stems(clauses[-1])
    names = content_stems(first), content_stems(second)
    is_first, is_second = bool((names[0] - names[1]) & subject), bool((names[1] - names[0]) & subject)
    if is_first == is_second:
        return None
    if NEGATED.search(sentence[: match.start()]):
        return "no" if is_first and match["word"].lower() == measure else None
    return "yes" if is_first == (match["word"].lower() == measure) else "no"
