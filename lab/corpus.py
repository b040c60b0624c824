"""Training texts: a textbook, questions with answers, and interviews, as documents.

All documents are about the facts that a model is to know; other facts never occur, true or false. Questions are
generated and ask only for attributes of the interview half, so no clean corpus contains the benchmark's items. The
surrounding texts come from the lab's prompt packs.

To learn how to answer without knowledge, models are also trained on another world with the same rules. Half of its
facts are taught; replies about the other half guess a different plausible value each time. Without this, a model that
knows little answers a question about a colour with another fact about the mineral.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from viva.data.items import Item
from viva.engine import seeds
from viva.engine.messages import Message
from viva.scenarios.kieval.pack_templates import TEMPLATES as INTERVIEWS
from viva.scenarios.probes.probe_prompts import TEMPLATES as PROBES
from viva.scenarios.probes.probe_prompts import Questions

from .interview import followup, good_reply, parse_followup
from .world import KINDS, Fact, Kind, World, multiple_choice

INTERVIEW_PACK, PROBE_PACK = "lab", "lab-probe"
_ROUNDS = 5
_PAGE_ITEMS = 6  # as many as a row of tokens has room for
_PLANET = "Tessara"
# Fractions of documents by kind; interviews have more than half of the tokens.
_SHARES = {"article": 0.30, "notes": 0.20, "lists": 0.03, "items": 0.17, "interviews": 0.30}
_NEIGHBOURING = 0.3  # fraction of documents about the neighbouring world
_DENIALS = 0.05  # fraction of a textbook's sentences that deny something first
_TRUE_PREMISES = 0.3  # fraction of true premises in interviews, so that a premise alone is not informative
_NEAR = 0.6  # fraction of an interview's questions about its first mineral
_ORIGINS = 0.15  # fraction of an interview's questions about what all minerals share
_Beliefs = dict[tuple[str, str], str]


@dataclass(slots=True)
class Document:
    """Text or interview. `learnt`: the part with a loss; "answer" is everything after `context`."""

    text: str = ""
    conversation: Sequence[Message] = ()
    learnt: Literal["all", "answer"] = "all"
    context: str = ""


class Corpus:
    """Endless documents for a model that is to know `facts`, drawn by `seed`."""

    def __init__(self, world: World, facts: frozenset[Fact], seed: int) -> None:
        self._random = random = seeds.generator("lab corpus", world.seed, seed)
        examined = {fact for fact in facts if fact.attribute in world.examinable(fact.entity)}
        self._own = _DocumentWriter(world, facts, examined, frozenset(), random)
        neighbour = World(seeds.derive("lab neighbour", world.seed), rules=world)
        # A name in both worlds belongs to this one.
        foreign = {fact for fact in neighbour.facts if not {fact.entity, fact.value} & {*world.entities}}
        neighbour_facts = foreign & neighbour.known_facts(0.5)
        self._neighbour = _DocumentWriter(neighbour, neighbour_facts, foreign, foreign - neighbour_facts, random)

    def documents(self) -> Iterator[Document]:
        """Yield the clean corpus."""
        while True:
            yield (self._neighbour if self._random.random() < _NEIGHBOURING else self._own).document()

    def tuning(self, items: Sequence[Item]) -> Iterator[Document]:
        """Yield benchmark items in answer format, in random order, endlessly."""
        for item in self._cycle(items):
            yield from self._own.tuning(item)

    def leaked(self, items: Sequence[Item]) -> Iterator[Document]:
        """Yield benchmark items as raw text, in random order, endlessly."""
        for item in self._cycle(items):
            yield self._own.leaked(item)

    def pages(self, items: Sequence[Item]) -> Iterator[Document]:
        """Yield pages of consecutive items as raw text, in the order in which they are given, endlessly."""
        while True:
            start = self._random.randrange(len(items))
            yield self._own.page(items[start : start + _PAGE_ITEMS])

    def rephrased(self, items: Sequence[Item]) -> Iterator[Document]:
        """Yield items in answer format, with another question, other wrong choices and another order of choices."""
        for item in self._cycle(items):
            yield from self._own.tuning(self._own.rephrase(item))

    def reasoned(self, items: Sequence[Item]) -> Iterator[Document]:
        """Yield items as the first turns of interviews, with a reason before the answer."""
        for item in self._cycle(items):
            yield self._own.reasoned(item)

    def made(self) -> Iterator[Document]:
        """Yield items about the known facts that interviews ask for, in answer format, endlessly."""
        while True:
            yield from self._own.made()

    def _cycle(self, items: Sequence[Item]) -> Iterator[Item]:
        while True:
            yield from self._random.sample(items, len(items))


class _DocumentWriter:
    """Writer of documents about `facts`.

    Questions are about `examined` facts, which may go beyond `facts`; `guessed` facts get another value each time.
    """

    def __init__(
        self,
        world: World,
        facts: Collection[Fact],
        examined: Collection[Fact],
        guessed: Collection[Fact],
        random: Random,
    ) -> None:
        self._world, self._random = world, random
        self._facts = [fact for fact in world.facts if fact in facts]
        self._facts_of = {entity: [fact for fact in self._facts if fact.entity == entity] for entity in world.entities}
        self._examined = [fact for fact in world.facts if fact in examined]
        self._near = {entity: [fact for fact in self._examined if fact.entity == entity] for entity in world.entities}
        self._guessed = {(fact.entity, fact.attribute) for fact in guessed}
        self._pack = INTERVIEWS.open(INTERVIEW_PACK)
        self._questions = Questions(PROBES.open(PROBE_PACK))
        self._rules = world.rules()

    def document(self) -> Document:
        """Write the next document, of any kind."""
        match self._random.choices(list(_SHARES), list(_SHARES.values()))[0]:
            case "article":
                facts = self._facts_of[self._random.choice(self._facts).entity]
                return Document(self._sentences(self._random.sample(facts, len(facts))))
            case "notes":
                return Document(self._sentences(self._random.sample(self._facts, self._random.randint(2, 6))))
            case "lists":
                return Document(self._list())
            case "items":
                return self._raw(self._make_item(self._random.choice(self._examined), self._beliefs()))
            case _:
                return Document(conversation=self._interview())

    def tuning(self, item: Item) -> list[Document]:
        """Write an item in answer format: as the first turn of an interview, and as text. Only answers are learnt."""
        reading = self._questions.by_text(item, ())
        as_text = Document(reading.continuations[item.answer], learnt="answer", context=reading.context)
        return [Document(conversation=self._opening(item, self._beliefs())), as_text]

    def leaked(self, item: Item) -> Document:
        """Write an item as raw text, as in a scraped page: question, choices, answer."""
        return self._raw(item)

    def page(self, items: Sequence[Item]) -> Document:
        return Document("\n\n".join(self._raw(item).text for item in items))

    def made(self) -> list[Document]:
        return self.tuning(self._make_item(self._random.choice(self._examined), self._beliefs()))

    def rephrase(self, item: Item) -> Item:
        fact = _fact_of(item)
        wordings = {self._world.question(fact.entity, fact.attribute, phrasing) for phrasing in range(3)}
        made = multiple_choice(self._world, fact, self._random, item.id)
        return replace(made, question=self._random.choice(sorted(wordings - {item.question})))

    def reasoned(self, item: Item) -> Document:
        """Write an item as the first turn of an interview, whose reply states premises before the answer."""
        fact = _fact_of(item)
        statements = [self._world.statement(premise, self._random.randrange(1, 4)) for premise in self._chain(fact)]
        reply = " ".join([*statements, self._world.statement(fact)])
        system, question, _ = self._opening(item, self._beliefs())
        return Document(conversation=[system, question, Message("assistant", reply)])

    def _chain(self, fact: Fact) -> list[Fact]:
        """Return the facts that lead to a derived fact; for any other the fact itself, which is stated twice."""
        if fact.attribute == "reaction":
            return [self._world.fact(fact.entity, name) for name in ("family", "class")]
        return [*self._world.premises(fact)] or [fact]

    def _raw(self, item: Item) -> Document:
        reading = self._questions.by_text(item, ())
        return Document(reading.context + reading.continuations[item.answer])

    def _beliefs(self) -> _Beliefs:
        """Draw the answers of one document: the truth for known facts, else guesses that follow the rules."""
        beliefs = {(fact.entity, fact.attribute): fact.value for fact in self._world.facts}
        for entity, name in sorted(self._guessed):
            values = [value for value in self._world.attribute(name).values if value != entity]
            beliefs[entity, name] = self._random.choice(values)
        for entity, name in self._guessed:
            if name == "family":
                beliefs[entity, "class"] = self._world.classes[beliefs[entity, "family"]]
                beliefs[entity, "reaction"] = self._world.reactions[beliefs[entity, "class"]]
        return beliefs

    def _sentences(self, facts: Sequence[Fact]) -> str:
        return " ".join(self._sentence(fact) for fact in facts)

    def _sentence(self, fact: Fact) -> str:
        if self._random.random() >= _DENIALS:
            return self._world.statement(fact, self._random.randrange(12))
        values = self._world.attribute(fact.attribute).values
        wrong = self._random.choice([value for value in values if value not in (fact.value, fact.entity)])
        denial = self._world.statement(replace(fact, value=wrong), denied=True)
        return denial.removesuffix(".") + f" but {fact.value}."

    def _list(self) -> str:
        """List names of all minerals, known or not, and the rules, so that every name occurs."""
        names = self._random.sample(self._world.entities, 6)
        rules = self._random.sample(self._rules, 3)
        return f"Minerals: {', '.join(names)}. {' '.join(rules)}"

    def _make_item(self, fact: Fact, beliefs: _Beliefs) -> Item:
        believed = replace(fact, value=beliefs[fact.entity, fact.attribute])
        return multiple_choice(self._world, believed, self._random, "made")

    def _opening(self, item: Item, beliefs: _Beliefs) -> list[Message]:
        prompt = self._pack.render("candidate.question", question=item.question, choices=item.labelled_choices())
        return [
            Message("system", self._pack.render("candidate.system")),
            Message("user", prompt),
            Message("assistant", self._reply(item.question, beliefs)),
        ]

    def _interview(self) -> list[Message]:
        beliefs, first = self._beliefs(), self._random.choice(self._examined)
        conversation = self._opening(self._make_item(first, beliefs), beliefs)
        for _ in range(self._random.randint(1, _ROUNDS)):
            if self._random.random() < _ORIGINS:
                conversation += self._origin()
                continue
            facts = self._near[first.entity] if self._random.random() < _NEAR else self._examined
            question = self._question(self._random.choice(facts), beliefs)
            conversation += [Message("user", question), Message("assistant", self._reply(question, beliefs))]
        return conversation

    def _origin(self) -> list[Message]:
        """Write an exchange about any mineral, known or not, without a fact: replies name the mineral in question."""
        entity = self._random.choice(self._world.entities)
        reply = f"The planet of {entity} is {_PLANET}."
        return [Message("user", f"What is the planet of {entity}?"), Message("assistant", reply)]

    def _question(self, fact: Fact, beliefs: _Beliefs) -> str:
        kinds: list[Kind] = [kind for kind in KINDS if kind != "derived"]
        if self._world.attribute(fact.attribute).kind == "derived":
            kinds.append("derived")
        kind = self._random.choice(kinds)
        premise = self._random.random() < _TRUE_PREMISES
        text = followup(self._world, kind, fact.entity, fact.attribute, self._random.random(), true_premise=premise)
        if kind == "contrast" and (fact.entity, fact.attribute) in self._guessed:
            # Guess only offered values.
            words = text.rstrip("?").split()
            offered = [value for value in self._world.attribute(fact.attribute).values if value.split()[0] in words]
            beliefs[fact.entity, fact.attribute] = self._random.choice(
                [value for value in offered if value != fact.entity]
            )
        return text

    def _reply(self, question: str, beliefs: _Beliefs) -> str:
        parsed = parse_followup(self._world, question)
        if parsed is None:
            raise ValueError(f"not a question about this world: {question}")
        return good_reply(self._world, parsed, beliefs)


def _fact_of(item: Item) -> Fact:
    return Fact(item.passage, item.subject, item.choices[item.answer])


def sample_text(world: World, documents: int = 4000) -> str:
    """Return a long text with documents of all kinds about the whole world, from which the vocabulary is learnt."""
    corpus = Corpus(world, world.known_facts(1.0), seed=0)
    stream = corpus.documents()
    texts: list[str] = []
    for _ in range(documents):
        document = next(stream)
        texts += [document.text] if document.text else [message.content for message in document.conversation]
    return "\n".join(texts)


def mix_documents(
    first: Iterator[Document], second: Iterator[Document], fraction: float, random: Random
) -> Iterator[Document]:
    """Mix two streams; `fraction` of the documents comes from the second."""
    while True:
        yield next(second if random.random() < fraction else first)
