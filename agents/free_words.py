r"""Reader of free answers in words, or in yes or no: what a model's answer claims, or None.

A claim ("the answer is …", "Answer: …", `\boxed{…}`) says the words; two claims that differ are unclear, unless words
between them take the first one back. Without a claim, the last conclusion or else the first sentence is read: its words
are those in bold, or the part that does not repeat the question. In a comparison ("…, A or B?") it is the thing with
which the sentence begins. An answer that says it does not know is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from .answer_kinds import AnswerKind, content_stems, stem, unit_stem
from .answer_text import (
    ABBREVIATION,
    ANSWER_HEADING,
    ANSWER_LINE,
    ANSWER_NOUN,
    BOLD,
    BOX,
    BOX_END,
    CONCLUDES,
    FIRST_TRY,
    IS_ANSWER,
    RETRACTS,
    WORD_MARK,
    answer_pieces,
    own_answer,
    unglued,
)
from .written_numbers import number_words_as_digits

_UNKNOWN = re.compile(
    r"\b(?:I (?:do not|don't|cannot|can't|could not|couldn't|am not able|am unable|'m not sure|am not sure"
    r"|'m unable|have no)"
    r"|I'm (?:not sure|not certain|unable|sorry)|(?:is|are|was) (?:not|n't) (?:\w+ )?(?:mentioned|specified"
    r"|stated|provided|given|known|clear|available|possible to)"
    r"|^none of the|has no\b|isn't (?:mentioned|specified|stated|clear)|(?:can(?:not|'t| not)) be (?:determined"
    r"|answered)|(?:not|no) enough information|insufficient information"
    r"|no information|provides? no|gives? no|no answer|unanswerable|it is unclear|it's unclear"
    r"|(?:does|do|did)(?: not|n't) (?:mention|specify|say|state|provide|give|tell|contain|include)"
    r"|unknown$)",
    re.IGNORECASE,
)  # fmt: skip
_LEAD_IN = re.compile(
    r"^(?:(?:based on|according to|from|in|given|as (?:stated|mentioned|per)|considering|looking at|after reviewing)"
    r"(?: in)? [^,.]{0,90}?"
    r"(?:passages?|documents?|context|text|information|paragraphs?|sources?|articles?|facts|question|knowledge"
    r"|wikipedia)[^,.:]{0,60}[,:]"
    r"|sure[!,.]|certainly[!,.]|of course[!,.]|okay[!,.]|ok[!,.]|great question[!,.]|so\b,?|therefore,?|thus\b,?"
    r"|hence\b,?|in conclusion,?|in summary,?|to conclude,?"
    r"|let's think step by step[.:,]?|yes[,.!]|no[,.!]|well,|i believe(?: that)?|i think(?: that)?|(?:i would"
    r"|i'd) say(?: that)?|it is likely(?: that)?|the passages? (?:say|state|mention)s? that"
    r"|here is the answer:|finally,|and\b)\s*",
    re.IGNORECASE,
)
_WORDS_CLAIM = re.compile(
    rf"(?P<final>final\s)?{ANSWER_NOUN}{BOLD}?(?:\s(?:to|for|of|in)\s[^:=]{{0,120}}?)??{BOLD}?"
    r"(?:\s?[:=：]|\s?是|\s(?:therefore|thus|then|hence)?\s?\b(?:is|are|was|were|would be|should be|must be"
    r"|ist|es|est|è|é)\b(?:\s(?:that|therefore|thus|most likely|likely|clearly))?:?)(?P<rest>.*)$",
    re.IGNORECASE,
)
_REST_CUT = re.compile(
    r"(?:,|;|\s-|\.)?\s\(?(?:because|since|as (?:he|she|it|they|the|both|stated|mentioned|per)|which|who"
    r"|where|whose|according to|based on (?:the|these|this|its)\s(?:passage|context|text|document|information)"
    r"|given that|who's|when|while|although"
    r"|as (?:indicated|described|shown|noted))\b.*$|;.*$|,\s(?:an?|the|not|but|by|from|and (?:he|she|it|they|not)"
    r"|[a-z]+ of|each|(?:also|commonly|[a-z]+ly) (?:known|called)|born|known|located|founded|released|directed|written|making|so|with|also|rather|named"
    r"|then)\b.*$|\s-\s.*$|\s\([^()]*\)\s*[.]?$",
    re.IGNORECASE,
)
_FUNCTION = frozenset(
    [
        *["a", "an", "the", "of", "in", "on", "at", "by", "for", "to", "from", "with", "and", "or", "as", "is", "are"],
        *["was", "were", "be", "been", "being", "has", "have", "had", "do", "does", "did", "will", "would", "can"],
        *["could", "that", "this", "these", "those", "it", "its", "he", "she", "they", "his", "her", "their", "there"],
        *["who", "whom", "whose", "which", "what", "when", "where", "why", "how", "called", "named", "known", "also"],
        *["both", "then", "not", "no", "yes", "about", "during", "into", "than", "so", "because", "since"],
    ]
)
_VERB = frozenset(
    [
        *["is", "are", "was", "were", "be", "been", "being", "has", "have", "had", "does", "did", "do"],
        *["will", "would", "can", "could"],
    ]
)


_HEDGE = re.compile(r"\bI(?: a|')m not (?:\w+ )?(?:sure|certain),? but,?\s", re.IGNORECASE)


def read_yes_no(text: str, question: str = "", *, cut: bool = False) -> str | None:
    """Return "yes" or "no" as the text claims; None if it claims neither, or both."""
    answer, _ = own_answer(text)
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
        claimed = _last_words_claim(plain)
        if _HYPOTHETICAL.search(plain) is not None:
            hypothetical = True
            heading = None
            continue
        part = claimed["rest"] if claimed is not None else _without_lead_ins(plain, answers=False)
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
_NEGATED = re.compile(r"\b(?:not|never|neither|none|nor|cannot)\b|n't\b", re.IGNORECASE)
_DIFFERS = re.compile(r"\b(?:different|differ|differs|differed)\b", re.IGNORECASE)
_BOTH = re.compile(r"\b(?:both|also|too|each|all)\b|^they\b", re.IGNORECASE)
_NOT_BOTH = re.compile(
    r"\bonly (?:one|the|[A-Z])|\bnot (?:both|all)\b|\bneither\b|\bnot\b.{0,40}\bboth\b|n't both\b", re.IGNORECASE
)
_CONTRASTS = re.compile(r"\b(?:but|while|whereas|however|although|though|only)\b", re.IGNORECASE)
_EXCLUDES = re.compile(
    r"(?:,|\bbut|\band|\bis|\bare|\bwas|\bwere)\s(?:not|rather than|instead of)\s(?P<rest>[^.;]{1,200})"
)
_PAIRS = [
    *["taller shorter", "longer shorter", "older younger", "larger smaller", "bigger smaller", "higher lower"],
    *["more fewer", "more less", "earlier later", "before after", "heavier lighter", "faster slower", "hotter colder"],
    *["deeper shallower", "richer poorer", "newer older", "closer farther", "nearer farther", "wider narrower"],
]
_OPPOSITES = {
    word: [other for pair in _PAIRS if word in pair.split() for other in pair.split() if other != word]
    for pair in _PAIRS
    for word in pair.split()
}
_COMPARES = re.compile(
    r"^(?:is|are|was|were|does|did|do|has|have|had)\s(?:the\s)?(?P<first>[^?]{1,80}?)\s(?-i:[a-z]+\s){0,3}?"
    rf"(?P<how>{'|'.join(_OPPOSITES)})\s(?:[a-z]+\s){{0,4}}?(?:than\s)?(?:the\s)?(?P<second>[A-Z][^?]{{0,80}})\?",
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
    r"\b(?:may|might|could|possible|possibly|perhaps|chance|probability|depends|depending|partly|partially|some|sometimes|whether"
    r"|not necessarily|if|unless|although|though|while|whereas|but|only|or|nearly|almost|seems?|appears?|suggests?|assum\w+"
    r"|question|determine|ask\w*|believed|claim\w*|myth|said)\b",
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
    asked = re.findall(r"[^.?!]+\?", " ".join(question.split()))
    if len(asked) != 1:
        return None
    words = [re.sub(f"[{BOLD}{BOX}{BOX_END}]", "", piece) for piece in (pieces[:-1] if cut else pieces)]
    ends = [] if cut else words[-1:]
    saying = [piece for piece in words if CONCLUDES.match(piece) or _LIKELY.search(piece)] + ends
    said = [_says(piece, asked[0]) for piece in dict.fromkeys(saying)]
    known = {each for each in said if each is not None}
    return known.pop() if len(known) == 1 else None


_LIKELY = re.compile(r"\b(?:un)?likely that\b", re.IGNORECASE)


def _says(sentence: str, question: str) -> str | None:
    """Return "yes" if a sentence says what a question asks, "no" if it denies it, and None if it does neither."""
    if (statement := _STATEMENT.search(sentence)) is not None:
        if _DENIALS.search(statement["says"]) or not _follows(statement["says"], question, {}):
            return None
        return "yes" if statement["truth"].lower() in ("true", "correct", "accurate") else "no"
    clauses = re.split(r",\s(?:and\s)?(?:so|therefore|thus|hence|meaning(?: that)?|which means(?: that)?)\s", sentence)
    clause = re.sub(r"^(?:however|overall|in conclusion|therefore|so|thus|hence),?\s", "", clauses[-1], flags=re.IGNORECASE)
    said = _HEDGES.sub(lambda hedge: "" if re.search(rf"\b{hedge[0]}\b", question, re.IGNORECASE) else hedge[0], clause)
    if _HEDGES.search(said) or re.search(r"\?", clause):
        return None
    denials = len(_DENIALS.findall(clause)) - len(_DENIALS.findall(question))
    if not _follows(clause, question, {}):
        # "The coin is now tails up" denies that it is heads up.
        return "no" if denials == 0 and _follows(clause, question, _STATES) else None
    return {0: "yes", 1: "no"}.get(denials)


def _follows(clause: str, question: str, states: dict[str, str]) -> bool:
    """Return True if a clause has the words of a question in their order, or their opposites in `states`."""
    found = iter([stem(word) for word in _bare_tokens(re.sub(r"[-\"']", " ", clause))])
    asked = [
        word
        for word in _bare_tokens(re.sub(r"[-\"']", " ", question))[1:]
        if word not in _FUNCTION and word not in _LIGHT
    ]
    return len(asked) > 1 and all(stem(states.get(word, word)) in found for word in asked)


def _implied_yes_no(pieces: Sequence[str], question: str) -> str | None:
    """Return the yes or no that sentences imply without the word; None if they imply neither, or both.

    "They are not in the same district" says no to "Are they in the same district?", and "Both were American" says yes
    to "Were they of the same nationality?".
    """
    question = " ".join(question.split())
    if not question.endswith("?") or _COMPARED_WITH.search(question) or _UNKNOWN.search(" ".join(pieces)[:400]):
        return None
    plain = [re.sub(r"\([^()]*\)", "", _clean(_without_lead_ins(piece))) for piece in pieces]
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
    stems, negated = content_stems(sentence), _NEGATED.search(sentence) is not None
    if re.search(r"\bsame\b", question):
        if _DIFFERS.search(sentence) or (negated and "same" in stems):
            return "no" if not (negated and _DIFFERS.search(sentence)) else None
        if negated or _CONTRASTS.search(sentence):
            return None
        return "yes" if "same" in stems or re.search(r"\b(?:both|also)\b", sentence, re.IGNORECASE) else None
    several = re.search(r"\b(?:both|and)\b", question) is not None
    if several and _NOT_BOTH.search(sentence):
        return "no"
    if _MODAL.search(sentence) and not _MODAL.search(question):
        return None
    asked = [word for word in _bare_tokens(question)[1:] if word not in _FUNCTION]
    tokens = _bare_tokens(sentence)
    if len(asked) > 1 and asked[0] in tokens and tokens.count(asked[-1]) == 1 and tokens.index(asked[0]) > tokens.index(asked[-1]):
        return None  # "A snail would not beat a horse" to "Would a horse beat a snail?"
    predicate = {unit_stem(word) for word in _predicate_words(question)}
    stems |= {unit_stem(word) for word in _bare_tokens(sentence)}
    if not predicate & stems:
        return None
    excludes = _EXCLUDES.search(sentence)
    if excludes is not None:
        excluded = {unit_stem(word) for word in _bare_tokens(excludes["rest"])}
        return "no" if predicate & excluded else None
    if _NEARLY.search(sentence) and not _NEARLY.search(question):
        return None
    if _CONTRASTS.search(sentence):
        both = _BOTH.search(sentence) is not None
        return "no" if several and not both else None
    if negated:
        return "no"
    names = {stem(word) for word in re.findall(r"\b[A-Z][\w'-]+", question)[1:]}
    names -= {stem(word) for word in _predicate_words(question)}
    whole = bool(names) and len(names & stems) * 2 >= len(names) and (not several or " and " in sentence)
    return "yes" if _BOTH.search(sentence) or whole or re.match(r"(?:he|she|it)\b", sentence, re.IGNORECASE) else None


_NEARLY = re.compile(r"\b(?:near|nearly|close to|almost|partly|partially|border)\b", re.IGNORECASE)


_MODAL = re.compile(r"\b(?:(?:im)?possible|(?:un)?likely|unable|unclear|whether)\b", re.IGNORECASE)


def _predicate_words(question: str) -> list[str]:
    """Return the last two words of a question about a quality, or the name at its end: "independent countries"."""
    words = [word for word in _bare_tokens(question) if word not in _FUNCTION]
    tokens = question.rstrip(" ?").split()
    return words[-1:] if tokens[-1][:1].isupper() or not tokens[-2:][0][:1].islower() else words[-2:]


def _implied_by_comparison(sentence: str, first: str, measure: str, second: str) -> str | None:
    """Return "no" to "Is A taller than B?" for "B is taller" and "A is shorter"."""
    match = re.search(rf"\b(?P<word>{'|'.join([measure, *_OPPOSITES[measure]])})\b", sentence, re.IGNORECASE)
    if match is None or _NEGATED.search(sentence[match.start() :]):
        return None
    clauses = re.split(r",\s(?:so|therefore|thus|hence|and|while|whereas|but)\s|;\s", sentence[: match.start()])
    if re.match(r"(?:it|he|she|they)\b", clauses[-1], re.IGNORECASE):
        clauses[-1] = f"{' '.join(clauses[0].split()[:4])} {clauses[-1]}"
    subject = content_stems(clauses[-1])
    names = content_stems(first), content_stems(second)
    is_first, is_second = bool((names[0] - names[1]) & subject), bool((names[1] - names[0]) & subject)
    if is_first == is_second:
        return None
    if _NEGATED.search(sentence[: match.start()]):
        return "no" if is_first and match["word"].lower() == measure else None
    return "yes" if is_first == (match["word"].lower() == measure) else "no"


def read_words(text: str, question: str = "", *, cut: bool = False) -> str | None:
    """Return the words that the text gives as the answer to the question; None if it gives none, or several.

    Args:
        text: The model's answer.
        question: The question. What a sentence repeats of it is not its answer.
        cut: The text ended at its token limit.
    """
    answer, cut = own_answer(text, cut=cut)
    answer = _HEDGE.sub("", unglued(answer))
    pieces = answer_pieces(answer)
    if not pieces:
        return None
    kind = AnswerKind.from_question(question, text) if not _compared(question) else None
    claims: list[tuple[int, str]] = []
    retracted = -1
    heading = False
    for at, piece in enumerate(pieces):
        if RETRACTS.match(piece):
            retracted = at
        boxes = re.findall(f"{BOX}([^{BOX_END}]*)(?:{BOX_END}|$)", piece)
        plain = re.sub(f"[{BOLD}{BOX}{BOX_END}`]", "", piece)
        if ANSWER_HEADING.match(plain):
            heading = True
            continue
        hashes = re.match(r"^####\s*(.+)$", plain)
        claimed = _last_words_claim(re.sub(r"^[#>\s*-]+", "", plain))
        if boxes:
            claims += ((at, _clean(box)) for box in boxes)
        elif hashes is not None:
            claims.append((at, _clean(hashes[1])))
        elif claimed is not None and not FIRST_TRY.search(plain):
            if not (cut and at == len(pieces) - 1 and not re.search(r"[.!?\"')]$", plain)):
                claims.append((at, _claimed_words(claimed["rest"], question, kind)))
        elif heading:
            claims.append((at, _claimed_words(plain, question, kind)))
        heading = False
    kept = [words for at, words in claims if at >= retracted and words]
    if retracted >= 0 and not kept:
        corrected = _from_sentence(re.sub(r"^[\W_]+", "", RETRACTS.sub("", pieces[retracted])), question, kind)
        return corrected if corrected and claims and not cut else None
    if kept:
        return _agreed_words(kept)
    if cut or _UNKNOWN.search(answer[:400]) or (retracted < 0 and len(_judged(pieces, question)) > 1):
        return None
    return _from_sentence(_answering_sentence(pieces, question, kind), question, kind)


def _last_words_claim(plain: str) -> re.Match[str] | None:
    for pattern in (IS_ANSWER, ANSWER_LINE):
        if (match := pattern.search(plain)) is not None:
            return match
    match = _WORDS_CLAIM.search(plain)
    return match if match is not None and match["rest"].strip(" .") else None


def _clean(words: str) -> str:
    """Return words without quotation marks, brackets around them and a final full stop."""
    words = " ".join(re.sub(f"[{BOLD}{BOX}{BOX_END}]", "", words).split()).strip(" \t\"'*_:,")
    if words.endswith(".") and not ABBREVIATION.search(words):
        words = words[:-1].rstrip(" \"'")
    if words[:1] == "(" and words[-1:] == ")" and words.count("(") == 1:
        words = words[1:-1]
    return words.strip(" \"'")


def _claimed_words(rest: str, question: str, kind: AnswerKind | None) -> str:
    words = _clean(rest)
    if not words or _UNKNOWN.search(words):
        return ""
    if re.match(r"(?:not|either|unknown|none of)\b", words, re.IGNORECASE):
        return ""
    shortened = _clean(_REST_CUT.sub("", words))
    words = shortened or words
    if _is_sentence(words, question):
        return _from_sentence(words, question, kind) or words
    return "" if _offers_alternatives(words, question) else words


def _is_sentence(words: str, question: str) -> bool:
    tokens = words.lower().split()
    return len(tokens) > 3 and any(token in _VERB for token in tokens[1:])


def _offers_alternatives(words: str, question: str) -> bool:
    if len(words.split()) < 8 and re.fullmatch(r"[A-Z][^\"]*\sor\s(?:the\s)?[A-Z][^\"]*", words):
        return True
    return re.search(r"\bor\b", words) is not None and re.search(r"\bor\b", question) is not None


def _agreed_words(claims: Sequence[str]) -> str | None:
    """Return the last claim if each claim has all words of another, or all are alike."""
    sets = [frozenset(_bare_tokens(claim)) for claim in claims]
    last = sets[-1]
    return claims[-1] if all(each <= last or last <= each for each in sets) else None


def _bare_tokens(text: str) -> list[str]:
    return [
        bare
        for token in text.lower().split()
        if (bare := token.strip(".,;:!?\"'()[]")) and bare not in ("a", "an", "the")
    ]


def _without_lead_ins(sentence: str, *, answers: bool = True) -> str:
    previous = None
    while previous != sentence:
        previous = sentence
        match = _LEAD_IN.match(sentence)
        if match is not None and (answers or not re.match(r"(?:yes|no)\b", match[0], re.IGNORECASE)):
            sentence = sentence[match.end() :]
    return sentence


def _answering_sentence(pieces: Sequence[str], question: str, kind: AnswerKind | None) -> str:
    """Return the last conclusion; else "the capital … is" if the question is for one; else the first full sentence."""
    plain = [re.sub(f"[{BOX}{BOX_END}`]", "", piece).lstrip("#>-* ") for piece in pieces]
    concluding = [piece for piece in plain if CONCLUDES.match(piece)]
    if concluding:
        return concluding[-1]
    if len(compared := _compared(question)) == 2 and (judging := _judging(plain, question, compared)) is not None:
        return judging
    if re.search(r"\babout\W*$", question):
        about = [piece for piece in plain if re.search(r"\b(?:is|are|was|were)\sabout\s", piece)]
        if about:
            return about[0]
    bare = [_clean(_without_lead_ins(piece.replace(BOLD, ""))) for piece in plain]
    first = next((words for words in bare if words), "")
    if (emphasised := _with_answer_in_bold(pieces, question)) is not None:
        return emphasised
    if kind is not None and len(plain) > 1:
        saying = [piece for piece in plain if kind.says_noun(_plain_sentence(piece, kind))]
        if saying:
            return saying[-1]
    if kind is not None and _has_verb(first, kind.stems):
        related = [piece for piece in plain if kind.relates(piece) >= 0]
        certain = [piece for piece in related or plain if kind.part(_plain_sentence(piece, kind)) is not None]
        if related and not certain and kind.kind in ("date", "year"):
            certain = [piece for piece in plain if kind.part(_plain_sentence(piece, kind)) is not None]
        if certain or related:
            return (certain or related)[0]
    focus = re.search(
        r"\b(?:(?:what|which)\s(?:is\s|was\s|are\s|were\s)?(?:the\s)?|who\s(?:is|was)\sthe\s(?:(?:first|last|current)\s)?)(\w+)",
        question,
        re.IGNORECASE,
    )
    if focus is not None:
        named = [
            piece
            for piece in plain
            if re.match(
                rf"(?:the|its|his|her|their)\s(?:\w+\s)?{re.escape(focus[1])}\b.*\b(?:is|was|are|were)\b",
                piece,
                re.IGNORECASE,
            )
        ]
        if named:
            return named[-1]
    return next(
        (piece for piece in plain if len(_without_lead_ins(piece.replace(BOLD, "")).strip(" .:!")) > 0), plain[0]
    )


def _counted(whole: str, question: str) -> str | None:
    """Return the number before the noun of "how many …" in a sentence."""
    match = re.search(
        r"\bhow many ((?:[\w-]+ ){0,5}?[\w-]+)(?= (?:do|does|did|is|are|was|were|has|have|had|can|will)\b)",
        question,
        re.IGNORECASE,
    )
    if match is None:
        return None
    noun = unit_stem(re.split(r"\s(?:of|in|on)\s", match[1])[0].split()[-1].lower())
    before = re.finditer(r"(?<![\w.,])([\d,.]*\d|[A-Za-z-]+)(?=((?: [\w'-]+){1,4}))", whole)
    counts = {
        each[1]
        for each in before
        if noun in map(unit_stem, each[2].lower().split())
        and re.fullmatch(rf"{WORD_MARK}?[\d,.]+", number_words_as_digits(each[1]))
    }
    return counts.pop() if len(counts) == 1 else None


def _judging(plain: Sequence[str], question: str, compared: Sequence[str]) -> str | None:
    """Return the last sentence that names one of the things and has the comparative of the question."""
    tokens = _bare_tokens(question)
    words = {word for word in tokens if word in _OPPOSITES or word in ("first", "last", "most", "least")}
    judging = [
        piece
        for piece in plain
        if words & {*_bare_tokens(piece)} and _named(_clean(_without_lead_ins(piece)), compared) is not None
    ]
    return judging[-1] if judging else None


def _judged(pieces: Sequence[str], question: str) -> set[str]:
    """Return the things that sentences of the form "A is older." name to "Who is older, A or B?"."""
    compared = _compared(question)
    words = "|".join(word for word in _bare_tokens(question) if word in _OPPOSITES)
    if len(compared) != 2 or not words:
        return set()
    plain = [_clean(_without_lead_ins(piece)) for piece in pieces]
    judging = (piece for piece in plain if re.search(rf"\b(?:is|was|are|were) (?:the )?(?:{words})$", piece))
    return {thing for piece in judging if (thing := _named(piece, compared)) is not None}


def _with_answer_in_bold(pieces: Sequence[str], question: str) -> str | None:
    """Return the sentence after the first with the only words in bold that are no label and new to the question."""
    stems = content_stems(question)
    bold = [
        (piece, words)
        for piece in pieces[1:]
        for words in re.findall(f"{BOLD}([^{BOLD}]+){BOLD}", piece)
        if not words.rstrip().endswith(":") and not piece.split(words)[1].startswith(f"{BOLD}:")
    ]
    if len({words for _, words in bold}) != 1 or BOLD in pieces[0]:
        return None
    piece, words = bold[-1]
    return piece if len(words.split()) <= 6 and content_stems(words) - stems and len(piece) > len(words) + 4 else None


def _from_sentence(sentence: str, question: str, kind: AnswerKind | None) -> str | None:
    """Return the part of a sentence that answers the question."""
    bold = re.findall(f"{BOLD}([^{BOLD}]+){BOLD}", sentence)
    if len(bold) == 1 and len(bold[0]) < len(sentence) - 4:
        return _clean(bold[0]) or None
    sentence = _plain_sentence(sentence, kind)
    full = _clean(sentence)
    sentence = re.sub(r",\s(?:of\s)?(?:which|who|whose)\s[^,]{1,100},(?=\s)", "", sentence)
    sentence = re.sub(r"^not [^,]{1,60}, but (?:rather )?", "", sentence, flags=re.IGNORECASE)
    if kind is not None and kind.kind == "thing" and "name" not in question:
        sentence = re.sub(r"(?<=[a-z]) (?:named|called) [A-Z][^,;]*$", "", sentence)  # "an alligator named Albert"
    whole = _clean(sentence)
    if re.search(r"\band (?:later|then|also)\b", whole):
        return None
    if not whole or _UNKNOWN.search(whole):
        return None
    if _offers_alternatives(whole, question) and not re.search(r"\bnot\b", whole):
        return None
    compared = _compared(question)
    if (chosen := _chosen(whole, compared)) is not None:
        return chosen
    if (named := _named(whole, compared)) is not None:
        if (other := _other_of(named, whole, question, compared)) is not None:
            return other
        title = re.match(r"[^,]{1,80},\s([A-Z][^,]{1,60}),\s(?:is|was|has|had)\b", whole)
        return title[1] if title is not None and named[:1].islower() else named
    if compared and re.search(r"\bor\b", question) and whole.split()[0].lower() in ("they", "both", "neither"):
        return None
    if re.match(r"either\b.*\bor\b", whole, re.IGNORECASE):
        return None
    if compared and all(thing.casefold() in whole.casefold() for thing in compared):
        return None
    entity = _ENTITY_AND_ASIDE.match(whole)
    if entity is not None and not any(_is_finite(word) or word in _VERB for word in entity[1].split()):
        return _clean(entity[1])
    if (number := _counted(whole, question)) is not None:
        return number
    several = re.match(r"(?:what|who|which)\b.*?\b(?:are|were)\s", question, re.IGNORECASE) and _LISTED.search(whole)
    if several:
        return _clean(several["list"])
    question_stems = frozenset(stem(token) for token in _bare_tokens(question)) - _FUNCTION
    tokens = whole.split()
    if not _has_verb(whole, question_stems) or len(tokens) <= 2:
        if kind is not None and kind.kind == "location":
            whole = re.sub(r"^(?:in|on|at|near|from)\s", "", whole, flags=re.IGNORECASE)
        return _clean(_REST_CUT.sub("", whole)) or whole
    if kind is not None and (part := kind.part(full)) is not None:
        return _clean(kind.without_noun(kind.without_description(kind.trimmed(part)))) or None
    if re.match(r"who\b", question, re.IGNORECASE):
        if (agent := re.search(r".*\bby (?:the )?([A-Z].*)$", _clean(_REST_CUT.sub("", sentence)))) is not None:
            return _clean(agent[1])
        if (
            re.fullmatch(r"(?:[A-Z][\w.'-]*\s)+(?:is|was)\s(?:the|a|an)\s[^A-Z]+", whole)
            and stem(tokens[0].lower()) not in question_stems
        ):
            return re.split(r"\s(?:is|was)\s", whole)[0]
    if (subject := _defined_subject(tokens, question_stems)) is not None:
        return subject
    if re.search(r"\babout\W*$", question) and (about := re.search(r"\babout\s(.+)", whole)) is not None:
        return _clean(about[1]) or None
    if (predicate := _defining_predicate(whole, question, question_stems)) is not None:
        return predicate
    runs = _runs(_REST_CUT.sub("", sentence) or sentence, question_stems)
    runs = [run for run in runs if not _ADVERB.fullmatch(run[0])] or runs
    if runs and _MANNER.match(question):
        return _clean(runs[-1][0]) or None
    if not runs:
        return _predicate(whole)
    copula = [run for run in runs if run[1]]
    run = (copula or runs)[-1 if copula else 0][0]
    if kind is not None:
        run = kind.without_noun(kind.trimmed(run))
    return _clean(re.sub(r"^(?:[a-z]+\s)+(?:by|in|from|as|on|at|with)\s(?=[A-Z\d\"])", "", run)) or None


def _has_verb(sentence: str, question_stems: Set[str]) -> bool:
    tokens = sentence.split()
    if not tokens:
        return False
    if tokens[0].lower() in ("they", "he", "she", "it", "both", "there"):
        return True
    if tokens[0].lower() in ("in", "on", "at", "near") and "," not in sentence:
        return any(token.lower().strip(".,") in _VERB for token in tokens[1:])
    return any(
        token.lower().strip(".,") in _VERB
        or _is_finite(token)
        or (token[:1].islower() and stem(token.lower().strip(".,")) in question_stems)
        for token in tokens[1:]
    )


def _plain_sentence(sentence: str, kind: AnswerKind | None) -> str:
    """Return a sentence without lead-ins, and without dates in brackets unless the question asks for one."""
    sentence = re.sub(r"^(it|that|he|she)'s ", r"\1 is ", sentence.replace(BOLD, ""), flags=re.IGNORECASE)
    sentence = re.split(r",\s(?:and\s)?(?:so|therefore|thus|hence)\s", sentence)[-1]
    if kind is None or kind.kind not in ("date", "year"):
        sentence = _DATES_IN_BRACKETS.sub("", sentence)
    sentence = _without_lead_ins(sentence)
    return kind.without_opening(sentence) if kind is not None else sentence


# "Emma, published in 1815": a name and what follows on it, without a verb.
_ENTITY_AND_ASIDE = re.compile(
    r"([A-Z\d][^,]{1,80}),\s(?:\w+ed|written|born|set|made|built|starring|featuring|also|which|who)\s[^,]*$"
)
_DATES_IN_BRACKETS = re.compile(
    r"\s\((?:born|b\.|d\.|died|c\.|circa|formed|founded|released)?[^()]{0,40}?\d{4}[^()]{0,40}\)"
)


def _is_finite(token: str) -> bool:
    word = token.lower().strip(".,")
    return (word.endswith("ed") and len(word) > 3) or word in (
        "wrote",
        "won",
        "made",
        "became",
        "came",
        "began",
        "took",
        "sang",
        "led",
        "built",
        "held",
        "plays",
        "played",
        "uses",
        "contains",
        "means",
    )


def _runs(sentence: str, question_stems: Set[str]) -> list[tuple[str, bool]]:
    """Return runs of words that the question does not have, and whether a run follows a verb or preposition."""
    runs: list[tuple[list[str], bool]] = []
    current: list[str] = []
    pending: list[str] = []
    before = ""
    leads = False
    for token in sentence.split():
        bare = token.lower().strip(".,;:!?\"'()[]")
        if (
            bare in _VERB
            or (_is_finite(token) and token[:1].islower() and before not in ("a", "an"))
            or (
                stem(bare) in question_stems
                and bare not in _FUNCTION
                and not (token[:1].isupper() and current and current[-1][:1].isupper() and not pending)
            )
        ):
            if current and not pending and bare not in _VERB and " ".join(current).islower() and not _is_finite(token):
                current.append(token)  # "flowering plants", if the question asks for plants
            if current:
                runs.append((current, leads))
            current, pending = [], []
        elif bare in _FUNCTION or not bare:
            if current:
                pending.append(token)
        else:
            if not current:
                leads = before in _VERB or before in (
                    "by",
                    "in",
                    "at",
                    "on",
                    "a",
                    "an",
                    "the",
                    "named",
                    "called",
                    "as",
                    "of",
                    "to",
                    "from",
                    "for",
                )
            current += [*pending, token]
            pending = []
            if token[-1:] in ",;:" and not pending and token[-1:] != ",":
                runs.append((current, leads))
                current = []
        before = bare
    if current:
        runs.append((current, leads))
    return [(" ".join(run), leads) for run, leads in runs]


def _defined_subject(tokens: Sequence[str], question_stems: Set[str]) -> str | None:
    """Return X in "X is the capital of …" if the question asks for the capital and does not name X."""
    verb = next((at for at, token in enumerate(tokens) if at and token.lower() in _VERB), 0)
    subject = [bare for token in tokens[:verb] for bare in _bare_tokens(token)]
    rest = [bare for token in tokens[verb + 1 :] for bare in _bare_tokens(token) if bare not in _FUNCTION]
    if not verb or not subject or not rest or tokens[0].lower() in _FUNCTION - {"the", "a", "an"}:
        return None
    is_name = all(token[:1].isupper() for token in tokens[:verb]) and tokens[0] != "The"
    repeated = [stem(word) in question_stems for word in subject]
    if (all(repeated) if is_name else any(repeated)) or stem(rest[0]) not in question_stems:
        return None
    return _clean(" ".join(tokens[:verb]))


_ADVERB = re.compile(r"(?:often|usually|sometimes|currently|now|mostly|generally|[a-z]{3,}ly|[.,;:]|\s)+")
# "The three parts are the root, the stem and the leaf."
_LISTED = re.compile(r"\b(?:are|were)\s(?P<list>(?:[^,]{1,40},\s){1,12}(?:[^,]{1,40}\s)?and\s[^,]{1,60})$")
_MANNER = re.compile(r"how (?:does|do|did|is|are|was|were)\b(?! (?:many|much|old|long|far))", re.IGNORECASE)


def _defining_predicate(whole: str, question: str, question_stems: Set[str]) -> str | None:
    """Return "a sign of luck" of "The clover is a sign of luck and …" to a question for what the clover is."""
    if not re.match(r"what (?:is|are|was|were|does)\b", question, re.IGNORECASE):
        return None
    match = re.match(
        r"(?P<subject>[^,]{1,80}?)\s(?:is|are|was|were)\s(?P<says>an?\s[^,;]{1,100}?)"
        r"(?=,|;|\sand\s(?:is|was|has|are)\b|\s(?:that|which|who)\b|$)",
        whole,
    )
    if match is None or not all(stem(word) in question_stems for word in _content_words(match["subject"])):
        return None
    new = [word for word in _content_words(match["says"]) if stem(word) not in question_stems]
    return _clean(match["says"]) if new else None


def _content_words(text: str) -> list[str]:
    return [word for word in _bare_tokens(text) if word not in _FUNCTION]


def _predicate(whole: str) -> str | None:
    """Return the words after the first verb."""
    words = whole.split()
    at = next((at for at, word in enumerate(words) if at and word.lower() in _VERB), len(words))
    while at < len(words) and words[at].lower() in (*_VERB, "called", "named", "known", "as", "the", "a", "an"):
        at += 1
    return _clean(" ".join(words[at:])) or None


_COMPARATIVE = re.compile(r"\b(?:[a-z]{2,}(?:er|est)|more|most|less|fewer|first|last|both|two|same)\b", re.IGNORECASE)


def _compared(question: str) -> list[str]:
    """Return the two things that a question compares: "…, A or B?"."""
    match = re.search(
        r"(?:(?:^|[,:]|\bbetween)\s*(?:the\s)?([^,:?]{1,80}?),?\sor|(?:[,:]|\bbetween)\s*(?:the\s)?([^,:?]{1,80}?),?\sand)"
        r"\s([^,?]{1,80})\?\s*$",
        question,
    )
    if match is not None and match[2] and not _COMPARATIVE.search(question):
        return []  # "Which ocean lies between Africa and Australia?"
    return [] if match is None else [_clean(match[1] or match[2]), _clean(match[3])]


def _other_of(named: str, whole: str, question: str, compared: Sequence[str]) -> str | None:
    """Return B for "A is lower than B" if the question asks which is higher."""
    comparatives = [word for word in _bare_tokens(question) if word in _OPPOSITES]
    opposite = comparatives and re.search(rf"\b(?:{'|'.join(_OPPOSITES[comparatives[0]])}) than\b", whole)
    if not opposite or re.search(rf"\b{comparatives[0]}\b", whole) or _NEGATED.search(whole):
        return None
    return next((thing for thing in compared if thing != named), None)


_THEREFORE = re.compile(r",\s(?:making|which makes|so|meaning(?: that)?|which means(?: that)?)\s(?:the\s)?")


def _chosen(whole: str, compared: Sequence[str]) -> str | None:
    """Return the thing after "making", "so" or "meaning" in a sentence that speaks of both."""
    for match in _THEREFORE.finditer(whole):
        chosen = [thing for thing in compared if whole[match.end() :].casefold().startswith(thing.casefold())]
        if chosen:
            return chosen[0]
    return None


def _named(whole: str, things: Sequence[str]) -> str | None:
    """Return the thing with which a sentence begins."""
    plain = [" ".join(_bare_tokens(text)) for text in (whole.replace("(", " ("), *things)]
    named = [
        thing
        for thing, words in zip(things, plain[1:], strict=True)
        if words and re.match(rf"{re.escape(words)}(?! and| or|\w)", plain[0])
    ]
    if not named and sum(words in plain[0] for words in plain[1:]) == 1:
        named = [
            thing for thing, words in zip(things, plain[1:], strict=True) if words and plain[0].endswith(f" is {words}")
        ]
    if not named and plain[0]:
        first, following = [*plain[0].split(), "", ""][:2]
        surnames = ["".join(words.split()[-1:]) for words in plain[1:]]
        if following not in ("and", "or") and surnames.count(first) == 1:
            named = [things[surnames.index(first)]]
    return named[0] if len(named) == 1 else None
