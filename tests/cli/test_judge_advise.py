"""``viva judge advise`` as a user types it: the answer first, labels to add and back, prices, mistakes told."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_tables import case_table
from command import viva
from pair_outputs import judgebench_votes
from vote_worlds import exchangeable_errors


def _votes(path: Path, rates: list[float], items: int, labelled: int, seed: int = 1) -> Path:
    """A file of votes of independent judges a, b, c …; the first items are labelled."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, 2, items)
    wrong = draw.random((items, len(rates))) < rates
    rows = ["item,human," + ",".join(f"judge_{'abcdef'[at]}" for at in range(len(rates)))]
    for at in range(items):
        words = ["pass" if (truth[at] + error) % 2 else "fail" for error in wrong[at]]
        label = ("pass" if truth[at] else "fail") if at < labelled else ""
        rows.append(f"i{at},{label},{','.join(words)}")
    path.write_text("\n".join(rows) + "\n")
    return path


def _record(*arguments: str | Path) -> dict[str, Any]:
    done = viva("judge", "advise", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_the_answer_comes_first_and_the_record_supports_it(tmp_path: Path) -> None:
    votes = _votes(tmp_path / "votes.csv", [0.22, 0.25, 0.25, 0.5], 300, 300)
    done = viva("judge", "advise", votes, "--html", tmp_path / "advice.html")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split("\n\n")[0].split())
    assert text.startswith("Add judge_b, judge_c next: their majority with judge_a is ")
    assert "out of fold" in text
    assert "The votes of 4 judges are worth " in text
    assert "Right votes" in done.stdout
    assert "Shared errors" in done.stdout
    assert "judge_b, judge_c" in (tmp_path / "advice.html").read_text()
    record = _record(votes)
    assert record["answer"][0].startswith("Add judge_b, judge_c next")
    assert record["panel"] == ["judge_a", "judge_b", "judge_c"]
    assert record["gain"]["low"] > 0
    assert record["votes"]["effective"]["low"] > 2.5  # nothing is shared
    assert (record["labelled"], record["items"], record["costs"]["unit"]) == (300, 300, "votes")
    present = _record(votes, "--panel", "judge_a", "--panel", "judge_d")
    assert present["base"] == ["judge_a"]
    assert present["answer"][1].startswith("judge_a alone is right on more of the labelled items than the present")


def test_labels_are_drawn_filled_in_and_read_back(tmp_path: Path) -> None:
    votes = _votes(tmp_path / "votes.csv", [0.25, 0.28, 0.28], 600, 40, seed=5)
    first = _record(votes, "--out", tmp_path / "next.csv")
    assert first["action"] == "label"
    assert first["answer"][0].startswith(f"Label {first['labels']['items']} contested items first: too few to tell")
    with (tmp_path / "next.csv").open(newline="") as lines:
        drawn = list(csv.DictReader(lines))
    assert len(drawn) == min(first["labels"]["items"], first["labels"]["available"])
    by_item = {row["item"]: row for row in csv.DictReader(votes.read_text().splitlines())}
    for row in drawn:
        found = by_item[row["item"]]
        assert (row["label"], found["human"]) == ("", "")
        assert len({found[f"judge_{name}"] for name in "abc"}) > 1, "only contested items are worth a label"
    # The labels of a person who knows the truth: two of three judges are right on most contested items.
    rows = [f"{row['item']},{by_item[row['item']]['judge_a']}" for row in drawn]
    (tmp_path / "people.csv").write_text("\n".join(["item,label", *rows]) + "\n")
    cells = [line.split(",") for line in votes.read_text().splitlines()]
    unlabelled = "\n".join(",".join([row[0], *row[2:]]) for row in cells)
    (tmp_path / "unlabelled.csv").write_text(unlabelled + "\n")
    second = _record(tmp_path / "unlabelled.csv", "--ratings", tmp_path / "people.csv")
    assert second["labelled"] == len(rows)
    assert second["items"] == 600
    assert second["votes"] is None, "accuracies of contested items alone are not those of all items"
    assert any("contested items are labelled more often" in note for note in second["notes"])
    assert second["base"] == ["judge_a"]
    again = viva("judge", "advise", votes, "--out", tmp_path / "next.csv")
    assert again.returncode == 2
    assert "it exists and may hold labels" in again.stderr


def test_with_prices_right_votes_are_counted_per_dollar(tmp_path: Path) -> None:
    votes = _votes(tmp_path / "votes.csv", [0.2, 0.25, 0.25, 0.25, 0.25], 500, 500, seed=4)
    prices = [text for name, usd in zip("abcde", (0.01, 0.05, 0.05, 0.001, 0.001), strict=True)
              for text in ("--price", f"judge_{name}={usd}")]  # fmt: skip
    record = _record(votes, *prices, "--panel", "judge_a")
    assert record["added"] == ["judge_d", "judge_e"]
    [best, *others] = record["additions"]
    assert best["cost"] == 0.002
    assert best["right_votes_per_cost"] == pytest.approx(best["gain"] / 0.002, rel=1e-3)
    assert record["costs"]["unit"] == "USD"
    assert all((other["right_votes_per_cost"] or 0) <= best["right_votes_per_cost"] for other in others)
    partly = _record(votes, *prices[:2], "--label-price", "0.5")
    assert partly["costs"]["unit"] == "votes"
    assert any("prices are unknown for judge_b" in note for note in partly["notes"])


def test_several_published_outputs_are_compared_and_advised(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    labels = draw.integers(0, 2, 240).tolist()
    errors = exchangeable_errors(draw, 240, 3, 0.25, 0.0)
    files = [
        judgebench_votes(tmp_path / f"{at}.jsonl", f"judge-{at}", labels, errors[:, at].tolist()) for at in range(3)
    ]
    compared = viva("judge", "compare", *files)
    assert compared.returncode == 0, compared.stderr
    text = " ".join(compared.stdout.split("\n\n")[0].split())
    share = 100 * (1 - errors[:, 0].mean())
    assert f"judge-0 is right in both orders on {share:.1f}%" in text
    assert "The votes of 3 judges are worth" in text
    assert "Pairs by category" in compared.stdout
    record = _record(*files)
    assert record["items"] == 240
    assert record["action"] == "add"
    as_json = json.loads(viva("judge", "compare", *files, "--json").stdout)
    assert as_json["votes"]["best"] == record["votes"]["best"]


def test_a_run_of_judges_on_pairs_has_its_figures_and_its_prices(tmp_path: Path) -> None:
    models = ["first?traits=position:1&noise=0&price_in=10&price_out=10", "fair?noise=0&price_in=1&price_out=1"]
    models += ["third?noise=0.1&price_in=1&price_out=1"]
    judges = [word for model in models for word in ("--judge", f"simulated:{model}")]
    run = viva("judge", "audit", *judges, "--audit", "position", "--out", tmp_path / "run", "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["pairs"]["first"]["strict"]["value"] == 0.0  # always the answer shown first
    assert report["pairs"]["first"]["accuracy"]["value"] == 0.5
    assert report["pairs"]["fair"]["strict"]["value"] == 1.0
    compared = json.loads(viva("judge", "compare", tmp_path / "run", "--json").stdout)
    assert compared["pairs"] == report["pairs"]
    record = _record(tmp_path / "run", "--panel", "fair")
    assert record["action"] in ("keep", "label")
    assert record["panel"] == ["fair"]
    usage = {label: entry["usage"]["judge"] for label, entry in report["candidates"].items()}
    assert record["costs"]["unit"] == "USD"
    per_pair = 2 * usage["fair"]["cost"] / usage["fair"]["calls"]
    assert record["costs"]["judges"]["fair"] == pytest.approx(per_pair, rel=1e-3)
    assert record["costs"]["judges"]["first"] == pytest.approx(10 * per_pair, rel=0.2)


@case_table(
    "arguments, message",
    [
        (["--panel", "judge_x"], "--panel: no judge 'judge_x'; did you mean"),
        (["--price", "judge_a"], "--price judge_a: expected JUDGE=USD"),
        (["--price", "judge_a=0"], "with a price above 0"),
        (["--price", "nobody=1"], "--price: no judge 'nobody'"),
        (["--criterion", "tone"], "no criterion 'tone'"),
        (["--confidence", "95"], "expected a share between 0 and 1"),
    ],
)
def test_a_mistake_is_told(arguments: list[str], message: str, tmp_path: Path) -> None:
    votes = _votes(tmp_path / "votes.csv", [0.2, 0.3, 0.3], 40, 40)
    done = viva("judge", "advise", votes, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


@case_table(
    "text, message",
    [
        ("item,judge_a,judge_b\n1,x,y\n2,x,x\n3,y,y\n", "no labels by people"),
        ("item,human,judge_a\n1,x,x\n2,y,x\n", "fewer than two judges vote"),
        ("item,human,judge_a,judge_b\n1,x,3,4\n2,y,3,4\n", "fewer than two judges vote"),
        (
            "item,human_tone,human_truth,judge_a,judge_b\n1,1,2,1,2\n2,2,2,1,1\n",
            "choose one with --criterion",
        ),
    ],
)
def test_a_file_without_labels_or_votes_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "votes.csv").write_text(text)
    done = viva("judge", "advise", tmp_path / "votes.csv")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
