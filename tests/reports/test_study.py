"""A study's figures against plain sums over the journals; order and company of conversations leave no trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import orjson
import pytest
from scipy import optimize, stats
from study_runs import dataset, interviewed, probed, records, rewritten, talks

from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.reports.studies.study import Study
from viva.scenarios.kieval.score import ASPECTS, Interview, Scorer

CANDIDATES = ("simulated:weak?knowledge=0.15", "simulated:mid?knowledge=0.5", "simulated:good?knowledge=0.9")
LABELS = ("weak", "mid", "good")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three candidates on two datasets under two seeds, and probes of them on one."""
    root = tmp_path_factory.mktemp("study")
    other = str(dataset(root / "other.jsonl", 12))
    made = []
    for seed in (1, 2):
        made.append(interviewed(root / f"science-{seed}", *CANDIDATES, seed=seed, n=15, early_stop=False))
        made.append(interviewed(root / f"other-{seed}", *CANDIDATES, seed=seed, dataset=other, early_stop=False))
        made.append(probed(root / f"probe-{seed}", *CANDIDATES, seed=seed, n=15, method=["text", "loss"]))
    return made


@pytest.fixture(scope="module")
def report(folders: list[Path]) -> dict[str, Any]:
    """The study over all of them."""
    return Study(folders).report()


def pooled(report: dict[str, Any], candidate: str, name: str | None) -> dict[str, Any]:
    [row] = [row for row in report["pooled"] if (row["candidate"], row["dataset"]) == (candidate, name)]
    return dict(row)


def naive(
    values: list[tuple[str, float]], most: float = 100.0, rate: bool = False, least: float = 0.0, strata: bool = False
) -> dict[str, Any]:
    """The mean over (item, value) pairs with its clustered error and its interval, from the definitions."""
    if strata:
        return stratified(values, most, least)
    n = len(values)
    mean = math.fsum(value for _, value in values) / n
    items = sorted({item for item, _ in values})
    sums = [math.fsum(value - mean for item, value in values if item == one) for one in items]
    sizes = [sum(item == one for item, _ in values) for one in items]
    count = len(items)
    error = math.sqrt(count / (count - 1) * math.fsum(one * one for one in sums)) / n
    even = n**2 / sum(size**2 for size in sizes)
    wide = most - least
    low, high = bounded((mean - least) / wide, error / wide, n, count, even, rate)
    told = {"mean": mean, "se": error, "low": least + wide * low, "high": least + wide * high}
    factor = 100 if rate else 1
    return {name: pytest.approx(factor * value, abs=2e-6) for name, value in told.items()} | {"n": n, "items": count}


def stratified(values: list[tuple[str, float]], most: float, least: float) -> dict[str, Any]:
    """The same of items of two datasets, ``other`` and ``science``, each with a mean of its own."""
    parts = [[one for one in values if one[0].startswith("other") == other] for other in (True, False)]
    n, wide, count = len(values), most - least, len({item for item, _ in values})
    mean = math.fsum(value for _, value in values) / n
    error = math.hypot(*(len(part) * naive(part, most, least=least)["se"].expected for part in parts)) / n
    even = n**2 / sum(sum(item == one for item, _ in values) ** 2 for one in {item for item, _ in values})
    low, high = bounded((mean - least) / wide, error / wide, n, count, even, False, 2)
    told = {"mean": mean, "se": error, "low": least + wide * low, "high": least + wide * high}
    return {name: pytest.approx(value, abs=2e-6) for name, value in told.items()} | {"n": n, "items": count}


def bounded(
    mean: float, error: float, n: int, items: int, even: float, rate: bool, strata: int = 1
) -> tuple[float, float]:
    """Wilson's ends as the roots of their equation, 0–1, and what items not met could do, if that is further out."""
    z, student = float(stats.norm.ppf(0.975)), float(stats.t.ppf(0.975, items - strata)) if items > 1 else math.inf
    worth = even
    if 0 < mean < 1 and error:
        stretch = student / (float(stats.t.ppf(0.975, n - 1)) if rate else z)
        worth = max(even, mean * (1 - mean) / (error**2 * (items - 1) / items) / stretch**2)

    def beyond(share: float) -> float:
        return (mean - share) ** 2 - z**2 * share * (1 - share) / worth

    low = optimize.brentq(beyond, 0, mean, xtol=1e-14) if mean else 0.0
    high = optimize.brentq(beyond, mean, 1, xtol=1e-14) if mean < 1 else 1.0
    unmet = z**2 / (even + z**2)
    return min(low, mean * (1 - unmet)), max(high, mean + (1 - mean) * unmet)


def of(folders: list[Path], name: str, candidate: str) -> list[tuple[int, Interview]]:
    runs = [folder for folder in folders if folder.name.startswith(name)]
    return [(seed, talk) for seed, _, talk in talks(*runs) if talk.candidate == candidate]


@pytest.mark.parametrize("candidate", LABELS)
def test_pooled_figures_are_those_of_the_journals(report: dict[str, Any], folders: list[Path], candidate: str) -> None:
    scorer = Scorer("official", early_stop=False)
    for name in ("science", "other", None):
        found = [
            (dataset, talk)
            for dataset in ("science", "other")
            if name in (None, dataset)
            for _, talk in of(folders, dataset, candidate)
        ]
        row = pooled(report, candidate, name)
        assert row["n_observations"] == len(found)
        assert row["n_items"] == len({talk.item for _, talk in found})
        assert row["accuracy"] == naive([(talk.item, float(talk.right)) for _, talk in found], 1.0, rate=True)
        assert row["rounds"] == naive([(talk.item, float(len(talk.rounds))) for _, talk in found], 5.0)
        for index, aspect in enumerate(ASPECTS):
            scores = [(talk.item, score) for _, talk in found if (score := scorer.score(talk, index)) is not None]
            told = row["score"] if aspect == "overall" else row["aspects"][aspect]
            assert told == naive(scores), (name, aspect)


def test_a_cell_says_what_its_run_says(report: dict[str, Any], folders: list[Path]) -> None:
    assert [cell["name"] for cell in report["cells"][:3]] == [f"science-1#{label}" for label in LABELS]
    for folder in folders:
        own = recorded_results(RunFolder.open(folder)).report()["candidates"]
        for cell in report["cells"]:
            if cell["name"].startswith(f"{folder.name}#"):
                assert cell["result"] == own[cell["candidate"]]
                assert (cell["state"], cell["ended"]) == ("done", cell["planned"])


def test_rounds_and_running_means(report: dict[str, Any], folders: list[Path]) -> None:
    scorer = Scorer("official", early_stop=False)
    [cell] = [cell for cell in report["cells"] if cell["name"] == "science-2#mid"]
    held = [talk for seed, talk in of(folders, "science", "mid") if seed == 2]
    for number, told in enumerate(cell["by_round"]):
        values = [
            score
            for talk in held
            if len(talk.rounds) > number and (marks := talk.rounds[number].scores) is not None
            for score in [scorer.combine([marks[5]])]
            if score is not None
        ]
        assert told["held"] == sum(len(talk.rounds) > number for talk in held)
        assert told["share_held"] == pytest.approx(told["held"] / len(held))
        assert told["mean"] == pytest.approx(math.fsum(values) / len(values), abs=1e-6)
    scores = [score for talk in held if (score := scorer.score(talk)) is not None]
    running = cell["running"]
    assert running["n"] == list(range(1, len(scores) + 1))
    for n in (2, len(scores)):
        mean, error = float(stats.tmean(scores[:n])), float(stats.sem(scores[:n]))
        low, high = bounded(mean / 100, error / 100, n, n, n, rate=False)
        found = [running[name][n - 1] for name in ("mean", "low", "high")]
        assert found == pytest.approx([mean, 100 * low, 100 * high], abs=2e-6)
    assert 0 <= running["low"][0] < running["mean"][0] <= running["high"][0] <= 100


def test_examples_are_the_lowest_median_and_highest(report: dict[str, Any], folders: list[Path]) -> None:
    scorer = Scorer("official", early_stop=False)
    for cell in report["cells"]:
        if cell["scenario"] != "kieval":
            continue
        [folder] = [folder for folder in folders if folder.name == cell["transcripts"]["folder"]]
        found = {
            one.key: scorer.score(Interview.from_record(one.result))
            for one in records(folder)
            if one.key.startswith(f"{cell['candidate']}/")
        }
        scores = [found[key] for key in cell["transcripts"]["examples"]]
        ordered = sorted(score for score in found.values() if score is not None)
        assert scores == [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]]


def test_comparisons_are_paired_by_item_and_seed(report: dict[str, Any], folders: list[Path]) -> None:
    scorer = Scorer("official", early_stop=False)
    asked = [(name, pair) for name in ("science", "other", None) for pair in ((0, 1), (0, 2), (1, 2))]
    assert [(one["dataset"], one["first"], one["second"]) for one in report["comparisons"]] == [
        (name, LABELS[first], LABELS[second]) for name, (first, second) in asked
    ]
    for one in report["comparisons"]:
        sides = []
        for candidate in (one["first"], one["second"]):
            names = ("science", "other") if one["dataset"] is None else (one["dataset"],)
            sides.append({(seed, t.item): scorer.score(t) for n in names for seed, t in of(folders, n, candidate)})
        first, second = sides
        pairs = [(key[1], first[key] - second[key]) for key in first.keys() & second.keys()]  # type: ignore[operator]
        expected = naive(pairs, least=-100.0, strata=one["dataset"] is None)
        assert one["difference"]["value"] == expected["mean"]
        assert (one["difference"]["low"], one["difference"]["high"]) == (expected["low"], expected["high"])
        assert (one["n"], one["pairs"]) == (expected["items"], len(pairs))
        assert one["won"] + one["tied"] + one["lost"] == one["n"]
        assert one["p"] <= one["p_corrected"] <= 3 * one["p"] * (1 + 1e-5)


def test_hard_items_come_first(report: dict[str, Any], folders: list[Path]) -> None:
    scorer = Scorer("official", early_stop=False)
    for name in ("science", "other"):
        found = [one for one in report["difficulty"] if one["dataset"] == name]
        assert len(found) == min(20, found[0]["of"])
        by_candidate: dict[str, dict[str, list[float]]] = {label: {} for label in LABELS}
        for label in LABELS:
            for _, talk in of(folders, name, label):
                by_candidate[label].setdefault(talk.item, []).append(scorer.score(talk) or 0.0)
        for one in found:
            means = [math.fsum(held) / len(held) for s in by_candidate.values() if (held := s.get(one["item"]))]
            assert one["mean"] == pytest.approx(math.fsum(means) / len(means), abs=1e-6)
        assert [one["mean"] for one in found] == sorted(one["mean"] for one in found)


def test_probes_join_by_item(report: dict[str, Any], folders: list[Path]) -> None:
    scorer = Scorer("official", early_stop=False)
    runs = [folder for folder in folders if folder.name.startswith("probe")]
    for candidate in LABELS:
        results = [
            one.result
            for run in runs
            for one in records(run)
            if not one.failed and one.result["candidate"] == candidate
        ]
        probe = pooled(report, candidate, "science")["probe"]
        right = [(one["item"], float(one["text"]["right"])) for one in results]
        assert probe["accuracy"]["text"] == naive(right, 1.0, rate=True)
        shares: dict[str, list[float]] = {}
        for item, value in right:
            shares.setdefault(item, []).append(value)
        held = [(t.item, s) for _, t in of(folders, "science", candidate) if (s := scorer.score(t)) is not None]
        assert probe["joined"]["n"] == len({item for item, _ in held} & shares.keys())
        for side in ("right", "wrong"):
            wanted = [
                score
                for item, score in held
                if item in shares and (math.fsum(shares[item]) / len(shares[item]) > 0.5) == (side == "right")
            ]
            assert probe["joined"][side]["n"] == len(wanted)
            if wanted:
                assert probe["joined"][side]["mean"] == pytest.approx(math.fsum(wanted) / len(wanted), abs=1e-6)
    assert report["correlations"]["accuracy"] == "first answer", "on the other dataset nobody was probed"
    alone = Study([folder for folder in folders if not folder.name.startswith("other")]).report()
    assert alone["correlations"]["accuracy"] == "text"
    figures = {one["model"]: one["accuracy"] for one in alone["correlations"]["figures"]}
    assert figures == {label: pooled(alone, label, "science")["probe"]["accuracy"]["text"]["mean"] for label in LABELS}


def test_correlations_are_those_of_the_pooled_figures(report: dict[str, Any]) -> None:
    told = report["correlations"]
    for name in ("science", "other"):
        rows = [pooled(report, label, name) for label in LABELS]
        xs = [(row["probe"]["accuracy"]["text"] if name == "science" else row["accuracy"])["mean"] for row in rows]
        ys = [row["score"]["mean"] for row in rows]
        found = stats.pearsonr(xs, ys)
        assert told["datasets"][name]["pearson"]["value"] == pytest.approx(float(found.statistic), abs=1e-6)
        assert told["datasets"][name]["pearson"]["p"] == pytest.approx(float(found.pvalue), rel=1e-4)
    assert told["overall"]["n"] == 6


def test_the_ablation_scores_the_same_verdicts_anew(report: dict[str, Any], folders: list[Path]) -> None:
    assert [(one["decay"], one["early_stop"]) for one in report["ablation"]] == [
        (True, True),
        (False, True),
        (True, False),
        (False, False),
    ]
    for one in report["ablation"]:
        scorer = Scorer("official", one["decay"], one["early_stop"])
        for candidate in LABELS:
            found = [(t.item, scorer.score(t)) for n in ("science", "other") for _, t in of(folders, n, candidate)]
            scores = [(item, score) for item, score in found if score is not None]
            assert one["candidates"][candidate] == naive(scores)


def test_costs_are_means_over_models(report: dict[str, Any], folders: list[Path]) -> None:
    used = [
        talk.usage["evaluator"] for name in ("science", "other") for c in LABELS for _, talk in of(folders, name, c)
    ]
    told = report["costs"]
    for index, name in enumerate(("calls", "prompt_tokens", "completion_tokens")):
        mean = sum(one[index] for one in used) / 3
        assert told["overall"]["evaluator"][name] == pytest.approx(mean, abs=1e-5)
        for one in told["projected"]:
            assert one["roles"]["evaluator"][name] == pytest.approx(one["models"] * mean, abs=1e-4)


def test_agreement_over_seeds_is_that_of_the_rounds(report: dict[str, Any], folders: list[Path]) -> None:
    from sklearn.metrics import cohen_kappa_score

    [told] = [one for one in report["agreement"] if (one["dataset"], one["candidate"]) == ("other", None)]
    assert (told["over"], told["raters"]) == ("seeds", ["1", "2"])
    verdicts: dict[tuple[str, str, int], dict[int, int]] = {}
    for candidate in LABELS:
        for seed, talk in of(folders, "other", candidate):
            for number, held in enumerate(talk.rounds):
                if held.scores is not None:
                    verdicts.setdefault((candidate, talk.item, number), {})[seed] = held.scores[5]
    pairs = [(one[1], one[2]) for one in verdicts.values() if len(one) == 2]
    first, second = zip(*pairs, strict=True)
    assert told["n"] == len(pairs)
    assert told["kappa"] == pytest.approx(float(cohen_kappa_score(first, second)), abs=1e-6)
    quadratic = float(cohen_kappa_score(first, second, weights="quadratic", labels=[1, 2, 3, 4]))
    assert told["kappa_quadratic"] == pytest.approx(quadratic, abs=1e-6)


def test_order_and_company_leave_no_trace(tmp_path: Path, folders: list[Path]) -> None:
    expected = orjson.dumps(Study(folders).report())
    for seed in (1, 2):
        copies = [rewritten(one, tmp_path / str(seed) / one.name, seed) for one in folders]
        assert orjson.dumps(Study(copies).report()) == expected
    alone = interviewed(tmp_path / "a" / "run", *CANDIDATES, n=8, concurrency=1)
    together = interviewed(tmp_path / "b" / "run", *CANDIDATES, n=8, concurrency=24)
    reports = [Study([one]).report() for one in (alone, together)]
    assert orjson.dumps(reports[0]) == orjson.dumps(reports[1])
    assert str(tmp_path) not in orjson.dumps(reports[0]["cells"]).decode()


def test_the_same_folder_counts_once(folders: list[Path]) -> None:
    assert Study([folders[0], folders[0]]).report()["cells"] == Study([folders[0]]).report()["cells"]


def test_scorers_have_to_agree_or_be_named(tmp_path: Path) -> None:
    one = interviewed(tmp_path / "official", CANDIDATES[0], n=4)
    other = interviewed(tmp_path / "linear", CANDIDATES[1], n=4, scorer="linear", early_stop=False)
    with pytest.raises(ConfigurationError, match=r"official, linear.*--scorer"):
        Study([one, other])
    with pytest.raises(ConfigurationError, match="generous"):
        Study([one], "generous")
    study = Study([one, other], "corrected")
    assert study.scorings["kieval"] == Scorer("corrected", decay=True, early_stop=True), (
        "talks that went on are cut at their flags"
    )
    [cut] = [cell for cell in study.report()["cells"] if cell["name"] == "linear"]
    own = recorded_results(RunFolder.open(other), {"scorer": "corrected", "early_stop": True}).report()
    assert cut["result"] == own["candidates"]["mid"]
