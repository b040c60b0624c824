"""Verdicts from several witnesses: false accusations, kinds that were never seen, and what few clean models allow."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from viva.scoring.evidence.combination import KnownModels, Statistics, count_clean_models, judge

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve() / "constat"
WITNESSES = ("order", "guess", "gap")
# What a kind does to the witnesses: the second is invisible to their mean.
SHIFTS = {"text": (8.0, 0.0, 2.0), "rephrased": (0.0, -8.0, 8.0), "answers": (0.0, 7.0, 7.0)}


def _models(draw: np.random.Generator, count: int, shift: Sequence[float] = (0.0, 0.0, 0.0)) -> list[Statistics]:
    """Models whose witnesses have heavy tails, different scales and a common part."""
    values = draw.standard_t(4, (count, 3)) + draw.normal(size=(count, 1)) + shift
    return [dict(zip(WITNESSES, row, strict=True)) for row in (values * (1.0, 5.0, 0.1)).tolist()]


def _known(draw: np.random.Generator, kinds: Mapping[str, Sequence[float]] = SHIFTS, count: int = 8) -> KnownModels:
    return KnownModels(_models(draw, 20), {kind: _models(draw, count, shift) for kind, shift in kinds.items()})


def test_a_clean_model_is_accused_as_often_as_stated() -> None:
    # benches/court.py has the same in 2,000 cases.
    accused = 0
    for seed in range(300):
        draw = np.random.default_rng([1, seed])
        verdicts = judge({"model": _models(draw, 1)[0]}, _models(draw, 19), _known(draw))
        accused += verdicts["model"].conclusion == "contaminated"
    assert accused / 300 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)
    assert accused > 0


def test_ranks_of_clean_models_among_each_other_are_uniform() -> None:
    draw = np.random.default_rng(2)
    known, models = _known(draw), _models(draw, 25)
    ps = [judge({"model": model}, models[:i] + models[i + 1 :], known)["model"].p for i, model in enumerate(models)]
    assert sorted(ps) == [(rank + 1) / 25 for rank in range(25)]


@pytest.mark.parametrize("kind", SHIFTS)
def test_a_kind_that_was_never_seen_is_found_by_a_witness_alone(kind: str) -> None:
    draw = np.random.default_rng(3)
    known = _known(draw, {name: shift for name, shift in SHIFTS.items() if name != kind})
    clean, models = _models(draw, 60), _models(draw, 20, SHIFTS[kind])
    found = [judge({"model": model}, clean, known)["model"] for model in models]
    assert sum(verdict.conclusion == "contaminated" for verdict in found) >= 10
    assert kind not in {verdict.strongest for verdict in found}


def test_a_known_kind_is_found_more_often_and_named() -> None:
    draw = np.random.default_rng(4)
    known, clean, models = _known(draw), _models(draw, 60), _models(draw, 40, (0.0, -4.0, 4.0))
    verdicts = [judge({"model": model}, clean, known)["model"] for model in models]
    others = [judge({"model": model}, clean, known.without("rephrased"))["model"] for model in models]
    number = sum(verdict.conclusion == "contaminated" for verdict in verdicts)
    assert number > 1.2 * sum(verdict.conclusion == "contaminated" for verdict in others)
    assert sum(verdict.strongest == "rephrased" for verdict in verdicts) > 20


@pytest.mark.parametrize(("clean_models", "level"), [(18, 0.05), (8, 0.1), (0, 0.05), (98, 0.01)])
def test_with_too_few_clean_models_the_answer_is_cannot_tell(clean_models: int, level: float) -> None:
    draw = np.random.default_rng(5)
    accused = {"cheater": dict.fromkeys(WITNESSES, 1e6), "other": dict.fromkeys(WITNESSES, -1e6)}
    known, clean = _known(draw, count=200), _models(draw, clean_models)
    for name, model in accused.items():
        assert judge({name: model}, clean, known, level)[name].conclusion == "cannot tell"
    enough = judge({"cheater": accused["cheater"]}, [*clean, *_models(draw, 1)], known, level)["cheater"]
    assert (enough.conclusion == "contaminated") == (clean_models > 0)
    assert count_clean_models(level) == (clean_models + 1 if clean_models else 19)


def test_several_accused_models_need_more_clean_ones() -> None:
    draw = np.random.default_rng(6)
    known, clean = _known(draw), _models(draw, 120)
    high, low = dict.fromkeys(WITNESSES, 1e3), dict.fromkeys(WITNESSES, 0.0)
    accused = {"cheater": high, **{f"clean {number}": low for number in range(5)}}
    assert count_clean_models(accused=6) == 119
    assert judge(accused, clean[:118], known)["cheater"].conclusion == "cannot tell"
    assert judge(accused, clean[:119], known)["cheater"].conclusion == "contaminated"
    # Cheaters help each other: the fraction of false accusations is bounded.
    all_cheat = judge(dict.fromkeys("abcdef", high), clean[:19], known)
    assert {verdict.conclusion for verdict in all_cheat.values()} == {"contaminated"}


def test_a_model_is_called_clean_only_if_contaminated_ones_rarely_score_as_low() -> None:
    draw = np.random.default_rng(7)
    model = {"model": dict.fromkeys(WITNESSES, -1.0)}
    clear = judge(model, _models(draw, 19), _known(draw, {"text": (90.0, 90.0, 90.0)}, 19))["model"]
    assert (clear.conclusion, clear.p_contaminated) == ("clean", 1 / 20)
    few = judge(model, _models(draw, 19), _known(draw, {"text": (90.0, 90.0, 90.0)}, 18))["model"]
    assert few.conclusion == "cannot tell"
    weak = judge(model, _models(draw, 19), _known(draw, {"text": (0.0, 0.0, 0.0)}, 200))["model"]
    assert weak.conclusion == "cannot tell"
    unknown = judge(model, _models(draw, 19), _known(draw, {}))["model"]
    assert (unknown.conclusion, unknown.p_contaminated) == ("cannot tell", None)


def test_witnesses_that_are_absent_are_not_guessed() -> None:
    draw = np.random.default_rng(8)
    known, clean = _known(draw), _models(draw, 19)
    short = [{name: model[name] for name in ("order", "gap")} for model in clean]
    text_only = {"order": 1e3, "gap": 0.0}
    assert judge({"model": text_only}, clean, known) == judge({"model": text_only}, short, known)
    assert judge({"model": {**text_only, "new": 5.0}}, clean, known) == judge({"model": text_only}, clean, known)
    # Clean models without one of the accused model's witnesses are not compared with it.
    assert judge({"model": {**text_only, "guess": 0.0}}, [*clean[:10], *short[10:]], known)["model"].clean_models == 10


def test_statistics_that_cannot_be_used_are_named() -> None:
    draw = np.random.default_rng(9)
    known, clean = _known(draw), _models(draw, 19)
    with pytest.raises(ValueError, match="gap: a statistic is nan; leave out what was not measured"):
        judge({"model": {"gap": math.nan}}, clean, known)
    with pytest.raises(ValueError, match="model: none of its witnesses is known; known are gap, guess, order"):
        judge({"model": {"other": 1.0}}, clean, known)
    with pytest.raises(ValueError, match="level is 5"):
        judge({"model": {"gap": 1.0}}, clean, known, 5)


def test_published_tables_of_constat_with_a_benchmark_held_out() -> None:
    if not DATA.exists():
        pytest.skip(f"{DATA} is missing (set VIVA_DATA to the folder with the benchmark data)")
    tables = {name: _published(name) for name in ("arc", "hellaswag")}
    found = alarms = 0
    for fitted, name in (("arc", "hellaswag"), ("hellaswag", "arc")):
        known = tables[fitted]
        clean = tables[name].clean
        for models in tables[name].contaminated.values():
            found += sum(judge({"it": model}, clean, known)["it"].conclusion == "contaminated" for model in models)
        for index, model in enumerate(clean):
            others = [*clean[:index], *clean[index + 1 :]]
            alarms += judge({"it": model}, others, known)["it"].conclusion == "contaminated"
    assert (found, alarms) == (35, 2)  # of 35 and 40; benches/court.py has other rules beside it


def _published(benchmark: str) -> KnownModels:
    statistics: dict[str, dict[str, float]] = {}
    for witness in ("rephrase", "synthetic", "reference"):
        with (DATA / f"{benchmark}_{witness}.csv").open() as lines:
            for row in csv.DictReader(lines):
                model = statistics.setdefault(row["model"], {})
                model[witness] = float(row["delta"]) / float(row["delta_std"])
    contaminated: dict[str, list[Statistics]] = {"exact": [], "rephrased": []}
    for name, model in statistics.items():
        if "contamination-models-" in name:
            contaminated["rephrased" if "rephrase" in name else "exact"].append(model)
    return KnownModels([*statistics.values()][:20], contaminated)
