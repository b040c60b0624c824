"""``viva judge compare``: figures of a file in, coefficients, lines and a drawing out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from case_tables import case_table
from command import viva

TABLES = Path(__file__).parents[1] / "scoring" / "kieval_tables.csv"
HEAD = "model,dataset,accuracy,score\n"
THREE = "a,x,1,2\nb,x,2,3\nc,x,3,5\n"


def _viva(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return viva("judge", "compare", *arguments)


def _process(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, with these variables in its environment."""
    command = [sys.executable, "-m", "viva", "judge", "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)


def _cells(text: str, begin: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(begin)).split()


def test_the_papers_tables_as_tables() -> None:
    done = _viva(TABLES, "--exclude", "Yi 6B")
    assert done.returncode == 0, done.stderr
    _, whole, less = done.stdout.split("Accuracy and score")
    assert _cells(whole, "overall") == ["overall", "35", "0.664", "1.37e-05", "0.656", "1.91e-05", "0.500", "2.46e-05"]
    assert less.startswith(", without Yi 6B\n")
    assert _cells(less, "overall")[:4] == ["overall", "30", "0.765", "8.69e-07"]
    assert _cells(less, "HellaSwag")[:4] == ["HellaSwag", "6", "0.861", "2.76e-02"]
    lines = less[less.index("Score = intercept") :]
    assert _cells(lines, "C-Eval") == ["C-Eval", "0.892", "20.49", "2.74", "Yi", "6B", "GPT-3.5"]
    assert _cells(lines, "Yi 6B")[-2:] == ["-28.6", "(-10.4)"]
    assert "standard errors" in done.stderr


def test_the_same_as_json() -> None:
    done = _viva(TABLES, "--exclude", "Yi 6B", "--exclude", "GPT-3.5", "--json")
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert (report["rows"], len(report["models"]), report["rows_with_errors"]) == (35, 7, 0)
    whole, less = report["correlations"]
    assert whole["without"] == []
    assert whole["datasets"]["ARC-C"]["pearson"] == {"value": 0.838502, "p": 0.0184173}
    assert (less["without"], less["overall"]["n"]) == (["Yi 6B", "GPT-3.5"], 25)
    line = report["regressions"]["C-Eval"]
    assert (line["below"], line["above"]) == (["Yi 6B"], ["GPT-3.5"])
    assert line["residuals"]["Yi 6B"] == pytest.approx(55.6 - line["intercept"] - line["slope"] * 71.5, abs=1e-3)


def test_standard_errors_in_the_file_take_part(tmp_path: Path) -> None:
    rows = ["a,x,10,10", "b,x,20,20", "c,x,30,30", "d,x,40,39"]
    bare, with_errors = tmp_path / "bare.csv", tmp_path / "errors.csv"
    bare.write_text(HEAD + "\n".join(rows))
    with_errors.write_text("model,dataset,accuracy,score,score_se\n" + "\n".join(f"{row},2" for row in rows))
    first = _viva(bare, "--json")
    second = _viva(with_errors, "--json")
    assert orjson.loads(first.stdout)["regressions"]["x"]["below"] == ["d"]
    assert orjson.loads(first.stdout)["regressions"]["x"]["deviations"]["d"] is None  # of a perfect line, infinite
    assert orjson.loads(second.stdout)["regressions"]["x"]["below"] == []
    assert ("note" in first.stderr, second.stderr) == (True, "")


def test_a_dataset_without_spread_has_neither_coefficient_nor_line(tmp_path: Path) -> None:
    path = tmp_path / "flat.csv"
    path.write_text(HEAD + "a,x,5,1\nb,x,5,2\nc,x,5,3\n")
    done = _viva(path)
    assert done.returncode == 0, done.stderr
    assert _cells(done.stdout, "x") == ["x", "3", *["–"] * 6]
    assert "all accuracies are equal" in done.stdout
    assert orjson.loads(_viva(path, "--json").stdout)["regressions"] == {"x": None}


@case_table(
    ("content", "where", "what"),
    [
        ("model,dataset,accuracy\na,x,1\n", ":1: field 'score'", "missing from the header, which has: model, dataset"),
        (HEAD + "a,x,1,2\nb,x,92.7%,2\nc,x,3,4\n", ":3: field 'accuracy'", "expected a number"),
        (HEAD + "a,x,1,2\nb,x,1,nan\nc,x,3,4\n", ":3: field 'score'", "'nan'"),
        (HEAD + "a,x,1,2\nb,x,1,\nc,x,3,4\n", ":3: field 'score'", "found ''"),
        (HEAD + "a,x,1,2\nb,x,1\nc,x,3,4\n", ":3: field 'score'", "expected 4 columns"),
        (HEAD + "a,x,1,2\n,x,2,3\nc,x,3,4\n", ":3: field 'model'", "expected text"),
        (HEAD + THREE + "d,y,3,4\ne,y,3,4\n", ":5: field 'dataset'", "'y' has 2 models; a correlation needs three"),
        (HEAD + THREE + "b,y,3,4\nb ,x,9,9\n", ":6: field 'model'", "'b' has a row for 'x' in line 3 already"),
        (HEAD.replace("accuracy", "acuracy"), ":1: field 'accuracy'", "'acuracy'; did you mean 'accuracy'?"),
        (HEAD.replace(",", ";"), ":1", "the columns are separated by semicolons"),
        (HEAD, "", "has no rows"),
        ("", "", "contains no records"),
        (HEAD[:-1] + ",score_se\na,x,1,2,-1\nb,x,2,3,0\nc,x,3,5,\n", ":2: field 'score_se'", "from 0"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_field(tmp_path: Path, content: str, where: str, what: str) -> None:
    path = tmp_path / "figures.csv"
    path.write_text(content)
    done = _viva(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"viva: error: {path}{where}: ")
    assert what in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_headers_are_read_in_any_letter_case(tmp_path: Path) -> None:
    for name, head in (("lower", HEAD), ("upper", HEAD.upper())):
        (tmp_path / f"{name}.csv").write_text(head + THREE)
    lower, upper = (orjson.loads(_viva(tmp_path / f"{name}.csv", "--json").stdout) for name in ("lower", "upper"))
    assert lower | {"file": ""} == upper | {"file": ""}


def test_models_left_out_must_be_there_and_leave_enough(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    path.write_text(HEAD + THREE)
    unknown, too_few = _viva(path, "--exclude", "d"), _viva(path, "--exclude", "a")
    assert (unknown.returncode, too_few.returncode) == (2, 2)
    assert "--exclude d: " in unknown.stderr
    assert "it has: a, b, c" in unknown.stderr
    assert f"{path}:2: field 'dataset': 'x' has 2 models without a; " in too_few.stderr


def test_a_drawing_holds_every_name_and_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one, two, raster = (tmp_path / name for name in ("one.svg", "two.svg", "three.png"))
    for path, draw in ((one, _viva), (two, _process), (raster, _viva)):
        done = draw(TABLES, "--exclude", "Yi 6B", "--plot", path)
        assert done.returncode == 0, done.stderr
    text = one.read_text()
    for name in ("Yi 6B", "GPT-3.5", "MPT 7B", "HellaSwag (n = 7)", "C-Eval (n = 7)", "accuracy", "score"):
        assert text.count(f">{name}<") >= (5 if name in ("Yi 6B", "GPT-3.5", "MPT 7B", "score") else 1), name
    assert two.read_bytes() == one.read_bytes()
    assert raster.read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "three.png", "two.svg"]


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "figures.csv"
    path.write_text(HEAD + "$a_{$,x,1,2\nb,x,2,3\n模型,x,3,5\n")
    done = _viva(path, "--plot", tmp_path / "plot.svg")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    text = (tmp_path / "plot.svg").read_text()
    assert ">$a_{$<" in text
    assert ">模型<" in text


@pytest.mark.parametrize("name", ["plot.pdf", "none/plot.svg"])
def test_where_nothing_can_be_drawn_is_said_before_the_work(tmp_path: Path, name: str) -> None:
    done = _viva(TABLES, "--plot", tmp_path / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"viva: error: --plot {tmp_path / name}: ")


def test_without_matplotlib_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')\n")
    done = _process(TABLES, "--plot", tmp_path / "plot.svg", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'viva-exam[plots]'" in done.stderr
    assert _process(TABLES, PYTHONPATH=str(tmp_path)).returncode == 0
