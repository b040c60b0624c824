"""Naming a dataset on the command line: files, folders, splits, and where few-shot examples lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from case_tables import case_table

from viva.data.dataset import open_dataset
from viva.data.sources import absolute_source, development_source, open_source
from viva.engine.errors import ConfigurationError, DatasetError

ROW = "Q of {},a,b,c,d,A\n"
RECORD = {"question": "Why?", "choices": {"text": ["yes", "no"], "label": ["A", "B"]}, "answerKey": "B"}


@pytest.fixture
def mmlu(tmp_path: Path) -> Path:
    """The layout of the published archive."""
    folder = tmp_path / "mmlu"
    for split in ("dev", "val", "test", "auxiliary_train"):
        (folder / split).mkdir(parents=True)
        for subject in ("anatomy", "law"):
            name = subject if split == "auxiliary_train" else f"{subject}_{split}"
            (folder / split / f"{name}.csv").write_text(ROW.format(f"{subject} {split}"))
    (folder / "README.txt").write_text("not data")
    (folder / ".hidden.csv").write_text("not data")
    return folder


@pytest.fixture
def arc(tmp_path: Path) -> Path:
    """The layout of AI2's archive, which also has each file as CSV."""
    folder = tmp_path / "ARC-Easy"
    folder.mkdir()
    for split in ("Dev", "Test", "Train"):
        (folder / f"ARC-Easy-{split}.jsonl").write_text(json.dumps(RECORD | {"id": split}) + "\n")
        (folder / f"ARC-Easy-{split}.csv").write_text("questionID,question\n")
    return folder


def questions(source: str) -> list[str]:
    return [item.question for item in open_dataset(source)]


@pytest.mark.parametrize("split", ["dev", "val", "test", "auxiliary_train"])
def test_a_split_is_a_sub_folder(mmlu: Path, split: str) -> None:
    expected = [f"Q of anatomy {split}", f"Q of law {split}"]
    assert questions(f"mmlu:{mmlu}:{split}") == questions(f"mmlu:{mmlu / split}") == expected
    assert {item.subject for item in open_dataset(f"mmlu:{mmlu}:{split}")} == {"anatomy", "law"}
    assert open_source(f"mmlu:{mmlu}:{split}").name == open_source(f"mmlu:{mmlu / split}").name == f"mmlu-{split}"


def test_a_split_is_a_word_in_a_files_name(arc: Path) -> None:
    assert open_source(f"arc:{arc}:test").parts[0].path == str(arc / "ARC-Easy-Test.jsonl")
    assert open_source(f"arc:{arc}:test").name == "ARC-Easy-test"


def test_files_of_all_splits_may_lie_in_one_folder(tmp_path: Path) -> None:
    for name in ("anatomy_test", "law_test", "law_dev", "notes"):
        (tmp_path / f"{name}.csv").write_text(ROW.format(name))
    assert questions(f"mmlu:{tmp_path}:test") == ["Q of anatomy_test", "Q of law_test"]
    assert questions(f"mmlu:{tmp_path}:dev") == ["Q of law_dev"]


def test_files_that_name_no_split_are_all_of_it(tmp_path: Path) -> None:
    for name in ("anatomy", "law"):
        (tmp_path / f"{name}.csv").write_text(ROW.format(name))
    assert questions(f"mmlu:{tmp_path}") == ["Q of anatomy", "Q of law"]
    with pytest.raises(DatasetError, match="has no split 'test'; its files name no split"):
        open_source(f"mmlu:{tmp_path}:test")


@case_table("asked", ["val", "valid", "validation", "Validation"])
@case_table("called", ["val", "validation"])
def test_the_validation_split_has_several_names(tmp_path: Path, asked: str, called: str) -> None:
    (tmp_path / f"{called}.jsonl").write_text(json.dumps(RECORD | {"id": "v"}) + "\n")
    (tmp_path / "test.jsonl").write_text("")
    assert len(questions(f"arc:{tmp_path}:{asked}")) == 1


def test_a_name_that_leads_nowhere_says_what_there_is(mmlu: Path, arc: Path) -> None:
    expected = {
        f"mmlu:{mmlu}": f"has several splits: auxiliary_train, dev, test, val; name one, as in mmlu:{mmlu}:test",
        f"mmlu:{mmlu}:tset": "has no split 'tset'; its splits: auxiliary_train, dev, test, val",
        str(mmlu): "is a folder: name its form, as in mmlu:",
        f"{mmlu}:test": f"a split needs a form before it, as in mmlu:{mmlu}:test",
        f"mmul:{mmlu}:test": "unknown form 'mmul'; did you mean 'mmlu' or 'cmmlu'? forms: generic, qa, arc, hf;",
        f"arc:{arc.parent}": "has no file ending in .jsonl, .json, .ndjson, .parquet; its folders: ARC-Easy, mmlu",
        f"generic:{arc}:test": "ARC-Easy-Test.jsonl: name one of the two",
        f"arc:{arc / 'ARC-Easy-Test.jsonl'}:test": "is a file, not a folder with splits; omit ':test'",
        f"arc:{arc / 'ARC-Easy-Test.csv'}": "unknown kind of file '.csv'; the form arc is read from .jsonl",
        f"arc:{arc / 'none'}:test": "none: cannot be read: No such file or directory",
        "arc:": "names no file or folder after 'arc:'",
    }
    for source, message in expected.items():
        with pytest.raises(ConfigurationError) as caught:
            open_source(source)
        assert message in str(caught.value)


def test_line_14_a_form_without_a_file_says_how_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("arc", "arc:test"):
        with pytest.raises(DatasetError) as caught:
            open_source(name)
        said = str(caught.value)
        assert said.startswith(f"{name.rpartition(':')[2] if ':' not in name else name}: cannot be read: No such file")
        for part in (
            "'arc' is a form, not a dataset",
            "arc:FILE",
            "arc:FOLDER:split",
            "'arc_challenge' or 'arc_easy'?",
        ):
            assert part in said


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ARC-Challenge", "arc_challenge"),
        ("ai2_arc", "arc_challenge' or 'arc_easy"),
        ("mmlu-pro", "mmlu_pro"),
        ("helaswag", "hellaswag"),
        ("gsm", "gsm8k"),
    ],
)
def test_an_unknown_benchmark_has_near_ones_named(
    name: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError, match=f"did you mean '{near}"):
        open_source(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("squad", "a folder with its form (form:FOLDER:split), or hf:owner/name:split; forms: generic"),
        ("hf", "'hf' precedes a dataset of the hub, as in hf:"),
        ("owner/name", "write a dataset of the hub as hf:owner/name"),
        ("generic", "write generic:FILE or generic:FOLDER:split; forms"),
    ],
)
def test_line_14_other_names_that_lead_nowhere_say_what_a_name_is(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError) as caught:
        open_source(name)
    assert says in str(caught.value)


def test_line_14_a_folder_of_a_benchmark_is_named_with_its_own_form(tmp_path: Path) -> None:
    (tmp_path / "ARC-Easy").mkdir()
    with pytest.raises(DatasetError, match=f"name its form, as in arc_easy:{tmp_path}/ARC-Easy"):
        open_source(str(tmp_path / "ARC-Easy"))


def test_a_file_whose_name_holds_a_colon_is_still_a_file(tmp_path: Path) -> None:
    path = tmp_path / "arc:items.jsonl"
    path.write_text(json.dumps(RECORD | {"id": "1"}) + "\n")
    assert questions(str(path)) == questions(f"arc:{path}") == ["Why?"]


def test_a_source_is_remembered_by_its_full_path(mmlu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mmlu.parent)
    assert absolute_source("mmlu:mmlu:test") == f"mmlu:{mmlu}:test"
    assert absolute_source("mmlu:mmlu/test") == f"mmlu:{mmlu}/test"
    assert absolute_source("mmlu/dev/law_dev.csv") == f"{mmlu}/dev/law_dev.csv"
    for unknown in ("none.jsonl", "mmlu:none:test", "nope:mmlu", "hf:owner/name:test"):
        assert absolute_source(unknown) == unknown


def test_the_development_split_is_found_beside_another(mmlu: Path, arc: Path) -> None:
    expected = {
        f"mmlu:{mmlu}:test": f"mmlu:{mmlu}:dev",
        f"mmlu:{mmlu}:val": f"mmlu:{mmlu}:dev",
        f"mmlu:{mmlu / 'test'}": f"mmlu:{mmlu / 'dev'}",
        f"mmlu:{mmlu / 'test' / 'law_test.csv'}": f"mmlu:{mmlu / 'dev' / 'law_dev.csv'}",
        str(mmlu / "val" / "law_val.csv"): str(mmlu / "dev" / "law_dev.csv"),
        f"arc:{arc}:test": f"arc:{arc}:dev",
        str(arc / "ARC-Easy-Test.jsonl"): str(arc / "ARC-Easy-Dev.jsonl"),
    }
    for source, found in expected.items():
        assert development_source(source) == found
        assert open_dataset(found).total >= 1


def test_where_no_development_split_is_to_be_seen_there_is_none(mmlu: Path, tmp_path: Path) -> None:
    lonely = tmp_path / "lonely" / "items.jsonl"
    lonely.parent.mkdir()
    lonely.write_text("")
    (tmp_path / "lonely" / "test.jsonl").write_text("")
    sources = [
        f"mmlu:{mmlu}:dev",
        f"mmlu:{mmlu / 'dev'}",
        str(mmlu / "dev" / "law_dev.csv"),
        str(lonely),
        str(lonely.with_name("test.jsonl")),
        f"generic:{lonely.parent}:test",
        str(mmlu),
        "hf:owner/name:test",
        "none.jsonl",
    ]
    assert [development_source(source) for source in sources] == [None] * len(sources)
