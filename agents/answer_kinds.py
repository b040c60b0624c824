"""The kind of answer that a question asks for, and the part of a sentence that is of this kind.

Of words: a date, a location, a title, …; of numbers: the unit, and the words that go with the number.

A part is read only if the sentence says it of what the question asks: for "In which city was the director born?" it is
what follows "born in", and not another city of the sentence. Words of the question itself are never the part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .answer_text import MONTH

_FUNCTION_WORD = re.compile(
    r"(?:an?|the|of|in|on|at|by|for|to|from|with|and|or|as|is|are|was|were|be|been|has|have|had|do|does|did|will|would"
    r"|can|could|that|this|these|those|it|its|he|she|they|his|her|their|there|who|whom|whose|which|what|when|where|how"
    r"|also|both|not|no|yes|than|most|first|last|name|called|named|famously|originally)$"
)
_LOCATIONS = frozenset(
    [
        *["city", "town", "village", "country", "state", "county", "province", "region", "continent", "borough"],
        *["district", "neighborhood", "neighbourhood", "location", "birthplace", "place", "suburb", "nation"],
        *["street", "road", "avenue", "square", "island", "forest", "desert", "park", "valley", "peninsula"],
    ]
)
_SETTLEMENTS = frozenset(["city", "town", "village", "country", "state", "county", "nation", "continent", "province"])
_BEYOND = re.compile(r",\swhich (?:is|lies) (?:\w+ )?$")
_WORKS = frozenset(
    ["film", "movie", "book", "novel", "song", "album", "series", "show", "play", "opera", "poem", "musical", "single"]
)
# Words for one relation; a question and its answer may use different ones.
_RELATIONS = [
    "born birth birthplace",
    "die died death",
    "direct directed director",
    "write wrote written writer author pen penned novelist",
    "compose composed composer score scored",
    "create created creator",
    "found founded founder establish established co-founded cofounded start started set",
    "form formed formation",
    "build built construct constructed",
    "portray portrayed play played plays star starred starring",
    "marry married wife husband spouse",
    "headquarter headquartered headquarters office offices based",
    "locate located lies lie situated based",
    "win won winner receive received awarded earned",
    "teach taught teacher professor lectured",
    "attend attended study studied educated graduated",
    "sing sang sung singer record recorded performed",
    "release released came premiered",
    "publish published publisher",
    "hold holds held serve served",
    "invent invented inventor",
    "own owned owns owner",
    "lead led leader",
    "host hosted hosts",
    "strand stranded maroon marooned",
    "make made makes manufacture manufactured manufacturer produced produces",
    "name named names",
    "begin began begun started",
    "fight fought serve served",
    "succeed succeeded successor succeeding",
    "speak spoken speaks spoke",
    "belong belonged member",
]
_RELATION_OF = {word: frozenset(words.split()) for words in reversed(_RELATIONS) for word in words.split()}
_DATE = re.compile(
    rf"\b(?:{MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?,?\s\d{{4}}|\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?{MONTH},?\s\d{{4}})\b"
)
_MONTH_YEAR = re.compile(rf"\b{MONTH}\s\d{{4}}\b|\b{MONTH}\s\d{{1,2}}\b|\b\d{{1,2}}\s{MONTH}\b")
_YEAR = re.compile(r"\b(?:1\d|20)\d\d\b(?!\s?(?:people|feet|meters|metres|km|miles))")
_NAME = r"[A-Z\u00c0-\u017f][\w.'&-]*"
_NAMES = rf"{_NAME}(?:\s(?:(?:of|de|la|le|du|del|der|von|van|upon|on|and|the|am|bin)\s){{0,2}}{_NAME}){{0,5}}"
# "Italian artist " before a name.
_NAMED = r"(?=[A-Z\"])"
_DESCRIPTION = r"(?:(?:[A-Z]\w+\s)?(?!(?:of|de|la|le|du|del|der|von|van|upon|on|and|the|am|bin|in|with)\s)[a-z]{3,}\s)?"
_LOCATION = re.compile(
    rf"\b(?:in|at|near|from|outside|to)\s(?:(?:downtown|central|nearby|the\s(?:city|town|village|state|county|province)\sof)\s)?(?P<name>(?:the\s)?{_NAMES}(?:,\s{_NAMES}){{0,3}})"
)
_SPOT = re.compile(
    r"\b(?P<prep>on|in|at|near|inside|aboard|under|off|behind|above|below)\s"
    r"(?P<name>(?:an?|the|his|her|their)\s[^,.;:()]{1,80}?)"
    r"(?=[,.;:()]|\s(?:after|when|while|during|who|which|that|and|because|following|where|in \d{4})\b|$)"
)
_TITLE = re.compile(r"[\"“]([^\"“”\n]{1,120})[\"”]|(?<![*\w])[*_](?=[^\s*_])([^*_\n]{1,120})[*_](?![*\w])")
_DEMONYM = re.compile(
    r"\b(?:is|was|are|were|an?|both|also|being|as|of|all)\s(?P<name>(?:(?:Dutch|French|Greek|Swiss|Thai|Czech|Welsh|German"
    r"|(?:Kor|Europ|Chil)ean|[A-Z][a-z]{1,14}(?:[inc]an|ish|ese|aeli|raqi|stani|audi|ander|ino))"
    r"(?:[\s-](?:born\s)?(?=[A-Z])|\b)){1,2})"
)
_CLAUSE_END = re.compile(
    r"[;:]|,\s(?!(?:and\s)?[A-Z\d])|\s(?:while|when|because|since|after|before|although|where|who|whom|which|whose|that"
    r"|as|during|for(?!\s[A-Z])|until|throughout|alongside|together|with|by|at|on|from|under|through)\s"
    r"|\sin\s(?:the|his|her|their|its|an?|\d{3,4})\b|\sand\s(?:was|is|were|later|then|has|had|won|[a-z]+ed)\b|\s\(|\.$|,\sin\s"
)


def stem(word: str) -> str:
    """Return a word in lower case without common endings."""
    word = re.sub(r"'s?$", "", word.lower())
    for ending in ("ing", "ed", "es", "s", "e", "or", "er"):
        if len(word) - len(ending) >= 4 and word.endswith(ending):
            return word[: -len(ending)]
    return word


def are_related(word: str, other: str) -> bool:
    """Return True if two words are forms of one word, or say one relation: "wrote" and "author"."""
    return stem(word) == stem(other) or other.lower() in _RELATION_OF.get(word.lower(), ())


def unit_stem(word: str) -> str:
    """Return a noun without the ending of its plural."""
    for plural, singular in (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("sses", "ss"), ("s", "")):
        if word.endswith(plural) and len(word) > len(plural) + 1 and not word.endswith(("ss", "us")):
            return word.removesuffix(plural) + singular
    return {"people": "person", "men": "man", "women": "woman", "feet": "foot"}.get(word, word)


def _words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text)


def content_stems(text: str) -> set[str]:
    """Return the stems of the words of a text that carry its meaning."""
    return {stem(word) for word in _words(text) if _FUNCTION_WORD.match(word.lower()) is None}


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """Kind of an answer, the `noun` after "which" in its question, and the words that relate it to the rest."""

    kind: str  # "date", "year", "location", "person", "nationality", "work" or "thing"
    noun: str
    relation: frozenset[str]  # words in lower case, of which a sentence that answers the question has one
    subject: str  # "middle name" in "What is the middle name of …"
    object_of: bool  # the answer is the object of the relation's verb: "What did he play?"
    preposition: str  # of an interrogative at the end ("named after who?"), or the last word ("named after?")
    is_subject: bool  # the answer is the subject of the relation's verb: "Which river flows through the city?"
    stems: frozenset[str]
    office: str = ""  # "president" in "Who was the president of …"
    titles: tuple[str, ...] = ()  # words of the answer in quotation marks or italics

    @classmethod
    def from_question(cls, question: str, answer: str = "") -> AnswerKind | None:
        """Return the kind of answer, or None if the question does not begin or end with an interrogative."""
        question = re.sub(r"[*_\"]", "", " ".join(question[-_MAX_QUESTION:].split()))
        answer = answer[:_MAX_QUESTION]
        stems = frozenset(content_stems(question))
        question = _OPENING.sub("", question)
        match = _STARTS.match(question)
        ends = None
        if match is None:
            ends = next(iter(reversed(list(_ENDS.finditer(question)))), None)
            match = ends
        if match is None:
            return None
        word = match["word"].lower()
        rest = question[match.end() :].strip(" ?.")
        noun, subject, clause = _noun_and_clause(word, rest)
        preposition = (match["prep"] or "").lower() if ends is not None else ""
        if ends is not None:
            relation = list(_relation_before(question[: match.start()]))
        elif _AUXILIARY.match(clause) is not None and (stranded := _STRANDED.search(clause)) is not None:
            relation, preposition = [stranded["verb"]], stranded["prep"]
        else:
            relation = list(_relation_after(word, clause))
        related = frozenset(each for item in relation for each in _RELATION_OF.get(item, frozenset({item})))
        return cls(
            _kind(word, noun, question),
            noun,
            related,
            subject,
            ends is None and word in ("what", "which") and _ASKS_OBJECT.match(clause) is not None,
            preposition,
            _is_subject(word, clause) and not preposition and not match["prep"],
            stems,
            office[1].lower() if word == "who" and (office := _OFFICE.match(clause)) is not None else "",
            tuple(quoted or slanted for quoted, slanted in _TITLE.findall(answer)),
        )

    def relates(self, sentence: str) -> int:
        """Return the position in the sentence after the first word of the relation; -1 if there is none."""
        stems = {stem(word) for word in self.relation}
        for match in re.finditer(r"[\w'-]+", sentence):
            if match[0].lower() in self.relation or stem(match[0]) in stems:
                return match.end()
        return -1

    def part(self, sentence: str) -> str | None:
        """Return the part of the sentence that is of this kind; None if none is sure to be meant."""
        after = self.relates(sentence)
        match self.kind:
            case "date" | "year":
                return self._date(sentence, after)
            case "location":
                return self._location(sentence, after)
            case "nationality":
                names = [match["name"].strip() for match in _DEMONYM.finditer(sentence) if self._is_new(match["name"])]
                return names[0] if len(set(names)) == 1 else None
            case "work":
                named = [
                    title.strip(" .,")
                    for title in self.titles
                    if title.strip(" .,") in sentence and self._is_new(title)
                ]
                if self.preposition and after >= 0:  # "based on what play?"
                    named = [title for title in named if sentence.rfind(title) >= after] or named
                return named[0] if len(set(named)) == 1 else None
        return (
            self._holder(sentence)
            or self._of_subject(sentence)
            or self._agent(sentence)
            or self._object(sentence, after)
            or self._as_subject(sentence, after)
            or (self._with_noun(sentence) if self.kind == "thing" and after >= 0 else None)
        )

    def _of_subject(self, sentence: str) -> str | None:
        """Return X in "his middle name is X" if the question asks for a middle name, or in "the band is X"."""
        agents = "|".join(map(re.escape, sorted(self.relation - _RELATION_OF["name"]))) if self.kind == "person" else ""
        clause = re.search(
            r"\b[Tt]he\s(?:[a-z]+\s){1,3}who\s[^,.;]{1,80}?\s(?:is|was|are|were)\s"
            rf"(?P<names>{_NAMES}(?:,? (?:and )?{_NAMES})*)",
            sentence,
        )
        if self.kind == "person" and clause is not None and self.relates(clause[0]) >= 0:
            return clause["names"]
        subjects = [
            (re.escape(self.subject), ""),
            (re.escape(self.noun), _NAMED),
            (self.office, _NAMED),
            (agents, _NAMED),
        ]
        for subject, start in subjects:
            if not subject:
                continue
            named = (
                rf"\b(?:the|his|her|its|their|'s|whose)\s(?:\w+\s){{0,3}}?(?:{subject})s?"
                rf"(?:\sthere|\s(?:of|in|for|at)\s[^,.;]{{1,60}}?|\s(?:used|spoken|that|which)\s[^.;]{{1,80}}?,?)?\s(?:is|was|are|were)\s(?:the\s|called\s)?{start}"
            )
            match = next(iter(reversed(list(re.finditer(named, sentence, re.IGNORECASE if not start else 0)))), None)
            if match is not None and (words := self._until_clause_ends(sentence[match.end() :])) is not None:
                return words
        noun = re.escape(self.noun)
        entitled = rf"\b(?:\w*{noun},|{noun}\s(?:called|named))\s(?P<name>(?:the\s)?{_NAMES})(?=[,.]|$)"
        if self.noun and (match := re.search(entitled, sentence)) is not None and self._is_new(match["name"]):
            return match["name"]
        if self.noun and (match := re.search(rf"\bthe\s{noun}\s(?P<name>[\w'-]+)(?=\s(?:is|was)\s\w+ed\b)", sentence)):
            return match["name"]
        if self.noun == "name" and (born := re.search(rf"\bborn\s(?P<name>{_NAMES})", sentence)) is not None:
            return born["name"]
        for pattern in (
            rf"\b(?:has|had|with)\s(?:an?|the)\s{noun}\sof\s(?P<name>[^;]{{1,60}})",
            rf"\b(?:uses?|used|has|had)\s(?P<name>[^,;]{{1,60}}?)(?:,[^,;]{{1,60}},)?\sas\s(?:its|their|the)\s(?:\w+\s)?{noun}\b",
        ):
            if self.noun and (match := re.search(pattern, sentence)) is not None:
                return self._until_clause_ends(match["name"])
        return None

    def _holder(self, sentence: str) -> str | None:
        """Return X in "X was the president of …" to "Who was the president of …?"."""
        if self.office:
            holder = re.search(
                rf"(?P<name>{_NAMES})\s(?:is|was|became|served as)\s(?:the\s)?(?:[\w-]+\s){{0,2}}"
                rf"(?i:{re.escape(self.office)})\b",
                sentence,
            )
            if holder is not None and self._is_new(holder["name"]):
                return holder["name"]
            verbs = "|".join(word for word in _RELATION_OF.get(self.office, ()) if not word.endswith(("or", "er")))
            maker = (
                re.match(rf"(?P<name>{_NAMES})\s(?:[a-z]+ly\s)?(?:{verbs})\s(?:the\s)?[A-Z\"]", sentence)
                if verbs
                else None
            )
            if maker is not None and self._is_new(maker["name"]):
                return maker["name"]
        return None

    def _agent(self, sentence: str) -> str | None:
        """Return X in "the novel by X" if the question asks for a person."""
        if self.kind != "person" and not _AGENT_NOUN.search(self.noun):
            return None
        named = {
            match["name"]
            for match in re.finditer(
                rf"\bby\s(?:[Tt]he\s)?{_DESCRIPTION}(?P<name>(?:(?<=the\s)[a-z]+\sof\s)?{_NAMES})", sentence
            )
            if self._is_new(match["name"])
        }
        return named.pop() if len(named) == 1 else None

    def without_description(self, words: str) -> str:
        """Return a name without what describes it: "an alligator named Albert", "the Italian artist X"."""
        if self.kind == "thing":
            return re.sub(r"^playing (?:the )?", "", words)
        return re.sub(rf"^{_DESCRIPTION}(?=[A-Z])", "", words) if self.kind == "person" else words

    def without_noun(self, words: str) -> str:
        """Return a name without the noun that the question asks for: "the genus Strix"."""
        return re.sub(rf"^(?:the\s)?{re.escape(self.noun)}\s(?=[A-Z\"])", "", words) if self.noun else words

    def says_noun(self, sentence: str) -> bool:
        """Return True if the sentence says what the thing is that the question asks for: "the capital of X is …"."""
        return self.kind not in ("date", "year", "nationality") and self._of_subject(sentence) is not None

    def _as_subject(self, sentence: str, after: int) -> str | None:
        """Return the name before the verb of the relation: "The Danube flows through …"."""
        if after < 0 or not self.is_subject:
            return None
        before = re.sub(r"[\w'-]+$", "", sentence[:after])[-_MAX_NAME:]
        if self.kind == "person":
            named = re.fullmatch(rf"(?P<name>{_NAMES})\s(?:[a-z]+ly\s)?", before)
        else:
            named = re.search(
                rf"(?P<name>(?:\bThe\s)?{_NAMES})\s(?:(?:is|are|was|were|also|the|an?|[a-z]+ly)\s){{0,3}}$", before
            )
        if named is None and self.kind == "thing":
            named = re.search(r"(?:^|,\s)[Tt]he\s(?P<name>[a-z]{3,30})\s(?:is|are|was|were)\s$", before)
        if named is not None and self._is_new(named["name"]):
            return named["name"]
        if (spoken := re.search(rf"\b{_SPEAKS}\s(?P<name>[A-Z][a-z]+)\b", sentence)) and self.noun == "language":
            return spoken["name"]
        following = re.match(rf"\s(?P<name>{_NAMES})", sentence[after:])
        named_before = " ".join(re.findall(r"\b[A-Z][\w'-]*", before))
        if following is not None and not self._is_new(named_before) and self._is_new(following["name"]):
            return following["name"]
        return None

    def _is_new(self, words: str) -> bool:
        return bool(content_stems(words) - self.stems)

    def trimmed(self, words: str) -> str:
        """Return words without a date or a phrase of the question at their end."""
        previous = None
        while previous != words:
            previous = words
            words = _DATED.sub("", words)
            ending = _LAST_PHRASE.search(words[-_MAX_NAME:])
            if ending is not None and not self._is_new(ending[1]) and self._is_new(words[: -len(ending[0])]):
                words = words[: -len(ending[0])]
        return words

    def without_opening(self, sentence: str) -> str:
        """Return a sentence without a phrase of the question at its beginning: "In the film, …"."""
        opening = re.match(r"(?:in|on|at|for|during|before|after)\s([^,]{1,80}),\s", sentence, re.IGNORECASE)
        return sentence[opening.end() :] if opening is not None and not self._is_new(opening[1]) else sentence

    def _date(self, sentence: str, after: int) -> str | None:
        patterns = [_YEAR] if self.kind == "year" else [_DATE, _MONTH_YEAR, _YEAR]
        for pattern in patterns:
            dates = [match for match in pattern.finditer(sentence) if match[0] not in self.stems]
            if not dates:
                continue
            following = [match[0] for match in dates if match.start() >= after >= 0]
            if following:
                return following[0]
            return dates[0][0] if len({match[0] for match in dates}) == 1 else None
        era = _ERA.search(sentence, max(after, 0)) if self.kind == "date" else None
        return era["name"] if era is not None and self._is_new(era["name"]) else None

    def _location(self, sentence: str, after: int) -> str | None:
        if after >= 0 and self.is_subject and (named := self._as_subject(sentence, after)) is not None:
            return named
        names = [match for match in _LOCATION.finditer(sentence, max(after, 0)) if self._is_new(match["name"])]
        names = [match for match in names if not re.match(rf"{MONTH}\b", match["name"])]
        if self.noun in ("city", "town", "village"):
            names = [match for match in names if not match["name"].startswith("the ")]
        if self.noun in _SETTLEMENTS:
            names = [match for match in names if match[0].startswith(("in ", "near "))] or names
            names = [match for match in names if _BEYOND.search(sentence[: match.start()][-40:])] or names
        if after < 0 and names:
            return self._narrowed(names[0]["name"]) if len(names) == 1 and names[0][0].startswith("in ") else None
        if names:
            return self._narrowed(names[0]["name"])
        spots = [match["name"] for match in _SPOT.finditer(sentence, max(after, 0)) if self._is_new(match["name"])]
        return spots[0] if spots and self.noun == "" else None

    def _narrowed(self, name: str) -> str:
        """Return the country of "Pretoria, South Africa" if the question asks for a country; else the whole name."""
        parts = name.split(", ")
        if (
            len(parts) > 1
            and re.fullmatch(r"(?:the )?(?:USA?|U\.S\.A?\.?|United States.*)", parts[-1])
            and self.noun == "state"
        ):
            parts.pop()
        if self.noun in ("country", "nation", "state", "continent", "province"):
            return parts[-1]
        if self.noun == "county":
            return next((part for part in parts if "County" in part), name)
        return name

    def _object(self, sentence: str, after: int) -> str | None:
        if after < 0:
            return None
        rest = sentence[after:]
        if self.kind == "person" and (rivals := _RIVALS.search(rest)) is not None:
            return rivals["names"]
        if self.kind == "person" and not self.preposition:
            agent = re.match(r"\s(?:\w+\s){0,2}?by\s(?:the\s)?(?=[A-Z])", rest)
            return self._until_clause_ends(rest[agent.end() :]) if agent is not None else None
        if self.is_subject and not self.object_of and re.match(r"\sby\s(?:[Tt]he\s)?[A-Z]", rest):
            return self._until_clause_ends(rest.removeprefix(" by "))
        if self.preposition:
            match = re.match(rf"\s(?:\w+\s){{0,3}}?{self.preposition}\s", rest)
            words = self._until_clause_ends(rest[match.end() :]) if match is not None else None
        elif self.object_of:
            words = self._until_clause_ends(re.sub(r"^\s(?:at|to|in|for|with|as|the)\s", " ", rest))
        else:
            return None
        if words is not None and self.noun in words.lower().split():
            return words
        return self._with_noun(sentence) or words

    def _with_noun(self, sentence: str) -> str | None:
        """Return the one name that has the noun that the question asks for: "World War II" to "which war"."""
        if not self.noun:
            return None
        names = [
            match[0]
            for match in re.finditer(_NAMES, sentence)
            if self.noun in match[0].lower().split() and self._is_new(match[0])
        ]
        return names[0] if len(set(names)) == 1 else None

    def _until_clause_ends(self, text: str) -> str | None:
        text = text.strip()
        end = next((match for match in _CLAUSE_END.finditer(text) if match.start() > 0), None)
        words = text[: end.start()] if end is not None else text
        words = re.sub(r"\s[a-z]+ly$", "", _LEADS.sub("", words))
        words = re.sub(rf"^(?:the\s)?(?:{re.escape(self.noun)}|member|position|role|title)\sof\s", "", words)
        return words if words and len(words.split()) <= 8 and self._is_new(words) else None


_RIVALS = re.compile(rf"\bbetween\s(?P<names>(?:the\s)?{_NAMES}\sand\s(?:the\s)?{_NAMES})")
_ERA = re.compile(
    rf"\b(?:in|during)\s(?P<name>the\s(?:{_NAMES}|(?:early\s|mid-?\s?|late\s)?(?:\d{{1,2}}th|[a-z]+th)\scentury))"
)
_LEADS = re.compile(r"^(?:(?:is|was|are|were|called|named|titled|known as)\s(?:the\s)?)+")
_MAX_QUESTION = 2_000
_MAX_NAME = 120
_PREPOSITION = r"\s(?:in|on|at|for|from|by|with|to|as)\s"
_LAST_PHRASE = re.compile(rf"{_PREPOSITION}((?:(?!{_PREPOSITION}).)+)$")
_DATED = re.compile(
    rf",?\s(?:in|on|since|around|from|between)\s(?:{MONTH}\s)?(?:\d{{1,2}},?\s)?(?:{MONTH}\s)?(?:1\d|20)\d\d\b"
    r"(?:\s?(?:-|to|and|until)\s?(?:1\d|20)\d\d)?[^A-Za-z]*$"
)
# "In baseball, where do the Orioles come from?"
_OPENING = re.compile(
    r"^(?:in|on|at|during|of|according to)\s[^,?]{1,80},\s(?=(?:in\s|on\s|at\s|by\s)?(?:what|which|who|where|when)\b)",
    re.IGNORECASE,
)
_STARTS = re.compile(
    r"^(?:(?P<prep>in|on|at|for|by|of|from|to|with|during|after|under)\s)?(?P<word>what|which|who|whom|where|when)\b(?:'s)?",
    re.IGNORECASE,
)
_ENDS = re.compile(
    r"\b(?:(?P<prep>in|on|at|for|by|of|from|to|with|during|after|under|as)\s)?"
    r"(?P<word>what|which|who|whom|where|when)\b(?=\s?\?|(?:\s[\w-]+){1,4}\s?\?$)",
    re.IGNORECASE,
)
_AUXILIARY = re.compile(r"(?:is|are|was|were|did|does|do|has|have|had|will|would|can|could)\b", re.IGNORECASE)


_SPEAKS = r"(?:speaks?|spoke|speaking)"
_AGENT_NOUN = re.compile(
    r"^(?:author|writer|director|novelist|poet|artist|painter|composer|singer|musician|scientist|physicist"
    r"|architect|inventor|producer|playwright|philosopher|actor|actress|band|person|designer|photographer|chemist|rapper)$"
)
_OFFICE = re.compile(r"(?:is|was)\sthe\s(?:[a-z]+\s){0,2}?([A-Za-z]+)(?=\s(?:of|in|at|when|during|for)\b)")
_STRANDED = re.compile(
    r"\b(?P<verb>[a-z]{3,20})\s(?P<prep>to|with|by|for|after|in|at|on|as|of|from)"
    r"(?:\s(?:in \d{4}|(?:before|after|when|during|for|while)\b[^?]{1,80}))?$"
)
_PASSIVE = re.compile(r"(?:is|was|are|were)\s(?:\w+ed|spoken|held|won|sung|taught|worn|built|made|written|known)\b")
_ASKS_OBJECT = re.compile(r"(?:did|does|do)\s|(?:is|was|are|were)\s(?:\w+ed|held|won|sung|taught|worn)\sby\b")


def _noun_and_clause(word: str, rest: str) -> tuple[str, str, str]:
    """Return the noun that "which" or "what is the" asks for, the words before "of" in the latter, and the clause."""
    if word not in ("what", "which"):
        return "", "", rest
    copula = _COPULA.match(rest)
    if copula is not None:
        return copula[1].split()[-1].lower(), copula[1], rest
    words = rest.split()
    end = next(
        (
            at
            for at, each in enumerate(words)
            if _AUXILIARY.match(each) or (at and _is_verb(each, words[at + 1] if at + 1 < len(words) else ""))
        ),
        len(words),
    )
    nouns = [each.lower().strip(",") for each in words[:end]]
    if nouns[:1] and nouns[0] in ("type", "kind", "sort") and nouns[1:2] == ["of"]:
        nouns = nouns[2:]
    ends = next((at for at, each in enumerate(nouns) if at and each in _PREPOSITIONS), len(nouns))
    nouns = nouns[:ends]
    return nouns[-1] if nouns else "", "", " ".join(words[end:])


_COPULA = re.compile(
    r"(?:is|was|are|were)\s(?:the\s)?(?:name of the\s)?((?:[\w-]{1,30}\s){0,3}?[\w-]{1,30})"
    r"(?=\s(?:of|in|that|which|who|where|for|from|on)\b)"
)


_PREPOSITIONS = frozenset(["of", "in", "on", "at", "by", "for", "from", "with", "that", "who", "whose", "to"])


def _is_verb(word: str, following: str) -> bool:
    if not word.islower() or _AUXILIARY.match(following):
        return False
    return word in _RELATION_OF or re.search(r"[a-z]{3}ed$|[a-z]{2}[^s]s$", word) is not None


def _is_subject(word: str, clause: str) -> bool:
    """Return True if an interrogative is the subject of its clause: "which city is home to …", "who founded …"."""
    if word in ("where", "when") or not clause:
        return False
    if _AUXILIARY.match(clause) is None or _PASSIVE.match(clause) is not None:
        return True
    words = clause.split()
    return (
        word == "which"
        and re.match(r"(?:is|was)\s(?:the\s|an?\s)?[a-z]", clause) is not None
        and words[-1] not in _RELATION_OF
    )


def _relation_after(word: str, clause: str) -> Iterator[str]:
    """Yield the words of a clause after an interrogative that relate the answer to its subject."""
    words = [each.strip(",.?") for each in clause.split()]
    if words and _AUXILIARY.match(words[0]) and words[0].lower() not in ("is", "are", "was", "were"):
        last = max((at for at, each in enumerate(words) if each[:1].isupper()), default=0)
        tail = list(_lower_content(words[last + 1 :]))
        tail = [each for each in tail if not each.endswith("ly")]
        verbs = [each for each in tail if each in _RELATION_OF]
        if tail and words[-1] == tail[-1] and _FUNCTION_WORD.match(words[-2]) is None:
            yield tail[-1]
        else:
            yield from verbs[-1:] or tail[-2:] or list(_lower_content(words[1:]))[-1:]
    elif word in ("what", "which") and len(words) > 1 and _PASSIVE.match(clause) is not None:
        yield words[1].lower()
    elif words and _AUXILIARY.match(words[0]) and (words[-1] in _RELATION_OF or words[-1].endswith("ed")):
        yield words[-1]
    elif word in ("what", "which") and words and not _AUXILIARY.match(words[0]):
        yield words[0].lower()
    else:
        yield from list(_lower_content(words))[:1]


def _relation_before(clause: str) -> Iterator[str]:
    """Yield the word of a relation that stands before an interrogative at the end: "was born in which city"."""
    words = [each.strip(",.") for each in clause.split()]
    yield from list(_lower_content(words[-4:]))[-1:]


def _lower_content(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word.islower() and (_FUNCTION_WORD.match(word) is None or word == "named"):
            yield word


def _kind(word: str, noun: str, question: str) -> str:
    if word == "when" or noun in ("date", "day", "birthday", "birthdate"):
        return "date"
    if noun == "year":
        return "year"
    if word == "where" or noun in _LOCATIONS:
        return "location"
    if noun in ("nationality", "citizenship"):
        return "nationality"
    if noun in _WORKS:
        return "work"
    return "person" if word in ("who", "whom") else "thing"
