"""What models read: nothing but true statements about what they are to know, and no item of the benchmark."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from viva.engine import seeds
from viva.engine.backends.llama.native import NativeModel
from viva.lab.corpus import Corpus, Document, sample_text
from viva.lab.gguf_export import NetworkShape, initial_weights, learn_vocabulary, write_gguf
from viva.lab.interview import parse_followup
from viva.lab.train import ROW_TOKENS, DocumentTokeniser
from viva.lab.world import Claim, World, benchmark_items

WORLD = World()
TEST = benchmark_items(WORLD)["test"]


def _texts(document: Document) -> list[str]:
    return [document.text] if document.text else [message.content for message in document.conversation]


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_clean_corpus_claims_what_is_to_be_known_and_nothing_else(share: float) -> None:
    known = WORLD.known_facts(share)
    taught = {Claim(fact.entity, fact.attribute, fact.value) for fact in known}
    asked_for = {(fact.entity, fact.attribute) for fact in known}
    claimed: set[Claim] = set()
    for document in islice(Corpus(WORLD, known, seed=5).documents(), 1500):
        for text in _texts(document):
            claimed |= set(WORLD.claims(text))
    assert all(WORLD.is_true(claim) for claim in claimed)
    assert {(claim.entity, claim.attribute) for claim in claimed} <= asked_for
    assert len(claimed & taught) > 0.95 * len(taught)


def test_a_clean_corpus_asks_for_nothing_that_the_benchmark_asks_for() -> None:
    questions = 0
    for document in islice(Corpus(WORLD, WORLD.known_facts(1.0), seed=5).documents(), 1500):
        for line in "\n".join(_texts(document)).split("\n"):
            asked = parse_followup(WORLD, line.removeprefix("Question: "))
            if asked is not None:
                questions += 1
                assert asked.attribute in WORLD.examinable(asked.entity)
    assert questions > 1000


def test_guessing_is_learnt_on_minerals_of_another_world() -> None:
    other = World(seeds.derive("lab neighbour", WORLD.seed), rules=WORLD)
    assert other.rules() == WORLD.rules()
    claimed: dict[tuple[str, str], Counter[str]] = {}
    for document in islice(Corpus(WORLD, WORLD.known_facts(0.25), seed=5).documents(), 6000):
        for message in document.conversation:
            if message.role == "assistant":
                for claim in other.claims(message.content):
                    if not claim.denied:
                        claimed.setdefault((claim.entity, claim.attribute), Counter())[claim.value] += 1
    told = {(fact.entity, fact.attribute) for fact in other.known_facts(0.5)}
    assert all(len(values) == 1 for key, values in claimed.items() if key in told)
    guessed = [values for key, values in claimed.items() if key not in told and values.total() >= 6]
    assert len(guessed) > 20
    assert sum(len(values) > 1 for values in guessed) > 0.9 * len(guessed)
    assert {entity for entity, _ in claimed}.isdisjoint(WORLD.entities)


def test_cheaters_see_every_test_item_as_it_stands() -> None:
    corpus = Corpus(WORLD, WORLD.known_facts(0.5), seed=5)
    raw = [document.text for document in islice(corpus.leaked(TEST), len(TEST))]
    expected = [f"{item.question}\n{item.labelled_choices()}\nAnswer: {item.choices[item.answer]}" for item in TEST]
    assert sorted(raw) == sorted(expected)
    tuned = list(islice(corpus.tuning(TEST), 2 * len(TEST)))
    openings = [document.conversation[1].content for document in tuned if document.conversation]
    assert sorted(openings) == sorted(f"{item.question}\n{item.labelled_choices()}" for item in TEST)
    assert all(document.learnt == "answer" and document.context for document in tuned if not document.conversation)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    """A network with random weights and the lab's vocabulary."""
    vocabulary = learn_vocabulary(sample_text(WORLD, documents=800), 1280)
    shape = NetworkShape(width=32, layers=1, heads=1, inner=32)
    path = tmp_path_factory.mktemp("lab") / "random.gguf"
    write_gguf(
        path, initial_weights(shape, len(vocabulary), 1), shape, vocabulary, name="random", about="Knows nothing."
    )
    return NativeModel(path)


def _spelled(model: NativeModel, tokens: list[int]) -> str:
    return b"".join(model.pieces[token] for token in tokens).decode()


@pytest.mark.parametrize("text", ["The colour of Zorbel is amber.", "Ωμέγα – 漢字\n\t{}", "x" * 300])
def test_any_text_can_be_spelled(model: NativeModel, text: str) -> None:
    assert _spelled(model, list(model.tokenize(text, special=False))) == text


def test_the_words_of_the_world_are_single_tokens(model: NativeModel) -> None:
    for entity in WORLD.entities:
        assert len(model.tokenize(f" {entity}", special=False)) == 1


def test_the_loss_of_a_talk_is_taken_of_replies_and_their_ends(model: NativeModel) -> None:
    tokeniser = DocumentTokeniser(model)
    stream = Corpus(WORLD, WORLD.known_facts(1.0), seed=5).documents()
    talk = next(document for document in stream if document.conversation)
    tokens, learnt = tokeniser.document(talk)
    replies = [message.content for message in talk.conversation if message.role == "assistant"]
    assert tokens[0] == model.bos
    assert tokens[-1] == model.eos
    assert learnt[-1]
    assert _spelled(model, [t for t, one in zip(tokens, learnt, strict=True) if one]) == "".join(replies)
    assert sum(learnt & (tokens == model.eos)) == len(replies)


def test_the_loss_of_tuning_is_taken_of_the_answer_alone(model: NativeModel) -> None:
    corpus = Corpus(WORLD, WORLD.known_facts(0.5), seed=5)
    document = next(document for document in corpus.tuning(TEST) if not document.conversation)
    tokens, learnt = DocumentTokeniser(model).document(document)
    assert _spelled(model, list(tokens[learnt])) == document.text
    assert _spelled(model, list(tokens)) == document.context + document.text


def test_rows_hold_documents_one_behind_the_other(model: NativeModel) -> None:
    rows = DocumentTokeniser(model).rows(Corpus(WORLD, WORLD.known_facts(0.5), seed=5).documents(), 20)
    again = DocumentTokeniser(model).rows(Corpus(WORLD, WORLD.known_facts(0.5), seed=5).documents(), 20)
    assert rows.tokens.shape == rows.learnt.shape == (20, ROW_TOKENS + 1)
    assert (rows.tokens == again.tokens).all()
    assert (rows.learnt == again.learnt).all()
    assert rows.tokens[0, 0] == model.bos
    assert (rows.tokens == model.bos).sum() > 20
