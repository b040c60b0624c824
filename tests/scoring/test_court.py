"""Rulings of the court: error rates, what finds each kind of contamination, disbelief, remedies; kept observations."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from statistics import NormalDist
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from viva.scoring.evidence import court
from viva.scoring.evidence.court import COMPARISON, SECOND_SET, WITNESSES, Ruling
from viva.scoring.evidence.evidence import Evidence
from viva.scoring.evidence.observations import (
    ACCURACY_GAP,
    COLUMNS,
    INTERVIEW_GAP,
    LOSS_GAP,
    MIN_K,
    OPTION_ANSWERS,
    Hearing,
    Observations,
    SetResults,
    hear,
    merge,
    weigh,
)
from viva.scoring.evidence.permutation import exchange_within
from viva.scoring.evidence.reference_models import WITNESS as CONSTAT
from viva.scoring.evidence.reference_models import with_constat

Numbers = NDArray[np.float64]
relaxed = settings(deadline=None, max_examples=40)

# What each kind of contamination adds to clean values, and the witnesses that should see it first.
KINDS: dict[str, tuple[dict[str, float], set[str]]] = {
    "answers": ({"right": 6.0}, {ACCURACY_GAP}),
    "text": ({"likelihood": 2.0}, {LOSS_GAP, MIN_K}),
    "neighbours": ({"context": -1.0}, {"context gain"}),
    "samples": ({"peak": 5.0}, {"peakedness"}),
    "choices": ({"guess": 1.0}, {"guessing"}),
    "options": ({"options": 12.0}, {"option order"}),
    "letters": ({"letters": 6.0}, {OPTION_ANSWERS}),
    "order": ({"order": 30.0}, {"exchangeability"}),
}
WITHOUT_OTHERS = {*WITNESSES} - {CONSTAT}  # witnesses that need no other model
CHEATER = {name: size for effects, _ in KINDS.values() for name, size in effects.items()}


_hearings: dict[int, tuple[Observations, Hearing]] = {}


def _hear(model: Observations) -> Hearing:
    """Keep what witnesses say about a model, but for ConStat: the same clean models are heard in many cases."""
    if id(model) not in _hearings:
        _hearings[id(model)] = model, replace(hear(model), answers=({}, {}))
    return _hearings[id(model)][1]


def rule(
    accused: Mapping[str, Observations],
    clean: Sequence[Observations] = (),
    contaminated: Mapping[str, Sequence[Observations]] | None = None,
    level: float = 0.05,
) -> dict[str, Ruling]:
    """Rule on observations, without ConStat."""
    return court.rule(
        {name: _hear(model) for name, model in accused.items()},
        [_hear(model) for model in clean],
        {kind: [_hear(model) for model in models] for kind, models in (contaminated or {}).items()},
        level,
    )


def statistics(model: Observations) -> Mapping[str, float]:
    return hear(model).statistics


@dataclass
class Benchmark:
    """Items of a benchmark and of a second set from the same source, which all models are asked about.

    `harder` is added to the difficulty of the second set's items, in logits. Values are coarse: ties are conservative,
    and few distinct sums are quick to count.
    """

    draw: np.random.Generator
    size: int = 20
    harder: float = 0.0
    difficulty: Numbers = field(init=False)
    surprise: Numbers = field(init=False)

    def __post_init__(self) -> None:
        self.difficulty = self.draw.normal(0.0, 0.7, (2, self.size)) + np.array([[0.0], [self.harder]])
        self.surprise = self.draw.normal(3.0, 0.3, (2, self.size))

    def model(self, effects: Mapping[str, float] | None = None) -> Observations:
        """Return the observations of a new model; clean without any effects."""
        clean = dict.fromkeys(CHEATER, 0.0)
        gains = clean | dict(effects or {})
        skill = self.draw.normal(0.0, 0.4)
        first = np.array([1.0, 0.0, 0.0, 0.0])  # of four orders, the published one
        own, second = self._answer(skill, 0, gains), self._answer(skill, 1, clean)
        shards = np.rint(self.draw.normal(-200.0, 8.0, (5, 4)) + gains["order"] * first)
        options = np.rint(self.draw.normal(-30.0, 3.0, (8, 4)) + gains["options"] * first)
        letters = self._toss(np.full((8, 4), skill) + gains["letters"] * (first - 0.5))
        return Observations(own, second, shards.tolist(), options.tolist(), letters.tolist())

    def for_test(self, *seed: int) -> Benchmark:
        """Return the same items with another source of new models, so that tests do not depend on each other."""
        benchmark = copy.copy(self)
        benchmark.draw = np.random.default_rng(seed)
        return benchmark

    def models(self, count: int, effects: Mapping[str, float] | None = None) -> list[Observations]:
        return [self.model(effects) for _ in range(count)]

    def _toss(self, logits: Numbers) -> NDArray[np.bool_]:
        return self.draw.random(logits.shape) < 1 / (1 + np.exp(-logits))

    def _answer(self, skill: float, side: int, gains: Mapping[str, float]) -> SetResults:
        names = [f"{'ab'[side]}{index}" for index in range(self.size)]
        likely = gains["likelihood"] - self.surprise[side] + self.draw.normal(0.0, 0.5, (2, self.size))
        guessed = self.draw.random(self.size) < max(0.15, gains["guess"])
        return SetResults(
            names,
            names,
            right=self._toss(skill - self.difficulty[side] + gains["right"]).astype(float).tolist(),
            loss=(np.rint(-2 * likely[0]) / 2).tolist(),
            min_k_plus_plus=(np.rint(2 * likely[1]) / 2).tolist(),
            context_change=np.round(self.draw.normal(0.1, 0.2, self.size) + gains["context"], 3).tolist(),
            peak=(self.draw.binomial(4, 0.2 if not gains["peak"] else 0.9, self.size) / 4).tolist(),
            interview=(self.draw.binomial(4, 1 / (1 + math.exp(-skill)), self.size) / 4).tolist(),
            masked=[f"choice of {name}" for name in names],
            guesses=[f"choice of {name}" if own else "?" for name, own in zip(names, guessed, strict=True)],
        )


def _benchmark(*seed: int, size: int = 20, harder: float = 0.0) -> Benchmark:
    return Benchmark(np.random.default_rng(seed), size, harder)


def _accused(models: Sequence[Observations]) -> dict[str, Observations]:
    return {f"model {index}": model for index, model in enumerate(models)}


def _count(rulings: Mapping[str, Ruling], conclusion: str = "contaminated") -> int:
    return sum(ruling.conclusion == conclusion for ruling in rulings.values())


def _bound(cases: int, level: float = 0.05) -> float:
    return level + 2 * math.sqrt(level * (1 - level) / cases)


@cache
def _known() -> tuple[Benchmark, list[Observations], dict[str, list[Observations]]]:
    """Return a benchmark with 40 clean models, and with 24 contaminated ones of three kinds."""
    benchmark = _benchmark(50, size=30)
    kinds = {
        "everything": CHEATER,
        "questions": {"likelihood": 3.0, "context": -1.0, "order": 60.0},
        "answers": {"right": 8.0, "options": 20.0, "letters": 6.0, "peak": 5.0},
    }
    return benchmark, benchmark.models(40), {kind: benchmark.models(8, effects) for kind, effects in kinds.items()}


# --- error rates ------------------------------------------------------------------------------------------------------


def test_clean_models_are_accused_no_more_often_than_stated() -> None:
    alone = together = 0
    for seed in range(200):
        accused = _accused(_benchmark(1, seed).models(4))
        alone += _count(rule({"model": accused["model 0"]}))
        together += _count(rule(accused)) > 0
    assert max(alone, together) / 200 <= _bound(200)
    assert alone > 0, "so conservative that nobody is ever accused"


def test_clean_models_are_accused_no_more_often_than_stated_if_others_are_known() -> None:
    alone = together = 0
    for seed in range(30):
        models = _benchmark(2, seed).models(44)
        for first in range(0, 28, 4):  # each of these groups is accused once, and all the others are known
            others = models[:first] + models[first + 4 :]
            alone += _count(rule({"model": models[first]}, others))
            together += _count(rule(_accused(models[first : first + 4]), others)) > 0
    assert max(alone, together) / 210 <= _bound(210)


def test_few_of_the_accused_are_clean_if_half_of_the_models_are() -> None:
    fractions, found = [], 0
    for seed in range(50):
        benchmark = _benchmark(3, seed)
        rulings = rule({**_accused(benchmark.models(3)), **dict(zip("abc", benchmark.models(3, CHEATER), strict=True))})
        cheaters = sum(rulings[name].conclusion == "contaminated" for name in "abc")
        fractions.append((_count(rulings) - cheaters) / max(1, _count(rulings)))
        found += cheaters
    assert np.mean(fractions) <= _bound(50)
    assert found == 150


def test_a_stricter_level_accuses_fewer_models() -> None:
    benchmark, clean, _ = _known()
    benchmark = benchmark.for_test(100)
    accused = _accused(benchmark.models(6, {"right": 2.0, "order": 5.0}))
    counts = [_count(rule(accused, clean, level=level)) for level in (0.5, 0.2, 0.05, 0.001)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


# --- what finds contamination -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_contamination_is_found_by_the_witness_for_it(kind: str) -> None:
    effects, expected = KINDS[kind]
    benchmark, clean, _ = _known()
    benchmark = benchmark.for_test(101)
    for model in benchmark.models(3, effects):
        for ruling in (rule({"model": model})["model"], rule({"model": model}, clean)["model"]):
            assert ruling.conclusion == "contaminated"
            assert ruling.strongest in expected
            assert ruling.p == ruling.p_adjusted == ruling.trials[0].p_adjusted <= 0.05
            assert not ruling.remedies


def test_a_lower_interview_score_is_found_by_comparison_with_clean_models() -> None:
    benchmark, clean, _ = _known()
    benchmark = benchmark.for_test(102)
    model = benchmark.model({"right": 1.0})
    model = replace(model, benchmark=replace(model.benchmark, interview=[0.0] * benchmark.size))
    assert statistics(model)[INTERVIEW_GAP] == np.mean([right or 0.0 for right in model.benchmark.right])
    assert INTERVIEW_GAP not in {evidence.witness for evidence in weigh(model)}
    # Only the comparison knows interviews.
    interviewed = [replace(known, second=SetResults(), shards=[], options=[], letters=[]) for known in (model, *clean)]
    ruling = rule({"model": interviewed[0]}, interviewed[1:])["model"]
    assert (ruling.conclusion, ruling.strongest, len(ruling.evidence)) == ("contaminated", COMPARISON, 0)
    assert ruling.p == pytest.approx(2 / 41)


def test_half_of_the_level_goes_to_the_comparison_with_clean_models() -> None:
    benchmark, clean, _ = _known()
    benchmark = benchmark.for_test(103)
    model = benchmark.model()
    alone, compared = rule({"model": model})["model"], rule({"model": model}, clean)["model"]
    assert alone.comparison is None
    assert compared.comparison is not None
    witnesses = {trial.name: trial.p_adjusted for trial in compared.trials}
    assert witnesses.pop(COMPARISON) == min(1.0, 2 * compared.comparison.p)
    assert witnesses == {trial.name: min(1.0, 2 * trial.p_adjusted) for trial in alone.trials}
    assert {trial.name for trial in alone.trials} == WITHOUT_OTHERS


def test_several_accused_models_pay_for_their_number() -> None:
    benchmark = _benchmark(4)
    cheater, others = benchmark.model({"order": 60.0}), benchmark.models(7)
    alone, among = rule({"model": cheater})["model"], rule({"model": cheater, **_accused(others)})["model"]
    assert (alone.p, alone.trials, alone.evidence) == (among.p, among.trials, among.evidence)
    assert among.p_adjusted == pytest.approx(8 * alone.p)
    cheaters = rule(_accused([cheater] * 5))
    assert {ruling.p_adjusted for ruling in cheaters.values()} == {alone.p}


# --- witnesses that are not believed ----------------------------------------------------------------------------------


def test_a_witness_that_accuses_clean_models_is_not_believed() -> None:
    benchmark = _benchmark(5, size=40, harder=2.5)
    clean, accused = benchmark.models(40), _accused(benchmark.models(10))
    naive = rule(accused)
    assert _count(naive) >= 5
    assert {ruling.strongest for ruling in naive.values() if ruling.conclusion == "contaminated"} == {ACCURACY_GAP}
    for ruling in rule(accused, clean).values():
        assert ACCURACY_GAP in ruling.disbelieved
        assert ruling.conclusion != "contaminated"
        # What it says is still reported, but is no test and no way to settle the case.
        assert ACCURACY_GAP in {evidence.witness for evidence in ruling.evidence}
        assert ACCURACY_GAP not in {trial.name for trial in ruling.trials}
        assert ACCURACY_GAP not in {remedy.witness for remedy in ruling.remedies}


def test_other_witnesses_still_find_contamination() -> None:
    benchmark = _benchmark(6, harder=3.0)
    clean = benchmark.models(40)
    for kind, (effects, expected) in KINDS.items():
        if kind != "answers":
            ruling = rule({"model": benchmark.model(effects)}, clean)["model"]
            assert ACCURACY_GAP in ruling.disbelieved, kind
            assert (ruling.conclusion, ruling.strongest in expected) == ("contaminated", True), kind


def test_all_witnesses_are_believed_without_known_clean_models() -> None:
    benchmark, clean, _ = _known()
    benchmark = benchmark.for_test(104)
    assert not rule({"model": benchmark.model(CHEATER)})["model"].disbelieved
    assert not rule({"model": benchmark.model()}, clean)["model"].disbelieved


# --- ConStat ----------------------------------------------------------------------------------------------------------


def _rule_with_constat(
    accused: Sequence[Observations], clean: Sequence[Observations], kinds: Mapping[str, Sequence[Observations]] = {}
) -> list[Ruling]:
    known = {kind: [hear(model) for model in models] for kind, models in kinds.items()}
    heard = {name: hear(model) for name, model in _accused(accused).items()}
    return list(court.rule(heard, [hear(model) for model in clean], known).values())


def _constat_of(ruling: Ruling) -> Evidence | None:
    return next((evidence for evidence in ruling.evidence if evidence.witness == CONSTAT), None)


def _skilled(benchmark: Benchmark, count: int, effects: Mapping[str, float] | None = None) -> list[Observations]:
    """Return models of all strengths that were asked for answers alone."""
    return [
        _without(model, *(name for name in (*COLUMNS, "shards", "options", "letters") if name != "right"))
        for model in benchmark.models(count, effects)
    ]


def test_constat_accuses_clean_models_no_more_often_than_stated_although_the_second_set_is_harder() -> None:
    alarms, found = [], []
    for seed in range(4):
        benchmark = _benchmark(70, seed, size=60, harder=1.5)
        clean, cheaters = _skilled(benchmark, 25), _skilled(benchmark, 4, {"right": 4.0})
        for first in range(0, 12, 4):
            others = clean[:first] + clean[first + 4 :]
            for ruling in _rule_with_constat(clean[first : first + 4], others):
                statement = _constat_of(ruling)
                assert statement is not None
                alarms.append(statement.p <= 0.05)
        for ruling in _rule_with_constat(cheaters, clean):
            assert CONSTAT not in ruling.disbelieved
            found.append(ruling.conclusion == "contaminated")
    assert np.mean(alarms) <= _bound(len(alarms))
    assert np.mean(found) >= 0.9


def test_constat_is_heard_only_beside_five_clean_models_that_were_asked_the_same_items() -> None:
    benchmark = _benchmark(71, size=40)
    clean, model = _skilled(benchmark, 8), _skilled(benchmark, 1)[0]
    for few in (0, 4):
        assert _constat_of(_rule_with_constat([model], clean[:few])[0]) is None
    statement = _constat_of(_rule_with_constat([model], clean[:5])[0])
    assert statement is not None
    assert statement.n == 40
    # A model that was asked about half of the items neither counts nor takes items from the others.
    half = replace(clean[0], benchmark=_only(clean[0].benchmark, 20))
    assert _rule_with_constat([model], [half, *clean[1:5]])[0].evidence == rule({"m": model})["m"].evidence
    with_half = _constat_of(_rule_with_constat([model], [half, *clean[1:6]])[0])
    assert with_half == _constat_of(_rule_with_constat([model], clean[1:6])[0])
    # Equal reference models give no curve.
    assert _constat_of(_rule_with_constat([model], [clean[0]] * 8)[0]) is None


def _only(results: SetResults, count: int) -> SetResults:
    return SetResults(**{name: getattr(results, name)[:count] for name in SetResults.__slots__})


def test_constat_s_ranking_treats_clean_and_accused_models_alike() -> None:
    benchmark = _benchmark(72, size=40)
    models = _skilled(benchmark, 24)
    one, two = (_rule_with_constat(own, rest) for own, rest in ((models[:2], models[2:]), (models[1::-1], models[2:])))
    assert [ruling.comparison for ruling in one] == [ruling.comparison for ruling in two[::-1]]
    hearings = {str(number): hear(model) for number, model in enumerate(models)}
    first, others = list(hearings.values())[:2], list(hearings.values())[2:]
    accused, clean, _ = with_constat({"a": first[0], "b": first[1]}, others, {}, 0.05)
    swapped, _, _ = with_constat({"a": others[0], "b": first[1]}, [first[0], *others[1:]], {}, 0.05)
    assert swapped["a"].statistics[CONSTAT] == pytest.approx(clean[0].statistics[CONSTAT], abs=1e-12)
    assert swapped["b"].statistics[CONSTAT] == pytest.approx(accused["b"].statistics[CONSTAT], abs=1e-12)


# --- clean models -----------------------------------------------------------------------------------------------------


def test_with_few_known_clean_models_nobody_is_found_clean() -> None:
    benchmark, clean, contaminated = _known()
    benchmark = benchmark.for_test(105)
    accused = _accused([*benchmark.models(3), benchmark.model(CHEATER)])
    for few in (0, 1, 18):
        for ruling in rule(accused, clean[:few], contaminated).values():
            assert ruling.conclusion != "clean"
            assert ruling.comparison is None
            assert COMPARISON not in {trial.name for trial in ruling.trials}
    assert all(ruling.comparison is not None for ruling in rule(accused, clean[:19], contaminated).values())


def test_a_model_that_scores_like_clean_ones_is_found_clean() -> None:
    benchmark, clean, contaminated = _known()
    benchmark = benchmark.for_test(106)
    rulings = rule(_accused(benchmark.models(10)), clean, contaminated)
    assert _count(rulings, "clean") >= 5
    assert not any(ruling.remedies for ruling in rulings.values() if ruling.conclusion == "clean")
    # How low contaminated models score has to be known.
    assert not _count(rule(_accused(benchmark.models(10)), clean), "clean")
    few = {"everything": contaminated["everything"], "answers": contaminated["answers"]}
    assert not _count(rule(_accused(benchmark.models(10)), clean, few), "clean")


@pytest.mark.parametrize("kind", KINDS)
def test_a_contaminated_model_is_never_found_clean(kind: str) -> None:
    benchmark, clean, contaminated = _known()
    benchmark = benchmark.for_test(107)
    assert not _count(rule(_accused(benchmark.models(4, KINDS[kind][0])), clean, contaminated), "clean")


# --- what was not measured --------------------------------------------------------------------------------------------


def _without(model: Observations, *names: str) -> Observations:
    """Return observations without columns of both sets, or without fields of their own."""
    empty: dict[str, Any] = {name: [] for name in names if name in ("shards", "options", "letters")}
    columns = {name: [None] * len(model.benchmark) for name in names if name in COLUMNS}
    sets = {name: replace(getattr(model, name), **columns) for name in ("benchmark", "second")}
    return replace(model, **sets, **empty)


def test_without_a_second_set_no_witness_compares_sets() -> None:
    model = replace(_benchmark(7).model(), second=SetResults())
    heard = {evidence.witness for evidence in weigh(model)}
    assert heard == {"exchangeability", "option order", OPTION_ANSWERS} == WITHOUT_OTHERS - set(SECOND_SET)
    assert statistics(model).keys() == heard | {INTERVIEW_GAP}


@pytest.mark.parametrize(
    ("names", "witnesses"),
    [
        (("right",), {ACCURACY_GAP}),
        (("loss",), {LOSS_GAP}),
        (("min_k_plus_plus",), {MIN_K}),
        (("context_change",), {"context gain"}),
        (("peak",), {"peakedness"}),
        (("masked",), {"guessing"}),
        (("guesses",), {"guessing"}),
        (("shards",), {"exchangeability"}),
        (("options", "letters"), {"option order", OPTION_ANSWERS}),
        (("interview",), set()),
    ],
)
def test_a_witness_is_absent_where_nothing_was_measured(names: Sequence[str], witnesses: set[str]) -> None:
    model = _benchmark(8).model()
    assert {evidence.witness for evidence in weigh(model)} == WITHOUT_OTHERS
    heard = [evidence for evidence in weigh(model) if evidence.witness not in witnesses]
    assert weigh(_without(model, *names)) == heard
    gap = set() if {"right", "interview"} & {*names} else {INTERVIEW_GAP}
    assert statistics(_without(model, *names)).keys() == {evidence.witness for evidence in heard} | gap


def test_items_without_a_value_are_left_out() -> None:
    model = _benchmark(9).model()
    holes = replace(model.benchmark, right=[None, *model.benchmark.right[1:-1], None])
    [gap] = [evidence for evidence in weigh(replace(model, benchmark=holes)) if evidence.witness == ACCURACY_GAP]
    assert gap.n == len(holes) - 2
    assert gap.statistic == np.mean([right for right in holes.right if right is not None])


def test_without_observations_the_answer_is_cannot_tell() -> None:
    _, clean, contaminated = _known()
    assert (weigh(Observations()), statistics(Observations())) == ([], {})
    for rulings in (rule({"model": Observations()}), rule({"model": Observations()}, clean, contaminated)):
        assert rulings == {"model": Ruling("cannot tell", 1.0, 1.0, [], [], None, [], [])}
        assert not rulings["model"].strongest
    assert rule({}) == {}


def test_a_model_without_observations_does_not_change_the_ruling_on_others() -> None:
    benchmark, clean, contaminated = _known()
    benchmark = benchmark.for_test(108)
    model = benchmark.model(CHEATER)
    rulings = rule({"empty": Observations(), "model": model}, [Observations(), *clean], contaminated)
    alone = rule({"model": model}, clean, contaminated)["model"]
    assert rulings["empty"].conclusion == "cannot tell"
    assert rulings["model"].p_adjusted == pytest.approx(2 * alone.p)
    assert replace(rulings["model"], p_adjusted=alone.p_adjusted) == alone


# --- items and their rephrased versions -------------------------------------------------------------------------------


def _set(values: Mapping[str, float], clusters: Mapping[str, str] | None = None, **columns: Any) -> SetResults:
    results = SetResults()
    for item, value in values.items():
        results.add(item, (clusters or {}).get(item, item), **{"right": value, **columns})
    return results


def test_common_clusters_are_compared_pair_by_pair() -> None:
    own = _set({"a": 1.0, "b": 1.0, "b2": 0.0, "c": 1.0, "alone": 0.0}, {"b2": "b"})
    other = _set({"r1": 0.0, "r2": 0.0, "r3": 1.0, "r4": 1.0}, {"r1": "a", "r2": "b", "r3": "c"})
    [gap] = weigh(Observations(own, other))
    assert gap.p == exchange_within([[1.0, 0.0], [0.5, 0.0], [1.0, 1.0]])[1]
    assert gap.n == 3
    assert (gap.statistic, gap.effect) == pytest.approx((2.5 / 3, 1.5 / 3))


def test_a_pair_of_which_one_side_was_not_measured_is_left_out() -> None:
    own, other = _set({"a": 1.0, "b": 1.0, "c": 0.0}), _set({"a": 0.0, "b": 0.0, "c": 0.0})
    own.right[2], other.right[1] = None, None
    [gap] = weigh(Observations(own, other))
    assert (gap.n, gap.p) == (1, 0.5)


@relaxed
@given(st.sets(st.integers(0, 30), min_size=1), st.sets(st.integers(0, 30), min_size=1))
def test_any_two_sets_can_be_compared(own: set[int], other: set[int]) -> None:
    first, second = ({f"item {index}": float(index % 2) for index in sorted(side)} for side in (own, other))
    columns: dict[str, Any] = {"loss": 1.0, "min_k_plus_plus": 0.5, "context_change": -0.1, "peak": 0.0}
    evidence = weigh(Observations(_set(first, **columns), _set(second, **columns)))
    assert {item.witness for item in evidence} == set(SECOND_SET) - {"guessing"}
    assert {item.n for item in evidence} == {len(own & other) or len(own)}
    rule({"model": Observations(_set(first, **columns), _set(second, **columns))})


def test_guesses_of_common_clusters_are_compared_pair_by_pair() -> None:
    own, other = SetResults(), SetResults()
    for name in "abcdefgh":
        own.add(name, name, masked=f"choice {name}", guesses=f"choice {name}")
        if name != "h":
            other.add(name, name, masked=f"other {name}", guesses="?")
    heard = weigh(Observations(own, other))
    assert [(evidence.witness, evidence.n, evidence.effect) for evidence in heard] == [("guessing", 7, 1.0)]


# --- remedies ---------------------------------------------------------------------------------------------------------


def test_open_cases_name_the_items_that_would_settle_them() -> None:
    benchmark, clean, contaminated = _known()
    benchmark = benchmark.for_test(109)
    leaning = {"right": 1.2, "likelihood": 0.3, "order": 6.0}
    models = [*benchmark.models(6), *benchmark.models(6, leaning), *benchmark.models(2, CHEATER)]
    total = 0
    for known in ((), clean):
        for ruling in rule(_accused(models), known, contaminated).values():
            n = {evidence.witness: evidence.n for evidence in ruling.evidence}
            items = [remedy.items for remedy in ruling.remedies]
            assert items == sorted(items)
            assert all(remedy.items > n[remedy.witness] for remedy in ruling.remedies)
            assert not items or ruling.conclusion == "cannot tell"
            total += len(items)
    assert total > 0


def test_more_accused_models_ask_for_more_items() -> None:
    model, other = _scored(15, 10, 20), _scored(10, 10, 20)
    alone, among = rule({"model": model})["model"], rule({"model": model, "other": other})["model"]
    assert len(alone.remedies) > 0
    items = {remedy.witness: remedy.items for remedy in among.remedies}
    assert all(items[remedy.witness] > remedy.items for remedy in alone.remedies)


def _scored(right: int, right_on_second: int, size: int) -> Observations:
    """Return observations with so many right answers, and a second witness that says nothing."""
    own, second = (
        _set({f"{side}{index}": float(index < number) for index in range(size)}, peak=0.5)
        for side, number in (("a", right), ("b", right_on_second))
    )
    return Observations(own, second)


def test_a_remedy_is_the_number_of_items_at_which_the_effect_would_reach_the_level() -> None:
    model = _scored(15, 10, 20)
    ruling = rule({"model": model})["model"]
    z, needed = (NormalDist().inv_cdf(1 - p) for p in (ruling.evidence[0].p, 0.05 / 2))
    assert [remedy.witness for remedy in ruling.remedies] == [ACCURACY_GAP]
    assert ruling.remedies[0].items == pytest.approx(20 * (needed / z) ** 2, abs=1)
    # The same rates on more items settle it.
    assert rule({"model": _scored(45, 30, 60)})["model"].conclusion == "contaminated"


def test_a_remedy_has_more_items_than_were_asked() -> None:
    own, second = (
        _set({f"{side}{index}": float(index < right) for index in range(7)}) for side, right in (("a", 5), ("b", 1))
    )
    ruling = rule({"model": Observations(own, second)})["model"]
    assert ruling.conclusion == "cannot tell"
    assert ruling.remedies[0].items > 7


def test_an_open_case_next_to_the_level_has_a_remedy_beside_a_comparison() -> None:
    ruling = rule({"model": _scored(14, 7, 17)}, [_scored(8, 8, 17)] * 25)["model"]
    assert (ruling.conclusion, ruling.strongest) == ("cannot tell", ACCURACY_GAP)
    assert [remedy.witness for remedy in ruling.remedies] == [ACCURACY_GAP]


# --- kept observations ------------------------------------------------------------------------------------------------

numbers = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -2.5])
rows = st.lists(st.lists(numbers, min_size=2, max_size=3), max_size=3)


@st.composite
def _sets(draw: st.DrawFn) -> SetResults:
    items = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5))
    columns: dict[str, Any] = {"items": items, "clusters": [item.upper() for item in items]}
    for name in COLUMNS:
        values: st.SearchStrategy[Any] = st.text(max_size=3) if name in ("masked", "guesses") else numbers
        column = st.lists(st.none() | values, min_size=len(items), max_size=len(items))
        columns[name] = draw(st.just([None] * len(items)) | column)
    for index in range(len(items)):  # a choice without its answer says nothing
        if None in (columns["masked"][index], columns["guesses"][index]):
            columns["masked"][index] = columns["guesses"][index] = None
    return SetResults(**columns)


@st.composite
def _observations(draw: st.DrawFn) -> Observations:
    options = draw(rows)
    letters = [[draw(st.booleans()) for _ in row] for row in options]
    return Observations(draw(_sets()), draw(_sets()), draw(rows), options, letters)


def _rounded(model: Observations) -> Observations:
    def digits(values: Sequence[Any]) -> list[Any]:
        return [round(value, 4) if isinstance(value, float) else value for value in values]

    sets = [
        replace(side, **{name: digits(getattr(side, name)) for name in COLUMNS})
        for side in (model.benchmark, model.second)
    ]
    shards, options = ([digits(row) for row in table] for table in (model.shards, model.options))
    return Observations(sets[0], sets[1], shards, options, model.letters)


@relaxed
@given(_observations())
def test_a_record_restores_observations_to_four_decimals(model: Observations) -> None:
    line = orjson.dumps(model.to_record())
    restored = Observations.from_record(orjson.loads(line))
    assert restored == _rounded(model)
    assert orjson.dumps(restored.to_record()) == line
    for name in ("benchmark", "second"):
        results = getattr(model, name)
        measured = {column for column in COLUMNS if any(value is not None for value in getattr(results, column))}
        assert orjson.loads(line)[name].keys() == measured | {"items", "clusters"}


def test_a_restored_model_gets_the_same_ruling() -> None:
    benchmark, clean, contaminated = _known()
    benchmark = benchmark.for_test(110)
    models = _accused([benchmark.model(), benchmark.model(CHEATER), benchmark.model({"order": 7.0})])
    restored = {name: Observations.from_record(orjson.loads(orjson.dumps(m.to_record()))) for name, m in models.items()}
    assert rule(restored, clean, contaminated) == rule(models, clean, contaminated)


def test_a_choice_counts_only_with_its_own_answer() -> None:
    first, second = Observations(), Observations()
    first.benchmark.add("item", "item", masked="one")
    second.benchmark.add("item", "item", masked="two", guesses="two")
    merged = merge([first, second]).benchmark
    assert (merged.masked, merged.guesses) == (["two"], ["two"])


def test_items_can_be_added_to_restored_observations() -> None:
    kept = Observations.from_record(Observations(_set({"a": 1.0})).to_record()).benchmark
    kept.add("b", "b", right=0.0, loss=2.0)
    assert (kept.right, kept.loss) == ([1.0, 0.0], [None, 2.0])
    assert all(getattr(kept, name) == [None, None] for name in COLUMNS if name not in ("right", "loss"))


# --- several runs of one model ----------------------------------------------------------------------------------------


def _by_item(results: SetResults, names: Sequence[str] = COLUMNS) -> dict[str, tuple[Any, ...]]:
    columns = [getattr(results, name) for name in ("items", "clusters", *names)]
    return {row[0]: row for row in zip(*columns, strict=True)}


@relaxed
@given(st.lists(_observations(), min_size=1, max_size=3))
def test_the_order_of_runs_does_not_matter_for_numbers(parts: list[Observations]) -> None:
    numeric = [name for name in COLUMNS if name not in ("masked", "guesses")]
    merged = merge(parts)
    for order in permutations(parts):
        other = merge(order)
        for own, results in ((merged.benchmark, other.benchmark), (merged.second, other.second)):
            assert results.items == sorted(results.items)
            assert _by_item(results, numeric) == _by_item(own, numeric)


@relaxed
@given(_observations())
def test_one_run_is_merged_to_itself(model: Observations) -> None:
    merged = merge([model])
    assert (merged.shards, merged.options, merged.letters) == (model.shards, model.options, model.letters)
    for own, results in ((model.benchmark, merged.benchmark), (model.second, merged.second)):
        assert _by_item(results) == _by_item(own)
    twice = merge([model, model])
    assert _by_item(twice.benchmark) == _by_item(model.benchmark)


def test_numbers_of_an_item_are_averaged() -> None:
    parts = [Observations(_set({"a": right, "b": 1.0}, loss=loss)) for right, loss in ((1.0, 2.0), (0.0, None))]
    merged = merge([*parts, Observations(_set({"c": 0.0}))]).benchmark
    assert merged.items == merged.clusters == ["a", "b", "c"]
    assert (merged.right, merged.loss) == ([0.5, 1.0, 0.0], [2.0, 2.0, None])


def test_probes_and_interviews_of_the_same_items_are_joined() -> None:
    model = _benchmark(11).model()
    probes, interviews = _without(model, "interview"), Observations()
    for index in reversed(range(0, len(model.benchmark), 2)):
        item, score = model.benchmark.items[index], model.benchmark.interview[index]
        interviews.benchmark.add(item, item, interview=score)
    for parts in ([probes, interviews], [interviews, probes]):
        merged = merge(parts)
        assert statistics(merged).keys() == statistics(probes).keys() | {INTERVIEW_GAP}
        assert sorted(evidence.witness for evidence in weigh(merged)) == sorted(WITHOUT_OTHERS)
        assert {item.witness: item.p for item in weigh(merged)} == {item.witness: item.p for item in weigh(probes)}
        scores = _by_item(merged.benchmark, ["interview"])
        assert [scores[item][2] for item in model.benchmark.items[::2]] == model.benchmark.interview[::2]
        assert {scores[item][2] for item in model.benchmark.items[1::2]} == {None}


def test_texts_shards_and_orders_are_those_of_the_first_run_that_has_them() -> None:
    empty, first, second = Observations(), Observations(), Observations()
    first.shards, second.shards = [[-1.0, -2.0]], [[-3.0, -4.0], [-5.0, -6.0]]
    second.options, second.letters = [[-1.0, -1.5]], [[True, False]]
    for part, text in ((first, "one"), (second, "two")):
        part.benchmark.add("item", "item", masked=text, guesses=f"guess {text}")
    merged = merge([empty, first, second])
    assert (merged.shards, merged.options, merged.letters) == (first.shards, second.options, second.letters)
    assert (merged.benchmark.masked, merged.benchmark.guesses) == (["one"], ["guess one"])
    assert merge([second, first]).shards == second.shards
    assert merge([]) == Observations()
