"""Real world of the lab: tables of facts, a benchmark on one half of them and interviews on the other.

The facts are in `real/facts.txt`: countries, chemical elements, books and persons, with four attributes each. As in the
invented world, each thing is in only one split; the benchmark asks for two of its attributes, interviews for the other
two. Unlike in the invented world, a model may know the answers without having seen the benchmark, and no two attributes
are independent.

Replies are free text. A value counts as claimed if the reply contains it, in any spelling of the table; a reply is
right if it has the right value and no other value of that attribute. A value after "not" is denied. If the value is a
number, the reply's first number counts; if it is a century and the reply names none, a year counts. Other wrong words
are no claim, and score as no answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import Path
from random import Random

from viva.data.items import Item
from viva.engine import seeds

from .world import CHOICES, Attribute, Claim, Fact, Followup, Split, World

REAL = Path(__file__).parent / "real"

# By attribute: the benchmark's question, two paraphrases, an interview's question, and one that offers two values.
_QUESTIONS: dict[str, tuple[str, str, str, str, str]] = {
    "capital": (
        "What is the capital of {e}?",
        "Which city serves as the capital of {e}?",
        "{e} is governed from which capital city?",
        "Can you tell me the name of the capital city of {e}?",
        "Is the capital of {e} {v} or {w}?",
    ),
    "continent": (
        "On which continent does {e} lie?",
        "Which continent is {e} part of?",
        "{e} is a country of which continent?",
        "Can you tell me the continent on which {e} is located?",
        "Is the continent of {e} {v} or {w}?",
    ),
    "language": (
        "Which language is an official language of {e}?",
        "What is the main official language in {e}?",
        "The government of {e} officially uses which language?",
        "Can you tell me which language people in {e} speak officially?",
        "Is the official language of {e} {v} or {w}?",
    ),
    "currency": (
        "What is the currency of {e}?",
        "Which money is used in {e}?",
        "People in {e} pay with which currency?",
        "Can you tell me what the money of {e} is called?",
        "Is the currency of {e} the {v} or the {w}?",
    ),
    "symbol": (
        "What is the chemical symbol of {e}?",
        "Which symbol stands for {e} in chemistry?",
        "In chemical formulas, {e} is written with which symbol?",
        "Can you tell me how chemists abbreviate {e}?",
        "Is the chemical symbol of {e} {v} or {w}?",
    ),
    "atomic number": (
        "What is the atomic number of {e}?",
        "How many protons does an atom of {e} have?",
        "The nucleus of {e} contains how many protons?",
        "Can you tell me the atomic number of the element {e}?",
        "Is the atomic number of {e} {v} or {w}?",
    ),
    "group": (
        "To which group of elements does {e} belong?",
        "What kind of element is {e}?",
        "Chemists count {e} among which kind of elements?",
        "Can you tell me what type of element {e} is?",
        "Is {e} classified as {v} or {w}?",
    ),
    "period": (
        "In which period of the periodic table is {e}?",
        "Which row of the periodic table contains {e}?",
        "{e} stands in which row of the periodic table?",
        "Can you tell me the period of {e} in the periodic table?",
        "Is {e} in the {v} or the {w} period of the periodic table?",
    ),
    "author": (
        "Who wrote {e}?",
        "Who is the author of {e}?",
        "{e} was written by whom?",
        "Can you tell me who the writer of {e} is?",
        "Was {e} written by {v} or by {w}?",
    ),
    "original language": (
        "In which language was {e} written?",
        "What is the original language of {e}?",
        "The first edition of {e} was in which language?",
        "Can you tell me the language in which {e} was first written?",
        "Was {e} originally written in {v} or in {w}?",
    ),
    "century": (
        "In which century was {e} completed?",
        "Which century does {e} come from?",
        "{e} is a work of which century?",
        "Can you tell me the century in which {e} was finished?",
        "Is {e} from the {v} or the {w} century?",
    ),
    "character": (
        "Which of these characters appears in {e}?",
        "Who is a character in {e}?",
        "{e} tells of which character?",
        "Can you tell me the name of a character in {e}?",
        "Does {v} or {w} appear in {e}?",
    ),
    "country": (
        "In which country was {e} born?",
        "What is the country of birth of {e}?",
        "{e} came from which country?",
        "Can you tell me the country in which {e} was born?",
        "Was {e} born in {v} or in {w}?",
    ),
    "century of birth": (
        "In which century was {e} born?",
        "Which century saw the birth of {e}?",
        "The birth of {e} was in which century?",
        "Can you tell me when {e} was born?",
        "Was {e} born in the {v} or the {w} century?",
    ),
    "field": (
        "In which field is {e} famous?",
        "What was the field of {e}?",
        "{e} made a name in which field?",
        "Can you tell me in which field {e} worked?",
        "Did {e} work in {v} or in {w}?",
    ),
    "fame": (
        "For what is {e} best known?",
        "What made {e} famous?",
        "{e} is remembered for what?",
        "Can you tell me what {e} is known for?",
        "Is {e} known for {v} or for {w}?",
    ),
}
_PARAPHRASES, _DIRECT, _CONTRAST = (1, 2), 3, 4
_CENTURIES = {"14th": "fourteenth", "15th": "fifteenth", "16th": "sixteenth", "17th": "seventeenth"}
_CENTURIES |= {"18th": "eighteenth", "19th": "nineteenth", "20th": "twentieth"}
_SPLITS: tuple[Split, ...] = ("test", "fresh", "train")
_ROUNDS = 4  # different questions of an interview
_DENIAL = re.compile(r"(?:\bnot|n't|\brather than|\binstead of)(?: (?:the|in|by|a|an|from))*\W*$")


class FactWorld:
    """Things and facts of the real world, their splits and their questions. Any two instances are equal."""

    def __init__(self) -> None:
        self.seed = 1
        self._facts: dict[tuple[str, str], Fact] = {}
        self._spellings: dict[tuple[str, str], tuple[str, ...]] = {}
        self._attributes: dict[str, tuple[str, ...]] = {}  # by thing
        kinds: list[list[str]] = []
        for line in (REAL / "facts.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                names = [name.strip() for name in line.partition("]")[2].split("|")]
                kinds.append([])
            elif line and not line.startswith("#"):
                entity, *values = (value.strip() for value in line.split("|"))
                kinds[-1].append(entity)
                self._attributes[entity] = tuple(names)
                for name, spellings in zip(names, values, strict=True):
                    first, *others = spellings.split("/")
                    self._facts[entity, name] = Fact(entity, name, first)
                    self._spellings[entity, name] = (first, *others)
        self.entities = tuple(self._attributes)
        self.facts = tuple(self._facts.values())
        self.attributes = tuple(self._attribute(name) for name in _QUESTIONS)
        self._by_name = {attribute.name: attribute for attribute in self.attributes}
        self._split: dict[str, Split] = {}
        self._half: dict[str, int] = {}
        for names in kinds:
            for number, entity in enumerate(seeds.generator("lab facts", self.seed, *names).sample(names, len(names))):
                self._split[entity] = _SPLITS[number % len(_SPLITS)]
                self._half[entity] = number // len(_SPLITS) % 2
        self._questions = {
            _plain(self.question(entity, name, wording)): Followup("related", entity, name)
            for entity, name in self._facts
            for wording in range(_CONTRAST)
        }
        self._spelled = {entity.lower(): entity for entity in self.entities}
        self._lexicons: dict[tuple[str, str], list[tuple[re.Pattern[str], str]]] = {}
        self._contrasts = [(name, self._contrast_pattern(name)) for name in _QUESTIONS]

    def attribute(self, name: str) -> Attribute:
        return self._by_name[name]

    def fact(self, entity: str, attribute: str) -> Fact:
        return self._facts[entity, attribute]

    def split(self, entity: str) -> Split:
        return self._split[entity]

    def benchmark_attributes(self, entity: str) -> tuple[str, ...]:
        """Return the attributes of this thing that the benchmark asks for."""
        return self._attributes[entity][self._half[entity] :: 2]

    def examinable(self, entity: str) -> tuple[str, ...]:
        """Return the attributes of this thing that interviews ask for: those that the benchmark does not ask for."""
        return self._attributes[entity][1 - self._half[entity] :: 2]

    def question(self, entity: str, attribute: str, wording: int = 0) -> str:
        text = _QUESTIONS[attribute][wording].format(e=entity)
        return text[0].upper() + text[1:]

    def benchmark_items(self) -> dict[Split, list[Item]]:
        """Return the items by split: one item for each of the two benchmark attributes of each thing."""
        items: dict[Split, list[Item]] = {split: [] for split in _SPLITS}
        for entity in self.entities:
            for name in self.benchmark_attributes(entity):
                identity = re.sub("[^a-z0-9]+", "-", f"{_fold(entity)}-{name}".lower())
                random = seeds.generator("lab item", "real", identity)
                items[self.split(entity)].append(self._item(entity, name, random, identity, 0))
        return items

    def paraphrases(self, item: Item) -> list[Item]:
        """Return versions of the item in other words, each with the choices in another order."""
        question = self.question_in(item.question)
        if question is None:
            raise ValueError(f"item {item.id} is not of this benchmark")
        versions = []
        for wording in _PARAPHRASES:
            random = seeds.generator("lab paraphrase", item.id, wording)
            order = random.sample(range(CHOICES), CHOICES)
            versions.append(
                Item(
                    f"{item.id}-{wording}",
                    self.question(question.entity, question.attribute, wording),
                    [item.choices[index] for index in order],
                    order.index(item.answer),
                    item.subject,
                )
            )
        return versions

    def _item(self, entity: str, name: str, random: Random, identity: str, wording: int) -> Item:
        right = self.fact(entity, name).value
        wrong = random.sample(self._wrong_values(entity, name), CHOICES - 1)
        answer = random.randrange(CHOICES)
        choices = [*wrong[:answer], right, *wrong[answer:]]
        return Item(identity, self.question(entity, name, wording), choices, answer, name, passage=entity)

    def _wrong_values(self, entity: str, name: str) -> list[str]:
        """Return the attribute's values that are wrong for this thing."""
        right = set(self._spellings[entity, name])
        wrong = {
            self.fact(other, name).value: None
            for other in self.entities
            if (other, name) in self._facts and not right & set(self._spellings[other, name])
        }
        return list(wrong)

    def _attribute(self, name: str) -> Attribute:
        values = dict.fromkeys(fact.value for fact in self.facts if fact.attribute == name)
        return Attribute(name, "number" if name == "atomic number" else "category", tuple(values))

    # -- interviews -------------------------------------------------------------------------------------------------

    def question_in(self, text: str) -> Followup | None:
        """Return the first question about these facts in a text; None without one."""
        for sentence in re.split(r"(?<=[?])\s+|\n+", text):
            question = self._questions.get(_plain(sentence)) or self._contrast_in(sentence)
            if question is not None:
                return question
        return None

    def _contrast_in(self, sentence: str) -> Followup | None:
        for name, pattern in self._contrasts:
            match = pattern.fullmatch(sentence.strip())
            if match is not None:
                return Followup("contrast", self._spelled[match["e"].lower()], name)
        return None

    def _contrast_pattern(self, name: str) -> re.Pattern[str]:
        template = re.escape(_QUESTIONS[name][_CONTRAST]).replace(r"\{", "{").replace(r"\}", "}")
        entities = "|".join(map(re.escape, self._entities_of(name)))
        return re.compile(template.format(e=f"(?P<e>{entities})", v=".+", w=".+"), re.IGNORECASE)

    def next_question(self, item: Followup, previous: Collection[str], seed: int) -> str:
        """Return the question that follows `previous` in an interview about an item.

        Two questions are about the item's thing, one for each attribute of its interview half; then two are about
        another thing of its kind and split, and so on. Every second question offers two values; the others ask for a
        value.
        """
        kind = [e for e in self._entities_of(item.attribute) if self.split(e) == self.split(item.entity)]
        block, position = divmod(len(previous), 2)
        start = kind.index(item.entity)
        random = seeds.generator("oracle", "real", seed, item.entity, item.attribute, block)
        # A step that is the same for all blocks visits every thing once.
        step = 1 + int(seeds.uniform("oracle step", "real", seed, item.entity) * (len(kind) - 1))
        while len(kind) % step == 0 and step > 1:
            step -= 1
        entity = kind[(start + block * step) % len(kind)]
        names = random.sample(self.examinable(entity), 2)
        if position == 0:
            return self.question(entity, names[0], _DIRECT)
        pair = [self.fact(entity, names[1]).value, random.choice(self._wrong_values(entity, names[1]))]
        random.shuffle(pair)
        text = _QUESTIONS[names[1]][_CONTRAST].format(e=entity, v=pair[0], w=pair[1])
        return text[0].upper() + text[1:]

    def _entities_of(self, attribute: str) -> list[str]:
        return [entity for entity in self.entities if attribute in self._attributes[entity]]

    # -- replies ----------------------------------------------------------------------------------------------------

    def claims_about(self, question: Followup, reply: str) -> list[Claim]:
        """Return the values of the attribute in question that a reply states or denies, each once."""
        entity, name = question.entity, question.attribute
        text = re.sub(rf"\b{re.escape(_fold(entity))}\b", " ", _fold(reply), flags=re.IGNORECASE)
        return list(dict.fromkeys(Claim(entity, name, *value) for value in self._values(entity, name, text)))

    def is_true(self, claim: Claim) -> bool:
        return (self.fact(claim.entity, claim.attribute).value == claim.value) != claim.denied

    def _values(self, entity: str, name: str, text: str) -> Iterator[tuple[str, bool]]:
        if self.attribute(name).kind == "number":
            number = re.search(r"(?<![\w.,-])\d+(?![\w]|[.,]\d)", text)
            if number is not None:
                yield number[0], False
            return
        named = False
        rest = text
        for spelling, value in self._lexicon(entity, name):
            for match in spelling.finditer(rest):
                named = True
                yield value, _DENIAL.search(rest[: match.start()].lower()) is not None
            rest = spelling.sub(lambda match: " " * len(match[0]), rest)
        year = re.search(r"(?<!\d)(1\d|20)\d\d(?!\d)", text) if name.startswith("century") and not named else None
        if year is not None:
            yield f"{int(year[1]) + 1}th", False

    def _lexicon(self, entity: str, name: str) -> list[tuple[re.Pattern[str], str]]:
        """Return patterns of all spellings with their values, longest first; shared spellings mean the right value."""
        if (entity, name) not in self._lexicons:
            self._lexicons[entity, name] = self._make_lexicon(entity, name)
        return self._lexicons[entity, name]

    def _make_lexicon(self, entity: str, name: str) -> list[tuple[re.Pattern[str], str]]:
        values: dict[str, str] = {}
        for other in self._entities_of(name):
            for spelling in self._spellings[other, name]:
                values.setdefault(_fold(spelling), self.fact(other, name).value)
        values |= {_fold(spelling): self.fact(entity, name).value for spelling in self._spellings[entity, name]}
        if name.startswith("century"):
            values |= {word: values[digits] for digits, word in _CENTURIES.items() if digits in values}
        # Symbols have no plural, and "as" is not arsenic.
        plural, flags = ("", re.NOFLAG) if name == "symbol" else ("(?:s|es)?", re.IGNORECASE)
        return [
            (re.compile(rf"(?<![\w']){re.escape(spelling)}{plural}(?!\w)", flags), values[spelling])
            for spelling in sorted(values, key=lambda spelling: (-len(spelling), spelling))
        ]


def _fold(text: str) -> str:
    """Return a text without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", text.replace("’", "'")) if not unicodedata.combining(c))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9']+", _fold(text).lower()))


ExaminedWorld = World | FactWorld
