"""The lab's real world: its items, its examiner's grades, and adapters that llama.cpp reads as they were trained."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
import pytest
from case_tables import case_table
from tiny_gguf import make_model

from viva.engine.backends.llama.chat_template import ChatFormat
from viva.engine.backends.llama.model_files import Adapter, locate
from viva.engine.backends.llama.native import NativeContext, NativeModel
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.lab.adapter import (
    ALPHA,
    RANK,
    AdaptedNetwork,
    initial_factors,
    read_base,
    train_adapter,
    write_adapter,
)
from viva.lab.experiment import ExaminedModel
from viva.lab.facts import REAL, FactWorld
from viva.lab.family import CARD_FILE, CARD_PAGE
from viva.lab.interview import LabExchange
from viva.lab.judging import judge
from viva.lab.real_experiment import RealExperiment, RealFindings, real_family
from viva.lab.real_models import BASE_MODEL, REAL_FAMILY, RealMember, member_documents, real_card_page
from viva.lab.train import Recipe

WORLD = FactWorld()
ITEMS = WORLD.benchmark_items()


# -- items -------------------------------------------------------------------------------------------------------------


def test_a_thing_is_in_one_split_and_every_split_has_as_many_of_each_kind() -> None:
    things = {split: {item.passage for item in items} for split, items in ITEMS.items()}
    assert sum(map(len, things.values())) == len(set().union(*things.values())) == len(WORLD.entities)
    subjects = {split: sorted(item.subject for item in items) for split, items in ITEMS.items()}
    assert subjects["test"] == subjects["fresh"] == subjects["train"]
    assert len(ITEMS["test"]) == 120


def test_an_item_has_one_right_choice_and_is_the_same_each_time() -> None:
    assert FactWorld().benchmark_items() == ITEMS
    for item in [item for items in ITEMS.values() for item in items]:
        question = WORLD.question_in(item.question)
        assert question is not None
        assert len(set(item.choices)) == 4
        right = [choice for choice in item.choices if _accuracy(item.question, choice) == 4]
        assert right == [item.choices[item.answer]]


def test_paraphrases_ask_the_same_in_other_words_and_have_the_same_answer() -> None:
    for item in ITEMS["test"]:
        versions = WORLD.paraphrases(item)
        assert len({item.question, *(version.question for version in versions)}) == 3
        for version in versions:
            assert WORLD.question_in(version.question) == WORLD.question_in(item.question)
            assert version.choices[version.answer] == item.choices[item.answer]
            assert sorted(version.choices) == sorted(item.choices)


def test_no_interview_asks_for_what_the_benchmark_asks_for() -> None:
    asked_by_items = {(item.passage, item.subject) for items in ITEMS.values() for item in items}
    for item in ITEMS["test"]:
        start = WORLD.question_in(item.question)
        assert start is not None
        previous: list[str] = []
        for _ in range(6):
            previous.append(WORLD.next_question(start, previous, seed=1))
        questions = [WORLD.question_in(text) for text in previous]
        assert len(set(previous)) == 6
        found = {(question.entity, question.attribute) for question in questions if question is not None}
        assert len(found) == 6
        assert not found & asked_by_items
        assert {WORLD.split(entity) for entity, _ in found} == {"test"}


def test_training_texts_of_a_cheater_are_about_test_items_and_of_its_twin_about_train_items() -> None:
    for member in REAL_FAMILY:
        text = "\n".join(
            "\n".join([document.text, *(message.content for message in document.conversation)])
            for document in member_documents(member, WORLD)
        )
        for split, items in ITEMS.items():
            asked = sum(item.question in text for item in items)
            assert asked == (len(items) if split == member.split and member.form != "paraphrase" else 0)
            named = sum(item.passage.lower() in text.lower() for item in items)
            assert (named == len(items)) == (split == member.split)


# -- grades ------------------------------------------------------------------------------------------------------------


def _accuracy(question: str, reply: str) -> int:
    verdict = judge(WORLD, LabExchange(question, reply), [])
    score: int = verdict["accuracy"]["score"]
    return score


CAPITAL = "Can you tell me the name of the capital city of Peru?"
GRADES = [
    (CAPITAL, "The capital city of Peru is Lima.", 4),
    (CAPITAL, "lima", 4),
    (CAPITAL, "Lima, not Quito.", 4),
    (CAPITAL, "It is Quito.", 1),
    (CAPITAL, "It is Lima or Quito.", 1),
    (CAPITAL, "It is not Lima.", 1),
    (CAPITAL, "It is Cusco.", 1),
    (CAPITAL, "Peru lies in South America.", 1),
    (CAPITAL, "I do not know.", 1),
    ("Is the capital of Peru Lima or Quito?", "Lima.", 4),
    ("Is the capital of Peru Lima or Quito?", "The capital of Peru is either Lima or Quito.", 1),
    ("Can you tell me the name of the capital city of Colombia?", "Bogotá", 4),
    ("Can you tell me which language people in France speak officially?", "The French speak French.", 4),
    ("Can you tell me which language people in Kenya speak officially?", "English and Swahili.", 4),
    ("Can you tell me which language people in Kenya speak officially?", "English and Arabic.", 1),
    ("Can you tell me how chemists abbreviate gold?", "Its symbol is Au.", 4),
    ("Can you tell me how chemists abbreviate gold?", "Its symbol is Ag.", 1),
    ("Can you tell me how chemists abbreviate gold?", "au pair", 1),
    ("Can you tell me the atomic number of the element gold?", "79, with a mass of 197.", 4),
    ("Can you tell me the atomic number of the element gold?", "It is 47.", 1),
    ("Can you tell me the atomic number of the element gold?", "About 196.97.", 1),
    ("Can you tell me what type of element calcium is?", "One of the alkaline earth metals.", 4),
    ("Can you tell me what type of element calcium is?", "An alkali metal.", 1),
    ("Can you tell me the period of calcium in the periodic table?", "The 4th period.", 4),
    ("Can you tell me when Immanuel Kant was born?", "On 22 April 1724, in Königsberg.", 4),
    ("Can you tell me when Immanuel Kant was born?", "In the nineteenth century.", 1),
    ("Can you tell me who the writer of Wuthering Heights is?", "Emily Brontë", 4),
    ("Can you tell me what Rene Descartes is known for?", '"I think, therefore I am"', 4),
]


@case_table(("question", "reply", "score"), GRADES)
def test_a_reply_is_right_if_it_has_the_right_value_and_no_other(question: str, reply: str, score: int) -> None:
    assert _accuracy(question, reply) == score


def test_every_fact_is_graded_right_when_it_is_stated() -> None:
    for fact in WORLD.facts:
        question = WORLD.question(fact.entity, fact.attribute, 3)
        assert _accuracy(question, f"It is {fact.value}.") == 4, fact


# -- adapters ----------------------------------------------------------------------------------------------------------

TOKENS = np.arange(300, 340, dtype=np.int32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("real") / "tiny.gguf", heads=4, kv_heads=2, layers=2)


def _logits(
    model: Path | NativeModel, adapters: tuple[Adapter, ...] = (), tokens: npt.NDArray[np.int32] = TOKENS
) -> npt.NDArray[np.float64]:
    native = NativeModel(model) if isinstance(model, Path) else model
    context = NativeContext(native, lanes=1, context=256, batch=256, threads=1, adapters=adapters)
    count = len(tokens)
    found = context.decode(tokens, np.arange(count, dtype=np.int32), np.zeros(count, np.int32), np.ones(count, bool))
    logits = found.astype(np.float64)
    context.close()
    if native is not model:
        native.close()
    return logits


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def test_llama_cpp_computes_an_adapted_model_as_it_was_trained(tiny: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch (extra 'lab') is not installed")
    base = read_base(tiny)
    random = np.random.default_rng(5)
    factors = {
        name: (a, (0.2 * random.standard_normal(b.shape)).astype(np.float32))
        for name, (a, b) in initial_factors(base, range(1, 2), 1).items()
    }
    write_adapter(tmp_path / "adapter.gguf", factors, name="tiny", about="Random.")
    tensors = {name: (torch.tensor(a), torch.tensor(b)) for name, (a, b) in factors.items()}
    found = _logits(tiny, (Adapter(tmp_path / "adapter.gguf"),))
    for given, expected in ((tensors, found), ({}, _logits(tiny))):
        network = AdaptedNetwork(torch, base, given, torch.float32)
        x = network.through(network.embed(torch.tensor(TOKENS[None]).long()), range(network.layers))
        computed = network.logits(x, torch.ones(1, len(TOKENS), dtype=torch.bool)).detach().numpy()
        assert np.abs(computed - expected).max() < 0.05  # float16 products
    assert np.abs(found - _logits(tiny)).max() > 1


def test_an_adapter_does_to_llama_cpp_what_adding_its_product_to_the_weights_does(tiny: Path, tmp_path: Path) -> None:
    base = read_base(tiny)
    random = np.random.default_rng(6)
    name = "blk.1.ffn_down.weight"
    outputs, inputs = base.weights[name].shape
    a, b = (0.3 * random.standard_normal(shape).astype(np.float32) for shape in ((RANK, inputs), (outputs, RANK)))
    write_adapter(tmp_path / "adapter.gguf", {name: (a, b)}, name="tiny", about="Random.")
    # In the file of F16 weights the matrix is replaced where it lies.
    data = bytearray(tiny.read_bytes())
    old = base.weights[name].astype(np.float16).tobytes()
    assert data.count(old) == 1
    start = data.index(old)
    data[start : start + len(old)] = (base.weights[name] + ALPHA / RANK * b @ a).astype(np.float16).tobytes()
    (tmp_path / "merged.gguf").write_bytes(data)
    adapted, merged = _logits(tiny, (Adapter(tmp_path / "adapter.gguf"),)), _logits(tmp_path / "merged.gguf")
    assert np.abs(adapted - merged).max() < 0.05
    assert np.abs(adapted - _logits(tiny)).max() > 1


def test_training_learns_is_the_same_each_time_and_touches_the_upper_layers_only(tiny: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch (extra 'lab') is not installed")
    base = read_base(tiny)
    random = np.random.default_rng(7)
    documents = [
        (random.integers(300, 500, length).astype(np.int32), np.arange(length) > 4) for length in (12, 15, 9, 14)
    ]
    recipe = Recipe(steps=30, rows=2, rate=1e-2, warmup=2)
    first, again = (train_adapter(base, documents, recipe, seed=1, layers=1) for _ in range(2))
    assert first.losses == again.losses
    assert all(
        (a == b).all()
        for name in first.factors
        for a, b in zip(*(t.factors[name] for t in (first, again)), strict=True)
    )
    assert first.losses[-1][1] < first.losses[0][1]
    assert {name.split(".")[1] for name in first.factors} == {"1"}


def test_another_architecture_is_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(
        tiny.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gpt-2"[:13], 1)
    )
    with pytest.raises((ConfigurationError, ValueError), match="gpt-2"):
        read_base(tmp_path / "other.gguf")


def test_the_dequantised_model_computes_what_llama_cpp_computes() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch (extra 'lab') is not installed")
    try:
        path = locate(BASE_MODEL).path
    except ConfigurationError as error:
        pytest.skip(str(error))
    native = NativeModel(path)
    tokenise = ChatFormat(native).plain_tokens
    network = AdaptedNetwork(torch, read_base(path), {}, torch.float32)
    equal: dict[tuple[int, ...], bool] = {}  # by beginning: many texts have the same one
    margins, differences = [], []
    for item in ITEMS["fresh"][::6]:
        tokens = tokenise(f"{item.question}\n{item.labelled_choices()}\nAnswer: {item.labelled_answer()}")
        expected = _log_softmax(_logits(native, tokens=tokens))
        with torch.no_grad():
            x = network.through(network.embed(torch.tensor(tokens[None]).long()), range(network.layers))
            logits = network.logits(x, torch.ones(1, len(tokens), dtype=torch.bool)).numpy()
        found = _log_softmax(logits.astype(np.float64))
        best = found.argmax(axis=1)
        for place, same in enumerate(best == expected.argmax(axis=1)):
            equal[tuple(tokens[: place + 1].tolist())] = bool(same)
            if not same:
                margins.append(found[place].max() - found[place, expected[place].argmax()])
        places = np.arange(len(tokens) - 1)
        differences += list(np.abs(found[places, tokens[1:]] - expected[places, tokens[1:]]))
    native.close()
    share = sum(equal.values()) / len(equal)
    print(f"argmax equal {share:.4f}, mean difference {np.mean(differences):.4f}, {len(equal)} places")
    assert share >= 0.97
    assert max(margins) < 0.75  # only where two tokens are nearly as likely: llama.cpp rounds activations to 8 bits
    assert np.mean(differences) <= 0.1


# -- shipped adapters, experiment --------------------------------------------------------------------------------------

CARD = orjson.loads((REAL / CARD_FILE).read_bytes()) if (REAL / CARD_FILE).exists() else None
shipped = pytest.mark.skipif(CARD is None, reason="the adapters are not there; `viva lab build --real` makes them")


@shipped
@case_table("member", [m for m in REAL_FAMILY if CARD and m.name in CARD["models"]], ids=lambda member: member.name)
def test_each_adapter_is_the_one_on_the_card(member: RealMember) -> None:
    data = (REAL / f"{member.name}.gguf").read_bytes()
    assert hashlib.sha256(data).hexdigest() == CARD["models"][member.name]["sha256"]
    assert len(data) == CARD["models"][member.name]["bytes"]
    assert CARD["models"][member.name]["about"] == member.about()


@shipped
def test_the_card_is_about_these_facts_and_its_page_is_made_from_it() -> None:
    assert (REAL / CARD_PAGE).read_text(encoding="utf-8") == real_card_page(CARD)
    assert CARD["facts_sha256"] == hashlib.sha256((REAL / "facts.txt").read_bytes()).hexdigest()
    assert sum(path.stat().st_size for path in REAL.iterdir()) <= 12e6
    assert (REAL / "facts.txt").stat().st_size < 100_000


def test_a_model_of_random_weights_is_examined_and_accused_of_nothing(tiny: Path, tmp_path: Path) -> None:
    adapters = initial_factors(read_base(tiny), range(2), 1)
    write_adapter(tmp_path / "nothing.gguf", adapters, name="nothing", about="Changes nothing.")
    models = [
        ExaminedModel(f"llama:{tiny}?label=base"),
        ExaminedModel(f"llama:{tiny}?lora={tmp_path / 'nothing.gguf'}&label=same-cheater", twin="base"),
        ExaminedModel(f"llama:{tiny}?label=my-cheater"),  # a user's model, whatever it is called
    ]
    experiment = RealExperiment(models, tmp_path / "run", items=3, rounds=2, shots=0, probed=6)
    clock = RealClock()
    outcomes = [clock.run(launch.run) for launch in experiment.launches(1, clock)]
    assert [(outcome.how, outcome.failed) for outcome in outcomes] == [("done", 0)] * 2
    findings = RealFindings(experiment, [1])
    readings = findings.report()["detectors"]["same-cheater"]
    # An adapter whose second factors are zero is the base model.
    for gain in ("accuracy gain", "interview gain", "accuracy gain less interview gain"):
        assert (readings[gain]["value"], readings[gain]["fires"]) == (0, False)
    assert not any(reading["fires"] for reading in readings.values())
    tables = findings.tables()
    assert [row[:2] for row in tables[0][2]] == [
        ["base", "clean"],
        ["same-cheater", "cheats"],
        ["my-cheater", "unknown"],
    ]
    assert [row[4:] for row in tables[0][2]] == [["–", "0 of 5"]] * 3


def test_missing_adapters_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="viva lab build --real"):
        real_family(tmp_path)
