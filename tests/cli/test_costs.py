"""What nobody has named a price of: its cost is unknown, which is not zero, and no bound of money can be kept."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from viva_process import ended, started

sys.path.insert(0, str(Path(__file__).parents[1] / "servers"))
import process

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
SMALL = ["-n", "1", "--rounds", "1"]


@pytest.fixture(scope="module")
def server() -> Iterator[process.Server]:
    with process.running({}) as running:
        yield running


@pytest.fixture(scope="module")
def run(server: process.Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a candidate without a price, an interactor with one, and a simulated evaluator."""
    out = tmp_path_factory.mktemp("costs") / "run"
    models = ["--candidate", server.model("c"), "--interactor", server.model("i", price_in=1000, price_out=1000)]
    code, _, said = ended(
        started("run", "kieval", "--dataset", ITEMS, *SMALL, *models, "--evaluator", "simulated:e", "--out", out)
    )
    assert code == 0, said
    return out


@pytest.mark.parametrize("bound", ["--max-cost", "--conversation-cost"])
def test_line_11_a_bound_of_money_names_the_models_without_a_price(tmp_path: Path, bound: str) -> None:
    url = "openai:http://127.0.0.1:9/v1"
    models = [
        "--candidate",
        f"{url}#c",
        "--interactor",
        f"{url}#i?price_in=1&price_out=2",
        "--evaluator",
        "simulated:e",
    ]
    code, printed, said = ended(
        started("run", "kieval", "--dataset", ITEMS, *models, bound, "5", "--out", tmp_path / "run")
    )
    assert (code, printed) == (2, b"")
    assert said == (
        f"viva: error: {bound}: the price of {url}#c is unknown; give price_in= and price_out= "
        "(per million tokens) in the model's name, 0 if it costs nothing\n"
    )
    assert not (tmp_path / "run").exists()


def test_line_11_a_resume_with_a_bound_of_money_is_refused_likewise(run: Path) -> None:
    code, _, said = ended(started("resume", run, "--max-cost", "5"))
    assert code == 2
    assert "--max-cost: the price of openai:" in said


def test_line_11_what_costs_nothing_needs_no_price(tmp_path: Path) -> None:
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i?price_in=1", "--evaluator", "simulated:e"]
    code, _, said = ended(
        started("run", "kieval", "--dataset", ITEMS, *SMALL, *models, "--max-cost", "5", "--out", tmp_path / "run")
    )
    assert code == 0, said


def test_line_11_an_unknown_cost_is_a_dash_in_tables_and_null_in_json(run: Path, tmp_path: Path) -> None:
    table = ended(started("report", run))[1].decode().split("Tokens and cost by role")[1]
    costs = {line.split()[1]: line.split()[-1] for line in table.splitlines() if line.startswith("  c ")}
    assert (costs["candidate"], costs["evaluator"]) == ("–", "0.00")
    assert float(costs["interactor"]) > 0
    used = orjson.loads(ended(started("report", run, "--json"))[1])["candidates"]["c"]["usage"]
    assert (used["candidate"]["cost"], used["evaluator"]["cost"]) == (None, 0)
    study = ended(started("report", run, "--markdown", "--csv", tmp_path / "a.csv"))[1].decode()
    [line] = [line for line in study.splitlines() if line.startswith("| science | candidate |")]
    assert line.endswith("| – |")
    [projected] = [line.split("|") for line in study.splitlines() if line.startswith("| 100 |")]
    assert [projected[4].strip(), projected[7].strip()] == ["–", "–"], "of the candidate, and so of all"
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert "usage.interactor.cost" in {row["measure"] for row in rows}
    assert "usage.candidate.cost" not in {row["measure"] for row in rows}
