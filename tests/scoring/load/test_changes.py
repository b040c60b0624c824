"""Judges under load: sound ones are flagged at the stated rate and no more, changed ones where they change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest

from viva.scoring.load_drift import RateJudgement, RunningChange, exchange_tests, judge_rates
from viva.scoring.load_verdicts import JudgedRequest, Kind, PassTable, PassValues, Verdict, contribution

_KINDS: tuple[Kind, ...] = ("level", "distance", "spread")
_REQUESTS, _RATES, _ALPHA = 30, 3, 0.05
_SCALES = {"score": (1.0, 10.0)}
tables = arrays(np.float64, st.tuples(st.integers(1, 20), st.just(3)), elements=st.integers(1, 10).map(float))


def passes(generator: np.random.Generator, truth: np.ndarray, noise: float, unreadable: float) -> dict[str, Verdict]:
    scores = np.clip(np.round(truth + generator.normal(0.0, noise, len(truth))), 1, 10)
    failed = generator.uniform(size=len(truth)) < unreadable
    return {
        f"r{at}": Verdict(failure="parse") if lost else Verdict({"score": float(score)})
        for at, (score, lost) in enumerate(zip(scores, failed, strict=True))
    }


def judged(rates: list[dict[str, Verdict]], first: dict[str, Verdict], second: dict[str, Verdict], seed: int = 0,
           draws: int = 399, asked: dict[str, JudgedRequest] | None = None) -> list[RateJudgement]:  # fmt: skip
    known = asked or {id_: JudgedRequest() for id_ in first}
    return judge_rates(rates, first, second, known, _SCALES, alpha=_ALPHA, draws=draws, seed=seed)


def test_of_1000_sound_judges_the_stated_share_is_flagged() -> None:
    flagged = 0
    for seed in range(1_000):
        generator = np.random.default_rng(seed)
        truth = generator.uniform(2, 9, (_REQUESTS, 1))
        noise, unreadable = float(generator.choice([0.3, 1.0, 2.0])), float(generator.choice([0.0, 0.05, 0.2]))
        scores = np.clip(np.round(truth + generator.normal(0.0, noise, (_REQUESTS, _RATES + 2))), 1, 10)
        failed = np.where(generator.uniform(size=scores.shape) < unreadable, 1.0, 0.0)
        scores[failed > 0.0] = np.nan
        figures = [PassValues(kind, scores, upwards=kind == "distance") for kind in _KINDS]
        answered = np.ones(scores.shape, dtype=bool)
        table = PassTable(np.arange(_REQUESTS), answered, [*figures, PassValues("level", failed, upwards=True)])
        tests = exchange_tests([table], _RATES, alpha=_ALPHA, draws=299, seed=seed)
        flagged += any(test.p is not None and test.p <= _ALPHA for test in tests)
    assert binomtest(flagged, 1_000, _ALPHA).pvalue > 0.05, flagged


def test_a_sound_rate_stays_sound_beside_broken_ones() -> None:
    flagged = [0, 0, 0]
    for seed in range(60):
        generator = np.random.default_rng(seed)
        truth = generator.uniform(3, 8, _REQUESTS)
        first, second, sound = (passes(generator, truth, 1.0, 0.05) for _ in range(3))
        lower, flat = passes(generator, truth - 2.0, 1.0, 0.05), passes(generator, np.full(_REQUESTS, 5.5), 0.3, 0.05)
        for at, rate in enumerate(judged([sound, lower, flat], first, second, seed)):
            flagged[at] += rate.flagged(_ALPHA)
    assert flagged[1] == 60
    assert flagged[2] > 50
    assert binomtest(flagged[0], 60, _ALPHA, "greater").pvalue > 0.01


def test_a_judge_that_never_varies_is_never_flagged_and_always_is_where_it_changes() -> None:
    same = {f"r{at}": Verdict({"score": float(at % 10 + 1)}) for at in range(30)}
    one_off = same | {"r3": Verdict({"score": 9.0})}
    rates = judged([same, one_off, {id_: Verdict({"score": 5.0}) for id_ in same}, {}], same, same)
    assert [rate.flagged(_ALPHA) for rate in rates] == [False, False, True, False]
    assert rates[3].p is None, "nobody was asked there"
    assert [rate.p for rate in judged([same, same], same, same)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("changed", "figure"),
    [
        (lambda at, score: Verdict({"score": max(1.0, score - 1.0)}), "scores"),
        (lambda at, score: Verdict({"score": 5.0 + (at % 2)}), "spread"),
        (lambda at, score: Verdict({"score": float((at * 7) % 10 + 1)}), "verdicts"),
        (lambda at, score: Verdict(failure="truncated") if at % 3 == 0 else Verdict({"score": score}), "unreadable"),
    ],
    ids=["fall", "flattening", "another judge", "truncation"],
)
def test_what_has_changed_is_named(changed: Callable[[int, float], Verdict], figure: str) -> None:
    generator = np.random.default_rng(3)
    truth = np.array([at % 10 + 1.0 for at in range(60)])
    first, second, sound = (passes(generator, truth, 0.5, 0.02) for _ in range(3))
    told = {f"r{at}": changed(at, float(score)) for at, score in enumerate(truth)}
    rates = judged([sound, told], first, second, draws=999)
    assert [rate.flagged(_ALPHA) for rate in rates] == [False, True]
    names = [one.name for one in sorted(rates[1].figures, key=lambda one: one.p) if one.p <= _ALPHA]
    assert figure in names
    [one] = [one for one in rates[1].figures if one.name == figure]
    assert one.change.low <= one.change.value <= one.change.high
    assert not one.change.low <= 0.0 <= one.change.high
    assert one.change.value == pytest.approx(one.loaded - one.unloaded)


def test_requests_about_one_item_are_one_observation() -> None:
    generator = np.random.default_rng(1)
    first = passes(generator, np.full(40, 6.0), 1.0, 0.0)
    lower = {id_: Verdict({"score": verdict.scores["score"] - 1.0}) for id_, verdict in first.items()}
    items = {id_: JudgedRequest(item=f"i{int(id_[1:]) % 2}") for id_ in first}
    [alone], [together] = judged([lower], first, first), judged([lower], first, first, asked=items)
    assert alone.flagged(_ALPHA)
    assert not together.flagged(_ALPHA), "two items can be exchanged in nine ways"
    assert alone.figures[0].change.value == together.figures[0].change.value == -1.0
    assert (alone.figures[0].items, together.figures[0].items) == (40, 2)
    widths = [one.figures[0].change.high - one.figures[0].change.low for one in (together, alone)]
    assert widths[0] > widths[1]


@given(tables, st.sampled_from(_KINDS), st.booleans())
def test_a_figure_is_nothing_on_average_over_the_exchanges(values: np.ndarray, kind: Kind, nominal: bool) -> None:
    figure = PassValues(kind, values, nominal=nominal and kind == "distance")
    columns = values.T
    turns = [contribution(figure, *(columns[[at, (at + 1) % 3, (at + 2) % 3]])) for at in range(3)]
    assert sum(turns) == pytest.approx(np.zeros(len(values)), abs=1e-9)
    swapped = contribution(figure, columns[0], columns[2], columns[1])
    assert swapped == pytest.approx(turns[0]), "which unloaded pass came first has no part in it"


@given(tables, st.integers(1, 5), st.integers(-5, 5))
def test_tests_do_not_depend_on_the_unit_of_scores(values: np.ndarray, factor: int, shift: int) -> None:
    found = []
    for scaled in (values, factor * values + shift):
        figures = [PassValues(kind, scaled, upwards=kind == "distance") for kind in _KINDS]
        table = PassTable(np.arange(len(values)), np.ones(values.shape, dtype=bool), figures)
        found.append(exchange_tests([table], 1, draws=99)[0])
    assert found[0].figures == pytest.approx(found[1].figures)


@pytest.mark.parametrize(("clusters", "least"), [(1, 1 / 3), (2, 1 / 9), (4, 1 / 81)])
def test_few_items_cannot_be_told_apart_from_chance(clusters: int, least: float) -> None:
    first = {f"r{at}": Verdict({"score": 9.0}) for at in range(clusters)}
    [rate] = judged([{id_: Verdict({"score": 2.0}) for id_ in first}], first, first, draws=9_999)
    assert rate.p == pytest.approx(least, rel=0.25)


def test_drift_is_the_share_of_the_scale_by_which_verdicts_move() -> None:
    first = {f"r{at}": Verdict({"score": 5.0}) for at in range(50)}
    most = {id_: Verdict({"score": 4.0 if int(id_[1:]) % 5 else 5.0}) for id_ in first}
    drift = judged([most], first, first)[0].drift
    assert drift is not None
    assert drift.value == pytest.approx(0.8 / 9)
    assert drift.low < drift.value < drift.high
    unsteady = {f"r{at}": Verdict({"score": 1.0 + at % 9}) for at in range(45)}
    turned = {id_: Verdict({"score": 10.0 - one.scores["score"]}) for id_, one in unsteady.items()}
    [other] = judged([turned], unsteady, unsteady)
    assert other.drift is not None
    assert other.drift.value == pytest.approx(np.mean([abs(2 * at - 8) for at in range(9)]) / 9), "the mean is the same"
    loaded, *unloaded = (
        {f"r{at}": Verdict(label="A" if at < known else "B") for at in range(50)} for known in (25, 20, 20)
    )
    changed = judged([loaded], unloaded[0], unloaded[1])[0].drift
    assert changed is not None
    assert changed.value == pytest.approx(0.1)
    assert judged([{}], first, first)[0].drift is None


def test_a_running_change_is_found_at_any_time_and_a_sound_judge_hardly_ever() -> None:
    generator = np.random.default_rng(2)
    wrong = 0
    for _ in range(100):
        sound = RunningChange(9.0)
        for place, change in enumerate(generator.choice([-1.0, 0.0, 1.0], 100)):
            sound.add(place, change)
        wrong += sound.found_at is not None
    assert binomtest(wrong, 100, _ALPHA, "greater").pvalue > 0.01
    orders = [np.arange(60), generator.permutation(60)]
    changes = generator.choice([-3.0, -2.0, -1.0], 60)
    found = []
    for order in orders:
        running = RunningChange(9.0, step=2)
        for place in order:
            running.add(int(place), None if place % 7 == 0 else float(changes[place]))
        found.append((running.n, running.found_at, running.low, running.high))
    assert found[0] == found[1], "the order in which answers come has no part in it"
    assert found[0][1] is not None
    assert found[0][2] < changes.mean() < found[0][3] < 0.0
