r"""Reader of free answers in words: what a model's answer claims, or None.

A claim ("the answer is …", "Answer: …", `\boxed{…}`) says the words; two claims that differ are unclear, unless words
between them take the first one back. Without a claim, the last conclusion or else the first sentence is read: its words
are those in bold, or the part that does not repeat the question. In a comparison ("…, A or B?") it is the thing with
which the sentence begins. A label that repeats the question ("Opera set in Peking: X") precedes the words, and a list
of names answers a question for several. An answer that says it does not know is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from itertools import pairwise

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

UNKNOWN = re.compile(
    r"\b(?:I (?:do not|don't|cannot|can't|could not|couldn't|am not able|am unable|'m not sure|am not sure"
    r"|'m unable|have no)"
    r"|I'm (?:not sure|not certain|unable|sorry)|(?:is|are|was) (?:not|n't) (?:\w+ )?(?:mentioned|specified"
    r"|stated|provided|given|known|clear|available|possible to)"
    r"|^none of the|has no\b|isn't (?:mentioned|specified|stated|clear)|(?:can(?:not|'t| not)) be (?:determined"
    r"|answered)|answer cannot be (?:given|found)|(?:not|no) enough information"
    r"|insufficient (?:information|evidence|context|data)"
    r"|\bno mention of|\bnot named (?:in|by)\b|^\W*information (?:is )?not (?:available|found|provided|given)"
    r"|\b(?:there (?:is|are|was|were)|contains?) no (?:\w+ )?(?:passages?|documents?|articles?|paragraphs?"
    r"|sources?|mention)\b"
    r"|no information|provides? no|gives? no|no answer|unanswerable|it is unclear|it's unclear"
    r"|(?:passages?|documents?|context|texts?|articles?|paragraphs?|sources?|results?|information)(?: \w+)?"
    r" (?:does|do|did)(?: not|n't)\b"
    r"|(?:does|do|did)(?: not|n't) (?:mention|specify|say|state|provide|give|tell|contain|include)"
    r"|(?:^|\n)\W*(?:I have )?(?:no idea|not sure|not certain|unknown|unclear|n/a"
    r"|not (?:mentioned|specified|stated|given|known|available|provided|applicable|found)"
    r"(?: (?:anywhere )?(?:in|by|from) (?:the|any|these|this)(?: \w+)? (?:passages?|documents?|context|text|sources?"
    r"|articles?|paragraphs?|information|excerpts?|results?))?)\W*(?:$|\n)|unknown$)",
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
    r"|[a-z]+ of|each|(?:also|commonly|[a-z]+ly) (?:known|called)|born"
    r"|known|located|founded|released|directed|written|making|so|with|also|rather|named"
    r"|then)\b.*$|\s-\s.*$|\s\([^()]*\)\s*[.]?$",
    re.IGNORECASE,
)
FUNCTION_WORDS = frozenset(
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


_DATE_COMMA = re.compile(r"(?<=\d) ,(?= ?\d{4}\b)")
# "Which three countries …?", "What are the names of …?"
_ASKS_SEVERAL = re.compile(
    r"\b(?:which|what|the|name|list)\s(?:are\b|were\b|(?:two|three|four|five|six|seven|eight|nine|ten|\d{1,2})\s)"
    r"|\b(?:which|what)\s(?:\w+\s){0,3}?\w+s\s(?:are|were|do|have)\b|^(?:which|what)\s(?!does)\w{3,}(?<![su])s\s[a-z]",
    re.IGNORECASE,
)
_HEDGE = re.compile(r"\bI(?: a|')m not (?:\w+ )?(?:sure|certain),? but,?\s", re.IGNORECASE)
NEGATED = re.compile(r"\b(?:not|never|neither|none|nor|cannot)\b|n't\b", re.IGNORECASE)
_PAIRS = [
    *["taller shorter", "longer shorter", "older younger", "larger smaller", "bigger smaller", "higher lower"],
    *["more fewer", "more less", "earlier later", "before after", "heavier lighter", "faster slower", "hotter colder"],
    *["deeper shallower", "richer poorer", "newer older", "closer farther", "nearer farther", "wider narrower"],
]
OPPOSITES = {
    word: [other for pair in _PAIRS if word in pair.split() for other in pair.split() if other != word]
    for pair in _PAIRS
    for word in pair.split()
}


def read_words(text: str, question: str = "", *, cut: bool = False) -> str | None:
    """Return the words that the text gives as the answer to the question; None if it gives none, or several.

    Args:
        text: The model's answer.
        question: The question. What a sentence repeats of it is not its answer.
        cut: The text ended at its token limit.
    """
    answer, cut = own_answer(text, question, cut=cut)
    answer = _DATE_COMMA.sub(",", _HEDGE.sub("", unglued(answer)))
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
        claimed = last_words_claim(re.sub(r"^[#>\s*-]+", "", plain))
        if boxes:
            if cut and at == len(pieces) - 1 and BOX_END not in piece[piece.rindex(BOX) :]:
                boxes.pop()  # its words may be cut off
            claims += ((at, clean_words(box)) for box in boxes)
        elif hashes is not None:
            claims.append((at, clean_words(hashes[1])))
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
    if cut or UNKNOWN.search(answer[:400]) or (retracted < 0 and len(_judged(pieces, question)) > 1):
        return None
    if (entries := _entries(pieces)) is not None:
        return ", ".join(entries) if _ASKS_SEVERAL.search(question) else None
    sentence = _answering_sentence(pieces, question, kind)
    return _after_label(sentence, question, kind) or _from_sentence(sentence, question, kind)


def _entries(pieces: Sequence[str]) -> list[str] | None:
    """Return the entries of an answer that is nothing but a numbered list of names."""
    entries = [re.fullmatch(r"\d{1,2}[.)]\s+(?P<entry>(?:the\s)?[A-Z\"][^:=]{0,80})", piece) for piece in pieces]
    named = [clean_words(entry["entry"]) for entry in entries if entry is not None]
    short = all(len(entry.split()) <= 6 for entry in named)
    return named if len(named) == len(pieces) > 1 and short else None


def _after_label(sentence: str, question: str, kind: AnswerKind | None) -> str | None:
    """Return X of "Opera set in Peking: X" to "Which opera is set in Peking?"."""
    match = re.fullmatch(r"(?P<label>[^:]{3,200}):\s+(?P<says>[^:]{1,100})", sentence.replace(BOLD, "").strip())
    if match is None or re.search(r"\bStep\s\d", match["label"]) or len(match["says"].split()) > 10:
        return None
    words = bare_tokens(match["label"])
    own = {word for word in match["label"].split() if word.islower()} - {"of", "the", "and", "a", "an", "is", "are"}
    if not own and not re.search(r"[\"']\s", match["label"]):
        return None  # "The Lord of the Rings: The Two Towers"
    label, target = content_stems(match["label"]), content_stems(question)
    says = clean_words(match["says"])
    if kind is not None and {*words} - {"the"} <= {kind.noun, *kind.relation}:
        target |= label  # "The owner: X" to "Who owned …?"
    if len(label & target) * 2 < len(label) or _VERB & {*words, *bare_tokens(says)}:
        return None
    if any(_is_finite(word) and following not in FUNCTION_WORDS for word, following in pairwise([*words, "of"])):
        return None  # not "based on", "set in"
    return says if content_stems(says) - target or says in question else None


def last_words_claim(plain: str) -> re.Match[str] | None:
    for pattern in (IS_ANSWER, ANSWER_LINE):
        if (match := pattern.search(plain)) is not None:
            return match
    match = _WORDS_CLAIM.search(plain)
    return match if match is not None and match["rest"].strip(" .") else None


def clean_words(words: str) -> str:
    """Return words without quotation marks, brackets around them and a final full stop."""
    words = " ".join(re.sub(f"[{BOLD}{BOX}{BOX_END}]", "", words).split()).strip(" \t\"'*_:,")
    if words.endswith(".") and not ABBREVIATION.search(words):
        words = words[:-1].rstrip(" \"'")
    if words[:1] == "(" and words[-1:] == ")" and words.count("(") == 1:
        words = words[1:-1]
    return words.strip(" \"'")


def _claimed_words(rest: str, question: str, kind: AnswerKind | None) -> str:
    words = clean_words(rest)
    if not words or UNKNOWN.search(words):
        return ""
    if re.match(r"(?:not|either|unknown|none of)\b", words, re.IGNORECASE):
        return ""
    if kind is not None and kind.kind == "location" and (site := _SITE.search(words)) is not None:
        return clean_words(site["says"])
    if (new := _after_repeated_clause(words, question)) is not None:
        return new
    shortened = clean_words(_REST_CUT.sub("", words))
    words = shortened or words
    if _is_sentence(words, question):
        return _from_sentence(words, question, kind) or words
    return "" if _offers_alternatives(words, question) else words


def _after_repeated_clause(words: str, question: str) -> str | None:
    """Return X of "Ann Bell worked for X" to a question that has "Ann Bell worked for"."""
    clause = re.match(r"[A-Z][^,;:]{1,80}? [a-z]+ed (?:for|in|at|by|as|with|to|on) ", words)
    if clause is None:
        return None
    repeated, words_of_question = (" ".join(re.findall(r"\w+", text.lower())) for text in (clause[0], question))
    return clean_words(words[clause.end() :]) if f" {repeated} " in f" {words_of_question} " else None


# "The hall, where they met, is located in Leeds."
_SITE = re.compile(
    r", where [^,]{1,120}, (?:is|was) (?:located|situated|found) (?:(?:in|at|near)\s)?"
    r"(?P<says>(?:within\s)?[^,;]{2,120})"
)


def _is_sentence(words: str, question: str) -> bool:
    tokens = words.lower().split()
    return len(tokens) > 3 and any(token in _VERB for token in tokens[1:])


def _offers_alternatives(words: str, question: str) -> bool:
    if re.search(r"\"[^\"]{1,60}\",? or (?:an? |the )?\"", words):
        return True
    if len(words.split()) < 8 and re.fullmatch(r"[A-Z][^\"]*\sor\s(?:the\s)?[A-Z][^\"]*", words):
        return True
    return re.search(r"\bor\b", words) is not None and re.search(r"\bor\b", question) is not None


def _agreed_words(claims: Sequence[str]) -> str | None:
    """Return the last claim if each claim has all words of another, or all are alike."""
    sets = [frozenset(bare_tokens(claim)) for claim in claims]
    last = sets[-1]
    return claims[-1] if all(each <= last or last <= each for each in sets) else None


def bare_tokens(text: str) -> list[str]:
    return [
        bare
        for token in text.lower().split()
        if (bare := token.strip(".,;:!?\"'()[]")) and bare not in ("a", "an", "the")
    ]


def without_lead_ins(sentence: str, *, answers: bool = True) -> str:
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
    if _STEP.match(plain[0]) or (_TASK.search(question[-2_000:]) and len(plain) > 1):
        return plain[-1]
    if len(compared := _compared(question)) == 2 and (judging := _judging(plain, question, compared)) is not None:
        return judging
    if re.search(r"\babout\W*$", question):
        about = [piece for piece in plain if re.search(r"\b(?:is|are|was|were)\sabout\s", piece)]
        if about:
            return about[0]
    bare = [clean_words(without_lead_ins(piece.replace(BOLD, ""))) for piece in plain]
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
        (piece for piece in plain if len(without_lead_ins(piece.replace(BOLD, "")).strip(" .:!")) > 0), plain[0]
    )


_STEP = re.compile(r"(?:[^\w\s]\s?)*Step\s1\b", re.IGNORECASE)
# "Take the last letters and concatenate them.": what is asked for comes last.
_TASK = re.compile(r"^[^?]*\band\s[a-z]+\s(?:them|it)\b[^?]*$")
# "The joined letters are: ment.", "the word is "arr," forming …"
_VALUE = re.compile(
    r"(?P<subject>[^:\"]{1,120}?(?:\"[^\"]{1,60}\"[^:\"]{1,60}?)?)\s(?:is|are|was|were)"
    r"(?::\s(?P<says>[^:]{1,120})|\s\"(?P<quoted>[^\"]{1,80}?)[,.]?\"(?:$|[.,]|(?<=,\")\s).*)$"
)


def _stated_value(whole: str, question_stems: Set[str]) -> str | None:
    """Return X of "The capital is: X" and of 'the word is "X," forming …' if the subject repeats the question."""
    match = _VALUE.match(whole)
    if match is None or not content_stems(match["subject"]) & question_stems:
        return None
    says = clean_words(match["says"] or match["quoted"])
    return says if content_stems(says) - question_stems else None


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
    tokens = bare_tokens(question)
    words = {word for word in tokens if word in OPPOSITES or word in ("first", "last", "most", "least")}
    judging = [
        piece
        for piece in plain
        if words & {*bare_tokens(piece)} and _named(clean_words(without_lead_ins(piece)), compared) is not None
    ]
    return judging[-1] if judging else None


def _judged(pieces: Sequence[str], question: str) -> set[str]:
    """Return the things that sentences of the form "A is older." name to "Who is older, A or B?"."""
    compared = _compared(question)
    words = "|".join(word for word in bare_tokens(question) if word in OPPOSITES)
    if len(compared) != 2 or not words:
        return set()
    plain = [clean_words(without_lead_ins(piece)) for piece in pieces]
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
        return clean_words(bold[0]) or None
    sentence = _plain_sentence(sentence, kind)
    full = clean_words(sentence)
    sentence = re.sub(r",\s(?:of\s)?(?:which|who|whose)\s[^,]{1,100},(?=\s)", "", sentence)
    sentence = re.sub(r"^not [^,]{1,60}, but (?:rather )?", "", sentence, flags=re.IGNORECASE)
    if kind is not None and kind.kind == "thing" and "name" not in question:
        sentence = re.sub(r"(?<=[a-z]) (?:named|called) [A-Z][^,;]*$", "", sentence)  # "an alligator named Albert"
    whole = clean_words(sentence)
    if re.search(r"\band (?:later|then|also)\b", whole):
        return None
    if not whole or UNKNOWN.search(whole):
        return None
    if _offers_alternatives(whole, question) and not re.search(r"\bnot\b", whole):
        return None
    compared = _compared(question)
    if (chosen := _chosen(whole, compared)) is not None:
        return chosen
    if (named := _named(whole, compared)) is not None:
        if (other := _other_of(named, whole, question, compared)) is not None:
            return other
        if re.match(rf"(?:the )?{re.escape(named)} (?:(?:is|was|did|does|has|had) not|\w+n't)\b", whole, re.IGNORECASE):
            measures = {word for word in bare_tokens(question) if word in OPPOSITES or word in ("first", "last")}
            return (
                next((thing for thing in compared if thing != named), None)
                if measures & {*bare_tokens(whole)}
                else None
            )
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
        return clean_words(entity[1])
    if (number := _counted(whole, question)) is not None:
        return number
    if _ASKS_ROLE.match(question) and (role := _ROLE.search(clean_words(_REST_CUT.sub("", whole)))) is not None:
        return role["says"] if "compete" in question else role[0]
    if (value := _stated_value(full, content_stems(question))) is not None:
        return value
    spelled = re.match(r"(?:the\s)?[\w.\"']{2,20}\s(?:stands for|is short for)\s(?P<says>[^.;(]{1,120})", full)
    if spelled is not None and re.search(r"\b(?:mean|meaning|stand|short|abbreviation|acronym|initials)\b", question):
        return clean_words(spelled["says"]) or None
    several = re.match(r"(?:what|who|which)\b.*?\b(?:are|were)\s", question, re.IGNORECASE) and _LISTED.search(whole)
    if several:
        return clean_words(several["list"])
    if (holder := _of_whose(full, question)) is not None:
        return holder
    if (names := _names_after_description(whole, question)) is not None:
        return names
    question_stems = frozenset(stem(token) for token in bare_tokens(question)) - FUNCTION_WORDS
    tokens = whole.split()
    if not _has_verb(whole, question_stems) or len(tokens) <= 2:
        if kind is not None and kind.kind in ("date", "year") and " - " in whole and (date := kind.part(whole)):
            return date
        if kind is not None and kind.kind == "location":
            whole = re.sub(r"^(?:in|on|at|near|from)\s", "", whole, flags=re.IGNORECASE)
        return clean_words(_REST_CUT.sub("", whole)) or whole
    if kind is not None and (part := kind.part(full)) is not None:
        return clean_words(kind.without_noun(kind.without_description(kind.trimmed(part)))) or None
    if re.match(r"who\b", question, re.IGNORECASE):
        if (agent := re.search(r".*\bby (?:the )?([A-Z].*)$", clean_words(_REST_CUT.sub("", sentence)))) is not None:
            return clean_words(agent[1])
        if (
            re.fullmatch(r"(?:[A-Z][\w.'-]*\s)+(?:is|was)\s(?:the|a|an)\s[^A-Z]+", whole)
            and stem(tokens[0].lower()) not in question_stems
        ):
            return re.split(r"\s(?:is|was)\s", whole)[0]
    if (subject := _defined_subject(tokens, question_stems)) is not None:
        return subject
    if re.search(r"\babout\W*$", question) and (about := re.search(r"\babout\s(.+)", whole)) is not None:
        return clean_words(about[1]) or None
    if (predicate := _defining_predicate(whole, question, question_stems)) is not None:
        return predicate
    runs = _runs(_REST_CUT.sub("", sentence) or sentence, question_stems)
    runs = [run for run in runs if not _ADVERB.fullmatch(run[0])] or runs
    if runs and _MANNER.match(question):
        return clean_words(runs[-1][0]) or None
    if not runs:
        return _predicate(whole)
    copula = [run for run in runs if run[1]]
    run = (copula or runs)[-1 if copula else 0][0]
    if kind is not None:
        run = kind.without_noun(kind.trimmed(run))
    return clean_words(re.sub(r"^(?:[a-z]+\s)*(?:by|in|from|as|on|at|with)\s(?=[A-Z\d\"])", "", run)) or None


# "What did the hero do in the war?", "As what did she compete?": "served as a nurse"
_ASKS_ROLE = re.compile(r"(?:in|as)?\s?what did [^?]{1,200}\b(?:do|compete|compete (?:in|as))\b[^?]*\?", re.IGNORECASE)
_ROLE = re.compile(r"\b(?:competed|served|performed|fought|raced)\s(?:as|in|for)\s(?P<says>[^,;]+)$")


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
    sentence = without_lead_ins(sentence)
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
        "fought",
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
                and bare not in FUNCTION_WORDS
                and not (token[:1].isupper() and current and current[-1][:1].isupper() and not pending)
            )
        ):
            if current and not pending and bare not in _VERB and " ".join(current).islower() and not _is_finite(token):
                current.append(token)  # "flowering plants", if the question asks for plants
            if current:
                runs.append((current, leads))
            current, pending = [], []
        elif bare in FUNCTION_WORDS or not bare:
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
    subject = [bare for token in tokens[:verb] for bare in bare_tokens(token)]
    rest = [bare for token in tokens[verb + 1 :] for bare in bare_tokens(token) if bare not in FUNCTION_WORDS]
    if not verb or not subject or not rest or tokens[0].lower() in FUNCTION_WORDS - {"the", "a", "an"}:
        return None
    is_name = all(token[:1].isupper() for token in tokens[:verb]) and tokens[0] != "The"
    repeated = [stem(word) in question_stems for word in subject]
    if (all(repeated) if is_name else any(repeated)) or stem(rest[0]) not in question_stems:
        return None
    return clean_words(" ".join(tokens[:verb]))


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
    return clean_words(match["says"]) if new else None


def _of_whose(full: str, question: str) -> str | None:
    """Return X of "…, whose mother was X" to "Who is the mother of …?"."""
    noun = re.match(r"(?:who|what|which) (?:is|was|are|were) the (?P<noun>[a-z]+) of\b", question, re.IGNORECASE)
    if noun is None:
        return None
    relation = re.search(rf"\bwhose {noun['noun']} (?:is|was|are|were) (?P<says>[^,;]{{2,100}})", full)
    return clean_words(_REST_CUT.sub("", relation["says"])) if relation is not None else None


# "The brothers who ruled together were Ann Bell and Tom Bell."
_DESCRIBED = re.compile(
    r"[Tt]he (?P<subject>[a-z][^,;:]{2,160}?) (?:is|are|was|were) "
    r"(?P<names>[A-Z][\w.'-]*(?: (?:(?:of|the|de|von|van|and) )?[A-Z][\w.'-]*){1,9})"
    r"(?:, (?:in|on|at|from|during)\b.*)?$"
)


def _names_after_description(whole: str, question: str) -> str | None:
    """Return the names at the end of a sentence whose beginning describes them in words of the question."""
    match = _DESCRIBED.match(whole)
    if match is None:
        return None
    stems = content_stems(question)
    subject, names = content_stems(match["subject"]), content_stems(match["names"])
    known = len(subject & stems) * 2 >= len(subject)
    return clean_words(match["names"]) if known and names and not names & stems else None


def _content_words(text: str) -> list[str]:
    return [word for word in bare_tokens(text) if word not in FUNCTION_WORDS]


def _predicate(whole: str) -> str | None:
    """Return the words after the first verb."""
    words = whole.split()
    at = next((at for at, word in enumerate(words) if at and word.lower() in _VERB), len(words))
    while at < len(words) and words[at].lower() in (*_VERB, "called", "named", "known", "as", "the", "a", "an"):
        at += 1
    return clean_words(" ".join(words[at:])) or None


_COMPARATIVE = re.compile(r"\b(?:[a-z]{2,}(?:er|est)|more|most|less|fewer|first|last|both|two|same)\b", re.IGNORECASE)


# "Between A and B, which is longer?", "Which of the two, A or B, is longer?"
_BETWEEN = re.compile(
    r"^(?:between|of)\s(?P<things>[^,?]{1,160}\s(?:and|or)\s[^,?]{1,80}),\s(?P<rest>(?:which|who|what)\b[^?]{1,300})\?$"
    r"|^(?P<first>(?:which|who|what)\b[^,?]{0,80}),\s(?P<pair>[^,?]{1,80}\sor\s[^,?]{1,80}),\s[^,?]{1,200}\?$",
    re.IGNORECASE,
)


def _compared(question: str) -> list[str]:
    """Return the two things that a question compares: "…, A or B?"."""
    question = question[-2_000:].strip()
    if (between := _BETWEEN.match(question)) is not None:
        question = f"{between['rest'] or between['first']}, {between['things'] or between['pair']}?"
    match = re.search(
        r"(?:(?:^|[,:]|\bbetween)\s*(?:the\s)?([^,:?]{1,80}?),?\sor|(?:[,:]|\bbetween)\s*(?:the\s)?([^,:?]{1,80}?),?\sand)"
        r"\s([^,?]{1,80})\?\s*$",
        question,
    )
    if match is not None and match[2] and not _COMPARATIVE.search(question):
        return []  # "Which ocean lies between Africa and Australia?"
    if match is not None and match[2] and match[3][:1].isdigit() and re.search(r"(?:^|\bbetween )\d", match[2]):
        return []  # "between 25 mm and 51 mm"
    return [] if match is None else [clean_words(match[1] or match[2]), clean_words(match[3])]


def _other_of(named: str, whole: str, question: str, compared: Sequence[str]) -> str | None:
    """Return B for "A is lower than B" if the question asks which is higher."""
    comparatives = [word for word in bare_tokens(question) if word in OPPOSITES]
    opposite = comparatives and re.search(rf"\b(?:{'|'.join(OPPOSITES[comparatives[0]])}) (?:\w+ ){{0,2}}than\b", whole)
    if not opposite or re.search(rf"\b{comparatives[0]}\b", whole) or NEGATED.search(whole):
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
    plain = [" ".join(bare_tokens(text)) for text in (whole.replace("(", " ("), *things)]
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
