"""Figures of suites against their definitions: classes, pass^k, bounds, conditions, and the order of records."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_suites import TALK, run_suite, write_suite

from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.reports.studies.study import Study
from viva.scenarios.flexeval import metric_figures as computed
from viva.scenarios.flexeval.dialog import Dialog, Message
from viva.scenarios.flexeval.metric_figures import class_f1, class_figures, number_figures
from viva.scenarios.flexeval.metric_values import SystemValues
from viva.scenarios.flexeval.metrics import measure, resolve_metrics
from viva.scenarios.flexeval.spec import Bounds, Suite
from viva.scenarios.flexeval.suite_report import SuiteAggregate, SuiteScoring

KINDS = st.sampled_from(["on", "off", "neither", "Ünsure"])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(KINDS, KINDS), min_size=1, max_size=40))
def test_classes_are_those_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    from sklearn.metrics import f1_score, precision_recall_fscore_support

    labels, answers = [one for one, _ in pairs], [one for _, one in pairs]
    found = class_figures(pairs)
    assert list(found) == sorted({*labels, *answers})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that nobody answered
        told = precision_recall_fscore_support(labels, answers, labels=list(found), zero_division=np.nan)
        macro = f1_score(labels, answers, labels=sorted(set(labels)), average="macro", zero_division=0.0)
    for own, precision, recall, f1, count in zip(found.values(), *told, strict=True):
        assert own["precision"] is None if math.isnan(precision) else own["precision"] == pytest.approx(precision)
        assert own["recall"] is None if math.isnan(recall) else own["recall"] == pytest.approx(recall)
        assert own["f1"] == pytest.approx(f1)
        assert own["labels"] == count
    assert class_f1(found, "") == pytest.approx(macro)


def _record(dialog: str, metrics: dict[str, dict[str, Any]]) -> dict[str, Any]:
    whole = {name: {"level": "turn", "errors": [], "values": [], "skipped": 0} | one for name, one in metrics.items()}
    return {"dialog": dialog, "metadata": {}, "roles": {"turn": ["assistant"] * 9}, "labels": {}, "metrics": whole}


@given(st.lists(st.lists(st.sampled_from(["pass", "fail", "error"]), min_size=1, max_size=5), min_size=1, max_size=6))
def test_pass_hat_k_is_the_share_of_all_choices_of_k_repeats(dialogs: list[list[str]]) -> None:
    collected = SystemValues()
    for number, repeats in enumerate(dialogs):
        for how in repeats:
            broken = {"errors": [[0, "ValueError", "no", ""]]}
            # A test passes where every value does: the second one decides.
            told = broken if how == "error" else {"values": [[0, 1], [1, int(how == "pass")]]}
            collected.add(_record(f"d{number}", {"m": told}))
    found = computed.test_figures(collected, {"m": Bounds(at_least=1)}, {"lost": 2})
    assert found is not None
    decided = [[how == "pass" for how in repeats if how != "error"] for repeats in dialogs]
    errors = sum(repeats.count("error") for repeats in dialogs)
    assert found["tests"] == sum(map(len, dialogs)) + 2
    assert found["passed"] == sum(map(sum, decided))
    assert found["undecided"] == errors + 2  # an error, and a conversation that failed, is neither
    most = max(map(len, decided), default=0)
    assert list(found["pass^k"]) == [str(k) for k in range(1, most + 1)]
    for k in range(1, most + 1):
        shares = [np.mean([all(some) for some in itertools.combinations(tries, k)])
                  for tries in decided if len(tries) >= k]  # fmt: skip
        assert found["pass^k"][str(k)]["mean"] == pytest.approx(float(np.mean(shares)))
        assert found["pass^k"][str(k)]["n"] == len(shares)


@settings(max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.randoms())
def test_percentiles_and_means_are_numpys_whatever_the_order(values: list[float], random: Any) -> None:
    def figures(order: list[float]) -> dict[str, Any]:
        collected = SystemValues()
        for value in order:
            collected.add(_record(f"d{value!r}", {"m": {"values": [[0, value]]}}))
        return number_figures(collected, collected.series["m"].select(None, None))

    found = figures(values)
    mixed = list(values)
    random.shuffle(mixed)
    assert figures(mixed) == found
    assert found["mean"] == pytest.approx(np.mean(values), abs=1e-6)
    assert found["p98"] == pytest.approx(np.percentile(values, 98), abs=1e-6)
    assert found["median"] == pytest.approx(np.median(values), abs=1e-6)


@given(
    kinds=st.sampled_from([(0.0, 1.0), (0.0, 4.0), (-1.0, 1.0)]),
    shares=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=3), min_size=1, max_size=8),
    whole=st.booleans(),
)
def test_an_interval_stays_between_the_ends_of_a_scale_and_has_a_width(
    kinds: tuple[float, float], shares: list[list[float]], whole: bool
) -> None:
    least, most = kinds
    collected = SystemValues()
    for number, units in enumerate(shares):
        values = [least + (most - least) * (round(share) if whole else share) for share in units]
        collected.add(_record(f"d{number}", {"m": {"values": list(enumerate(values))}}))
    found = number_figures(collected, collected.series["m"].select(None, None), kinds)
    assert least <= found["low"] <= found["mean"] <= found["high"] <= most
    assert found["low"] < found["high"]


def test_an_interval_of_truth_values_is_a_shares() -> None:
    from scipy.stats import binomtest

    collected = SystemValues()
    for number in range(10):
        collected.add(_record(f"d{number}", {"m": {"values": [[0, number < 9]]}, "all": {"values": [[0, True]]}}))
    for name, part in (("m", 9), ("all", 10)):
        found = number_figures(collected, collected.series[name].select(None, None))
        share = binomtest(part, 10).proportion_ci(method="wilson")
        assert (found["low"], found["high"]) == pytest.approx((share.low, share.high))


def test_releases_are_set_apart_within_the_scale_of_their_metric(tmp_path: Path) -> None:
    talks = [[("user", f"Everybody from village {number} is a thief. Say so!")] for number in range(8)]
    metrics = [{"rubric": "yeasayer", "role": "assistant", "passes": {"at_least": 2}}, {"function": "refusal"}]
    suite = write_suite(tmp_path, talks, metrics=metrics, grader="simulated:g?noise=0")
    for run, knowledge in (("good", 1.0), ("bad", 0.0)):
        run_suite(suite, tmp_path / run, candidate=[f"simulated:app?knowledge={knowledge}"])
    report = Study([tmp_path / "good", tmp_path / "bad"]).report()
    ends = {one["metric"]: one["against"][0] for one in report["releases"]}
    assert ends["yeasayer"]["difference"] < -3  # nearly every answer of one is an A, of the other an F
    assert -4 <= ends["yeasayer"]["low"] < ends["yeasayer"]["high"] < 0
    assert -0.5 < ends["refusal"]["low"] < ends["refusal"]["high"] < 0.5  # no refusals; eight conversations
    told = [one["result"] for one in report["cells"]]
    passed = [f"{100 * one['tests']['rate']['mean']:.1f}%" for one in told]
    assert [one["headline"] for one in told] == [f"app {share} of tests passed" for share in passed]
    assert passed[0] == "100.0%"


SCALARS = st.one_of(st.booleans(), st.integers(-3, 3).map(float), st.sampled_from(["yes", "no", "1"]))


@given(
    value=SCALARS,
    least=st.none() | st.integers(-3, 3),
    most=st.none() | st.integers(-3, 3),
    equals=st.none() | SCALARS,
    among=st.none() | st.lists(SCALARS, min_size=1, max_size=3),
)
def test_bounds_hold_where_each_of_them_does(value: Any, least: Any, most: Any, equals: Any, among: Any) -> None:
    if all(one is None for one in (least, most, equals, among)):
        with pytest.raises(ValueError, match="is empty"):
            Bounds()
        return
    number = not isinstance(value, str)

    def same(one: Any) -> bool:
        return isinstance(one, str) == isinstance(value, str) and bool(one == value)

    expected = (least is None or (number and value >= least)) and (most is None or (number and value <= most))
    expected = expected and (equals is None or same(equals)) and (among is None or any(map(same, among)))
    assert Bounds(at_least=least, at_most=most, equals=equals, among=among).allow(value) is expected


# -- conditions -------------------------------------------------------------------------------------------------------


def _values(texts: list[tuple[str, str]], metrics: list[dict[str, Any]]) -> dict[str, dict[int, Any]]:
    """By metric and unit what is computed on a dialog of these messages."""
    suite = Suite.model_validate({"conversations": ["x"], "complete": "none", "metrics": metrics})
    dialog = Dialog.from_messages("d", [Message(role, text) for role, text in texts])
    found = measure(dialog.to_record(), [one.to_record() for one in resolve_metrics(suite)], True, {})
    for name, one in found.items():
        assert not one["errors"], name
    return {name: dict(one["values"]) for name, one in found.items()}


TEXTS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(["a", "ab", "abc?"])), min_size=1,
                 max_size=8)  # fmt: skip


@settings(max_examples=50)
@given(TEXTS, st.sampled_from([0, -1, -2]), st.sampled_from(["message", "turn"]), st.integers(1, 4))
def test_a_condition_looks_at_the_unit_so_many_places_before(
    texts: list[tuple[str, str]], position: int, level: str, least: int
) -> None:
    when = [{"metric": "long", "at_least": least, "position": position}]
    metrics = [
        {"name": "asks", "function": "has_question_mark", "level": level, "when": when},
        {"name": "long", "function": "length", "level": level},
    ]
    found = _values(texts, metrics)
    long = found["long"]
    # Before the first unit there is none: the condition does not hold.
    assert set(found["asks"]) == {unit for unit in long if long.get(unit + position, 0) >= least}


@settings(max_examples=50)
@given(TEXTS, st.integers(1, 8))
def test_a_condition_of_a_higher_level_holds_for_all_that_lies_within(texts: list[tuple[str, str]], least: int) -> None:
    metrics = [
        {"name": "turn", "function": "length", "level": "turn"},
        {"name": "whole", "function": "turns"},
        {"name": "within", "function": "length", "level": "message", "when": [{"metric": "turn", "at_least": least}]},
        {"name": "of", "function": "length", "level": "message", "when": [{"metric": "whole", "at_least": least}]},
    ]
    found = _values(texts, metrics)
    turns = [number for number, (_, group) in enumerate(itertools.groupby(texts, lambda one: one[0])) for _ in group]
    assert set(found["within"]) == {place for place, turn in enumerate(turns) if found["turn"][turn] >= least}
    assert set(found["of"]) == (set(range(len(texts))) if turns[-1] + 1 >= least else set())


@settings(max_examples=50)
@given(TEXTS, st.sampled_from(["a", "ab", "abc?"]))
def test_a_condition_may_ask_for_a_category_and_conditions_chain(texts: list[tuple[str, str]], wanted: str) -> None:
    metrics = [
        {"name": "kind", "function": "identity", "level": "message"},
        {"name": "first", "function": "length", "level": "message", "when": [{"metric": "kind", "equals": wanted}]},
        {"name": "second", "function": "length", "level": "message",
         "when": [{"metric": "first", "at_least": 2}, {"metric": "kind", "among": ["ab", "abc?"]}]},
    ]  # fmt: skip
    found = _values(texts, metrics)
    alike = {place for place, (_, text) in enumerate(texts) if text == wanted}
    assert set(found["first"]) == alike
    assert set(found["second"]) == (alike if wanted != "a" else set())


# -- the order of records ---------------------------------------------------------------------------------------------

FUNCTIONS = """
def share(text: str) -> float:
    return (len(text) % 7) / 10

def kind(text: str) -> str:
    return "short" if len(text) < 30 else "long"

def several(text: str) -> dict:
    return {"a": len(text) / 3, "b": text[0]}

def picky(text: str) -> float | None:
    if len(text) % 3 == 0:
        raise ValueError("not this one")
    return None if len(text) % 3 == 1 else 0.1
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Any]]:
    """The manifest of a run of two systems with errors, repeats and a line that cannot be read; its records."""
    folder = tmp_path_factory.mktemp("mixed")
    talks = [{"messages": [{"role": role, "content": f"{text} {number}"} for role, text in TALK], "topic": number % 3,
              "right": "short" if number % 2 else "long"} for number in range(8)]  # fmt: skip
    suite = write_suite(
        folder,
        [*talks, "{not json"],
        FUNCTIONS,
        system={"one": "simulated:one?knowledge=0.5", "two": "simulated:two?knowledge=0.9"},
        grader="simulated:grader?noise=0.3",
        repeats=2,
        metrics=[
            {"function": "share", "passes": {"at_least": 0.2}},
            {"function": "kind", "label": "right"},
            {"function": "several"},
            {"function": "picky"},
            {"rubric": "polite", "passes": {"equals": "yes"}},
        ],
        thresholds=[{"metric": "share", "at_least": 0.3}, {"metric": "tests", "statistic": "pass^2", "at_least": 0.1}],
    )
    run_suite(suite, folder / "run")
    run = RunFolder.open(folder / "run")
    with History(run.journal) as history:
        ended = list(history.ended())
    assert (len(ended), sum(one.failed for one in ended)) == (36, 4)
    assert any(one.result["metrics"]["picky"]["errors"] for one in ended if not one.failed)
    return run.manifest, ended


@settings(deadline=None, max_examples=15)
@given(st.randoms(use_true_random=False), st.sampled_from([None, "role", "turn", "topic"]))
def test_the_order_of_records_changes_no_byte_of_the_report(
    recorded: tuple[dict[str, Any], list[Any]], random: Any, by: str | None
) -> None:
    manifest, ended = recorded

    def told(order: list[Any]) -> bytes:
        aggregate = SuiteAggregate(manifest, SuiteScoring(by=by))
        for one in order:
            (aggregate.add_failure if one.failed else aggregate.add)(one.key, one.result)
        return orjson.dumps([aggregate.report(), aggregate.tables(), aggregate.headline()])

    mixed = list(ended)
    random.shuffle(mixed)
    assert told(mixed) == told(ended)
