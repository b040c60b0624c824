"""Imports: interviews of the authors' program and static answers of lm-evaluation-harness, as runs that verbs read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from other_tools import details, items, write_details, write_samples
from typer.testing import CliRunner

import viva
from viva.cli.main import app
from viva.engine.errors import ConfigurationError, DatasetError
from viva.exchange.exports.formats import export
from viva.exchange.imports import import_file
from viva.reports.studies.study import Study
from viva.scenarios.contract import ImportOptions

# What the authors' own program (get_scores.py) says of the file that ``other_tools`` writes.
_PUBLISHED = {
    "accuracy": 46.29648318661037,
    "logic": 56.29758036689524,
    "relevance": 68.85367536168025,
    "coherence": 76.04841038033285,
    "conciseness": 69.70295798451015,
}
_OVERALL, _COMPLETENESS = 54.513753478107475, 2.75


def _viva(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_interviews_come_out_as_the_authors_have_scored_them(tmp_path: Path) -> None:
    file = write_details(tmp_path / "interactive_x")
    done = import_file(file, "kieval", tmp_path / "run")
    assert done.records == 4
    report = viva.load(tmp_path / "run").report()
    assert report["models"]["candidate"] == {"tower-7b": "imported:tower-7b"}
    assert (report["models"]["evaluator"], report["scorer"]) == ("openai:gpt-4", "official")
    [told] = report["candidates"].values()
    assert told["score"]["mean"] == pytest.approx(_OVERALL, abs=1e-6)
    assert {name: one["mean"] for name, one in told["aspects"].items()} == {
        name: pytest.approx(value, abs=1e-6) for name, value in _PUBLISHED.items()
    }
    assert told["rounds"]["mean"] == _COMPLETENESS
    assert told["stop_reasons"] == {"meaningless_repetition": 1, "off_topic": 1}
    assert told["accuracy"]["mean"] == 50
    rescored = viva.load(tmp_path / "run").report(scorer="linear")["candidates"]["tower-7b"]["score"]["mean"]
    assert rescored != told["score"]["mean"], "its verdicts can be scored in another way"


def test_imported_interviews_are_shown_and_exported_like_any_run(tmp_path: Path) -> None:
    import_file(write_details(tmp_path / "details"), "kieval", tmp_path / "run")
    code, shown = _viva("show", tmp_path / "run", "--conversation", "0")
    assert code == 0
    said = [one["content"] for one in details()[0]["all_messages"]]
    spoken = [text for text in said if not text.startswith("{")]  # verdicts are shown field by field
    assert [shown.find(text[:40]) >= 0 for text in spoken] == [True] * len(spoken)
    assert shown.count("\naccuracy: ") == len(said) - len(spoken) > 0
    code, shown = _viva("show", tmp_path / "run", "--json", "--prompts")
    assert "imported from another tool (kieval)" in orjson.loads(shown.splitlines()[0])["prompts_unknown"]
    [note] = export(tmp_path / "run", "openai", tmp_path / "dialogs.jsonl").notes
    assert note.startswith("4 conversations have no dialog to export: imported from another tool")
    done = export(tmp_path / "run", "every-eval-ever", tmp_path / "out")
    [aggregate] = [orjson.loads(one.read_bytes()) for one in done.files if one.suffix == ".json"]
    results = {one["metric_config"]["metric_name"]: one["score_details"]["score"]
               for one in aggregate["evaluation_results"]}  # fmt: skip
    assert results["score"] == pytest.approx(_OVERALL, abs=1e-6)


def test_items_of_a_benchmark_are_found_by_their_published_ids(tmp_path: Path) -> None:
    file = write_details(tmp_path / "details")
    towers = _towers(tmp_path)
    code, printed = _viva("import", file, "--from", "kieval", "--dataset", towers, "--out", tmp_path / "run", "--model",
                          "candidate=openai:tower", "--json")  # fmt: skip
    assert code == 0, printed
    run = viva.load(tmp_path / "run")
    assert run.manifest["dataset"]["name"] == "towers"
    assert list(run.report()["candidates"]) == ["tower"]
    with pytest.raises(DatasetError, match=r"entry 4: .* is no item of"):
        import_file(file, "kieval", tmp_path / "other", ImportOptions(_towers(tmp_path, 3)))


def test_interviews_on_questions_without_choices_come_in_too(tmp_path: Path) -> None:
    file = write_details(tmp_path / "details")
    entries = json.loads(file.read_text())
    for entry in entries:
        candidate, interactor = entry["role_messages"]["candidate"][1], entry["role_messages"]["interactor"][1]
        asked = candidate["content"].partition("### Choices")[0]
        interactor["content"] = asked + interactor["content"][interactor["content"].index("### Correct Answer") :]
        candidate["content"] = asked
    file.write_text(json.dumps(entries))
    import_file(file, "kieval", tmp_path / "run")
    run = viva.load(tmp_path / "run")
    [told] = run.report()["candidates"].values()
    assert told["score"]["mean"] == pytest.approx(_OVERALL, abs=1e-6)
    assert [one.task.reference for one in run.results()] == [item.labelled_answer() for item in items()]


def test_static_answers_stand_beside_interviews(tmp_path: Path) -> None:
    file = write_samples(tmp_path / "org__tower-7b", items(), [True, False, True, True])
    same = ImportOptions(_towers(tmp_path), {"candidate": "imported:tower-7b"})
    import_file(file, "lm-eval", tmp_path / "static", same)
    import_file(write_details(tmp_path / "details"), "kieval", tmp_path / "talks", same)
    report = viva.load(tmp_path / "static").report()
    told = report["candidates"]["tower-7b"]["accuracy"]
    source = orjson.loads(file.with_name("results_2026-05-01T10-00-00.000001.json").read_bytes())["results"]["towers"]
    assert told["text"]["value"] == 100 * source["acc,none"] == 75
    assert told["text_normalised"]["value"] == 100 * source["acc_norm,none"]
    assert report["shots"] == 5
    code, shown = _viva("show", tmp_path / "static", "--conversation", "1")
    assert (code, "-1.5000" in shown) == (0, True)
    study = Study([tmp_path / "talks", tmp_path / "static"]).report()
    [joined] = study["correlations"]["figures"]
    assert (joined["accuracy"], joined["score"]) == (75, pytest.approx(_OVERALL, abs=1e-6))
    [beside] = [table for table in study["tables"] if "on the same items" in table["title"]]
    assert beside["rows"][0][beside["header"].index("items in both")] == "4"


def _towers(folder: Path, count: int = 4) -> str:
    """The items as a benchmark's file, without ids of their own."""
    lines = [{"question": item.question, "choices": item.choices, "answer": "ABCD"[item.answer]} for item in items()]
    file = folder / "towers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
    return str(file)


def test_probes_come_back_from_the_form_of_lm_eval(tmp_path: Path) -> None:
    science = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
    models = {"candidate": ["simulated:student?knowledge=0.5"]}
    settings: Any = {"dataset": str(science), "n": 8, "shots": 0, "method": ["letter"]}
    viva.run_sync("probe", models=models, out=tmp_path / "probe", **settings)
    [samples] = [one for one in export(tmp_path / "probe", "lm-eval", tmp_path / "out").files if one.suffix == ".jsonl"]
    choices = ImportOptions(dataset=str(science), models={"candidate": models["candidate"][0]})
    import_file(samples, "lm-eval", tmp_path / "back", choices)
    first, second = (viva.load(tmp_path / name).report() for name in ("probe", "back"))
    assert first["dataset"]["name"] == second["dataset"]["name"]
    assert first["candidates"]["student"]["accuracy"] == second["candidates"]["student"]["accuracy"]


@pytest.mark.parametrize("scenario", ["probe", "kieval"])
def test_our_own_export_of_answers_in_words_is_imported(scenario: str, tmp_path: Path) -> None:
    science = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
    models: Any = {"candidate": ["simulated:student?knowledge=0.5"]}
    settings: Any = {"shots": 0, "method": ["generate"]}
    if scenario == "kieval":
        models |= {"interactor": "simulated:i", "evaluator": "simulated:e"}
        settings = {"rounds": 1}
    viva.run_sync(scenario, models=models, out=tmp_path / "run", dataset=str(science), n=6, **settings)
    [samples] = [one for one in export(tmp_path / "run", "lm-eval", tmp_path / "out").files if one.suffix == ".jsonl"]
    import_file(samples, "lm-eval", tmp_path / "back", ImportOptions())
    first, second = (viva.load(tmp_path / name).report()["candidates"]["student"] for name in ("run", "back"))
    told = first["accuracy"]["mean"] if scenario == "kieval" else first["accuracy"]["generate"]["value"]
    assert second["accuracy"]["generate"]["value"] == pytest.approx(told, abs=1e-3)


@pytest.mark.parametrize(("verb", "known"), [("import", "lm-eval"), ("export", "parquet")])
def test_without_a_format_the_formats_are_listed(verb: str, known: str) -> None:
    code, printed = _viva(verb, "some-file")
    assert code == 2
    assert f"\n  {known}" in printed


def _without_right(line: dict[str, Any]) -> None:
    del line["acc"]


def _contradicts(line: dict[str, Any]) -> None:
    line["acc"] = 1 - line["acc"]


def _no_number(line: dict[str, Any]) -> None:
    line["filtered_resps"][2] = ["likely", "False"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(_without_right, "field 'acc': is missing"), (_contradicts, "field 'acc': says"),
     (_no_number, r"field 'filtered_resps\[2\]': expected a log-probability")],
)  # fmt: skip
def test_a_wrong_line_of_samples_is_named(spoil: Callable[[dict[str, Any]], None], said: str, tmp_path: Path) -> None:
    file = write_samples(tmp_path / "model", items(), [True, True, False, True])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    spoil(lines[2])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DatasetError, match=rf"jsonl:3: {said}"):
        import_file(file, "lm-eval", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_broken_files_are_refused_with_their_line(tmp_path: Path) -> None:
    file = write_samples(tmp_path / "model", items(), [True, True, False, True])
    file.write_text(file.read_text()[:-40])
    with pytest.raises(DatasetError, match=r"jsonl:4: not valid JSON .*the file ends in the middle of this line"):
        import_file(file, "lm-eval", tmp_path / "run")
    whole = write_details(tmp_path / "details")
    text = whole.read_text()
    whole.write_text(text[: text.index("overall_score") + 5])
    with pytest.raises(DatasetError, match=r"interact_details\.json:\d+: not valid JSON"):
        import_file(whole, "kieval", tmp_path / "run")
    entries = details()
    entries[1]["all_messages"][0]["role"] = "judge"
    whole.write_text(json.dumps(entries))
    with pytest.raises(DatasetError, match=r"entry 2: expected a message of the interactor"):
        import_file(whole, "kieval", tmp_path / "run")
    assert not list(tmp_path.glob("run*"))


def test_nothing_is_written_over_and_choices_are_checked(tmp_path: Path) -> None:
    file = write_details(tmp_path / "details")
    (beside := tmp_path / "run.part").mkdir()
    (beside / "mine.txt").write_text("mine")
    import_file(file, "kieval", tmp_path / "run")
    assert (beside / "mine.txt").read_text() == "mine", "somebody's folder, whatever its name"
    with pytest.raises(ConfigurationError, match="already exists; choose another folder with --out"):
        import_file(file, "kieval", tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"--model pupil=…: kieval has no such role; it has candidate"):
        import_file(file, "kieval", tmp_path / "other", ImportOptions(models={"pupil": "openai:x"}))
    code, printed = _viva("import", file, "--from", "kieval", "--model", "candidate")
    assert (code, "expected ROLE=NAME" in printed) == (2, True)
    for words in (("resume", tmp_path / "run"), ("run", "--fork", tmp_path / "run", "--judge", "simulated:e")):
        code, printed = _viva(*words)
        assert (code, "cannot be resumed, forked or verified" in printed) == (2, True)
    code, printed = _viva("import", "--help")
    assert all(f"  {name}" in printed for name in ("inspect", "kieval", "lm-eval"))
