"""What studies claim: verdicts, lines and leads stay those of their own items, and few items claim nothing."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from study_runs import dataset, interviewed, probed, probed_as_given, written

from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.reports.figures import clustered_score
from viva.reports.studies.export import write_csv
from viva.reports.studies.page import study_page
from viva.reports.studies.study import Study, study_findings
from viva.scenarios.kieval.score import Interview, Round
from viva.scenarios.study_cells import ItemCatalogue, ItemNumbers
from viva.scoring.aggregates import ClusteredStream
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.contamination import MIN_K
from viva.scoring.correlation import ItemErrors, Point, departures, robust_line
from viva.web.view.findings import study_answer

ITEMS = 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("claims")


def talk(source: str, item: int, candidate: str, right: bool, *marks: int, cluster: str = "") -> Interview:
    rounds = [Round([mark] * 6) for mark in marks]
    return Interview(candidate, f"{source}-{item}", 5, 0, right, rounds, cluster=cluster)


def run_of(
    path: Path, source: Path, items: int = ITEMS, cluster: int = 1, settings: Any = None, **levels: tuple[float, float]
) -> Path:
    """A run of candidates that answer a share of the items rightly, and a share of the questions in two rounds."""
    held = []
    for candidate, (knows, talks_as) in levels.items():
        draw = np.random.default_rng([len(candidate), *map(ord, candidate)])
        for item in range(items):
            marks = [4 if draw.random() < talks_as else 1 for _ in range(2)]
            name = f"text-{item // cluster}" if cluster > 1 else ""
            held.append(talk(source.stem, item, candidate, bool(draw.random() < knows), *marks, cluster=name))
    return written(path, source, held, *(f"simulated:{candidate}" for candidate in levels), **(settings or {}))


def honest(path: Path, source: Path, names: str, items: int = ITEMS, cluster: int = 1, **more: Any) -> Path:
    shares = np.linspace(0.25, 0.95, len(names))
    return run_of(path, source, items, cluster, **{n: (s, s) for n, s in zip(names, shares, strict=True)}, **more)


def sentences(*runs: Path) -> list[str]:
    return [sentence for one in study_findings(Study(runs).report()) for sentence in one.sentences]


# -- 4: each dataset by itself -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cheated(root: Path) -> list[Path]:
    """Five honest candidates and one that answers everything and understands little, on one dataset."""
    return [honest(root / "quiz", dataset(root / "quiz.jsonl", ITEMS), "abcde", cheat=(1.0, 0.2))]


@pytest.fixture(scope="module")
def unrelated(root: Path) -> dict[str, Path]:
    """Runs that have nothing to do with those on ``quiz``."""
    other = dataset(root / "other.jsonl", ITEMS, seed=2)
    (root / "copy").mkdir()
    namesake = dataset(root / "copy" / "quiz.jsonl", ITEMS, seed=3)
    return {
        "other candidates on another dataset": honest(root / "other", other, "xyz"),
        "the same candidates on another dataset": honest(root / "again", other, "abc"),
        "another file of the same name": honest(root / "namesake", namesake, "wxyz"),
    }


def test_an_unrelated_run_changes_no_sentence_verdict_or_line(cheated: list[Path], unrelated: dict[str, Path]) -> None:
    alone = Study(cheated).report()
    assert sentences(*cheated)[0] == "Contamination suspected: cheat."
    told = set(sentences(*cheated))
    for kind, run in unrelated.items():
        report = Study([run, *cheated]).report()
        assert told <= {one for found in study_findings(report) for one in found.sentences}, kind
        judged = report["verdicts"]["candidates"]
        own = [one for one in judged if one["dataset"].startswith("quiz") and one["candidate"] in (*"abcde", "cheat")]
        assert [one | {"dataset": "quiz"} for one in own] == alone["verdicts"]["candidates"], kind
        lines = report["correlations"]["lines"]
        [line] = [one for one in lines.values() if one is not None and "cheat" in one["residuals"]]
        assert line == alone["correlations"]["lines"]["quiz"], kind


def test_a_dataset_that_nobody_was_probed_on_leaves_the_others_accuracies(root: Path) -> None:
    names = [f"simulated:m{at}?knowledge={0.2 * at}" for at in range(1, 6)]
    science = [interviewed(root / "science", *names, n=12), probed(root / "probe", *names, n=12, method=["text"])]
    other = interviewed(root / "elsewhere", *names, dataset=str(dataset(root / "elsewhere.jsonl", 12)))
    told = Study([*science, other]).report()["correlations"]
    assert told["accuracies"] == {"science": "text", "elsewhere": "first answer"}
    found, alone = (one["lines"]["science"] for one in (told, Study(science).report()["correlations"]))
    for line in (found, alone):
        line["tests"] = {name: (test["value"], test["se"]) for name, test in line["tests"].items()}
    assert found == alone


@pytest.fixture(scope="module")
def crossed(root: Path, cheated: list[Path]) -> list[Path]:
    """The candidates of ``cheated`` on two further datasets, and once more on one of too few items to find anything."""
    sources = [("second", ITEMS, (1.0, 0.2)), ("third", ITEMS, (0.6, 0.6)), ("tiny", 5, (1.0, 0.2))]
    further = [
        honest(root / name, dataset(root / f"{name}.jsonl", count), "abcde", count, cheat=levels)
        for name, count, levels in sources
    ]
    return [*cheated, *further]


def line_tests(*runs: Path) -> dict[tuple[str, str], dict[str, Any]]:
    report = Study(runs).report()
    return {
        (one["dataset"], one["candidate"]): test
        for one in report["verdicts"]["candidates"]
        for test in one["tests"]
        if test["test"] == "line"
    }


def test_accusations_are_corrected_for_the_candidates_tests_on_other_datasets(
    cheated: list[Path], crossed: list[Path]
) -> None:
    alone, together = line_tests(*cheated), line_tests(*crossed)
    for (name, candidate), test in alone.items():
        found = together[name, candidate]
        assert found["p"] == pytest.approx(min(1.0, 3 * test["p"]), rel=1e-4), candidate
        assert found["power"] <= test["power"]
    assert together["quiz", "cheat"]["p_corrected"] < 0.05  # and one who cheats is found all the same
    report = Study(crossed).report()
    verdicts = {(one["dataset"], one["candidate"]): one["verdict"] for one in report["verdicts"]["candidates"]}
    suspected = {place for place, verdict in verdicts.items() if verdict == "suspected"}
    assert suspected == {("quiz", "cheat"), ("second", "cheat")}
    lines = {name: line["below"] for name, line in report["correlations"]["lines"].items()}
    assert lines == {"quiz": ["cheat"], "second": ["cheat"], "third": [], "tiny": []}


UNLIKE = {
    "evaluator": ({"evaluator": "simulated:harsh"}, "evaluator harsh"),
    "rounds": ({"rounds": 2}, "rounds 2"),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_candidates_that_were_not_examined_alike_share_no_line_and_no_ranking(
    root: Path, cheated: list[Path], kind: str
) -> None:
    """One by another judge neither is accused by the others' line nor hides who cheats."""
    settings, told = UNLIKE[kind]
    apart = run_of(root / f"unlike-{kind}", root / "quiz.jsonl", settings=settings, f=(0.9, 0.2), b=(0.4, 0.1))
    alone, report = Study(cheated).report(), Study([*cheated, apart]).report()
    judged = {(one["dataset"], one["candidate"]): one for one in report["verdicts"]["candidates"]}
    [here] = {name for name, candidate in judged if candidate == "cheat"}
    there = f"quiz ({told})"
    assert [one for one in report["verdicts"]["candidates"] if one["dataset"] == here] == [
        one | {"dataset": here} for one in alone["verdicts"]["candidates"]
    ]
    assert {judged[there, name]["verdict"] for name in "fb"} == {"not_tested"}
    found = {one.about: one for one in study_findings(report)}
    assert {name: len(one.standings) for name, one in found.items()} == {here: 6, there: 2}
    [before] = study_findings(Study(cheated).report())
    assert (found[here].sentences, found[here].standings) == (before.sentences, before.standings)
    assert {row["dataset"] for row in report["pooled"] if row["candidate"] == "b"} == {here, there, None}


def test_candidates_that_all_met_the_same_judges_are_pooled(root: Path) -> None:
    source = dataset(root / "crossed.jsonl", 12)
    runs = [
        honest(root / f"crossed-{judge}", source, "abcd", 12, settings={"evaluator": f"simulated:{judge}"})
        for judge in ("one", "other")
    ]
    report = Study(runs).report()
    assert {row["dataset"] for row in report["pooled"]} == {"crossed"}
    assert {row["n_observations"] for row in report["pooled"]} == {24}
    other = {"evaluator": "simulated:one?noise=0.9", "seed": 2}
    namesake = honest(root / "crossed-namesake", source, "abcd", 12, settings=other)
    [note] = [one for one in Study([runs[0], namesake]).report()["notes"] if "different models" in one]
    assert note == "the judge 'one' names 2 different models: simulated:one, simulated:one?noise=0.9"


def probes_of(path: Path, source: Path, texts: int, cluster: int, shift: float, **settings: Any) -> Path:
    """A run of probes whose texts of the dataset are more familiar than the others by so much."""
    draw, held = np.random.default_rng(texts), []
    for second in (False, True):
        mood = draw.normal(0, 1 if cluster > 1 else 0, texts)
        for at in range(texts):
            loss = float(9 + mood[at // cluster] + draw.normal(0, 0.5) - (0 if second else shift))
            signals = {"tokens": 9, "loss": loss, "perplexity": 9.0, "zlib_ratio": 1.0, "min_k": [-loss] * len(MIN_K)}
            named = f"{second}-{at // cluster}" if cluster > 1 else ""
            one = {"candidate": "a", "item": f"{second}-{at}", "second": second, "signals": signals, "usage": {}}
            held.append(one | {"cluster": named})
    return probed_as_given(path, source, held, "simulated:a", **settings)


def texts_test(run: Path) -> tuple[str, dict[str, Any]]:
    [one] = Study([run]).report()["verdicts"]["candidates"]
    [test] = one["tests"]
    return one["verdict"], test


def test_texts_of_few_clusters_accuse_and_acquit_nobody(root: Path) -> None:
    source = dataset(root / "passages.jsonl", 40)
    verdict, test = texts_test(probes_of(root / "passages", source, 40, 8, 4.0))
    assert (verdict, test["p_corrected"], test["power"], test["value"]) == ("too_few", 1.0, 0.0, 1.0)
    assert texts_test(probes_of(root / "single", source, 40, 1, 4.0))[0] == "suspected"


def test_texts_of_the_other_set_that_are_familiar_accuse_nobody(root: Path) -> None:
    """With ``members`` against, detectors rank the other set's texts above those of the dataset."""
    source = dataset(root / "turned.jsonl", 40)
    verdict, test = texts_test(probes_of(root / "other-seen", source, 40, 1, -4.0, members="against"))
    assert (verdict, test["value"]) == ("no_sign", 0.0)
    verdict, test = texts_test(probes_of(root / "own-seen", source, 40, 1, 4.0, members="against"))
    assert (verdict, test["value"]) == ("suspected", 1.0)


def test_not_tested_is_no_verdict_of_no_sign(root: Path, cheated: list[Path]) -> None:
    lone = [run_of(root / "untested", dataset(root / "untested.jsonl", 9), 9, z=(0.5, 0.5))]
    report = Study([*cheated, *lone]).report()
    told = [sentence for one in study_findings(report) for sentence in one.sentences]
    [line] = [one for one in told if one.startswith("Not tested for contamination")]
    assert line.startswith("Not tested for contamination: z (")
    assert not any("z" in one.partition(":")[2].split(", ") for one in told if one.startswith("No sign"))
    verdicts = {one["candidate"]: one["verdict"] for one in report["verdicts"]["candidates"]}
    assert (verdicts["z"], verdicts["cheat"]) == ("not_tested", "suspected")


def test_unlike_scales_share_no_ranking(cheated: list[Path], unrelated: dict[str, Path]) -> None:
    """Another dataset, and another system, have standings of their own, in reports and in the viewer."""
    from viva.scoring.intervals import Estimate
    from viva.web.view.index_figures import mean_findings
    from viva.web.view.run_figures import MeanScore, RunFigures, run_groups

    other = unrelated["other candidates on another dataset"]
    report = Study([*cheated, other]).report()
    found = study_findings(report)
    assert [(one.scenario, one.about, len(one.standings)) for one in found] == [
        ("kieval", "quiz", 6),
        ("kieval", "other", 3),
    ]
    page = study_page(report)
    assert (page.about, [about for about, _ in page.further]) == ("quiz", ["other", ""])
    means = [MeanScore("a", 3, 3, Estimate(70.0, 60.0, 80.0), True)]

    def subjects(runs: list[RunFigures]) -> list[str]:
        return [mean_findings(group, means)["about"] for group in run_groups(runs)]

    runs = [
        RunFigures(name, scenario, name, 1, "", 3, "", running=False)
        for scenario, name in (("kieval", "quiz"), ("kieval", "other"), ("flexeval", "suite"))
    ]
    assert subjects(runs) == ["quiz", "other", "suite"]
    # By judge, by the file's content, and by a setting.
    told_apart = [("one", "123456abc", 1), ("other", "123456abc", 1), ("one", "789", 1), ("other", "123456abc", 2)]
    runs = [
        RunFigures(f"{at}", "kieval", "quiz", 1, judge, 3, "", running=False, digest=digest,
                   likeness=f'{{"judge": "{judge}", "rounds": {rounds}}}')
        for at, (judge, digest, rounds) in enumerate(told_apart)
    ]  # fmt: skip
    assert subjects(runs[:3]) == ["quiz (data 123456, judged by one)", "quiz (data 123456, judged by other)",
                                  "quiz (data 789)"]  # fmt: skip
    assert subjects(runs[:2]) == ["quiz (judged by one)", "quiz (judged by other)"]
    assert subjects(runs[1::2]) == ["quiz (rounds 1)", "quiz (rounds 2)"]
    assert subjects(runs[:1]) == ["quiz"]


# -- 5: too few to tell ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [2, 5])
def test_few_items_accuse_and_acquit_nobody(root: Path, items: int) -> None:
    source = dataset(root / f"few-{items}.jsonl", items)
    runs = [honest(root / f"few-{items}", source, "abcde", items)]
    report = Study(runs).report()
    assert {one["verdict"] for one in report["verdicts"]["candidates"]} <= {"too_few", "not_tested"}
    assert all(one["verdict"] in ("too_few", "not_comparable") for one in report["verdicts"]["leads"])
    told = sentences(*runs)
    assert any(one.startswith("Too little data to test for contamination") for one in told)
    assert any(
        f"n = {items} items; about" in one and "would be needed to see a gap of 10 points" in one for one in told
    )
    page = study_page(report)
    assert set(told) <= {*page.verdict, *(one for _, group in page.further for one in group)}
    assert [one["sentences"] for one in study_answer(runs).findings] == [told]


def test_a_clean_verdict_takes_the_power_that_the_rule_names(root: Path) -> None:
    source = dataset(root / "many.jsonl", 400)
    report = Study([honest(root / "many", source, "abcdefg", 400)]).report()  # a fall of 30 points is seen
    for one in report["verdicts"]["candidates"]:
        [test] = one["tests"]
        assert one["verdict"] == ("no_sign" if test["power"] >= report["verdicts"]["rule"]["power"] else "too_few")
    assert "no_sign" in {one["verdict"] for one in report["verdicts"]["candidates"]}


def line_of(
    clean: Sequence[tuple[float, float]], noise: float, clusters: int, draw: np.random.Generator
) -> tuple[list[Point], dict[str, ItemErrors]]:
    points, errors = [], {}
    for at, (x, y) in enumerate(clean):
        parts = draw.normal(0, noise * math.sqrt(clusters), (2, clusters))
        shares = (parts - parts.mean(axis=1, keepdims=True)) / clusters
        least = parts.std(axis=1, ddof=1) / math.sqrt(clusters)
        points.append(Point(f"{at}", x + parts[0].mean(), y + parts[1].mean(), *least))
        errors[f"{at}"] = ItemErrors(shares[0], shares[1], clusters, *least)
    return points, errors


@pytest.mark.parametrize("count", [4, 5, 6])
def test_a_clean_line_of_few_points_has_one_flagged_in_few_samples(count: int) -> None:
    draw, flagged = np.random.default_rng(count), 0
    for _ in range(150):
        xs = draw.uniform(20, 100, count)
        points, errors = line_of([(x, 0.9 * x + draw.normal(0, 5)) for x in xs], 2.0, 30, draw)
        found = departures(robust_line(points), points, errors, scatter=5.0)
        flagged += any(one.p < 0.05 and one.value < 0 for one in found.values())
    assert flagged <= 150 * 0.05 + 5
    cheated, errors = line_of([(x, 0.9 * x) for x in (30, 50, 70, 90)] + [(95, 40)], 2.0, 100, draw)
    found = departures(robust_line(cheated), cheated, errors, scatter=5.0)
    assert [name for name, one in found.items() if one.p < 0.05 and one.value < 0] == ["4"]


# -- 6: the test behind pooled means -----------------------------------------------------------------------------------


def test_several_datasets_are_led_by_their_pooled_means_and_the_test_of_these(root: Path) -> None:
    runs: list[Path] = []
    marks = {"strong": (4, 4), "weak": (2, 3)}
    for at in range(6):  # each dataset by itself is too few to tell, all together are not
        source = dataset(root / f"part-{at}.jsonl", 6, seed=at)
        for name, held in marks.items():
            talks = [talk(source.stem, item, name, True, *held) for item in range(6)]
            runs.append(written(root / f"part-{at}-{name}", source, talks, f"simulated:{name}"))
    report = Study(runs).report()
    [lead] = [one for one in report["verdicts"]["leads"] if len(one["datasets"]) == 6]
    [pooled] = [one for one in report["comparisons"] if one["dataset"] is None]
    assert max(one["p_corrected"] for one in report["comparisons"]) > 0.01 > pooled["p_corrected"]
    assert (lead["verdict"], lead["p_corrected"]) == ("ahead", pooled["p_corrected"])
    told = sentences(*runs)
    [mean] = [row["score"]["mean"] for row in report["pooled"] if (row["candidate"], row["dataset"]) == ("weak", None)]
    assert f"weak is second with {mean:.1f}, significantly lower (Holm-corrected p < 0.001)." in told


def test_a_pooled_difference_has_the_error_of_its_strata() -> None:
    values = [10.0, 12.0, 11.0, 50.0, 54.0, 52.0]
    labels, strata = list("uvwxyz"), list("aaabbb")
    found = clustered_mean(values, labels, strata)
    assert found is not None
    expected = math.sqrt(sum((3 * stats.sem(values[at : at + 3])) ** 2 for at in (0, 3))) / 6
    assert (found.mean, found.se, found.freedom) == (pytest.approx(31.5), pytest.approx(expected), 4)


# -- 7: one figure, one error ------------------------------------------------------------------------------------------


def test_one_figure_has_one_standard_error_everywhere(root: Path, tmp_path: Path) -> None:
    source = dataset(root / "clustered.jsonl", 40)
    run = honest(root / "clustered", source, "abcd", 40, cluster=4)
    report = Study([run]).report()
    own = recorded_results(RunFolder.open(run))
    table = {line[0]: line for line in own.tables()[0][2]}
    write_csv(report, tmp_path / "figures.csv")
    with (tmp_path / "figures.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in "abcd":
        result = own.report()["candidates"][name]
        [row] = [row for row in report["pooled"] if row["candidate"] == name]
        [point] = [one for one in report["correlations"]["figures"] if one["model"] == name]
        [variant] = [one["candidates"][name] for one in report["ablation"] if one["decay"] and one["early_stop"]]
        for figure, named in (("score", "score"), ("accuracy", "accuracy"), ("rounds", "rounds")):
            exported = {float(one["se"]) for one in rows if (one["candidate"], one["measure"]) == (name, named)}
            assert exported == {result[figure]["se"]} == {row[figure]["se"]}, figure
        assert point["score_se"] == row["score"]["se"] == variant["se"]
        assert point["accuracy_se"] == row["accuracy"]["se"]
        assert f"{row['score']['se']:.1f}" == table[name][4]
        assert f"± {row['score']['se']:.1f}" in own.headline()
        running = next(cell for cell in report["cells"] if cell["candidate"] == name)["running"]
        assert (running["low"][-1], running["high"][-1]) == (row["score"]["low"], row["score"]["high"])
        assert row["score"]["items"] == 10
    [pair] = [one for one in report["comparisons"] if (one["first"], one["second"]) == ("a", "b")]
    assert (pair["n"], pair["clusters"], pair["test"]) == (40, 10, "sign flips")
    assert pair["p"] >= 2 / 2**10


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["", "a", "b", "c"])), min_size=1, max_size=30))
def test_the_stream_of_clustered_numbers_has_the_error_of_the_clustered_mean(numbers: list[tuple[float, str]]) -> None:
    stream, other = ClusteredStream(), ClusteredStream()
    for at, (value, cluster) in enumerate(numbers):
        (stream if at % 2 else other).add(value, cluster)
    stream.merge(other)
    labels = [cluster or f"alone {at}" for at, (_, cluster) in enumerate(numbers)]
    found = clustered_mean([value for value, _ in numbers], labels)
    assert found is not None
    assert stream.clusters == found.clusters
    if found.se is None:
        assert stream.standard_error is None
    else:
        assert stream.standard_error == pytest.approx(found.se, rel=1e-9, abs=1e-9)


def test_scores_of_one_passage_are_one_cluster_in_every_figure() -> None:
    told: Callable[..., dict[str, Any]] = clustered_score
    values = np.array([0.0, 0.0, 100.0, 100.0, 50.0, 50.0])
    assert told(values, list("aabbcc"))["se"] > 1.3 * told(values, list("abcdef"))["se"]


def test_clusters_that_one_run_knows_hold_for_its_items_in_all_runs(root: Path) -> None:
    source = dataset(root / "known.jsonl", 40)
    plain = honest(root / "known-no", source, "abcd", 40)
    other = run_of(root / "known-yes", source, 40, 4, e=(0.5, 0.5))
    again = honest(root / "known-again", source, "abcd", 40, cluster=4, settings={"seed": 2})
    for runs, n in (([plain, other], 40), ([plain, again], 80)):
        rows = {row["candidate"]: row for row in Study(runs).report()["pooled"]}
        assert {(row["score"]["items"], row["accuracy"]["items"]) for row in rows.values()} == {(10, 10)}
        assert rows["a"]["score"]["n"] == n
    [pair] = [one for one in Study([plain, other]).report()["comparisons"] if one["first"] + one["second"] == "ab"]
    assert (pair["n"], pair["clusters"]) == (40, 10)


def test_an_item_in_two_clusters_joins_them() -> None:
    numbers = ItemNumbers()
    items = [numbers.number(name) for name in "abcd"]
    first = [numbers.cluster(name, cluster) for name, cluster in zip("abcd", ("p", "p", "", ""), strict=True)]
    second = [numbers.cluster(name, cluster) for name, cluster in zip("abcd", ("", "q", "q", ""), strict=True)]
    catalogue = ItemCatalogue({"set": numbers})
    for clusters in (first, second):
        catalogue.join(*(catalogue.codes("set", np.array(column)) for column in (items, clusters)))
    found = [catalogue.clusters(catalogue.codes("set", np.array(column))).tolist() for column in (items, first, second)]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0][:3])) == 1
    assert found[0][3] not in found[0][:3]
