"""The text of a free answer, prepared for reading: plain, up to its end, in sentences that each say one thing.

Markup is removed, except that marks stand for bold text and for the boxes of LaTeX. Answers in tags and in JSON become
sentences "Final answer: …". A text after which the model poses itself another question ends there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

from .forms import readable_text

BOLD = "\ue000"  # begins and ends bold text
BOX, BOX_END = "\ue001", "\ue002"
WORD_MARK = "\ue003"  # before a number that was written as a word
_CHARACTERS: dict[int, str | None] = dict.fromkeys(range(0xE000, 0xE004), " ")
_CHARACTERS.update(dict.fromkeys(map(ord, "\u00a0\u2007\u202f\u2009\u3000\t"), " "))
_CHARACTERS.update(dict.fromkeys(map(ord, "\u200b\u200c\u200d\ufeff\u00ad\u2060"), None))
_CHARACTERS.update(dict.fromkeys(map(ord, "‐‑‒–—―−﹣－"), "-"))
_CHARACTERS.update(dict.fromkeys(map(ord, "‘’ʼ′"), "'"))
_CHARACTERS.update(dict.fromkeys(map(ord, "“”„«»"), '"'))
_CHARACTERS.update({ord("："): ":", ord("＝"): "=", ord("。"): ". ", ord("，"): ", ", ord("，"): ", ", ord("×"): "*"})
_CHARACTERS.update({ord("÷"): "/", ord("⁄"): "/", ord("∕"): "/", ord("·"): "*", ord("\r"): "\n", ord("≈"): "="})
_CHARACTERS.update({0xFF10 + digit: str(digit) for digit in range(10)})
_CHARACTERS.update(
    {
        ord(sign): f" {Fraction(text)}"
        for sign, text in zip("½¼¾⅓⅔⅕⅛", ["1/2", "1/4", "3/4", "1/3", "2/3", "1/5", "1/8"], strict=True)
    }
)
# Sentences of a text, and characters of a sentence, that are read: some patterns take more than linear time.
_MAX_PIECES, _MAX_PIECE = 300, 800
_MAX_ENTRY = 12  # a number before a full stop and another number is that of a list's entry up to this one
_LATEX_SPACES = re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!|\{\\,\}|,\\!)(?=\d{3})")
_FRACTION = re.compile(r"(\d?)\s?\\[dtc]?frac\s?\{\s*(-?[\d,.]+)\s*\}\s?\{\s*([\d,.]+)\s*\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s?(\d)\s?(\d)")
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|operatorname|mbox|textrm|mathit)\s?\{([^{}]{0,300})\}")
_LATEX_SIGNS = {
    r"\times": "*", r"\cdot": "*", r"\div": "/", r"\approx": "=", r"\%": "%", r"\$": "$", r"\#": "#", r"\&": "&",
    r"\left": "", r"\right": "", r"\therefore": "so", r"\implies": "->", r"\Rightarrow": "->", r"\rightarrow": "->",
    r"\ldots": "", r"\dots": "", r"\degree": "°", r"\circ": "°", r"\pounds": "£", r"\euro": "€", r"\,": " ",
    r"\;": " ", r"\:": " ", r"\!": "", r"\quad": " ", r"\\": "\n", r"\ ": " ", r"\_": "_", r"\n": "\n",
}  # fmt: skip
_LATEX_SIGN = re.compile(
    "|".join(
        re.escape(sign) + (r"(?![A-Za-z])" if sign[-1].isalpha() else "")
        for sign in sorted(_LATEX_SIGNS, key=len, reverse=True)
    ),
)
_LATEX_REST = re.compile(r"\\[()\[\]]|\\(?:begin|end)\{[^{}]{0,40}\}|\\[A-Za-z]{1,20}|\\")
_STRUCK = re.compile(r"~~[^~\n]{1,300}~~|<(?:s|del)>[^<\n]{1,300}</(?:s|del)>")
_ANSWER_TAG = re.compile(
    r"<\s?(?:final_?)?answer\s?>(.{0,2000}?)(?:<\s?/\s?(?:final_?)?answer\s?>|$)",
    re.IGNORECASE | re.DOTALL,
)
_TAG = re.compile(
    r"</?[A-Za-z][\w:-]{0,30}\s?/?>|<\|[^<>|\n]{1,40}\|>|<<[^<>\n]{0,200}>>"
    r"|(?<=\S)\[\d{1,2}\](?!\()|(?<=\d) \[\d{1,2}\]"
)
_JSON_ANSWER = re.compile(
    r'"(?:final_?)?(?:answer|result)"\s?:\s?("(?:[^"\\\n]|\\.){0,500}"|-?[\d.,/]{1,40}|true|false)', re.IGNORECASE
)
_NEXT_QUESTION = re.compile(
    r"(?<=\S)\s{0,20}\n[#* \t>]{0,9}(?:Question|Q|Problem|Human|User|Instruction|Exercise"
    r"|问题|問題)\s?\d{0,4}\s?(?:[*:：.]|$)"
    r"|(?<=\S)\s{0,20}\n[#* \t>]{0,9}(?:Example|Exercise|Question|Problem|Passage)\s\d{1,4}\s?(?:[*:：.\n]|$)"
    r"|(?<=\S)\s{0,20}\n[#* \t>]{0,9}(?:related|similar|other|more|practice) (?:questions|problems|exercises)\b",
    re.IGNORECASE,
)  # fmt: skip
_OBSERVATION = re.compile(r"(?<=\S)\s{0,20}\nObservation\s?\d{0,3}\s?:", re.IGNORECASE)
# What agents do: "Action: Search[…]"; the last action of an agent that answers is "Finish[…]".
_ACTION = re.compile(
    r"^[ \t>*]{0,20}(?:Action\s?\d{0,3}\s?:\s?(?P<verb>[A-Za-z]\w{0,30})|(?P<bare>finish))"
    r"\s?\[(?P<object>[^\n]{0,500}?)\][ \t]{0,20}$",
    re.IGNORECASE | re.MULTILINE,
)
# A heading above an answer in JSON, and the names of the fields before it.
_JSON_HEADING = re.compile(r"(?:^|\n)[^\n:]{0,60}:\s{0,20}(?=(?:```(?:json)?\s{0,20})?\{\s{0,20}\")", re.IGNORECASE)
_JSON_FIELD = re.compile(
    r"(?:```(?:json)?\s{0,20})?\{?\s{0,20}\"(?:reasoning|explanation|rationale|thoughts?|steps)\"\s?:\s?\"?"
)
_JSON_VALUE_END = re.compile(r"\",?\s{0,20}(?=\nFinal answer: )")


def plain_answer(text: str) -> str:
    """Return the text without markup, in one form for each character; marks stand for bold text and boxes."""
    text = unicodedata.normalize("NFC", text).translate(_CHARACTERS)
    text = _STRUCK.sub(" ", text)
    text = _ANSWER_TAG.sub(lambda tag: f"\nFinal answer: {tag[1].strip()}\n", text)
    if _JSON_ANSWER.search(text) is not None:
        text = _JSON_FIELD.sub("\n", _JSON_HEADING.sub("\n", text))
        text = _JSON_ANSWER.sub(lambda field: f"\nFinal answer: {field[1].strip(chr(34))}\n", text)
        text = _JSON_VALUE_END.sub("", text)
    text = _TAG.sub(" ", text)
    if "\\" in text or "{" in text:
        text = _LATEX_SPACES.sub("", text)
        text = _FRACTION.sub(lambda parts: f"{parts[1]} {parts[2]}/{parts[3]}", text)
        text = _SHORT_FRACTION.sub(r" \1/\2", text)
        text = _boxes_marked(_LATEX_TEXT.sub(r" \1 ", text))
        text = _LATEX_SIGN.sub(lambda sign: _LATEX_SIGNS[sign[0]], text)
        text = _LATEX_REST.sub(" ", text).replace("{", "").replace("}", "")
    text = re.sub(r"\*\*|__", BOLD, text)
    text = re.sub(r"(?<![\w\d])[*_](?=\S)([^*_\n]{1,200}?)[*_](?!\w)", r"\1", text)
    text = text.replace("`", "")
    text = re.sub(r"(?<=[A-Za-z)])\s?(?:\^\(?\d\)?|[²³])", "", text)  # square metres
    text = re.sub(r"(?<=\d)²", "^2", text).replace("³", "^3")
    return re.sub(r"\$(?=[^\w\s.(-]|\s|$)", "", re.sub(r" {2,}", " ", text))


def _boxes_marked(text: str) -> str:
    pieces, position = [], 0
    for match in re.finditer(r"\\(?:boxed|fbox|framebox)\s?(\{)?", text):
        if match.start() < position:
            continue
        end = match.end()
        if match[1] is None:
            content = re.match(r"\s?[^\s]{1,40}", text[end:])
            stop = end + (content.end() if content else 0)
            inner, after = text[end:stop], stop
        else:
            depth, stop = 1, end
            while stop < len(text) and stop - end < 2000 and depth:
                depth += {"{": 1, "}": -1}.get(text[stop], 0)
                stop += 1
            inner, after = text[end : stop - 1 if not depth else stop], stop
        closed = match[1] is None or not depth
        pieces.append(f"{text[position : match.start()]} {BOX}{inner}{f'{BOX_END} ' if closed else ''}")
        position = after
    return "".join([*pieces, text[position:]])


ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Za-z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|No|approx|e\.g|i\.e|Inc|Ltd|Co|Prof|Gen|Col|Lt|Mt|Ft|Rev|Hon|etc|ca|cf"
    r"|Jan|Feb|Aug|Sept|Oct|Nov|Dec))\.$"
)
_SENTENCE_END = re.compile(
    rf"(?<=;)\s+|(?<=[.!?])[\"')\]{BOLD}]{{0,3}}\s+(?=[\"'(\[{BOLD}{BOX}$]{{0,3}}[A-Z0-9#\u0400-\uffff-])"
    rf"|\n"
)
LIST_MARK = re.compile(rf"^[\s>|]*(?:[-*•+]\s+|{BOLD}?\(?\d{{1,2}}[.)]\s+(?=[^\d\s$]|[$\d].*[=:A-Za-z]))?")


def _sentences(text: str) -> Iterator[str]:
    start = entries = 0
    for match in _SENTENCE_END.finditer(text):
        if match[0] != "\n" and ABBREVIATION.search(
            text[max(start, match.start() - 8) : match.start()].rstrip("\"')]")
        ):
            continue
        entry = re.fullmatch(r"\s*(\d{1,2})\.", text[start : match.start()]) if match[0] != "\n" else None
        if entry is not None and (
            int(entry[1]) == entries + 1
            or (int(entry[1]) <= _MAX_ENTRY and re.match(r" +[\d$]", text[match.start() :]))
        ):
            entries = int(entry[1])
            continue  # the number of an entry: "1. 14"
        if sentence := text[start : match.start()].strip():
            yield sentence
        start = match.end()
    if sentence := text[start:].strip():
        yield sentence


ANSWER_NOUN = (
    r"(?<![A-Za-z])(?:answer|ans\b|result|solution|答案|答え|답|antwort|respuesta|réponse|risposta|resposta|ответ)"
)
ANSWER_LINE = re.compile(rf"^[#\s>*-]*{BOLD}?(?:A|Ans|Sol|Final)\.?\s?:{BOLD}?\s*(?P<rest>.+)$")
ANSWER_HEADING = re.compile(
    rf"^[#\s>*{BOLD}]*(?:the\s|my\s|your\s)?(?P<final>final\s)?(?:correct\s)?{ANSWER_NOUN}\s?(?:is\s?)?[:：]?[{BOLD}\s]*$",
    re.IGNORECASE,
)
IS_ANSWER = re.compile(
    rf"^(?P<rest>.{{1,80}}?)\s(?:is|was|would be|must be|should be)\s(?:indeed\s)?(?:the|my|our)\s(?:final\s"
    rf"|correct\s|right\s)*{ANSWER_NOUN}\b",
    re.IGNORECASE,
)
ANSWER_TO_BOX = re.compile(rf"{ANSWER_NOUN}\s?(?:is|:|=)[^A-Za-z\d]*\\boxed", re.IGNORECASE)
CONCLUDES = re.compile(
    rf"^[\s{BOLD}]*(?:and\s|but\s)?(?:so|therefore|thus|hence|in total|altogether|in all|overall|finally"
    rf"|in conclusion|to conclude|in summary|consequently"
    r"|as a result|this means|that means|which means|all together|∴|total|grand total|in short|ultimately"
    r"|all in all)\b",
    re.IGNORECASE,
)
RETRACTS = re.compile(
    r"\b(?:wait|hold on|hmm+|correction|oops|scratch that|my mistake|my apologies|i apologi[sz]e|apologies"
    r"|on second thought|let me (?:re-?\w+|fix|correct|redo|start over|try again)"
    r"|i (?:made|see|found|have made) (?:a|an|my|the) (?:\w+ )?(?:mistake|error|miscalculation)|i was wrong"
    r"|i miscounted|i misread|i miscalculated|no,? (?:actually|that)"
    r"|that(?:'s| is| was| isn't| is not) (?:not right|wrong|incorrect|not correct|right|a mistake)|strike that"
    r"|sorry,?|actually,|actually it|or rather|i mean)(?=\W|$)|\bno,\s(?=[$€£]?\d)",
    re.IGNORECASE,
)  # fmt: skip
REFUSES = re.compile(
    r"\b(?:(?:can(?:not|'t| not)|could(?: not|n't)|(?:am|is|are|'m) (?:unable|not able|not possible|impossible) to"
    r"|it(?:'s| is) (?:not possible|impossible) to|no way to)"
    r" (?:be )?(?:\w+ly )?"
    r"(?:determined?|answer(?:ed)?|calculated?|computed?|solved?|say|tell|know|find|found|provide|give|figure)"
    r"|(?:not|n't) (?:\w+ )?enough (?:information|data|details)|insufficient (?:information|data)"
    r"|(?:could|can) you (?:please )?(?:clarify|provide|specify|share)"
    r"|something (?:is|must be|seems) wrong(?: with the (?:question|problem))?"
    r"|(?:mistake|error|contradiction|inconsistency) in the (?:question|problem)"
    r"|(?:question|problem)(?: statement)? (?:is|seems|has|contains) (?:\w+ )?(?:wrong|inconsistent|flawed"
    r"|contradictory|incorrect|error|mistake))\b",
    re.IGNORECASE,
)
FIRST_TRY = re.compile(
    r"\b(?:first|initial|intermediate|partial|wrong|incorrect|previous)\s(?:\w+\s)?(?:answer|result|guess"
    r"|attempt)",
    re.IGNORECASE,
)
MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?"
    r"|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)


# Ends of a sentence that nobody ends so: the text was cut, whatever its call says.
_UNFINISHED = re.compile(
    r"(?:\b(?:the|a|an|of|is|are|was|and|or|to|by|we|she|he|they|that|with|for|from|his|her|their|its|so|then|if)|[=+*/(,$])\s*$",
)


# Words that some chats glue together when they lose the marks between them, and their citations: "wasAda Hall1."
_GLUED = (
    (re.compile(r"\b(?!de|mac|van|von|mc)([a-z]{2,20})(?=[A-Z](?:[a-z]|\b|[A-Z]))"), r"\1 "),
    (re.compile(r"(?<=\b[A-Z])and(?=[A-Z]\b)"), " and "),
    (re.compile(r"(?<=[a-z]{3})\d{1,2}(?=\.(?:\s|$))"), ""),
    (re.compile(r"\b((?:1[1-9]|20)\d\d)\d{1,2}(?=\.(?:\s|$))"), r"\1"),
    (re.compile(r"\b([a-z]{3,20})(?=\d+\s[a-z])"), r"\1 "),
)
_SPLIT_DECIMAL = re.compile(
    r"(?<![\d,.])(\d{1,3}(?:,\d{3})*)\. (?=\d{1,3}\s?(?:%|inch|feet|foot|met|kilomet|centimet|mile|km\b|cm\b|mm\b"
    r"|m\b|kg\b|kilo|pound|ounce|gram|lit|million|billion|percent|degree|hour|minute|second|year|point))"
)


def unglued(text: str) -> str:
    """Return a text with spaces between words that were glued together, and without digits glued to its ends."""
    for glued, apart in _GLUED:
        text = glued.sub(apart, text)
    return _SPLIT_DECIMAL.sub(r"\1.", text)


# The last line of an answer that was stopped at the brace of its box, and its number in digits.
_LAST_BOX = re.compile(
    r"(?:^|\n)(?P<line>[^\n]{0,120}\\boxed\s?\{\s?(?P<says>[^{}\n]{1,80})(?P<end>\}[\s.$)\\*\]]*)?)\s*$"
)
_BOXED_NUMBER = re.compile(r"\\?\$?(-?\d[\d,]*(?:\.\d+)?)\\?%?")
_DIGITS = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:k\b)?")


def _with_last_box(text: str) -> tuple[str, bool]:
    r"""Return the text without thoughts, and True if it ends in "\boxed{42", which is closed if 42 was stated before.

    Some programs stop a model at the closing brace, or ask it in the midst of its thoughts for an answer in a box.
    """
    readable = readable_text(text)
    last = _LAST_BOX.search(text[-300:])
    if last is None:
        return readable, False
    if not readable.strip():
        if ANSWER_TO_BOX.search(last["line"]) is None:
            return readable, False
        readable = last["line"]
    if last["end"]:
        return readable, True
    if _is_stated(last["says"], text[: text.rindex("\\boxed")]):
        return f"{readable.rstrip()}}}", True
    return readable, False


def _is_stated(words: str, text: str) -> bool:
    """Return True if a text has a number, or words, and not only as the beginning of a longer number or name."""
    if (number := _BOXED_NUMBER.fullmatch(words.strip())) is None:
        return re.search(rf"(?<!\w){re.escape(words.strip())}(?!\w|[ -][A-Z\d])", text) is not None
    digits = number[1].replace(",", "")
    stated = (each[0].replace(",", "").replace("k", "000") for each in _DIGITS.finditer(text))
    return next((each for each in reversed(list(stated)) if each.startswith(digits)), None) == digits


# An instruction that a base model repeats from its prompt.
_INSTRUCTION = re.compile(
    r"(?:^|(?<=\n))[#* \t>]{0,9}(?:please |now,? )?answer the (?:following )?questions?\b(?: directly)?"
    r"(?: (?:based|using|given|with|from|according)\b[^\n]{0,300}|[^\n]{0,200}\bonly give\b[^\n]{0,200})(?:\n|$)",
    re.IGNORECASE,
)
# Questions that a model asks itself, with what it answers: "Q: …", "Question 2: …", "Follow up: …".
_SELF_ASKED = re.compile(
    r"(?:^|(?<=\n))[#* \t>]{0,9}(?P<label>Q|(?:sub-?)?question|follow[ -]?up(?: question)?)\s?[\d.]{0,6}[ *]{0,4}:"
    r"[ \t*]{0,9}(?P<asks>[^\n]{3,600})",
    re.IGNORECASE,
)
_SELF_ANSWERED = re.compile(
    r"(?:^|(?<=\n))[#* \t>]{0,9}(?:(?:intermediate )?answer|A|ans)\s?[\d.]{0,6}[ *]{0,4}:[ \t*]{0,9}(?P<says>\S.*)$",
    re.IGNORECASE | re.DOTALL,
)
_NUMBERED_ANSWER = re.compile(
    r"\[ANSWER_?(\d{1,3})\]|^[ \t]{0,9}Search quer(?:y|ies)\s?:", re.IGNORECASE | re.MULTILINE
)


def own_answer(text: str, question: str = "", *, cut: bool = False) -> tuple[str, bool]:
    """Return the plain text up to the next question that the model poses itself, and if that is cut off.

    Of a text that begins with questions that lead to the one that was put, the answer to the last one is returned.
    """
    text, closed = _with_last_box(text)
    cut = cut and not closed
    if (finished := _agent_answer(text)) is not None:
        return finished, False
    text = _without_instruction(text)
    if (last := _self_asked(text.strip(), question)) is not None:
        return plain_answer(last), cut
    answer = plain_answer(text)
    following = _NEXT_QUESTION.search(answer)
    following = following or _OBSERVATION.search(answer)
    if following is not None and answer[: following.start()].strip():
        return answer[: following.start()], False
    return answer, cut or (len(answer) > 40 and _UNFINISHED.search(answer[-20:]) is not None)


def _without_instruction(text: str) -> str:
    """Return a text up to the instruction that it repeats, or from there if it begins with it."""
    echo = _INSTRUCTION.search(text)
    if echo is None:
        return text
    before = text[: echo.start()]
    return before if before.strip() else text[echo.end() :]


def _self_asked(text: str, question: str) -> str | None:
    """Return the answer to the last question of a text that begins with questions to itself; None for other texts.

    The last question must be of the chain: it is numbered, repeats an earlier answer, or is the question that was put.
    If it is not, or has no answer, "" is returned. A text that begins with the question that was put is another text.
    """
    chain = list(_SELF_ASKED.finditer(text))
    if not chain or chain[0].start() > 0:
        return None
    chain = [each for each in chain if each["label"].lower() == chain[0]["label"].lower()]
    if len(chain) == 1:
        return "" if "\n" not in text and text.endswith("?") else None
    if not _plain_words(question) or _repeats(_plain_words(chain[0]["asks"]), question):
        return None
    ends = [*(each.start() for each in chain[1:]), len(text)]
    blocks = [text[each.end() : end] for each, end in zip(chain, ends, strict=True)]
    answers = [_SELF_ANSWERED.search(block) for block in blocks]
    numbers = [_NUMBERED_ANSWER.search(f"{each['asks']}{block}") for each, block in zip(chain, blocks, strict=True)]
    restart = next((at for at, number in enumerate(numbers) if at and number is not None and number[1] == "1"), None)
    reached = (at for at, each in enumerate(chain, 1) if _repeats(_plain_words(each["asks"]), question))
    end = min(restart or len(chain), next(reached, len(chain)))  # what follows is another chain
    answers, chain, numbers = answers[:end], chain[:end], numbers[:end]
    if (last := answers[-1]) is None:
        return ""
    words = _plain_words(chain[-1]["asks"])
    earlier = [_plain_words(answer["says"]) for answer in answers[:-1] if answer is not None]
    shared = words & _plain_words(question) - {"what", "which", "many", "much", "does", "have", "left"}
    if not any(len(word) > 3 and word.isalpha() for word in shared):
        earlier = [each for each in earlier if not all(word.isdigit() for word in each)]  # 3 is in many a question
    if not (all(numbers) or _repeats(words, question) or any(0 < len(each) < 12 and each <= words for each in earlier)):
        return ""
    following = _NEXT_QUESTION.search(last["says"])
    says = last["says"][: following.start() if following is not None else None].strip()
    return f"Final answer: {says}" if "\n" not in says and len(says) < 200 and ":" not in says else says


def _plain_words(text: str) -> set[str]:
    return {*re.findall(r"\w+", text.casefold())} - {"a", "an", "the", "of", "in", "is", "was", "did", "to"}


def _repeats(words: set[str], question: str) -> bool:
    """Return True if words are most of those of a question, or have all of its last sentence."""
    put, last = _plain_words(question), _plain_words(re.split(r"[.?!]\s", question.strip())[-1])
    return len(words & put) * 4 >= max(len(words), len(put)) * 3 or (len(last) > 2 and last <= words)


def _agent_answer(text: str) -> str | None:
    """Return what an agent's text gives as its answer, "" if its last action is another; None for other texts."""
    following = _NEXT_QUESTION.search(text)
    actions = list(_ACTION.finditer(text, 0, following.start() if following is not None else len(text)))
    if not actions:
        return None
    last = actions[-1]
    finishes = last["bare"] is not None or last["verb"].lower() in ("finish", "answer")
    return f"Final answer: {plain_answer(last['object']).strip()}" if finishes and last["object"].strip() else ""


def answer_pieces(text: str) -> list[str]:
    """Return the sentences, divided before words that take something back."""
    pieces: list[str] = []
    for sentence in _sentences(text):
        start = 0
        for match in RETRACTS.finditer(sentence):
            if match.start() - start > 3:
                pieces.append(sentence[start : match.start()].rstrip(" ,;:-("))
                start = match.start()
        pieces.append(sentence[start:])
    return [_shortened(piece) for piece in pieces[-_MAX_PIECES:]]


def _shortened(piece: str) -> str:
    """Return a piece with at most `_MAX_PIECE` characters: its beginning and its end."""
    half = _MAX_PIECE // 2
    return piece if len(piece) <= _MAX_PIECE else f"{piece[:half]} … {piece[-half:]}"
