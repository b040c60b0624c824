"""The benchmarks' own forms: what becomes of their records, and which ids their items get."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from data_files import items, lines, written

from viva.data.benchmark import load_benchmark
from viva.data.dataset import Dataset, open_dataset
from viva.data.items import Item, content_id
from viva.engine.errors import ConfigurationError, DatasetError


@pytest.fixture
def mmlu(tmp_path: Path) -> Path:
    """Two subjects; one question stands in both of them, and one twice in its file."""
    written(tmp_path / "test" / "anatomy_test.csv", 'Bone?,femur,liver,skin,lung,A\n"Two,\nlines?",1,2,3,4,D\n')
    written(
        tmp_path / "test" / "virology_test.csv",
        "Virus?,a,b,c,d,B\nBone?,femur,liver,skin,lung,A\nVirus?,a,b,c,d,B\nVirus?,a,b,c,d,C\n",
    )
    written(tmp_path / "dev" / "anatomy_dev.csv", "Skull?,head,foot,arm,leg,A\n")
    return tmp_path


def test_mmlu_takes_subjects_from_file_names_and_drops_exact_repeats(mmlu: Path) -> None:
    dataset = open_dataset(f"mmlu:{mmlu}:test")
    found = [(item.subject, item.question, item.answer) for item in dataset]
    assert found == [
        ("anatomy", "Bone?", 0),
        ("anatomy", "Two,\nlines?", 3),
        ("virology", "Virus?", 1),
        ("virology", "Virus?", 2),  # another answer is another item
    ]
    assert (dataset.total, dataset.repeats, dataset.skipped) == (4, 2, 0)
    first = next(iter(dataset))
    assert first == Item(
        content_id("Bone?", ["femur", "liver", "skin", "lung"], 0, None), "Bone?", first.choices, 0, "anatomy"
    )


def test_one_mmlu_file_is_recognised_and_equals_its_part_of_the_folder(mmlu: Path) -> None:
    file = mmlu / "test" / "anatomy_test.csv"
    assert open_dataset(str(file)).form == "mmlu"
    assert items(str(file)) == items(f"mmlu:{mmlu}:test")[:2]


def test_mmlu_as_records(tmp_path: Path) -> None:
    record = {"question": "Bone?", "subject": "anatomy", "choices": ["femur", "liver", "skin", "lung"], "answer": 0}
    path = written(tmp_path / "mmlu.jsonl", lines(record, record))
    dataset = open_dataset(f"mmlu:{path}")
    assert (dataset.total, dataset.repeats) == (1, 1)
    assert [(item.id, item.subject) for item in dataset] == [
        (content_id("Bone?", record["choices"], 0, None), "anatomy")
    ]


@pytest.mark.parametrize("as_label", [int, str])
def test_hellaswag_items_are_numbered_by_their_place(tmp_path: Path, as_label: type) -> None:
    endings = ["runs.", "eats.", "sits.", "naps."]
    records = [
        {"ind": 24, "activity_label": f"Sport {n}", "ctx": f"Man {n}", "endings": endings, "label": as_label(n)}
        for n in range(4)
    ]
    path = written(tmp_path / "hellaswag_val.jsonl", lines(records[0]) + "\n" + lines(*records[1:]))
    assert open_dataset(str(path)).form == "hellaswag"
    assert items(str(path)) == [
        Item(content_id(f"Man {n}", endings, n, {"id": n}), f"Man {n}", endings, n, f"Sport {n}") for n in range(4)
    ]


def test_a_bad_line_of_hellaswag_does_not_renumber_the_others(tmp_path: Path) -> None:
    good = {"ctx": "A man", "endings": ["runs.", "eats.", "sits.", "naps."], "label": 1}
    path = written(tmp_path / "val.jsonl", "{\n" + lines(good | {"label": ""}, good))
    (item,) = open_dataset(f"hellaswag:{path}", skip_bad=True)
    assert item.id == content_id("A man", good["endings"], 1, {"id": 2})


def test_shards_of_hellaswag_are_numbered_through(tmp_path: Path) -> None:
    record = {"ctx": "A man", "endings": ["runs.", "eats.", "sits.", "naps."], "label": 1}
    for number in range(2):
        written(tmp_path / f"validation-0000{number}-of-00002.jsonl", lines(record, record | {"ctx": "A cat"}))
    found = [item.id for item in open_dataset(f"hellaswag:{tmp_path}:validation")]
    assert found == [content_id(c, record["endings"], 1, {"id": n}) for n, c in enumerate(["A man", "A cat"] * 2)]


HEADER = "\ufeffid,question,A,B,C,D,answer"


@pytest.fixture
def ceval(tmp_path: Path) -> Path:
    rows = '0,水是____。,气体,液体,固体,“盐”,B\r\n1,"“锡,铅”？",甲,乙,丙,丁,D\r\n'
    written(tmp_path / "val" / "law_val.csv", f"{HEADER}\r\n{rows}")
    written(
        tmp_path / "val" / "operating_system_val.csv", f"{HEADER}\r\n".replace("\ufeff", "") + rows.split("\r\n")[0]
    )
    explained = '0,水？,气体,液体,固体,盐,B,"1. 水。\n2. 液体。"\n'
    written(tmp_path / "dev" / "operating_system_dev.csv", f"{HEADER},explanation\n{explained}")
    return tmp_path


def test_ceval_is_read_in_chinese_and_numbered_through_the_published_order(ceval: Path) -> None:
    found = items(f"ceval:{ceval}:val")
    choices = ["气体", "液体", "固体", "“盐”"]
    # operating_system is the second subject of C-Eval and begins at row 19; law begins at row 769.
    assert found == [
        Item(content_id("水是____。", choices, 1, {"id": 769}), "水是____。", choices, 1, "law"),
        Item(
            content_id("“锡,铅”？", ["甲", "乙", "丙", "丁"], 3, {"id": 770}),
            "“锡,铅”？",
            ["甲", "乙", "丙", "丁"],
            3,
            "law",
        ),
        Item(content_id("水是____。", choices, 1, {"id": 19}), "水是____。", choices, 1, "operating_system"),
    ]


def test_ceval_with_explanations_and_alone(ceval: Path) -> None:
    (item,) = items(f"ceval:{ceval}:dev")
    assert item.id == content_id("水？", ["气体", "液体", "固体", "盐"], 1, {"id": 5})
    assert items(f"ceval:{ceval / 'val' / 'law_val.csv'}") == items(f"ceval:{ceval}:val")[:2]


def test_a_part_of_a_ceval_file_keeps_its_row_numbers(ceval: Path) -> None:
    whole = items(f"ceval:{ceval}:val")
    text = (ceval / "val" / "law_val.csv").read_bytes().decode().split("\r\n")
    part = written(ceval / "part" / "law_val.csv", "\n".join([text[0], text[2]]))
    assert items(f"ceval:{part}") == whole[1:2]


def test_cevals_subjects_follow_each_other() -> None:
    ceval = load_benchmark("ceval")
    assert ceval.first_row("computer_network", "val") == 0
    assert ceval.first_row("physician", "val") == 1346 - 49
    assert ceval.first_row("physician", "dev") == 51 * 5
    assert ceval.first_row("physician", "test") == ceval.first_row("alchemy", "val") == 0


def parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    arrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), path, row_group_size=2)
    return str(path)


ARC = [
    {"id": f"X{n}", "question": "Why?", "choices": {"text": ["yes", "no"], "label": ["A", "B"]}, "answerKey": "B"}
    for n in range(5)
]


def test_parquet_gives_the_items_of_the_same_records_in_jsonl(tmp_path: Path) -> None:
    source = parquet(tmp_path / "test-00000-of-00001.parquet", ARC)
    as_lines = written(tmp_path / "test.jsonl", lines(*ARC))
    assert items(source) == items(str(as_lines))
    assert open_dataset(source).form == "arc"
    generic = [{"id": str(n), "question": "水？", "choices": ["1", "2", "3"], "answer": n} for n in range(3)]
    assert items(parquet(tmp_path / "own.parquet", generic)) == items(
        str(written(tmp_path / "own.jsonl", lines(*generic)))
    )


def test_a_bad_row_of_parquet_is_named(tmp_path: Path) -> None:
    source = parquet(tmp_path / "items.parquet", [*ARC[:3], ARC[3] | {"answerKey": "C"}])
    with pytest.raises(DatasetError, match="is not among the choices") as caught:
        open_dataset(source)
    assert (caught.value.path, caught.value.line, caught.value.field) == (source, 4, "answerKey")


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    source = parquet(tmp_path / "items.parquet", ARC)
    whole = Path(source).read_bytes()
    for content in (b"", b"id,question\n" * 40, whole[: len(whole) // 2], whole[:4] + b"\0" * 60 + whole[64:]):
        Path(source).write_bytes(content)
        with pytest.raises(DatasetError) as caught:
            open_dataset(f"arc:{source}")
        assert caught.value.path == source


def test_without_its_library_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "items.parquet", "PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'viva-exam\[parquet\]'"):
        open_dataset(str(path))


def test_without_its_library_the_hub_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'viva-exam\[hf\]'"):
        open_dataset("hf:owner/name:test")


needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the extra 'hf' is not installed"
)


@needs_datasets
def test_a_hub_that_cannot_be_reached_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:9 is unreachable .*set HF_HUB_OFFLINE=1"):
        open_dataset("hf:owner/name:test")


@needs_datasets
@pytest.mark.filterwarnings("default")
def test_a_dataset_that_the_package_knows_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(source: str) -> Dataset:
        return open_dataset(source)

    # The package takes a folder of this name for the dataset, which needs no network.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    path = written(tmp_path / "owner" / "name" / "test.jsonl", lines(*ARC))
    dataset = opened("hf:owner/name")
    assert (dataset.name, dataset.form) == ("name-test", "arc")
    assert list(dataset) == items(str(path))
    assert opened("hf:owner/name:test").digest == dataset.digest
    with pytest.raises(ConfigurationError, match=r"hf:owner/name:train: cannot be loaded: .*train"):
        opened("hf:owner/name:train")
    with pytest.raises(ConfigurationError, match="expected hf:owner/name"):
        opened("hf:name")


MED = {"id": "m1", "question": "Bone?", "opa": "femur", "opb": "liver", "opc": "skin", "opd": "lung", "cop": 0}
REC = {"context": "All cats are grey.", "question": "What follows?", "answers": ["a", "b", "c", "d"], "label": 2}
MATH = {"Problem": "10 % of 8,000 ?", "options": "a ) 80 , b ) $ 800 , c ) 8,000 , d ) none of these", "correct": "b"}
TRUE = {"question": "Why?", "mc1_targets": {"choices": ["so", "not so", "never"], "labels": [0, 1, 0]}}
HOT = {"id": "h1", "question": "Who is older?", "answer": "Ann", "type": "comparison", "context": {"title": []}}
SELF = {"id": "s1", "instruction": "Translate.", "instances": [{"input": "Hund", "output": "dog"}]}


def test_the_other_benchmarks_of_kieval_as_published(tmp_path: Path) -> None:
    rows = {
        "medmcqa": MED | {"subject_name": "Anatomy"},
        "reclor": REC | {"id_string": "r1"},
        "mathqa": MATH,
        "truthfulqa": TRUE,
        "hotpotqa": HOT,
        "self_instruct": SELF,
    }
    read = {name: items(f"{name}:{written(tmp_path / f'{name}.jsonl', lines(row))}")[0] for name, row in rows.items()}
    assert read["medmcqa"] == Item("m1", "Bone?", ["femur", "liver", "skin", "lung"], 0, "Anatomy")
    assert read["reclor"] == Item(
        "r1",
        "Context: All cats are grey.\n Question: What follows?",
        ["a", "b", "c", "d"],
        2,
        passage="All cats are grey.",
    )
    assert (read["mathqa"].choices, read["mathqa"].answer) == (["80", "$ 800", "8,000", "none of these"], 1)
    assert (read["truthfulqa"].choices, read["truthfulqa"].answer) == (["so", "not so", "never"], 1)
    assert (read["hotpotqa"].id, read["hotpotqa"].reference, read["hotpotqa"].question) == (
        "h1",
        "Ann",
        "Who is older?",
    )
    assert (read["self_instruct"].question, read["self_instruct"].reference) == ("Translate.\n\nHund", "dog")
    stored = SELF | {"instances": {"input": [""], "output": ["dog"]}}
    (item,) = items(f"self_instruct:{written(tmp_path / 'stored.jsonl', lines(stored))}")
    assert (item.question, item.reference) == ("Translate.", "dog")


WRONG_ROWS = [
    ("medmcqa", MED | {"cop": -1}, "cop"),
    ("medmcqa", MED | {"opd": ""}, "opd"),
    ("reclor", REC | {"id_string": "r", "label": ""}, "ReClor's test split has no labels"),
    ("reclor", REC | {"id_string": "r", "context": 3}, "context"),
    ("mathqa", MATH | {"options": "80 , 800"}, "2 to 26 choices"),
    ("mathqa", MATH | {"correct": "e"}, "not among the choices"),
    ("truthfulqa", TRUE | {"mc1_targets": {"choices": ["so", "not"], "labels": [0, 0]}}, "one of them 1"),
    ("truthfulqa", TRUE | {"mc1_targets": {"choices": ["so", "not"], "labels": [1, 1]}}, "one of them 1"),
    ("truthfulqa", TRUE | {"mc1_targets": ["so"]}, "mc1_targets.choices"),
    ("hotpotqa", HOT | {"answer": ""}, "answer"),
    ("hotpotqa", {name: value for name, value in HOT.items() if name != "id"}, "id"),
    ("self_instruct", SELF | {"instances": []}, "expected objects with input and output"),
    ("self_instruct", SELF | {"instances": [{"input": "", "output": ""}]}, "instances[0].output"),
    ("self_instruct", SELF | {"instances": {"input": 3, "output": 4}}, "expected objects with input and output"),
]


@case_table("form, row, words", WRONG_ROWS)
def test_a_wrong_record_of_the_other_benchmarks_names_its_field(
    tmp_path: Path, form: str, row: dict[str, Any], words: str
) -> None:
    path = written(tmp_path / "rows.jsonl", lines(row))
    with pytest.raises(DatasetError) as caught:
        items(f"{form}:{path}")
    assert words in str(caught.value)
