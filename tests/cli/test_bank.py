"""`viva bank`: banks fitted to matrices and runs, what is listed in which words, and hostile files."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from case_tables import case_table
from command import viva
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sweeps import swept, write_file

from viva.data.bank_file import MOST_ITEMS, BankFile, fit_bank_file, read_bank, read_bank_file, read_matrix
from viva.engine.errors import DatasetError, VivaError


def write_matrix(path: Path, models: int = 120, items: int = 24, *, faults: bool = True) -> Path:
    """Answers of models of 40 organisations; item q0 has a wrong key, and all get q1 right."""
    draw = np.random.default_rng(1)
    ability = draw.normal(size=(models, 1))
    chances = 1.0 / (1.0 + np.exp(-1.5 * (ability - np.linspace(-1.5, 1.5, items))))
    right = (draw.random((models, items)) < chances).astype(int)
    if faults:
        right[:, 0] = (draw.random(models) < 1.0 / (1.0 + np.exp(1.5 * ability[:, 0]))).astype(int)
        right[:, 1] = 1
    cells = [[f"org{row % 40}/model-{row}", *map(str, values)] for row, values in enumerate(right)]
    cells[3][5] = ""
    path.write_text("\n".join(",".join(row) for row in [["model", *(f"q{item}" for item in range(items))], *cells]))
    return path


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bank")
    done = viva("bank", "fit", write_matrix(folder / "scores.csv"), "--out", folder / "bank.json")
    assert done.returncode == 0, done.stderr
    assert "24 items, fitted to 120 models of 40 organisations (right or wrong)." in " ".join(done.stdout.split())
    assert "2 of 24 items to look at, 1 of them because better models do worse." in " ".join(done.stdout.split())
    return folder / "bank.json"


def test_a_bank_says_which_items_to_look_at_and_why(bank: Path) -> None:
    done = viva("bank", "check", bank)
    lines = done.stdout.splitlines()
    assert lines[0] == "2 of 24 items to look at, 1 of them because better models do worse."
    rows = {line.split()[0]: line for line in lines if line.strip().startswith("q")}
    assert [*rows] == ["q0", "q1"]
    assert "better models do worse: perhaps a wrong key" in rows["q0"]
    assert "all 120 models are right: does not tell models apart" in rows["q1"]
    record = json.loads(viva("bank", "check", bank, "--json").stdout)
    assert record["answer"][0] == lines[0]
    assert [item["item"] for item in record["items"]] == ["q0", "q1"]
    assert record["items"][0]["discrimination"] < -0.5


def test_items_are_shown_by_difficulty_with_errors(bank: Path) -> None:
    record = json.loads(viva("bank", "show", bank, "--json").stdout)
    items = {item["item"]: item for item in record["items"]}
    # A difficulty for a model of average ability: item q12 is in the middle of planted ones from -1.5 to 1.5.
    assert abs(items["q12"]["difficulty"]) < 0.6
    assert items["q5"]["difficulty"] < items["q12"]["difficulty"] < items["q20"]["difficulty"]
    assert 0.0 < items["q12"]["difficulty_se"] < 0.5
    assert items["q0"]["difficulty"] is None
    assert items["q4"]["models"] == 119
    shown = viva("bank", "show", bank).stdout
    order = [line.split()[0] for line in shown.splitlines() if line.strip().startswith("q")]
    assert len(order) == 24
    assert order.index("q5") < order.index("q12") < order.index("q20")
    assert order[-1] == "q0"


def test_a_bank_has_its_origin_and_is_read_back_as_it_was(bank: Path) -> None:
    file = read_bank_file(bank)
    assert (file.bank, file.models, file.organisations) == (1, 120, 40)
    assert file.viva
    assert file.inputs == [str(bank.with_name("scores.csv"))]
    fitted = fit_bank_file(read_matrix(bank.with_name("scores.csv")), file.inputs)
    assert fitted == file
    own, items, calibration, digest = read_bank(bank)
    assert own.slopes.tolist() == file.slopes
    assert items == [f"q{number}" for number in range(24)]
    assert calibration.models > 100
    assert min(calibration.widths) > 1.9
    assert digest is None


def test_too_few_models_are_said_to_be_too_few(tmp_path: Path) -> None:
    matrix = write_matrix(tmp_path / "few.csv", 12, faults=False)
    done = viva("bank", "fit", matrix, "--out", tmp_path / "few.json")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "The bank rests on 12 models." in said
    assert "The model-based interval is not calibrated" in said
    assert "Too few models to tell: no item has the scores of 20 models." in said
    done = viva("bank", "fit", write_matrix(tmp_path / "two.csv", 5), "--out", tmp_path / "two.json")
    assert done.returncode == 2
    assert "two.csv: 5 models; a bank needs the scores of at least 10" in done.stderr


def test_the_same_matrix_in_every_form_gives_the_same_bank(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    matrix = read_matrix(write_matrix(tmp_path / "a.csv"))
    (tmp_path / "b.tsv").write_text((tmp_path / "a.csv").read_text().replace(",", "\t"))
    np.savez_compressed(tmp_path / "c.npz", X=matrix.scores, names=matrix.models, items=matrix.items)
    columns = {item: [None if np.isnan(score) else score for score in matrix.scores[:, place]]
               for place, item in enumerate(matrix.items)}  # fmt: skip
    parquet.write_table(pyarrow.table({"model": matrix.models, **columns}), tmp_path / "d.parquet")
    for name in ("b.tsv", "c.npz", "d.parquet"):
        other = read_matrix(tmp_path / name)
        assert (other.models, other.items) == (matrix.models, matrix.items)
        assert np.array_equal(other.scores, matrix.scores, equal_nan=True)
    assert matrix.organisations()[:2] == ["org0", "org1"]


def test_a_bank_is_fitted_to_the_interviews_of_a_sweep(tmp_path: Path) -> None:
    candidates = [f"simulated:m{number}?knowledge={number / 12:.2f}" for number in range(12)]
    file = write_file(tmp_path, 6, ("alpha", "beta"), candidates=candidates)
    swept(file, tmp_path / "sweep")
    done = viva("bank", "fit", tmp_path / "sweep", "--out", tmp_path / "bank.json")
    assert done.returncode == 2
    assert "these runs are on several datasets (alpha, beta); choose one with --dataset" in done.stderr
    done = viva("bank", "fit", tmp_path / "sweep", "--dataset", "beta", "--out", tmp_path / "bank.json")
    assert done.returncode == 0, done.stderr
    bank = read_bank_file(tmp_path / "bank.json")
    assert bank.items == [f"beta-{number}" for number in range(6)]
    assert (bank.models, bank.counts, bank.dataset_name) == (12, [12] * 6, "beta")
    assert bank.dataset
    assert len(bank.scale.means) > 2
    # The means are those of the sweep's own report, from 0-100 to 0-1.
    report = json.loads(viva("report", tmp_path / "sweep", "--json").stdout)
    figures = [cell["result"]["score"]["mean"] for cell in report["cells"] if cell["dataset"] == "beta"]
    assert np.mean([mean or 0.0 for mean in bank.means]) == pytest.approx(np.mean(figures) / 100, abs=1e-4)


def npz(**arrays: Any) -> bytes:
    target = io.BytesIO()
    np.savez(target, **arrays)
    return target.getvalue()


def bomb() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", b"\0" * 2**20)
        archive.filelist[0].file_size = 2**40
    return target.getvalue()


class Trap:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (print, ("run",))


_X = np.zeros((2, 2))
_CASES = [
    ("m.csv", b"model,a,b\nm,1,0.5\nn,1,7\n", "m.csv:3: field 'b': found '7'; expected a score from 0 to 1"),
    ("m.csv", b"model,a,b\nm,1,x\n", "m.csv:2: field 'b': found 'x'"),
    ("m.csv", b"model,a,b\nm,1\n", "m.csv:2: expected 3 columns, found 2"),
    ("m.csv", b"model,a,a\nm,1,1\n", "field 'items': 'a' occurs twice"),
    ("m.csv", b"model,a\nm,1\nm,1\n", "field 'models': 'm' occurs twice"),
    ("m.csv", b"model,a\n,1\n", "m.csv:2: field 'model': expected a model's name"),
    ("m.csv", b"", "expected a header"),
    ("m.csv", b"model,a\nm,1\nn,inf\n", "m.csv:3: field 'a': found 'inf'"),
    ("m.txt", b"", "unknown kind of file '.txt'"),
    ("m.npz", b"no archive", "m.npz"),
    ("m.npz", npz(X=_X), "field 'names': is missing; expected the arrays X, names and items"),
    ("m.npz", npz(X=np.array([[Trap()]], dtype=object), names=["a"], items=["b"]), "field 'X': not readable"),
    ("m.npz", npz(X=_X, names=["a"], items=["b", "c"]), "field 'names': expected 2 texts"),
    ("m.npz", npz(X=_X, names=np.array([0.5, 1.5]), items=["b", "c"]), "field 'names'"),
    ("m.npz", npz(X=_X - 1, names=["a", "b"], items=["c", "d"]), "field 'X': found -1 for model 1, item 1"),
    ("m.npz", npz(X=np.zeros(3), names=["a"], items=["c"]), "field 'X': expected numbers, models × items"),
    ("m.npz", bomb(), "m.npz"),
]


@case_table("name, content, said", _CASES)
def test_a_broken_matrix_is_refused_with_its_line_and_field(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError) as raised:
        read_matrix(tmp_path / name)
    assert said in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def _with(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record | fields


_BANK_CASES = [
    (lambda _: [], "no item bank"),
    (_with(bank=2), "field 'bank'"),
    (_with(items=["a"] * 24), "items: 'a' occurs twice"),
    (_with(items=[]), "field 'items'"),
    (_with(slopes=[1.0]), "slopes: 1 entries for 24 items"),
    (lambda record: _with(slopes=[1e300, *record["slopes"][1:]])(record), "field 'slopes.0'"),
    (lambda record: _with(slopes=[None, *record["slopes"][1:]])(record), "field 'slopes.0'"),
    (lambda record: _with(slope_errors=[0.0, *record["slopes"][1:]])(record), "field 'slope_errors.0'"),
    (lambda record: _with(thresholds=[[0.0, 1.0], *record["thresholds"][1:]])(record), "thresholds.0: expected 1"),
    (_with(ability=[1.0]), "ability: expected 61 positive numbers"),
    (lambda record: _with(ability=[0.0] * 61)(record), "ability: expected 61 positive numbers"),
    (_with(scale={"cuts": [0.5], "means": [1.0, 0.0], "variances": [0, 0]}), "scale: cuts and means must rise"),
    (_with(calibration={"counts": [5, 5], "widths": [2, 2], "models": 3}), "calibration: expected rising counts"),
    (_with(calibration={"counts": [5], "widths": [-2], "models": 3}), "field 'calibration.widths.0'"),
]


@case_table("change, said", _BANK_CASES)
def test_a_broken_bank_is_refused_with_its_field(
    bank: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    file = tmp_path / "bank.json"
    file.write_bytes(orjson.dumps(change(orjson.loads(bank.read_bytes()))))
    done = viva("bank", "show", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert str(file) in done.stderr
    assert said in done.stderr


@settings(max_examples=80, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from([*BankFile.model_fields]), inner, max_size=6), max_leaves=20),
       st.binary(max_size=40))  # fmt: skip
def test_any_file_is_a_bank_or_an_error_that_names_it(tmp_path_factory: Any, data: Any, tail: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    try:
        content = orjson.dumps(data)
    except TypeError:
        return
    for own in (content, content + tail, tail):
        file.write_bytes(own)
        with pytest.raises(VivaError, match=r"any\.json"):
            read_bank_file(file)


def test_a_bank_with_too_few_items_serves_checks_but_no_exams(tmp_path: Path) -> None:
    matrix = write_matrix(tmp_path / "small.csv", 60, 6, faults=False)
    done = viva("bank", "fit", matrix, "--out", tmp_path / "small.json")
    assert "6 items are too few for an adaptive exam, which needs 20." in " ".join(done.stdout.split())
    with pytest.raises(DatasetError, match="field 'items': 6 items; an adaptive exam needs a bank of at least 20"):
        read_bank(tmp_path / "small.json")
    assert MOST_ITEMS >= 10_000


def test_what_is_read_is_never_overwritten(tmp_path: Path) -> None:
    matrix = write_matrix(tmp_path / "a.csv")
    before = matrix.read_bytes()
    done = viva("bank", "fit", matrix, "--out", matrix)
    assert done.returncode == 2
    assert "this command reads that file" in done.stderr
    done = viva("bank", "fit", matrix, "--out", tmp_path / "b.json", "--scenario", "kieval")
    assert "--scenario and --dataset choose runs" in done.stderr
    assert matrix.read_bytes() == before
    assert not (tmp_path / "b.json").exists()
