"""Files of item banks, and the matrices of scores from which banks are fitted.

Both may come from others: sizes are bounded before anything is read into memory, and no code in them is run.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from threadpoolctl import threadpool_limits

from viva.engine.errors import DatasetError
from viva.engine.files import write_atomically
from viva.scoring.adaptive_exam import LEAST_ITEMS, Calibration, calibrate
from viva.scoring.item_bank import GRID, MOST_LEVELS, Bank, Scale, fit_bank, misfits

from .items import preview
from .record_files import TABLE_SUFFIXES, read_records, require_regular_file, table_rows

MOST_ITEMS, MOST_MODELS, MOST_CELLS = 200_000, 100_000, 20_000_000
MATRIX_SUFFIXES = (*TABLE_SUFFIXES, ".parquet", ".npz")
_MAX_BYTES = 256 * 2**20  # of a file; the arrays of an npz file may have twice as many once they are unpacked
_LONGEST_NAME = 1000
_ORGANISATION = re.compile("/|__")
Floats = NDArray[np.float64]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Error = Annotated[float, Field(gt=0.0, le=1e6, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
Count = Annotated[int, Field(ge=0, le=2**40)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class ScaleRecord(_Part):
    """Levels of scores, as `Scale` has them."""

    cuts: list[Share] = Field(min_length=1, max_length=MOST_LEVELS - 1)
    means: list[Share] = Field(min_length=2, max_length=MOST_LEVELS)
    variances: list[Share] = Field(min_length=2, max_length=MOST_LEVELS)


class CalibrationRecord(_Part):
    """Widths of the model-based interval, as `Calibration` has them."""

    counts: list[Annotated[int, Field(ge=1, le=MOST_ITEMS)]] = Field(default=[], max_length=1000)
    widths: list[Error] = Field(default=[], max_length=1000)
    models: Count = 0


class BankFile(_Part):
    """The contents of a file of an item bank; parameters are those of `Bank`.

    Attributes:
        bank: Number of the format.
        viva: Version that made the file.
        inputs: What the bank was fitted to, as the command named it.
        dataset: Digest of the dataset, if known.
        dataset_name: Name of the dataset, if known.
        models: Number of models in the fit.
        organisations: Number of their organisations.
        means: Mean score of each item, 0–1; None without a score.
        misfits: How far models' mean scores lie from the expected ones, by item, 0–1.
    """

    bank: Literal[1]
    viva: Name = ""
    inputs: list[str] = Field(default=[], max_length=10_000)
    dataset: Name | None = None
    dataset_name: Name | None = None
    models: Count = 0
    organisations: Count = 0
    items: list[Name] = Field(min_length=1, max_length=MOST_ITEMS)
    slopes: list[Number]
    thresholds: list[list[Number]]
    slope_errors: list[Error]
    difficulty_errors: list[Error | None] = []
    counts: list[Count]
    means: list[Share | None] = []
    misfits: list[Share] = []
    ability: list[Share]
    scale: ScaleRecord
    calibration: CalibrationRecord = CalibrationRecord()

    @model_validator(mode="after")
    def _check_sizes(self) -> BankFile:
        levels, scale = len(self.scale.means), self.scale
        for name in ("slopes", "thresholds", "slope_errors", "counts", "difficulty_errors", "means", "misfits"):
            values = getattr(self, name)
            is_optional = name in ("difficulty_errors", "means", "misfits")
            if len(values) != len(self.items) and (values or not is_optional):
                raise ValueError(f"{name}: {len(values):,} entries for {len(self.items):,} items")
        if (double := _repeated(self.items)) is not None:
            raise ValueError(f"items: {preview(double)} occurs twice")
        if len(scale.cuts) != levels - 1 or len(scale.variances) != levels:
            raise ValueError(f"scale: {levels} levels need {levels - 1} cuts and {levels} variances")
        if sorted(set(scale.cuts)) != scale.cuts or sorted(set(scale.means)) != scale.means:
            raise ValueError("scale: cuts and means must rise")
        for index, row in enumerate(self.thresholds):
            if len(row) != levels - 1 or sorted(row, reverse=True) != row:
                raise ValueError(f"thresholds.{index}: expected {levels - 1} numbers that do not rise")
        is_complete = len(self.ability) == len(GRID) and min(self.ability) > 0.0
        if not is_complete or not math.isclose(sum(self.ability), 1.0, abs_tol=1e-6):
            raise ValueError(f"ability: expected {len(GRID)} positive numbers with the sum 1")
        counts = self.calibration.counts
        if len(counts) != len(self.calibration.widths) or sorted(set(counts)) != counts:
            raise ValueError("calibration: expected rising counts, and a width for each")
        return self

    def to_bank(self) -> Bank:
        """Return the parameters."""
        scale = Scale(*(np.array(getattr(self.scale, name)) for name in ("cuts", "means", "variances")))
        errors = np.array([math.nan if error is None else error for error in self.difficulty_errors], dtype=np.float64)
        return Bank(
            scale,
            np.array(self.slopes, dtype=np.float64),
            np.array(self.thresholds, dtype=np.float64),
            np.array(self.slope_errors, dtype=np.float64),
            np.array(self.ability, dtype=np.float64),
            np.array(self.counts, dtype=np.int64),
            errors,
        )

    def to_calibration(self) -> Calibration:
        """Return the calibration of the model-based interval."""
        return Calibration(self.calibration.counts, self.calibration.widths, self.calibration.models)


def read_bank_file(path: Path) -> BankFile:
    """Return the contents of a file that `write_bank_file` has written.

    Raises:
        DatasetError: The file cannot be read or is no item bank; the message names the field.
    """
    try:
        return BankFile.model_validate(orjson.loads(_read_bytes(path)))
    except orjson.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}; expected a file made by viva bank fit"
        raise DatasetError(message, path=str(path), line=error.lineno) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))[:100]
        message = first["msg"].removeprefix("Value error, ")
        raise DatasetError(f"no item bank: {message}", path=str(path), field=field or None) from None


def read_bank(path: Path) -> tuple[Bank, list[str], Calibration, str | None]:
    """Return a bank for exams, the ids of its items, its calibration, and the digest of its dataset if it is known.

    Raises:
        DatasetError: The file cannot be read, is no item bank, or has too few items for an exam.
    """
    file = read_bank_file(path)
    if len(file.items) < LEAST_ITEMS:
        message = f"{len(file.items)} items; an adaptive exam needs a bank of at least {LEAST_ITEMS}"
        raise DatasetError(message, path=str(path), field="items")
    return file.to_bank(), file.items, file.to_calibration(), file.dataset


def write_bank_file(path: Path, file: BankFile) -> None:
    """Write a bank as JSON.

    Raises:
        DatasetError: The file cannot be written.
    """
    try:
        write_atomically(path, orjson.dumps(file.model_dump(), option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise DatasetError(f"cannot be written: {error.strerror}", path=str(path)) from None


def _repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs a second time; None if all differ."""
    known: set[str] = set()
    for name in names:
        if name in known:
            return name
        known.add(name)
    return None


def _read_bytes(path: Path) -> bytes:
    require_regular_file(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    if len(data) > _MAX_BYTES:
        raise DatasetError(f"has more than {_MAX_BYTES:,} bytes", path=str(path))
    return data


@dataclass(slots=True)
class Matrix:
    """Scores, 0–1, of models on items; nan if there is no score.

    Attributes:
        scores: Models × items.
        models: Names of the models.
        items: Ids of the items.
        dataset: Digest of the dataset, if known.
        dataset_name: Name of the dataset, if known.
    """

    scores: Floats
    models: list[str]
    items: list[str]
    dataset: str | None = None
    dataset_name: str | None = None

    def organisations(self) -> list[str]:
        """Return the organisation of each model: the part of its name before `/` or `__`, or the name itself."""
        return _organisations(self.models)


def _organisations(models: Sequence[str]) -> list[str]:
    return [_ORGANISATION.split(model, maxsplit=1)[0] for model in models]


def fit_bank_file(matrix: Matrix, inputs: Sequence[str], seed: int = 0) -> BankFile:
    """Fit a bank to a matrix, and calibrate its interval on organisations that are left out.

    Raises:
        ValueError: There are fewer than ten models, or no differences between scores.
    """
    clusters = matrix.organisations()
    # The matrix products are so small that several threads mostly wait for each other, at full load.
    with threadpool_limits(1, user_api="blas"):
        bank = fit_bank(matrix.scores)
        widths = calibrate(matrix.scores, clusters, seed=seed)
    answered = ~np.isnan(matrix.scores)
    sums = np.nansum(matrix.scores, axis=0)
    means = [float(total / count) if count else None for total, count in zip(sums, answered.sum(axis=0), strict=True)]
    file = _to_file(bank, matrix.items, matrix.models, matrix.dataset, matrix.dataset_name)
    file.inputs, file.means, file.misfits = list(inputs), means, misfits(bank, matrix.scores).tolist()
    file.calibration = CalibrationRecord(counts=list(widths.counts), widths=list(widths.widths), models=widths.models)
    return file


def write_learned_bank(
    path: Path, bank: Bank, items: Sequence[str], models: Sequence[str], dataset: str | None, dataset_name: str
) -> None:
    """Write the bank that a run of these models has learned.

    Nothing is known of its calibration. Mean scores would be over other models for each item, so it has none.

    Raises:
        DatasetError: The file cannot be written.
    """
    file = _to_file(bank, items, models, dataset, dataset_name)
    file.inputs = ["an adaptive run that learned it"]
    write_bank_file(path, file)


def _to_file(
    bank: Bank, items: Sequence[str], models: Sequence[str], dataset: str | None, dataset_name: str | None
) -> BankFile:
    return BankFile(
        bank=1,
        viva=version("viva-exam"),
        dataset=dataset,
        dataset_name=dataset_name,
        models=len(models),
        organisations=len(set(_organisations(models))),
        items=list(items),
        slopes=bank.slopes.tolist(),
        thresholds=bank.thresholds.tolist(),
        slope_errors=bank.slope_errors.tolist(),
        difficulty_errors=[None if math.isnan(error) else error for error in bank.difficulty_errors.tolist()],
        counts=bank.counts.tolist(),
        ability=bank.ability.tolist(),
        scale=ScaleRecord(
            cuts=bank.scale.cuts.tolist(), means=bank.scale.means.tolist(), variances=bank.scale.variances.tolist()
        ),
    )


def read_matrix(path: Path) -> Matrix:
    """Return the matrix in a CSV, TSV, Parquet or npz file.

    A table has a row for each model: its name in the first column, then a column for each item. Empty cells and `nan`
    are missing scores. An npz file has the arrays `X` (models × items), `names` and `items`.

    Raises:
        DatasetError: The file is no such matrix; the message names line and field.
        ConfigurationError: The file is a Parquet file, and the library for it is not installed.
    """
    if path.suffix not in MATRIX_SUFFIXES:
        message = f"unknown kind of file '{path.suffix}'; a matrix is one of {', '.join(MATRIX_SUFFIXES)}"
        raise DatasetError(message, path=str(path))
    matrix = _read_npz(path) if path.suffix == ".npz" else _read_table(path)
    for field, names in (("items", matrix.items), ("models", matrix.models)):
        if (double := _repeated(names)) is not None:
            raise DatasetError(f"{preview(double)} occurs twice; names must differ", path=str(path), field=field)
    return matrix


def _read_table(path: Path) -> Matrix:
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    _, header = next(rows, (1, []))
    items = [str(name) for name in header[1:]]
    if not items:
        raise DatasetError("expected a header: model, then the ids of the items", path=str(path), line=1)
    if len(items) > MOST_ITEMS:
        raise DatasetError(f"{len(items):,} items; at most {MOST_ITEMS:,} are read", path=str(path), line=1)
    models, scores = list[str](), list[Floats]()
    for line, row in rows:
        if len(row) != len(header):
            raise DatasetError(f"expected {len(header)} columns, found {len(row)}", path=str(path), line=line)
        name = "" if row[0] is None else str(row[0]).strip()
        if not name or len(name) > _LONGEST_NAME:
            raise DatasetError("expected a model's name", path=str(path), line=line, field=str(header[0]))
        models.append(name)
        scores.append(np.array([_score(value, path, line, item) for item, value in zip(items, row[1:], strict=True)]))
        if len(models) > MOST_MODELS or len(models) * len(items) > MOST_CELLS:
            message = f"a matrix may have {MOST_MODELS:,} models and {MOST_CELLS:,} scores"
            raise DatasetError(message, path=str(path), line=line)
    return Matrix(np.array(scores).reshape(len(models), len(items)), models, items)


def _csv_rows(path: Path) -> Iterator[tuple[int, Sequence[Any]]]:
    for line, row in table_rows(path):
        if isinstance(row, DatasetError):
            raise row
        if any(map(str.strip, row)):
            yield line, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Sequence[Any]]]:
    header: list[str] = []
    for line, row in read_records(path):
        if isinstance(row, DatasetError):
            raise row
        if not header:
            header = list(row)
            yield line, header
        yield line, [row.get(name) for name in header]


def _score(value: Any, path: Path, line: int, item: str) -> float:
    """Return the score in a cell; nan for an empty one."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.inf
    if not (math.isnan(score) or 0.0 <= score <= 1.0):
        message = f"found {preview(value)}; expected a score from 0 to 1, or nothing"
        raise DatasetError(message, path=str(path), line=line, field=item)
    return score


def _read_npz(path: Path) -> Matrix:
    require_regular_file(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DatasetError(f"has more than {_MAX_BYTES:,} bytes", path=str(path))
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > 2 * _MAX_BYTES:
                raise DatasetError(f"unpacks to more than {2 * _MAX_BYTES:,} bytes", path=str(path))
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: _array(file, name, path) for name in ("X", "names", "items")}
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror or error}", path=str(path)) from None
    except (zipfile.BadZipFile, EOFError, MemoryError, RuntimeError, zlib.error) as error:
        raise DatasetError(f"not readable as npz: {error}", path=str(path)) from None
    scores, names, items = arrays["X"], arrays["names"], arrays["items"]
    if scores.ndim != 2 or scores.dtype.kind not in "biuf":
        raise DatasetError("expected numbers, models × items", path=str(path), field="X")
    if scores.shape[0] > MOST_MODELS or scores.shape[1] > MOST_ITEMS or scores.size > MOST_CELLS:
        message = f"a matrix may have {MOST_MODELS:,} models, {MOST_ITEMS:,} items and {MOST_CELLS:,} scores"
        raise DatasetError(message, path=str(path), field="X")
    for field, array, length in (("names", names, scores.shape[0]), ("items", items, scores.shape[1])):
        if array.shape != (length,) or array.dtype.kind not in "Uiu":
            raise DatasetError(f"expected {length:,} texts", path=str(path), field=field)
    values = scores.astype(np.float64)
    wrong = ~(np.isnan(values) | ((values >= 0.0) & (values <= 1.0)))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        message = f"found {values[row, column]:g} for model {row + 1}, item {column + 1}; expected scores from 0 to 1"
        raise DatasetError(message, path=str(path), field="X")
    return Matrix(values, [str(name)[:_LONGEST_NAME] for name in names], [str(item)[:_LONGEST_NAME] for item in items])


def _array(file: Mapping[str, Any], name: str, path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = file[name]
    except KeyError:
        message = "is missing; expected the arrays X, names and items"
        raise DatasetError(message, path=str(path), field=name) from None
    except ValueError as error:  # an array of Python objects, or a broken header
        raise DatasetError(f"not readable: {error}", path=str(path), field=name) from None
    return array
