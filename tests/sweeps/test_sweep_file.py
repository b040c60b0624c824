"""A sweep's file: what it may say, where its paths begin, which cells follow, and what is said of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_sweeps import INTERVIEWS, refused, swept, write_file
from viva_process import ended, started

from viva.engine.errors import ConfigurationError
from viva.sweeps.sweep import open_sweep, reopen_sweep


def _names(file: Path) -> list[str]:
    return [run.cell.name for run in open_sweep(file, file.parent / "out").runs]


def test_a_cell_is_one_candidate_dataset_seed_and_evaluator(tmp_path: Path) -> None:
    file = write_file(
        tmp_path,
        names=("alpha", "beta"),
        seeds=[1, 2],
        evaluators=["simulated:e", "simulated:f"],
        interviews={"interactor": "simulated:i"},
        probes={"shots": 0},
    )
    names = _names(file)
    assert len(names) == len(set(names)) == 2 * 2 * 2 * (2 + 1)
    assert names[0] == "cells/probe/alpha/seed-1/a"
    assert "cells/kieval/beta/seed-2/f/b" in names


def test_paths_begin_at_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    write_file(tmp_path / "grid", interviews={**INTERVIEWS, "ids": "ids.txt"})
    (tmp_path / "grid" / "ids.txt").write_text("alpha-1\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings: Any = open_sweep(Path("../grid/grid.yaml"), None).runs[0].cell.settings
    assert settings.dataset == str(tmp_path / "grid" / "alpha.jsonl")
    assert settings.ids == str(tmp_path / "grid" / "ids.txt")
    assert Path.cwd() == tmp_path / "elsewhere"


def test_a_dataset_may_have_settings_of_its_own(tmp_path: Path) -> None:
    own = {"dataset": "beta.jsonl", "n": 2, "against": "alpha.jsonl"}
    file = write_file(
        tmp_path, names=("alpha", "beta"), datasets=["alpha.jsonl", own], probes={"method": ["loss"], "n": 3}
    )
    by_name: dict[str, Any] = {run.cell.name: run.cell.settings for run in open_sweep(file, None).runs}
    assert by_name["cells/probe/alpha/seed-7/a"].n == 3
    assert by_name["cells/probe/beta/seed-7/a"].n == 2
    assert by_name["cells/probe/beta/seed-7/a"].against == str(tmp_path / "alpha.jsonl")
    assert by_name["cells/kieval/beta/seed-7/e/a"].n == 2
    assert by_name["cells/kieval/alpha/seed-7/e/a"].n is None


def test_names_of_cells_are_readable_collide_with_none_and_depend_on_no_other_cell(tmp_path: Path) -> None:
    odd = ["simulated:m/x", "simulated:m x", "simulated:m_x", "simulated:..", "simulated:é", "simulated:" + "long" * 50]
    names = [name.rpartition("/")[2] for name in _names(write_file(tmp_path, candidates=odd))]
    assert names[2] == "m_x"
    assert all(name.startswith("m_x-") for name in names[:2])
    assert len(set(names)) == len(odd)
    assert all(name.isascii() and len(name) < 90 and not name.startswith(".") for name in names)
    assert [name.rpartition("/")[2] for name in _names(write_file(tmp_path, candidates=odd[:2]))] == names[:2]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"candidate": ["simulated:a"]}, "candidate: unknown setting"),
    "no candidates": ({"candidates": None}, "candidates is missing"),
    "empty candidates": ({"candidates": []}, "candidates: List should have at least 1 item"),
    "a name without kind": ({"candidates": ["gpt"]}, "candidates: model 'gpt': expected kind:where"),
    "labels alike": ({"candidates": ["simulated:a", "simulated:a?noise=0"]}, "two models have the label 'a'"),
    "evaluators alike": (
        {"evaluators": ["simulated:e", "simulated:e"], "interviews": {"interactor": "simulated:i"}},
        "two models have the label 'e'",
    ),
    "dataset twice": ({"datasets": ["alpha.jsonl", "./alpha.jsonl"]}, "alpha.jsonl is listed twice"),
    "seed twice": ({"seeds": [1, 2, 1]}, "seeds: 1 is listed twice"),
    "no whole seed": ({"seeds": ["one"]}, "seeds.0: Input should be a valid integer"),
    "nothing to do": ({"interviews": None}, " nor interviews"),
    "no evaluator": ({"interviews": {"interactor": "simulated:i"}}, "interviews.evaluator is missing"),
    "two places for it": ({"evaluators": ["simulated:f"]}, "remove one of the two"),
    "evaluator without kind": ({"interviews": {**INTERVIEWS, "evaluator": "e"}}, "interviews.evaluator: model 'e'"),
    "no interactor": ({"interviews": {"evaluator": "simulated:e"}}, "interviews.interactor is missing"),
    "evaluators of probes": (
        {"interviews": None, "probes": {"shots": 0}, "evaluators": ["simulated:e"]},
        "interviews and gradings, and the sweep",
    ),
    "until of probes": ({"interviews": None, "probes": {"shots": 0}, "until": "decided"}, "until: applies only to"),
    "seed in interviews": ({"interviews": {**INTERVIEWS, "seed": 1}}, "interviews.seed: is set by the sweep's own"),
    "unknown setting": ({"interviews": {**INTERVIEWS, "round": 3}}, "interviews.round: unknown setting"),
    "value out of range": ({"interviews": {**INTERVIEWS, "rounds": 0}}, "interviews.rounds: Input should be greater"),
    "own setting unknown": (
        {"datasets": [{"dataset": "alpha.jsonl", "shots": 3}]},
        "datasets.0.shots: not a setting of interviews",
    ),
    "own seed": ({"datasets": [{"dataset": "alpha.jsonl", "seed": 3}]}, "datasets.0.seed: cannot differ"),
    "own value wrong": ({"datasets": [{"dataset": "alpha.jsonl", "n": 0}]}, "datasets.0.n: Input should be greater"),
    "dataset without name": ({"datasets": [{"n": 3}]}, "datasets.0.dataset is missing"),
    "unknown rule": ({"until": {"width": 2}}, "until.width: no such field"),
    "nothing to decide": (
        {"candidates": ["simulated:a"], "until": "decided"},
        "until: decided needs at least two candidates",
    ),
    "concurrency": ({"concurrency": 0}, "concurrency: Input should be greater"),
    "line 14: one seed or three": (
        {"seeds": 3},
        "seeds: found 3, expected a list: for the one seed 3 write `seeds: [3]`; for 3 seeds, [1, 2, 3]",
    ),
    "line 14: seeds as text": ({"seeds": "1, 2"}, "seeds: found '1, 2', expected a list"),
    "line 14: a switch for a seed": ({"seeds": [True]}, "seeds.0: Input should be a valid integer"),
    "line 14: a seed in quotes": ({"seeds": ["3"]}, "seeds.0: Input should be a valid integer"),
    "line 14: two candidates in one text": (
        {"candidates": "simulated:a, simulated:b"},
        "candidates: found 'simulated:a, simulated:b', expected a list",
    ),
    "line 14: one dataset": ({"datasets": "alpha.jsonl"}, "datasets: found 'alpha.jsonl', expected a list"),
    "line 14: a mapping of datasets": ({"datasets": {"alpha.jsonl": {"n": 2}}}, "datasets: found a mapping of "),
    "line 14: one evaluator": (
        {"evaluators": "simulated:e", "interviews": {"interactor": "simulated:i"}},
        "evaluators: found 'simulated:e', expected a list",
    ),
    "line 14: text for a mapping": ({"interviews": "simulated:i"}, "interviews: Input should be a valid dictionary"),
    "line 14: text for probes": ({"probes": "loss"}, "probes: Input should be a valid dictionary"),
    "line 14: one detector": (
        {"interviews": {**INTERVIEWS, "detectors": "empty"}},
        "interviews.detectors: Input should be a valid list",
    ),
    "line 14: a switch for a number": (
        {"interviews": {**INTERVIEWS, "rounds": True}},
        "interviews.rounds: found True, expected a number",
    ),
    "line 14: a switch for all": ({"concurrency": True}, "concurrency: Input should be a valid integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_by_name_field_and_finding(tmp_path: Path, name: str) -> None:
    said, expected = WRONG[name]
    file = write_file(tmp_path, **said)
    message = refused(file)
    assert message.startswith(f"{file}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "found nothing"), ("- a\n", "found list"), ("a: [", "cannot be read"), ("\x00", "cannot be read")],
)
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    assert expected in refused(file)


def test_datasets_of_one_name_are_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "one" / "arc")
    write_file(tmp_path / "two" / "arc")
    file = tmp_path / "grid.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "candidates": ["simulated:a"],
                "datasets": [f"{one}/arc/alpha.jsonl" for one in ("one", "two")],
                "probes": {},
            }
        )
    )
    assert "both have the name 'alpha'" in refused(file)


@pytest.mark.parametrize("field", ["probes", "interviews", "until", "seeds", "candidates"])
def test_line_14_a_field_with_nothing_behind_it_is_refused(tmp_path: Path, field: str) -> None:
    file = write_file(tmp_path, **({"probes": {}} if field == "interviews" else {}))
    said = yaml.safe_load(file.read_text()) | {field: None}
    file.write_text(yaml.safe_dump(said))
    assert f"{file}: {field}: is empty; write a value or leave it out" in refused(file)


def test_line_14_an_older_sweep_of_one_seed_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    swept(write_file(tmp_path, seeds=[3]), out)
    record = json.loads((out / "sweep.json").read_text())
    record["file"] |= {"seeds": 3, "candidates": record["file"]["candidates"], "until": None}
    (out / "sweep.json").write_text(json.dumps(record))
    assert [run.cell.seed for run in reopen_sweep(out).runs] == [3, 3]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"candidates": ["openai:HTTP://me:SECRET@127.0.0.1:9/v1#m"]}, "candidates.0"),
        ({"candidates": ["openai:http://me:SECRET%40127.0.0.1:9/v1#m"]}, "candidates.0"),
        (
            {"interviews": {**INTERVIEWS, "interactor": "openai:http://u:SECRET@127.0.0.1:9/v1"}},
            "interviews.interactor",
        ),
        ({"interviews": {**INTERVIEWS, "evaluator": "openai:http://h/v1#e?api_key=SECRET"}}, "interviews.evaluator"),
        (
            {"datasets": [{"dataset": "alpha.jsonl", "interactor": "openai:http://u:SECRET@127.0.0.1:9/v1"}]},
            "datasets.0.interactor",
        ),
    ],
)
def test_line_18_a_sweep_never_writes_a_credential(tmp_path: Path, said: dict[str, Any], field: str) -> None:
    file = write_file(tmp_path, **said)
    code, out, err = ended(started("sweep", file, "--out", tmp_path / "out"))
    assert code == 2
    assert f"{file}: {field}: " in err
    assert "SECRET" not in out.decode() + err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bound", ["max_cost", "conversation_cost"])
def test_line_11_a_bound_of_money_without_prices_is_refused_with_the_file(tmp_path: Path, bound: str) -> None:
    far = "openai:http://127.0.0.1:9/v1#far"
    file = write_file(tmp_path, candidates=["simulated:a", far], interviews=INTERVIEWS | {bound: 1.0})
    with pytest.raises(ConfigurationError, match=rf"interviews: {bound}: the price of .*#far is unknown") as caught:
        open_sweep(file, tmp_path / "out")
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("many", [False, True])
def test_line_18_a_key_in_a_model_that_is_written_as_a_mapping_is_not_repeated(tmp_path: Path, many: bool) -> None:
    model = {"model": "openai:gpt-4o", "api_key": "sk-hidden-0123456789"}
    file = write_file(tmp_path, candidates=[model] if many else model)
    with pytest.raises(ConfigurationError, match=r"candidates.*found a mapping of api_key, model") as caught:
        open_sweep(file, tmp_path / "out")
    assert "sk-hidden" not in str(caught.value)
    settings = tmp_path / "settings.yaml"
    settings.write_text(yaml.safe_dump({"candidate": [model] if many else model}))
    code, _, said = ended(started("run", "kieval", "--dataset", "x.jsonl", "--config", settings))
    assert code == 2
    assert "found a mapping of api_key, model" in said
    assert "sk-hidden" not in said


def test_every_cell_gets_the_durability_of_the_sweep_and_a_repetition_may_change_it(tmp_path: Path) -> None:
    for durability in ("power", "commit"):
        file = write_file(tmp_path, items=2, durability=durability)
        [*cells] = open_sweep(file, tmp_path / "out").runs
        assert {run.cell.settings.durability for run in cells} == {durability}
        swept(file, tmp_path / "out")
    file = write_file(tmp_path, durability="disk")
    with pytest.raises(ConfigurationError, match=r"durability: .*'commit' or 'power', found 'disk'"):
        open_sweep(file, tmp_path / "out")
