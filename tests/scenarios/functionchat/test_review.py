"""Reviewers' sheets: what spreadsheet programs get, what they give back, and corrections that are kept beside."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_turns import RIGHT, call, call_turn, text_turn

from viva.engine.errors import ConfigurationError, DatasetError
from viva.reports.spreadsheet import escape_cell, read_spreadsheet, unescape_cell, write_spreadsheet
from viva.scenarios.functionchat.verdict_review import (
    COLUMNS,
    CORRECTIONS_FILE,
    Correction,
    ReviewItem,
    add_corrections,
    disputed_outputs,
    effective_corrections,
    export_rows,
    read_corrections,
    recorded_corrections,
)

BOOKED = ReviewItem(
    "=a/dialog/1/1", call_turn(), "On it.", [call("book_table", RIGHT)], False, "judge", "Hm,\n\tno: \\ fail"
)
ASKED = ReviewItem("a/dialog/2/slot", text_turn("slot"), "@you: how many?", [], True, "rule", '"Good" question')
MUTE = ReviewItem("a/dialog/2/relevance", text_turn("relevance"), "+1", [], None, "judge", "")
ALL = [BOOKED, ASKED, MUTE]
KNOWN = {one.id for one in ALL}


def _sheet(folder: Path, *rows: dict[str, str], separator: str = "\t", encoding: str = "utf-8-sig") -> Path:
    """A sheet as a reviewer might send it back, with these of its columns."""
    text = io.StringIO(newline="")
    columns = ["id", "corrected verdict", "reviewer", "reason"]
    writer = csv.DictWriter(text, columns, delimiter=separator, restval="")
    writer.writeheader()
    writer.writerows({"id": "a/dialog/2/slot", **row} for row in rows)
    path = folder / "back.tsv"
    path.write_bytes(text.getvalue().encode(encoding))
    return path


@given(st.text(st.characters(), max_size=30))
def test_cells_come_back_and_are_harmless(text: str) -> None:
    cell = escape_cell(text)
    assert unescape_cell(cell) == text
    assert not cell.startswith(tuple("=+-@＝＋－＠"))
    assert not any(ord(character) < 32 or ord(character) == 127 for character in cell)
    cell.encode()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "'=1", "＝1", "\t=1", "\\n", "\\", "\ud800", "\x00", "''"])
def test_cells_that_are_hard(text: str) -> None:
    assert unescape_cell(escape_cell(text)) == text


def test_a_sheet_is_what_excel_opens(tmp_path: Path) -> None:
    path = tmp_path / "review.tsv"
    assert write_spreadsheet(path, COLUMNS, export_rows(ALL)) == 3
    data = path.read_bytes()
    assert data.startswith(codecs.BOM_UTF8)
    assert data.count(b"\r\n") == data.count(b"\n") == 4  # one line a row: nothing else breaks lines
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), dialect="excel-tab"))
    assert rows[0] == list(COLUMNS)
    assert all(len(row) == 14 for row in rows)
    assert rows[1][0] == "'=a/dialog/1/1"
    assert rows[1][7].startswith('On it.\\nbook_table({"restaurant"')
    assert rows[1][8:11] == ["fail", "judge", "Hm,\\n\\tno: \\\\ fail"]
    assert [row[8] for row in rows[1:]] == ["fail", "pass", "unscored"]
    assert rows[2][7] == "'@you: how many?"
    assert unescape_cell(rows[1][10]) == BOOKED.reasoning
    assert json.loads(unescape_cell(rows[1][4])) == BOOKED.turn.tools
    assert [row[11:] for row in rows[1:]] == [["", "", ""]] * 3


def test_a_cell_longer_than_excel_holds_is_cut(tmp_path: Path) -> None:
    write_spreadsheet(tmp_path / "long.tsv", ["a", "b"], [["x" * 40_000, "😀" * 20_000], ["x" * 32_000, "y"]])
    (_, cut), (_, kept) = read_spreadsheet(tmp_path / "long.tsv", ["a"])
    assert cut["a"].endswith(" [cut]")
    assert cut["b"].endswith("😀 [cut]")
    assert all(len(cell.encode("utf-16-le")) // 2 < 32_767 for cell in cut.values())
    assert kept["a"] == "x" * 32_000


def test_a_sheet_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none.*review\.tsv: cannot be written"):
        write_spreadsheet(tmp_path / "none" / "review.tsv", COLUMNS, export_rows(ALL))


def _excel(rows: list[list[str]], separator: str, encoding: str) -> bytes:
    """As Excel saves: quotes where needed, CRLF, with a byte order mark."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode(encoding)


SAVED: dict[str, Callable[[list[list[str]]], bytes]] = {
    "as it was": lambda rows: _excel(rows, "\t", "utf-8-sig"),
    "Unicode Text": lambda rows: _excel(rows, "\t", "utf-16"),
    "CSV UTF-8": lambda rows: _excel(rows, ",", "utf-8-sig"),
    "CSV with semicolons": lambda rows: _excel(rows, ";", "utf-8-sig"),
    "without a mark": lambda rows: _excel(rows, "\t", "utf-8"),
    "Unix lines": lambda rows: _excel(rows, "\t", "utf-8").replace(b"\r\n", b"\n"),
    "old Mac lines": lambda rows: _excel(rows, "\t", "utf-16").decode("utf-16").replace("\r\n", "\r").encode("utf-16"),
    "all quoted": lambda rows: "\r\n".join(
        "\t".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows
    ).encode("utf-8-sig"),
    "empty rows at the end": lambda rows: _excel([*rows, [""] * 14, []], "\t", "utf-8-sig"),
    "other columns gone, others moved": lambda rows: _excel([[*row[11:], row[0]] for row in rows], "\t", "utf-8-sig"),
    "trailing tabs dropped": lambda rows: b"\r\n".join(
        line.rstrip(b"\t") for line in _excel(rows, "\t", "utf-8-sig").split(b"\r\n")
    ),
}


@pytest.mark.parametrize("save", SAVED.values(), ids=SAVED)
def test_corrections_come_back_however_they_were_saved(
    tmp_path: Path, save: Callable[[list[list[str]]], bytes]
) -> None:
    path = tmp_path / "review.tsv"
    write_spreadsheet(path, COLUMNS, export_rows(ALL))
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), dialect="excel-tab"))
    rows[1][11:] = ["PASS", " 지은 ", 'C:\\new, "fine";\nreally']
    rows[3][11:] = ["fail", "Ann", "takes no order"]
    path.write_bytes(save(rows))
    assert read_corrections(path, KNOWN) == [
        Correction("=a/dialog/1/1", True, "지은", 'C:\\new, "fine";\nreally'),
        Correction("a/dialog/2/relevance", False, "Ann", "takes no order"),
    ]


GIVEN = {"corrected verdict": "pass", "reviewer": "Ann", "reason": "fine"}
REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({**GIVEN, "id": "a/dialog/9/9"}, "id", "not a graded output"),
    ({**GIVEN, "id": ""}, "id", "not a graded output"),
    ({**GIVEN, "corrected verdict": "passed"}, "corrected verdict", "expected pass or fail, found 'passed'"),
    ({**GIVEN, "corrected verdict": ""}, "corrected verdict", "a reason is given"),
    ({**GIVEN, "reviewer": " "}, "reviewer", "needs a reviewer and a reason"),
    ({**GIVEN, "reason": ""}, "reason", "needs a reviewer and a reason"),
    ({**GIVEN, "corrected verdict": "fail"}, "corrected verdict", "Ann says both pass and fail"),
]


@pytest.mark.parametrize(("row", "column", "says"), REFUSED)
def test_a_wrong_row_is_named(tmp_path: Path, row: dict[str, str], column: str, says: str) -> None:
    path = _sheet(tmp_path, {**GIVEN, "reason": "first\nof two lines"}, row)
    with pytest.raises(DatasetError) as caught:
        read_corrections(path, KNOWN)
    assert (caught.value.path, caught.value.line, caught.value.field) == (str(path), 4, column)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("data", "line", "column", "says"),
    [
        (b"", None, None, "is empty"),
        (b"id\tcorrected verdict\treason\r\n", 1, "reviewer", "is missing from the header"),
        (b"id\tcorrected verdict\treason\treviewer\treviewer\n", 1, "reviewer", "occurs twice"),
        ("id\nx\n\xe9".encode("latin-1"), 3, None, "neither UTF-8 nor UTF-16"),
        (b'id\tcorrected verdict\treviewer\treason\n"a\tb', 2, None, "cannot be read as a table"),
    ],
)
def test_what_is_no_such_table(tmp_path: Path, data: bytes, line: int | None, column: str | None, says: str) -> None:
    (tmp_path / "back.tsv").write_bytes(data)
    with pytest.raises(DatasetError) as caught:
        read_corrections(tmp_path / "back.tsv", KNOWN)
    assert (caught.value.line, caught.value.field) == (line, column)
    assert says in caught.value.message


def test_a_missing_sheet(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        read_corrections(tmp_path / "back.tsv", KNOWN)


def test_rows_without_a_verdict_are_left_out(tmp_path: Path) -> None:
    assert read_corrections(_sheet(tmp_path, {}, {"reviewer": "Ann"}), KNOWN) == []


ONE = Correction("a", True, "Ann", "fine")
TWO = Correction("a", False, "Bo", "not so")
THREE = Correction("b", False, "Ann", "한글")


def test_corrections_are_kept_and_never_overwritten(tmp_path: Path) -> None:
    assert recorded_corrections(tmp_path) == []
    assert add_corrections(tmp_path, [ONE, TWO]) == [ONE, TWO]
    before = (tmp_path / CORRECTIONS_FILE).read_bytes()
    assert add_corrections(tmp_path, [ONE, THREE]) == [THREE]  # what Ann said already is not said again
    assert (tmp_path / CORRECTIONS_FILE).read_bytes().startswith(before)
    assert add_corrections(tmp_path, [ONE, TWO, THREE]) == []
    later = Correction("a", False, "Ann", "looked again")
    assert add_corrections(tmp_path, [later]) == [later]
    assert recorded_corrections(tmp_path) == [ONE, TWO, THREE, later]
    assert effective_corrections(recorded_corrections(tmp_path)) == {"a": later, "b": THREE}
    assert disputed_outputs([ONE, TWO, THREE]) == ["a"]
    assert disputed_outputs(recorded_corrections(tmp_path)) == []


def test_a_line_cut_off_is_named_and_a_missing_line_end_does_no_harm(tmp_path: Path) -> None:
    add_corrections(tmp_path, [ONE])
    file = tmp_path / CORRECTIONS_FILE
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    add_corrections(tmp_path, [TWO])
    assert recorded_corrections(tmp_path) == [ONE, TWO]
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    with pytest.raises(DatasetError, match=rf"{CORRECTIONS_FILE}:2: not valid JSON.*the file ends in the middle"):
        add_corrections(tmp_path, [THREE])
    file.write_bytes(whole.replace(b'"pass"', b'"maybe"'))
    with pytest.raises(
        DatasetError, match=rf"{CORRECTIONS_FILE}:1: field 'verdict': expected pass or fail, found 'maybe'"
    ):
        recorded_corrections(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        add_corrections(tmp_path / "none", [ONE])
