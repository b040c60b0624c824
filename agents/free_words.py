r"""Reader of free answers in words, or in yes or no: what a model's answer claims, or None.

A claim ("the answer is …", "Answer: …", `\boxed{…}`) says the words; two claims that differ are unclear, unless words
between them take the first one back. Without a claim, the last conclusion or else the first sentence is read: its words
are those in bold, or the part that does not repeat the question. In a comparison ("…, A or B?") it is the thing with
which the sentence begins. An answer that says it does not know is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    MONTH,
    RETRACTS,
    answer_pieces,
    own_answer,
)

_UNKNOWN = re.compile(
    r"\b(?:I (?:do not|don't|cannot|can't|could not|couldn't|am not able|am unable|'m not sure|am not sure"
    r"|'m unable|have no)"
    r"|I'm (?:not sure|not certain|unable|sorry)|(?:is|are|was) (?:not|n't) (?:\w+ )?(?:mentioned|specified"
    r"|stated|provided|given|known|clear|available|possible to)"
    r"|^none of the|has no\b|isn't (?:mentioned|specified|stated|clear)|(?:can(?:not|'t| not)) be (?:determined"
    r"|answered)|(?:not|no) enough information|insufficient information"
    r"|no information|provides? no|gives? no|no answer|unanswerable|it is unclear|it's unclear|does not (?:mention"
    r"|specify|say|state|provide)|do not (?:mention|specify|say|state|provide)|unknown$)",
    re.IGNORECASE,
)  # fmt: skip
_LEAD_IN = re.compile(
    r"^(?:(?:based on|according to|from|in|given|as (?:stated|mentioned|per)|considering|looking at|after reviewing)"
    r"(?: in)? [^,.]{0,90}?"
    r"(?:passages?|documents?|context|text|information|paragraphs?|sources?|articles?|facts|question|knowledge"
    r"|wikipedia)[^,.:]{0,60}[,:]"
    r"|sure[!,.]|certainly[!,.]|of course[!,.]|okay[!,.]|ok[!,.]|great question[!,.]|so,?|therefore,?|thus,?"
    r"|hence,?|in conclusion,?|in summary,?|to conclude,?"
    r"|let's think step by step[.:,]?|yes[,.!]|no[,.!]|well,|i believe(?: that)?|i think(?: that)?|(?:i would"
    r"|i'd) say(?: that)?|it is likely(?: that)?|the passages? (?:say|state|mention)s? that"
    r"|here is the answer:|finally,|and)\s*",
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
    r"|as (?:indicated|described|shown|noted))\b.*$|;.*$|,\s(?:an?|the|not|but|and (?:he|she|it|they|not)"
    r"|[a-z]+ of|born|known|located|founded|released|directed|written|making|so|with|also|rather|named"
    r"|then)\b.*$|\s-\s.*$|\s\([^()]*\)\s*[.]?$",
    re.IGNORECASE,
)
_FUNCTION = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "in",
        "on",
        "at",
        "by",
        "for",
        "to",
        "from",
        "with",
        "and",
        "or",
        "as",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "has",
        "have",
        "had",
        "do",
        "does",
        "did",
        "will",
        "would",
        "can",
        "could",
        "that",
        "this",
        "these",
        "those",
        "it",
        "its",
        "he",
        "she",
        "they",
        "his",
        "her",
        "their",
        "there",
        "who",
        "whom",
        "whose",
        "which",
        "what",
        "when",
        "where",
        "why",
        "how",
        "called",
        "named",
        "known",
        "also",
        "both",
        "then",
        "not",
        "no",
        "yes",
        "about",
        "during",
        "into",
        "than",
        "so",
        "because",
        "since",
    ]
)
_VERB = frozenset(
    [
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "has",
        "have",
        "had",
        "does",
        "did",
        "do",
        "will",
        "would",
        "can",
        "could",
    ]
)


def read_yes_no(text: str, question: str = "", *, cut: bool = False) -> str | None:
    """Return "yes" or "no" as the text claims; None if it claims neither, or both."""
    answer, _ = own_answer(text)
    readings: list[tuple[int, str]] = []
    retracted = -1
    heading: re.Match[str] | None = None
    for at, piece in enumerate(answer_pieces(answer)):
        if RETRACTS.match(piece):
            retracted = at
            piece = re.sub(rf"^[\W{BOLD}]+", "", RETRACTS.sub("", piece, count=1))
        if ANSWER_HEADING.match(piece):
            heading = ANSWER_HEADING.match(piece)
            continue
        plain = re.sub(f'[{BOLD}{BOX}{BOX_END}"`#]', "", piece)
        claimed = _last_words_claim(plain)
        part = claimed["rest"] if claimed is not None else _without_lead_ins(plain, answers=False)
        match = re.match(
            r"[\s:,.(*-]*(yes|no|yeah|nope|true|false)\b(?!\s(?:one|other|idea|answer|clue|information|evidence|mention|matter|longer))",
            part,
            re.IGNORECASE,
        )
        strong = claimed is not None or heading is not None or BOX in piece
        if match is not None and (strong or not readings):
            word = "yes" if match[1].lower() in ("yes", "yeah", "true") else "no"
            if re.match(r"\W{0,3}\s?(?:or|and|/)\s?(?:yes|no)\b", part[match.end() :], re.IGNORECASE):
                return None
            readings.append((at, word))
        heading = None
    if not readings and retracted < 0 and (closing := re.search(r"\b(yes|no)\W*$", answer, re.IGNORECASE)) is not None:
        readings.append((0, closing[1].lower()))
        if re.search(r"\b(?:yes|no)\b\W+(?:or|and|nor)\W", answer, re.IGNORECASE):
            return None
    after = {word for at, word in readings if at >= retracted} if retracted >= 0 else set()
    if retracted >= 0 and not after:
        return None
    words = after or {word for _, word in readings}
    return words.pop() if len(words) == 1 else None


def read_words(text: str, question: str = "", *, cut: bool = False) -> str | None:
    """Return the words that the text gives as the answer to the question; None if it gives none, or several.

    Args:
        text: The model's answer.
        question: The question. What a sentence repeats of it is not its answer.
        cut: The text ended at its token limit.
    """
    answer, cut = own_answer(text, cut=cut)
    pieces = answer_pieces(answer)
    if not pieces:
        return None
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
                claims.append((at, _claimed_words(claimed["rest"], question)))
        elif heading:
            claims.append((at, _claimed_words(plain, question)))
        heading = False
    kept = [words for at, words in claims if at >= retracted and words]
    if retracted >= 0 and not kept:
        corrected = _from_sentence(re.sub(r"^[\W_]+", "", RETRACTS.sub("", pieces[retracted])), question)
        return corrected if corrected and claims and not cut else None
    if kept:
        return _agreed_words(kept)
    if cut or _UNKNOWN.search(answer[:400]):
        return None
    return _from_sentence(_answering_sentence(pieces, question), question)


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


def _claimed_words(rest: str, question: str) -> str:
    words = _clean(rest)
    if not words or _UNKNOWN.search(words):
        return ""
    if re.match(r"(?:not|either|unknown|none of)\b", words, re.IGNORECASE):
        return ""
    shortened = _clean(_REST_CUT.sub("", words))
    words = shortened or words
    if _is_sentence(words, question):
        return _from_sentence(words, question) or words
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


def _answering_sentence(pieces: Sequence[str], question: str) -> str:
    """Return the last conclusion; else "the capital … is" if the question is for one; else the first full sentence."""
    plain = [re.sub(f"[{BOX}{BOX_END}`]", "", piece).lstrip("#>-* ") for piece in pieces]
    concluding = [piece for piece in plain if CONCLUDES.match(piece)]
    if concluding:
        return concluding[-1]
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


def _stem(word: str) -> str:
    word = re.sub(r"'s?$", "", word)
    for ending in ("ing", "ed", "es", "s", "e", "or", "er"):
        if len(word) - len(ending) >= 4 and word.endswith(ending):
            return word[: -len(ending)]
    return word


_ASKS_YEAR = re.compile(r"(?:in |during )?(?:what|which) year\b|when\b", re.IGNORECASE)


def _from_sentence(sentence: str, question: str) -> str | None:
    """Return the part of a sentence that answers the question."""
    bold = re.findall(f"{BOLD}([^{BOLD}]+){BOLD}", sentence)
    if len(bold) == 1 and len(bold[0]) < len(sentence) - 4:
        return _clean(bold[0]) or None
    sentence = re.sub(r"^(it|that|he|she)'s ", r"\1 is ", sentence, flags=re.IGNORECASE)
    sentence = re.split(r",\s(?:and\s)?(?:so|therefore|thus|hence)\s", sentence.replace(BOLD, ""))[-1]
    sentence = re.sub(r",\s(?:of\s)?(?:which|who|whose)\s[^,]{1,100},", "", _without_lead_ins(sentence))
    whole = _clean(sentence)
    if re.search(r"\band (?:later|then|also)\b", whole):
        return None
    if not whole or _UNKNOWN.search(whole):
        return None
    if _offers_alternatives(whole, question) and not re.search(r"\bnot\b", whole):
        return None
    compared = _compared(question)
    if (named := _named(whole, compared)) is not None:
        return named
    if compared and re.search(r"\bor\b", question) and whole.split()[0].lower() in ("they", "both", "neither"):
        return None
    if re.match(r"either\b.*\bor\b", whole, re.IGNORECASE):
        return None
    if compared and all(thing.casefold() in whole.casefold() for thing in compared):
        return None
    years = re.findall(r"\b(?:1\d|20)\d\d\b", whole)
    if len(set(years)) == 1 and not re.search(rf"\b{MONTH}\s", whole) and _ASKS_YEAR.match(question):
        return str(years[0])
    question_stems = {_stem(token) for token in _bare_tokens(question)} - _FUNCTION
    tokens = whole.split()
    starts = tokens[0].lower() in ("they", "he", "she", "it", "both", "there")
    verbal = starts or any(token.lower().strip(".,") in _VERB or _is_finite(token) for token in tokens[1:])
    verbal = verbal or any(
        token[:1].islower() and _stem(token.lower().strip(".,")) in question_stems for token in tokens[1:]
    )
    if not verbal or len(tokens) <= 2:
        return _clean(_REST_CUT.sub("", whole)) or whole
    if re.match(r"who\b", question, re.IGNORECASE):
        if (agent := re.search(r".*\bby (?:the )?([A-Z].*)$", _clean(_REST_CUT.sub("", sentence)))) is not None:
            return _clean(agent[1])
        if (
            re.fullmatch(r"(?:[A-Z][\w.'-]*\s)+(?:is|was)\s(?:the|a|an)\s[^A-Z]+", whole)
            and _stem(tokens[0].lower()) not in question_stems
        ):
            return re.split(r"\s(?:is|was)\s", whole)[0]
    if (subject := _defined_subject(tokens, question_stems)) is not None:
        return subject
    runs = _runs(_REST_CUT.sub("", sentence) or sentence, question_stems)
    if not runs:
        return _predicate(whole)
    copula = [run for run in runs if run[1]]
    chosen = (copula or runs)[-1 if copula else 0]
    return _clean(re.sub(r"^(?:[a-z]+\s)+(?:by|in|from|as|on|at|with)\s(?=[A-Z\d\"])", "", chosen[0])) or None


def _is_finite(token: str) -> bool:
    word = token.lower().strip(".,")
    return (word.endswith("ed") and len(word) > 4) or word in (
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
    )


def _runs(sentence: str, question_stems: set[str]) -> list[tuple[str, bool]]:
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
            or (_is_finite(token) and token[:1].islower())
            or (
                _stem(bare) in question_stems
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


def _defined_subject(tokens: Sequence[str], question_stems: set[str]) -> str | None:
    """Return X in "X is the capital of …" if the question asks for the capital and does not name X."""
    verb = next((at for at, token in enumerate(tokens) if at and token.lower() in _VERB), 0)
    subject = [bare for token in tokens[:verb] for bare in _bare_tokens(token)]
    rest = [bare for token in tokens[verb + 1 :] for bare in _bare_tokens(token) if bare not in _FUNCTION]
    if not verb or not subject or not rest or tokens[0].lower() in _FUNCTION - {"the", "a", "an"}:
        return None
    if any(_stem(word) in question_stems for word in subject) or _stem(rest[0]) not in question_stems:
        return None
    return _clean(" ".join(tokens[:verb]))


def _predicate(whole: str) -> str | None:
    """Return the words after the first verb."""
    words = whole.split()
    at = next((at for at, word in enumerate(words) if at and word.lower() in _VERB), len(words))
    while at < len(words) and words[at].lower() in (*_VERB, "called", "named", "known", "as", "the", "a", "an"):
        at += 1
    return _clean(" ".join(words[at:])) or None


def _compared(question: str) -> list[str]:
    """Return the two things that a question compares: "…, A or B?"."""
    match = re.search(r"(?:^|[,:]|\bbetween)\s*(?:the\s)?([^,:?]{1,80}?),?\s(?:or|and)\s([^,?]{1,80})\?\s*$", question)
    return [] if match is None else [_clean(match[1]), _clean(match[2])]


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
    return named[0] if len(named) == 1 else None
