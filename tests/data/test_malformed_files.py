"""Files that are not what they should be: each is named with line and field, and none takes memory or hangs."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table

from viva.data.dataset import MAX_KEPT_ERRORS, open_dataset
from viva.data.statistics import DatasetStatistics
from viva.engine.errors import DatasetError

GOOD: dict[str, Any] = {"id": "a", "question": "Which is a metal?", "choices": ["tin", "fog"], "answer": "A"}
ARC: dict[str, Any] = {"id": "X", "question": "Why?", "choices": {"text": ["1", "2"], "label": ["A", "B"]}}
ARC["answerKey"] = "A"
SWAG: dict[str, Any] = {"ctx": "A man", "endings": ["runs.", "eats.", "sits.", "naps."], "label": 1}
HEAD = "id,question,A,B,answer\n"
CEVAL = "id,question,A,B,C,D,answer\n"


def jsonl(*records: Any) -> bytes:
    return "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records).encode()


@dataclass(frozen=True)
class Malformed:
    """A file, where it is wrong, what must be said, and how many of its items can still be read."""

    content: bytes
    line: int
    field: str | None
    words: str
    items: int
    name: str = "items.jsonl"
    form: str = "generic"
    passable: bool = True


def generic(wrong: Any, field: str | None, words: str) -> Malformed:
    """The wrong line between two good ones."""
    return Malformed(jsonl(GOOD, wrong, GOOD | {"id": "other"}), 2, field, words, 2)


def arc(field: str, words: str, **changes: Any) -> Malformed:
    content = jsonl(ARC, ARC | {"id": "Y"} | changes, ARC | {"id": "other"})
    return Malformed(content, 2, field, words, 2, form="arc")


def swag(field: str, words: str, **changes: Any) -> Malformed:
    wrong = {name: value for name, value in (SWAG | changes).items() if value is not None}
    return Malformed(jsonl(SWAG, wrong, SWAG | {"ctx": "A cat"}), 2, field, words, 2, form="hellaswag")


def table(text: str | bytes, line: int, field: str | None, words: str, items: int, **more: Any) -> Malformed:
    content = text.encode() if isinstance(text, str) else text
    return Malformed(content, line, field, words, items, **({"name": "items.csv"} | more))


MMLU = "Who?,a,b,c,d,A\n"
TABLE: dict[str, Malformed] = {
    # lines of JSON
    "truncated last line": Malformed(
        jsonl(GOOD) + b'{"id": "b", "quest', 2, None, "ends in the middle of this line", 1
    ),
    "broken JSON": generic('{"id": }', None, "not valid JSON at position 8"),
    "array: no object": Malformed(b"[\n" + jsonl(GOOD).rstrip() + b",\n7\n]\n", 3, None, "JSON object, found int", 1),
    "array: key given twice": Malformed(
        b"[" + jsonl(GOOD) + b', {"id": "b", "id": "c"}]', 2, None, 'the key "id" is given twice', 1
    ),
    "array: no comma": Malformed(
        b"[\n" + jsonl(GOOD, GOOD | {"id": "b"}) + b"]\n", 3, None, "expected a comma", 1, passable=False
    ),
    "array: cut off": Malformed(
        b"[\n" + jsonl(GOOD).rstrip() + b',\n{"id": "b", "que',
        3,
        None,
        "rest of the file is not read",
        1,
        passable=False,
    ),
    "text without quotes": generic('{"id": tides, "x": 1}', None, 'at position 8: put text in double quotes: "tides"'),
    "Python's words": generic('{"id": None}', None, "(None is no JSON; write null)"),
    "no object": generic('["id"]', None, "expected a JSON object, found list"),
    "key given twice": generic('{"answer": "A", "id": "b", "answer": "B"}', None, 'the key "answer" is given twice'),
    "key twice within": generic('{"id": "b", "choices": {"text": 1, "text": 2}}', None, 'key "text" is given twice'),
    "NUL byte": generic('{"id": "b\0"}', None, "contains a NUL byte at position 10"),
    "escaped NUL": generic(GOOD | {"id": "b", "question": "W\0?"}, "question", "contains a NUL character"),
    "NUL in a choice": generic(GOOD | {"id": "b", "choices": ["t\0", "f"]}, "choices", "contains a NUL character"),
    "not UTF-8": Malformed(
        jsonl(GOOD) + '{"question": "锡"}\n'.encode("gbk") + jsonl(GOOD | {"id": "c"}),
        2,
        None,
        "is not UTF-8 text (byte 0xce at position 15)",
        2,
    ),
    "half a surrogate pair": generic('{"id": "\\ud800"}', None, "not valid JSON"),
    "missing field": generic({"id": "b", "choices": ["a", "b"], "answer": "A"}, "question", "is missing"),
    "wrong type": generic(GOOD | {"id": "b", "question": 7}, "question", "expected text, found 7"),
    "empty choice": generic(GOOD | {"id": "b", "choices": ["tin", " "]}, "choices", "none of them empty"),
    "single choice": generic(GOOD | {"id": "b", "choices": ["tin"]}, "choices", "2 to 26 choices, found 1"),
    "misspelt": generic({"question": "W?", "choices": ["a", "b"], "anwser": "A"}, "answer", "did you mean 'answer'?"),
    "a list in an object": generic({"rows": [GOOD]}, "question", "'rows' of 1 objects: save only that list"),
    "no choices": generic({"question": "Why?", "answer": "A"}, "choices", "is missing"),
    "choices of a wrong type": generic(GOOD | {"id": "b", "choices": "tin"}, "choices", "expected a list of texts"),
    "no answer": generic({"question": "Why?", "choices": ["a", "b"]}, "answer", "is missing"),
    "index below": generic(GOOD | {"id": "b", "answer": -1}, "answer", "-1 is not among"),
    "truth as answer": generic(GOOD | {"id": "b", "answer": True}, "answer", "True is not among"),
    "answers": generic(GOOD | {"id": "b", "answer": ["A"]}, "answer", "['A'] is not among"),
    "27 choices": generic(GOOD | {"id": "b", "choices": ["x"] * 27}, "choices", "2 to 26 choices, found 27"),
    "key outside choices": generic(GOOD | {"id": "b", "answer": "C"}, "answer", "'C' is not among the choices (A, B)"),
    "index outside choices": generic(GOOD | {"id": "b", "answer": 2}, "answer", "(0 to 1)"),
    "duplicate id": generic(GOOD | {"question": "Another?"}, "id", "the same item as in line 1 ('a')"),
    "id of a wrong type": generic(GOOD | {"id": ["b"]}, "id", "expected text or a whole number, found ['b']"),
    "subject of a wrong type": generic(GOOD | {"id": "b", "subject": {}}, "subject", "expected text, found {}"),
    # other formats
    "UTF-16": Malformed(jsonl(GOOD).decode().encode("utf-16"), 1, None, "is UTF-16 text", 0, passable=False),
    "UTF-16 without mark": Malformed(
        jsonl(GOOD).decode().encode("utf-16-be"), 1, None, "is UTF-16 text", 0, passable=False
    ),
    "UTF-32": Malformed(jsonl(GOOD).decode().encode("utf-32"), 1, None, "is UTF-32 text", 0, passable=False),
    "gzip": Malformed(gzip.compress(jsonl(GOOD)), 1, None, "is compressed by gzip", 0, passable=False),
    "spreadsheet": table(b"PK\3\4\0\0", 1, None, "is a zip archive or a spreadsheet", 0, passable=False),
    "Parquet by another name": Malformed(b"PAR1\0\0", 1, None, "name it .parquet", 0, passable=False),
    # tables
    "row too short": table(HEAD + "1,Who?,a,b\n2,Why?,a,b,A\n", 2, "answer", "expected 5 columns", 1),
    "row too long": table(HEAD + "1,Who?,a,b,A,\n2,Why?,a,b,A\n", 2, None, "found 6", 1),
    "missing column": table("id,question,A,B\n1,Who?,a,b\n", 1, "answer", "missing from the header", 0, passable=False),
    "column twice": table("id,A,question,A,B,answer\n", 1, "A", "occurs twice in the header", 0, passable=False),
    "quote never closed": table(
        HEAD + '1,Who?,a,b,A\n2,"Why?,a,b,A\n3,How?,a,b,A\n', 3, None, "ends within quotes", 1, passable=False
    ),
    "quotes within quotes": table(HEAD + '1,"a "b" c",a,b,A\n2,Why?,a,b,A\n', 2, None, "not valid CSV", 1),
    "old line ends": table(HEAD + "1,Who?,a,b,A\r2,Why?,a,b,A\n3,How?,a,b,A\n", 2, None, "a carriage return", 1),
    "endless field": table(
        HEAD + f'1,"{"x" * 999_999}\n' + ("y" * 999_999 + "\n") * 9 + '",a,b,A\n2,Why?,a,b,A\n',
        2,
        None,
        "more than 8,388,608 characters",
        0,
        passable=False,
    ),
    "NUL in a table": table(HEAD + "1,W\0?,a,b,A\n2,Why?,a,b,A\n", 2, None, "contains a NUL byte", 1),
    "not UTF-8 within quotes": table(
        HEAD.encode() + b'1,"Who\nis \xff?",a,b,A\n2,Why?,a,b,A\n', 3, None, "is not UTF-8 text", 1
    ),
    "no question in a table": table(HEAD + "1,,a,b,A\n2,Why?,a,b,A\n", 2, "question", "expected text", 1),
    "key in a table": table(HEAD + "1,Who?,a,b,C\n2,Why?,a,b,A\n", 2, "answer", "'C' is not among", 1),
    "gap in the choices": table("question,A,B,C,answer\nWho?,a,,c,A\nWhy?,a,b,,B\n", 2, "choices", "without gaps", 1),
    # the benchmarks' own
    "MMLU: five columns": table(MMLU + "Why?,a,b,c,D\n", 2, "answer", "expected 6 columns", 1, form="mmlu"),
    "MMLU: header": table("question,A,B,C,D,answer\n" + MMLU, 1, "answer", "found a header", 1, form="mmlu"),
    "MMLU: key": table(MMLU + "Why?,a,b,c,d,E\n", 2, "answer", "'E' is not among", 1, form="mmlu"),
    "MMLU: empty choice": table(MMLU + "Why?,a,b,,d,D\n", 2, "C", "expected text, found ''", 1, form="mmlu"),
    "C-Eval: no answers": table(CEVAL + "0,谁？,a,b,c,d,\n", 2, "answer", "test split has no answers", 0, form="ceval"),
    "C-Eval: missing column": table(HEAD, 1, "C", "missing from the header", 0, form="ceval", passable=False),
    "HellaSwag: three endings": swag("endings", "expected 4 choices, found 3", endings=["a", "b", "c"]),
    "HellaSwag: no label": swag("label", "test split has no labels", label=""),
    "HellaSwag: label outside": swag("label", "4 is not among the choices (0 to 3)", label=4),
    "HellaSwag: label in words": swag("label", "expected an index from 0 to 3, found 'B'", label="B"),
    "HellaSwag: no context": swag("ctx", "is missing", ctx=None),
    "ARC: key outside choices": arc("answerKey", "'C' is not among the choices (A, B)", answerKey="C"),
    "ARC: labels": arc("choices.label", "2 different labels", choices={"text": ["1", "2"], "label": ["A"]}),
    "ARC: equal labels": arc("choices.label", "2 different", choices={"text": ["1", "2"], "label": ["A", "A"]}),
    "ARC: no labels": arc("choices.label", "2 different labels", choices={"text": ["1", "2"]}),
    "ARC: no id": arc("id", "is missing", id=None),
    "ARC: no stem": arc("question.stem", "is missing", question={"choices": []}),
    "ARC: no choices": arc("question.choices", "expected a list of objects", question={"stem": "Why?"}),
    "ARC: its own id twice": arc("id", "the same item as in line 1", id="X", answerKey="B"),
}


@case_table("case", TABLE.values(), ids=TABLE.keys())
def test_what_is_wrong_is_named_and_the_rest_is_read(tmp_path: Path, case: Malformed) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content)
    source = f"{case.form}:{path}"
    with pytest.raises(DatasetError) as caught:
        open_dataset(source)
    error = caught.value
    assert (error.path, error.line, error.field) == (str(path), case.line, case.field)
    assert str(error).startswith(f"{path}:{case.line}: " + (f"field '{case.field}': " if case.field else ""))
    assert case.words in str(error)

    check = DatasetStatistics(source)
    assert check.items == case.items
    first = check.report()["bad"]["first"][0]
    assert (first["path"], first["line"], first["field"]) == (str(path), case.line, case.field)
    assert case.words in first["message"]
    if case.passable and case.items:
        assert len(list(open_dataset(source, skip_bad=True))) == case.items
    else:
        with pytest.raises(DatasetError):
            open_dataset(source, skip_bad=True)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("items.jsonl", jsonl(GOOD) + b'{"id": "b", "question": "', b'"}\n' + jsonl(GOOD | {"id": "c"})),
        ("items.csv", HEAD.encode() + b'b,"', b'",a,b,A\nc,Why?,a,b,A\n'),
        ("items.csv", HEAD.encode() + b"b,", b",a,b,A\nc,Why?,a,b,A\n"),
    ],
    ids=["JSONL", "CSV within quotes", "CSV"],
)
def test_a_line_of_200_megabytes_is_named_in_bounded_memory(
    tmp_path: Path, name: str, before: bytes, after: bytes
) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(before)
        for _ in range(200):
            file.write(b"x" * 10**6)
        file.write(after)
    tracemalloc.start()
    try:
        check = DatasetStatistics(str(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (bad,) = check.reading.bad
    assert (bad.path, bad.line) == (str(path), 2)
    assert "200,0" in bad.message
    assert "bytes; a line may have 8,388,608" in bad.message
    assert check.items == (2 if name.endswith("jsonl") else 1)
    assert peak < 40 * 2**20


@case_table("size", [600_000, 8_000_000])
@case_table("name", ["items.jsonl", "items.csv", "items.tsv"])
def test_line_29_long_lines_are_read_in_every_kind_of_file(tmp_path: Path, name: str, size: int) -> None:
    path, long = tmp_path / name, "x" * size
    if name.endswith("jsonl"):
        path.write_bytes(jsonl(GOOD | {"question": long}, GOOD | {"id": "b"}))
    else:
        mark = "," if name.endswith("csv") else "\t"
        rows = (
            ["id", "question", "A", "B", "answer"],
            ["a", long, "tin", "fog", "A"],
            ["b", "Why?", "tin", "fog", "B"],
        )
        path.write_text("".join(mark.join(row) + "\n" for row in rows))
    first, second = open_dataset(str(path))
    assert len(first.question) == size
    assert second.id == "b"


def test_a_long_line_that_leaves_a_quote_open_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_bytes(HEAD.encode() + b'b,"' + b"x" * 9_000_000 + b'\nline two",a,b,A\nc,Why?,a,b,A\n')
    with pytest.raises(DatasetError, match="an unclosed quote") as caught:
        open_dataset(str(path), skip_bad=True)
    assert caught.value.line == 2


def test_of_very_many_bad_lines_the_first_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(jsonl(GOOD, *["{"] * 500))
    dataset = open_dataset(str(path), skip_bad=True)
    assert dataset.skipped == 500
    with pytest.raises(DatasetError, match=r"contains no usable item \(2 bad lines\)"):
        open_dataset(_file(tmp_path / "bad.jsonl", "{\n}\n"), skip_bad=True)
    assert [error.line for error in dataset.bad] == list(range(2, 2 + MAX_KEPT_ERRORS))


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    pipe, folder, gone = tmp_path / "pipe.jsonl", tmp_path / "folder.jsonl", tmp_path / "gone.jsonl"
    os.mkfifo(pipe)
    folder.mkdir()
    gone.symlink_to(tmp_path / "nowhere.jsonl")
    expected = {
        f"generic:{pipe}": "is a pipe or a device",
        str(folder): "is a folder: name its form",
        f"generic:{folder}": "has no file ending in",
        str(gone): "cannot be read: No such file or directory",
        _file(tmp_path / "empty.jsonl", ""): "contains no usable item",
        _file(tmp_path / "header.csv", HEAD): "contains no usable item",
        _file(tmp_path / "items.xlsx", "PK"): "unknown kind of file '.xlsx'; the form generic is read from .jsonl, ",
        f"generic:{tmp_path / 'missing.jsonl'}": "cannot be read: No such file or directory",
        str(tmp_path / ("long" * 100)): "cannot be read: File name too long",
    }
    for source, message in expected.items():
        with pytest.raises(DatasetError) as caught:
            open_dataset(source)
        assert message in str(caught.value)


def _file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(jsonl(GOOD))
    path.chmod(0)
    with pytest.raises(DatasetError, match="Permission denied"):
        open_dataset(str(path))


def test_an_empty_file_among_others_is_not_overlooked(tmp_path: Path) -> None:
    (tmp_path / "anatomy_test.csv").write_text(MMLU)
    (tmp_path / "law_test.csv").write_text("")
    with pytest.raises(DatasetError, match=r"law_test\.csv: contains no record"):
        open_dataset(f"mmlu:{tmp_path}")
    assert open_dataset(f"mmlu:{tmp_path}", skip_bad=True).total == 1
    check = DatasetStatistics(f"mmlu:{tmp_path}")
    assert [error.path for error in check.reading.bad] == [str(tmp_path / "law_test.csv")]


def test_one_file_that_cannot_be_read_on_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "anatomy_test.csv").write_text(MMLU + '"open,a,b,c,d,A\nHow?,a,b,c,d,A\n')
    (tmp_path / "law_test.csv").write_text("What?,a,b,c,d,B\n")
    check = DatasetStatistics(f"mmlu:{tmp_path}")
    assert dict(check.subjects) == {"anatomy": 1, "law": 1}
    assert [(Path(error.path).name, error.line) for error in check.reading.bad] == [("anatomy_test.csv", 2)]
