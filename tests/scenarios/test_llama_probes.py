"""Probes of local GGUF models beside an independent computation from the full logits of llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from drawn_benchmarks import FORMS, drawn_items
from packaged import packaged_server
from plain_llama import PlainLlama
from probing import probed
from tiny_architectures import make_architecture
from tiny_gguf import WORDS, make_model

from viva.data.dataset import open_dataset
from viva.data.items import Item
from viva.data.sources import development_source
from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import ContextTooLong
from viva.engine.journal_reader import History
from viva.engine.likelihood import Likelihood, Reading
from viva.orchestration.launch import new_run, recorded_results
from viva.scenarios.probes.few_shot import Shots
from viva.scenarios.probes.probe import ProbeSettings
from viva.scoring.contamination import MIN_K, moments

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()
# The same attention kernel on both sides: the two that llama.cpp has differ by more than the tolerance.
_OPTIONS = "threads=1&flash_attn=off&label=tiny"
_TOLERANCE = 1e-4
_LETTERS = "ABCDE"
_METHODS = ("letter", "text", "loss")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=5, quantised=True)


_REAL = {
    "ARC-Challenge": "arc:@/arc/ARC-Challenge:test",
    "ARC-Easy": "arc:@/arc/ARC-Easy:test",
    "MMLU": "mmlu:@/mmlu:test",
    "HellaSwag": "hellaswag:@/hellaswag/validation_sample.jsonl",
    "C-Eval": "ceval:@/ceval:val",
}


# -- agreement --------------------------------------------------------------------------------------------------------


def _header(item: Item) -> str:
    subject = f" on {item.subject.replace('_', ' ')}" if item.subject else ""
    return f"Multiple-choice questions{subject}, each followed by its answer.\n\n"


def _asked(item: Item) -> str:
    options = "\n".join(f"{_LETTERS[n]}. {choice}" for n, choice in enumerate(item.choices))
    return f"{item.question.strip()}\n{options}\nAnswer:"


def _in_words(item: Item, form: str) -> str:
    return item.question.strip() if form == "hellaswag" else f"Question: {item.question.strip()}\nAnswer:"


def _agrees(model: Path, folder: Path, source: str, *, count: int, shots: int, context: int) -> None:
    """Every likelihood and loss of a probe, and its accuracies, against the reference. The formats stand here anew."""
    settings = {"dataset": source, "n": count, "shots": shots, "method": list(_METHODS)}
    name = f"llama:{model}?lanes=2&ctx={context}&{_OPTIONS}"
    report, readings = probed(folder, name, **settings)
    form = source.partition(":")[0]
    items = [item for item in open_dataset(source) if item.id in readings]
    assert len(items) == len(readings) == count
    examples = Shots.sample(open_dataset(development_source(source) or ""), shots, 7) if shots else None
    plain = PlainLlama(model, context)
    right = dict.fromkeys(("letter", "text", "text_normalised"), 0)
    losses = []
    for item in items:
        letters, texts, [whole] = readings[item.id]
        shown = examples.for_item(item) if examples is not None else []
        told = "".join(f"{_asked(shot)} {_LETTERS[shot.answer]}\n\n" for shot in shown)
        names = [f" {_LETTERS[n]}" for n in range(len(item.choices))]
        expected = _logprobs(plain, [_header(item) + told, _asked(item)], names)
        _close(letters, expected)
        sums = [sum(one) for one in expected]
        right["letter"] += _best(sums) == item.answer

        told = "".join(f"{_in_words(shot, form)} {shot.choices[shot.answer].strip()}\n\n" for shot in shown)
        words = [choice.strip() for choice in item.choices]
        expected = _logprobs(plain, [told, _in_words(item, form)], [f" {choice}" for choice in words])
        _close(texts, expected)
        sums = [sum(one) for one in expected]
        right["text"] += _best(sums) == item.answer
        right["text_normalised"] += _best([v / len(w) for v, w in zip(sums, words, strict=True)]) == item.answer

        text = f"{_asked(item)} {_LETTERS[item.answer]}. {item.choices[item.answer]}"
        tokens = plain.tokens(text)
        [rows] = plain.rows(plain.tokens("", begins=True), [tokens])
        _close([whole], [[float(row[token]) for row, token in zip(rows, tokens, strict=True)]])
        losses.append(-sum(whole.logprobs) / len(tokens))
        mean_and_deviation = np.array([moments(row) for row in rows])
        assert whole.means == pytest.approx(mean_and_deviation[:, 0], abs=_TOLERANCE)
        assert whole.deviations == pytest.approx(mean_and_deviation[:, 1], abs=_TOLERANCE)
    plain.close()
    one = report["candidates"]["tiny"]
    assert {method: one["accuracy"][method]["right"] for method in right} == right
    assert one["loss"]["mean"] == pytest.approx(np.mean(losses), abs=_TOLERANCE)
    assert report["tier"] == "C"


def _logprobs(plain: PlainLlama, before: list[str], said: list[str]) -> list[list[float]]:
    """The log-probability of each token of texts behind pieces, all tokenised by themselves."""
    return plain.logprobs(plain.tokens(*before, begins=True), [plain.tokens(text) for text in said])


def _close(likelihoods: list[Likelihood], expected: list[list[float]]) -> None:
    """Token by token, and in their sum."""
    assert len(likelihoods) == len(expected)
    for likelihood, values in zip(likelihoods, expected, strict=True):
        assert likelihood.logprobs == pytest.approx(values, abs=_TOLERANCE)
        assert likelihood.total == pytest.approx(sum(values), abs=_TOLERANCE)


def _best(values: list[float]) -> int:
    return values.index(max(values))


@pytest.mark.parametrize("form", FORMS)
def test_every_likelihood_and_loss_is_that_of_full_logits(model: Path, tmp_path: Path, form: str) -> None:
    (tmp_path / "data").mkdir()
    source = FORMS[form](tmp_path / "data", "test", drawn_items(50, 1))
    FORMS[form](tmp_path / "data", "dev", drawn_items(6, 2))
    _agrees(model, tmp_path / "run", source, count=50, shots=2, context=2048)


@pytest.mark.parametrize("name", _REAL)
def test_so_it_is_on_the_real_benchmarks(model: Path, tmp_path: Path, name: str) -> None:
    source = _REAL[name].replace("@", str(DATA))
    place = Path(source.split(":")[1])
    if not place.exists():
        pytest.skip(f"{place} is missing (set VIVA_DATA to the folder with the benchmark data)")
    _agrees(model, tmp_path / "run", source, count=50, shots=0 if name == "HellaSwag" else 1, context=8192)


def _values(readings: list[list[Likelihood]]) -> npt.NDArray[np.float64]:
    return np.array([value for reading in readings for one in reading for value in one.logprobs])


@pytest.mark.parametrize("quantised", [False, True], ids=["F16", "Q4_0"])
@pytest.mark.parametrize("kind", ["deepseek2 dense", "deepseek2"])
def test_latent_attention_and_experts_differ_from_plain_llama_cpp_no_more_than_that_from_itself(
    tmp_path: Path, kind: str, quantised: bool
) -> None:
    path = make_architecture(tmp_path / "m.gguf", kind, seed=5, quantised=quantised)
    draw = np.random.default_rng(1)

    def words(count: int) -> str:
        return " ".join(draw.choice(WORDS, count))

    shared = words(120) + "\n"
    readings = [Reading(words(60), tuple(f" {words(12)}" for _ in range(4)), shared) for _ in range(4)]

    def plain(flash: bool, batch: int = 512) -> npt.NDArray[np.float64]:
        model = PlainLlama(path, 1024, flash=flash, batch=batch)
        told = [_logprobs(model, [one.shared, one.context], list(one.continuations)) for one in readings]
        model.close()
        return np.array([value for texts in told for values in texts for value in values])

    def ours(flash: str, options: str) -> npt.NDArray[np.float64]:
        return _values(_using(f"llama:{path}?ctx=1024&threads=1&flash_attn={flash}{options}", readings))

    for flash in ("off", "on"):
        kept, lost = ours(flash, "&lanes=8"), ours(flash, "&lanes=1&kv_cache=0")
        assert (kept == lost).all()
        whole = plain(flash == "on")
        if flash == "off":  # its kernels do not go by the size of a prompt's parts
            assert kept == pytest.approx(whole, abs=_TOLERANCE)
        else:  # they do: one token at a time, or 64 and more, is another arithmetic, and a router may turn over
            noise = np.abs(plain(True, batch=1) - whole)
            assert np.abs(kept - whole).mean() < 1.5 * noise.mean()


# -- company, length, endpoints ---------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "data").mkdir()
    FORMS["generic"](tmp_path / "data", "dev", drawn_items(6, 2))
    return FORMS["generic"](tmp_path / "data", "test", drawn_items(16, 1))


def test_readings_are_the_same_bits_in_any_company(model: Path, tmp_path: Path, source: str) -> None:
    settings = {"dataset": source, "shots": 3}
    name = f"llama:{model}?ctx=1024&{_OPTIONS}"
    report, together = probed(tmp_path / "all", f"{name}&lanes=5", **settings, method=list(_METHODS))
    for place, method in enumerate(_METHODS):
        # Each method by itself, one conversation at a time, in one lane, and without any KV that is kept.
        _, alone = probed(tmp_path / method, f"{name}&lanes=1&kv_cache=0", **settings, method=[method], concurrency=1)
        assert alone == {item: [readings[place]] for item, readings in together.items()}
    assert report["candidates"]["tiny"]["n"] == 16


def _using(name: str, readings: list[Reading]) -> list[list[Likelihood]]:
    clock = RealClock()

    async def main() -> list[list[Likelihood]]:
        async with build(name, clock) as backend:
            assert isinstance(backend, LlamaBackend)
            return [(await backend.read(reading)).likelihoods or [] for reading in readings]

    return clock.run(main)


def test_a_continuation_leaves_no_trace_in_those_after_it(model: Path) -> None:
    texts = tuple(f" {question} {choices[0]}" for question, choices, _ in drawn_items(12, 3))
    shared, context = "question question\n\n", "people answer:"
    readings = [
        Reading(context, texts, shared, moments=True),
        Reading(context, tuple(reversed(texts)), shared, moments=True),
        *(Reading(context, (text,), shared, moments=True) for text in texts),
        Reading("", (texts[0],), moments=True),
    ]
    forth, back, *single, whole = _using(f"llama:{model}?lanes=1&ctx=512&{_OPTIONS}", readings)
    assert forth == back[::-1] == [one for [one] in single]
    assert len({tuple(one.logprobs) for one in forth}) == len(texts)
    assert whole[0].logprobs != forth[0].logprobs


def test_a_text_longer_than_a_lane_fails_its_item_and_names_ctx(model: Path, tmp_path: Path, source: str) -> None:
    name = f"llama:{model}?ctx=256&lanes=1&{_OPTIONS}"
    with pytest.raises(ContextTooLong, match=r"has 3\d\d tokens .* a lane holds 256; raise \?ctx="):
        _using(name, [Reading("", ("x" * 300,))])
    with pytest.raises(ContextTooLong, match=r"raise \?ctx="):
        _using(name, [Reading("y" * 200, (" A", "x" * 100))])

    settings = ProbeSettings(candidate=[name], dataset=source, shots=5)
    launch = new_run("probe", settings, tmp_path / "run")
    assert RealClock().run(launch.run).failed == 16
    one = recorded_results(launch.folder).report()["candidates"]["tiny"]
    assert (one["failures"], one["accuracy"]) == ({"ContextTooLong": 16}, {})
    with History(launch.folder.journal) as history:
        assert all("raise ?ctx=" in ended.result["message"] for ended in history.ended())


@pytest.fixture
def url(model: Path, tmp_path: Path) -> Iterator[str]:
    options = ["--n_ctx", "1024", "--n_threads", "1", "--flash_attn", "false"]
    with packaged_server(model, tmp_path, *options) as address:
        yield address


def test_through_an_endpoint_the_same_file_answers_the_same(url: str, model: Path, tmp_path: Path, source: str) -> None:
    settings = {"dataset": source, "shots": 1, "method": list(_METHODS), "n": 6}
    local, here = probed(tmp_path / "here", f"llama:{model}?ctx=1024&lanes=1&{_OPTIONS}", **settings)
    remote, there = probed(tmp_path / "there", f"openai:{url}#tiny?concurrency=1", **settings)
    assert remote["candidates"]["tiny"]["accuracy"] == local["candidates"]["tiny"]["accuracy"]
    assert remote["tier"] == "A"
    for item, (letters, texts, [whole]) in here.items():
        *options, [others] = there[item]
        for mine, theirs in zip([*letters, *texts], [*options[0], *options[1]], strict=True):
            assert theirs.logprobs == pytest.approx(mine.logprobs, abs=_TOLERANCE)
        assert others.logprobs == pytest.approx(whole.logprobs[1:], abs=_TOLERANCE)
    # An endpoint does not tell the moments of the vocabulary: no Min-K%++.
    found = [report["candidates"]["tiny"]["detector_means"].keys() for report in (local, remote)]
    assert found[0] - found[1] == {f"min_k_plus_plus_{k}" for k in MIN_K}
